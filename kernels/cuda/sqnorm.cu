/* Squared norm of a gradient in a fixed order (docs/FORMATS.md). A block of threads takes a chunk of 256
 * gradient blocks: a thread squares 16 codes, eight lanes add up a block as an integer in units of the
 * smallest square, which is the same number as the rule's sums in double wherever those are exact; a warp
 * that meets anything else (a NaN code; in E5M2 a value too small for the integer) goes by the rule's tree
 * instead. One warp folds the 256 terms. A second launch folds the chunk sums, which are the workspace: 8
 * bytes per 32768 elements. Bytes per element: 1 + 1/32; bound: memory. */
#include "kernels/cuda/grad.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, PARTS = 8, CHUNK_BLOCKS = 256, CHUNK = CHUNK_BLOCKS * AGOQ_GRAD_BLOCK };
enum { FOLD_THREADS = 1024, FOLD_WARPS = FOLD_THREADS / 32 };
static_assert(THREADS * PARTS * AGOQK_LANE == CHUNK, "a thread's parts cover the chunk");

/* Bytes of w, top bit set, whose code does not square to a whole number of units. */
template <int FORMAT> static __device__ __forceinline__ uint32_t odd_codes(uint32_t w) {
    const uint32_t mag = w & 0x7F7F7F7Fu;
    if (FORMAT == AGOQ_GRAD_INT8) return 0;
    if (FORMAT == AGOQ_GRAD_E4M3) return (mag + 0x01010101u) & 0x80808080u; /* 7F */
    const uint32_t special = mag + 0x04040404u;                             /* from 7C on */
    const uint32_t small = (mag + 0x7F7F7F7Fu) & ~(mag + 0x58585858u);      /* 01 .. 27: below 2^-5 */
    return (special | small) & 0x80808080u;
}

/* Units of a thread's 16 squares: 2^-18 (values are multiples of 2^-9), 2^-14 (of 2^-7), 1. A block has at
 * most 2^43, 2^53, 2^21 of them. A value plus 2^14 or 2^16 is its number of steps, as bits. */
template <int FORMAT> static __device__ __forceinline__ uint64_t squares(const uint32_t w[4]) {
    if (FORMAT == AGOQ_GRAD_INT8) {
        int sum = 0;
#pragma unroll
        for (int j = 0; j < 4; j++) sum = __dp4a((int)w[j], (int)w[j], sum);
        return (uint64_t)sum;
    }
    constexpr float magic = FORMAT == AGOQ_GRAD_E4M3 ? 0x1p14f : 0x1p16f;
    uint64_t sum = 0;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        float v[4];
        agoqk_grad_values4<FORMAT>(w[j] & 0x7F7F7F7Fu, v);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t steps = __float_as_uint(v[i] + magic) & 0x7FFFFFu;
            sum += (uint64_t)steps * steps;
        }
    }
    return sum;
}

template <int FORMAT> static __device__ double group_sum(uint32_t low, uint32_t high) {
    double q[8];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t code = (i < 4 ? low : high) >> 8 * (i % 4) & 0xFFu;
        const double v = (double)agoqk_grad_value(code, (agoq_grad_format)FORMAT);
        q[i] = v * v;
    }
    return ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]));
}

/* The rule itself; right on the first of eight lanes. Lane i has groups 2 i and 2 i + 1. */
template <int FORMAT> static __device__ __noinline__ double tree_sum(uint4 w) {
    double even = group_sum<FORMAT>(w.x, w.y), odd = group_sum<FORMAT>(w.z, w.w);
#pragma unroll
    for (int h = 4; h > 0; h /= 2) {
        even += __shfl_down_sync(0xFFFFFFFFu, even, h, 8);
        odd += __shfl_down_sync(0xFFFFFFFFu, odd, h, 8);
    }
    return even + odd;
}

/* S of a block; right on the first of its eight lanes. */
template <int FORMAT> static __device__ __forceinline__ double block_sum(const agoqk_gcodes &c) {
    constexpr double unit = FORMAT == AGOQ_GRAD_E4M3 ? 0x1p-18 : FORMAT == AGOQ_GRAD_E5M2 ? 0x1p-14 : 1.0;
    const uint32_t odd = odd_codes<FORMAT>(c.w[0]) | odd_codes<FORMAT>(c.w[1]) | odd_codes<FORMAT>(c.w[2]) |
                         odd_codes<FORMAT>(c.w[3]);
    if (FORMAT != AGOQ_GRAD_INT8 && __any_sync(0xFFFFFFFFu, odd != 0))
        return tree_sum<FORMAT>(make_uint4(c.w[0], c.w[1], c.w[2], c.w[3]));
    if (FORMAT == AGOQ_GRAD_INT8) {
        int sum = (int)squares<FORMAT>(c.w);
#pragma unroll
        for (int m = 1; m < 8; m *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, m);
        return (double)sum;
    }
    uint64_t sum = squares<FORMAT>(c.w);
#pragma unroll
    for (int m = 1; m < 8; m *= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, m);
    return (double)sum * unit;
}

