/* Rotary position embedding, optionally packing what it stores. Three shapes of the same arithmetic:
 * rope_kernel: a lane owns a vector of eight elements, a warp 32 of a row; the other half of a pair is in the
 * same vector (interleaved) or in another lane of the warp (heads of 8, 16 .. 256 elements), so that rotation
 * in place needs no order between warps and packing has its eight lanes. pairs_kernel: any head; a thread
 * owns both members of a pair, alone or in vectors; what it stored is packed by a second launch. Bytes per
 * element: 4 (bf16), the tables once, the packed one. Bound: memory. No result depends on the launch shape.
 */
#include "kernels/cuda/block.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, WARPS = THREADS / 32, UNROLL = 2, NO_BITS = 0 };

struct rope_args {
    agoqk_mat x, y;
    agoqk_pmat packed;
    const float *cos, *sin;
    const int32_t *positions;
    int64_t rows, cols, n_positions;
    int64_t per_row, n_items;  /* rope_kernel: warps' slices; pairs_kernel: threads' units */
    int head_dim, rotary;      /* elements */
    int interleaved, backward; /* 0 or 1 */
    int table_vec, store;      /* tables can be read by four floats; y is written */
    uint32_t *nonfinite;
};

/* Most numbers fit 32 bits, where a division takes a quarter of the time. */
static __device__ __forceinline__ int64_t quotient(int64_t a, int64_t b) {
    if (((uint64_t)a | (uint64_t)b) >> 32 == 0) return (int64_t)((uint32_t)a / (uint32_t)b);
    return a / b;
}

/* The row of the tables for row r; -1: outside. */
static __device__ __forceinline__ int64_t position_of(const rope_args &a, int64_t r) {
    const int64_t p = a.positions ? a.positions[r] : r - quotient(r, a.n_positions) * a.n_positions;
    return p >= 0 && p < a.n_positions ? p : -1;
}

/* N entries of a table; cached: every head of a row reads them. */
template <int N>
static __device__ __forceinline__ void load_angles(const float *table, int64_t at, int n, int vec,
                                                   float *out) {
    if (vec && n == N) {
#pragma unroll
        for (int i = 0; i < N; i += 4) {
            const float4 f = __ldg((const float4 *)(table + at + i));
            out[i] = f.x, out[i + 1] = f.y, out[i + 2] = f.z, out[i + 3] = f.w;
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) out[i] = i < n ? __ldg(table + at + i) : 0.0f;
}

/* own := own * c + other * t, where t is -s for the first of a pair and s for the second: a product's sign is
 * exact, and a sum with a negated term is the difference. */
static __device__ __forceinline__ float turn(float own, float other, float c, float t) {
    return own * c + other * t;
}

static __device__ __forceinline__ float no_number(void) {
    return agoqk_float(AGOQK_NAN_BITS);
}

/* Pairs inside vector j of a head. */
static __device__ __forceinline__ void turn_inside(const rope_args &a, int64_t p, int j, float x[AGOQK_VEC]) {
    const int n_pairs = min(4, a.rotary / 2 - 4 * j);
    float c[4], s[4];
    if (n_pairs <= 0) return;
    if (p >= 0) {
        load_angles<4>(a.cos, p * (a.rotary / 2) + 4 * j, n_pairs, a.table_vec, c);
        load_angles<4>(a.sin, p * (a.rotary / 2) + 4 * j, n_pairs, a.table_vec, s);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (i >= n_pairs) continue;
        const float u = x[2 * i], v = x[2 * i + 1], t = a.backward ? -s[i] : s[i];
        x[2 * i] = p >= 0 ? turn(u, v, c[i], -t) : no_number();
        x[2 * i + 1] = p >= 0 ? turn(v, u, c[i], t) : no_number();
    }
}

/* Vector j of a head and the vector that holds the other halves of its pairs; both halves are whole vectors.
 */
static __device__ __forceinline__ void turn_across(const rope_args &a, int64_t p, int j,
                                                   const float other[AGOQK_VEC], float x[AGOQK_VEC]) {
    const int half = a.rotary / 16, second = j >= half; /* in vectors */
    if (j >= 2 * half) return;
    if (p < 0) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) x[i] = no_number();
        return;
    }
    const int64_t at = p * (a.rotary / 2) + 8 * (second ? j - half : j);
    float c[AGOQK_VEC], s[AGOQK_VEC];
    load_angles<AGOQK_VEC>(a.cos, at, AGOQK_VEC, a.table_vec, c);
    load_angles<AGOQK_VEC>(a.sin, at, AGOQK_VEC, a.table_vec, s);
    const bool minus = second ? a.backward : !a.backward;
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) x[i] = turn(x[i], other[i], c[i], minus ? -s[i] : s[i]);
}

