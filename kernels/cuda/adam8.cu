/* AdamW with 8-bit state. A warp takes a block of 256 parameters, lane i its elements 8 i .. 8 i + 7: the
 * largest moments are found by shuffles, and no thread waits for another warp. Codes are decoded by one
 * look-up in shared memory and encoded by one (the cells of kernels/format/dynmap.h), the tables being made
 * anew by every block of threads, which then walks over many blocks of parameters. Bytes per parameter,
 * master in fp32 and gradients in 8 bits: 13.1, in place; bound: memory, with the issue of instructions close
 * behind. Deterministic: no result depends on the launch shape. */
#include "kernels/cuda/grad.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/format/dynmap.h"

enum { THREADS = 256, WARPS = THREADS / 32, PER_SM = 3 }; /* threads of a block, blocks of a multiprocessor */
enum { TARGET_MASTER, TARGET_BOTH, TARGET_BF16 };
enum { SOURCE_GRAD8 = 3 }; /* sources: dtypes, then formats */

struct adam_args {
    uint8_t *m, *v;
    float *m_absmax, *v_absmax;
    int64_t n, n_blocks;
    const void *grad; /* elements, or codes */
    const float *scales;
    float *master;
    uint16_t *bf16;
    int state_vec, grad_vec, master_vec, bf16_vec;
    float lr, beta1, beta2, keep1, keep2, eps, decay, multiplier, fix1, fix2;
    agoqk_rng rng;
    uint32_t *nonfinite;
};

struct adam_tables {
    float level_m[256], level_v[256];
    uint32_t cell_m[AGOQK_DYNMAP_CELLS], cell_v[AGOQK_DYNMAP_CELLS];
    float middle_m[128], middle_v[255];
};

static __device__ void make_tables(adam_tables *t) {
    for (int c = threadIdx.x; c < 256; c += THREADS) {
        t->level_m[c] = agoqk_dynmap_signed(c);
        t->level_v[c] = agoqk_dynmap_unsigned(c);
        if (c < 128) t->middle_m[c] = agoqk_dynmap_middle_signed(c);
        if (c < 255) t->middle_v[c] = agoqk_dynmap_middle_unsigned(c);
    }
    __syncthreads();
    for (int c = threadIdx.x; c < AGOQK_DYNMAP_CELLS; c += THREADS) {
        t->cell_m[c] = agoqk_dynmap_cell(t->middle_m, 128, c);
        t->cell_v[c] = agoqk_dynmap_cell(t->middle_v, 255, c);
    }
    __syncthreads();
}

/* n of eight codes; zeros beyond. */
static __device__ __forceinline__ uint2 load_codes(const uint8_t *p, int n, int vec) {
    if (vec && n == AGOQK_VEC) return __ldcs((const uint2 *)p);
    uint32_t w[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (i < n) w[i / 4] |= (uint32_t)p[i] << 8 * (i % 4);
    return make_uint2(w[0], w[1]);
}

static __device__ __forceinline__ void store_codes(uint8_t *p, int n, int vec, uint32_t low, uint32_t high) {
    if (vec && n == AGOQK_VEC) {
        __stcs((uint2 *)p, make_uint2(low, high));
        return;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (i < n) p[i] = (uint8_t)((i < 4 ? low : high) >> 8 * (i % 4));
}

static __device__ __forceinline__ void decode(const float *level, uint2 w, float top, float x[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) x[i] = level[(i < 4 ? w.x : w.y) >> 8 * (i % 4) & 0xFFu] * top;
}

/* The gradient of a lane, loaded before it is decoded. */
template <int SOURCE> struct raw_grad { agoqk_raw8<SOURCE> x; };
struct raw_grad8 {
    uint2 w;
    float scale;
};
template <> struct raw_grad<SOURCE_GRAD8 + AGOQ_GRAD_E4M3> : raw_grad8 {};
template <> struct raw_grad<SOURCE_GRAD8 + AGOQ_GRAD_E5M2> : raw_grad8 {};
template <> struct raw_grad<SOURCE_GRAD8 + AGOQ_GRAD_INT8> : raw_grad8 {};

template <int SOURCE>
static __device__ __forceinline__ raw_grad<SOURCE> load_grad(const adam_args &a, int64_t at, int n) {
    raw_grad<SOURCE> raw;
    if constexpr (SOURCE < SOURCE_GRAD8) {
        raw.x = agoqk_load_raw<SOURCE>((const typename agoqk_elem<SOURCE>::type *)a.grad + at, n, a.grad_vec);
    } else {
        raw.w = load_codes((const uint8_t *)a.grad + at, n, a.grad_vec);
        raw.scale = n > 0 ? a.scales[at / AGOQ_GRAD_BLOCK] : 0.0f;
    }
    return raw;
}

template <int SOURCE>
static __device__ __forceinline__ void decode_grad(const raw_grad<SOURCE> &raw, float g[AGOQK_VEC]) {
    if constexpr (SOURCE < SOURCE_GRAD8) {
        agoqk_convert<SOURCE>(raw.x, g);
    } else {
        agoqk_grad_values4<SOURCE - SOURCE_GRAD8>(raw.w.x, g);
        agoqk_grad_values4<SOURCE - SOURCE_GRAD8>(raw.w.y, g + 4);
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) g[i] = g[i] * raw.scale + 0.0f;
    }
}

/* What a warp keeps of a moment besides codes: its absmax (0; NaN), and the inverse, 0 where codes are those
 * of zero or elements are divided. */
static __device__ __forceinline__ float absmax_of(const float x[AGOQK_VEC]) {
    float top = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < AGOQK_VEC; i++) top = agoqk_max_nan(top, fabsf(x[i]));
    const uint32_t most = __reduce_max_sync(0xFFFFFFFFu, __float_as_uint(top) & 0x7FFFFFFFu);
    return agoqk_float(most >= AGOQK_INF_BITS ? AGOQK_NAN_BITS : most);
}

