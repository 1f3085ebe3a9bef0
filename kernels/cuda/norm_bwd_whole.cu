/* Norms backward, the usual case: bf16 whose rows are whole segments, two to a warp, everything aligned. A
 * block of threads takes a chunk of 32 rows; one half of it the even rows, the other the odd ones, each
 * thread keeping its columns' partial sums in registers. A row stays coded and is decoded twice, so that 64
 * registers a thread keep a multiprocessor full; the next row is on its way to shared memory meanwhile, where
 * a thread reads only what it fetched itself. Weights lie there as floats: they are the same for every row.
 * Bound: the issue of instructions. (Three rows in shared memory and one barrier a row instead of two: no
 * faster.) */
#include "kernels/cuda/norm_bwd.cuh"

enum { WHOLE = 2, MOST_WARPS = 16, ARRAYS = 4, MOST_STRIDE = 1 << 24 };
/* segments of a warp; warps of a group; sums of a row; rows of a chunk are within 2^32 bytes */

/* Where things lie in shared memory, in units of 16 bytes. */
static __host__ __device__ __forceinline__ int stage_of(int step) { /* then weights */
    return 2 * WHOLE * 2 * step;
}
static __host__ __device__ __forceinline__ int sums_of(int step) {
    return stage_of(step) + 2 * WHOLE * step;
}
static __host__ __device__ __forceinline__ int
group_sums(int segments) { /* sums and what follows from them */
    return ARRAYS * segments / 4 + 1;
}

/* A chunk's inputs: offsets inside it fit 32 bits. */
struct chunk {
    const char *dy;
    const uint8_t *lo, *hi;
    const uint16_t *scale;
};

static __device__ __forceinline__ chunk chunk_of(const agoqk_bwd_args &a, int64_t begin) {
    const chunk c = {a.dy.data + begin * a.dy.stride * 2, a.packed.lo + begin * a.packed.lo_row,
                     a.packed.hi + begin * a.packed.hi_row, a.packed.scale + begin * a.packed.blocks_per_row};
    return c;
}

template <int BITS>
static __device__ __forceinline__ void fetch_row(const agoqk_bwd_args &a, const chunk &c, uint32_t r,
                                                 uint32_t first, uint32_t step, uint4 *stage) {
    const uint32_t dy = r * (uint32_t)a.dy.stride * 2, lo = r * (uint32_t)a.packed.lo_row,
                   hi = r * (uint32_t)a.packed.hi_row, scale = r * (uint32_t)a.packed.blocks_per_row;
#pragma unroll
    for (uint32_t k = 0; k < WHOLE; k++) {
        const uint32_t v = k * step + first;
        agoqk_fetch(stage + 2 * k * 2 * step, c.dy + (dy + 16 * v), 16);
        agoqk_fetch_codes<BITS>(stage + (2 * k + 1) * 2 * step, c.lo + lo, c.hi + hi, c.scale + scale, v);
    }
    agoqk_fetch_commit();
}

/* Where a thread is: in its group of threads, and its parts of shared memory. */
struct place {
    int step, segments, warps, warp, lane, group,
        first;      /* step: threads of the group; first: of its vectors */
    uint4 *stage;   /* [WHOLE][dy, codes][both groups' threads] */
    float4 *weight; /* [WHOLE][2][step] */
    float4 *stats;  /* 1/rms, m2, -m1 of the group's row */
    float *sums;    /* [ARRAYS][segments] */
};

static __device__ __forceinline__ place place_of(const agoqk_bwd_args &a, float4 *shared) {
    place t;
    t.step = a.warps * 32, t.warps = a.warps, t.segments = a.warps * WHOLE;
    t.group = (int)threadIdx.x >= t.step;
    t.first = (int)threadIdx.x - t.group * t.step;
    t.warp = t.first / 32, t.lane = threadIdx.x % 32;
    t.stage = (uint4 *)shared + threadIdx.x;
    t.weight = shared + stage_of(t.step) + t.first;
    t.stats = shared + sums_of(t.step) + t.group * group_sums(t.segments);
    t.sums = (float *)(t.stats + 1);
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
        v.dy[k] = t.stage[2 * k * 2 * t.step];
        v.codes[k] = agoqk_fetched_codes<BITS>(t.stage[(2 * k + 1) * 2 * t.step], t.first);
    }
    return v;
}

