/* Norms backward, the usual case: bf16 whose rows are whole segments, two to a warp, everything aligned. A
 * block of threads takes a chunk of 32 rows; one half of it the even rows, the other the odd ones, each
 * thread keeping its columns' partial sums in registers. A row stays coded and is decoded twice, so that 64
 * registers a thread keep a multiprocessor full; the next row is on its way to shared memory meanwhile, where
 * a thread reads only what it fetched itself. Weights lie there as floats: they are the same for every row.
 * Every warp makes a row's statistics for itself from the segments' sums: that costs each of them a few dozen
 * instructions and saves all of them the wait for one. Bound: the issue of 30 instructions an element, and
 * the latency of exchanges within a warp. (Two rows at a time, with half the barriers and exchanges: slower.)
 */
#include "kernels/cuda/norm_bwd.cuh"

enum { WHOLE = 2, MOST_WARPS = 16, MOST_STRIDE = 1 << 24 };
/* segments of a warp, side by side; warps of a half; rows of a chunk are within 2^32 bytes */
enum { SLAB = WHOLE * 2 * 32, SUMS = 4 * 32, ALL_SUMS = 2 * 2 * SUMS / 4 };
/* What a warp fetches of a row, or its weights, in units of 16 bytes. Floats of a row's sums: of squares,
 * dots, g and x, each of 32 segments. Those of both halves and of two rows in turn, in units of 16 bytes. */

/* A thread's inputs and output in the first row of its chunk. Its other vector is at a constant distance. */
struct column {
    const char *dy;
    const uint8_t *lo, *hi, *scale;
    char *dx;
};

template <int BITS>
static __device__ __forceinline__ column column_of(const agoqk_bwd_args &a, int64_t begin, uint32_t v) {
    constexpr uint32_t bytes = BITS == 16 ? 16 : BITS == 8 ? 8 : 4, lanes = BITS == 5 ? 4 : 2;
    return {a.dy.data + begin * a.dy.stride * 2 + 16 * v, a.packed.lo + begin * a.packed.lo_row + bytes * v,
            a.packed.hi + begin * a.packed.hi_row + v / lanes * 4,
            (const uint8_t *)(a.packed.scale + begin * a.packed.blocks_per_row) + v / 16 * 4,
            a.dx.data + begin * a.dx.stride * 2 + 16 * v};
}

/* Row r of a column. */
template <typename T> static __device__ __forceinline__ T *row_at(T *first, int r, int64_t pitch) {
    return first + (uint64_t)(uint32_t)r * (uint32_t)pitch;
}

/* Starts to fetch row r: dy, and words, scale (with its neighbour: 4 bytes is the least) and high words. */
template <int BITS>
static __device__ __forceinline__ void fetch_row(const agoqk_bwd_args &a, const column &c, int r,
                                                 uint4 *stage) {
    constexpr int bytes = BITS == 16 ? 16 : BITS == 8 ? 8 : 4, high = BITS == 5 ? 32 : 64;
    const char *dy = row_at(c.dy, r, a.dy.stride * 2);
    const uint8_t *lo = row_at(c.lo, r, a.packed.lo_row), *hi = row_at(c.hi, r, a.packed.hi_row),
                  *scale = row_at(c.scale, r, a.packed.blocks_per_row * 2);
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        uint32_t *const codes = (uint32_t *)(stage + (2 * k + 1) * 32);
        agoqk_fetch(stage + 2 * k * 32, dy + 512 * k, 16);
        agoqk_fetch(codes, lo + 32 * bytes * k, bytes);
        if (BITS != 16) agoqk_fetch(codes + bytes / 4 % 4, scale + 8 * k, 4);
        if (BITS == 5 || BITS == 6) agoqk_fetch(codes + 2, hi + high * k, 4);
    }
    agoqk_fetch_commit();
}

