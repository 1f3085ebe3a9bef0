/* Norms backward for rows that do not fit the registers of a block of threads: a block takes one row, or 32
 * rows of 2048 columns for the sums of weight and bias, and reads from memory again what it does not hold.
 * That is slower than norm_bwd.cu; rows above 8192 elements are rare. */
#include "kernels/cuda/norm_bwd.cuh"

enum { ROW_THREADS = 1024, CHUNK_THREADS = 256 }; /* a round of a row: 32 segments */

/* One row: its statistics (pass 0: mean, 1: the rest), then dx (pass 2). dx.data NULL: no dx. stats: where
 * the statistics of all rows are kept, and read from if they are `known`; NULL: nowhere. */
template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(ROW_THREADS)
    wide_kernel(const __grid_constant__ agoqk_bwd_args a, agoqk_row_sums *stats, bool known) {
    __shared__ __align__(16) float sums[4 * (ROW_THREADS / 32)];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, per_round = ROW_THREADS / 32;
    const int64_t r = blockIdx.x, cols = a.norm.cols, segments = (cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT;
    agoqk_row_sums s = {0.0f, 0.0f, 0.0f, 0.0f};
    if (known) s = stats[r];
    float ss = 0.0f, dot = 0.0f, grads = 0.0f;
    for (int pass = known ? 2 : a.norm.layer ? 0 : 1; pass < (a.dx.data ? 3 : 2); pass++) {
        for (int64_t first = 0; first < segments; first += per_round) {
            const int64_t v = (first + warp) * 32 + lane;
            const int n = agoqk_count_of(cols, 8 * v, AGOQK_VEC),
                      used = segments - first < per_round ? (int)(segments - first) : per_round;
            float x[AGOQK_VEC], dy[AGOQK_VEC], g[AGOQK_VEC], d[AGOQK_VEC];
            agoqk_get8<BITS>(a.packed, r, v, n, x);
            agoqk_load8<DTYPE>(agoqk_at<DTYPE>(a.dy, r, 8 * v), n, a.dy.vec, dy);
            if (pass == 2) {
                float part[AGOQK_VEC] = {}; /* the sums of weight are wide_chunk_kernel's */
                agoqk_bwd_finish<DTYPE>(a, s, x, dy, r, v, n, part);
                continue;
            }
            agoqk_bwd_weights(a.norm, v, n, g);
            agoqk_bwd_deviations(a.norm, x, n, s.mean, d);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) g[i] *= dy[i];
            const float t0 = agoqk_fold32(agoqk_sum8(x)), t1 = agoqk_fold32(agoqk_products8(d, d));
            const float t2 = agoqk_fold32(agoqk_products8(g, d)), t3 = agoqk_fold32(agoqk_sum8(g));
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
        if (pass == 0) s.mean = s.mean * a.norm.per_col;
        if (pass != 1) continue;
        agoqk_bwd_stats(a.norm, ss, dot, grads, &s);
        if (stats && threadIdx.x == 0) stats[r] = s;
    }
}

/* Chunk sums of wide rows from what wide_kernel left. dx must not be dy: dy is read again. */
template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(CHUNK_THREADS)
    wide_chunk_kernel(const __grid_constant__ agoqk_bwd_args a, const agoqk_row_sums *stats) {
    const int64_t v = (int64_t)blockIdx.y * CHUNK_THREADS + threadIdx.x,
                  begin = (int64_t)blockIdx.x * AGOQK_CHUNK;
    const int64_t end = a.norm.rows - begin < AGOQK_CHUNK ? a.norm.rows : begin + AGOQK_CHUNK;
    const int n = agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC);
    float part[2][AGOQK_VEC] = {}, bias[2][AGOQK_VEC] = {};
    for (int64_t r = begin; r < end; r += 2) {
#pragma unroll
        for (int odd = 0; odd < 2; odd++) {
            if (r + odd >= end) continue;
            const agoqk_row_sums s = stats[r + odd];
            float x[AGOQK_VEC], dy[AGOQK_VEC];
            agoqk_get8<BITS>(a.packed, r + odd, v, n, x);
            agoqk_load8<DTYPE>(agoqk_at<DTYPE>(a.dy, r + odd, 8 * v), n, a.dy.vec, dy);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                part[odd][i] = fmaf(dy[i] * s.inv, a.norm.layer ? x[i] - s.mean : x[i], part[odd][i]);
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

template <int DTYPE, int BITS>
static agoq_status launch_wide(const agoq_exec *exec, const agoqk_bwd_args *a) {
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    const agoq_dtype dtype = (agoq_dtype)DTYPE;
    /* the sums read dy, so they come before dx may overwrite it: rows' statistics first, without dx */
    const bool wanted = a->dweight || a->dbias;
    agoqk_row_sums *stats =
        wanted ? (agoqk_row_sums *)((char *)exec->workspace +
                                    (size_t)(2 * agoqk_chunks(a->norm.rows) * a->norm.cols) * sizeof(float))
               : NULL;
    const agoqk_shape rows = {dim3((unsigned)a->norm.rows), dim3(ROW_THREADS), 0};
    if (wanted) {
        const int64_t vectors = (a->norm.cols + AGOQK_VEC - 1) / AGOQK_VEC,
                      across = (vectors + CHUNK_THREADS - 1) / CHUNK_THREADS;
        if (across > 65535) return AGOQ_E_LIMIT;
        const agoqk_shape chunks = {dim3((unsigned)agoqk_chunks(a->norm.rows), (unsigned)across),
                                    dim3(CHUNK_THREADS), 0};
        agoqk_bwd_args quiet = *a;
        quiet.dx.data = NULL;
        wide_kernel<DTYPE, BITS><<<rows.grid, rows.block, 0, stream>>>(quiet, stats, false);
        const agoq_status status = agoqk_launched("norm_bwd_stats", dtype, BITS, &rows);
        if (status != AGOQ_OK) return status;
        wide_chunk_kernel<DTYPE, BITS><<<chunks.grid, chunks.block, 0, stream>>>(*a, stats);
        const agoq_status second = agoqk_launched("norm_bwd_chunks", dtype, BITS, &chunks);
        if (second != AGOQ_OK) return second;
    }
    wide_kernel<DTYPE, BITS><<<rows.grid, rows.block, 0, stream>>>(*a, stats, wanted);
    return agoqk_launched("norm_bwd_wide", dtype, BITS, &rows);
}

agoq_status agoqk_norm_bwd_wide(const agoq_exec *exec, const agoqk_bwd_args *a, agoq_dtype dtype, int bits) {
    agoq_status status = AGOQ_E_UNSUPPORTED;
    AGOQK_DTYPE_SWITCH(dtype, DTYPE,
                       AGOQK_BITS_SWITCH(bits, BITS, status = launch_wide<DTYPE, BITS>(exec, a)))
    return status;
}
