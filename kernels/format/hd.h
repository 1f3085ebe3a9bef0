/* What the shared arithmetic is written in: the subset of C11 that is also CUDA C++. Every numeric rule of
 * the project lives once, in kernels/format/, and is compiled by both compilers; docs/FORMATS.md is the text
 * of the same rules. The trade-off: only + - * /, square roots and fused multiply-adds, which IEEE 754 rounds
 * one way, comparisons, integer operations and bit casts are used (no other libm), so that one set of bytes
 * comes out of every machine; needs IEEE 754 single precision, no
 * contraction, no fast math, subnormals on. */
#ifndef KERNELS_FORMAT_HD_H
#define KERNELS_FORMAT_HD_H

#include <stdint.h>
#include <string.h>

#if defined(__CUDACC__)
#define AGOQ_HD static __host__ __device__ __forceinline__
#else
#define AGOQ_HD static inline
#include <float.h>
#if FLT_EVAL_METHOD != 0
#error "kernels/format needs float expressions to be evaluated in float"
#endif
#endif
#if defined(__FAST_MATH__)
#error "kernels/format must not be built with fast math"
#endif

#define AGOQK_INF_BITS 0x7F800000u
#define AGOQK_NAN_BITS 0x7FC00000u /* the only NaN that is ever written */

AGOQ_HD uint32_t agoqk_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

AGOQ_HD float agoqk_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Arithmetic makes NaNs of other bits on other machines; whatever is stored passes here. */
AGOQ_HD float agoqk_canonical(float x) {
    return x == x ? x : agoqk_float(AGOQK_NAN_BITS);
}

/* |x| <= 2^22: x + 1.5 * 2^23 rounds x to nearest even into the low bits of the sum, which are read as an
 * integer: no conversion instruction, no undefined cast. */
#define AGOQK_ROUND_MAGIC      12582912.0f
#define AGOQK_ROUND_MAGIC_BITS 0x4B400000u

AGOQ_HD uint32_t agoqk_round_int(float x) { /* two's complement */
    return agoqk_bits(x + AGOQK_ROUND_MAGIC) - AGOQK_ROUND_MAGIC_BITS;
}

/* Block statistic (|x| bits << 1 | sign), maximised over a block as an integer: independent of order, defined
 * for NaN and Inf, and of two equal magnitudes the negative one is larger. */
AGOQ_HD uint32_t agoqk_stat(float x) {
    const uint32_t u = agoqk_bits(x);
    return u << 1 | u >> 31;
}

AGOQ_HD float agoqk_stat_value(uint32_t stat) {
    return agoqk_float(stat >> 1 | stat << 31);
}

AGOQ_HD int agoqk_stat_nonfinite(uint32_t stat) {
    return stat >> 1 >= AGOQK_INF_BITS;
}

/* Stochastic rounding up of an exact fraction in [0, 1) by 16 random bits: with probability f, rounded to the
 * nearest multiple of 2^-16. f = 0 never goes up, so what is representable stays. */
AGOQ_HD int agoqk_stochastic_up(float fraction, uint32_t random) {
    return (float)(int32_t)(2 * random + 1) * 0x1p-17f < fraction;
}

#endif