template <int BITS>
static __device__ __forceinline__ agoqk_codes8<BITS> fetched_codes(const uint4 *slot, int v) {
    agoqk_codes8<BITS> c = {};
    if (BITS == 16 || BITS == 8) {
        const uint4 w = *slot;
        const uint32_t all[4] = {w.x, w.y, w.z, w.w};
        memcpy(c.lo, all, sizeof c.lo);
        c.scale = (uint16_t)(w.z >> 16 * (v / 8 % 2));
        return c;
    }
    const uint2 w = *(const uint2 *)slot;
    c.lo[0] = w.x;
    c.scale = (uint16_t)(w.y >> 16 * (v / 8 % 2));
    if (BITS == 5 || BITS == 6) c.hi = ((const uint32_t *)slot)[2] >> (BITS == 5 ? 4 * (v % 4) : 8 * (v % 2));
    return c;
}

/* Where a thread is, and its parts of shared memory. */
struct place {
    int step, half, warp, lane, first; /* step: threads of a half; warp: in it; first: of its vectors */
    uint4 *stage;                      /* [WHOLE][dy, codes][32] of its warp */
    float4 *weight;                    /* [WHOLE][2][32] of its warp */
    float4 *bias;                      /* LayerNorm: sums of dy, [WHOLE][2][32] of its warp */
    float *sums;                       /* [2][4][32] of its half */
};

static __device__ __forceinline__ place place_of(const agoqk_bwd_args &a, float4 *shared) {
    place t;
    t.step = a.warps * 32;
    t.half = (int)threadIdx.x >= t.step;
    t.warp = threadIdx.x / 32 - t.half * a.warps, t.lane = threadIdx.x % 32;
    t.first = t.warp * 32 * WHOLE + t.lane;
    t.sums = (float *)shared + t.half * 2 * SUMS;
    t.stage = (uint4 *)shared + ALL_SUMS + threadIdx.x / 32 * SLAB + t.lane;
    t.weight = shared + ALL_SUMS + (2 * a.warps + t.warp) * SLAB + t.lane;
    t.bias = shared + ALL_SUMS + (3 * a.warps + threadIdx.x / 32) * SLAB + t.lane;
    return t;
}

/* A thread's vectors of a row. */
template <int BITS> struct vectors {
    uint4 dy[WHOLE];
    agoqk_codes8<BITS> codes[WHOLE];
};

template <int BITS> static __device__ __forceinline__ vectors<BITS> take_row(const place &t) {
    vectors<BITS> v;
    agoqk_fetch_wait();
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        v.codes[k] = fetched_codes<BITS>(t.stage + (2 * k + 1) * 32, t.first);
        v.dy[k] = t.stage[2 * k * 32];
    }
    return v;
}

/* d = x - mean; f = dy; w: weights. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ void elements(const place &t, const vectors<BITS> &v, int k,
                                                float minus_mean, float d[AGOQK_VEC], float f[AGOQK_VEC],
                                                float w[AGOQK_VEC]) {
    const uint32_t pairs[4] = {v.dy[k].x, v.dy[k].y, v.dy[k].z, v.dy[k].w};
    const float4 p = t.weight[2 * k * 32], q = t.weight[(2 * k + 1) * 32];
    w[0] = p.x, w[1] = p.y, w[2] = p.z, w[3] = p.w, w[4] = q.x, w[5] = q.y, w[6] = q.z, w[7] = q.w;
    agoqk_decode8<BITS>(v.codes[k], AGOQK_VEC, d);
    agoqk_floats8(pairs, f);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (LAYER) d[i] += minus_mean;
}

/* The sums of a row's segments go to shared memory. Returns -mean. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ float sum_row(const agoqk_bwd_args &a, const place &t,
                                                const vectors<BITS> &v, float *sums) {
    float *const own = sums + t.warp * WHOLE;
    float minus_mean = 0.0f, part[2 * WHOLE], grads[WHOLE];
    if (LAYER) {
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            float x[AGOQK_VEC];
            agoqk_decode8<BITS>(v.codes[k], AGOQK_VEC, x);
            part[k] = agoqk_sum8(x);
        }
        const float s = agoqk_fold_many<WHOLE>(part);
        if (t.lane % 16 == 0) own[3 * 32 + t.lane / 16] = s;
        agoqk_half_barrier(t.half, t.step);
        minus_mean = -(agoqk_add_segments(sums + 3 * 32, 32, 0.0f) * a.norm.per_col);
    }
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        float d[AGOQK_VEC], g[AGOQK_VEC], w[AGOQK_VEC];
        elements<BITS, LAYER>(t, v, k, minus_mean, d, g, w);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) g[i] *= w[i];
        part[k] = agoqk_products8(d, d), part[WHOLE + k] = agoqk_products8(g, d);
        grads[k] = LAYER ? agoqk_sum8(g) : 0.0f;
    }
    const float s = agoqk_fold_many<2 * WHOLE>(part);
    if (t.lane % 8 == 0) own[t.lane / 16 * 32 + t.lane / 8 % 2] = s;
    if (!LAYER) return minus_mean;
    const float g = agoqk_fold_many<WHOLE>(grads);
    if (t.lane % 16 == 0) own[2 * 32 + t.lane / 16] = g;
    return minus_mean;
}

/* The statistics of a row: half a warp folds the squares, the other the dots. */
template <bool LAYER>
static __device__ __forceinline__ agoqk_row_sums stats_of(const agoqk_bwd_args &a, const place &t,
                                                          const float *sums) {
    float part[2] = {sums[t.lane], sums[32 + t.lane]};
    const float total = 0.0f + agoqk_fold_many<2>(part); /* every sum begins with zero */
    agoqk_row_sums s;
    agoqk_bwd_stats(a.norm, __shfl_sync(0xFFFFFFFFu, total, 0), __shfl_sync(0xFFFFFFFFu, total, 16),
                    LAYER ? agoqk_add_segments(sums + 2 * 32, 32, 0.0f) : 0.0f, &s);
    return s;
}

