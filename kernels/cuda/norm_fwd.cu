/* Norms forward, fused with pack (from x, and an optional residual) or with unpack (the recomputation for a
 * weight gradient). A row belongs to `warps` warps; short rows share a block of threads. Bytes per element
 * (bf16): 4 and a packed element, or 8 with a residual; 2 and a packed element. Bound: memory. The order of
 * every sum is fixed (norm.cuh), so no result depends on the launch shape. */
#include "kernels/cuda/norm_fwd.cuh"
#include "kernels/cuda/ops.h"

enum { MOST_WARPS = 32, FEW_WARPS = 8 };

/* The elements of vector v of row r, as they are normalised: unpacked, or x, or x + residual, which is
 * stored. */
template <int DTYPE, int BITS>
static __device__ __forceinline__ void load_row(const agoqk_fwd_args &a, int64_t r, int64_t v, int n,
                                                bool first, float x[AGOQK_VEC]) {
    if (a.from_packed) {
        agoqk_get8<BITS>(a.packed, r, v, n, x);
        return;
    }
    if (!first) { /* a later round trip: what was stored */
        const agoqk_mat &m = a.add ? a.sum : a.x;
        agoqk_load8<DTYPE>(agoqk_at<DTYPE>(m, r, 8 * v), n, m.vec, x);
        return;
    }
    agoqk_load8<DTYPE>(agoqk_at<DTYPE>(a.x, r, 8 * v), n, a.x.vec, x);
    if (!a.add) return;
    float other[AGOQK_VEC];
    agoqk_load8<DTYPE>(agoqk_at<DTYPE>(a.residual, r, 8 * v), n, a.residual.vec, other);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) x[i] += other[i];
    if (a.norm.round_bf16 && DTYPE != AGOQ_DTYPE_BF16) agoqk_round8(x);
    agoqk_round_to<DTYPE>(x);
    if (n > 0) agoqk_store8<DTYPE>(agoqk_at<DTYPE>(a.sum, r, 8 * v), n, a.sum.vec, x);
    if (n < AGOQK_VEC) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = i < n ? x[i] : 0.0f;
    }
}

template <int DTYPE, int BITS, int VPT>
static __global__ void __launch_bounds__(MOST_WARPS * 32)
    fwd_kernel(const __grid_constant__ agoqk_fwd_args a) {
    extern __shared__ float4 shared4[];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % a.warps, slot = threadIdx.x / 32 / a.warps;
    const int per_round = a.warps * VPT; /* segments */
    float *sums = (float *)shared4 + slot * 2 * ((per_round + 3) / 4 * 4),
          *squares = sums + (per_round + 3) / 4 * 4;
    const int64_t row = (int64_t)blockIdx.x * a.rows_per_block + slot, cols = a.norm.cols;
    const int64_t r = row < a.norm.rows ? row : 0; /* all threads meet at barriers; those beyond have n = 0 */
    const int64_t width = row < a.norm.rows ? cols : 0;
    float x[VPT][AGOQK_VEC], total = 0.0f, mean = 0.0f;
    uint32_t bad = 0;
    const int passes = a.norm.layer ? 2 : 1;
    for (int pass = 0; pass < passes; pass++) {
        const bool of_squares = pass == passes - 1;
        total = 0.0f;
        for (int round = 0; round < a.rounds; round++) {
#pragma unroll
            for (int k = 0; k < VPT; k++) {
                const int64_t v = ((int64_t)round * per_round + k * a.warps + warp) * 32 + lane;
                const int n = agoqk_count_of(width, 8 * v, AGOQK_VEC);
                if (pass == 0 || a.rounds > 1) load_row<DTYPE, BITS>(a, r, v, n, pass == 0, x[k]);
            }
#pragma unroll
            for (int k = 0; k < VPT; k++) {
                const int64_t v = ((int64_t)round * per_round + k * a.warps + warp) * 32 + lane;
                const int n = agoqk_count_of(width, 8 * v, AGOQK_VEC);
                if (pass == 0 && !a.from_packed) bad += agoqk_put8<BITS>(a.packed, r, v, n, x[k], NULL);
                float d[AGOQK_VEC];
#pragma unroll
                for (int i = 0; i < AGOQK_VEC; i++)
                    d[i] = i >= n ? 0.0f : a.norm.layer && of_squares ? x[k][i] - mean : x[k][i];
                const float s = agoqk_fold32(of_squares ? agoqk_products8(d, d) : agoqk_sum8(d));
                if (lane == 0) (pass ? squares : sums)[k * a.warps + warp] = s;
            }
            __syncthreads();
            const int64_t left = (cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT - (int64_t)round * per_round;
            total =
                agoqk_add_segments(pass ? squares : sums, left < per_round ? (int)left : per_round, total);
            if (a.rounds > 1) __syncthreads();
        }
        if (a.norm.layer && pass == 0) mean = total * a.norm.per_col;
    }
    const float inv = agoqk_norm_inverse(total, a.norm.per_col, a.norm.eps);
    for (int round = 0; round < a.rounds; round++) {
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const int64_t v = ((int64_t)round * per_round + k * a.warps + warp) * 32 + lane;
            const int n = agoqk_count_of(width, 8 * v, AGOQK_VEC);
            if (n <= 0) continue;
            if (a.rounds > 1) load_row<DTYPE, BITS>(a, r, v, n, false, x[k]);
            agoqk_norm_apply<DTYPE>(a.norm, v, n, mean, inv, x[k]);
            agoqk_store8<DTYPE>(agoqk_at<DTYPE>(a.y, r, 8 * v), n, a.y.vec, x[k]);
        }
    }
    agoqk_count(a.nonfinite, bad);
}

