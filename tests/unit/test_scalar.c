/* Scalar encoders and decoders: gradient formats against a search in the table of their values, at and around
 * every value and every midpoint; bf16 and fp16 over all their patterns; exp. tests/full/test_exhaustive.c
 * goes through all floats; this is the part that takes no time. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/grad_block.h"
#include "kernels/format/half.h"
#include "kernels/format/silu.h"
#include "tests/numeric.h"

/* Value of code c, 0 .. n_codes - 1 in ascending order. */
static double grad_table(agoq_grad_format format, int c) {
    if (format == AGOQ_GRAD_INT8) return c;
    const int m_bits = format == AGOQ_GRAD_E4M3 ? 3 : 2, least = format == AGOQ_GRAD_E4M3 ? -9 : -16;
    const int e = c >> m_bits, m = c & ((1 << m_bits) - 1);
    return e == 0 ? ldexp(m, least) : ldexp((1 << m_bits) + m, e - 1 + least);
}

static int grad_codes(agoq_grad_format format) {
    return format == AGOQ_GRAD_E4M3 ? 127 : format == AGOQ_GRAD_E5M2 ? 124 : 128;
}

static uint32_t with_sign(agoq_grad_format format, int code, int minus) {
    if (format != AGOQ_GRAD_INT8) return (uint32_t)code | (minus ? 0x80u : 0);
    return (uint32_t)(minus ? -code : code) & 0xFFu;
}

static uint32_t grad_search(agoq_grad_format format, float x) {
    const int n = grad_codes(format);
    if (isnan(x)) return 0x7F;
    const double mag = fmin(fabs((double)x), grad_table(format, n - 1));
    int best = 0;
    for (int c = 1; c < n; c++) {
        const double d = fabs(grad_table(format, c) - mag), b = fabs(grad_table(format, best) - mag);
        if (d < b || (d == b && c % 2 == 0)) best = c;
    }
    return with_sign(format, best, signbit(x) != 0);
}

/* Each value and each midpoint, and the floats around them, of both signs; and floats of any bits. */
static void grad_boundaries(void **state) {
    (void)state;
    uint64_t seed = 17;
    for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
        const agoq_grad_format format = (agoq_grad_format)f;
        const int n = grad_codes(format);
        for (int c = 0; c < n - 1; c++) {
            const double here = grad_table(format, c),
                         points[2] = {here, (here + grad_table(format, c + 1)) / 2};
            for (int k = 0; k < 6; k++) {
                float x = (float)points[k % 2];
                if (k / 2) x = nextafterf(x, k / 2 == 1 ? INFINITY : -INFINITY);
                assert_int_equal(agoqk_grad_encode(x, format), grad_search(format, x));
                assert_int_equal(agoqk_grad_encode(-x, format), grad_search(format, -x));
            }
        }
        for (int i = 0; i < 100000; i++) {
            const float x = agoqk_float((uint32_t)(next_random(&seed) >> 32));
            if (format == AGOQ_GRAD_INT8 && isnan(x)) continue; /* has no code for it */
            assert_int_equal(agoqk_grad_encode(x, format), grad_search(format, x));
        }
        for (int c = 0; c < n; c++) {
            const float value = (float)grad_table(format, c);
            assert_true(agoqk_grad_value((uint32_t)c, format) == value);
            assert_true(agoqk_grad_value(with_sign(format, c, 1), format) == -value);
            /* what is representable stays */
            assert_int_equal(agoqk_grad_encode_sr(value, 0, format), c);
            assert_int_equal(agoqk_grad_encode_sr(-value, 0xFFFF, format), with_sign(format, c, 1));
        }
        const uint32_t top = (uint32_t)n - 1;
        assert_true(agoqk_grad_max(format) == (float)grad_table(format, n - 1));
        assert_int_equal(agoqk_grad_encode(INFINITY, format), top);
        assert_int_equal(agoqk_grad_encode_sr(1e30f, 0, format), top);
        if (format == AGOQ_GRAD_INT8) continue;
        assert_int_equal(agoqk_grad_encode_sr(NAN, 0, format), 0x7F);
        assert_true(isnan(agoqk_grad_value(0x7F, format)) && isnan(agoqk_grad_value(0xFF, format)));
    }
    assert_true(agoqk_grad_value(0x7C, AGOQ_GRAD_E5M2) == INFINITY);
    assert_true(agoqk_grad_value(0xFC, AGOQ_GRAD_E5M2) == -INFINITY);
    assert_true(isnan(agoqk_grad_value(0x7D, AGOQ_GRAD_E5M2)));
    assert_true(agoqk_grad_value(0x80, AGOQ_GRAD_INT8) == -128.0f); /* never written */
}

/* Of 2^16 random values, those that take x up are as many as the fraction says, within half a unit. */
static void grad_probabilities(void **state) {
    (void)state;
    uint64_t seed = 23;
    for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
        const agoq_grad_format format = (agoq_grad_format)f;
        for (int k = 0; k < 60; k++) {
            const int c = (int)(next_random(&seed) % (uint64_t)(grad_codes(format) - 1));
            const double low = grad_table(format, c), high = grad_table(format, c + 1);
            const float x = (float)(low + (high - low) * uniform(&seed));
            int up = 0;
            for (uint32_t r = 0; r < 65536; r++) {
                const uint32_t code = agoqk_grad_encode_sr(x, r, format);
                assert_true(code == (uint32_t)c || code == (uint32_t)c + 1);
                up += code != (uint32_t)c;
            }
            assert_true(fabs(up - 65536 * ((double)x - low) / (high - low)) <= 0.5);
        }
    }
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
    const struct CMUnitTest tests[] = {cmocka_unit_test(grad_boundaries),
                                       cmocka_unit_test(grad_probabilities),
                                       cmocka_unit_test(halves_round_trip), cmocka_unit_test(exponential)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
