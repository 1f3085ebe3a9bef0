/* Norms forward, fused with pack (from x, and an optional residual) or with unpack (the recomputation for a
 * weight gradient). A row belongs to `warps` warps; short rows share a block of threads. Bytes per element
 * (bf16): 4 and a packed element, or 8 with a residual; 2 and a packed element. Bound: memory. The order of
 * every sum is fixed (norm.cuh), so no result depends on the launch shape. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"
#include "kernels/cuda/ops.h"

enum { MOST_WARPS = 32, FEW_WARPS = 8 };

struct fwd_args {
    agoqk_norm_args norm;
    agoqk_mat x, residual, sum, y;
    agoqk_pmat packed;
    int add, from_packed, warps, rows_per_block, rounds;
    uint32_t *nonfinite;
};

/* The elements of vector v of row r, as they are normalised: unpacked, or x, or x + residual, which is
 * stored. */
template <int DTYPE, int BITS>
static __device__ __forceinline__ void load_row(const fwd_args &a, int64_t r, int64_t v, int n, bool first,
                                                float x[AGOQK_VEC]) {
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
static __global__ void __launch_bounds__(MOST_WARPS * 32) fwd_kernel(const __grid_constant__ fwd_args a) {
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
                float e[AGOQK_VEC];
#pragma unroll
                for (int i = 0; i < AGOQK_VEC; i++) {
                    const float d = a.norm.layer && of_squares ? x[k][i] - mean : x[k][i];
                    e[i] = i < n ? of_squares ? d * d : d : 0.0f;
                }
                const float s = agoqk_fold32(agoqk_sum8(e));
                if (lane == 0) (pass ? squares : sums)[k * a.warps + warp] = s;
            }
            __syncthreads();
            const int64_t left = (cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT - (int64_t)round * per_round;
            total =
                agoqk_add_segments(pass ? squares : sums, left < per_round ? (int)left : per_round, total);
            if (a.rounds > 1) __syncthreads();
        }
        if (a.norm.layer && pass == 0) mean = total / (float)cols;
    }
    const float inv = 1.0f / sqrtf(total / (float)cols + a.norm.eps);
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

/* The usual case without the rest: bf16 whose rows are whole segments, VPT to a warp, everything aligned and
 * bf16 values throughout. One row a block; indices inside a row fit 32 bits. */
enum { FROM_X, FROM_SUM, FROM_PACKED };

/* Folds the sums of a warp's segments and stores each where its segment is: warp, warp + warps, .. */
template <int VPT>
static __device__ __forceinline__ void put_folds(const float part[VPT], float *sums, int warps, int warp,
                                                 int lane) {
    if (VPT == 4) {
        const float s = agoqk_fold32x4(part[0], part[1 % VPT], part[2 % VPT], part[3 % VPT]);
        if (lane % 8 == 0) sums[lane / 8 * warps + warp] = s;
    } else {
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const float s = agoqk_fold32(part[k]);
            if (lane == 0) sums[k * warps + warp] = s;
        }
    }
}

/* A thread's part of row r: floats, and pairs if it is to be packed. */
template <int BITS, int VPT, int FROM>
static __device__ __forceinline__ void load_whole(const fwd_args &a, int64_t r, int warps, int warp, int lane,
                                                  float x[VPT][AGOQK_VEC], uint32_t w[VPT][4]) {
    if (FROM == FROM_PACKED) {
        const uint8_t *lo = a.packed.lo + r * a.packed.lo_row, *hi = a.packed.hi + r * a.packed.hi_row;
        const uint16_t *scale = a.packed.scale + r * a.packed.blocks_per_row;
        agoqk_codes8<BITS> c[VPT];
#pragma unroll
        for (int k = 0; k < VPT; k++)
            c[k] = agoqk_codes_at<BITS>(lo, hi, scale, (k * warps + warp) * 32 + lane);
#pragma unroll
        for (int k = 0; k < VPT; k++) agoqk_raw_decode8<BITS>(c[k], x[k]);
    } else {
        const uint4 *row = (const uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.x, r, 0);
        const uint4 *other = (const uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.residual, r, 0);
        uint4 raw[VPT], raw2[FROM == FROM_SUM ? VPT : 1];
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            raw[k] = __ldcs(row + (k * warps + warp) * 32 + lane);
            if (FROM == FROM_SUM)
                raw2[FROM == FROM_SUM ? k : 0] = __ldcs(other + (k * warps + warp) * 32 + lane);
        }
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            w[k][0] = raw[k].x, w[k][1] = raw[k].y, w[k][2] = raw[k].z, w[k][3] = raw[k].w;
            agoqk_floats8(w[k], x[k]);
            if (FROM == FROM_SUM) {
                const uint4 q = raw2[FROM == FROM_SUM ? k : 0];
                const uint32_t u[4] = {q.x, q.y, q.z, q.w};
                float y[AGOQK_VEC];
                agoqk_floats8(u, y);
#pragma unroll
                for (int i = 0; i < AGOQK_VEC; i++) x[k][i] += y[i];
                agoqk_pairs8(x[k], w[k]);
                agoqk_floats8(w[k], x[k]);
                __stcs((uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.sum, r, 0) + (k * warps + warp) * 32 + lane,
                       make_uint4(w[k][0], w[k][1], w[k][2], w[k][3]));
            }
        }
    }
}

