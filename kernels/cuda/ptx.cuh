/* The few instructions that CUDA C++ has no name for. */
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

#include <stdint.h>

/* Within one unit of 1 / x for a normal x whose reciprocal is normal. */
__device__ __forceinline__ float agoqk_rcp_approx(float x) {
    float r;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* 1 / x, correctly rounded, for x in [1, 2^126]: no special case exists there, and one Newton step from
 * within a unit rounds correctly (the GPU test tries every x). */
__device__ __forceinline__ float agoqk_rcp_from_1(float x) {
    const float r = agoqk_rcp_approx(x);
    return fmaf(r, fmaf(-x, r, 1.0f), r);
}

/* A barrier for `threads` of a block's threads, half 0 or 1 of it: numbers known to the assembler, which
 * would set all sixteen aside for one in a register. */
__device__ __forceinline__ void agoqk_half_barrier(int half, int threads) {
    if (half == 0)
        asm volatile("bar.sync 1, %0;" ::"r"(threads) : "memory");
    else
        asm volatile("bar.sync 2, %0;" ::"r"(threads) : "memory");
}

/* Within two units of 1 / sqrt(x) for a normal x above zero. */
__device__ __forceinline__ float agoqk_rsqrt_approx(float x) {
    float r;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* The larger of two; NaN if either is one (fmaxf would drop it). */
__device__ __forceinline__ float agoqk_max_nan(float a, float b) {
    float r;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
    return r;
}

/* (x & mask) | bits as one instruction, one of the two constants in a register. */
__device__ __forceinline__ uint32_t agoqk_and_or(uint32_t x, uint32_t mask, uint32_t bits) {
    uint32_t r;
    asm("lop3.b32 %0, %1, %2, %3, 0xEA;" : "=r"(r) : "r"(x), "r"(mask), "r"(bits));
    return r;
}

/* Byte i of the result: nibble i of the selector, 0 to 3 a byte of a, 4 to 7 one of b, 8 more: eight copies
 * of its sign. (The named function masks the selector first.) */
__device__ __forceinline__ uint32_t agoqk_permute(uint32_t a, uint32_t b, uint32_t selector) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(r) : "r"(a), "r"(b), "r"(selector));
    return r;
}

/* Bytes FF where a (first byte), b (second) is negative, else 00. */
__device__ __forceinline__ uint32_t agoqk_signs(float a, float b) {
    uint32_t r;
    asm("prmt.b32 %0, %1, %2, 0x44FB;" : "=r"(r) : "r"(__float_as_uint(a)), "r"(__float_as_uint(b)));
    return r;
}

/* Conversions of FP8, from 8.9 on: two E4M3 codes to a pair of fp16, exactly (the codes of NaN to NaN); and
 * two floats, not NaN, to two codes, nearest even, saturating, the sign of zero kept. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
#define AGOQK_HAS_FP8 1
__device__ __forceinline__ uint32_t agoqk_e4m3x2_to_half2(uint32_t codes) {
    uint32_t h;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"((uint16_t)codes));
    return h;
}

template <bool E4M3> __device__ __forceinline__ uint32_t agoqk_to_fp8x2(float low, float high) {
    uint16_t codes;
    if (E4M3)
        asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    else
        asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(codes) : "f"(high), "f"(low));
    return codes;
}
#else
#define AGOQK_HAS_FP8 0
#endif

/* The compiler no longer knows what x holds: it computes again from x what it would else keep in registers.
 */
__device__ __forceinline__ void agoqk_forget(uint32_t &x) {
    asm volatile("" : "+r"(x));
}

#endif
