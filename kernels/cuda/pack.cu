/* pack and unpack. A thread takes UNROLL vectors of eight elements, a warp's 256 elements apart, and loads
 * them all before it works on the first: enough bytes in flight to fill the memory system. Bytes per element:
 * 2 (bf16) + b / 8 + 1/32; bound: memory. A view without gaps whose columns are whole blocks is one long row.
 * Deterministic: no result depends on the launch shape. */
#include "kernels/cuda/whole.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, UNROLL = 4, TILE = THREADS * UNROLL }; /* vectors per block of threads */

template <int DTYPE, int BITS, bool STOCHASTIC>
static __global__ void __launch_bounds__(THREADS)
    pack_kernel(agoqk_mat x, agoqk_pmat packed, agoqk_tiling t, agoqk_rng rng, uint32_t *nonfinite) {
    uint32_t bad = 0;
    for (int64_t tile = blockIdx.x; tile < t.n; tile += gridDim.x) {
        const int64_t r = tile / t.per_row, first = agoqk_first_vector(tile % t.per_row, UNROLL);
        agoqk_raw8<DTYPE> raw[UNROLL];
        int n[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t v = first + u * 32;
            n[u] = agoqk_count_of(t.cols, 8 * v, AGOQK_VEC);
            raw[u] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(x, r, 8 * v), n[u], x.vec);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t v = first + u * 32;
            float e[AGOQK_VEC];
            agoqk_convert<DTYPE>(raw[u], e);
            if (STOCHASTIC) {
                uint32_t random[AGOQK_VEC];
                agoqk_random8(rng, rng.offset + (uint64_t)(r * t.cols + 8 * v), random);
                bad += agoqk_put8<BITS>(packed, r, v, n[u], e, random);
            } else {
                bad += agoqk_put8<BITS>(packed, r, v, n[u], e, NULL);
            }
        }
    }
    agoqk_count(nonfinite, bad);
}

/* ---- bf16 without gaps: sixteen elements a thread, two an instruction ---- */

enum { GROUP = 16, DENSE_UNROLL = 2 };

/* The four lanes of a block get its (largest, negated smallest) as the halves of a word. */
static __device__ __forceinline__ uint32_t extremes(const uint32_t w[GROUP / 2]) {
    uint32_t high = w[0], low = w[0];
#pragma unroll
    for (int i = 1; i < GROUP / 2; i++) {
        high = agoqk_max2(high, w[i]);
        low = agoqk_min2(low, w[i]);
    }
    low ^= 0x80008000u;
    uint32_t both = agoqk_max2(__byte_perm(high, low, 0x5410), __byte_perm(high, low, 0x7632));
    both = agoqk_max2(both, __shfl_xor_sync(0xFFFFFFFFu, both, 1));
    return agoqk_max2(both, __shfl_xor_sync(0xFFFFFFFFu, both, 2));
}

template <int BITS>
static __device__ __forceinline__ void store_group(const agoqk_pmat &p, int64_t g, bool inside,
                                                   const uint32_t c[GROUP]) {
    uint32_t high = 0;
    if (BITS == 6) high = agoqk_fold8<2>(c, 4) | agoqk_fold8<2>(c + 8, 4) << 8;
    if (BITS == 5) {
        high = (agoqk_fold8<1>(c, 4) | agoqk_fold8<1>(c + 8, 4) << 4) << 8 * (g % 2);
        high |= __shfl_xor_sync(0xFFFFFFFFu, high, 1);
    }
    if (!inside) return;
    if (BITS == 8) {
        __stcs((uint4 *)(p.lo + 16 * g),
               make_uint4(agoqk_bytes4(c), agoqk_bytes4(c + 4), agoqk_bytes4(c + 8), agoqk_bytes4(c + 12)));
        return;
    }
    __stcs((uint2 *)(p.lo + 8 * g), make_uint2(agoqk_fold8<4>(c, 0), agoqk_fold8<4>(c + 8, 0)));
    if (BITS == 6) __stcs((uint32_t *)(p.hi + 4 * g), high);
    if (BITS == 5 && g % 2 == 0) __stcs((uint32_t *)(p.hi + 2 * g), high);
}

