/* Counts, on the GPU, the inputs on which an instruction sequence and the portable code disagree: F::right(i)
 * for every i below n. A check is a struct with that one function, so that the compiler sees both sides. */
#ifndef TESTS_GPU_COUNT_CUH
#define TESTS_GPU_COUNT_CUH

extern "C" {
#include "tests/gpu/gpu.h"
}

template <class F>
static __global__ void count_kernel(uint64_t n, unsigned long long *wrong, uint32_t *where) {
    for (uint64_t i = blockIdx.x * (uint64_t)blockDim.x + threadIdx.x; i < n;
         i += (uint64_t)gridDim.x * blockDim.x) {
        if (F::right((uint32_t)i)) continue;
        atomicAdd(wrong, 1ull);
        *where = (uint32_t)i;
    }
}

template <class F> static void count(const char *name, uint64_t n) {
    unsigned long long *wrong, host = 0;
    uint32_t *where, at = 0;
    gpu_must(cudaMalloc(&wrong, 8), "cudaMalloc");
    gpu_must(cudaMalloc(&where, 4), "cudaMalloc");
    gpu_must(cudaMemset(wrong, 0, 8), "memset");
    count_kernel<F><<<132 * 16, 256>>>(n, wrong, where);
    gpu_must(cudaGetLastError(), name);
    gpu_must(cudaMemcpy(&host, wrong, 8, cudaMemcpyDeviceToHost), "count");
    gpu_must(cudaMemcpy(&at, where, 4, cudaMemcpyDeviceToHost), "count");
    char detail[64];
    snprintf(detail, sizeof detail, "%llu inputs, one is %08x", host, at);
    gpu_check(host == 0, name, detail);
    gpu_must(cudaFree(wrong), "free");
    gpu_must(cudaFree(where), "free");
}

/* Equal bits, or both NaN. */
static __device__ __forceinline__ bool count_same(float got, float want) {
    return agoqk_bits(got) == agoqk_bits(want) || (got != got && want != want);
}

#endif
