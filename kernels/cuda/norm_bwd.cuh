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

/* The weights of vector v; ones if there are none. */
__device__ __forceinline__ void agoqk_bwd_weights(const agoqk_norm_args &a, int64_t v, int n,
                                                  float w[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) w[i] = 1.0f;
    if (a.weight) agoqk_load_weight(a.weight, a.weight_dtype, a.weight_vec, 8 * v, n, w);
}

/* d = x - mean, zero beyond n. */
__device__ __forceinline__ void agoqk_bwd_deviations(const agoqk_norm_args &a, const float x[AGOQK_VEC],
                                                     int n, float mean, float d[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) d[i] = i >= n ? 0.0f : a.layer ? x[i] - mean : x[i];
}

struct agoqk_row_sums {
    float mean, inv, shift, slope; /* the last two: agoqk_norm_dx */
};

/* The statistics from the row sums of squares, of g * d and of g. */
__device__ __forceinline__ void agoqk_bwd_stats(const agoqk_norm_args &a, float squares, float dots,
                                                float grads, agoqk_row_sums *s) {
    s->inv = agoqk_norm_inverse(squares, a.per_col, a.eps);
    s->slope = agoqk_norm_slope(dots, a.per_col, s->inv);
    s->shift = a.layer ? grads * a.per_col * s->inv : 0.0f;
}

/* One row's dx from its sums; adds to the partial sums of weight and bias. */
template <int DTYPE>
__device__ __forceinline__ void agoqk_bwd_finish(const agoqk_bwd_args &a, const agoqk_row_sums &s,
                                                 const float x[AGOQK_VEC], const float dy[AGOQK_VEC],
                                                 int64_t r, int64_t v, int n, float part[AGOQK_VEC]) {
    float w[AGOQK_VEC], d[AGOQK_VEC], dx[AGOQK_VEC];
    agoqk_bwd_weights(a.norm, v, n, w);
    agoqk_bwd_deviations(a.norm, x, n, s.mean, d);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const float h = dy[i] * s.inv;
        part[i] = fmaf(h, d[i], part[i]);
        dx[i] = agoqk_norm_dx(h, w[i], d[i], s.shift, s.slope);
    }
    if (a.norm.round_bf16 && DTYPE != AGOQ_DTYPE_BF16) agoqk_round8(dx);
    if (n > 0 && a.dx.data) agoqk_store8<DTYPE>(agoqk_at<DTYPE>(a.dx, r, 8 * v), n, a.dx.vec, dx);
}

/* The chunk's sums: odd is added to even through shared memory, vector by vector, and stored. `first`: the
 * thread's first vector; the others follow at distances of `step`. at: the thread's place in its group. */
template <int SEGMENTS>
static __device__ __forceinline__ void
agoqk_store_chunk(const agoqk_bwd_args &a, const float part[SEGMENTS][AGOQK_VEC], int group, int at,
                  int first, int step, float *out, float *exchange) {
    const int threads = a.warps * 32;
    const bool vec = (uintptr_t)out % 16 == 0 && a.norm.cols % 4 == 0;
#pragma unroll
    for (int k = 0; k < SEGMENTS; k++) {
        const int64_t v = first + k * step;
        const int n = agoqk_count_of(a.norm.cols, 8 * v, AGOQK_VEC);
        __syncthreads();
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (group == 1) exchange[i * threads + at] = part[k][i];
        __syncthreads();
        if (group == 1) continue;
        float sum[AGOQK_VEC];
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) sum[i] = part[k][i] + exchange[i * threads + at];
        agoqk_store8<AGOQ_DTYPE_F32>(out + (int64_t)blockIdx.x * a.norm.cols + 8 * v, n, vec, sum);
    }
}

/* The usual case (norm_bwd_whole.cu), and whether a call is one. */
int agoqk_norm_bwd_is_whole(const agoqk_bwd_args *a, agoq_dtype dtype);
agoq_status agoqk_norm_bwd_whole(const agoq_exec *exec, agoqk_bwd_args *a, int bits);

/* Rows of any width (norm_bwd_wide.cu): statistics, chunk sums where they are wanted, dx. */
agoq_status agoqk_norm_bwd_wide(const agoq_exec *exec, const agoqk_bwd_args *a, agoq_dtype dtype, int bits);

#endif
