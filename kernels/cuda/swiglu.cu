/* SwiGLU fused with pack and unpack, element-wise: a thread takes vectors of eight elements, a warp's side by
 * side, and loads them all before it works on the first. Forward moves 6 bytes (bf16) and two packed elements
 * per element, backward 8 and two. Bound: memory, with the exponential close behind. No result depends on the
 * launch shape. */
#include "kernels/cuda/whole.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/format/silu.h"

enum { THREADS = 256, UNROLL = 2, TILE = THREADS * UNROLL };

struct swiglu_args {
    agoqk_mat gate, up, d, product, dgate, dup;
    agoqk_pmat packed_gate, packed_up;
    agoqk_tiling t;
    int round_bf16, want_product, whole; /* whole: one row of whole, aligned vectors */
    uint32_t *nonfinite;
};

/* agoqk_logistic with the quicker reciprocal. */
static __device__ __forceinline__ void logistic(float x, float *low, float *high) {
    const float e = agoqk_exp(-x);
    *high = agoqk_rcp_from_1(1.0f + e);
    *low = e * *high;
}

template <int DTYPE>
static __device__ __forceinline__ void put(const agoqk_mat &m, int64_t r, int64_t v, int n, int round_bf16,
                                           float x[AGOQK_VEC]) {
    if (n <= 0) return;
    if (DTYPE != AGOQ_DTYPE_BF16 && round_bf16) agoqk_round8(x);
    agoqk_store8<DTYPE>(agoqk_at<DTYPE>(m, r, 8 * v), n, m.vec, x);
}

template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(THREADS) fwd_kernel(const __grid_constant__ swiglu_args a) {
    uint32_t bad = 0;
    for (int64_t tile = blockIdx.x; tile < a.t.n; tile += gridDim.x) {
        const int64_t r = tile / a.t.per_row, first = agoqk_first_vector(tile % a.t.per_row, UNROLL);
        agoqk_raw8<DTYPE> rg[UNROLL], ru[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t v = first + 32 * k;
            const int n = agoqk_count_of(a.t.cols, 8 * v, AGOQK_VEC);
            rg[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.gate, r, 8 * v), n, a.gate.vec);
            ru[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.up, r, 8 * v), n, a.up.vec);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t v = first + 32 * k;
            const int n = agoqk_count_of(a.t.cols, 8 * v, AGOQK_VEC);
            float g[AGOQK_VEC], u[AGOQK_VEC];
            agoqk_convert<DTYPE>(rg[k], g);
            agoqk_convert<DTYPE>(ru[k], u);
            bad += agoqk_put8<BITS>(a.packed_gate, r, v, n, g, NULL);
            bad += agoqk_put8<BITS>(a.packed_up, r, v, n, u, NULL);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                float low, high;
                logistic(g[i], &low, &high);
                g[i] = agoqk_swiglu(g[i], high, u[i]);
            }
            put<DTYPE>(a.product, r, v, n, a.round_bf16, g);
        }
    }
    agoqk_count(a.nonfinite, bad);
}

template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(THREADS) bwd_kernel(const __grid_constant__ swiglu_args a) {
    for (int64_t tile = blockIdx.x; tile < a.t.n; tile += gridDim.x) {
        const int64_t r = tile / a.t.per_row, first = agoqk_first_vector(tile % a.t.per_row, UNROLL);
        agoqk_codes8<BITS> cg[UNROLL], cu[UNROLL];
        agoqk_raw8<DTYPE> rd[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t v = first + 32 * k;
            const int n = agoqk_count_of(a.t.cols, 8 * v, AGOQK_VEC);
            cg[k] = agoqk_load_codes<BITS>(a.packed_gate, r, v, n);
            cu[k] = agoqk_load_codes<BITS>(a.packed_up, r, v, n);
            rd[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.d, r, 8 * v), n, a.d.vec);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t v = first + 32 * k;
            const int n = agoqk_count_of(a.t.cols, 8 * v, AGOQK_VEC);
            float g[AGOQK_VEC], u[AGOQK_VEC], d[AGOQK_VEC], p[AGOQK_VEC];
            agoqk_decode8<BITS>(cg[k], n, g);
            agoqk_decode8<BITS>(cu[k], n, u);
            agoqk_convert<DTYPE>(rd[k], d);
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                float low, high;
                logistic(g[i], &low, &high);
                const agoqk_swiglu_grads out = agoqk_swiglu_backward(g[i], low, high, u[i], d[i]);
                p[i] = out.product, g[i] = out.dgate, d[i] = out.dup;
            }
            if (a.want_product) put<DTYPE>(a.product, r, v, n, a.round_bf16, p);
            put<DTYPE>(a.dgate, r, v, n, a.round_bf16, g);
            put<DTYPE>(a.dup, r, v, n, a.round_bf16, d);
        }
    }
}

