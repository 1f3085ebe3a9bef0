/* Norms backward from the packed row: dx, and the gradients of weight and bias by a two-stage sum of fixed
 * order. A block of threads takes a chunk of 32 rows; one half of it the even rows, the other the odd ones,
 * each thread keeping its columns' partial sums in registers; the next row is loaded before the present one
 * is summed. Chunk sums go to the caller's workspace and a second kernel adds them in order of chunks. Bytes
 * per element (bf16): 4 and a packed element. Bound: memory, if two rows and two prefetches a multiprocessor
 * hide the latency. Rows that do not fit the registers of one block are read again (wide_kernel). */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

enum { CHUNK = 32, MOST_WARPS = 8, COLUMNS = 32, TILE_CHUNKS = 256, WIDE_THREADS = 256 };

struct bwd_args {
    agoqk_norm_args norm;
    agoqk_pmat packed;
    agoqk_mat dy, dx;
    int warps;
    float *dweight, *dbias; /* chunk sums, [n_chunks][cols] each; NULL: not wanted */
};

/* g = dy * w, d = x - mean; what is left of a row is zero. */
template <int DTYPE>
static __device__ __forceinline__ void products(const agoqk_norm_args &a, const float x[AGOQK_VEC],
                                                const float dy[AGOQK_VEC], int64_t v, int n, float mean,
                                                float g[AGOQK_VEC], float d[AGOQK_VEC]) {
    float w[AGOQK_VEC];
    if (a.weight) agoqk_load_weight(a.weight, a.weight_dtype, a.weight_vec, 8 * v, n, w);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        g[i] = a.weight ? dy[i] * w[i] : dy[i];
        d[i] = a.layer ? x[i] - mean : x[i];
    }
}

struct row_sums {
    float mean, inv, m1, m2;
};

/* One row's dx from its sums; adds to the partial sums of weight and bias. */
template <int DTYPE>
static __device__ __forceinline__ void finish(const bwd_args &a, const row_sums &s, const float x[AGOQK_VEC],
                                              const float dy[AGOQK_VEC], int64_t r, int64_t v, int n,
                                              float part[AGOQK_VEC]) {
    float g[AGOQK_VEC], d[AGOQK_VEC];
    products<DTYPE>(a.norm, x, dy, v, n, s.mean, g, d);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const float xhat = d[i] * s.inv;
        part[i] += dy[i] * xhat;
        const float inner = a.norm.layer ? g[i] - s.m1 : g[i];
        g[i] = s.inv * (inner - xhat * s.m2);
    }
    if (a.norm.round_bf16 && DTYPE != AGOQ_DTYPE_BF16) agoqk_round8(g);
    if (n > 0 && a.dx.data) agoqk_store8<DTYPE>(agoqk_at<DTYPE>(a.dx, r, 8 * v), n, a.dx.vec, g);
}

