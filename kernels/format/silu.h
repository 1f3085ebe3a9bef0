/* exp and the logistic function for the fused SwiGLU rows, without libm, whose expf differs between
 * libraries: a rank must recompute exactly what another stored. exp is within 1.1 units
 * in the last place (tests/unit/test_scalar.c). */
#ifndef KERNELS_FORMAT_SILU_H
#define KERNELS_FORMAT_SILU_H

#include <math.h>

#include "kernels/format/hd.h"

/* exp(x), x clamped to [-87, 87]: x = n ln 2 + r, |r| <= ln 2 / 2, Taylor to r^7 (next term 5e-9), scaled by
 * 2^n. The multiply-adds are fused by name: half the instructions, and every machine rounds them alike. NaN
 * stays NaN. */
AGOQ_HD float agoqk_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 87.0f ? 87.0f : x;
    const float shifted = fmaf(x, 1.44269504f, AGOQK_ROUND_MAGIC);
    const uint32_t n = agoqk_bits(shifted) - AGOQK_ROUND_MAGIC_BITS;
    const float nf = shifted - AGOQK_ROUND_MAGIC;
    /* ln 2 = 355/512 - 2.1219444e-4; the first product is exact */
    const float r = fmaf(nf, 2.12194440e-4f, fmaf(nf, -0.693359375f, x));
    float p = 1.0f / 5040.0f;
    p = fmaf(p, r, 1.0f / 720.0f);
    p = fmaf(p, r, 1.0f / 120.0f);
    p = fmaf(p, r, 1.0f / 24.0f);
    p = fmaf(p, r, 1.0f / 6.0f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    return p * agoqk_float((n + 127u) << 23);
}

/* *high = 1 / (1 + e^-x), *low = 1 - *high, neither by cancellation; below -87 both stay at their values
 * there. */
AGOQ_HD void agoqk_logistic(float x, float *low, float *high) {
    const float e = agoqk_exp(-x);
    *high = 1.0f / (1.0f + e);
    *low = e * *high;
}

/* silu(g) * u and its gradients, from what agoqk_logistic makes of g. */
AGOQ_HD float agoqk_swiglu(float g, float high, float u) {
    return g * high * u;
}

typedef struct agoqk_swiglu_grads {
    float product, dgate, dup;
} agoqk_swiglu_grads;

AGOQ_HD agoqk_swiglu_grads agoqk_swiglu_backward(float g, float low, float high, float u, float d) {
    const float silu = g * high, slope = high * (1.0f + g * low);
    agoqk_swiglu_grads out;
    out.product = silu * u;
    out.dgate = d * u * slope;
    out.dup = d * silu;
    return out;
}

#endif
