/* Packed activations on the GPU. Eight lanes of a warp share a block of 64: lane i of the eight holds
 * elements 8 i .. 8 i + 7. The block statistic is an integer maximum over three shuffles; planes of 4 and 8
 * bits are whole words of one lane, the high planes of 5 and 6 bits are combined by shuffles. The arithmetic
 * of an element is kernels/format/int_block.h. BITS is a format's number: 68 is CODE4. All eight lanes must
 * take part in every call, also those whose elements lie beyond the row (n <= 0). */
#ifndef KERNELS_CUDA_BLOCK_CUH
#define KERNELS_CUDA_BLOCK_CUH

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/format/int_block.h"
#include "kernels/format/philox.h"
#include "kernels/format/plane.h"

/* A packed tensor as kernels see it. */
struct agoqk_pmat {
    uint8_t *lo, *hi;
    uint16_t *scale;
    int64_t lo_row, hi_row, blocks_per_row; /* bytes, bytes, blocks */
};

static inline agoqk_pmat agoqk_pmat_of(const agoq_packed *p) {
    const agoq_layout *l = &p->layout;
    uint8_t *base = (uint8_t *)p->data;
    agoqk_pmat m = {base,
                    base + l->hi_offset,
                    (uint16_t *)(base + l->scale_offset),
                    (int64_t)l->lo_row_bytes,
                    (int64_t)l->hi_row_bytes,
                    l->blocks_per_row};
    return m;
}

/* Stochastic rounding of a call: element index of its first element, and the hashed key. */
struct agoqk_rng {
    agoqk_stream stream;
    uint64_t offset;
    int on;
};

static inline agoqk_rng agoqk_rng_of(const agoq_key *key) {
    agoqk_rng rng = {{{0, 0, 0, 0}}, 0, 0};
    if (!key) return rng;
    rng.stream = agoqk_stream_make(key->seed, key->tensor, key->step, key->microbatch, key->replica);
    rng.offset = (uint64_t)key->offset;
    rng.on = 1;
    return rng;
}

/* The 16-bit numbers of elements first .. first + 7. */
__device__ __forceinline__ void agoqk_random8(const agoqk_rng &rng, uint64_t first, uint32_t r[AGOQK_VEC]) {
    const agoqk_words a = agoqk_stream_words(&rng.stream, first / 8);
    const int skip = (int)(first % 8);
    if (skip == 0) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) r[i] = agoqk_stream_bits(&a, i);
        return;
    }
    const agoqk_words b = agoqk_stream_words(&rng.stream, (first / 8 + 1) & UINT64_MAX / 8);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const int at = skip + i;
        r[i] = at < 8 ? agoqk_stream_bits(&a, at) : agoqk_stream_bits(&b, at - 8);
    }
}

__device__ __forceinline__ uint32_t agoqk_max8(uint32_t stat) { /* over the eight lanes */
#pragma unroll
    for (int m = 1; m < 8; m *= 2) stat = max(stat, __shfl_xor_sync(0xFFFFFFFFu, stat, m));
    return stat;
}

__device__ __forceinline__ uint32_t agoqk_stat8(const float x[AGOQK_VEC]) {
    uint32_t stat = 0;
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) stat = max(stat, agoqk_stat(x[i]));
    return stat;
}

/* Codes without conversions: t + AGOQK_ROUND_MAGIC + 2^(b-1) rounds t to nearest even (2^(b-1) is even) and
 * leaves the code in the low bits of the sum. Only the upper end needs a clamp: |t| <= 2^(b-1) (1 + 2^-8.9),
 * because d is within half a unit of x_ext / -2^(b-1), so the lower end rounds to code 0 by itself. A scale
 * of zero comes with inverse 0, which gives the zero code to every finite x. */
template <int BITS>
__device__ __forceinline__ void agoqk_encode8(const float x[AGOQK_VEC], float inverse,
                                              uint32_t u[AGOQK_VEC]) {
    const float high = (float)((1 << (BITS - 1)) - 1), magic = AGOQK_ROUND_MAGIC + (float)(1 << (BITS - 1));
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) u[i] = __float_as_uint(fminf(x[i] * inverse, high) + magic);
}