static agoq_status launch(const agoq_exec *exec, agoqk_fwd_args *a, agoq_dtype dtype, int bits) {
    const int64_t segments = (a->norm.cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT;
    if (agoqk_norm_fwd_is_whole(a, dtype)) return agoqk_norm_fwd_whole(exec, a, bits);
    const int vpt = segments <= MOST_WARPS ? 1 : 4;
    const int64_t warps = (segments + vpt - 1) / vpt;
    a->warps = warps < MOST_WARPS ? (int)warps : MOST_WARPS;
    a->rounds = (int)((segments + a->warps * vpt - 1) / (a->warps * vpt));
    a->rows_per_block = a->warps < FEW_WARPS ? FEW_WARPS / a->warps : 1;
    const int64_t blocks = (a->norm.rows + a->rows_per_block - 1) / a->rows_per_block;
    if (blocks > 0x7FFFFFFF) return AGOQ_E_LIMIT;
    const size_t smem =
        (size_t)a->rows_per_block * 2 * (size_t)((a->warps * vpt + 3) / 4 * 4) * sizeof(float);
    const agoqk_shape shape = {dim3((unsigned)blocks), dim3((unsigned)(a->warps * a->rows_per_block * 32)),
                               smem};
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    AGOQK_DTYPE_SWITCH(dtype, DTYPE, AGOQK_BITS_SWITCH(bits, BITS, {
                           if (vpt == 1)
                               fwd_kernel<DTYPE, BITS, 1><<<shape.grid, shape.block, smem, stream>>>(*a);
                           else
                               fwd_kernel<DTYPE, BITS, 4><<<shape.grid, shape.block, smem, stream>>>(*a);
                       }))
    return agoqk_launched("norm_fwd", dtype, bits, &shape);
}

agoq_status agoqk_cuda_norm_fwd_pack(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                     const agoq_norm *norm, const agoq_view *sum, const agoq_view *y,
                                     const agoq_packed *packed) {
    agoqk_launch_begin("norm_fwd_pack");
    if (y->dtype != x->dtype || (residual && residual->dtype != x->dtype)) return AGOQ_E_UNSUPPORTED;
    if (x->rows == 0 || x->cols == 0) return AGOQ_OK;
    agoqk_fwd_args a = {};
    a.norm = agoqk_norm_args_of(norm, x->rows, x->cols);
    a.x = agoqk_mat_of(x);
    a.y = agoqk_mat_of(y);
    a.packed = agoqk_pmat_of(packed);
    a.add = residual != NULL;
    if (residual) {
        a.residual = agoqk_mat_of(residual);
        a.sum = agoqk_mat_of(sum);
    }
    a.nonfinite = exec->nonfinite;
    return launch(exec, &a, x->dtype, packed->layout.format);
}

agoq_status agoqk_cuda_norm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *y) {
    agoqk_launch_begin("norm_fwd_packed");
    if (y->rows == 0 || y->cols == 0) return AGOQ_OK;
    agoqk_fwd_args a = {};
    a.norm = agoqk_norm_args_of(norm, y->rows, y->cols);
    a.y = agoqk_mat_of(y);
    a.packed = agoqk_pmat_of(packed);
    a.from_packed = 1;
    return launch(exec, &a, y->dtype, packed->layout.format);
}