/* d = x - mean; f = dy; g = dy * weight. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ void products(const place &t, const vectors<BITS> &v, int k,
                                                float minus_mean, float d[AGOQK_VEC], float g[AGOQK_VEC],
                                                float f[AGOQK_VEC]) {
    const uint32_t w[4] = {v.dy[k].x, v.dy[k].y, v.dy[k].z, v.dy[k].w};
    const float4 p = t.weight[2 * k * t.step], q = t.weight[(2 * k + 1) * t.step];
    const float all[AGOQK_VEC] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
    agoqk_decode8<BITS>(v.codes[k], AGOQK_VEC, d);
    agoqk_floats8(w, f);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        if (LAYER) d[i] += minus_mean;
        g[i] = f[i] * all[i];
    }
}

/* The sums of a row over the group go to shared memory. Returns -mean. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ float sum_row(const agoqk_bwd_args &a, const place &t,
                                                const vectors<BITS> &v) {
    float *const own = t.sums + t.warp;
    float minus_mean = 0.0f, squares[WHOLE], dots[WHOLE];
    if (LAYER) {
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            float x[AGOQK_VEC];
            agoqk_decode8<BITS>(v.codes[k], AGOQK_VEC, x);
            const float s = agoqk_fold32(agoqk_sum8(x));
            if (t.lane == 0) own[3 * t.segments + k * t.warps] = s;
        }
        agoqk_half_barrier(t.group, t.step);
        minus_mean = -(agoqk_add_segments(t.sums + 3 * t.segments, t.segments, 0.0f) / (float)a.norm.cols);
    }
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        float d[AGOQK_VEC], g[AGOQK_VEC], f[AGOQK_VEC], e[AGOQK_VEC];
        products<BITS, LAYER>(t, v, k, minus_mean, d, g, f);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) e[i] = d[i] * d[i], f[i] = g[i] * d[i];
        squares[k] = agoqk_sum8(e), dots[k] = agoqk_sum8(f);
        if (!LAYER) continue;
        const float s = agoqk_fold32(agoqk_sum8(g));
        if (t.lane == 0) own[2 * t.segments + k * t.warps] = s;
    }
    const float four = agoqk_fold32x4(squares[0], squares[1], dots[0], dots[1]);
    if (t.lane % 8 == 0) own[t.lane / 16 * t.segments + t.lane / 8 % 2 * t.warps] = four;
    return minus_mean;
}

/* 1/rms, m2 and -m1 of a row, by one warp: lanes 0, 1, 2 add up one array each. */
template <bool LAYER>
static __device__ __forceinline__ void make_stats(const agoqk_bwd_args &a, const place &t) {
    const float count = (float)a.norm.cols;
    const float total = agoqk_add_segments(t.sums + (t.lane < 2 ? t.lane : 2) * t.segments, t.segments, 0.0f);
    const float ss = __shfl_sync(0xFFFFFFFFu, total, 0), dot = __shfl_sync(0xFFFFFFFFu, total, 1);
    const float grad = LAYER ? __shfl_sync(0xFFFFFFFFu, total, 2) : 0.0f;
    const float inv = 1.0f / sqrtf(ss / count + a.norm.eps);
    if (t.lane == 0) *t.stats = make_float4(inv, dot * inv / count, -(grad / count), 0.0f);
}

/* dx of a row, and what it adds to the sums of weight and bias. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ void finish_row(const place &t, vectors<BITS> &v, float minus_mean,
                                                  uint4 *dx, float part[WHOLE][AGOQK_VEC],
                                                  float (*part_bias)[AGOQK_VEC]) {
    const float inv = t.stats->x, m2 = t.stats->y, minus_m1 = t.stats->z;
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        float d[AGOQK_VEC], g[AGOQK_VEC], f[AGOQK_VEC];
        agoqk_forget(v.codes[k].lo[0]); /* is decoded again, not kept */
        agoqk_forget(v.dy[k].x), agoqk_forget(v.dy[k].y), agoqk_forget(v.dy[k].z), agoqk_forget(v.dy[k].w);
        products<BITS, LAYER>(t, v, k, minus_mean, d, g, f);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            const float xhat = d[i] * inv;
            part[k][i] += f[i] * xhat;
            if (LAYER) part_bias[k][i] += f[i], g[i] += minus_m1;
            g[i] = inv * (g[i] - xhat * m2);
        }
        agoqk_store8_bf16(dx + k * t.step, g);
    }
}

