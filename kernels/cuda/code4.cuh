/* CODE4 (kernels/format/code4.h) on the GPU: what it does in another way than the INT formats, as
 * specialisations of block.cuh and whole.cuh. Levels are looked up four at a time, as bytes, by permutations
 * whose selectors are the codes themselves: a plane word holds elements 0 2 4 6 | 1 3 5 7. No memory is
 * touched, and no table lives in local arrays. */
#ifndef KERNELS_CUDA_CODE4_CUH
#define KERNELS_CUDA_CODE4_CUH

#include "kernels/cuda/block.cuh"

/* One instruction more than INT4 takes. No end needs a clamp: |t| <= 8 (1 + 2^-8.9), and there the cubic lies
 * between -7.9 and 7.2, still rising. */
template <>
__device__ __forceinline__ void agoqk_encode8<AGOQ_FORMAT_CODE4>(const float x[AGOQK_VEC], float inverse,
                                                                 uint32_t u[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const float t = x[i] * inverse;
        const float slope = fmaf(t, fmaf(t, AGOQK_CODE4_CUBE, AGOQK_CODE4_SQUARE), AGOQK_CODE4_LINE);
        u[i] = __float_as_uint(fmaf(t, slope, AGOQK_ROUND_MAGIC + 8.0f));
    }
}

/* Eighths of a word's codes, plus 64 (0 .. 119), as bytes: elements 0 2 4 6, and 1 3 5 7. Two permutations
 * look up the lower and the upper eight levels, a third takes for each byte the one that bit 3 of its code
 * asks for. */
__device__ __forceinline__ void agoqk_code4_bytes(uint32_t word, uint32_t bytes[2]) {
    constexpr uint64_t signs = 0x8080808080808080u, bias = 0x4040404040404040u,
                       low = (AGOQK_CODE4_LOW ^ signs) - bias, high = (AGOQK_CODE4_HIGH ^ signs) - bias;
    constexpr uint32_t a = (uint32_t)low, b = low >> 32, c = (uint32_t)high, d = high >> 32;
    const uint32_t low3 = word & 0x77777777u, bit3 = (word >> 1 & 0x44444444u) | 0x32103210u;
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const uint32_t s = low3 >> 16 * h;
        bytes[h] = agoqk_permute(agoqk_permute(a, b, s), agoqk_permute(c, d, s), bit3 >> 16 * h);
    }
}

/* A byte in the mantissa of 2^23 is 2^23 + byte; less 2^23 + 64 it is the eighths, exactly. Times d / 8,
 * which is representable down to 2^-137; adding +0 makes -0 +0. */
template <>
__device__ __forceinline__ void agoqk_decode8<AGOQ_FORMAT_CODE4>(const agoqk_codes8<AGOQ_FORMAT_CODE4> &c,
                                                                 int n, float x[AGOQK_VEC]) {
    const float unit = agoqk_int_unit(agoqk_bf16_decode(c.scale), AGOQ_FORMAT_CODE4);
    uint32_t bytes[2];
    agoqk_code4_bytes(c.lo[0], bytes);
#pragma unroll
    for (int j = 0; j < AGOQK_VEC; j++) {
        const uint32_t u = agoqk_permute(bytes[j % 2], 0x4B000000u, 0x7440u + (uint32_t)(j / 2));
        x[j] = fmaf(__uint_as_float(u) - (float)(0x800000 + 64), unit, 0.0f);
    }
    if (agoqk_int_scale_is_nan(c.scale)) {
#pragma unroll
        for (int j = 0; j < AGOQK_VEC; j++) x[j] = agoqk_float(AGOQK_NAN_BITS);
    }
    if (n < AGOQK_VEC) {
#pragma unroll
        for (int j = 0; j < AGOQK_VEC; j++) x[j] = j < n ? x[j] : 0.0f;
    }
}

template <int BITS> __device__ __forceinline__ uint4 agoqk_decode8_bf16(const agoqk_codes8<BITS> &c);

/* A byte in the mantissa of 128.0 is 128 + byte; an eighth of it less 24 is the level, exactly; its product
 * with d has 15 bits at most. Selectors 8 to 15 repeat the sign of a byte, which is 0. */
template <>
__device__ __forceinline__ uint4
agoqk_decode8_bf16<AGOQ_FORMAT_CODE4>(const agoqk_codes8<AGOQ_FORMAT_CODE4> &c) {
    uint32_t w[4], bytes[2];
    const uint32_t d2 = c.scale | (uint32_t)c.scale << 16;
    const __nv_bfloat162 eighth = __float2bfloat162_rn(0.125f), bias = __float2bfloat162_rn(-24.0f),
                         zero = __float2bfloat162_rn(0.0f);
    agoqk_code4_bytes(c.lo[0], bytes);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t pair =
            agoqk_permute(bytes[0], bytes[1], 0xC480u + 0x1111u * (uint32_t)i) | 0x43004300u;
        const __nv_bfloat162 level = __hfma2(*(const __nv_bfloat162 *)&pair, eighth, bias);
        const __nv_bfloat162 value = __hfma2(level, *(const __nv_bfloat162 *)&d2, zero);
        w[i] = agoqk_int_scale_is_nan(c.scale) ? AGOQK_BF16_NAN * 0x00010001u : *(const uint32_t *)&value;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
