/* Norms backward, the usual case: bf16 whose rows are whole segments, two to a warp, everything aligned. A
 * block of threads takes a chunk of 32 rows; one half of it the even rows, the other the odd ones, each
 * thread keeping its columns' partial sums in registers. A row stays coded and is decoded twice, so that 64
 * registers a thread keep a multiprocessor full; the next row is on its way to shared memory meanwhile, where
 * a thread reads only what it fetched itself. Weights lie there as floats: they are the same for every row.
 */
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

/* d = x - mean; f = dy; g = dy * weight. */
template <int BITS, bool LAYER>
static __device__ __forceinline__ void products(const agoqk_codes8<BITS> &codes, const uint4 &dy,
                                                const float4 *weight, int step, float minus_mean,
                                                float d[AGOQK_VEC], float g[AGOQK_VEC], float f[AGOQK_VEC]) {
    const uint32_t w[4] = {dy.x, dy.y, dy.z, dy.w};
    const float4 p = weight[0], q = weight[step];
    const float all[AGOQK_VEC] = {p.x, p.y, p.z, p.w, q.x, q.y, q.z, q.w};
    agoqk_decode8<BITS>(codes, AGOQK_VEC, d);
    agoqk_floats8(w, f);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        if (LAYER) d[i] += minus_mean;
        g[i] = f[i] * all[i];
    }
}

/* 1/rms, m2 and -m1 of a row, by one warp: lanes 0, 1, 2 add up one array each. */
template <bool LAYER>
static __device__ __forceinline__ float4 stats(const agoqk_norm_args &a, const float *sums, int segments,
                                               int lane) {
    const float count = (float)a.cols;
    const float total =
        agoqk_add_segments(sums + (lane < ARRAYS - 2 ? lane : ARRAYS - 2) * segments, segments, 0.0f);
    const float ss = __shfl_sync(0xFFFFFFFFu, total, 0), dot = __shfl_sync(0xFFFFFFFFu, total, 1);
    const float grad_sum = LAYER ? __shfl_sync(0xFFFFFFFFu, total, 2) : 0.0f,
                inv = 1.0f / sqrtf(ss / count + a.eps);
    return make_float4(inv, dot * inv / count, -(grad_sum / count), 0.0f);
}

/* -mean of a row, every thread's own. */
template <int BITS>
static __device__ __forceinline__ float minus_mean_of(const agoqk_codes8<BITS> codes[WHOLE], float *sums,
                                                      int segments, int warps, int warp, int lane, int group,
                                                      int64_t cols) {
#pragma unroll
    for (int k = 0; k < WHOLE; k++) {
        float x[AGOQK_VEC];
        agoqk_decode8<BITS>(codes[k], AGOQK_VEC, x);
        const float t = agoqk_fold32(agoqk_sum8(x));
        if (lane == 0) sums[k * warps + warp] = t;
    }
    agoqk_half_barrier(group, warps * 32);
    return -(agoqk_add_segments(sums, segments, 0.0f) / (float)cols);
}