/* dx of a row, and what it adds to the sums of weight and bias. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ void finish_row(const place &t, vectors<BITS> &v, float minus_mean,
                                                  const agoqk_row_sums &s, uint4 *dx,
                                                  float part[WHOLE][AGOQK_VEC]) {
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        float d[AGOQK_VEC], f[AGOQK_VEC], w[AGOQK_VEC];
        agoqk_forget(v.codes[k].lo[0]); /* is decoded again, not kept */
        agoqk_forget(v.dy[k].x), agoqk_forget(v.dy[k].y), agoqk_forget(v.dy[k].z), agoqk_forget(v.dy[k].w);
        elements<BITS, LAYER>(t, v, k, minus_mean, d, f, w);
        if (LAYER) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float4 *const sum = t.bias + (2 * k + half) * 32;
                const float4 b = *sum;
                *sum = make_float4(b.x + f[4 * half], b.y + f[4 * half + 1], b.z + f[4 * half + 2],
                                   b.w + f[4 * half + 3]);
            }
        }
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            const float h = f[i] * s.inv;
            part[k][i] = fmaf(h, d[i], part[k][i]);
            f[i] = agoqk_norm_dx(h, w[i], d[i], LAYER ? s.shift : 0.0f, s.slope);
        }
        agoqk_store8_bf16(dx + 32 * k, f);
    }
}

/* Weights to shared memory, by both halves. */
static __device__ __forceinline__ void load_weights(const agoqk_bwd_args &a, const place &t) {
    for (int k = t.half; k < WHOLE; k += 2) {
        float w[AGOQK_VEC] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        if (a.norm.weight)
            agoqk_load_weight(a.norm.weight, a.norm.weight_dtype, 1, 8 * (t.first + 32 * k), AGOQK_VEC, w);
        t.weight[2 * k * 32] = make_float4(w[0], w[1], w[2], w[3]);
        t.weight[(2 * k + 1) * 32] = make_float4(w[4], w[5], w[6], w[7]);
    }
}

