/* The usual case of packed activations: whole, aligned vectors of bf16 in rows without gaps. Statistics are
 * taken of pairs, two elements an instruction, and nothing is asked about ends of rows. The bytes are those
 * of block.cuh. */
#ifndef KERNELS_CUDA_WHOLE_CUH
#define KERNELS_CUDA_WHOLE_CUH

#include "kernels/cuda/block.cuh"

/* The scale of a block of bf16 from its largest and its negated smallest element, pos and neg: x_ext /
 * -2^(b-1) only moves the exponent. Zero where it would be zero or subnormal; just below the smallest normal
 * value it rounds up to that. */
template <int BITS> __device__ __forceinline__ uint32_t agoqk_scale_of(uint32_t pos, uint32_t neg) {
    constexpr uint32_t down = (uint32_t)(BITS % 64 - 1) << 7, least = down | 0x7F;
    const float p = __uint_as_float(pos << 16), m = __uint_as_float(neg << 16);
    const uint32_t d = m >= p ? neg : pos ^ 0x8000u; /* -x_ext: of equal ones the negative counts */
    const uint32_t magnitude = d & 0x7FFFu;
    return magnitude >= least ? d - down + (magnitude == least) : 0;
}

__device__ __forceinline__ uint32_t agoqk_max2(uint32_t a, uint32_t b) { /* a NaN stays */
    const __nv_bfloat162 m = __hmax2_nan(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&m;
}

__device__ __forceinline__ uint32_t agoqk_min2(uint32_t a, uint32_t b) {
    const __nv_bfloat162 m = __hmin2_nan(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&m;
}

/* agoqk_put8 for a whole, aligned vector of bf16, given as pairs and as floats: the statistic needs no
 * integers. lo, hi and scale point at the first of `v`'s row. inside 0: takes part, and stores nothing. */
template <int BITS>
__device__ __forceinline__ uint32_t agoqk_put8_bf16(uint8_t *lo, uint8_t *hi, uint16_t *scale, int v,
                                                    bool inside, const uint32_t w[4],
                                                    const float x[AGOQK_VEC]) {
    if (BITS == 16) {
        const uint32_t stat = agoqk_max8(agoqk_stat8(x));
        if (inside) agoqk_store8_bf16((uint4 *)lo + v, x);
        return inside && v % 8 == 0 && agoqk_stat_nonfinite(stat);
    }
    const uint32_t high = agoqk_max2(agoqk_max2(w[0], w[1]), agoqk_max2(w[2], w[3]));
    const uint32_t low = agoqk_min2(agoqk_min2(w[0], w[1]), agoqk_min2(w[2], w[3])) ^ 0x80008000u;
    uint32_t both = agoqk_max2(__byte_perm(high, low, 0x5410), __byte_perm(high, low, 0x7632));
#pragma unroll
    for (int m = 1; m < 8; m *= 2) both = agoqk_max2(both, __shfl_xor_sync(0xFFFFFFFFu, both, m));
    const bool nan = (both & 0x7F80u) == 0x7F80u || (both >> 16 & 0x7F80u) == 0x7F80u;
    const uint32_t d = agoqk_scale_of<BITS>(both & 0xFFFFu, both >> 16);
    const float inverse = d == 0 || nan ? 0.0f : agoqk_inverse((uint16_t)d);
    uint32_t c[AGOQK_VEC];
    agoqk_encode8<BITS>(x, inverse, c);
    if (__any_sync(0xFFFFFFFFu, nan)) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) c[i] = nan ? (uint32_t)agoqk_int_zero_code(BITS) : c[i];
    }
    if (BITS == 5) agoqk_store_high<1>(hi, v, inside ? AGOQK_VEC : 0, agoqk_fold8<1>(c, 4));
    if (BITS == 6) agoqk_store_high<2>(hi, v, inside ? AGOQK_VEC : 0, agoqk_fold8<2>(c, 4));
    if (!inside) return 0;
    if (BITS == 8) {
        __stcs((uint2 *)lo + v, make_uint2(agoqk_bytes4(c), agoqk_bytes4(c + 4)));
    } else {
        __stcs((uint32_t *)lo + v, agoqk_fold8<4>(c, 0));
    }
    if (v % 8 == 0) scale[v / 8] = (uint16_t)(nan ? AGOQK_BF16_NAN : d);
    return v % 8 == 0 && nan;
}