template <int BITS, bool LAYER>
static __global__ void __launch_bounds__(MOST_WARPS * 64)
    bwd_whole_kernel(const __grid_constant__ agoqk_bwd_args a) {
    extern __shared__ float4 shared4[];
    const int step = a.warps * 32, segments = a.warps * WHOLE;
    const int group = (int)threadIdx.x >= step, first = threadIdx.x - group * step, warp = first / 32,
              lane = threadIdx.x % 32;
    uint4 *stage = (uint4 *)shared4 + threadIdx.x;
    float4 *weight = shared4 + stage_of(step) + first,
           *row = shared4 + sums_of(step) + group * group_sums(segments);
    float *sums = (float *)(row + 1);
    const int64_t begin = (int64_t)blockIdx.x * AGOQK_CHUNK;
    const int rows = (int)(a.norm.rows - begin < AGOQK_CHUNK ? a.norm.rows - begin : AGOQK_CHUNK);
    float part[WHOLE][AGOQK_VEC] = {}, part_bias[LAYER ? WHOLE : 1][AGOQK_VEC] = {};
    const chunk in = chunk_of(a, begin);
    if (group < rows) fetch_row<BITS>(a, in, group, first, step, stage);
    for (int k = group; k < WHOLE; k += 2) {
        float w[AGOQK_VEC] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
        if (a.norm.weight)
            agoqk_load_weight(a.norm.weight, a.norm.weight_dtype, 1, 8 * (k * step + first), AGOQK_VEC, w);
        weight[2 * k * step] = make_float4(w[0], w[1], w[2], w[3]);
        weight[(2 * k + 1) * step] = make_float4(w[4], w[5], w[6], w[7]);
    }
    __syncthreads();
    for (int r = group; r < rows; r += 2) {
        agoqk_codes8<BITS> codes[WHOLE];
        uint4 dy[WHOLE];
        agoqk_fetch_wait();
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            dy[k] = stage[2 * k * 2 * step];
            codes[k] = agoqk_fetched_codes<BITS>(stage[(2 * k + 1) * 2 * step], first);
        }
        float minus_mean = 0.0f, squares[WHOLE], dots[WHOLE], grads[WHOLE];
        if (LAYER)
            minus_mean = minus_mean_of<BITS>(codes, sums + 3 * segments, segments, a.warps, warp, lane, group,
                                             a.norm.cols);
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            float d[AGOQK_VEC], g[AGOQK_VEC], f[AGOQK_VEC], e[AGOQK_VEC];
            products<BITS, LAYER>(codes[k], dy[k], weight + 2 * k * step, step, minus_mean, d, g, f);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) e[i] = d[i] * d[i], f[i] = g[i] * d[i];
            squares[k] = agoqk_sum8(e), dots[k] = agoqk_sum8(f);
            if (LAYER) grads[k] = agoqk_fold32(agoqk_sum8(g));
        }
        const float four = agoqk_fold32x4(squares[0], squares[1], dots[0], dots[1]);
        if (lane % 8 == 0) sums[lane / 16 * segments + lane / 8 % 2 * a.warps + warp] = four;
        if (LAYER && lane == 0)
            sums[2 * segments + warp] = grads[0], sums[2 * segments + a.warps + warp] = grads[1];
        agoqk_half_barrier(group, step);
        if (r + 2 < rows) fetch_row<BITS>(a, in, r + 2, first, step, stage);
        if (warp == 0) {
            const float4 s = stats<LAYER>(a.norm, sums, segments, lane);
            if (lane == 0) *row = s;
        }
        agoqk_half_barrier(group, step);
        const float inv = row->x, m2 = row->y, minus_m1 = row->z;
        uint4 *dx = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.dx, begin + r, 0);
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            float d[AGOQK_VEC], g[AGOQK_VEC], f[AGOQK_VEC];
            agoqk_forget(codes[k].lo[0]);
            agoqk_forget(dy[k].x), agoqk_forget(dy[k].y), agoqk_forget(dy[k].z), agoqk_forget(dy[k].w);
            products<BITS, LAYER>(codes[k], dy[k], weight + 2 * k * step, step, minus_mean, d, g, f);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                const float xhat = d[i] * inv;
                part[k][i] += f[i] * xhat;
                if (LAYER) part_bias[LAYER ? k : 0][i] += f[i], g[i] += minus_m1;
                g[i] = inv * (g[i] - xhat * m2);
            }
            agoqk_store8_bf16(dx + k * step + first, g);
        }
    }
    if (a.dweight) agoqk_store_chunk<WHOLE>(a, part, group, warp, lane, a.dweight, (float *)shared4);
    if constexpr (LAYER)
        if (a.dbias) agoqk_store_chunk<WHOLE>(a, part_bias, group, warp, lane, a.dbias, (float *)shared4);
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