/* ---- bf16 without gaps: the usual case without the rest ---- */

/* n vectors, a multiple of 8; a warp that is partly outside takes part as a whole. */
template <int BITS>
static __global__ void __launch_bounds__(THREADS)
    fwd_whole_kernel(const __grid_constant__ swiglu_args a, int64_t n) {
    const int64_t base = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * (32 * UNROLL);
    if (base >= n) return;
    const int lane = threadIdx.x % 32;
    const uint4 *gate = (const uint4 *)a.gate.data + base, *up = (const uint4 *)a.up.data + base;
    const int left = n - base < 32 * UNROLL ? (int)(n - base) : 32 * UNROLL;
    uint32_t g[UNROLL][4], u[UNROLL][4], bad = 0;
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        const int v = 32 * k + lane;
        uint4 x = make_uint4(0, 0, 0, 0), y = x;
        if (v < left) x = __ldcs(gate + v), y = __ldcs(up + v);
        g[k][0] = x.x, g[k][1] = x.y, g[k][2] = x.z, g[k][3] = x.w;
        u[k][0] = y.x, u[k][1] = y.y, u[k][2] = y.z, u[k][3] = y.w;
    }
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        const int v = 32 * k + lane;
        float x[AGOQK_VEC], y[AGOQK_VEC];
        agoqk_floats8(g[k], x);
        agoqk_floats8(u[k], y);
        bad += agoqk_put8_bf16<BITS>(a.packed_gate, base, v, v < left, g[k], x);
        bad += agoqk_put8_bf16<BITS>(a.packed_up, base, v, v < left, u[k], y);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            float low, high;
            logistic(x[i], &low, &high);
            x[i] = agoqk_swiglu(x[i], high, y[i]);
        }
        if (v < left) agoqk_store8_bf16((uint4 *)a.product.data + base + v, x);
    }
    agoqk_count(a.nonfinite, bad);
}

template <int BITS>
static __global__ void __launch_bounds__(THREADS, 4)
    bwd_whole_kernel(const __grid_constant__ swiglu_args a, int64_t n) {
    const int64_t base = ((int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32) * (32 * UNROLL);
    const int lane = threadIdx.x % 32;
    const int left = n - base < 32 * UNROLL ? n > base ? (int)(n - base) : 0 : 32 * UNROLL;
    agoqk_codes8<BITS> cg[UNROLL], cu[UNROLL];
    uint4 d[UNROLL];
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        const int v = 32 * k + lane;
        if (v >= left) continue;
        cg[k] = agoqk_codes_at<BITS>(a.packed_gate, base, v);
        cu[k] = agoqk_codes_at<BITS>(a.packed_up, base, v);
        d[k] = __ldcs((const uint4 *)a.d.data + base + v);
    }
#pragma unroll
    for (int k = 0; k < UNROLL; k++) {
        const int v = 32 * k + lane;
        if (v >= left) continue;
        const uint32_t w[4] = {d[k].x, d[k].y, d[k].z, d[k].w};
        float x[AGOQK_VEC], y[AGOQK_VEC], z[AGOQK_VEC], p[AGOQK_VEC];
        agoqk_decode8<BITS>(cg[k], AGOQK_VEC, x);
        agoqk_decode8<BITS>(cu[k], AGOQK_VEC, y);
        agoqk_floats8(w, z);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            float low, high;
            logistic(x[i], &low, &high);
            const agoqk_swiglu_grads out = agoqk_swiglu_backward(x[i], low, high, y[i], z[i]);
            p[i] = out.product, x[i] = out.dgate, z[i] = out.dup;
        }
        if (a.want_product) agoqk_store8_bf16((uint4 *)a.product.data + base + v, p);
        agoqk_store8_bf16((uint4 *)a.dgate.data + base + v, x);
        agoqk_store8_bf16((uint4 *)a.dup.data + base + v, z);
    }
}

