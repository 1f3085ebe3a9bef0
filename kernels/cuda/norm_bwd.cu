/* Norms backward from the packed row: dx, and the gradients of weight and bias by a two-stage sum of fixed
 * order. A block of threads takes a chunk of 32 rows; one half of it the even rows, the other the odd ones,
 * each thread keeping its columns' partial sums in registers; the next row is loaded before the present one
 * is summed. Chunk sums go to the caller's workspace and a second kernel adds them in order of chunks. Bytes
 * per element (bf16): 4 and a packed element. Bound: memory, if two rows and two prefetches a multiprocessor
 * hide the latency. Rows that do not fit the registers of one block are read again (wide_kernel). */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm_bwd.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/ptx.cuh"

enum { VPT = 4, MOST_WARPS = 8, COLUMNS = 32, TILE_CHUNKS = 256 }; /* VPT: segments of a warp */

/* The sums of a row over the warps of one group; `sums` is 4 x segments floats of this row's turn. */
template <int DTYPE>
static __device__ __forceinline__ agoqk_row_sums sum_row(const agoqk_bwd_args &a,
                                                         const float x[VPT][AGOQK_VEC],
                                                         const float dy[VPT][AGOQK_VEC], int warp, int lane,
                                                         int group, float *sums) {
    const int segments = (a.warps * VPT + 3) / 4 * 4,
              used = (int)((a.norm.cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT);
    agoqk_row_sums s = {0.0f, 0.0f, 0.0f, 0.0f};
    if (a.norm.layer) {
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const float t = agoqk_fold32(agoqk_sum8(x[k]));
            if (lane == 0) sums[k * a.warps + warp] = t;
        }
        agoqk_half_barrier(group, a.warps * 32);
        s.mean = agoqk_add_segments(sums, used, 0.0f) * a.norm.per_col;
    }
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
        const int n = agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC);
        float g[AGOQK_VEC], d[AGOQK_VEC];
        agoqk_bwd_weights(a.norm, v, n, g);
        agoqk_bwd_deviations(a.norm, x[k], n, s.mean, d);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) g[i] *= dy[k][i];
        const float squares = agoqk_fold32(agoqk_products8(d, d)), dots = agoqk_fold32(agoqk_products8(g, d));
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
    const float grads = a.norm.layer ? agoqk_add_segments(sums + 3 * segments, used, 0.0f) : 0.0f;
    agoqk_bwd_stats(a.norm, ss, dot, grads, &s);
    return s;
}

template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(MOST_WARPS * 64)
    bwd_kernel(const __grid_constant__ agoqk_bwd_args a) {
    extern __shared__ float4 shared4[]; /* sums: [group][turn][4][segments]; later the exchange */
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % a.warps, group = threadIdx.x / 32 / a.warps;
    const int segments = (a.warps * VPT + 3) / 4 * 4;
    const int64_t begin = (int64_t)blockIdx.x * AGOQK_CHUNK;
    const int64_t end = a.norm.rows - begin < AGOQK_CHUNK ? a.norm.rows : begin + AGOQK_CHUNK;
    float part[VPT][AGOQK_VEC] = {}, part_bias[VPT][AGOQK_VEC] = {};
    agoqk_codes8<BITS> codes[VPT];
    agoqk_raw8<DTYPE> raw[VPT];
    int turn = 0;
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
        const int n = begin + group < end ? agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC) : 0;
        codes[k] = agoqk_load_codes<BITS>(a.packed, begin + group, v, n);
        raw[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.dy, begin + group, 8 * v), n, a.dy.vec);
    }
    for (int64_t r = begin + group; r < end + group; r += 2, turn ^= 1) { /* both halves meet as often */
        float x[VPT][AGOQK_VEC], dy[VPT][AGOQK_VEC];
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
            const int n = agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC);
            agoqk_decode8<BITS>(codes[k], n, x[k]);
            agoqk_convert<DTYPE>(raw[k], dy[k]);
            const int next = r + 2 < end ? n : 0;
            codes[k] = agoqk_load_codes<BITS>(a.packed, r + 2, v, next);
            raw[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.dy, r + 2, 8 * v), next, a.dy.vec);
        }
        const agoqk_row_sums s =
            sum_row<DTYPE>(a, x, dy, warp, lane, group, (float *)shared4 + (group * 2 + turn) * 4 * segments);
        if (r == end) continue; /* the odd half lacks a last row */
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
            agoqk_bwd_finish<DTYPE>(a, s, x[k], dy[k], r, v, agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC),
                                    part[k]);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) part_bias[k][i] += dy[k][i];
        }
    }
    const int at = warp * 32 + lane, step = a.warps * 32;
    if (a.dweight) agoqk_store_chunk<VPT>(a, part, group, at, at, step, a.dweight, (float *)shared4);
    if (a.dbias) agoqk_store_chunk<VPT>(a, part_bias, group, at, at, step, a.dbias, (float *)shared4);
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

