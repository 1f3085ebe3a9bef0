/* The INT encoder and its scale over all floats, by the walk of test_exhaustive.c. About a minute. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/int_block.h"
#include "tests/numeric.h"

/* A block whose extreme is -2^(b-1): d = inv = 1, so the code is that of the clamped, rounded float itself.
 */
static void int_all(void **state) {
    (void)state;
    static const int widths[] = {4, 5, 6, 8};
    for (int w = 0; w < 4; w++) {
        const int bits = widths[w], half = 1 << (bits - 1);
        const uint16_t d = agoqk_int_scale(agoqk_stat((float)-half), bits);
        assert_true(agoqk_int_inverse(d) == 1.0f);
        uint64_t wrong = 0;
        int level = 0;
        for (uint32_t u = 0; u < AGOQK_INF_BITS; u++) {
            const double mag = (double)agoqk_float(u);
            while (level < half && goes_over(mag, level, level + 1, level)) level++;
            const uint32_t plus = (uint32_t)(level < half ? level + half : 2 * half - 1);
            wrong += agoqk_int_encode(agoqk_float(u), 1.0f, bits) != plus;
            wrong += agoqk_int_encode(-agoqk_float(u), 1.0f, bits) != (uint32_t)(half - level);
        }
        assert_true(wrong == 0);
    }
}

/* Every float as the extreme of a block: the scale is the nearest bf16 of x / -2^(b-1), zeros below the
 * normal range. */
static void int_scale_all(void **state) {
    (void)state;
    uint64_t wrong = 0;
    for (uint32_t u = 0; u < AGOQK_INF_BITS; u++) {
        const double want =
            (double)(float)((double)agoqk_float(u) / -8); /* the two roundings of docs/FORMATS.md */
        const uint16_t d = agoqk_int_scale(u << 1, 4);
        const double got = (double)agoqk_bf16_decode(d), step = ldexp(1, ilogb(fmax(-want, 0x1p-126)) - 7);
        wrong += d == 0 ? -want >= 0x1p-126 - 0x1p-134 : fabs(got - want) > step / 2 || (d & 0x7F80) == 0;
        wrong += agoqk_int_scale(u << 1 | 1, 4) != (d ? d ^ 0x8000 : 0);
    }
    assert_true(wrong == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(int_all), cmocka_unit_test(int_scale_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
