/* Norms forward, the usual case: bf16 whose rows are whole segments, everything aligned. A block of threads
 * takes a row, a warp VPT segments that lie side by side, so that all a thread's addresses are one and
 * constants. A row is held in registers as floats from its only reading to its only writing. (Blocks that
 * stay and fetch the next row meanwhile were tried: slower, the work of fetching is more than the waiting.)
 */
#include "kernels/cuda/norm_fwd.cuh"

enum { MOST_WARPS = 16 }; /* of a block */

/* Ten blocks of a multiprocessor instead of eight hide what a row waits for: a tenth faster (with 56 or 40
 * registers less is won). Toolkits before 12.4 cannot say it. */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define FEW_REGISTERS __maxnreg__(48)
#else
#define FEW_REGISTERS
#endif
enum { FROM_X, FROM_SUM, FROM_PACKED };
enum { WEIGHT_NONE, WEIGHT_BF16, WEIGHT_F32 };

/* Folds the sums of a warp's segments and stores them side by side. */
template <int VPT>
static __device__ __forceinline__ void put_folds(const float part[VPT], float *sums, int lane) {
    if (VPT == 4) {
        const float s = agoqk_fold32x4(part[0], part[1 % VPT], part[2 % VPT], part[3 % VPT]);
        if (lane % 8 == 0) sums[lane / 8] = s;
    } else {
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            const float s = agoqk_fold32(part[k]);
            if (lane == 0) sums[k] = s;
        }
    }
}

/* A thread's vectors of row r, from `first` on, 32 apart: as floats, and as pairs if they are to be packed.
 */
template <int BITS, int VPT, int FROM>
static __device__ __forceinline__ void load_row(const agoqk_fwd_args &a, int64_t r, int first,
                                                float x[VPT][AGOQK_VEC], uint32_t w[VPT][4]) {
    if (FROM == FROM_PACKED) {
        const uint8_t *lo = a.packed.lo + r * a.packed.lo_row, *hi = a.packed.hi + r * a.packed.hi_row;
        const uint16_t *scale = a.packed.scale + r * a.packed.blocks_per_row;
        agoqk_codes8<BITS> c[VPT];
#pragma unroll
        for (int k = 0; k < VPT; k++) c[k] = agoqk_codes_at<BITS>(lo, hi, scale, first + 32 * k);
#pragma unroll
        for (int k = 0; k < VPT; k++) agoqk_decode8<BITS>(c[k], AGOQK_VEC, x[k]);
        return;
    }
    const uint4 *row = (const uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.x, r, 0) + first;
    const uint4 *other = (const uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.residual, r, 0) + first;
    uint4 *sum = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.sum, r, 0) + first;
    uint4 raw[VPT], raw2[FROM == FROM_SUM ? VPT : 1];
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        raw[k] = __ldcs(row + 32 * k);
        if (FROM == FROM_SUM) raw2[FROM == FROM_SUM ? k : 0] = __ldcs(other + 32 * k);
    }
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        w[k][0] = raw[k].x, w[k][1] = raw[k].y, w[k][2] = raw[k].z, w[k][3] = raw[k].w;
        agoqk_floats8(w[k], x[k]);
        if (FROM != FROM_SUM) continue;
        const uint4 q = raw2[FROM == FROM_SUM ? k : 0];
        const uint32_t u[4] = {q.x, q.y, q.z, q.w};
        float y[AGOQK_VEC];
        agoqk_floats8(u, y);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[k][i] += y[i];
        agoqk_pairs8(x[k], w[k]);
        agoqk_floats8(w[k], x[k]);
        __stcs(sum + 32 * k, make_uint4(w[k][0], w[k][1], w[k][2], w[k][3]));
    }
}

/* y = x * inv (rounded, if that comes first) * weight + bias. */
template <int VPT, int WEIGHT, bool LAYER>
static __device__ __forceinline__ void put_row(const agoqk_fwd_args &a, int64_t r, int first, float inv,
                                               float x[VPT][AGOQK_VEC]) {
    uint4 *y = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.y, r, 0) + first;
    constexpr int dtype = WEIGHT == WEIGHT_F32 ? AGOQ_DTYPE_F32 : AGOQ_DTYPE_BF16;
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        float p[AGOQK_VEC];
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[k][i] *= inv;
        if (a.norm.round_first) agoqk_round8(x[k]);
        if (WEIGHT != WEIGHT_NONE) {
            agoqk_load_weight(a.norm.weight, dtype, 1, 8 * (first + 32 * k), AGOQK_VEC, p);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[k][i] *= p[i];
        }
        if (LAYER && a.norm.bias) {
            agoqk_load_weight(a.norm.bias, dtype, 1, 8 * (first + 32 * k), AGOQK_VEC, p);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[k][i] += p[i];
        }
        agoqk_store8_bf16(y + 32 * k, x[k]);
    }
}