/* The sums of a row over the warps of one group; `sums` is 4 x segments floats of this row's turn. */
template <int DTYPE, int VPT>
static __device__ __forceinline__ row_sums sum_row(const bwd_args &a, const float x[VPT][AGOQK_VEC],
                                                   const float dy[VPT][AGOQK_VEC], int warp, int lane,
                                                   int group, float *sums) {
    const int segments = (a.warps * VPT + 3) / 4 * 4,
              used = (int)((a.norm.cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT);
    row_sums s = {0.0f, 0.0f, 0.0f, 0.0f};
    if (a.norm.layer) {
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const float t = agoqk_fold32(agoqk_sum8(x[k]));
            if (lane == 0) sums[k * a.warps + warp] = t;
        }
        agoqk_half_barrier(group, a.warps * 32);
        s.mean = agoqk_add_segments(sums, used, 0.0f) / (float)a.norm.cols;
    }
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
        const int n = agoqk_left(a.norm.cols, v);
        float g[AGOQK_VEC], d[AGOQK_VEC], e[AGOQK_VEC], f[AGOQK_VEC];
        products<DTYPE>(a.norm, x[k], dy[k], v, n, s.mean, g, d);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            e[i] = i < n ? d[i] * d[i] : 0.0f;
            f[i] = i < n ? g[i] * d[i] : 0.0f;
            g[i] = i < n ? g[i] : 0.0f;
        }
        const float squares = agoqk_fold32(agoqk_sum8(e)), dots = agoqk_fold32(agoqk_sum8(f));
        const float grads = a.norm.layer ? agoqk_fold32(agoqk_sum8(g)) : 0.0f;
        if (lane == 0) {
            sums[segments + k * a.warps + warp] = squares;
            sums[2 * segments + k * a.warps + warp] = dots;
            sums[3 * segments + k * a.warps + warp] = grads;
        }
    }
    agoqk_half_barrier(group, a.warps * 32);
    const float ss = agoqk_add_segments(sums + segments, used, 0.0f);
    const float dot = agoqk_add_segments(sums + 2 * segments, used, 0.0f);
    s.inv = 1.0f / sqrtf(ss / (float)a.norm.cols + a.norm.eps);
    s.m2 = dot * s.inv / (float)a.norm.cols;
    if (a.norm.layer) s.m1 = agoqk_add_segments(sums + 3 * segments, used, 0.0f) / (float)a.norm.cols;
    return s;
}

/* odd is added to even through shared memory, vector by vector, and stored. */
template <int VPT>
static __device__ void store_chunk(const bwd_args &a, const float part[VPT][AGOQK_VEC], int group, int warp,
                                   int lane, float *out, float *exchange) {
    for (int k = 0; k < VPT; k++) {
        const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
        const int n = agoqk_left(a.norm.cols, v);
        float *mine = exchange + (warp * 32 + lane) * AGOQK_VEC;
        __syncthreads();
        if (group == 1) {
            float e[AGOQK_VEC];
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                e[i] = 0.0f;
#pragma unroll
                for (int q = 0; q < VPT; q++) e[i] = q == k ? part[q][i] : e[i];
                mine[i] = e[i];
            }
        }
        __syncthreads();
        if (group == 0) {
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                float e = 0.0f;
#pragma unroll
                for (int q = 0; q < VPT; q++) e = q == k ? part[q][i] : e;
                if (i < n) out[(int64_t)blockIdx.x * a.norm.cols + 8 * v + i] = e + mine[i];
            }
        }
    }
}

template <int DTYPE, int BITS, int VPT, bool BIAS>
static __global__ void __launch_bounds__(MOST_WARPS * 64) bwd_kernel(const __grid_constant__ bwd_args a) {
    extern __shared__ float4 shared4[]; /* sums: [group][turn][4][segments]; later the exchange */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % a.warps, group = threadIdx.x / 32 / a.warps;
    const int segments = (a.warps * VPT + 3) / 4 * 4;
    const int64_t begin = (int64_t)blockIdx.x * CHUNK;
    const int64_t end = a.norm.rows - begin < CHUNK ? a.norm.rows : begin + CHUNK;
    float part[VPT][AGOQK_VEC] = {}, part_bias[BIAS ? VPT : 1][AGOQK_VEC] = {};
    agoqk_codes8<BITS> codes[VPT];
    agoqk_raw8<DTYPE> raw[VPT];
    int turn = 0;
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
        const int n = begin + group < end ? agoqk_left(a.norm.cols, v) : 0;
        codes[k] = agoqk_load_codes<BITS>(a.packed, begin + group, v, n);
        raw[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.dy, begin + group, 8 * v), n, a.dy.vec);
    }
    for (int64_t r = begin + group; r < end; r += 2, turn ^= 1) {
        float x[VPT][AGOQK_VEC], dy[VPT][AGOQK_VEC];
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
            const int n = agoqk_left(a.norm.cols, v);
            agoqk_decode8<BITS>(codes[k], n, x[k]);
            agoqk_convert<DTYPE>(raw[k], dy[k]);
            const int next = r + 2 < end ? n : 0;
            codes[k] = agoqk_load_codes<BITS>(a.packed, r + 2, v, next);
            raw[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.dy, r + 2, 8 * v), next, a.dy.vec);
        }
        const row_sums s = sum_row<DTYPE, VPT>(a, x, dy, warp, lane, group,
                                               (float *)shared4 + (group * 2 + turn) * 4 * segments);
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
            finish<DTYPE>(a, s, x[k], dy[k], r, v, agoqk_left(a.norm.cols, v), part[k]);
            if (BIAS) {
#pragma unroll
                for (int i = 0; i < AGOQK_VEC; i++) part_bias[BIAS ? k : 0][i] += dy[k][i];
            }
        }
    }
    if (a.dweight) store_chunk<VPT>(a, part, group, warp, lane, a.dweight, (float *)shared4);
    if (BIAS) store_chunk<BIAS ? VPT : 1>(a, part_bias, group, warp, lane, a.dbias, (float *)shared4);
}

