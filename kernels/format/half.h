/* bf16 and fp16 to and from fp32: round to nearest even, NaN canonicalised (0x7FC0, 0x7E00), Inf, -0 and
 * subnormals kept. Written on bits rather than with conversion instructions, which differ between machines in
 * NaN bits only, but differ. */
#ifndef KERNELS_FORMAT_HALF_H
#define KERNELS_FORMAT_HALF_H

#include "kernels/format/hd.h"

#define AGOQK_BF16_NAN 0x7FC0u
#define AGOQK_F16_NAN  0x7E00u

AGOQ_HD float agoqk_bf16_decode(uint16_t h) {
    return agoqk_float((uint32_t)h << 16);
}

AGOQ_HD uint16_t agoqk_bf16_encode(float x) {
    const uint32_t u = agoqk_bits(x);
    const uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1)) >> 16;
    return (uint16_t)((u & 0x7FFFFFFFu) > AGOQK_INF_BITS ? AGOQK_BF16_NAN : rounded);
}

/* Away from zero with probability (low half of x) / 2^16; random: 16 bits. */
AGOQ_HD uint16_t agoqk_bf16_encode_sr(float x, uint32_t random) {
    const uint32_t u = agoqk_bits(x);
    const uint32_t mag = u & 0x7FFFFFFFu;
    const uint32_t rounded = (u >> 16) + (random < (u & 0xFFFFu));
    return (uint16_t)(mag > AGOQK_INF_BITS ? AGOQK_BF16_NAN : rounded);
}

AGOQ_HD float agoqk_bf16_round(float x) {
    const uint32_t u = agoqk_bits(x);
    const uint32_t rounded = (u + 0x7FFFu + (u >> 16 & 1)) & 0xFFFF0000u;
    return agoqk_float((u & 0x7FFFFFFFu) > AGOQK_INF_BITS ? AGOQK_NAN_BITS : rounded);
}

AGOQ_HD float agoqk_f16_decode(uint16_t h) {
    const uint32_t mag = h & 0x7FFFu, sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t normal = (mag << 13) + (112u << 23);
    const uint32_t small = agoqk_bits((float)(int32_t)mag * 0x1p-24f);
    uint32_t u = (mag < 0x400u ? small : normal) | sign;
    u = mag == 0x7C00u ? AGOQK_INF_BITS | sign : u;
    return agoqk_float(mag > 0x7C00u ? AGOQK_NAN_BITS : u);
}

AGOQ_HD uint16_t agoqk_f16_encode(float x) {
    const uint32_t u = agoqk_bits(x);
    const uint32_t mag = u & 0x7FFFFFFFu, sign = u >> 16 & 0x8000u;
    const uint32_t normal = (mag + 0xFFFu + (mag >> 13 & 1) - (112u << 23)) >> 13;
    /* below 2^-14 the step is 2^-24, which is the step of floats at 0.5 */
    const uint32_t small = agoqk_bits(agoqk_float(mag) + 0.5f) - 0x3F000000u;
    uint32_t h = (mag < 0x38800000u ? small : normal) | sign;
    h = mag >= 0x477FF000u ? 0x7C00u | sign : h; /* 65520 is half way to 2^16 */
    return (uint16_t)(mag > AGOQK_INF_BITS ? AGOQK_F16_NAN : h);
}

#endif
