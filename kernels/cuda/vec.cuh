/* How threads of kernels/cuda read and write matrices: eight consecutive elements of a row at a time, as
 * floats. A thread whose eight elements are whole and lie on 16 bytes moves them with 16-byte accesses; the
 * ends of rows and views at odd addresses take the element-by-element path of the same functions. The
 * conversions are those of kernels/format/half.h; where the chip has an instruction, it is used for
 * everything but NaNs, whose bits differ. */
#ifndef KERNELS_CUDA_VEC_CUH
#define KERNELS_CUDA_VEC_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_pipeline.h>

#include "agoq/agoq.h"
#include "kernels/format/half.h"

enum { AGOQK_VEC = 8 };

/* A matrix as kernels see it; vec: 16-byte accesses are legal in every row. */
struct agoqk_mat {
    char *data;
    int64_t stride;
    int vec;
};

template <int DTYPE> struct agoqk_elem; /* what the kernels are instantiated for */
template <> struct agoqk_elem<AGOQ_DTYPE_F32> {
    typedef float type;
    static __device__ __forceinline__ float get(const float *p) { return *p; }
    static __device__ __forceinline__ void put(float *p, float x) { *p = x; }
};
template <> struct agoqk_elem<AGOQ_DTYPE_BF16> {
    typedef uint16_t type;
    static __device__ __forceinline__ float get(const uint16_t *p) { return agoqk_bf16_decode(*p); }
    static __device__ __forceinline__ void put(uint16_t *p, float x) { *p = agoqk_bf16_encode(x); }
};
template <> struct agoqk_elem<AGOQ_DTYPE_F16> {
    typedef uint16_t type;
    static __device__ __forceinline__ float get(const uint16_t *p) { return agoqk_f16_decode(*p); }
    static __device__ __forceinline__ void put(uint16_t *p, float x) { *p = agoqk_f16_encode(x); }
};

static inline int agoqk_elem_bytes(agoq_dtype dtype) {
    return dtype == AGOQ_DTYPE_F32 ? 4 : 2;
}

static inline agoqk_mat agoqk_mat_of(const agoq_view *v) {
    const int bytes = agoqk_elem_bytes(v->dtype);
    agoqk_mat m = {(char *)v->data, v->row_stride, 0};
    m.vec = ((uintptr_t)v->data % 16 == 0) && (v->rows <= 1 || v->row_stride * bytes % 16 == 0);
    return m;
}

/* The address of element (r, c). */
template <int DTYPE>
__device__ __forceinline__ typename agoqk_elem<DTYPE>::type *agoqk_at(const agoqk_mat &m, int64_t r,
                                                                      int64_t c) {
    return (typename agoqk_elem<DTYPE>::type *)m.data + r * m.stride + c;
}

__device__ __forceinline__ void agoqk_unpack_half2(uint32_t w, int dtype, float &a, float &b) {
    if (dtype == AGOQ_DTYPE_BF16) {
        a = __uint_as_float(w << 16);
        b = __uint_as_float(w & 0xFFFF0000u);
    } else {
        const float2 f = __half22float2(*(const __half2 *)&w);
        a = f.x;
        b = f.y;
    }
}

/* Sixteen raw bytes or 32, loaded before they are converted, so that several loads can be in flight. */
template <int DTYPE> struct agoqk_raw8 { uint4 w[DTYPE == AGOQ_DTYPE_F32 ? 2 : 1]; };

/* n elements (0 .. 8) from p; zeros beyond. Streaming: inputs are read once. */
template <int DTYPE>
__device__ __forceinline__ agoqk_raw8<DTYPE> agoqk_load_raw(const typename agoqk_elem<DTYPE>::type *p, int n,
                                                            int vec) {
    typedef typename agoqk_elem<DTYPE>::type T;
    agoqk_raw8<DTYPE> raw;
    if (vec && n == AGOQK_VEC) {
        raw.w[0] = __ldcs((const uint4 *)p);
        if (DTYPE == AGOQ_DTYPE_F32) raw.w[sizeof raw.w / 16 - 1] = __ldcs((const uint4 *)p + 1);
        return raw;
    }
    T e[AGOQK_VEC];
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) e[i] = i < n ? p[i] : (T)0;
    memcpy(&raw, e, sizeof raw);
    return raw;
}

