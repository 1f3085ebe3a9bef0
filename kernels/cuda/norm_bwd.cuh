/* What the two backward passes of norms share: arguments, a vector's products, and its dx. Chunks of 32 rows
 * are the unit of the sums of weight and bias (docs/FORMATS.md). */
#ifndef KERNELS_CUDA_NORM_BWD_CUH
#define KERNELS_CUDA_NORM_BWD_CUH

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"

enum { AGOQK_CHUNK = 32 };

static inline int64_t agoqk_chunks(int64_t rows) {
    return (rows + AGOQK_CHUNK - 1) / AGOQK_CHUNK;
}

struct agoqk_bwd_args {
    agoqk_norm_args norm;
    agoqk_pmat packed;
    agoqk_mat dy, dx;
    int warps;
    float *dweight, *dbias; /* chunk sums, [n_chunks][cols] each; NULL: not wanted */
};

/* g = dy * w, d = x - mean; what is left of a row is zero. */
template <int DTYPE>
__device__ __forceinline__ void agoqk_bwd_products(const agoqk_norm_args &a, const float x[AGOQK_VEC],
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

struct agoqk_row_sums {
    float mean, inv, m1, m2;
};

/* One row's dx from its sums; adds to the partial sums of weight and bias. */
template <int DTYPE>
__device__ __forceinline__ void agoqk_bwd_finish(const agoqk_bwd_args &a, const agoqk_row_sums &s,
                                                 const float x[AGOQK_VEC], const float dy[AGOQK_VEC],
                                                 int64_t r, int64_t v, int n, float part[AGOQK_VEC]) {
    float g[AGOQK_VEC], d[AGOQK_VEC];
    agoqk_bwd_products<DTYPE>(a.norm, x, dy, v, n, s.mean, g, d);
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

/* The chunk's sums: odd is added to even through shared memory, vector by vector, and stored. */
template <int SEGMENTS>
static __device__ __forceinline__ void agoqk_store_chunk(const agoqk_bwd_args &a,
                                                         const float part[SEGMENTS][AGOQK_VEC], int group,
                                                         int warp, int lane, float *out, float *exchange) {
    float *mine = exchange + (warp * 32 + lane) * AGOQK_VEC;
#pragma unroll
    for (int k = 0; k < SEGMENTS; k++) {
        const int64_t v = (int64_t)(k * a.warps + warp) * 32 + lane;
        const int n = agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (group == 1) mine[i] = part[k][i];
        __syncthreads();
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (group == 0 && i < n)
                out[(int64_t)blockIdx.x * a.norm.cols + 8 * v + i] = part[k][i] + mine[i];
    }
}

/* The usual case (norm_bwd_whole.cu), and whether a call is one. */
int agoqk_norm_bwd_is_whole(const agoqk_bwd_args *a, agoq_dtype dtype);
agoq_status agoqk_norm_bwd_whole(const agoq_exec *exec, agoqk_bwd_args *a, int bits);

/* Rows of any width (norm_bwd_wide.cu): statistics, chunk sums where they are wanted, dx. */
agoq_status agoqk_norm_bwd_wide(const agoq_exec *exec, const agoqk_bwd_args *a, agoq_dtype dtype, int bits);

#endif
