/* exp and the logistic function for the fused SwiGLU rows, without libm, whose expf differs between
 * libraries: a rank must recompute exactly what another stored. exp is within a unit
 * in the last place (tests/unit/test_scalar.c); results below 2^-126 are 0. */
#ifndef KERNELS_FORMAT_SILU_H
#define KERNELS_FORMAT_SILU_H

#include "kernels/format/hd.h"

/* exp(x) for x <= 0: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^7 (next term 5e-9), scaled by 2^n. NaN
 * stays NaN. */
AGOQ_HD float agoqk_exp_neg(float x) {
    const float shifted = x * 1.44269504f + AGOQK_ROUND_MAGIC;
    const uint32_t n = agoqk_bits(shifted) - AGOQK_ROUND_MAGIC_BITS;
    const float nf = shifted - AGOQK_ROUND_MAGIC;
    /* ln 2 = 355/512 - 2.1219444e-4; the first product is exact */
    const float r = (x - nf * 0.693359375f) + nf * 2.12194440e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * (r * r) + r + 1.0f;
    const float y = p * agoqk_float((n + 127u) << 23);
    return x < -87.336544f ? 0.0f : y;
}

/* *low = 1 / (1 + e^x), *high = 1 - *low, neither by cancellation. */
AGOQ_HD void agoqk_logistic(float x, float *low, float *high) {
    const float e = agoqk_exp_neg(x < 0.0f ? x : -x);
    const float near_one = 1.0f / (1.0f + e), near_zero = e * near_one;
    *high = x < 0.0f ? near_zero : near_one;
    *low = x < 0.0f ? near_one : near_zero;
}

#endif