template <int DTYPE>
__device__ __forceinline__ void agoqk_convert(const agoqk_raw8<DTYPE> &raw, float x[AGOQK_VEC]) {
    if (DTYPE == AGOQ_DTYPE_F32) {
        memcpy(x, &raw, sizeof raw);
    } else {
        agoqk_unpack_half2(raw.w[0].x, DTYPE, x[0], x[1]);
        agoqk_unpack_half2(raw.w[0].y, DTYPE, x[2], x[3]);
        agoqk_unpack_half2(raw.w[0].z, DTYPE, x[4], x[5]);
        agoqk_unpack_half2(raw.w[0].w, DTYPE, x[6], x[7]);
    }
}

template <int DTYPE>
__device__ __forceinline__ void agoqk_load8(const typename agoqk_elem<DTYPE>::type *p, int n, int vec,
                                            float x[AGOQK_VEC]) {
    agoqk_convert<DTYPE>(agoqk_load_raw<DTYPE>(p, n, vec), x);
}

/* True if a NaN may be among the eight: Inf - Inf makes it true as well. */
__device__ __forceinline__ bool agoqk_maybe_nan8(const float x[AGOQK_VEC]) {
    const float s = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    return s != s;
}

__device__ __forceinline__ uint32_t agoqk_pack_half2(float a, float b, int dtype) {
    if (dtype == AGOQ_DTYPE_BF16) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
        return *(const uint32_t *)&h;
    }
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}

template <int DTYPE> __device__ __forceinline__ uint32_t agoqk_pack_half2_nan(float a, float b) {
    typename agoqk_elem<DTYPE>::type h[2];
    agoqk_elem<DTYPE>::put(&h[0], a);
    agoqk_elem<DTYPE>::put(&h[1], b);
    uint32_t w;
    memcpy(&w, h, 4);
    return w;
}

/* Rounds to nearest even and stores n of the eight. */
template <int DTYPE>
__device__ __forceinline__ void agoqk_store8(typename agoqk_elem<DTYPE>::type *p, int n, int vec,
                                             const float x[AGOQK_VEC]) {
    if (!(vec && n == AGOQK_VEC)) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (i < n) agoqk_elem<DTYPE>::put(p + i, x[i]);
    } else if (DTYPE == AGOQ_DTYPE_F32) {
        __stcs((float4 *)p, make_float4(x[0], x[1], x[2], x[3]));
        __stcs((float4 *)p + 1, make_float4(x[4], x[5], x[6], x[7]));
    } else {
        uint4 w;
        if (!agoqk_maybe_nan8(x)) {
            w.x = agoqk_pack_half2(x[0], x[1], DTYPE);
            w.y = agoqk_pack_half2(x[2], x[3], DTYPE);
            w.z = agoqk_pack_half2(x[4], x[5], DTYPE);
            w.w = agoqk_pack_half2(x[6], x[7], DTYPE);
        } else {
            constexpr int H = DTYPE == AGOQ_DTYPE_F32 ? AGOQ_DTYPE_BF16 : DTYPE;
            w.x = agoqk_pack_half2_nan<H>(x[0], x[1]);
            w.y = agoqk_pack_half2_nan<H>(x[2], x[3]);
            w.z = agoqk_pack_half2_nan<H>(x[4], x[5]);
            w.w = agoqk_pack_half2_nan<H>(x[6], x[7]);
        }
        __stcs((uint4 *)p, w);
    }
}

/* Eight floats to pairs of bf16, NaN canonical. 0 x w added up is 0 unless a NaN or an Inf is among them. */
__device__ __forceinline__ void agoqk_pairs8(const float x[AGOQK_VEC], uint32_t w[4]) {
    const __nv_bfloat162 zero = __float2bfloat162_rn(0.0f);
    __nv_bfloat162 sum = zero;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        w[i] = agoqk_pack_half2(x[2 * i], x[2 * i + 1], AGOQ_DTYPE_BF16);
        sum = __hfma2(*(const __nv_bfloat162 *)&w[i], zero, sum);
    }
    if (__hbeq2(sum, zero)) return;
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = agoqk_pack_half2_nan<AGOQ_DTYPE_BF16>(x[2 * i], x[2 * i + 1]);
}