size_t agoqk_cuda_norm_bwd_workspace(int64_t rows, int64_t cols) {
    const int wide = (cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT > MOST_WARPS * 4;
    return (size_t)(2 * agoqk_chunks(rows) * cols) * sizeof(float) +
           (wide ? (size_t)rows * sizeof(agoqk_row_sums) : 0) + 32;
}

template <int DTYPE, int BITS> static agoq_status launch_rows(const agoq_exec *exec, agoqk_bwd_args *a) {
    const int64_t segments = (a->norm.cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT;
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    const agoq_dtype dtype = (agoq_dtype)DTYPE;
    if (agoqk_norm_bwd_is_whole(a, dtype)) return agoqk_norm_bwd_whole(exec, a, BITS);
    if (segments <= MOST_WARPS * VPT) {
        a->warps = (int)((segments + VPT - 1) / VPT);
        const size_t sums = (size_t)(2 * 2 * 4 * a->warps * VPT) * sizeof(float),
                     exchange = (size_t)a->warps * 256 * sizeof(float);
        const agoqk_shape shape = {dim3((unsigned)agoqk_chunks(a->norm.rows)),
                                   dim3((unsigned)(a->warps * 64)), sums > exchange ? sums : exchange};
        bwd_kernel<DTYPE, BITS><<<shape.grid, shape.block, shape.smem, stream>>>(*a);
        return agoqk_launched("norm_bwd", dtype, BITS, &shape);
    }
    return agoqk_norm_bwd_wide(exec, a, dtype, BITS);
}

static agoq_status add_chunks(const agoq_exec *exec, const agoqk_bwd_args *a, const float *sums, float *out) {
    const agoqk_shape shape = {dim3((unsigned)((a->norm.cols + COLUMNS - 1) / COLUMNS)), dim3(1024), 0};
    add_chunks_kernel<<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
        sums, agoqk_chunks(a->norm.rows), a->norm.cols, out);
    return agoqk_launched("norm_bwd_add", AGOQ_DTYPE_F32, 32, &shape);
}

agoq_status agoqk_cuda_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                       float *dweight, float *dbias) {
    agoqk_launch_begin("norm_bwd_packed");
    if (dx->dtype != dy->dtype) return AGOQ_E_UNSUPPORTED;
    if (dy->rows == 0 || dy->cols == 0) return AGOQ_OK;
    if (dy->rows > 0x7FFFFFFF) return AGOQ_E_LIMIT;
    agoqk_bwd_args a = {};
    a.norm = agoqk_norm_args_of(norm, dy->rows, dy->cols);
    a.packed = agoqk_pmat_of(packed);
    a.dy = agoqk_mat_of(dy);
    a.dx = agoqk_mat_of(dx);
    float *work = (float *)exec->workspace;
    a.dweight = dweight ? work : NULL;
    a.dbias = dbias ? work + agoqk_chunks(dy->rows) * dy->cols : NULL;
    agoq_status status = AGOQ_E_UNSUPPORTED;
    AGOQK_DTYPE_SWITCH(
        dy->dtype, DTYPE,
        AGOQK_BITS_SWITCH(packed->layout.format, BITS, status = launch_rows<DTYPE, BITS>(exec, &a)))
    if (status == AGOQ_OK && dweight) status = add_chunks(exec, &a, a.dweight, dweight);
    if (status == AGOQ_OK && dbias) status = add_chunks(exec, &a, a.dbias, dbias);
    return status;
}
