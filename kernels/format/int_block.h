/* INT4/5/6/8 and CODE4: 64 elements of a row share a signed bf16 scale d. d is chosen so that the element of
 * largest magnitude takes code 0, level -2^(b-1); so all 2^b levels are used and zero is exact, at the price
 * of clipping the other end by at most one step. One implementation for every format: `format`, a number of
 * AGOQ_FORMATS, is a constant wherever speed counts. A format that is not INT differs in what a code stands
 * for (agoqk_int_steps) and in how the nearest one is found; everything else follows from its bits. */
#ifndef KERNELS_FORMAT_INT_BLOCK_H
#define KERNELS_FORMAT_INT_BLOCK_H

#include "agoq/format.h"
#include "kernels/format/code4.h"
#include "kernels/format/half.h"

AGOQ_HD int agoqk_int_bits(int format) {
    return format % 64;
}

AGOQ_HD int agoqk_int_zero_code(int format) {
    return 1 << (agoqk_int_bits(format) - 1);
}

/* Scale of a block from its statistic, as bf16 bits: 0 for a block that is stored as zeros, AGOQK_BF16_NAN
 * for one that holds a NaN or Inf; in both cases every code is the zero code. */
AGOQ_HD uint16_t agoqk_int_scale(uint32_t stat, int format) {
    if (agoqk_stat_nonfinite(stat)) return AGOQK_BF16_NAN;
    const uint16_t d = agoqk_bf16_encode(agoqk_stat_value(stat) / (float)-agoqk_int_zero_code(format));
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
AGOQ_HD uint32_t agoqk_int_encode(float x, float inverse, int format) {
    float t = x * inverse;
    if (format == AGOQ_FORMAT_CODE4) return agoqk_code4_nearest(t);
    const int half = agoqk_int_zero_code(format);
    const float low = (float)-half, high = (float)(half - 1);
    t = t < low ? low : t;
    t = t > high ? high : t;
    return agoqk_round_int(t) + (uint32_t)half;
}

/* Clamps the magnitude, as an integer, to 2^(b-1) below zero and 2^(b-1) - 1 above. */
AGOQ_HD uint32_t agoqk_int_encode_sr(float x, float inverse, int format, uint32_t random) {
    if (format == AGOQ_FORMAT_CODE4) return agoqk_code4_stochastic(x * inverse, random);
    const int half = agoqk_int_zero_code(format);
    const uint32_t u = agoqk_bits(x * inverse), minus = 0u - (u >> 31); /* x ^ minus - minus is -x or x */
    const uint32_t low = agoqk_bits((float)half), high = agoqk_bits((float)(half - 1));
    const uint32_t limit = (low & minus) | (high & ~minus), abs_bits = u & 0x7FFFFFFFu;
    const float mag = agoqk_float(abs_bits < limit ? abs_bits : limit);
    const int32_t whole = (int32_t)mag; /* at most 128 */
    const uint32_t rounded = (uint32_t)(whole + agoqk_stochastic_up(mag - (float)whole, random));
    return (rounded ^ minus) - minus + (uint32_t)half;
}

/* Level of a code: an integer number of units, and the unit in terms of d, a power of two. */
AGOQ_HD int32_t agoqk_int_steps(uint32_t code, int format) {
    if (format == AGOQ_FORMAT_CODE4) return agoqk_code4_eighths(code);
    return (int32_t)code - agoqk_int_zero_code(format);
}

AGOQ_HD float agoqk_int_unit(float d, int format) {
    return format == AGOQ_FORMAT_CODE4 ? d * 0.125f : d;
}

/* Not for NaN scales: such a block decodes to AGOQK_NAN_BITS throughout. + 0.0f: no -0 comes out. */
AGOQ_HD float agoqk_int_decode(uint32_t code, float d, int format) {
    return (float)agoqk_int_steps(code, format) * agoqk_int_unit(d, format) + 0.0f;
}

#endif
