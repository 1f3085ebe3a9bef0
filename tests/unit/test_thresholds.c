/* A sample of what tests/full/ walks completely: every code threshold of tests/vectors/thresholds.txt with
 * its two neighbours on either side, and a stride through all floats, by the scalar encoders (and all bf16
 * inputs at a stride of scales) and by every row of kernels that this machine has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/grad_block.h"
#include "kernels/format/int_block.h"
#include "tests/threshold_rows.h"

enum { STRIDE = 1000003, DENSE = 10007, SCALE_STRIDE = 509 }; /* primes */

static thr_bf16 bf16_last;
static thr_table *tables;
static int n_tables;
static trow_work work;

static int read_tables(void **state) {
    (void)state;
    tables = thr_read(&n_tables, &bf16_last);
    return tables ? 0 : -1;
}

static int free_tables(void **state) {
    (void)state;
    free(tables);
    return 0;
}

static uint32_t encode(const thr_table *t, uint32_t index, int negative) {
    const uint32_t random = (uint32_t)t->random;
    if (t->fmt) {
        const float x = thr_float(thr_disorder(index)), inverse = agoqk_int_inverse((uint16_t)t->scale);
        return t->random < 0 ? agoqk_int_encode(x, inverse, t->fmt)
                             : agoqk_int_encode_sr(x, inverse, t->fmt, random);
    }
    const float x = thr_float(index | (negative ? 0x80000000u : 0));
    return t->random < 0 ? agoqk_grad_encode(x, t->format) : agoqk_grad_encode_sr(x, random, t->format);
}

static uint32_t expected(const thr_table *t, uint32_t index, int negative) {
    const uint32_t code = thr_code(t, index);
    if (!negative) return code;
    return t->format == AGOQ_GRAD_INT8 ? (0x100 - code) & 0xFF : code | 0x80;
}

/* The inputs of the sample in ascending order within `from` .. `to`; their number. */
static int sample(const thr_table *t, uint32_t from, uint32_t to, uint32_t *index, int room) {
    int n = 0;
    for (int c = 0; c < t->n; c++) {
        for (int64_t k = (int64_t)t->end[c] - 2; k <= (int64_t)t->end[c] + 2; k++) {
            if (k >= from && k <= to && n < room) index[n++] = (uint32_t)k;
        }
    }
    for (uint64_t k = from; k <= to && n < room; k += STRIDE) index[n++] = (uint32_t)k;
    return n;
}

/* Every DENSE-th input; the number of wrong codes. */
static long walk(const thr_table *t, int negative, long *inputs) {
    const uint32_t from = t->fmt ? THR_FIRST : 0, to = t->fmt ? THR_LAST : AGOQK_INF_BITS;
    int run = 0;
    long wrong = 0;
    uint8_t want;
    for (uint64_t k = from; k <= to; k += DENSE, ++*inputs) {
        thr_expect(t, (uint32_t)k, 1, &run, &want);
        if (negative) want = (uint8_t)(t->format == AGOQ_GRAD_INT8 ? 0x100 - want : want | 0x80);
        wrong += encode(t, (uint32_t)k, negative) != want;
    }
    return wrong;
}

static void scalar_encoders(void **state) {
    (void)state;
    long inputs = 0, wrong = 0;
    for (int i = 0; i < n_tables; i++) {
        const thr_table *t = &tables[i];
        const uint32_t from = t->fmt ? THR_FIRST : 0, to = t->fmt ? THR_LAST : AGOQK_INF_BITS;
        const int n = sample(t, from, to, work.index, TROW_INPUTS);
        for (int k = 0; k < n; k++) {
            for (int negative = 0; negative <= (t->fmt == 0); negative++, inputs++) {
                const uint32_t got = encode(t, work.index[k], negative);
                if (got == expected(t, work.index[k], negative)) continue;
                if (wrong++ < 10)
                    print_message("table %d (format %d, scale %04X, random %d): %s %08X got %02X\n", i,
                                  t->fmt, (unsigned)t->scale, (int)t->random, negative ? "minus" : "plus",
                                  (unsigned)work.index[k], (unsigned)got);
            }
        }
    }
    for (int i = 0; i < n_tables; i++) {
        for (int negative = 0; negative <= (tables[i].fmt == 0); negative++)
            wrong += walk(&tables[i], negative, &inputs);
    }
    print_message("%d tables, %ld inputs\n", n_tables, inputs);
    assert_true(n_tables == 15 + 5 * 28 && inputs > 50000000);
    assert_int_equal(wrong, 0);
}

