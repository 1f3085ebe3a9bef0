/* INT4/5/6/8: 64 elements of a row share a signed bf16 scale d. d is chosen so that the element of largest
 * magnitude takes code 0, level -2^(b-1); so all 2^b levels are used and zero is exact, at the price of
 * clipping the other end by at most one step. One implementation for every width: `bits` only sets constants.
 */
#ifndef KERNELS_FORMAT_INT_BLOCK_H
#define KERNELS_FORMAT_INT_BLOCK_H

#include "kernels/format/half.h"

AGOQ_HD int agoqk_int_zero_code(int bits) {
    return 1 << (bits - 1);
}

/* Scale of a block from its statistic, as bf16 bits: 0 for a block that is stored as zeros, AGOQK_BF16_NAN
 * for one that holds a NaN or Inf; in both cases every code is the zero code. */
AGOQ_HD uint16_t agoqk_int_scale(uint32_t stat, int bits) {
    if (agoqk_stat_nonfinite(stat)) return AGOQK_BF16_NAN;
    const uint16_t d = agoqk_bf16_encode(agoqk_stat_value(stat) / (float)-(1 << (bits - 1)));
    return (uint16_t)((d & 0x7F80u) == 0 ? 0 : d);
}

AGOQ_HD int agoqk_int_scale_is_nan(uint16_t d) { /* Inf counts: no encoder writes it */
    return (d & 0x7F80u) == 0x7F80u;
}

/* 1 / d of the rounded scale; normal for every d that agoqk_int_scale gives (2^-126 <= |d| < 2^125). */
AGOQ_HD float agoqk_int_inverse(uint16_t d) {
    return 1.0f / agoqk_bf16_decode(d);
}

/* Code of a finite x. Clamping to integer bounds first is the same as clamping the rounded value. */
AGOQ_HD uint32_t agoqk_int_encode(float x, float inverse, int bits) {
    const float low = (float)-(1 << (bits - 1)), high = (float)((1 << (bits - 1)) - 1);
    float t = x * inverse;
    t = t < low ? low : t;
    t = t > high ? high : t;
    return agoqk_round_int(t) + (1u << (bits - 1));
}

/* Clamps the magnitude, as an integer, to 2^(b-1) below zero and 2^(b-1) - 1 above. */
AGOQ_HD uint32_t agoqk_int_encode_sr(float x, float inverse, int bits, uint32_t random) {
    const uint32_t u = agoqk_bits(x * inverse), minus = 0u - (u >> 31); /* x ^ minus - minus is -x or x */
    const uint32_t low = agoqk_bits((float)(1 << (bits - 1))),
                   high = agoqk_bits((float)((1 << (bits - 1)) - 1));
    const uint32_t limit = (low & minus) | (high & ~minus), abs_bits = u & 0x7FFFFFFFu;
    const float mag = agoqk_float(abs_bits < limit ? abs_bits : limit);
    const int32_t whole = (int32_t)mag; /* at most 128 */
    const uint32_t rounded = (uint32_t)(whole + agoqk_stochastic_up(mag - (float)whole, random));
    return (rounded ^ minus) - minus + (1u << (bits - 1));
}

/* Level of a code, in steps of d. A 16-entry codebook would replace this line. */
AGOQ_HD float agoqk_int_level(uint32_t code, int bits) {
    return (float)((int32_t)code - (1 << (bits - 1)));
}

/* Not for NaN scales: such a block decodes to AGOQK_NAN_BITS throughout. + 0.0f: no -0 comes out. */
AGOQ_HD float agoqk_int_decode(uint32_t code, float d, int bits) {
    return agoqk_int_level(code, bits) * d + 0.0f;
}

#endif