/* A whole, aligned vector of bf16. */
__device__ __forceinline__ void agoqk_store8_bf16(void *p, const float x[AGOQK_VEC]) {
    uint32_t w[4];
    agoqk_pairs8(x, w);
    __stcs((uint4 *)p, make_uint4(w[0], w[1], w[2], w[3]));
}

__device__ __forceinline__ void agoqk_floats8(const uint32_t w[4], float x[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < 4; i++) agoqk_unpack_half2(w[i], AGOQ_DTYPE_BF16, x[2 * i], x[2 * i + 1]);
}

/* x := bf16(x), NaN canonical. */
__device__ __forceinline__ void agoqk_round8(float x[AGOQK_VEC]) {
    if (agoqk_maybe_nan8(x)) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = agoqk_bf16_round(x[i]);
    } else {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i += 2)
            agoqk_unpack_half2(agoqk_pack_half2(x[i], x[i + 1], AGOQ_DTYPE_BF16), AGOQ_DTYPE_BF16, x[i],
                               x[i + 1]);
    }
}

/* How many of `most` elements from `first` on lie below n. */
__device__ __forceinline__ int agoqk_count_of(int64_t n, int64_t first, int most) {
    const int64_t left = n - first;
    return left >= most ? most : left > 0 ? (int)left : 0;
}

/* The first vector of a thread in tile i: a warp's n x 32 vectors lie side by side, so that it reads and
 * writes whole sectors of the smaller planes by itself. */
__device__ __forceinline__ int64_t agoqk_first_vector(int64_t i, int n) {
    return (i * (blockDim.x / 32) + threadIdx.x / 32) * (32 * n) + threadIdx.x % 32;
}

/* Rows cut into tiles of vectors; dense: the whole tensor is one row of whole blocks. */
struct agoqk_tiling {
    int64_t cols, per_row, n;
    int dense;
};

static inline agoqk_tiling agoqk_tiling_of(int64_t rows, int64_t cols, int dense, int vectors) {
    agoqk_tiling t = {dense ? rows * cols : cols, 0, 0, dense};
    t.per_row = ((t.cols + AGOQK_VEC - 1) / AGOQK_VEC + vectors - 1) / vectors;
    t.n = (dense ? 1 : rows) * t.per_row;
    return t;
}

/* Bytes (4, 8 or 16) on their way to shared memory while something else is done. A thread reads only what it
 * fetched itself, so that no other thread has to be waited for. */
__device__ __forceinline__ void agoqk_fetch(void *slot, const void *from, int bytes) {
    __pipeline_memcpy_async(slot, from, bytes);
}

__device__ __forceinline__ void agoqk_fetch_commit(void) {
    __pipeline_commit();
}

__device__ __forceinline__ void agoqk_fetch_wait(void) { /* for all of them */
    __pipeline_wait_prior(0);
}

/* Calls body(integral constant) with the dtype of a call as a compile-time constant. */
#define AGOQK_DTYPE_SWITCH(dtype, DTYPE, ...)                                                                \
    switch (dtype) {                                                                                         \
    case AGOQ_DTYPE_F32: {                                                                                   \
        constexpr int DTYPE = AGOQ_DTYPE_F32;                                                                \
        __VA_ARGS__;                                                                                         \
    } break;                                                                                                 \
    case AGOQ_DTYPE_BF16: {                                                                                  \
        constexpr int DTYPE = AGOQ_DTYPE_BF16;                                                               \
        __VA_ARGS__;                                                                                         \
    } break;                                                                                                 \
    case AGOQ_DTYPE_F16: {                                                                                   \
        constexpr int DTYPE = AGOQ_DTYPE_F16;                                                                \
        __VA_ARGS__;                                                                                         \
    } break;                                                                                                 \
    }

#endif