/* Weights to shared memory, by both groups. */
static __device__ __forceinline__ void load_weights(const agoqk_bwd_args &a, const place &t) {
    for (int k = t.group; k < WHOLE; k += 2) {
        float w[AGOQK_VEC] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        if (a.norm.weight)
            agoqk_load_weight(a.norm.weight, a.norm.weight_dtype, 1, 8 * (k * t.step + t.first), AGOQK_VEC,
                              w);
        t.weight[2 * k * t.step] = make_float4(w[0], w[1], w[2], w[3]);
        t.weight[(2 * k + 1) * t.step] = make_float4(w[4], w[5], w[6], w[7]);
    }
}

template <int BITS, bool LAYER>
static __global__ void __launch_bounds__(MOST_WARPS * 64)
    bwd_whole_kernel(const __grid_constant__ agoqk_bwd_args a) {
    extern __shared__ float4 shared4[];
    const place t = place_of(a, shared4);
    const int64_t begin = (int64_t)blockIdx.x * AGOQK_CHUNK;
    const chunk in = chunk_of(a, begin);
    const int rows = (int)(a.norm.rows - begin < AGOQK_CHUNK ? a.norm.rows - begin : AGOQK_CHUNK);
    float part[WHOLE][AGOQK_VEC] = {}, part_bias[LAYER ? WHOLE : 1][AGOQK_VEC] = {};
    if (t.group < rows) fetch_row<BITS>(a, in, t.group, t.first, t.step, t.stage);
    load_weights(a, t);
    __syncthreads();
    for (int r = t.group; r < rows + t.group; r += 2) { /* both groups meet as often: racecheck counts */
        vectors<BITS> v = take_row<BITS>(t);
        const float minus_mean = sum_row<BITS, LAYER>(a, t, v);
        agoqk_half_barrier(t.group, t.step);
        if (r + 2 < rows) fetch_row<BITS>(a, in, r + 2, t.first, t.step, t.stage);
        if (t.warp == 0) make_stats<LAYER>(a, t);
        agoqk_half_barrier(t.group, t.step);
        if (r == rows) continue; /* the odd group lacks a last row */
        uint4 *dx = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.dx, begin + r, 0) + t.first;
        finish_row<BITS, LAYER>(t, v, minus_mean, dx, part, part_bias);
    }
    if (a.dweight) agoqk_store_chunk<WHOLE>(a, part, t.group, t.warp, t.lane, a.dweight, (float *)shared4);
    if constexpr (LAYER)
        if (a.dbias)
            agoqk_store_chunk<WHOLE>(a, part_bias, t.group, t.warp, t.lane, a.dbias, (float *)shared4);
}

int agoqk_norm_bwd_is_whole(const agoqk_bwd_args *a, agoq_dtype dtype) {
    const agoqk_norm_args *n = &a->norm; /* an even number of warps: sums are read four at a time */
    return dtype == AGOQ_DTYPE_BF16 && n->cols % (2 * WHOLE * AGOQK_SEGMENT) == 0 &&
           n->cols <= WHOLE * MOST_WARPS * AGOQK_SEGMENT && a->dy.vec && a->dx.vec &&
           a->dy.stride < MOST_STRIDE && (!n->weight || n->weight_vec) && (n->layer || !a->dbias);
}

template <int BITS, bool LAYER> static agoq_status launch(const agoq_exec *exec, const agoqk_bwd_args *a) {
    const int step = a->warps * 32;
    const agoqk_shape shape = {dim3((unsigned)agoqk_chunks(a->norm.rows)), dim3((unsigned)(2 * step)),
                               (size_t)(sums_of(step) + 2 * group_sums(a->warps * WHOLE)) * sizeof(float4)};
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
