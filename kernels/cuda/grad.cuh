/* Gradients in 8 bits on the GPU. Eight lanes of a warp share a block of 128: lane i of the eight holds
 * elements 16 i .. 16 i + 15, so that three shuffles find the largest and sixteen codes are one 16-byte
 * access. What an element becomes is kernels/format/grad_block.h; where the chip converts FP8 itself, it does
 * so here, for inputs on which it agrees, and elsewhere that header is compiled. All lanes of a warp must
 * take part in every call, also those whose elements lie beyond the end (n <= 0). */
#ifndef KERNELS_CUDA_GRAD_CUH
#define KERNELS_CUDA_GRAD_CUH

#include "kernels/cuda/block.cuh"
#include "kernels/cuda/ptx.cuh"
#include "kernels/format/grad_block.h"

enum { AGOQK_LANE = 16 }; /* elements of a lane */

/* A gradient as kernels see it; vec: its codes lie on 16 bytes. */
struct agoqk_gmat {
    uint8_t *codes;
    float *scales;
    int64_t n;
    int vec;
};

static inline agoqk_gmat agoqk_gmat_of(const agoq_grad *g) {
    const agoqk_gmat m = {g->codes, g->scales, g->n, (uintptr_t)g->codes % 16 == 0};
    return m;
}

/* Codes and scale, loaded before they are decoded, so that several loads can be in flight. */
struct agoqk_gcodes {
    uint32_t w[4];
    float scale;
};

/* n codes (0 .. 16) from `first`, a multiple of 16; zeros beyond. */
__device__ __forceinline__ agoqk_gcodes agoqk_grad_load(const agoqk_gmat &g, int64_t first, int n) {
    agoqk_gcodes c = {{0, 0, 0, 0}, 0.0f};
    if (n <= 0) return c;
    c.scale = g.scales[first / AGOQ_GRAD_BLOCK];
    if (g.vec && n == AGOQK_LANE) {
        const uint4 w = __ldcs((const uint4 *)(g.codes + first));
        c.w[0] = w.x, c.w[1] = w.y, c.w[2] = w.z, c.w[3] = w.w;
        return c;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_LANE; i++)
        if (i < n) c.w[i / 4] |= (uint32_t)g.codes[first + i] << 8 * (i % 4);
    return c;
}

/* Values of four codes, in units of the scale. */
template <int FORMAT> __device__ __forceinline__ void agoqk_grad_values4(uint32_t w, float v[4]) {
    if (FORMAT == AGOQ_GRAD_INT8) { /* 2^23 + (code + 128), as bits */
        const uint32_t u = w ^ 0x80808080u;
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = __uint_as_float(__byte_perm(u, 0x4B000000u, 0x7440 + i)) - 8388736.0f;
    } else if (FORMAT == AGOQ_GRAD_E5M2) { /* the upper half of an fp16 */
        agoqk_unpack_half2(__byte_perm(w, 0, 0x1404), AGOQ_DTYPE_F16, v[0], v[1]);
        agoqk_unpack_half2(__byte_perm(w, 0, 0x3424), AGOQ_DTYPE_F16, v[2], v[3]);
    } else {
#if AGOQK_HAS_FP8
        agoqk_unpack_half2(agoqk_e4m3x2_to_half2(w), AGOQ_DTYPE_F16, v[0], v[1]);
        agoqk_unpack_half2(agoqk_e4m3x2_to_half2(w >> 16), AGOQ_DTYPE_F16, v[2], v[3]);
#else
#pragma unroll
        for (int i = 0; i < 4; i++) v[i] = agoqk_grad_value(w >> 8 * i & 0xFFu, AGOQ_GRAD_E4M3);
#endif
    }
}

/* Elements of a block; a NaN may have any bits. PLUS: -0 comes out as +0. */
template <int FORMAT, bool PLUS>
__device__ __forceinline__ void agoqk_grad_decode16(const agoqk_gcodes &c, float x[AGOQK_LANE]) {
#pragma unroll
    for (int j = 0; j < AGOQK_LANE / 4; j++) {
        agoqk_grad_values4<FORMAT>(c.w[j], x + 4 * j);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float y = x[4 * j + i] * c.scale;
            x[4 * j + i] = PLUS ? y + 0.0f : y;
        }
    }
}