template <int BITS, bool LAYER>
static __global__ void __launch_bounds__(MOST_WARPS * 64)
    bwd_whole_kernel(const __grid_constant__ agoqk_bwd_args a) {
    extern __shared__ float4 shared4[];
    const place t = place_of(a, shared4);
    const int64_t begin = (int64_t)blockIdx.x * AGOQK_CHUNK;
    const column c = column_of<BITS>(a, begin, (uint32_t)t.first);
    const int rows = (int)(a.norm.rows - begin < AGOQK_CHUNK ? a.norm.rows - begin : AGOQK_CHUNK);
    float part[WHOLE][AGOQK_VEC] = {};
    if (t.half < rows) fetch_row<BITS>(a, c, t.half, t.stage);
    load_weights(a, t);
    for (int i = threadIdx.x; i < ALL_SUMS; i += 2 * t.step)
        shared4[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f); /* segments that no row has */
    if (LAYER)
        for (int i = 0; i < 2 * WHOLE; i++) t.bias[i * 32] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    __syncthreads();
    for (int r = t.half; r < rows + t.half; r += 2) { /* both halves meet as often: racecheck counts */
        vectors<BITS> v = take_row<BITS>(t);
        float *const sums = t.sums + r / 2 % 2 * SUMS; /* two in turn: one barrier a row is enough */
        const float minus_mean = sum_row<BITS, LAYER>(a, t, v, sums);
        agoqk_half_barrier(t.half, t.step);
        if (r + 2 < rows) fetch_row<BITS>(a, c, r + 2, t.stage);
        const agoqk_row_sums s = stats_of<LAYER>(a, t, sums);
        if (r == rows) continue; /* the odd half lacks a last row */
        uint4 *dx = (uint4 *)row_at(c.dx, r, a.dx.stride * 2);
        finish_row<BITS, LAYER>(t, v, minus_mean, s, dx, part);
    }
    const int at = t.warp * 32 + t.lane;
    if (a.dweight) agoqk_store_chunk<WHOLE>(a, part, t.half, at, t.first, 32, a.dweight, (float *)shared4);
    if constexpr (LAYER) {
        if (!a.dbias) return;
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            const float4 p = t.bias[2 * k * 32], q = t.bias[(2 * k + 1) * 32];
            part[k][0] = p.x, part[k][1] = p.y, part[k][2] = p.z, part[k][3] = p.w;
            part[k][4] = q.x, part[k][5] = q.y, part[k][6] = q.z, part[k][7] = q.w;
        }
        agoqk_store_chunk<WHOLE>(a, part, t.half, at, t.first, 32, a.dbias, (float *)shared4);
    }
}

int agoqk_norm_bwd_is_whole(const agoqk_bwd_args *a, agoq_dtype dtype) {
    const agoqk_norm_args *n = &a->norm;
    return dtype == AGOQ_DTYPE_BF16 && n->cols % (WHOLE * AGOQK_SEGMENT) == 0 &&
           n->cols <= WHOLE * MOST_WARPS * AGOQK_SEGMENT && a->dy.vec && a->dx.vec &&
           a->dy.stride < MOST_STRIDE && a->dx.stride < MOST_STRIDE && (!n->weight || n->weight_vec) &&
           (n->layer || !a->dbias);
}

template <int BITS, bool LAYER> static agoq_status launch(const agoq_exec *exec, const agoqk_bwd_args *a) {
    const int step = a->warps * 32;
    const agoqk_shape shape = {dim3((unsigned)agoqk_chunks(a->norm.rows)), dim3((unsigned)(2 * step)),
                               (size_t)(ALL_SUMS + (LAYER ? 5 : 3) * SLAB * a->warps) * sizeof(float4)};
    const agoq_status status = agoqk_shared_room((const void *)bwd_whole_kernel<BITS, LAYER>, shape.smem);
    if (status != AGOQ_OK) return status;
    bwd_whole_kernel<BITS, LAYER><<<shape.grid, shape.block, shape.smem, (cudaStream_t)exec->stream>>>(*a);
    return agoqk_launched("norm_bwd_whole", AGOQ_DTYPE_BF16, BITS, &shape);
}

agoq_status agoqk_norm_bwd_whole(const agoq_exec *exec, agoqk_bwd_args *a, int bits) {
    a->warps = (int)(a->norm.cols / AGOQK_SEGMENT) / WHOLE;
    AGOQK_BITS_SWITCH(bits, BITS,
                      return a->norm.layer ? launch<BITS, true>(exec, a) : launch<BITS, false>(exec, a))
    return AGOQ_E_UNSUPPORTED;
}