/* Midpoints below each of eight moments, a byte each. */
static __device__ __forceinline__ void counts(const uint32_t *cells, const float x[AGOQK_VEC], float top,
                                              uint32_t w[2]) {
    float t[AGOQK_VEC];
    const bool tiny = top < 0x1p-126f; /* 0, or an inverse that may overflow; the warp is of one mind */
    const float inverse = top == top && !tiny ? 1.0f / top : 0.0f;
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) t[i] = x[i] * inverse;
    if (tiny && top > 0.0f) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) t[i] = x[i] / top;
    }
    uint32_t count[AGOQK_VEC];
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const uint32_t key =
            __float_as_uint(fmaxf(fabsf(t[i]), AGOQK_DYNMAP_LEAST)) + (__float_as_uint(t[i]) >> 31);
        count[i] = agoqk_dynmap_count(cells, key);
    }
#pragma unroll
    for (int j = 0; j < 2; j++)
        w[j] = __byte_perm(__byte_perm(count[4 * j], count[4 * j + 1], 0x0062),
                           __byte_perm(count[4 * j + 2], count[4 * j + 3], 0x0062), 0x5410);
}

/* Four counts of the signed map to codes: 127 + count, or 127 - min(count, 127) for x below zero. */
static __device__ __forceinline__ uint32_t signed_codes(uint32_t count, const float x[4]) {
    const uint32_t minus = __byte_perm(agoqk_signs(x[0], x[1]), agoqk_signs(x[2], x[3]), 0x5410);
    count -= (count & minus & 0x80808080u) >> 7; /* 128 to 127 */
    return (minus & (count ^ 0x7F7F7F7Fu)) | (~minus & (count + 0x7F7F7F7Fu));
}

static __device__ __forceinline__ void step(const adam_args &a, const float g[AGOQK_VEC], float m[AGOQK_VEC],
                                            float v[AGOQK_VEC], float p[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const float x = g[i] * a.multiplier;
        m[i] = a.beta1 * m[i] + a.keep1 * x;
        v[i] = a.beta2 * v[i] + a.keep2 * (x * x);
        const float update = m[i] * a.fix1 / (sqrtf(v[i] * a.fix2) + a.eps) + a.decay * p[i];
        p[i] -= a.lr * update;
    }
    if (agoqk_maybe_nan8(p)) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) p[i] = agoqk_canonical(p[i]);
    }
}