/* 1 / d, correctly rounded, for a normal bf16 d: the approximation is within one unit, and one Newton step
 * then rounds correctly unless all 23 bits of d's mantissa are ones; d has 7. (The GPU test tries every d.)
 */
__device__ __forceinline__ float agoqk_inverse(uint16_t d) {
    const float x = agoqk_bf16_decode(d), r = agoqk_rcp_approx(x);
    return fmaf(r, fmaf(-x, r, 1.0f), r);
}

/* Plane words of eight codes, of which only the low bits of u[i] count: elements 2 i and 2 i + 1 are the
 * halves of a pair. */
template <int K> __device__ __forceinline__ uint32_t agoqk_fold8(const uint32_t u[AGOQK_VEC], int from) {
    const uint32_t mask = ((1u << K) - 1) * 0x00010001u << from;
    uint32_t w = 0;
#pragma unroll
    for (int i = 0; i < AGOQK_VEC / 2; i++)
        w += (__byte_perm(u[2 * i], u[2 * i + 1], 0x5410) & mask) << K * i; /* disjoint bits: + is | */
    return w >> from;
}

/* Four codes of 8 bits. */
__device__ __forceinline__ uint32_t agoqk_bytes4(const uint32_t u[4]) {
    return __byte_perm(__byte_perm(u[0], u[2], 0x0040), __byte_perm(u[1], u[3], 0x0040), 0x5410);
}

/* Stores one word of a high plane, put together from 4 / K lanes of which each has K * 8 bits. */
template <int K>
__device__ __forceinline__ void agoqk_store_high(uint8_t *row, int64_t v, int n, uint32_t part) {
    const int lanes = 4 / K, at = (int)(v % lanes);
    part <<= 4 * K * at;
#pragma unroll
    for (int m = 1; m < lanes; m *= 2) part |= __shfl_xor_sync(0xFFFFFFFFu, part, m);
    if (at == 0 && n > 0) *(uint32_t *)(row + v / lanes * 4) = part;
}

/* Writes vector v (elements 8 v .. 8 v + n - 1) of row r. x is zero beyond n. Returns, on the first lane of a
 * block, 1 if the block holds a NaN or Inf. random: NULL, or this lane's eight numbers. */
template <int BITS>
__device__ __forceinline__ uint32_t agoqk_put8(const agoqk_pmat &p, int64_t r, int64_t v, int n,
                                               const float x[AGOQK_VEC], const uint32_t *random) {
    uint8_t *lo = p.lo + r * p.lo_row;
    const uint32_t stat = agoqk_max8(agoqk_stat8(x));
    const uint32_t bad = v % 8 == 0 && n > 0 && agoqk_stat_nonfinite(stat);
    if (BITS == 16) {
        if (random) {
            uint16_t h[AGOQK_VEC];
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) h[i] = agoqk_bf16_encode_sr(x[i], random[i]);
            for (int i = 0; i < n + (n > 0 && n % 2); i++) ((uint16_t *)lo)[8 * v + i] = h[i];
        } else if (n > 0) { /* an odd row's last word is whole: x is zero there */
            agoqk_store8<AGOQ_DTYPE_BF16>((uint16_t *)lo + 8 * v, n + n % 2, p.lo_row % 16 == 0, x);
        }
        return bad;
    }
    const uint16_t d = agoqk_int_scale(stat, BITS);
    uint32_t c[AGOQK_VEC];
    const bool nan = agoqk_int_scale_is_nan(d);
    const float inverse = d == 0 || nan ? 0.0f : agoqk_inverse(d);
    if (random) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) c[i] = agoqk_int_encode_sr(x[i], inverse, BITS, random[i]);
    } else {
        agoqk_encode8<BITS>(x, inverse, c);
    }
    if (__any_sync(0xFFFFFFFFu, nan || n < AGOQK_VEC)) { /* rare; bits of no element are zero */
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            c[i] = i >= n ? 0 : nan ? (uint32_t)agoqk_int_zero_code(BITS) : c[i];
    }
    if (BITS == 8) {
        const uint2 w = make_uint2(agoqk_bytes4(c), agoqk_bytes4(c + 4));
        if (n == AGOQK_VEC && p.lo_row % 8 == 0) {
            __stcs((uint2 *)(lo + 8 * v), w);
        } else {
            if (n > 0) *(uint32_t *)(lo + 8 * v) = w.x;
            if (n > 4) *(uint32_t *)(lo + 8 * v + 4) = w.y;
        }
    } else if (n > 0) {
        __stcs((uint32_t *)(lo + 4 * v), agoqk_fold8<4>(c, 0));
    }
    if (BITS == 5) agoqk_store_high<1>(p.hi + r * p.hi_row, v, n, agoqk_fold8<1>(c, 4));
    if (BITS == 6) agoqk_store_high<2>(p.hi + r * p.hi_row, v, n, agoqk_fold8<2>(c, 4));
    if (v % 8 == 0 && n > 0) p.scale[r * p.blocks_per_row + v / 8] = d;
    return bad;
}

