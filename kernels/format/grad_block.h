/* Gradients: 128 elements share one fp32 scale s = amax / largest, one byte each as E4M3 or E5M2 (OCP FP8) or
 * as a two's complement integer. One implementation for all: `format` only sets constants. Decode multiplies,
 * so that a block of scale 0 is exact zeros. Encoders saturate (a conversion to NaN just above the largest
 * value would turn rounding noise of x * (1/s) into NaN) and never write an Inf. The trade-off: conversions
 * are integer arithmetic on bits, not instructions, which few machines have and which differ in NaNs. */
#ifndef KERNELS_FORMAT_GRAD_BLOCK_H
#define KERNELS_FORMAT_GRAD_BLOCK_H

#include "agoq/codec.h"
#include "kernels/format/hd.h"

#define AGOQK_GRAD_NAN 0x7Fu /* of the FP8 formats, without sign */

AGOQ_HD float agoqk_grad_max(agoq_grad_format format) {
    return format == AGOQ_GRAD_E4M3 ? 448.0f : format == AGOQ_GRAD_E5M2 ? 57344.0f : 127.0f;
}

/* Scale of a block from its statistic: NaN if it holds a NaN or Inf, 0 if it is stored as zeros (amax below
 * the first one with a normal scale); both have codes 0. */
AGOQ_HD float agoqk_grad_scale(uint32_t stat, agoq_grad_format format) {
    const float amax = agoqk_float(stat >> 1), max = agoqk_grad_max(format);
    if (agoqk_stat_nonfinite(stat)) return agoqk_float(AGOQK_NAN_BITS);
    return amax < max * 0x1p-126f ? 0.0f : amax / max;
}

/* ---- FP8: sign, exponent, mantissa ---- */

AGOQ_HD int agoqk_fp8_mantissa(agoq_grad_format format) { /* bits */
    return format == AGOQ_GRAD_E4M3 ? 3 : 2;
}

AGOQ_HD uint32_t agoqk_fp8_rebias(agoq_grad_format format) { /* bias of fp32 less that of the format */
    return format == AGOQ_GRAD_E4M3 ? 120u : 112u;
}

/* Below the first normal value, 2^-6 or 2^-14, the step is 2^-9 or 2^-16; floats at 2^14 or 2^7 have it too.
 */
AGOQ_HD float agoqk_fp8_step(agoq_grad_format format) {
    return format == AGOQ_GRAD_E4M3 ? 0x1p-9f : 0x1p-16f;
}

AGOQ_HD uint32_t agoqk_fp8_encode(float t, agoq_grad_format format) {
    const int drop = 23 - agoqk_fp8_mantissa(format);
    const uint32_t rebias = agoqk_fp8_rebias(format), max = agoqk_bits(agoqk_grad_max(format));
    const float magic = agoqk_fp8_step(format) * 0x1p23f;
    const uint32_t u = agoqk_bits(t), sign = u >> 24 & 0x80u;
    uint32_t mag = u & 0x7FFFFFFFu;
    const int nan = mag > AGOQK_INF_BITS;
    mag = mag > max ? max : mag;
    const uint32_t half = (1u << (drop - 1)) - 1;
    const uint32_t normal = ((mag + half + (mag >> drop & 1)) >> drop) - (rebias << (23 - drop));
    const uint32_t small = agoqk_bits(agoqk_float(mag) + magic) - agoqk_bits(magic);
    const uint32_t code = (mag < (rebias + 1) << 23 ? small : normal) | sign;
    return nan ? AGOQK_GRAD_NAN : code;
}

/* Selection is by masks: compilers turn a conditional whose arms are this long into branches and then do not
 * vectorise. */