/* The usual case without the rest: bf16 whose rows are whole segments, two to a warp, everything aligned.
 * What a thread holds of its row stays coded and is decoded twice: 64 registers a thread keep a
 * multiprocessor full, and that hides the latency better than loading ahead would. */
enum { WHOLE = 2, WHOLE_WARPS = 16 };

template <int BITS>
static __global__ void __launch_bounds__(WHOLE_WARPS * 64)
    bwd_whole_kernel(const __grid_constant__ bwd_args a) {
    extern __shared__ float4 shared4[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % a.warps, group = threadIdx.x / 32 / a.warps;
    const int segments = a.warps * WHOLE, first = warp * 32 + lane, step = a.warps * 32;
    const float count = (float)a.norm.cols;
    const int64_t begin = (int64_t)blockIdx.x * CHUNK;
    const int rows = (int)(a.norm.rows - begin < CHUNK ? a.norm.rows - begin : CHUNK);
    float part[WHOLE][AGOQK_VEC] = {};
    for (int r = group; r < rows; r += 2) {
        float *sums = (float *)shared4 + (group * 2 + r / 2 % 2) * 4 * segments;
        const uint8_t *lo = a.packed.lo + (begin + r) * a.packed.lo_row,
                      *hi = a.packed.hi + (begin + r) * a.packed.hi_row;
        const uint16_t *scale = a.packed.scale + (begin + r) * a.packed.blocks_per_row;
        const uint4 *in = (const uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.dy, begin + r, 0);
        agoqk_codes8<BITS> codes[WHOLE];
        uint4 dy[WHOLE];
        float minus_mean = 0.0f;
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            codes[k] = agoqk_codes_at<BITS>(lo, hi, scale, k * step + first);
            dy[k] = __ldcs(in + k * step + first);
        }
        if (a.norm.layer) {
#pragma unroll
            for (int k = 0; k < WHOLE; k++) {
                float x[AGOQK_VEC];
                agoqk_decode8<BITS>(codes[k], AGOQK_VEC, x);
                const float t = agoqk_fold32(agoqk_sum8(x));
                if (lane == 0) sums[3 * segments + k * a.warps + warp] = t;
            }
            agoqk_half_barrier(group, step);
            minus_mean = -(agoqk_add_segments(sums + 3 * segments, segments, 0.0f) / count);
        }
        /* d = x - mean, f = dy, g = dy * weight. Adding -mean, or +0, also turns a decoded -0 into +0. */
        const auto products = [&](int k, float d[AGOQK_VEC], float g[AGOQK_VEC], float f[AGOQK_VEC]) {
            const uint32_t w[4] = {dy[k].x, dy[k].y, dy[k].z, dy[k].w};
            float weight[AGOQK_VEC];
            if (a.norm.weight)
                agoqk_load_weight(a.norm.weight, a.norm.weight_dtype, 1, 8 * (k * step + first), AGOQK_VEC,
                                  weight);
            agoqk_raw_decode8<BITS>(codes[k], d);
            agoqk_floats8(w, f);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                d[i] += minus_mean;
                g[i] = a.norm.weight ? f[i] * weight[i] : f[i];
            }
        };
        float squares[WHOLE], dots[WHOLE], grads[WHOLE];
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            float d[AGOQK_VEC], g[AGOQK_VEC], f[AGOQK_VEC], e[AGOQK_VEC];
            products(k, d, g, f);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) e[i] = d[i] * d[i], f[i] = g[i] * d[i];
            squares[k] = agoqk_sum8(e), dots[k] = agoqk_sum8(f), grads[k] = agoqk_sum8(g);
        }
        const float four = agoqk_fold32x4(squares[0], squares[1], dots[0], dots[1]);
        if (lane % 8 == 0) sums[lane / 16 * segments + lane / 8 % 2 * a.warps + warp] = four;
        if (a.norm.layer) {
#pragma unroll
            for (int k = 0; k < WHOLE; k++) {
                const float t = agoqk_fold32(grads[k]);
                if (lane == 0) sums[2 * segments + k * a.warps + warp] = t;
            }
        }
        agoqk_half_barrier(group, step);
        float *out = (float *)shared4 + 16 * segments + (group * 2 + r / 2 % 2) * 4;
        if (warp == 0) { /* lanes 0, 1, 2 add up one array each; the rest of the row waits for less than it
                            would do */
            const float total = agoqk_add_segments(sums + (lane < 2 ? lane : 2) * segments, segments, 0.0f);
            const float ss = __shfl_sync(0xFFFFFFFFu, total, 0), dot = __shfl_sync(0xFFFFFFFFu, total, 1);
            const float grad_sum = __shfl_sync(0xFFFFFFFFu, total, 2);
            const float i = 1.0f / sqrtf(ss / count + a.norm.eps);
            if (lane == 0) *(float4 *)out = make_float4(i, dot * i / count, -(grad_sum / count), 0.0f);
        }
        agoqk_half_barrier(group, step);
        const float4 row = *(const float4 *)out;
        const float inv = row.x, m2 = row.y, minus_m1 = row.z;
        uint4 *dx = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.dx, begin + r, 0);