template <int DTYPE>
static __device__ __forceinline__ agoqk_raw8<DTYPE> from_lane(const agoqk_raw8<DTYPE> &mine, int lane) {
    agoqk_raw8<DTYPE> raw;
#pragma unroll
    for (int i = 0; i < (int)(sizeof raw.w / sizeof raw.w[0]); i++) {
        raw.w[i].x = __shfl_sync(0xFFFFFFFFu, mine.w[i].x, lane);
        raw.w[i].y = __shfl_sync(0xFFFFFFFFu, mine.w[i].y, lane);
        raw.w[i].z = __shfl_sync(0xFFFFFFFFu, mine.w[i].z, lane);
        raw.w[i].w = __shfl_sync(0xFFFFFFFFu, mine.w[i].w, lane);
    }
    return raw;
}

/* Items are slices of 32 vectors of a row. Heads are whole vectors and, unless interleaved, divide a slice;
 * with rotary = 0 any columns will do. */
template <int DTYPE, int BITS>
static __global__ void __launch_bounds__(THREADS) rope_kernel(const __grid_constant__ rope_args a) {
    const int lane = threadIdx.x % 32, head = a.head_dim / 8, half = a.rotary / 16;
    uint32_t bad = 0;
    for (int64_t first = ((int64_t)blockIdx.x * WARPS + threadIdx.x / 32) * UNROLL; first < a.n_items;
         first += (int64_t)gridDim.x * WARPS * UNROLL) {
        agoqk_raw8<DTYPE> raw[UNROLL];
        int64_t row[UNROLL], vector[UNROLL];
        int n[UNROLL];
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t r = quotient(first + k, a.per_row), v = (first + k - r * a.per_row) * 32 + lane;
            vector[k] = v;
            n[k] = first + k < a.n_items ? agoqk_count_of(a.cols, 8 * v, AGOQK_VEC) : 0;
            row[k] = n[k] ? r : 0;
            raw[k] = agoqk_load_raw<DTYPE>(agoqk_at<DTYPE>(a.x, row[k], 8 * v), n[k], a.x.vec);
        }
#pragma unroll
        for (int k = 0; k < UNROLL; k++) {
            const int64_t r = row[k], v = vector[k];
            float x[AGOQK_VEC];
            agoqk_convert<DTYPE>(raw[k], x);
            if (a.rotary && a.interleaved) {
                if (n[k] > 0) turn_inside(a, position_of(a, r), (int)(v - quotient(v, head) * head), x);
            } else if (a.rotary) {
                const int j = lane & (head - 1);
                const int from = j < half ? lane + half : j < 2 * half ? lane - half : lane;
                float other[AGOQK_VEC];
                agoqk_convert<DTYPE>(from_lane<DTYPE>(raw[k], from), other);
                if (n[k] > 0) turn_across(a, position_of(a, r), j, other, x);
            }
            if (a.store && n[k] > 0) agoqk_store8<DTYPE>(agoqk_at<DTYPE>(a.y, r, 8 * v), n[k], a.y.vec, x);
            if (BITS == NO_BITS) continue;
            if (DTYPE == AGOQ_DTYPE_F16) { /* what y holds; its NaNs need not be canonical here */
#pragma unroll
                for (int i = 0; i < AGOQK_VEC; i += 2)
                    agoqk_unpack_half2(agoqk_pack_half2(x[i], x[i + 1], DTYPE), DTYPE, x[i], x[i + 1]);
            }
            if (DTYPE == AGOQ_DTYPE_BF16) agoqk_round8(x);
            bad += agoqk_put8 < BITS == NO_BITS ? 16 : BITS > (a.packed, r, v, n[k], x, NULL);
        }
    }
    if (BITS != NO_BITS) agoqk_count(a.nonfinite, bad);
}

