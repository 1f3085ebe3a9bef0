/* Norms forward, the usual case: bf16 whose rows are whole segments, everything aligned. A block of threads
 * takes a row, a warp VPT segments that lie side by side, so that all a thread's addresses are one and
 * constants. A row is read once and kept in registers as it came, 16 bits or a code to an element: it is
 * converted again for every use, so that more rows are under way. (Blocks that stay and fetch the next row
 * meanwhile were tried: slower, the work of fetching is more than the waiting.) */
#include "kernels/cuda/norm_fwd.cuh"

enum { MOST_WARPS = 16 }; /* of a block */

/* More blocks of a multiprocessor hide what a row waits for; with fewer registers than these, some would lie
 * in memory. Toolkits before 12.4 cannot say it. */
#if __CUDACC_VER_MAJOR__ * 100 + __CUDACC_VER_MINOR__ >= 1204
#define FEW_REGISTERS(bits, from, layer)                                                                     \
    __maxnreg__((from) == FROM_SUM || (layer) || (bits) == AGOQ_FORMAT_CODE4 ? 48 : 40)
#else
#define FEW_REGISTERS(bits, from, layer)
#endif
enum { FROM_X, FROM_SUM, FROM_PACKED };
enum { WEIGHT_NONE, WEIGHT_BF16, WEIGHT_F32 };

/* Folds the sums of a warp's segments and stores them side by side. */
template <int VPT> static __device__ __forceinline__ void put_folds(float part[VPT], float *sums, int lane) {
    const float s = agoqk_fold_many<VPT>(part);
    if (lane % (32 / VPT) == 0) sums[lane / (32 / VPT)] = s;
}

/* A thread's vector of a row, as it came: pairs of bf16, or codes. CODE4 costs too much to decode twice. */
template <int BITS, int FROM> struct kept { uint32_t w[4]; };
template <int BITS> struct kept<BITS, FROM_PACKED> { agoqk_codes8<BITS> codes; };
template <> struct kept<AGOQ_FORMAT_CODE4, FROM_PACKED> { float x[AGOQK_VEC]; };

template <int BITS, int FROM>
static __device__ __forceinline__ void values_of(const kept<BITS, FROM> &v, float x[AGOQK_VEC]) {
    if constexpr (FROM != FROM_PACKED)
        agoqk_floats8(v.w, x);
    else if constexpr (BITS == AGOQ_FORMAT_CODE4)
        memcpy(x, v.x, sizeof v.x);
    else
        agoqk_decode8<BITS>(v.codes, AGOQK_VEC, x);
}

/* They are computed again, not kept. */
template <int BITS, int FROM> static __device__ __forceinline__ void forget_values(kept<BITS, FROM> &v) {
    if constexpr (FROM != FROM_PACKED) {
#pragma unroll
        for (int i = 0; i < 4; i++) agoqk_forget(v.w[i]);
    } else if constexpr (BITS != AGOQ_FORMAT_CODE4) {
        agoqk_forget(v.codes.lo[0]);
    }
}

/* A thread's vectors of row r, from `first` on, 32 apart. */
template <int BITS, int VPT, int FROM>
static __device__ __forceinline__ void load_row(const agoqk_fwd_args &a, int64_t r, int first,
                                                kept<BITS, FROM> v[VPT]) {
    if constexpr (FROM == FROM_PACKED) {
        const uint8_t *lo = a.packed.lo + r * a.packed.lo_row, *hi = a.packed.hi + r * a.packed.hi_row;
        const uint16_t *scale = a.packed.scale + r * a.packed.blocks_per_row;
        agoqk_codes8<BITS> codes[VPT];
#pragma unroll
        for (int k = 0; k < VPT; k++) codes[k] = agoqk_codes_at<BITS>(lo, hi, scale, first + 32 * k);
#pragma unroll
        for (int k = 0; k < VPT; k++)
            if constexpr (BITS == AGOQ_FORMAT_CODE4)
                agoqk_decode8<BITS>(codes[k], AGOQK_VEC, v[k].x);
            else
                v[k].codes = codes[k];
    } else {
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
            uint32_t *const w = v[k].w;
            w[0] = raw[k].x, w[1] = raw[k].y, w[2] = raw[k].z, w[3] = raw[k].w;
            if (FROM != FROM_SUM) continue;
            const uint4 q = raw2[FROM == FROM_SUM ? k : 0];
            const uint32_t u[4] = {q.x, q.y, q.z, q.w};
            float x[AGOQK_VEC], y[AGOQK_VEC];
            agoqk_floats8(w, x);
            agoqk_floats8(u, y);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[i] += y[i];
            agoqk_pairs8(x, w);
            __stcs(sum + 32 * k, make_uint4(w[0], w[1], w[2], w[3]));
        }
    }
}