#pragma unroll
        for (int k = 0; k < WHOLE; k++) {
            float d[AGOQK_VEC], g[AGOQK_VEC], f[AGOQK_VEC];
            agoqk_forget(codes[k].lo[0]);
            agoqk_forget(dy[k].x), agoqk_forget(dy[k].y), agoqk_forget(dy[k].z), agoqk_forget(dy[k].w);
            products(k, d, g, f);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                const float xhat = d[i] * inv;
                part[k][i] += f[i] * xhat;
                if (a.norm.layer) g[i] += minus_m1;
                g[i] = inv * (g[i] - xhat * m2);
            }
            agoqk_store8_bf16(dx + k * step + first, g);
        }
    }
    if (a.dweight) store_chunk<WHOLE>(a, part, group, warp, lane, a.dweight, (float *)shared4);
}

/* Any width: a block of threads takes one row, or 32 rows of 2048 columns for the sums, and reads from memory
 * again what does not fit its registers. Half the speed; rows above 8192 elements are rare. */
template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(WIDE_THREADS)
    wide_kernel(const __grid_constant__ bwd_args a, row_sums *stats) {
    __shared__ __align__(16) float sums[4 * (WIDE_THREADS / 32)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, per_round = WIDE_THREADS / 32;
    const int64_t r = blockIdx.x, cols = a.norm.cols, segments = (cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT;
    row_sums s = {0.0f, 0.0f, 0.0f, 0.0f};
    float ss = 0.0f, dot = 0.0f, grads = 0.0f;
    for (int pass = a.norm.layer ? 0 : 1; pass < 3; pass++) {
        for (int64_t first = 0; first < segments; first += per_round) {
            const int64_t v = (first + warp) * 32 + lane;
            const int n = agoqk_left(cols, v),
                      used = segments - first < per_round ? (int)(segments - first) : per_round;
            float x[AGOQK_VEC], dy[AGOQK_VEC], g[AGOQK_VEC], d[AGOQK_VEC], e[AGOQK_VEC], f[AGOQK_VEC];
            agoqk_get8<BITS>(a.packed, r, v, n, x);
            agoqk_load8<DTYPE>(agoqk_at<DTYPE>(a.dy, r, 8 * v), n, a.dy.vec, dy);
            if (pass == 2) {
                finish<DTYPE>(a, s, x, dy, r, v, n, e);
                continue;
            }
            products<DTYPE>(a.norm, x, dy, v, n, s.mean, g, d);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                e[i] = i < n ? d[i] * d[i] : 0.0f;
                f[i] = i < n ? g[i] * d[i] : 0.0f;
                g[i] = i < n ? g[i] : 0.0f;
            }
            const float t0 = agoqk_fold32(agoqk_sum8(x)), t1 = agoqk_fold32(agoqk_sum8(e));
            const float t2 = agoqk_fold32(agoqk_sum8(f)), t3 = agoqk_fold32(agoqk_sum8(g));
            __syncthreads();
            if (lane == 0)
                sums[warp] = t0, sums[per_round + warp] = t1, sums[2 * per_round + warp] = t2,
                sums[3 * per_round + warp] = t3;
            __syncthreads();
            if (pass == 0) s.mean = agoqk_add_segments(sums, used, s.mean);
            if (pass == 1) {
                ss = agoqk_add_segments(sums + per_round, used, ss);
                dot = agoqk_add_segments(sums + 2 * per_round, used, dot);
                grads = agoqk_add_segments(sums + 3 * per_round, used, grads);
            }
        }
        if (pass == 0) s.mean = s.mean / (float)cols;
        if (pass != 1) continue;
        s.inv = 1.0f / sqrtf(ss / (float)cols + a.norm.eps);
        s.m2 = dot * s.inv / (float)cols;
        s.m1 = a.norm.layer ? grads / (float)cols : 0.0f;
        if (stats && threadIdx.x == 0) stats[r] = s;
    }
}

/* Chunk sums of wide rows from what wide_kernel left. dx must not be dy: dy is read again. */
template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(WIDE_THREADS)
    wide_chunk_kernel(const __grid_constant__ bwd_args a, const row_sums *stats) {
    const int64_t v = (int64_t)blockIdx.y * WIDE_THREADS + threadIdx.x, begin = (int64_t)blockIdx.x * CHUNK;
    const int64_t end = a.norm.rows - begin < CHUNK ? a.norm.rows : begin + CHUNK;
    const int n = agoqk_left(a.norm.cols, v);
    float part[2][AGOQK_VEC] = {}, bias[2][AGOQK_VEC] = {};
    for (int64_t r = begin; r < end; r += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            if (r + odd >= end) continue;
            const row_sums s = stats[r + odd];
            float x[AGOQK_VEC], dy[AGOQK_VEC];
            agoqk_get8<BITS>(a.packed, r + odd, v, n, x);
            agoqk_load8<DTYPE>(agoqk_at<DTYPE>(a.dy, r + odd, 8 * v), n, a.dy.vec, dy);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                part[odd][i] += dy[i] * ((a.norm.layer ? x[i] - s.mean : x[i]) * s.inv);
                bias[odd][i] += dy[i];
            }
        }
    }
    for (int i = 0; i < n; i++) {
        const int64_t at = (int64_t)blockIdx.x * a.norm.cols + 8 * v + i;
        if (a.dweight) a.dweight[at] = part[0][i] + part[1][i];
        if (a.dbias) a.dbias[at] = bias[0][i] + bias[1][i];
    }
}