template <int DTYPE, int N>
static __device__ __forceinline__ void get_unit(const agoqk_mat &m, int64_t r, int64_t c, float x[N]) {
    if (N == AGOQK_VEC) {
        float e[AGOQK_VEC];
        agoqk_load8<DTYPE>(agoqk_at<DTYPE>(m, r, c), AGOQK_VEC, m.vec, e);
#pragma unroll
        for (int i = 0; i < N; i++) x[i] = e[i];
    } else {
        x[0] = agoqk_elem<DTYPE>::get(agoqk_at<DTYPE>(m, r, c));
    }
}

template <int DTYPE, int N>
static __device__ __forceinline__ void put_unit(const agoqk_mat &m, int64_t r, int64_t c, const float x[N]) {
    if (N == AGOQK_VEC) {
        float e[AGOQK_VEC];
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) e[i] = x[i % N];
        agoqk_store8<DTYPE>(agoqk_at<DTYPE>(m, r, c), AGOQK_VEC, m.vec, e);
    } else {
        agoqk_elem<DTYPE>::put(agoqk_at<DTYPE>(m, r, c), x[0]);
    }
}

/* Items are units of N elements: the pairs of a head first, both members with one thread, then the elements
 * that pass through. N = 8: both halves of a head and the rest are whole vectors. */
template <int DTYPE, int N>
static __global__ void __launch_bounds__(THREADS) pairs_kernel(const __grid_constant__ rope_args a) {
    const int half = a.rotary / 2, pairs = half / N, units = pairs + (a.head_dim - a.rotary) / N;
    for (int64_t item = (int64_t)blockIdx.x * THREADS + threadIdx.x; item < a.n_items;
         item += (int64_t)gridDim.x * THREADS) {
        const int64_t r = quotient(item, a.per_row), in_row = item - r * a.per_row;
        const int64_t h = quotient(in_row, units), from = h * a.head_dim;
        const int i = (int)(in_row - h * units) * N;
        float u[N], v[N], c[N], s[N];
        if (i >= half) {
            get_unit<DTYPE, N>(a.x, r, from + a.rotary + (i - half), u);
            put_unit<DTYPE, N>(a.y, r, from + a.rotary + (i - half), u);
            continue;
        }
        const int64_t p = position_of(a, r), cu = from + (a.interleaved ? 2 * i : i),
                      cv = a.interleaved ? cu + 1 : cu + half;
        get_unit<DTYPE, N>(a.x, r, cu, u);
        get_unit<DTYPE, N>(a.x, r, cv, v);
        for (int k = 0; k < N; k++) {
            c[k] = p >= 0 ? __ldg(a.cos + p * half + i + k) : 0.0f;
            s[k] = p >= 0 ? __ldg(a.sin + p * half + i + k) : 0.0f;
        }
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float t = a.backward ? -s[k] : s[k], first = turn(u[k], v[k], c[k], -t);
            v[k] = p >= 0 ? turn(v[k], u[k], c[k], t) : no_number();
            u[k] = p >= 0 ? first : no_number();
        }
        put_unit<DTYPE, N>(a.y, r, cu, u);
        put_unit<DTYPE, N>(a.y, r, cv, v);
    }
}