/* The words of one vector, loaded before they are decoded, so that several loads can be in flight. */
template <int BITS> struct agoqk_codes8 {
    uint32_t lo[BITS == 16 ? 4 : BITS == 8 ? 2 : 1], hi;
    uint16_t scale;
};

template <int BITS>
__device__ __forceinline__ agoqk_codes8<BITS> agoqk_load_codes(const agoqk_pmat &p, int64_t r, int64_t v,
                                                               int n) {
    agoqk_codes8<BITS> c = {};
    if (n <= 0) return c;
    const uint8_t *lo = p.lo + r * p.lo_row;
    if (BITS == 16) {
        const agoqk_raw8<AGOQ_DTYPE_BF16> raw =
            agoqk_load_raw<AGOQ_DTYPE_BF16>((const uint16_t *)lo + 8 * v, n, p.lo_row % 16 == 0);
        memcpy(c.lo, &raw, sizeof c.lo);
        return c;
    }
    c.scale = p.scale[r * p.blocks_per_row + v / 8];
    if (BITS == 8) {
        if (n > 4 && p.lo_row % 8 == 0) {
            const uint2 w = __ldcs((const uint2 *)(lo + 8 * v));
            c.lo[0] = w.x;
            c.lo[sizeof c.lo / 4 - 1] = w.y;
        } else {
            c.lo[0] = *(const uint32_t *)(lo + 8 * v);
            if (n > 4) c.lo[sizeof c.lo / 4 - 1] = *(const uint32_t *)(lo + 8 * v + 4);
        }
    } else {
        c.lo[0] = __ldcs((const uint32_t *)(lo + 4 * v));
    }
    if (BITS == 5) c.hi = *(const uint32_t *)(p.hi + r * p.hi_row + v / 4 * 4) >> 4 * (v % 4);
    if (BITS == 6) c.hi = *(const uint32_t *)(p.hi + r * p.hi_row + v / 2 * 4) >> 8 * (v % 2);
    return c;
}

/* The codes of a vector as floats 2^(23 - at) + code: a code's lowest bit is put where a float of that size
 * has 1, at bit `at`. Codes of 4 to 6 bits are taken where they lie in the word or in one of two shifts of
 * it. */
template <int BITS>
__device__ __forceinline__ float agoqk_code_float(const agoqk_codes8<BITS> &c, int j, int *at) {
    if (BITS == 8) {
        const uint32_t w = c.lo[j / 4 % (sizeof c.lo / 4)];
        *at = 8;
        return __uint_as_float(__byte_perm(w, 0x47000000u, 0x7404 + 16 * (agoqk_plane_shift(j % 4, 8) / 8)));
    }
    const int from = agoqk_plane_shift(j, 4), left = from < 12 ? 8 : from < 20 ? 0 : -12; /* to 8, 12 or 16 */
    *at = from + left;
    uint32_t w = left < 0 ? c.lo[0] >> 12 : c.lo[0] << left;
    w = agoqk_and_or(w, 0xFu << *at, (uint32_t)(150 - *at) << 23);
    if (BITS == 5 || BITS == 6) {
        const int high = agoqk_plane_shift(j, BITS - 4), up = *at + 4 - high;
        w = agoqk_and_or(up < 0 ? c.hi >> -up : c.hi << up, (uint32_t)((1 << (BITS - 4)) - 1) << (*at + 4),
                         w);
    }
    return __uint_as_float(w);
}