/* The same in a tensor of one long row, from vector base (a multiple of 32) on. */
template <int BITS>
__device__ __forceinline__ uint32_t agoqk_put8_bf16(const agoqk_pmat &p, int64_t base, int v, bool inside,
                                                    const uint32_t w[4], const float x[AGOQK_VEC]) {
    constexpr int lo = BITS == 16 ? 16 : BITS == 8 ? 8 : 4, hi = BITS == 5 ? 1 : BITS == 6 ? 2 : 0;
    return agoqk_put8_bf16<BITS>(p.lo + base * lo, p.hi + base * hi, p.scale + base / 8, v, inside, w, x);
}

/* The same of a whole vector in an aligned row, whose first words and scale lo, hi and scale point at. */
template <int BITS>
__device__ __forceinline__ agoqk_codes8<BITS> agoqk_codes_at(const uint8_t *lo, const uint8_t *hi,
                                                             const uint16_t *scale, int v) {
    agoqk_codes8<BITS> c = {};
    if (BITS == 16) {
        const uint4 w = __ldcs((const uint4 *)lo + v);
        memcpy(c.lo, &w, sizeof c.lo < 16 ? sizeof c.lo : 16);
        return c;
    }
    c.scale = scale[v / 8];
    if (BITS == 8) {
        const uint2 w = __ldcs((const uint2 *)lo + v);
        memcpy(c.lo, &w, sizeof c.lo < 8 ? sizeof c.lo : 8);
    } else {
        c.lo[0] = __ldcs((const uint32_t *)lo + v);
    }
    if (BITS == 5) c.hi = ((const uint32_t *)hi)[v / 4] >> 4 * (v % 4);
    if (BITS == 6) c.hi = ((const uint32_t *)hi)[v / 2] >> 8 * (v % 2);
    return c;
}

template <int BITS>
__device__ __forceinline__ agoqk_codes8<BITS> agoqk_codes_at(const agoqk_pmat &p, int64_t base, int v) {
    constexpr int lo = BITS == 16 ? 16 : BITS == 8 ? 8 : 4, hi = BITS == 5 ? 1 : BITS == 6 ? 2 : 0;
    return agoqk_codes_at<BITS>(p.lo + base * lo, p.hi + base * hi, p.scale + base / 8, v);
}

/* Words, high words and scale (with its neighbour: 4 bytes is the least that can be fetched) of vector v. */

/* Decodes to pairs of bf16, as agoqk_decode8 and a rounded store would, two elements an instruction: a code
 * of up to 6 bits in the mantissa of 128.0 is 128 + code; less 128 + 2^(b-1) it is the level, exactly; the
 * product with d is rounded once, which is what fp32 and then bf16 do, as it has at most 14 bits; + 0 makes
 * -0 +0. */
template <int BITS> __device__ __forceinline__ uint4 agoqk_decode8_bf16(const agoqk_codes8<BITS> &c) {
    uint32_t w[4];
    const uint32_t d2 = c.scale | (uint32_t)c.scale << 16;
    const __nv_bfloat162 bias = __float2bfloat162_rn(-(float)(128 + (1 << (BITS - 1))));
    const __nv_bfloat162 zero = __float2bfloat162_rn(0.0f);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t pair = (c.lo[0] >> 4 * i & 0x000F000Fu) | 0x43004300u;
        if (BITS == 5) pair |= (c.hi << 4 >> i) & 0x00100010u;
        if (BITS == 6) pair |= (c.hi << 4 >> 2 * i) & 0x00300030u;
        const __nv_bfloat162 level = __hadd2(*(const __nv_bfloat162 *)&pair, bias);
        const __nv_bfloat162 value = __hfma2(level, *(const __nv_bfloat162 *)&d2, zero);
        w[i] = agoqk_int_scale_is_nan(c.scale) ? AGOQK_BF16_NAN * 0x00010001u : *(const uint32_t *)&value;
    }
    return make_uint4(w[0], w[1], w[2], w[3]);
}

#endif