template <int TARGET>
static __device__ __forceinline__ void store_params(const adam_args &a, int64_t at, int n,
                                                    const float p[AGOQK_VEC]) {
    if (n <= 0) return;
    if (TARGET != TARGET_BF16) agoqk_store8<AGOQ_DTYPE_F32>(a.master + at, n, a.master_vec, p);
    if (TARGET == TARGET_MASTER) return;
    if (TARGET == TARGET_BOTH || !a.rng.on) {
        agoqk_store8<AGOQ_DTYPE_BF16>(a.bf16 + at, n, a.bf16_vec, p);
        return;
    }
    uint32_t r[AGOQK_VEC], h[AGOQK_VEC];
    agoqk_random8(a.rng, a.rng.offset + (uint64_t)at, r);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) h[i] = agoqk_bf16_encode_sr(p[i], r[i]);
    if (a.bf16_vec && n == AGOQK_VEC) {
        __stcs((uint4 *)(a.bf16 + at),
               make_uint4(h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16));
        return;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (i < n) a.bf16[at + i] = (uint16_t)h[i];
}

/* Codes and absmax of both moments. Returns, on the first lane, how many of the two hold a NaN or Inf. */
static __device__ __forceinline__ uint32_t store_state(const adam_args &a, const adam_tables &t, int64_t b,
                                                       int n, const float m[AGOQK_VEC],
                                                       const float v[AGOQK_VEC]) {
    const int lane = threadIdx.x % 32;
    const int64_t at = b * AGOQK_ADAM_BLOCK + lane * AGOQK_VEC;
    const float top_m = absmax_of(m), top_v = absmax_of(v);
    uint32_t w[2];
    counts(t.cell_m, m, top_m, w);
    const bool none_m = !(top_m > 0.0f), none_v = !(top_v > 0.0f);
    w[0] = none_m ? AGOQK_DYNMAP_ZERO_SIGNED * 0x01010101u : signed_codes(w[0], m);
    w[1] = none_m ? AGOQK_DYNMAP_ZERO_SIGNED * 0x01010101u : signed_codes(w[1], m + 4);
    store_codes(a.m + at, n, a.state_vec, w[0], w[1]);
    counts(t.cell_v, v, top_v, w);
    float least = v[0];
#pragma unroll
    for (int i = 1; i < AGOQK_VEC; i++) least = fminf(least, v[i]);
    if (least == 0.0f || none_v) { /* the only code 0 */
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (v[i] == 0.0f || none_v) w[i / 4] &= ~(0xFFu << 8 * (i % 4));
    }
    store_codes(a.v + at, n, a.state_vec, w[0], w[1]);
    if (lane != 0) return 0;
    a.m_absmax[b] = top_m;
    a.v_absmax[b] = top_v;
    return (top_m != top_m) + (top_v != top_v);
}

template <int SOURCE, int TARGET>
static __global__ void __launch_bounds__(THREADS, PER_SM) step_kernel(const __grid_constant__ adam_args a) {
    __shared__ adam_tables tables;
    make_tables(&tables);
    const int lane = threadIdx.x % 32;
    uint32_t bad = 0;
    for (int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < a.n_blocks;
         b += (int64_t)gridDim.x * WARPS) {
        const int64_t at = b * AGOQK_ADAM_BLOCK + lane * AGOQK_VEC;
        const int n = agoqk_count_of(a.n, at, AGOQK_VEC);
        const uint2 codes_m = load_codes(a.m + at, n, a.state_vec),
                    codes_v = load_codes(a.v + at, n, a.state_vec);
        const float top_m = a.m_absmax[b], top_v = a.v_absmax[b];
        const raw_grad<SOURCE> raw = load_grad<SOURCE>(a, at, n);
        float g[AGOQK_VEC], m[AGOQK_VEC], v[AGOQK_VEC], p[AGOQK_VEC];
        if (TARGET == TARGET_BF16)
            agoqk_load8<AGOQ_DTYPE_BF16>(a.bf16 + at, n, a.bf16_vec, p);
        else
            agoqk_load8<AGOQ_DTYPE_F32>(a.master + at, n, a.master_vec, p);
        decode_grad<SOURCE>(raw, g);
        decode(tables.level_m, codes_m, top_m, m);
        decode(tables.level_v, codes_v, top_v, v);
        step(a, g, m, v, p);
        store_params<TARGET>(a, at, n, p);
        if (n < AGOQK_VEC) { /* what does not exist counts for nothing */
#pragma unroll
            for (int i = 0; i < AGOQK_VEC; i++) {
                m[i] = i < n ? m[i] : 0.0f;
                v[i] = i < n ? v[i] : 0.0f;
            }
        }
        bad += store_state(a, tables, b, n, m, v);
    }
    agoqk_count(a.nonfinite, bad);
}

