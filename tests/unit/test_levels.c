/* Every instruction set that this machine has (kernels/table.c) against the scalar row of
 * tests/kernels_ref.h, for every operation, format and dtype, over ragged shapes and special values: the same
 * bytes. A level that the machine lacks cannot be run and is named. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/kernels_cases.h"

static const char *const op_names[] = {
#define OP_NAME(id, name, wide, matrices, packed, rest) name,
    KCASE_OPS(OP_NAME)
#undef OP_NAME
};

static const agoq_dtype dtypes[] = {AGOQ_DTYPE_F32, AGOQ_DTYPE_BF16, AGOQ_DTYPE_F16};

/* Rows 66 and 130 end a chunk of 64 in the middle; columns: whole and short blocks, odd counts, one element,
 * more than 256 lanes, no multiple of four (random words start inside a group), more than 32 segments of a
 * sum. */
static const int64_t shapes[][2] = {{1, 1},   {3, 31},   {2, 64},   {5, 67},  {66, 96}, {3, 128},
                                    {2, 257}, {1, 1000}, {130, 40}, {4, 576}, {1, 9001}};

static void levels_agree(void **state) {
    (void)state;
    int wrong = 0, levels = 0;
    for (; agoqk_cpu_level(levels); levels++) {
    }
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
        for (int w = 0; w < AGOQ_N_FORMATS * 3; w++) {
            kcase k;
            assert_true(kcase_make(&k, shapes[s][0], shapes[s][1], agoq_format_at(w / 3)->number,
                                   dtypes[w % 3], s % 3 != 2));
            for (int op = 0; op < KCASE_N_OPS; op++) {
                for (int i = 0; i < levels; i++) {
                    if (kcase_agree(&k, agoqk_cpu_level(i), (kcase_op)op)) continue;
                    wrong++;
                    print_message("%s differs at level %s: %lld x %lld, %s, dtype %d\n", op_names[op],
                                  agoqk_cpu_level_name(i), (long long)k.rows, (long long)k.cols,
                                  agoq_format_of(k.format)->name, (int)k.dtype);
                }
            }
            kcase_free(&k);
        }
    }
    assert_int_equal(wrong, 0);
}

/* The plain row is always there and last; the row in use is the first. */
static void levels_are_listed(void **state) {
    (void)state;
    int levels = 0;
    for (; agoqk_cpu_level(levels); levels++) print_message("level %s\n", agoqk_cpu_level_name(levels));
    assert_in_range(levels, 1, 3);
    assert_string_equal(agoqk_cpu_level_name(levels - 1), "base");
    assert_null(agoqk_cpu_level_name(levels));
    assert_ptr_equal(agoqk_device_ops(AGOQ_DEVICE_CPU), agoqk_cpu_level(0));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(levels_are_listed), cmocka_unit_test(levels_agree)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