/* y = d * inv (rounded, if that comes first) * weight + bias. */
template <int BITS, int VPT, int FROM, int WEIGHT, bool LAYER>
static __device__ __forceinline__ void put_row(const agoqk_fwd_args &a, int64_t r, int first,
                                               float minus_mean, float inv, kept<BITS, FROM> v[VPT]) {
    uint4 *y = (uint4 *)agoqk_at<AGOQ_DTYPE_BF16>(a.y, r, 0) + first;
    constexpr int dtype = WEIGHT == WEIGHT_F32 ? AGOQ_DTYPE_F32 : AGOQ_DTYPE_BF16;
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        float x[AGOQK_VEC], p[AGOQK_VEC];
        forget_values(v[k]);
        values_of(v[k], x);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = (LAYER ? x[i] + minus_mean : x[i]) * inv;
        if (a.norm.round_first) agoqk_round8(x);
        if (WEIGHT != WEIGHT_NONE) {
            agoqk_load_weight(a.norm.weight, dtype, 1, 8 * (first + 32 * k), AGOQK_VEC, p);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[i] *= p[i];
        }
        if (LAYER && a.norm.bias) {
            agoqk_load_weight(a.norm.bias, dtype, 1, 8 * (first + 32 * k), AGOQK_VEC, p);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) x[i] += p[i];
        }
        agoqk_store8_bf16(y + 32 * k, x);
    }
}

template <int BITS, int VPT, int FROM, bool LAYER>
static __global__ void FEW_REGISTERS(BITS, FROM, LAYER)
    fwd_whole_kernel(const __grid_constant__ agoqk_fwd_args a) {
    __shared__ float sums[LAYER ? 2 : 1][MOST_WARPS * VPT];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, segments = blockDim.x / 32 * VPT;
    const int first = warp * (32 * VPT) + lane;
    const int64_t r = blockIdx.x;
    float part[VPT], minus_mean = 0.0f;
    kept<BITS, FROM> v[VPT];
    uint32_t bad = 0;
    load_row<BITS, VPT, FROM>(a, r, first, v);
    if (LAYER) {
#pragma unroll
        for (int k = 0; k < VPT; k++) {
            float x[AGOQK_VEC];
            values_of(v[k], x);
            part[k] = agoqk_sum8(x);
        }
        put_folds<VPT>(part, sums[LAYER ? 1 : 0] + warp * VPT, lane);
        __syncthreads();
        minus_mean = -(agoqk_add_segments(sums[LAYER ? 1 : 0], segments, 0.0f) * a.norm.per_col);
    }
    uint8_t *lo = a.packed.lo + r * a.packed.lo_row, *hi = a.packed.hi + r * a.packed.hi_row;
    uint16_t *scale = a.packed.scale + r * a.packed.blocks_per_row;
#pragma unroll
    for (int k = 0; k < VPT; k++) {
        float x[AGOQK_VEC];
        if (LAYER) forget_values(v[k]);
        values_of(v[k], x);
        if constexpr (FROM != FROM_PACKED)
            bad += agoqk_put8_bf16<BITS>(lo, hi, scale, first + 32 * k, true, v[k].w, x);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (LAYER) x[i] += minus_mean;
        part[k] = agoqk_products8(x, x);
    }
    put_folds<VPT>(part, sums[0] + warp * VPT, lane);
    __syncthreads();
    const float inv =
        agoqk_norm_inverse(agoqk_add_segments(sums[0], segments, 0.0f), a.norm.per_col, a.norm.eps);
    if (!a.norm.weight && !a.norm.bias)
        put_row<BITS, VPT, FROM, WEIGHT_NONE, LAYER>(a, r, first, minus_mean, inv, v);
    else if (a.norm.weight_dtype == AGOQ_DTYPE_BF16)
        put_row<BITS, VPT, FROM, WEIGHT_BF16, LAYER>(a, r, first, minus_mean, inv, v);
    else
        put_row<BITS, VPT, FROM, WEIGHT_F32, LAYER>(a, r, first, minus_mean, inv, v);
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