agoq_status agoqk_cuda_adam8_init(const agoq_exec *exec, const agoq_adam8 *state) {
    agoqk_launch_begin("adam8_init");
    if (state->n == 0) return AGOQ_OK;
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    const size_t n = (size_t)state->n, tops = ((n - 1) / AGOQK_ADAM_BLOCK + 1) * sizeof(float);
    cudaError_t error = cudaMemsetAsync(state->m, AGOQK_DYNMAP_ZERO_SIGNED, n, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(state->v, 0, n, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(state->m_absmax, 0, tops, stream);
    if (error == cudaSuccess) error = cudaMemsetAsync(state->v_absmax, 0, tops, stream);
    return agoqk_from_cuda(error);
}

static float integer_power(float base, int64_t exponent) {
    double result = 1.0, square = (double)base;
    for (; exponent > 0; exponent >>= 1, square *= square) {
        if (exponent & 1) result *= square;
    }
    return (float)result;
}

static adam_args make_args(const agoq_exec *exec, const agoq_adam_params *adam,
                           const agoq_adam_source *source, const agoq_adam_target *target,
                           const agoq_adam8 *state) {
    adam_args a = {};
    a.m = state->m, a.v = state->v;
    a.m_absmax = state->m_absmax, a.v_absmax = state->v_absmax;
    a.n = state->n, a.n_blocks = (state->n - 1) / AGOQK_ADAM_BLOCK + 1;
    a.grad = source->grad8 ? source->grad8->codes : source->grad;
    a.scales = source->grad8 ? source->grad8->scales : NULL;
    a.master = target->master, a.bf16 = (uint16_t *)target->bf16;
    a.state_vec = ((uintptr_t)a.m | (uintptr_t)a.v) % 8 == 0;
    a.grad_vec = (uintptr_t)a.grad % (source->grad8 ? 8 : 16) == 0;
    a.master_vec = (uintptr_t)a.master % 16 == 0;
    a.bf16_vec = (uintptr_t)a.bf16 % 16 == 0;
    a.lr = adam->lr, a.eps = adam->eps, a.decay = adam->weight_decay, a.multiplier = adam->grad_multiplier;
    a.beta1 = adam->beta1, a.beta2 = adam->beta2;
    a.keep1 = 1.0f - adam->beta1, a.keep2 = 1.0f - adam->beta2;
    a.fix1 = 1.0f / (1.0f - integer_power(adam->beta1, adam->step));
    a.fix2 = 1.0f / (1.0f - integer_power(adam->beta2, adam->step));
    a.rng = agoqk_rng_of(target->master ? NULL : target->key);
    a.nonfinite = exec->nonfinite;
    return a;
}

template <int SOURCE> static void launch(const adam_args &a, const agoqk_shape &shape, cudaStream_t stream) {
    if (!a.master)
        step_kernel<SOURCE, TARGET_BF16><<<shape.grid, shape.block, 0, stream>>>(a);
    else if (a.bf16)
        step_kernel<SOURCE, TARGET_BOTH><<<shape.grid, shape.block, 0, stream>>>(a);
    else
        step_kernel<SOURCE, TARGET_MASTER><<<shape.grid, shape.block, 0, stream>>>(a);
}

agoq_status agoqk_cuda_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam,
                                  const agoq_adam_source *source, const agoq_adam_target *target,
                                  const agoq_adam8 *state) {
    agoqk_launch_begin("adam8_step");
    if (state->n == 0) return AGOQ_OK;
    const adam_args a = make_args(exec, adam, source, target, state);
    int device = 0, processors = 0;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess)
        error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error != cudaSuccess) return agoqk_from_cuda(error);
    const int64_t want = (a.n_blocks - 1) / WARPS + 1, most = (int64_t)processors * PER_SM;
    const agoqk_shape shape = {dim3(agoqk_grid(want < most ? want : most)), dim3(THREADS),
                               sizeof(adam_tables)};
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    if (source->grad8) {
        AGOQK_GRAD_SWITCH(source->grad8->format, FORMAT, launch<SOURCE_GRAD8 + FORMAT>(a, shape, stream))
    } else {
        AGOQK_DTYPE_SWITCH(source->dtype, DTYPE, launch<DTYPE>(a, shape, stream))
    }
    return agoqk_launched("adam8_step", source->grad8 ? AGOQ_DTYPE_F32 : source->dtype, 8, &shape);
}
