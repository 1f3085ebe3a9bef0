/* The scalar encoders of 8-bit gradients over all 2^32 floats, against the exact thresholds of
 * tests/vectors/thresholds.txt: to nearest at every instruction set, with extreme random bits at the widest;
 * and the conversions to bf16 and fp16 against a walk through the midpoints of neighbouring patterns. A
 * changed tie rule is 118 wrong inputs in 2^32: only a walk through all of them sees it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/half.h"
#include "tests/full/walk_levels.h"
#include "tests/numeric.h"

static thr_bf16 bf16_last;
static thr_table *tables;
static int n_tables;

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

/* Magnitudes up to Inf, their negatives, and in the formats that have a NaN every NaN: code 7F without its
 * sign. */
static uint64_t all_floats(const walk_level *level, const thr_table *table) {
    const thr_table nans = {
        .format = table->format, .random = table->random, .n = 1, .end = {UINT32_MAX}, .code = {0x7F}};
    uint64_t wrong =
        walk_all(level, table, 0, AGOQK_INF_BITS, 0) + walk_all(level, table, 0, AGOQK_INF_BITS, 1);
    if (table->format == AGOQ_GRAD_INT8) return wrong;
    wrong += walk_all(level, &nans, AGOQK_INF_BITS + 1, 0x7FFFFFFF, 0);
    return wrong + walk_all(level, &nans, 0x80000000u | (AGOQK_INF_BITS + 1), UINT32_MAX, 0);
}

static void gradients(int stochastic) {
    int walks = 0;
    uint64_t wrong = 0;
    const walk_level *level;
    for (int i = 0; (level = walk_level_at(i)) && (i == 0 || !stochastic); i++) {
        for (int t = 0; t < n_tables; t++) {
            if (tables[t].fmt || (tables[t].random >= 0) != stochastic) continue;
            wrong += all_floats(level, &tables[t]);
            walks++;
        }
    }
    print_message("%d walks through 2^32 floats\n", walks);
    assert_true(walks >= (stochastic ? 12 : 3));
    assert_true(wrong == 0);
}

static void gradients_to_nearest(void **state) {
    (void)state;
    gradients(0);
}

static void gradients_stochastic(void **state) {
    (void)state;
    gradients(1);
}

/* bf16 and fp16: a walk through the midpoints of neighbouring patterns. */
static void halves_all(void **state) {
    (void)state;
    uint32_t b = 0, h = 0;
    uint64_t wrong = 0;
    for (uint32_t u = 0; u < 0x80000000u; u++) {
        const float x = agoqk_float(u);
        uint32_t want_b = 0x7FC0, want_h = 0x7E00, sign = 0x8000;
        if (u <= AGOQK_INF_BITS) {
            const double mag = u == AGOQK_INF_BITS ? 0x1p200 : (double)x;
            while (b < 0x7F80) { /* the pattern above the largest finite one stands for 2^128 here */
                const double next = b == 0x7F7F ? 0x1p128 : (double)agoqk_bf16_decode((uint16_t)(b + 1));
                if (!goes_over(mag, (double)agoqk_bf16_decode((uint16_t)b), next, (int)b)) break;
                b++;
            }
            while (h < 0x7C00) {
                const double next = h == 0x7BFF ? 0x1p16 : (double)agoqk_f16_decode((uint16_t)(h + 1));
                if (!goes_over(mag, (double)agoqk_f16_decode((uint16_t)h), next, (int)h)) break;
                h++;
            }
            want_b = b, want_h = h;
        } else {
            sign = 0;
        }
        wrong += agoqk_bf16_encode(x) != want_b || agoqk_f16_encode(x) != want_h;
        wrong += agoqk_bf16_encode(-x) != (want_b | sign) || agoqk_f16_encode(-x) != (want_h | sign);
    }
    assert_true(wrong == 0);
}

/* Stochastic bf16: by the number r of 2^16 random values, x goes up if its lower half is above r. */
static void bf16_stochastic_all(void **state) {
    static const uint32_t randoms[] = {0, 1, 0x7FFF, 0x8000, 0xFFFE, 0xFFFF};
    (void)state;
    uint64_t wrong = 0;
    for (uint32_t high = 0; high <= 0xFFFF; high++) {
        const int nan_above = (high & 0x7FFF) >= 0x7F80;
        for (uint32_t low = 0; low <= 0xFFFF; low++) {
            const float x = agoqk_float(high << 16 | low);
            for (int i = 0; i < 6; i++) {
                uint32_t want = low > randoms[i] ? high + 1 : high;
                if (nan_above && (low || (high & 0x7F))) want = 0x7FC0;
                wrong += agoqk_bf16_encode_sr(x, randoms[i]) != want;
            }
        }
    }
    assert_true(wrong == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(gradients_to_nearest),
                                       cmocka_unit_test(gradients_stochastic), cmocka_unit_test(halves_all),
                                       cmocka_unit_test(bf16_stochastic_all)};
    return cmocka_run_group_tests(tests, read_tables, free_tables);
}