/* n <= 256 numbers fold in halves, missing ones +0; one warp, right on its first lane. */
static __device__ __forceinline__ double fold256(const double *p, int64_t n) {
    const int lane = threadIdx.x % 32;
    double r[8];
#pragma unroll
    for (int k = 0; k < 8; k++) r[k] = lane + 32 * k < n ? p[lane + 32 * k] : 0.0;
#pragma unroll
    for (int k = 0; k < 4; k++) r[k] += r[k + 4];
    double sum = (r[0] + r[2]) + (r[1] + r[3]);
#pragma unroll
    for (int h = 16; h > 0; h /= 2) sum += __shfl_down_sync(0xFFFFFFFFu, sum, h);
    return sum;
}

/* The terms of a chunk; of a part: its 32 blocks. */
template <int FORMAT>
static __device__ __forceinline__ void put_term(double *terms, int part, const agoqk_gcodes &c) {
    const double s = (double)c.scale, sum = block_sum<FORMAT>(c);
    if (threadIdx.x % 8 == 0) terms[part * (THREADS / 8) + threadIdx.x / 8] = sum * (s * s);
}

template <int FORMAT>
static __global__ void __launch_bounds__(THREADS)
    chunk_kernel(agoqk_gmat g, int64_t n_chunks, double *chunk_sums) {
    __shared__ double terms[CHUNK_BLOCKS];
    for (int64_t chunk = blockIdx.x; chunk < n_chunks; chunk += gridDim.x) {
        const int64_t first = chunk * CHUNK + threadIdx.x * AGOQK_LANE;
        if (g.vec && (chunk + 1) * CHUNK <= g.n) {
            const agoqk_gmat whole = {g.codes, g.scales, g.n, 1};
            agoqk_gcodes c[PARTS];
#pragma unroll
            for (int u = 0; u < PARTS; u++)
                c[u] = agoqk_grad_load(whole, first + u * (THREADS * AGOQK_LANE), AGOQK_LANE);
#pragma unroll
            for (int u = 0; u < PARTS; u++) put_term<FORMAT>(terms, u, c[u]);
        } else {
#pragma unroll 1
            for (int u = 0; u < PARTS; u++) {
                const int64_t at = first + u * (THREADS * AGOQK_LANE);
                put_term<FORMAT>(terms, u, agoqk_grad_load(g, at, agoqk_count_of(g.n, at, AGOQK_LANE)));
            }
        }
        __syncthreads();
        if (threadIdx.x < 32) {
            const double sum = fold256(terms, CHUNK_BLOCKS);
            if (threadIdx.x == 0) chunk_sums[chunk] = sum;
        }
        __syncthreads();
    }
}

/* Of the chunk sums, 256 at a time by a warp; what they give is added in order by one thread. A NaN is
 * written as the one that the format has. */
static __global__ void __launch_bounds__(FOLD_THREADS)
    fold_kernel(const double *chunk_sums, int64_t n_chunks, double *sqnorm) {
    __shared__ double sums[FOLD_WARPS];
    const int warp = threadIdx.x / 32;
    double total = 0.0;
    for (int64_t first = 0; first < n_chunks; first += FOLD_WARPS * CHUNK_BLOCKS) {
        const int64_t at = first + warp * CHUNK_BLOCKS, left = n_chunks - at;
        if (left > 0) {
            const double sum = fold256(chunk_sums + at, left);
            if (threadIdx.x % 32 == 0) sums[warp] = sum;
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            for (int w = 0; w < FOLD_WARPS && first + w * CHUNK_BLOCKS < n_chunks; w++) total += sums[w];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        total = *sqnorm + total;
        *sqnorm = total == total ? total : __longlong_as_double(0x7FF8000000000000ll);
    }
}

size_t agoqk_cuda_grad_sqnorm_workspace(int64_t n) {
    return (size_t)(n / CHUNK + (n % CHUNK != 0)) * sizeof(double);
}

agoq_status agoqk_cuda_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    agoqk_launch_begin("grad_sqnorm");
    if (grad->n == 0) return AGOQ_OK;
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    const int64_t n_chunks = (grad->n - 1) / CHUNK + 1;
    const agoqk_shape shape = {dim3(agoqk_grid(n_chunks)), dim3(THREADS), CHUNK_BLOCKS * sizeof(double)};
    const agoqk_shape last = {dim3(1), dim3(FOLD_THREADS), FOLD_WARPS * sizeof(double)};
    double *chunk_sums = (double *)exec->workspace;
    AGOQK_GRAD_SWITCH(grad->format, FORMAT,
                      chunk_kernel<FORMAT>
                      <<<shape.grid, shape.block, 0, stream>>>(agoqk_gmat_of(grad), n_chunks, chunk_sums))
    const agoq_status status = agoqk_launched("grad_sqnorm", AGOQ_DTYPE_F32, 8, &shape);
    if (status != AGOQ_OK) return status;
    fold_kernel<<<last.grid, last.block, 0, stream>>>(chunk_sums, n_chunks, sqnorm);
    return agoqk_launched("grad_sqnorm_fold", AGOQ_DTYPE_F32, 8, &last);
}