template <int BITS, int VPT, int FROM, bool LAYER>
static __global__ void FEW_REGISTERS fwd_whole_kernel(const __grid_constant__ agoqk_fwd_args a) {
    __shared__ __align__(16) float sums[LAYER ? 2 : 1][MOST_WARPS * VPT];
    __shared__ float shared_inv;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, segments = blockDim.x / 32 * VPT;
    const int first = warp * (32 * VPT) + lane;
    const int64_t r = blockIdx.x;
    const float count = (float)a.norm.cols;
    float x[VPT][AGOQK_VEC], part[VPT], minus_mean = 0.0f;
    uint32_t w[VPT][4], bad = 0;
    load_row<BITS, VPT, FROM>(a, r, first, x, w);
    if (LAYER) {
#pragma unroll
        for (int k = 0; k < VPT; k++) part[k] = agoqk_sum8(x[k]);
        put_folds<VPT>(part, sums[LAYER ? 1 : 0] + warp * VPT, lane);
        __syncthreads();
        minus_mean = -(agoqk_add_segments(sums[LAYER ? 1 : 0], segments, 0.0f) / count);
    }
    uint8_t *lo = a.packed.lo + r * a.packed.lo_row, *hi = a.packed.hi + r * a.packed.hi_row;
    uint16_t *scale = a.packed.scale + r * a.packed.blocks_per_row;
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        if (FROM != FROM_PACKED)
            bad += agoqk_put8_bf16<BITS>(lo, hi, scale, first + 32 * k, true, w[k], x[k]);
        float e[AGOQK_VEC];
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            if (LAYER) x[k][i] += minus_mean;
            e[i] = x[k][i] * x[k][i];
        }
        part[k] = agoqk_sum8(e);
    }
    put_folds<VPT>(part, sums[0] + warp * VPT, lane);
    __syncthreads();
    if (warp == 0) {
        const float total = agoqk_add_segments(sums[0], segments, 0.0f);
        if (lane == 0) shared_inv = 1.0f / sqrtf(total / count + a.norm.eps);
    }
    __syncthreads();
    if (!a.norm.weight && !a.norm.bias)
        put_row<VPT, WEIGHT_NONE, false>(a, r, first, shared_inv, x);
    else if (a.norm.weight_dtype == AGOQ_DTYPE_BF16)
        put_row<VPT, WEIGHT_BF16, LAYER>(a, r, first, shared_inv, x);
    else
        put_row<VPT, WEIGHT_F32, LAYER>(a, r, first, shared_inv, x);
    agoqk_count(a.nonfinite, bad);
}

int agoqk_norm_fwd_is_whole(const agoqk_fwd_args *a, agoq_dtype dtype) {
    const agoqk_norm_args *n = &a->norm;
    const int vpt = n->cols % (4 * AGOQK_SEGMENT) == 0 ? 4 : 2;
    const int aligned = a->y.vec && (a->from_packed || a->x.vec) &&
                        (!a->add || (a->residual.vec && a->sum.vec)) && (!n->weight || n->weight_vec) &&
                        (!n->bias || n->bias_vec);
    return dtype == AGOQ_DTYPE_BF16 && aligned &&
           (n->weight ? n->weight_dtype != AGOQ_DTYPE_F16 && (n->layer || !n->bias) : !n->bias) &&
           n->rows <= 0x7FFFFFFF && n->cols % (2 * AGOQK_SEGMENT) == 0 &&
           n->cols <= MOST_WARPS * vpt * AGOQK_SEGMENT;
}

template <int BITS, int VPT, int FROM, bool LAYER>
static agoq_status launch(const agoq_exec *exec, const agoqk_fwd_args *a) {
    const agoqk_shape shape = {dim3((unsigned)a->norm.rows),
                               dim3((unsigned)(a->norm.cols / (VPT * AGOQK_VEC))), 0};
    fwd_whole_kernel<BITS, VPT, FROM, LAYER><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(*a);
    return agoqk_launched("norm_fwd_whole", AGOQ_DTYPE_BF16, BITS, &shape);
}

template <int BITS, int VPT, bool LAYER>
static agoq_status launch_from(const agoq_exec *exec, const agoqk_fwd_args *a) {
    if (a->from_packed) return launch<BITS, VPT, FROM_PACKED, LAYER>(exec, a);
    return a->add ? launch<BITS, VPT, FROM_SUM, LAYER>(exec, a) : launch<BITS, VPT, FROM_X, LAYER>(exec, a);
}

template <int BITS, int VPT> static agoq_status launch_kind(const agoq_exec *exec, const agoqk_fwd_args *a) {
    return a->norm.layer ? launch_from<BITS, VPT, true>(exec, a) : launch_from<BITS, VPT, false>(exec, a);
}

agoq_status agoqk_norm_fwd_whole(const agoq_exec *exec, const agoqk_fwd_args *a, int bits) {
    const int wide = a->norm.cols % (4 * AGOQK_SEGMENT) == 0;
    AGOQK_BITS_SWITCH(bits, BITS, return wide ? launch_kind<BITS, 4>(exec, a) : launch_kind<BITS, 2>(exec, a))
    return AGOQ_E_UNSUPPORTED;
}
