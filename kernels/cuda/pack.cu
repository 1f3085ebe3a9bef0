/* pack and unpack. A thread takes UNROLL vectors of eight elements, a warp's 256 elements apart, and loads
 * them all before it works on the first: enough bytes in flight to fill the memory system. Bytes per element:
 * 2 (bf16) + b / 8 + 1/32; bound: memory. A view without gaps whose columns are whole blocks is one long row.
 * Deterministic: no result depends on the launch shape. */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, UNROLL = 4, TILE = THREADS * UNROLL }; /* vectors per block of threads */

/* One row of n_cols elements; tile t of n_tiles a row. */
struct tiling {
    int64_t cols, tiles_per_row, n_tiles, vectors;
};

template <int DTYPE, int BITS, bool STOCHASTIC>
static __global__ void __launch_bounds__(THREADS)
    pack_kernel(agoqk_mat x, agoqk_pmat packed, tiling t, agoqk_rng rng, uint32_t *nonfinite) {
    uint32_t bad = 0;
    for (int64_t tile = blockIdx.x; tile < t.n_tiles; tile += gridDim.x) {
        const int64_t r = tile / t.tiles_per_row, first = tile % t.tiles_per_row * TILE + threadIdx.x;
        agoqk_raw8<DTYPE> raw[UNROLL];
        int n[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t v = first + u * THREADS, left = t.cols - 8 * v;
            n[u] = left >= 8 ? 8 : left > 0 ? (int)left : 0;
            raw[u] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(x, r, 8 * v), n[u], x.vec);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t v = first + u * THREADS;
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

template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(THREADS) unpack_kernel(agoqk_pmat packed, agoqk_mat y, tiling t) {
    for (int64_t tile = blockIdx.x; tile < t.n_tiles; tile += gridDim.x) {
        const int64_t r = tile / t.tiles_per_row, first = tile % t.tiles_per_row * TILE + threadIdx.x;
        agoqk_codes8<BITS> codes[UNROLL];
        int n[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            const int64_t v = first + u * THREADS, left = t.cols - 8 * v;
            n[u] = left >= 8 ? 8 : left > 0 ? (int)left : 0;
            codes[u] = agoqk_load_codes<BITS>(packed, r, v, n[u]);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float e[AGOQK_VEC];
            agoqk_decode8<BITS>(codes[u], n[u], e);
            if (n[u] > 0)
                agoqk_store8<DTYPE>(agoqk_at<DTYPE>(y, r, 8 * (first + u * THREADS)), n[u], y.vec, e);
        }
    }
}

/* Joins the rows where nothing lies between them. */
static tiling make_tiling(const agoq_view *v, agoqk_mat *m, agoqk_pmat *p) {
    tiling t = {v->cols, 0, v->rows, 0};
    if (v->row_stride == v->cols && v->cols % AGOQ_BLOCK == 0) {
        t.cols = v->rows * v->cols;
        t.n_tiles = 1;
        m->vec = (uintptr_t)v->data % 16 == 0;
        p->lo_row = p->hi_row = 0; /* one row: never multiplied by anything but 0, and aligned */
    }
    t.tiles_per_row = ((t.cols + 7) / 8 + TILE - 1) / TILE;
    t.n_tiles *= t.tiles_per_row;
    return t;
}

agoq_status agoqk_cuda_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                            const agoq_packed *packed) {
    agoqk_launch_begin("pack");
    if (x->rows == 0 || x->cols == 0) return AGOQ_OK;
    agoqk_mat m = agoqk_mat_of(x);
    agoqk_pmat p = agoqk_pmat_of(packed);
    const tiling t = make_tiling(x, &m, &p);
    const agoqk_shape shape = {dim3(agoqk_grid(t.n_tiles)), dim3(THREADS), 0};
    AGOQK_DTYPE_SWITCH(
        x->dtype, DTYPE, AGOQK_BITS_SWITCH(packed->layout.bits, BITS, {
            if (key)
                pack_kernel<DTYPE, BITS, true><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
                    m, p, t, agoqk_rng_of(key), exec->nonfinite);
            else
                pack_kernel<DTYPE, BITS, false><<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(
                    m, p, t, agoqk_rng_of(NULL), exec->nonfinite);
        }))
    return agoqk_launched("pack", x->dtype, packed->layout.bits, &shape);
}

agoq_status agoqk_cuda_unpack(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y) {
    agoqk_launch_begin("unpack");
    if (y->rows == 0 || y->cols == 0) return AGOQ_OK;
    agoqk_mat m = agoqk_mat_of(y);
    agoqk_pmat p = agoqk_pmat_of(packed);
    const tiling t = make_tiling(y, &m, &p);
    const agoqk_shape shape = {dim3(agoqk_grid(t.n_tiles)), dim3(THREADS), 0};
    AGOQK_DTYPE_SWITCH(
        y->dtype, DTYPE,
        AGOQK_BITS_SWITCH(packed->layout.bits, BITS,
                          unpack_kernel<DTYPE, BITS>
                          <<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(p, m, t)))
    return agoqk_launched("unpack", y->dtype, packed->layout.bits, &shape);
}
