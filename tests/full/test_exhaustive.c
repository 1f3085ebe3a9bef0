/* Scalar encoders over all 2^32 floats. The oracle never rounds: for each code it has the largest float that
 * still gets that code, found from the table of values by exact comparison in double, and walks the floats in
 * order. A changed tie rule is 118 wrong inputs in 2^32: only a walk through all of them sees it. About a
 * minute and a half. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/e4m3.h"
#include "kernels/format/half.h"
#include "tests/numeric.h"

static double e4m3_table(int code) {
    const int e = code >> 3, m = code & 7;
    return e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
}

static void e4m3_all(void **state) {
    (void)state;
    int code = 0;
    uint64_t wrong = 0;
    for (uint32_t u = 0; u < 0x80000000u; u++) {
        const float x = agoqk_float(u);
        uint32_t want = 0x7F;
        if (u <= AGOQK_INF_BITS) {
            while (code < 126 && goes_over((double)x, e4m3_table(code), e4m3_table(code + 1), code)) code++;
            want = (uint32_t)code;
        }
        wrong += agoqk_e4m3_encode(x) != want;
        wrong += agoqk_e4m3_encode(-x) != (u > AGOQK_INF_BITS ? 0x7F : want | 0x80);
    }
    assert_true(wrong == 0);
}

/* Stochastic with the two extreme random words: the neighbours below and above, or the value itself. */
static void e4m3_stochastic_all(void **state) {
    (void)state;
    int code = 0;
    uint64_t wrong = 0;
    for (uint32_t u = 0; u <= AGOQK_INF_BITS; u++) {
        const double mag = fmin((double)agoqk_float(u), 448.0);
        while (code < 126 && e4m3_table(code + 1) <= mag) code++;
        const double here = e4m3_table(code), above = code < 126 ? e4m3_table(code + 1) : here;
        const double fraction = mag == here ? 0.0 : (mag - here) / (above - here);
        const uint32_t up = agoqk_e4m3_encode_sr(agoqk_float(u), 0);
        const uint32_t down = agoqk_e4m3_encode_sr(agoqk_float(u), UINT32_MAX);
        const double last = 1 - 0x1p-24; /* the largest threshold a random word stands for */
        wrong += up != (uint32_t)(code + (fraction > 0));
        wrong += down != (uint32_t)(code + (fraction > last));
    }
    assert_true(wrong == 0);
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(e4m3_all), cmocka_unit_test(e4m3_stochastic_all),
                                       cmocka_unit_test(halves_all)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