/* The random words of elements first .. first + 15, two numbers to a word; first: a multiple of 8. */
__device__ __forceinline__ void agoqk_random_whole16(const agoqk_rng &rng, uint64_t first, uint32_t w[8]) {
    const agoqk_words a = agoqk_stream_words(&rng.stream, first / 8);
    const agoqk_words b = agoqk_stream_words(&rng.stream, (first / 8 + 1) & UINT64_MAX / 8);
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = a.w[i], w[4 + i] = b.w[i];
#pragma unroll
    for (int i = 0; i < 8; i++)
        agoqk_forget(w[i]); /* here, not where they are used: loads are on their way */
}

/* The same for any first. */
__device__ __forceinline__ void agoqk_random_words16(const agoqk_rng &rng, uint64_t first, uint32_t w[8]) {
#pragma unroll
    for (int part = 0; part < 2; part++) {
        uint32_t r[AGOQK_VEC];
        agoqk_random8(rng, first + 8 * part, r);
#pragma unroll
        for (int i = 0; i < 4; i++) w[4 * part + i] = r[2 * i] | r[2 * i + 1] << 16;
    }
}

/* amax / largest, as agoqk_grad_scale gives it: one correction of a product with the rounded inverse; right
 * for every mantissa of amax (the GPU test tries every amax). */
template <int FORMAT> __device__ __forceinline__ float agoqk_grad_scale_of(float amax) {
    constexpr float most = FORMAT == AGOQ_GRAD_E4M3 ? 448.0f : FORMAT == AGOQ_GRAD_E5M2 ? 57344.0f : 127.0f;
    constexpr float inverse = 1.0f / most;
    const float q = amax * inverse;
    const float s = fmaf(fmaf(-most, q, amax), inverse, q);
    return amax < most * 0x1p-126f ? 0.0f : s;
}

/* 1 / s for a normal s below 2^125, correctly rounded: one Newton step on what the chip gives (which alone is
 * no proof: the GPU test tries every s). */
__device__ __forceinline__ float agoqk_grad_inverse(float s) {
    const float r = agoqk_rcp_approx(s);
    return fmaf(r, fmaf(-s, r, 1.0f), r);
}

/* What is added to the bits that a normal value loses so that they carry if their fraction is larger than
 * (r + 1/2) * 2^-16, and only then; r: the lower (odd: upper) half of a random word. */
template <int FORMAT> __device__ __forceinline__ uint32_t agoqk_fp8_noise(uint32_t word, int odd) {
    constexpr int drop = FORMAT == AGOQ_GRAD_E4M3 ? 20 : 21;
    constexpr uint32_t low = ((1u << (drop - 17)) - 1) << (32 - drop); /* the upper half becomes ~r */
    return __byte_perm(~word, low, odd ? 0x3254 : 0x1054) >> (32 - drop);
}

/* Sixteen values in units of the scale, |t| at most a rounding error above the largest, to values of FP8 of
 * the same binade or the next one, which an exact conversion turns into codes. Below the first normal value
 * the step is that of the floats in its binade: the sum with it is rounded up, so that no fraction is lost.
 */
template <int FORMAT>
__device__ __forceinline__ void agoqk_fp8_round_sr(float t[AGOQK_LANE], const uint32_t random[8]) {
    constexpr uint32_t mask = FORMAT == AGOQ_GRAD_E4M3 ? 0xFFF00000u : 0xFFE00000u;
    constexpr float normal = FORMAT == AGOQ_GRAD_E4M3 ? 0x1p-6f : 0x1p-14f;
    float least = normal;
#pragma unroll
    for (int i = 0; i < AGOQK_LANE; i++) least = fminf(least, fabsf(t[i]));
    if (least < normal) {
#pragma unroll
        for (int i = 0; i < AGOQK_LANE; i++) {
            const float sum = __fadd_ru(fabsf(t[i]), normal);
            const uint32_t u = __float_as_uint(sum) + agoqk_fp8_noise<FORMAT>(random[i / 2], i % 2);
            const float small = copysignf(__uint_as_float(u & mask) - normal, t[i]);
            const uint32_t large = __float_as_uint(t[i]) + agoqk_fp8_noise<FORMAT>(random[i / 2], i % 2);
            t[i] = fabsf(t[i]) < normal ? small : __uint_as_float(large & mask);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_LANE; i++) {
        const uint32_t u = __float_as_uint(t[i]) + agoqk_fp8_noise<FORMAT>(random[i / 2], i % 2);
        t[i] = __uint_as_float(u & mask);
    }
}

/* Codes of t; random: NULL (nearest), or eight words. t is overwritten. */
template <int FORMAT, bool STOCHASTIC>
__device__ __forceinline__ void agoqk_grad_encode16(float t[AGOQK_LANE], const uint32_t *random,
                                                    uint32_t codes[4]) {
#if AGOQK_HAS_FP8
    if constexpr (FORMAT != AGOQ_GRAD_INT8) {
        constexpr bool e4m3 = FORMAT == AGOQ_GRAD_E4M3;
        if (STOCHASTIC) agoqk_fp8_round_sr<FORMAT>(t, random);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            codes[j] = agoqk_to_fp8x2<e4m3>(t[4 * j], t[4 * j + 1]) |
                       agoqk_to_fp8x2<e4m3>(t[4 * j + 2], t[4 * j + 3]) << 16;
        }
    } else
#endif
    {
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t u[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int at = 4 * j + i;
                u[i] = STOCHASTIC ? agoqk_grad_encode_sr(t[at], random[at / 2] >> 16 * (at % 2) & 0xFFFFu,
                                                         (agoq_grad_format)FORMAT)
                                  : agoqk_grad_encode(t[at], (agoq_grad_format)FORMAT);
            }
            codes[j] = __byte_perm(__byte_perm(u[0], u[1], 0x0040), __byte_perm(u[2], u[3], 0x0040), 0x5410);
        }
    }
}

