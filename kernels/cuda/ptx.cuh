/* The few instructions that CUDA C++ has no name for. */
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

/* Within one unit of 1 / x for a normal x whose reciprocal is normal. */
__device__ __forceinline__ float agoqk_rcp_approx(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* A barrier for `threads` of a block's threads, half 0 or 1 of it: numbers known to the assembler, which
 * would set all sixteen aside for one in a register. */
__device__ __forceinline__ void agoqk_half_barrier(int half, int threads) {
    if (half == 0)
        asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
}

#endif