/* n_groups is a multiple of four: a warp's lanes leave the range in whole blocks, and keep up with the
 * others. */
template <int BITS>
static __global__ void __launch_bounds__(THREADS)
    pack_dense_kernel(const uint4 *x, agoqk_pmat p, int64_t n_groups, uint32_t *nonfinite) {
    const int64_t first = agoqk_first_vector(blockIdx.x, DENSE_UNROLL);
    uint32_t w[DENSE_UNROLL][GROUP / 2], bad = 0;
#pragma unroll
    for (int u = 0; u < DENSE_UNROLL; u++) {
        const int64_t g = first + u * 32;
        uint4 a = make_uint4(0, 0, 0, 0), b = a;
        if (g < n_groups) {
            a = __ldcs(x + 2 * g);
            b = __ldcs(x + 2 * g + 1);
        }
        w[u][0] = a.x, w[u][1] = a.y, w[u][2] = a.z, w[u][3] = a.w;
        w[u][4] = b.x, w[u][5] = b.y, w[u][6] = b.z, w[u][7] = b.w;
    }
#pragma unroll
    for (int u = 0; u < DENSE_UNROLL; u++) {
        const int64_t g = first + u * 32;
        if (g - threadIdx.x % 32 >= n_groups) break; /* the whole warp */
        const uint32_t both = extremes(w[u]);
        const bool nan = (both & 0x7F80u) == 0x7F80u || (both >> 16 & 0x7F80u) == 0x7F80u;
        const uint32_t d = agoqk_scale_of<BITS>(both & 0xFFFFu, both >> 16);
        const float inverse = d == 0 || nan ? 0.0f : agoqk_inverse((uint16_t)d);
        uint32_t c[GROUP];
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float e[AGOQK_VEC];
#pragma unroll
            for (int i = 0; i < 4; i++)
                agoqk_unpack_half2(w[u][4 * h + i], AGOQ_DTYPE_BF16, e[2 * i], e[2 * i + 1]);
            agoqk_encode8<BITS>(e, inverse, c + 8 * h);
        }
        if (__any_sync(0xFFFFFFFFu, nan)) {
#pragma unroll
            for (int i = 0; i < GROUP; i++) c[i] = nan ? (uint32_t)agoqk_int_zero_code(BITS) : c[i];
        }
        store_group<BITS>(p, g, g < n_groups, c);
        if (g % 4 == 0 && g < n_groups) {
            p.scale[g / 4] = (uint16_t)(nan ? AGOQK_BF16_NAN : d);
            bad += nan;
        }
    }
    agoqk_count(nonfinite, bad);
}

/* To bf16 without gaps; n is a number of vectors. */
template <int BITS>
static __global__ void __launch_bounds__(THREADS) unpack_dense_kernel(agoqk_pmat p, uint4 *y, int64_t n) {
    const int64_t first = agoqk_first_vector(blockIdx.x, UNROLL);
    agoqk_codes8<BITS> codes[UNROLL];
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        codes[u] = agoqk_load_codes<BITS>(p, 0, first + u * 32, first + u * 32 < n ? AGOQK_VEC : 0);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (first + u * 32 < n) {
            float e[AGOQK_VEC];
            if (BITS == 8) {
                agoqk_decode8<BITS>(codes[u], AGOQK_VEC, e);
                agoqk_store8<AGOQ_DTYPE_BF16>((uint16_t *)(y + first + u * 32), AGOQK_VEC, 1, e);
            } else {
                __stcs(y + first + u * 32, agoqk_decode8_bf16<BITS>(codes[u]));
            }
        }
}