template <int BITS, int VPT, int FROM>
static __global__ void __launch_bounds__(512) fwd_whole_kernel(const __grid_constant__ fwd_args a) {
    __shared__ __align__(16) float sums[2][16 * VPT];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32,
              segments = warps * VPT;
    const int64_t r = blockIdx.x;
    uint8_t *lo = a.packed.lo + r * a.packed.lo_row, *hi = a.packed.hi + r * a.packed.hi_row;
    uint16_t *scale = a.packed.scale + r * a.packed.blocks_per_row;
    float x[VPT][AGOQK_VEC];
    uint32_t w[VPT][4], bad = 0;
    load_whole<BITS, VPT, FROM>(a, r, warps, warp, lane, x, w);
    float minus_mean = 0.0f;
    if (a.norm.layer) {
        float part[VPT];
#pragma unroll
        for (int k = 0; k < VPT; k++) part[k] = agoqk_sum8(x[k]);
        put_folds<VPT>(part, sums[0], warps, warp, lane);
        __syncthreads();
        minus_mean = -(agoqk_add_segments(sums[0], segments, 0.0f) / (float)a.norm.cols);
    }
    float part[VPT];
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        if (FROM != FROM_PACKED)
            bad += agoqk_put8_bf16<BITS>(lo, hi, scale, (k * warps + warp) * 32 + lane, true, w[k], x[k]);
        float e[AGOQK_VEC];
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) { /* + 0 turns a decoded -0 into +0; elsewhere -0 stays */
            if (FROM == FROM_PACKED || a.norm.layer) x[k][i] += minus_mean;
            e[i] = x[k][i] * x[k][i];
        }
        part[k] = agoqk_sum8(e);
    }
    put_folds<VPT>(part, sums[1], warps, warp, lane);
    __syncthreads();
    __shared__ float shared_inv;
    if (warp == 0) {
        const float total = agoqk_add_segments(sums[1], segments, 0.0f);
        if (lane == 0) shared_inv = 1.0f / sqrtf(total / (float)a.norm.cols + a.norm.eps);
    }
    __syncthreads();
    const float inv = shared_inv;
    uint4 *y = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.y, r, 0);
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        const int v = (k * warps + warp) * 32 + lane;
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[k][i] *= inv;
        if (a.norm.round_first) agoqk_round8(x[k]);
        float p[AGOQK_VEC];
        if (a.norm.weight) {
            agoqk_load_weight(a.norm.weight, a.norm.weight_dtype, 1, 8 * v, AGOQK_VEC, p);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[k][i] *= p[i];
        }
        if (a.norm.bias) {
            agoqk_load_weight(a.norm.bias, a.norm.weight_dtype, 1, 8 * v, AGOQK_VEC, p);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[k][i] += p[i];
        }
        agoqk_store8_bf16(y + v, x[k]);
    }
    agoqk_count(a.nonfinite, bad);
}

/* Whether the kernel above takes it. */
static int is_whole(const fwd_args *a, agoq_dtype dtype) {
    const agoqk_norm_args *n = &a->norm;
    const int vpt = n->cols % (4 * AGOQK_SEGMENT) == 0 ? 4 : 2;
    const int aligned = a->y.vec && (a->from_packed || a->x.vec) &&
                        (!a->add || (a->residual.vec && a->sum.vec)) && (!n->weight || n->weight_vec) &&
                        (!n->bias || n->bias_vec);
    return dtype == AGOQ_DTYPE_BF16 && aligned && n->cols % (2 * AGOQK_SEGMENT) == 0 &&
           n->cols <= 16 * vpt * AGOQK_SEGMENT && n->rows <= 0x7FFFFFFF;
}

template <int BITS, int VPT>
static void launch_whole(const fwd_args &a, const agoqk_shape &shape, cudaStream_t stream) {
    if (a.from_packed)
        fwd_whole_kernel<BITS, VPT, FROM_PACKED><<<shape.grid, shape.block, 0, stream>>>(a);
    else if (a.add)
        fwd_whole_kernel<BITS, VPT, FROM_SUM><<<shape.grid, shape.block, 0, stream>>>(a);
    else
        fwd_whole_kernel<BITS, VPT, FROM_X><<<shape.grid, shape.block, 0, stream>>>(a);
}

static agoq_status launch(const agoq_exec *exec, fwd_args *a, agoq_dtype dtype, int bits) {
    const int64_t segments = (a->norm.cols + AGOQK_SEGMENT - 1) / AGOQK_SEGMENT;
    if (is_whole(a, dtype)) {
        const int wide = segments % 4 == 0;
        const agoqk_shape whole = {dim3((unsigned)a->norm.rows),
                                   dim3((unsigned)(segments / (wide ? 4 : 2) * 32)), 0};
        AGOQK_BITS_SWITCH(bits, BITS, {
            if (wide)
                launch_whole<BITS, 4>(*a, whole, (cudaStream_t)exec->stream);
            else
                launch_whole<BITS, 2>(*a, whole, (cudaStream_t)exec->stream);
        })
        return agoqk_launched("norm_fwd_whole", dtype, bits, &whole);
    }
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
    fwd_args a = {};
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
    return launch(exec, &a, x->dtype, packed->layout.bits);
}

agoq_status agoqk_cuda_norm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *y) {
    agoqk_launch_begin("norm_fwd_packed");
    if (y->rows == 0 || y->cols == 0) return AGOQ_OK;
    fwd_args a = {};
    a.norm = agoqk_norm_args_of(norm, y->rows, y->cols);
    a.y = agoqk_mat_of(y);
    a.packed = agoqk_pmat_of(packed);
    a.from_packed = 1;
    return launch(exec, &a, y->dtype, packed->layout.bits);
}
