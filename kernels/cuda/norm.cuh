/* What the norm kernels share: how a row is cut, and its sums. A warp takes segments of 256 elements, a lane
 * groups of 8 consecutive ones, so that the order of summation that docs/FORMATS.md fixes needs five shuffles
 * a segment; the segments' sums meet in shared memory, where every warp folds them. A row is `warps` x VPT
 * segments wide per round; one round keeps it in registers. */
#ifndef KERNELS_CUDA_NORM_CUH
#define KERNELS_CUDA_NORM_CUH

#include "kernels/cuda/whole.cuh"
#include "kernels/format/norm.h"

enum { AGOQK_SEGMENT = 256 };

struct agoqk_norm_args {
    const char *weight, *bias; /* NULL: none */
    int weight_dtype, weight_vec, bias_vec, layer, round_bf16, round_first;
    float eps, per_col; /* per_col: 1 / cols */
    int64_t rows, cols;
};

static inline agoqk_norm_args agoqk_norm_args_of(const agoq_norm *norm, int64_t rows, int64_t cols) {
    agoqk_norm_args a = {(const char *)norm->weight,
                         (const char *)norm->bias,
                         norm->weight_dtype,
                         0,
                         0,
                         norm->kind == AGOQ_NORM_LAYER,
                         norm->round_bf16 != 0,
                         norm->round_first != 0,
                         norm->eps,
                         1.0f / (float)cols,
                         rows,
                         cols};
    a.weight_vec = (uintptr_t)norm->weight % 16 == 0;
    a.bias_vec = (uintptr_t)norm->bias % 16 == 0;
    return a;
}

/* Elements [c, c + n) of a weight. Cached: every row reads them. */
__device__ __forceinline__ void agoqk_load_weight(const char *w, int dtype, int vec, int64_t c, int n,
                                                  float out[AGOQK_VEC]) {
    if (vec && n == AGOQK_VEC) {
        if (dtype == AGOQ_DTYPE_F32) {
            const float4 a = __ldg((const float4 *)w + c / 4), b = __ldg((const float4 *)w + c / 4 + 1);
            out[0] = a.x, out[1] = a.y, out[2] = a.z, out[3] = a.w;
            out[4] = b.x, out[5] = b.y, out[6] = b.z, out[7] = b.w;
        } else {
            const uint4 a = __ldg((const uint4 *)w + c / 8);
            agoqk_unpack_half2(a.x, dtype, out[0], out[1]);
            agoqk_unpack_half2(a.y, dtype, out[2], out[3]);
            agoqk_unpack_half2(a.z, dtype, out[4], out[5]);
            agoqk_unpack_half2(a.w, dtype, out[6], out[7]);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        if (i >= n)
            out[i] = 0.0f;
        else if (dtype == AGOQ_DTYPE_F32)
            out[i] = ((const float *)w)[c + i];
        else if (dtype == AGOQ_DTYPE_BF16)
            out[i] = agoqk_bf16_decode(((const uint16_t *)w)[c + i]);
        else
            out[i] = agoqk_f16_decode(((const uint16_t *)w)[c + i]);
    }
}

/* x rounded to DTYPE. */
template <int DTYPE> __device__ __forceinline__ void agoqk_round_to(float x[AGOQK_VEC]) {
    if (DTYPE == AGOQ_DTYPE_BF16) agoqk_round8(x);
    if (DTYPE == AGOQ_DTYPE_F16) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = agoqk_f16_decode(agoqk_f16_encode(x[i]));
    }
}

__device__ __forceinline__ float agoqk_sum8(const float e[AGOQK_VEC]) {
    return ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));
}

/* The fold over the 32 groups of a segment; every lane gets it (a + b and b + a are the same bits). */
__device__ __forceinline__ float agoqk_fold32(float g) {
#pragma unroll
    for (int h = 16; h > 0; h /= 2) g += __shfl_xor_sync(0xFFFFFFFFu, g, h);
    return g;
}

/* N (2, 4 or 8) folds at once, each by the same additions: an exchange halves what a lane works on. Lane l
 * ends with the fold of value l / (32 / N). */
template <int N> __device__ __forceinline__ float agoqk_fold_many(float g[N]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = N / 2, h = 16; n > 0; n /= 2, h /= 2) {
        const bool upper = lane & h;
#pragma unroll
        for (int i = 0; i < n; i++) {
            const float other = __shfl_xor_sync(0xFFFFFFFFu, upper ? g[i] : g[i + n], h);
            g[i] = (upper ? g[i + n] : g[i]) + other;
        }
    }
#pragma unroll
    for (int h = 16 / N; h > 0; h /= 2) g[0] += __shfl_xor_sync(0xFFFFFFFFu, g[0], h);
    return g[0];
}

/* Adds n segments' sums, folded 32 at a time, to total; all lanes of a warp take part. */
__device__ __forceinline__ float agoqk_add_segments(const float *sums, int n, float total) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int i = 0; i < n; i += 32) total += agoqk_fold32(i + lane < n ? sums[i + lane] : 0.0f);
    return total;
}

/* h = xhat (rounded first), times weight, plus bias, rounded: what y is before it is stored. */
template <int DTYPE>
__device__ __forceinline__ void agoqk_norm_apply(const agoqk_norm_args &a, int64_t v, int n, float mean,
                                                 float inv, float x[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) x[i] = (a.layer ? x[i] - mean : x[i]) * inv;
    if (a.round_first) {
        if (a.round_bf16)
            agoqk_round8(x);
        else
            agoqk_round_to<DTYPE>(x);
    }
    float w[AGOQK_VEC];
    if (a.weight) {
        agoqk_load_weight(a.weight, a.weight_dtype, a.weight_vec, 8 * v, n, w);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = x[i] * w[i];
    }
    if (a.bias) {
        agoqk_load_weight(a.bias, a.weight_dtype, a.bias_vec, 8 * v, n, w);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = x[i] + w[i];
    }
    if (a.round_bf16 && DTYPE != AGOQ_DTYPE_BF16) agoqk_round8(x);
}

#endif