/* Codes x[0 .. n) from `first` on; x is zero beyond n. Returns, on the first lane of a block, 1 if the block
 * holds a NaN or Inf. PLUS: -0 counts as +0 (what x * inverse + 0, rounded once, does and leaves alone else).
 */
template <int FORMAT, bool STOCHASTIC, bool PLUS>
__device__ __forceinline__ uint32_t agoqk_grad_put16(const agoqk_gmat &g, int64_t first, int n,
                                                     const float x[AGOQK_LANE], const uint32_t *random) {
    float top = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < AGOQK_LANE; i++) top = agoqk_max_nan(top, fabsf(x[i]));
    const uint32_t most = agoqk_max8(__float_as_uint(top) & 0x7FFFFFFFu);
    const bool nonfinite = most >= AGOQK_INF_BITS;
    const float s = nonfinite ? agoqk_float(AGOQK_NAN_BITS) : agoqk_grad_scale_of<FORMAT>(agoqk_float(most));
    const float inverse = agoqk_grad_inverse(s);
    float t[AGOQK_LANE];
    uint32_t codes[4];
#pragma unroll
    for (int i = 0; i < AGOQK_LANE; i++) t[i] = PLUS ? fmaf(x[i], inverse, 0.0f) : x[i] * inverse;
    agoqk_grad_encode16<FORMAT, STOCHASTIC>(t, random, codes);
    if (!(s > 0.0f)) codes[0] = codes[1] = codes[2] = codes[3] = 0;
    const bool leads = n > 0 && first % AGOQ_GRAD_BLOCK == 0;
    if (leads) g.scales[first / AGOQ_GRAD_BLOCK] = s;
    if (g.vec && n == AGOQK_LANE) {
        __stcs((uint4 *)(g.codes + first), make_uint4(codes[0], codes[1], codes[2], codes[3]));
    } else {
#pragma unroll
        for (int i = 0; i < AGOQK_LANE; i++)
            if (i < n) g.codes[first + i] = (uint8_t)(codes[i / 4] >> 8 * (i % 4));
    }
    return leads && nonfinite;
}

/* Sixteen elements of a flat array, loaded before they are converted. */
template <int DTYPE> struct agoqk_raw16 { agoqk_raw8<DTYPE> half[2]; };

template <int DTYPE>
__device__ __forceinline__ agoqk_raw16<DTYPE> agoqk_load_raw16(const typename agoqk_elem<DTYPE>::type *p,
                                                               int n, int vec) {
    agoqk_raw16<DTYPE> raw;
    raw.half[0] = agoqk_load_raw<DTYPE>(p, n < 8 ? n : 8, vec);
    raw.half[1] = agoqk_load_raw<DTYPE>(p + 8, n - 8, vec);
    return raw;
}

#define AGOQK_GRAD_SWITCH(format, FORMAT, ...)                                                               \
    switch (format) {                                                                                        \
    case AGOQ_GRAD_E4M3: {                                                                                   \
        constexpr int FORMAT = AGOQ_GRAD_E4M3;                                                               \
        __VA_ARGS__;                                                                                         \
    } break;                                                                                                 \
    case AGOQ_GRAD_E5M2: {                                                                                   \
        constexpr int FORMAT = AGOQ_GRAD_E5M2;                                                               \
        __VA_ARGS__;                                                                                         \
    } break;                                                                                                 \
    default: {                                                                                               \
        constexpr int FORMAT = AGOQ_GRAD_INT8;                                                               \
        __VA_ARGS__;                                                                                         \
    } break;                                                                                                 \
    }

#endif