template <int DTYPE>
static void launch_rope(const rope_args &a, int bits, const agoqk_shape &shape, cudaStream_t stream) {
    if (bits == NO_BITS) {
        rope_kernel<DTYPE, NO_BITS><<<shape.grid, shape.block, 0, stream>>>(a);
        return;
    }
    AGOQK_BITS_SWITCH(bits, BITS, rope_kernel<DTYPE, BITS><<<shape.grid, shape.block, 0, stream>>>(a))
}

static agoq_status by_vectors(rope_args *a, agoq_dtype dtype, int bits, const char *name, void *stream) {
    a->per_row = (a->cols + 255) / 256;
    a->n_items = a->rows * a->per_row;
    const int64_t per_block = WARPS * UNROLL;
    const agoqk_shape shape = {dim3(agoqk_grid((a->n_items + per_block - 1) / per_block)), dim3(THREADS), 0};
    AGOQK_DTYPE_SWITCH(dtype, DTYPE, launch_rope<DTYPE>(*a, bits, shape, (cudaStream_t)stream))
    return agoqk_launched(name, dtype, bits, &shape);
}

static agoq_status by_pairs(rope_args *a, agoq_dtype dtype, void *stream) {
    const int whole = !a->interleaved && a->rotary % 16 == 0 && a->head_dim % 8 == 0;
    const int unit = whole ? AGOQK_VEC : 1;
    a->per_row = a->cols / a->head_dim * ((a->head_dim - a->rotary / 2) / unit);
    a->n_items = a->rows * a->per_row;
    const agoqk_shape shape = {dim3(agoqk_grid((a->n_items + THREADS - 1) / THREADS)), dim3(THREADS), 0};
    AGOQK_DTYPE_SWITCH(dtype, DTYPE, {
        if (whole)
            pairs_kernel<DTYPE, AGOQK_VEC><<<shape.grid, shape.block, 0, (cudaStream_t)stream>>>(*a);
        else
            pairs_kernel<DTYPE, 1><<<shape.grid, shape.block, 0, (cudaStream_t)stream>>>(*a);
    })
    return agoqk_launched("rope_pairs", dtype, NO_BITS, &shape);
}

agoq_status agoqk_cuda_rope(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                            const agoq_view *y, const agoq_packed *packed) {
    agoqk_launch_begin("rope");
    if (y->dtype != x->dtype) return AGOQ_E_UNSUPPORTED;
    if (x->rows == 0 || x->cols == 0) return AGOQ_OK;
    const int bits = packed ? packed->layout.format : NO_BITS, head = rope->head_dim, half = rope->rotary / 2;
    rope_args a = {};
    a.x = agoqk_mat_of(x);
    a.y = agoqk_mat_of(y);
    if (packed) a.packed = agoqk_pmat_of(packed);
    a.cos = rope->cos;
    a.sin = rope->sin;
    a.positions = rope->positions;
    a.rows = x->rows;
    a.cols = x->cols;
    a.n_positions = rope->n_positions;
    a.head_dim = head;
    a.rotary = rope->rotary;
    a.interleaved = rope->interleaved != 0;
    a.backward = backward != 0;
    a.table_vec = (uintptr_t)rope->cos % 16 == 0 && (uintptr_t)rope->sin % 16 == 0 && half % 4 == 0;
    a.store = 1;
    a.nonfinite = exec->nonfinite;
    const int in_warp = head % 8 == 0 && 256 % head == 0 && half % 8 == 0;
    if (rope->rotary == 0 || (rope->interleaved && head % 8 == 0) || in_warp)
        return by_vectors(&a, x->dtype, bits, "rope", exec->stream);
    const agoq_status status = by_pairs(&a, x->dtype, exec->stream);
    if (status != AGOQ_OK || !packed) return status;
    a.x = a.y; /* packed takes what was stored */
    a.rotary = a.store = 0;
    return by_vectors(&a, x->dtype, bits, "rope_pack", exec->stream);
}
