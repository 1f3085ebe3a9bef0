/* Gradients: E4M3 (OCP FP8: 4 exponent bits of bias 7, 3 mantissa bits, no Inf, NaN = S.1111.111, largest
 * 448), 128 elements per fp32 scale s = amax / 448. Decode multiplies, so a block of scale 0 is exact zeros.
 * The encoders saturate (a conversion to NaN just above 448 would turn rounding noise of x * (1/s) into NaN).
 */
#ifndef KERNELS_FORMAT_E4M3_H
#define KERNELS_FORMAT_E4M3_H

#include "kernels/format/hd.h"

#define AGOQK_E4M3_MAX 448.0f
#define AGOQK_E4M3_NAN 0x7Fu

/* Largest float below which nothing is representable: 448 * 2^-126 is the first amax with a normal scale. */
#define AGOQK_E4M3_TINY (AGOQK_E4M3_MAX * 0x1p-126f)

/* Scale of a block from its statistic: NaN if it holds a NaN or Inf, 0 if it is stored as zeros; both have
 * codes 0. */
AGOQ_HD float agoqk_e4m3_scale(uint32_t stat) {
    const float amax = agoqk_float(stat >> 1);
    if (agoqk_stat_nonfinite(stat)) return agoqk_float(AGOQK_NAN_BITS);
    return amax < AGOQK_E4M3_TINY ? 0.0f : amax / AGOQK_E4M3_MAX;
}

/* t is x * (1/s). Nearest even, saturating, NaN to AGOQK_E4M3_NAN without sign. */
AGOQ_HD uint32_t agoqk_e4m3_encode(float t) {
    const uint32_t u = agoqk_bits(t), sign = u >> 24 & 0x80u;
    uint32_t mag = u & 0x7FFFFFFFu;
    const int nan = mag > AGOQK_INF_BITS;
    mag = mag > 0x43E00000u ? 0x43E00000u : mag; /* 448 */
    const uint32_t normal = ((mag + 0x7FFFFu + (mag >> 20 & 1)) >> 20) - (120u << 3);
    /* below 2^-6 the step is 2^-9, which is the step of floats at 2^14 */
    const uint32_t small = agoqk_bits(agoqk_float(mag) + 0x1p14f) - 0x46800000u;
    const uint32_t code = (mag < 0x3C800000u ? small : normal) | sign;
    return nan ? AGOQK_E4M3_NAN : code;
}

/* Away from zero with the probability of the exact fraction; random: 16 bits. Selection is by masks: compilers turn a
 * conditional whose arms are this long into branches and then do not vectorise. */
AGOQ_HD uint32_t agoqk_e4m3_encode_sr(float t, uint32_t random) {
    const uint32_t u = agoqk_bits(t), sign = u >> 24 & 0x80u;
    const uint32_t nan = 0u - (uint32_t)((u & 0x7FFFFFFFu) > AGOQK_INF_BITS);
    uint32_t mag = u & 0x7FFFFFFFu;
    mag = mag > 0x43E00000u ? 0x43E00000u : mag;
    const uint32_t below = 0u - (uint32_t)(mag < 0x3C800000u); /* 2^-6 */
    /* the same comparison as agoqk_stochastic_up, on the 20 bits that a normal value loses */
    const uint32_t normal = (mag >> 20) - (120u << 3) + (16 * random + 8 < (mag & 0xFFFFFu));
    const float steps = agoqk_float(mag & below) * 0x1p9f;
    const int32_t whole = (int32_t)steps; /* at most 7 */
    const uint32_t small = (uint32_t)(whole + agoqk_stochastic_up(steps - (float)whole, random));
    const uint32_t code = (small & below) | (normal & ~below) | sign;
    return (AGOQK_E4M3_NAN & nan) | (code & ~nan);
}

/* The E4M3 value itself; may be -0. */
AGOQ_HD float agoqk_e4m3_value(uint32_t code) {
    const uint32_t mag = code & 0x7Fu, sign = (code & 0x80u) << 24;
    const uint32_t small = agoqk_bits((float)(int32_t)mag * 0x1p-9f);
    const uint32_t normal = (mag << 20) + (120u << 23);
    const uint32_t u = (mag < 8 ? small : normal) | sign;
    return agoqk_float(mag == 0x7Fu ? AGOQK_NAN_BITS : u);
}

/* Element of a block; NaN is canonical, -0 comes out as +0. */
AGOQ_HD float agoqk_e4m3_decode(uint32_t code, float scale) {
    return agoqk_canonical(agoqk_e4m3_value(code) * scale + 0.0f);
}

#endif
