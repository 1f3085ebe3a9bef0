/* Scalar encoders and decoders: E4M3 against a search in the table of its values, at and around every value
 * and every midpoint; bf16 and fp16 over all their patterns; exp. tests/full/test_exhaustive.c goes through
 * all floats; this is the part that takes no time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/e4m3.h"
#include "kernels/format/half.h"
#include "kernels/format/silu.h"
#include "tests/numeric.h"

static double e4m3_table(int code) {
    const int e = code >> 3, m = code & 7;
    return e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
}

static int e4m3_search(float x) {
    if (isnan(x)) return 0x7F;
    const double mag = fmin(fabs((double)x), 448.0);
    int best = 0;
    for (int c = 1; c < 127; c++) {
        const double d = fabs(e4m3_table(c) - mag), b = fabs(e4m3_table(best) - mag);
        if (d < b || (d == b && c % 2 == 0)) best = c;
    }
    return best | (signbit(x) ? 0x80 : 0);
}

static void e4m3_boundaries(void **state) {
    (void)state;
    for (int c = 0; c < 126;
         c++) { /* each value and each midpoint, and the floats around them, of both signs */
        const double points[2] = {e4m3_table(c), (e4m3_table(c) + e4m3_table(c + 1)) / 2};
        for (int k = 0; k < 6; k++) {
            float x = (float)points[k % 2];
            if (k / 2) x = nextafterf(x, k / 2 == 1 ? INFINITY : -INFINITY);
            assert_int_equal(agoqk_e4m3_encode(x), e4m3_search(x));
            assert_int_equal(agoqk_e4m3_encode(-x), e4m3_search(-x));
        }
    }
    uint64_t seed = 17;
    for (int i = 0; i < 200000; i++) {
        const float x = agoqk_float((uint32_t)(next_random(&seed) >> 32));
        assert_int_equal(agoqk_e4m3_encode(x), e4m3_search(x));
    }
    for (int c = 0; c < 127; c++) {
        assert_true((double)agoqk_e4m3_value((uint32_t)c) == e4m3_table(c));
        assert_int_equal(agoqk_e4m3_encode_sr((float)e4m3_table(c), 0), c); /* what is representable stays */
        assert_int_equal(agoqk_e4m3_encode_sr(-(float)e4m3_table(c), 0xFFFF), c | 0x80);
    }
    assert_int_equal(agoqk_e4m3_encode(INFINITY), 0x7E);
    assert_int_equal(agoqk_e4m3_encode_sr(1e30f, 0), 0x7E);
    assert_int_equal(agoqk_e4m3_encode_sr(NAN, 0), 0x7F);
}

static void halves_round_trip(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const uint16_t want = (h & 0x7FFF) > 0x7C00 ? 0x7E00 : (uint16_t)h;
        assert_int_equal(agoqk_f16_encode(agoqk_f16_decode((uint16_t)h)), want);
        const uint16_t want_b = (h & 0x7FFF) > 0x7F80 ? 0x7FC0 : (uint16_t)h;
        assert_int_equal(agoqk_bf16_encode(agoqk_bf16_decode((uint16_t)h)), want_b);
    }
}

/* exp stays within 1.1 units in the last place of libm's double. */
static void exponential(void **state) {
    (void)state;
    double worst = 0;
    for (int i = -870000; i <= 870000; i++) {
        const float x = (float)i * 1e-4f;
        const double want = exp((double)x);
        const double ulp = ldexp(1.0, ilogb(want) - 23), error = fabs((double)agoqk_exp(x) - want) / ulp;
        worst = error > worst ? error : worst;
    }
    print_message("exp: %.2f units\n", worst);
    assert_true(worst < 1.1);
    float low, high;
    for (int i = -1000; i <= 1000; i++) {
        const double x = i * 0.08, want = 1 / (1 + exp(-(double)(float)x));
        agoqk_logistic((float)x, &low, &high);
        assert_true(fabs((double)high - want) <= 4e-7 * want);
        assert_true(fabs((double)low - 1 / (1 + exp((double)(float)x))) <= 4e-7 * (double)low);
    }
    agoqk_logistic(NAN, &low, &high);
    assert_true(isnan(low) && isnan(high));
    agoqk_logistic(-INFINITY, &low, &high);
    assert_true(low == 1.0f && high > 0.0f && high < 2e-38f);
    agoqk_logistic(INFINITY, &low, &high);
    assert_true(high == 1.0f && low > 0.0f && low < 2e-38f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(e4m3_boundaries), cmocka_unit_test(halves_round_trip),
                                       cmocka_unit_test(exponential)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