/* out += chunk sums, in order. A block takes 32 columns; its threads load tiles of chunks, 32 of them add. */
static __global__ void __launch_bounds__(1024)
    add_chunks_kernel(const float *sums, int64_t n_chunks, int64_t cols, float *out) {
    __shared__ float tile[TILE_CHUNKS][COLUMNS + 1];
    const int column = threadIdx.x % COLUMNS, lane = threadIdx.x / COLUMNS, step = 1024 / COLUMNS;
    const int64_t c = (int64_t)blockIdx.x * COLUMNS + column;
    float total = c < cols && lane == 0 ? out[c] : 0.0f;
    for (int64_t first = 0; first < n_chunks; first += TILE_CHUNKS) {
        const int n = n_chunks - first < TILE_CHUNKS ? (int)(n_chunks - first) : TILE_CHUNKS;
#pragma unroll 8
        for (int i = lane; i < TILE_CHUNKS; i += step)
            tile[i][column] = i < n && c < cols ? sums[(first + i) * cols + c] : 0.0f;
        __syncthreads();
        if (lane == 0) {
#pragma unroll 8
            for (int i = 0; i < n; i++) total += tile[i][column];
        }
        __syncthreads();
    }
    if (c < cols && lane == 0) out[c] = total;
}

static int64_t chunks_of(int64_t rows) {
    return (rows + CHUNK - 1) / CHUNK;
}