static void rows_of_kernels(void **state) {
    (void)state;
    int wrong = 0, levels = 0;
    const agoqk_ops *ops;
    for (; (ops = agoqk_cpu_level(levels)); levels++) {
        for (int i = 0; i < n_tables; i++) {
            const thr_table *t = &tables[i];
            uint32_t from = 0, to = trow_largest(t->format);
            if (t->random >= 0) continue;
            if (t->fmt) trow_range(t, &from, &to);
            const int n = sample(t, from, to, work.index, TROW_INPUTS);
            int good = t->fmt ? trow_check_int(ops, t, &work, n)
                              : trow_check_grad(ops, t, &work, n, 0) && trow_check_grad(ops, t, &work, n, 1);
            if (good) continue;
            wrong++;
            print_message("%s: table %d (format %d, scale %04X) differs\n", agoqk_cpu_level_name(levels), i,
                          t->fmt, (unsigned)t->scale);
        }
    }
    assert_true(levels > 0);
    assert_int_equal(wrong, 0);
}

/* All finite bf16 inputs at some of the scales that an encoder writes. */
static void bf16_inputs(void **state) {
    (void)state;
    static uint8_t want[THR_BF16];
    int scales = 0;
    long wrong = 0;
    for (uint32_t d = 0x80; d <= 0x7C00; d += SCALE_STRIDE) {
        for (int f = 0; f < AGOQ_N_FORMATS; f++) {
            const int fmt = agoq_format_at(f)->number;
            if (fmt == AGOQ_FORMAT_BF16) continue;
            const uint32_t minus = (uint32_t)scales++ & 1;
            const float inverse = agoqk_int_inverse((uint16_t)(d | minus << 15));
            for (uint32_t sign = 0; sign < 2; sign++) {
                thr_expect_bf16(&bf16_last, fmt, (uint16_t)d, sign != minus, want);
                for (uint32_t u = 0; u < THR_BF16; u++)
                    wrong += agoqk_int_encode(thr_float((u | sign << 15) << 16), inverse, fmt) != want[u];
            }
        }
    }
    assert_true(scales > 300);
    assert_int_equal(wrong, 0);
}

/* NaNs of both signs, quiet and signalling: one code, in the formats that have one. */
static void nans(void **state) {
    static const uint32_t patterns[] = {0x7FC00000, 0xFFC00000, 0x7F800001,
                                        0xFF800001, 0x7FFFFFFF, 0xFFFFFFFF};
    (void)state;
    for (size_t i = 0; i < sizeof patterns / sizeof *patterns; i++) {
        const float t = thr_float(patterns[i]);
        for (int format = AGOQ_GRAD_E4M3; format <= AGOQ_GRAD_E5M2; format++) {
            assert_int_equal(agoqk_grad_encode(t, (agoq_grad_format)format), AGOQK_GRAD_NAN);
            assert_int_equal(agoqk_grad_encode_sr(t, 0xFFFF, (agoq_grad_format)format), AGOQK_GRAD_NAN);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(scalar_encoders), cmocka_unit_test(rows_of_kernels),
                                       cmocka_unit_test(bf16_inputs), cmocka_unit_test(nans)};
    return cmocka_run_group_tests(tests, read_tables, free_tables);
}