/* Views without gaps whose columns are whole blocks are one long row. */
static void tile(swiglu_args *a, const agoq_view *const *views, agoqk_mat **mats, int n) {
    int dense = views[0]->cols % AGOQ_BLOCK == 0;
    for (int i = 0; i < n; i++) {
        *mats[i] = agoqk_mat_of(views[i]);
        dense &= views[i]->row_stride == views[i]->cols;
    }
    for (int i = 0; i < n && dense; i++) mats[i]->vec = (uintptr_t)views[i]->data % 16 == 0;
    if (dense) a->packed_gate.lo_row = a->packed_gate.hi_row = a->packed_up.lo_row = a->packed_up.hi_row = 0;
    a->whole = dense;
    for (int i = 0; i < n; i++) a->whole &= mats[i]->vec;
    a->t = agoqk_tiling_of(views[0]->rows, views[0]->cols, dense, TILE);
}

agoq_status agoqk_cuda_swiglu_fwd_pack(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                       int round_bf16, const agoq_view *product,
                                       const agoq_packed *packed_gate, const agoq_packed *packed_up) {
    agoqk_launch_begin("swiglu_fwd_pack");
    const int bits = packed_gate->layout.format;
    if (up->dtype != gate->dtype || product->dtype != gate->dtype || packed_up->layout.format != bits)
        return AGOQ_E_UNSUPPORTED;
    if (gate->rows == 0 || gate->cols == 0) return AGOQ_OK;
    swiglu_args a = {};
    const agoq_view *views[] = {gate, up, product};
    agoqk_mat *mats[] = {&a.gate, &a.up, &a.product};
    a.packed_gate = agoqk_pmat_of(packed_gate);
    a.packed_up = agoqk_pmat_of(packed_up);
    a.round_bf16 = round_bf16;
    a.nonfinite = exec->nonfinite;
    tile(&a, views, mats, 3);
    const agoqk_shape shape = {dim3(agoqk_grid(a.t.n)), dim3(THREADS), 0};
    if (a.whole && gate->dtype == AGOQ_DTYPE_BF16) {
        AGOQK_BITS_SWITCH(bits, BITS,
                          fwd_whole_kernel<BITS><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
                              a, a.t.cols / AGOQK_VEC))
        return agoqk_launched("swiglu_fwd_whole", gate->dtype, bits, &shape);
    }
    AGOQK_DTYPE_SWITCH(gate->dtype, DTYPE,
                       AGOQK_BITS_SWITCH(bits, BITS,
                                         fwd_kernel<DTYPE, BITS>
                                         <<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(a)))
    return agoqk_launched("swiglu_fwd", gate->dtype, bits, &shape);
}

agoq_status agoqk_cuda_swiglu_bwd_packed(const agoq_exec *exec, const agoq_packed *packed_gate,
                                         const agoq_packed *packed_up, int round_bf16,
                                         const agoq_view *dproduct, const agoq_view *product,
                                         const agoq_view *dgate, const agoq_view *dup) {
    agoqk_launch_begin("swiglu_bwd_packed");
    const int bits = packed_gate->layout.format;
    const agoq_dtype dtype = dproduct->dtype;
    if (dgate->dtype != dtype || dup->dtype != dtype || (product && product->dtype != dtype) ||
        packed_up->layout.format != bits)
        return AGOQ_E_UNSUPPORTED;
    if (dproduct->rows == 0 || dproduct->cols == 0) return AGOQ_OK;
    swiglu_args a = {};
    const agoq_view *views[] = {dproduct, dgate, dup, product};
    agoqk_mat *mats[] = {&a.d, &a.dgate, &a.dup, &a.product};
    a.packed_gate = agoqk_pmat_of(packed_gate);
    a.packed_up = agoqk_pmat_of(packed_up);
    a.round_bf16 = round_bf16;
    a.want_product = product != NULL;
    tile(&a, views, mats, product ? 4 : 3);
    const agoqk_shape shape = {dim3(agoqk_grid(a.t.n)), dim3(THREADS), 0};
    if (a.whole && dtype == AGOQ_DTYPE_BF16) {
        AGOQK_BITS_SWITCH(bits, BITS,
                          bwd_whole_kernel<BITS><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
                              a, a.t.cols / AGOQK_VEC))
        return agoqk_launched("swiglu_bwd_whole", dtype, bits, &shape);
    }
    AGOQK_DTYPE_SWITCH(dtype, DTYPE,
                       AGOQK_BITS_SWITCH(bits, BITS,
                                         bwd_kernel<DTYPE, BITS>
                                         <<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(a)))
    return agoqk_launched("swiglu_bwd", dtype, bits, &shape);
}