AGOQ_HD uint32_t agoqk_fp8_encode_sr(float t, uint32_t random, agoq_grad_format format) {
    const int drop = 23 - agoqk_fp8_mantissa(format);
    const uint32_t rebias = agoqk_fp8_rebias(format), max = agoqk_bits(agoqk_grad_max(format));
    const uint32_t u = agoqk_bits(t), sign = u >> 24 & 0x80u;
    const uint32_t nan = 0u - (uint32_t)((u & 0x7FFFFFFFu) > AGOQK_INF_BITS);
    uint32_t mag = u & 0x7FFFFFFFu;
    mag = mag > max ? max : mag;
    const uint32_t below = 0u - (uint32_t)(mag < (rebias + 1) << 23);
    /* the same comparison as agoqk_stochastic_up, on the bits that a normal value loses */
    const uint32_t lost = mag & ((1u << drop) - 1), up = (2 * random + 1) << (drop - 17);
    const uint32_t normal = (mag >> drop) - (rebias << (23 - drop)) + (up < lost);
    const float steps = agoqk_float(mag & below) * (1.0f / agoqk_fp8_step(format));
    const int32_t whole = (int32_t)steps; /* at most 7 */
    const uint32_t small = (uint32_t)(whole + agoqk_stochastic_up(steps - (float)whole, random));
    const uint32_t code = (small & below) | (normal & ~below) | sign;
    return (AGOQK_GRAD_NAN & nan) | (code & ~nan);
}

AGOQ_HD float agoqk_fp8_value(uint32_t code, agoq_grad_format format) {
    const int drop = 23 - agoqk_fp8_mantissa(format);
    const uint32_t mag = code & 0x7Fu, sign = (code & 0x80u) << 24;
    const uint32_t small = agoqk_bits((float)(int32_t)mag * agoqk_fp8_step(format));
    const uint32_t normal = (mag << drop) + (agoqk_fp8_rebias(format) << 23);
    uint32_t u = (mag < 1u << (23 - drop) ? small : normal) | sign;
    if (format == AGOQ_GRAD_E4M3) return agoqk_float(mag == 0x7Fu ? AGOQK_NAN_BITS : u);
    u = mag == 0x7Cu ? AGOQK_INF_BITS | sign : u; /* no encoder writes it */
    return agoqk_float(mag > 0x7Cu ? AGOQK_NAN_BITS : u);
}

/* ---- INT8 ---- */

AGOQ_HD uint32_t agoqk_int8_encode(float t) {
    t = t > -127.0f ? t : -127.0f;
    t = t < 127.0f ? t : 127.0f;
    return agoqk_round_int(t) & 0xFFu;
}

AGOQ_HD uint32_t agoqk_int8_encode_sr(float t, uint32_t random) {
    const uint32_t u = agoqk_bits(t), minus = 0u - (u >> 31), limit = agoqk_bits(127.0f);
    const uint32_t abs_bits = u & 0x7FFFFFFFu;
    const float mag = agoqk_float(abs_bits < limit ? abs_bits : limit);
    const int32_t whole = (int32_t)mag;
    const uint32_t rounded = (uint32_t)(whole + agoqk_stochastic_up(mag - (float)whole, random));
    return ((rounded ^ minus) - minus) & 0xFFu; /* x ^ minus - minus is -x or x */
}

AGOQ_HD float agoqk_int8_value(uint32_t code) {
    return (float)((int32_t)(code ^ 0x80u) - 0x80);
}

/* ---- any ---- */

/* Code of t = x * (1/s): nearest, ties to the even code, saturating. A NaN, which no block with a scale has,
 * is AGOQK_GRAD_NAN in FP8. */
AGOQ_HD uint32_t agoqk_grad_encode(float t, agoq_grad_format format) {
    return format == AGOQ_GRAD_INT8 ? agoqk_int8_encode(t) : agoqk_fp8_encode(t, format);
}

/* Away from zero with the probability of the exact fraction; random: 16 bits. */
AGOQ_HD uint32_t agoqk_grad_encode_sr(float t, uint32_t random, agoq_grad_format format) {
    return format == AGOQ_GRAD_INT8 ? agoqk_int8_encode_sr(t, random)
                                    : agoqk_fp8_encode_sr(t, random, format);
}

/* What a code stands for, in units of the scale; may be -0. */
AGOQ_HD float agoqk_grad_value(uint32_t code, agoq_grad_format format) {
    return format == AGOQ_GRAD_INT8 ? agoqk_int8_value(code) : agoqk_fp8_value(code, format);
}

/* Element of a block; NaN is canonical, -0 comes out as +0. */
AGOQ_HD float agoqk_grad_decode(uint32_t code, float scale, agoq_grad_format format) {
    return agoqk_canonical(agoqk_grad_value(code, format) * scale + 0.0f);
}

#endif