size_t agoqk_cuda_norm_bwd_workspace(int64_t rows, int64_t cols) {
    const int wide = (cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT > MOST_WARPS * 4;
    return (size_t)(2 * chunks_of(rows) * cols) * sizeof(float) +
           (wide ? (size_t)rows * sizeof(row_sums) : 0) + 32;
}

template <int DTYPE, int BITS> static agoq_status launch_rows(const agoq_exec *exec, bwd_args *a) {
    const int64_t segments = (a->norm.cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT;
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    const agoq_dtype dtype = (agoq_dtype)DTYPE;
    const agoqk_norm_args *n = &a->norm;
    const int whole = DTYPE == AGOQ_DTYPE_BF16 && n->cols % (2 * WHOLE * AGOQK_SEGMENT) == 0 &&
                      segments <= WHOLE * WHOLE_WARPS && a->dy.vec && a->dx.vec &&
                      (!n->weight || n->weight_vec) && !a->dbias;
    if (whole) { /* an even number of warps: sums are read four at a time */
        a->warps = (int)segments / WHOLE;
        const size_t sums = (size_t)(2 * 2 * 4 * segments + 16) * sizeof(float),
                     exchange = (size_t)a->warps * 256 * sizeof(float);
        const agoqk_shape shape = {dim3((unsigned)chunks_of(n->rows)), dim3((unsigned)(a->warps * 64)),
                                   sums > exchange ? sums : exchange};
        bwd_whole_kernel<BITS><<<shape.grid, shape.block, shape.smem, stream>>>(*a);
        return agoqk_launched("norm_bwd_whole", dtype, BITS, &shape);
    }
    if (segments <= MOST_WARPS * 4) {
        const int vpt = segments <= MOST_WARPS ? 2 : 4;
        a->warps = (int)((segments + vpt - 1) / vpt);
        const size_t sums = (size_t)(2 * 2 * 4 * ((a->warps * vpt + 3) / 4 * 4)) * sizeof(float),
                     exchange = (size_t)a->warps * 256 * sizeof(float);
        const agoqk_shape shape = {dim3((unsigned)chunks_of(a->norm.rows)), dim3((unsigned)(a->warps * 64)),
                                   sums > exchange ? sums : exchange};
        if (vpt == 2 && a->dbias)
            bwd_kernel<DTYPE, BITS, 2, true><<<shape.grid, shape.block, shape.smem, stream>>>(*a);
        else if (vpt == 2)
            bwd_kernel<DTYPE, BITS, 2, false><<<shape.grid, shape.block, shape.smem, stream>>>(*a);
        else if (a->dbias)
            bwd_kernel<DTYPE, BITS, 4, true><<<shape.grid, shape.block, shape.smem, stream>>>(*a);
        else
            bwd_kernel<DTYPE, BITS, 4, false><<<shape.grid, shape.block, shape.smem, stream>>>(*a);
        return agoqk_launched("norm_bwd", dtype, BITS, &shape);
    }
    /* the sums read dy, so they come before dx may overwrite it: rows' statistics first, without dx */
    const int wanted = a->dweight || a->dbias;
    row_sums *stats = wanted
                          ? (row_sums *)((char *)exec->workspace +
                                         (size_t)(2 * chunks_of(a->norm.rows) * a->norm.cols) * sizeof(float))
                          : NULL;
    const agoqk_shape rows = {dim3((unsigned)a->norm.rows), dim3(WIDE_THREADS), 0};
    const int64_t vectors = (a->norm.cols + 7) / 8;
    const agoqk_shape chunks = {
        dim3((unsigned)chunks_of(a->norm.rows), (unsigned)((vectors + WIDE_THREADS - 1) / WIDE_THREADS)),
        dim3(WIDE_THREADS), 0};
    if (chunks.grid.y > 65535) return AGOQ_E_LIMIT;
    if (wanted) {
        bwd_args quiet = *a;
        quiet.dx.data = NULL;
        wide_kernel<DTYPE, BITS><<<rows.grid, rows.block, 0, stream>>>(quiet, stats);
        const agoq_status status = agoqk_launched("norm_bwd_stats", dtype, BITS, &rows);
        if (status != AGOQ_OK) return status;
        wide_chunk_kernel<DTYPE, BITS><<<chunks.grid, chunks.block, 0, stream>>>(*a, stats);
        const agoq_status second = agoqk_launched("norm_bwd_chunks", dtype, BITS, &chunks);
        if (second != AGOQ_OK) return second;
    }
    wide_kernel<DTYPE, BITS><<<rows.grid, rows.block, 0, stream>>>(*a, NULL);
    return agoqk_launched("norm_bwd_wide", dtype, BITS, &rows);
}

static agoq_status add_chunks(const agoq_exec *exec, const bwd_args *a, const float *sums, float *out) {
    const agoqk_shape shape = {dim3((unsigned)((a->norm.cols + COLUMNS - 1) / COLUMNS)), dim3(1024), 0};
    add_chunks_kernel<<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
        sums, chunks_of(a->norm.rows), a->norm.cols, out);
    return agoqk_launched("norm_bwd_add", AGOQ_DTYPE_F32, 32, &shape);
}

agoq_status agoqk_cuda_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                       float *dweight, float *dbias) {
    agoqk_launch_begin("norm_bwd_packed");
    if (dx->dtype != dy->dtype) return AGOQ_E_UNSUPPORTED;
    if (dy->rows == 0 || dy->cols == 0) return AGOQ_OK;
    if (dy->rows > 0x7FFFFFFF) return AGOQ_E_LIMIT;
    bwd_args a = {};
    a.norm = agoqk_norm_args_of(norm, dy->rows, dy->cols);
    a.packed = agoqk_pmat_of(packed);
    a.dy = agoqk_mat_of(dy);
    a.dx = agoqk_mat_of(dx);
    float *work = (float *)exec->workspace;
    a.dweight = dweight ? work : NULL;
    a.dbias = dbias ? work + chunks_of(dy->rows) * dy->cols : NULL;
    agoq_status status = AGOQ_E_UNSUPPORTED;
    AGOQK_DTYPE_SWITCH(
        dy->dtype, DTYPE,
        AGOQK_BITS_SWITCH(packed->layout.bits, BITS, status = launch_rows<DTYPE, BITS>(exec, &a)))
    if (status == AGOQ_OK && dweight) status = add_chunks(exec, &a, a.dweight, dweight);
    if (status == AGOQ_OK && dbias) status = add_chunks(exec, &a, a.dbias, dbias);
    return status;
}