/* The code of element j as a number. */
template <int BITS> __device__ __forceinline__ uint32_t agoqk_code(const agoqk_codes8<BITS> &c, int j) {
    if (BITS == 8) return c.lo[j / 4 % (sizeof c.lo / 4)] >> agoqk_plane_shift(j % 4, 8) & 0xFFu;
    const uint32_t low = c.lo[0] >> agoqk_plane_shift(j, 4) & 0xFu;
    if (BITS == 4) return low;
    return low | (c.hi >> agoqk_plane_shift(j, BITS - 4) & ((1u << (BITS - 4)) - 1)) << 4;
}

/* Decodes; zeros beyond n. With k = 2^(23 - at) + 2^(b-1), (k + level) d - k d is level d, exactly, and +0
 * for level 0: k d has at most 20 bits. It may overflow for scales from 2^112 up. */
template <int BITS>
__device__ __forceinline__ void agoqk_decode8(const agoqk_codes8<BITS> &c, int n, float x[AGOQK_VEC]) {
    if (BITS == 16) {
        agoqk_raw8<AGOQ_DTYPE_BF16> raw;
        memcpy(&raw, c.lo, sizeof raw < sizeof c.lo ? sizeof raw : sizeof c.lo);
        agoqk_convert<AGOQ_DTYPE_BF16>(raw, x);
        return;
    }
    const float d = agoqk_bf16_decode(c.scale);
    if ((c.scale & 0x7FFFu) >= 0x7780u) {
#pragma unroll
        for (int j = 0; j < AGOQK_VEC; j++)
            x[j] = agoqk_int_scale_is_nan(c.scale) ? agoqk_float(AGOQK_NAN_BITS)
                                                   : agoqk_int_decode(agoqk_code<BITS>(c, j), d, BITS);
    } else {
#pragma unroll
        for (int j = 0; j < AGOQK_VEC; j++) {
            int at;
            const float u = agoqk_code_float<BITS>(c, j, &at);
            x[j] = fmaf(u, d, d * -(float)((1 << (23 - at)) + (1 << (BITS - 1))));
        }
    }
    if (n < AGOQK_VEC) {
#pragma unroll
        for (int j = 0; j < AGOQK_VEC; j++) x[j] = j < n ? x[j] : 0.0f;
    }
}

template <int BITS>
__device__ __forceinline__ void agoqk_get8(const agoqk_pmat &p, int64_t r, int64_t v, int n,
                                           float x[AGOQK_VEC]) {
    agoqk_decode8<BITS>(agoqk_load_codes<BITS>(p, r, v, n), n, x);
}

/* Adds what a thread counted to the caller's counter; a call without bad blocks makes no access. */
__device__ __forceinline__ void agoqk_count(uint32_t *counter, uint32_t bad) {
    if (counter && bad) atomicAdd(counter, bad);
}

/* Calls the rest with the format of a call (BITS, a number of AGOQ_FORMATS) as a compile-time constant. */
#define AGOQK_BITS_CASE(bits, BITS, ...)                                                                     \
    case bits: {                                                                                             \
        constexpr int BITS = bits;                                                                           \
        __VA_ARGS__;                                                                                         \
    } break;
#define AGOQK_INT_CASES(BITS, ...)                                                                           \
    AGOQK_BITS_CASE(4, BITS, __VA_ARGS__)                                                                    \
    AGOQK_BITS_CASE(5, BITS, __VA_ARGS__)                                                                    \
    AGOQK_BITS_CASE(6, BITS, __VA_ARGS__)                                                                    \
    AGOQK_BITS_CASE(8, BITS, __VA_ARGS__)                                                                    \
    AGOQK_BITS_CASE(AGOQ_FORMAT_CODE4, BITS, __VA_ARGS__)
#define AGOQK_INT_SWITCH(bits, BITS, ...)                                                                    \
    switch (bits) { AGOQK_INT_CASES(BITS, __VA_ARGS__) }
#define AGOQK_BITS_SWITCH(bits, BITS, ...)                                                                   \
    switch (bits) { AGOQK_INT_CASES(BITS, __VA_ARGS__) AGOQK_BITS_CASE(16, BITS, __VA_ARGS__) }

#include "kernels/cuda/code4.cuh"

#endif