template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(THREADS)
    unpack_kernel(agoqk_pmat packed, agoqk_mat y, agoqk_tiling t) {
    for (int64_t tile = blockIdx.x; tile < t.n; tile += gridDim.x) {
        const int64_t r = tile / t.per_row, first = agoqk_first_vector(tile % t.per_row, UNROLL);
        agoqk_codes8<BITS> codes[UNROLL];
        int n[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t v = first + u * 32;
            n[u] = agoqk_count_of(t.cols, 8 * v, AGOQK_VEC);
            codes[u] = agoqk_load_codes<BITS>(packed, r, v, n[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float e[AGOQK_VEC];
            agoqk_decode8<BITS>(codes[u], n[u], e);
            if (n[u] > 0) agoqk_store8<DTYPE>(agoqk_at<DTYPE>(y, r, 8 * (first + u * 32)), n[u], y.vec, e);
        }
    }
}

/* Joins the rows where nothing lies between them. */
static agoqk_tiling make_tiling(const agoq_view *v, agoqk_mat *m, agoqk_pmat *p) {
    const int dense = v->row_stride == v->cols && v->cols % AGOQ_BLOCK == 0;
    if (dense) {
        m->vec = (uintptr_t)v->data % 16 == 0;
        p->lo_row = p->hi_row = 0; /* one row: never multiplied by anything but 0, and aligned */
    }
    return agoqk_tiling_of(v->rows, v->cols, dense, TILE);
}

agoq_status agoqk_cuda_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                            const agoq_packed *packed) {
    agoqk_launch_begin("pack");
    if (x->rows == 0 || x->cols == 0) return AGOQ_OK;
    agoqk_mat m = agoqk_mat_of(x);
    agoqk_pmat p = agoqk_pmat_of(packed);
    const agoqk_tiling t = make_tiling(x, &m, &p);
    if (t.dense && m.vec && x->dtype == AGOQ_DTYPE_BF16 && packed->layout.bits < 16 && !key) {
        const int64_t n_groups = t.cols / GROUP;
        const agoqk_shape dense = {dim3((unsigned)((n_groups - 1) / (THREADS * DENSE_UNROLL) + 1)),
                                   dim3(THREADS), 0};
        AGOQK_INT_SWITCH(packed->layout.format, BITS,
                         pack_dense_kernel<BITS><<<dense.grid, dense.block, 0, (cudaStream_t)exec->stream>>>(
                             (const uint4 *)x->data, p, n_groups, exec->nonfinite))
        return agoqk_launched("pack_dense", x->dtype, packed->layout.format, &dense);
    }
    const agoqk_shape shape = {dim3(agoqk_grid(t.n)), dim3(THREADS), 0};
    AGOQK_DTYPE_SWITCH(
        x->dtype, DTYPE, AGOQK_BITS_SWITCH(packed->layout.format, BITS, {
            if (key)
                pack_kernel<DTYPE, BITS, true><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
                    m, p, t, agoqk_rng_of(key), exec->nonfinite);
            else
                pack_kernel<DTYPE, BITS, false><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
                    m, p, t, agoqk_rng_of(NULL), exec->nonfinite);
        }))
    return agoqk_launched("pack", x->dtype, packed->layout.format, &shape);
}

agoq_status agoqk_cuda_unpack(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y) {
    agoqk_launch_begin("unpack");
    if (y->rows == 0 || y->cols == 0) return AGOQ_OK;
    agoqk_mat m = agoqk_mat_of(y);
    agoqk_pmat p = agoqk_pmat_of(packed);
    const agoqk_tiling t = make_tiling(y, &m, &p);
    if (t.dense && m.vec && y->dtype == AGOQ_DTYPE_BF16 && packed->layout.bits < 16) {
        const int64_t n = t.cols / AGOQK_VEC;
        const agoqk_shape dense = {dim3((unsigned)((n - 1) / TILE + 1)), dim3(THREADS), 0};
        AGOQK_INT_SWITCH(packed->layout.format, BITS,
                         unpack_dense_kernel<BITS>
                         <<<dense.grid, dense.block, 0, (cudaStream_t)exec->stream>>>(p, (uint4 *)y->data, n))
        return agoqk_launched("unpack_dense", y->dtype, packed->layout.format, &dense);
    }
    const agoqk_shape shape = {dim3(agoqk_grid(t.n)), dim3(THREADS), 0};
    AGOQK_DTYPE_SWITCH(
        y->dtype, DTYPE,
        AGOQK_BITS_SWITCH(packed->layout.format, BITS,
                          unpack_kernel<DTYPE, BITS>
                          <<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(p, m, t)))
    return agoqk_launched("unpack", y->dtype, packed->layout.format, &shape);
}
