/* Codes of the 8-bit Adam state on the GPU: one look-up in shared memory decodes, one encodes (the cells of
 * kernels/format/dynmap.h). The tables are made by every block of threads: 26 KB that no launch has to bring
 * and no module to hold, for a microsecond at the start. A lane has eight moments of a block, a warp all 256.
 */
#ifndef KERNELS_CUDA_ADAM8_CUH
#define KERNELS_CUDA_ADAM8_CUH

#include "kernels/cuda/ptx.cuh"
#include "kernels/cuda/vec.cuh"
#include "kernels/format/dynmap.h"

enum { AGOQK_ADAM_THREADS = 256 };
enum { AGOQK_ADAM_RUN = 13 }; /* cells that a thread fills */
static_assert(AGOQK_ADAM_RUN * AGOQK_ADAM_THREADS >= AGOQK_DYNMAP_CELLS, "every cell has a thread");

struct agoqk_adam_tables {
    float level_m[256], level_v[256];
    uint32_t cell_m[AGOQK_DYNMAP_CELLS], cell_v[AGOQK_DYNMAP_CELLS];
    float middle_m[128], middle_v[255];
};

static __device__ void agoqk_adam_tables_make(agoqk_adam_tables *t) {
    for (int c = threadIdx.x; c < 256; c += AGOQK_ADAM_THREADS) {
        t->level_m[c] = agoqk_dynmap_signed(c);
        t->level_v[c] = agoqk_dynmap_unsigned(c);
        if (c < 128) t->middle_m[c] = agoqk_dynmap_middle_signed(c);
        if (c < 255) t->middle_v[c] = agoqk_dynmap_middle_unsigned(c);
    }
    __syncthreads();
    const int first =
        threadIdx.x *
        AGOQK_ADAM_RUN; /* of the thread's cells; AGOQK_ADAM_RUN is odd: no two lanes in one bank */
    if (first < AGOQK_DYNMAP_CELLS) {
        int m = agoqk_dynmap_below(t->middle_m, 128, first), v = agoqk_dynmap_below(t->middle_v, 255, first);
        for (int c = first; c < first + AGOQK_ADAM_RUN && c < AGOQK_DYNMAP_CELLS; c++) {
            while (m < 128 && agoqk_bits(t->middle_m[m]) < agoqk_dynmap_cell_first(c)) m++;
            while (v < 255 && agoqk_bits(t->middle_v[v]) < agoqk_dynmap_cell_first(c)) v++;
            t->cell_m[c] = agoqk_dynmap_entry(t->middle_m, 128, c, m);
            t->cell_v[c] = agoqk_dynmap_entry(t->middle_v, 255, c, v);
        }
    }
    __syncthreads();
}

/* n of eight codes; zeros beyond. */
__device__ __forceinline__ uint2 agoqk_adam_load(const uint8_t *p, int n, int vec) {
    if (vec && n == AGOQK_VEC) return __ldcs((const uint2 *)p);
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (i < n) w[i / 4] |= (uint32_t)p[i] << 8 * (i % 4);
    return make_uint2(w[0], w[1]);
}

__device__ __forceinline__ void agoqk_adam_store(uint8_t *p, int n, int vec, uint32_t low, uint32_t high) {
    if (vec && n == AGOQK_VEC) {
        __stcs((uint2 *)p, make_uint2(low, high));
        return;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (i < n) p[i] = (uint8_t)((i < 4 ? low : high) >> 8 * (i % 4));
}

__device__ __forceinline__ void agoqk_adam_decode(const float *level, uint2 w, float top,
                                                  float x[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) x[i] = level[(i < 4 ? w.x : w.y) >> 8 * (i % 4) & 0xFFu] * top;
}

/* What a warp keeps of a moment besides codes: its absmax (0; NaN), and the inverse, 0 where codes are those
 * of zero or elements are divided. */
__device__ __forceinline__ float agoqk_adam_absmax(const float x[AGOQK_VEC]) {
    float top = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < AGOQK_VEC; i++) top = agoqk_max_nan(top, fabsf(x[i]));
    const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(top) & 0x7FFFFFFFu);
    return agoqk_float(most >= AGOQK_INF_BITS ? AGOQK_NAN_BITS : most);
}

/* By value, so that the caller's array stays in registers: rare. */
struct agoqk_eight {
    float x[AGOQK_VEC];
};

__device__ __forceinline__ agoqk_eight agoqk_eight_of(const float x[AGOQK_VEC]) {
    agoqk_eight e;
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) e.x[i] = x[i];
    return e;
}

static __device__ __noinline__ agoqk_eight agoqk_eight_divide(agoqk_eight e, float top) {
#pragma unroll 1
    for (int i = 0; i < AGOQK_VEC; i++) e.x[i] /= top;
    return e;
}

/* Midpoints below each of eight moments, a byte each. */
__device__ __forceinline__ void agoqk_adam_counts(const uint32_t *cells, const float x[AGOQK_VEC], float top,
                                                  uint32_t w[2]) {
    float t[AGOQK_VEC];
    const float inverse = top == top ? agoqk_dynmap_inverse(top) : 0.0f; /* the warp is of one mind */
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) t[i] = x[i] * inverse;
    if (top > 0.0f && inverse == 0.0f) {
        const agoqk_eight e = agoqk_eight_divide(agoqk_eight_of(x), top);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) t[i] = e.x[i];
    }
    uint32_t count[AGOQK_VEC];
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) count[i] = agoqk_dynmap_count(cells, agoqk_dynmap_key(t[i]));
#pragma unroll
    for (int j = 0; j < 2; j++)
        w[j] = __byte_perm(__byte_perm(count[4 * j], count[4 * j + 1], 0x0062),
                           __byte_perm(count[4 * j + 2], count[4 * j + 3], 0x0062), 0x5410);
}

/* Four counts of the signed map to codes: 127 + count, or 127 - min(count, 127) for x below zero. */
__device__ __forceinline__ uint32_t agoqk_adam_signed(uint32_t count, const float x[4]) {
    const uint32_t minus = __byte_perm(agoqk_signs(x[0], x[1]), agoqk_signs(x[2], x[3]), 0x5410);
    count -= (count & minus & 0x80808080u) >> 7; /* 128 to 127 */
    return (minus & (count ^ 0x7F7F7F7Fu)) | (~minus & (count + 0x7F7F7F7Fu));
}

#endif
