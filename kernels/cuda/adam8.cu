/* AdamW with 8-bit state. A warp takes a block of 256 parameters, lane i its elements 8 i .. 8 i + 7: the
 * largest moments are found by shuffles, and no thread waits for another warp. Codes are decoded by one
 * look-up in shared memory and encoded by one (the cells of kernels/format/dynmap.h), the tables being made
 * anew by every block of threads, which then walks over many blocks of parameters. Bytes per parameter,
 * master in fp32 and gradients in 8 bits: 13.1, in place; bound: memory, with the issue of instructions close
 * behind. Deterministic: no result depends on the launch shape. */
#include "kernels/cuda/adam8.cuh"
#include "kernels/cuda/grad.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"
#include "kernels/format/adam.h"

enum {
    THREADS = AGOQK_ADAM_THREADS,
    WARPS = THREADS / 32,
    PER_SM = 3
}; /* threads of a block, blocks of a multiprocessor */
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
    int state_vec, grad_vec, param_vec; /* accesses may be whole vectors */
    int tame;                           /* eps is no obstacle to short quotients */
    float lr, beta1, beta2, keep1, keep2, eps, decay, multiplier, fix1, fix2;
    agoqk_rng rng;
    uint32_t *nonfinite;
};

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
static __device__ __forceinline__ raw_grad<SOURCE> load_grad(const adam_args &a, int64_t at, int n, int vec) {
    raw_grad<SOURCE> raw;
    if constexpr (SOURCE < SOURCE_GRAD8) {
        raw.x = agoqk_load_raw<SOURCE>((const typename agoqk_elem<SOURCE>::type *)a.grad + at, n, vec);
    } else {
        raw.w = agoqk_adam_load((const uint8_t *)a.grad + at, n, vec);
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

static __device__ __forceinline__ float least_of(const float x[AGOQK_VEC]) {
    float least = fabsf(x[0]);
#pragma unroll
    for (int i = 1; i < AGOQK_VEC; i++) least = fminf(least, fabsf(x[i]));
    return least;
}

static __device__ __noinline__ agoqk_eight any_updates(agoqk_eight m, agoqk_eight v, float fix1, float fix2,
                                                       float eps) {
#pragma unroll 1
    for (int i = 0; i < AGOQK_VEC; i++) m.x[i] = m.x[i] * fix1 / (sqrtf(v.x[i] * fix2) + eps);
    return m;
}

/* m * fix1 / (sqrt(v * fix2) + eps), rounded after each operation. The square root and the quotient are what
 * the compiler makes of them for arguments far from the ends of the range, without its test of each one. */
static __device__ __forceinline__ void updates(const adam_args &a, const float m[AGOQK_VEC],
                                               const float v[AGOQK_VEC], bool tame, float u[AGOQK_VEC]) {
    if (tame) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            const float x = v[i] * a.fix2, num = m[i] * a.fix1;
            const float r = agoqk_rsqrt_approx(x), root = x * r, half = r * 0.5f;
            const float den = fmaf(fmaf(-root, root, x), half, root) + a.eps;
            float y = agoqk_rcp_approx(den);
            y = fmaf(y, fmaf(-den, y, 1.0f), y);
            const float q = num * y;
            u[i] = fmaf(y, fmaf(-den, q, num), q);
        }
        return;
    }
    const agoqk_eight e = any_updates(agoqk_eight_of(m), agoqk_eight_of(v), a.fix1, a.fix2, a.eps);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) u[i] = e.x[i];
}

/* The moments of a lane, then its parameters. fix1 and fix2 are at least 1. */
static __device__ __forceinline__ void step_moments(const adam_args &a, const float g[AGOQK_VEC],
                                                    float m[AGOQK_VEC], float v[AGOQK_VEC]) {
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) {
        const float x = g[i] * a.multiplier;
        m[i] = a.beta1 * m[i] + a.keep1 * x;
        v[i] = a.beta2 * v[i] + a.keep2 * (x * x);
    }
}

static __device__ __forceinline__ void step_params(const adam_args &a, const float m[AGOQK_VEC],
                                                   const float v[AGOQK_VEC], bool tame, float p[AGOQK_VEC]) {
    float u[AGOQK_VEC];
    updates(a, m, v, tame, u);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) p[i] -= a.lr * (u[i] + a.decay * p[i]);
    if (agoqk_maybe_nan8(p)) {
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) p[i] = agoqk_canonical(p[i]);
    }
}

template <int TARGET>
static __device__ __forceinline__ void store_params(const adam_args &a, int64_t at, int n, int vec,
                                                    const float p[AGOQK_VEC]) {
    if (n <= 0) return;
    if (TARGET != TARGET_BF16) agoqk_store8<AGOQ_DTYPE_F32>(a.master + at, n, vec, p);
    if (TARGET == TARGET_MASTER) return;
    if (TARGET == TARGET_BOTH || !a.rng.on) {
        agoqk_store8<AGOQ_DTYPE_BF16>(a.bf16 + at, n, vec, p);
        return;
    }
    uint32_t r[AGOQK_VEC], h[AGOQK_VEC];
    agoqk_random8(a.rng, a.rng.offset + (uint64_t)at, r);
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++) h[i] = agoqk_bf16_encode_sr(p[i], r[i]);
    if (vec && n == AGOQK_VEC) {
        __stcs((uint4 *)(a.bf16 + at),
               make_uint4(h[0] | h[1] << 16, h[2] | h[3] << 16, h[4] | h[5] << 16, h[6] | h[7] << 16));
        return;
    }
#pragma unroll
    for (int i = 0; i < AGOQK_VEC; i++)
        if (i < n) a.bf16[at + i] = (uint16_t)h[i];
}

/* Codes of both moments; least: smallest of the lane's v. */
static __device__ __forceinline__ void store_state(const adam_args &a, const agoqk_adam_tables &t, int64_t at,
                                                   int n, int vec, const float m[AGOQK_VEC], float top_m,
                                                   const float v[AGOQK_VEC], float top_v, float least) {
    uint32_t w[2];
    agoqk_adam_counts(t.cell_m, m, top_m, w);
    const bool none_m = !(top_m > 0.0f), none_v = !(top_v > 0.0f);
    w[0] = none_m ? AGOQK_DYNMAP_ZERO_SIGNED * 0x01010101u : agoqk_adam_signed(w[0], m);
    w[1] = none_m ? AGOQK_DYNMAP_ZERO_SIGNED * 0x01010101u : agoqk_adam_signed(w[1], m + 4);
    agoqk_adam_store(a.m + at, n, vec, w[0], w[1]);
    agoqk_adam_counts(t.cell_v, v, top_v, w);
    if (least == 0.0f || none_v) { /* the only code 0 */
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++)
            if (v[i] == 0.0f || none_v) w[i / 4] &= ~(0xFFu << 8 * (i % 4));
    }
    agoqk_adam_store(a.v + at, n, vec, w[0], w[1]);
}

/* One block, by a warp. WHOLE: 256 elements, every access aligned. Returns, on the first lane, how many of
 * its two moments hold a NaN or Inf. */
template <int SOURCE, int TARGET, bool WHOLE>
static __device__ __forceinline__ uint32_t step_block(const adam_args &a, const agoqk_adam_tables &tables,
                                                      int64_t b) {
    const int lane = threadIdx.x % 32;
    const int64_t at = b * AGOQK_ADAM_BLOCK + lane * AGOQK_VEC;
    const int n = WHOLE ? AGOQK_VEC : agoqk_count_of(a.n, at, AGOQK_VEC);
    const int state_vec = WHOLE || a.state_vec, param_vec = WHOLE || a.param_vec;
    const uint2 codes_m = agoqk_adam_load(a.m + at, n, state_vec),
                codes_v = agoqk_adam_load(a.v + at, n, state_vec);
    const raw_grad<SOURCE> raw = load_grad<SOURCE>(a, at, n, WHOLE || a.grad_vec);
    float g[AGOQK_VEC], m[AGOQK_VEC], v[AGOQK_VEC], p[AGOQK_VEC];
    if (TARGET == TARGET_BF16)
        agoqk_load8<AGOQ_DTYPE_BF16>(a.bf16 + at, n, param_vec, p);
    else
        agoqk_load8<AGOQ_DTYPE_F32>(a.master + at, n, param_vec, p);
    agoqk_adam_decode(tables.level_m, codes_m, a.m_absmax[b], m);
    agoqk_adam_decode(tables.level_v, codes_v, a.v_absmax[b], v);
    decode_grad<SOURCE>(raw, g);
    step_moments(a, g, m, v);
    if (n < AGOQK_VEC) { /* what does not exist counts for nothing */
#pragma unroll
        for (int i = 0; i < AGOQK_VEC; i++) {
            m[i] = i < n ? m[i] : 0.0f;
            v[i] = i < n ? v[i] : 0.0f;
        }
    }
    const float top_m = agoqk_adam_absmax(m), top_v = agoqk_adam_absmax(v), least = least_of(v);
    const bool tame = a.tame && least >= 0x1p-100f && least_of(m) >= 0x1p-78f && top_m * a.fix1 <= 0x1p60f &&
                      top_v * a.fix2 <= 0x1p78f;
    step_params(a, m, v, tame, p);
    store_params<TARGET>(a, at, n, param_vec, p);
    store_state(a, tables, at, n, state_vec, m, top_m, v, top_v, least);
    if (lane != 0) return 0;
    a.m_absmax[b] = top_m;
    a.v_absmax[b] = top_v;
    return (top_m != top_m) + (top_v != top_v);
}

template <int SOURCE, int TARGET>
static __device__ __noinline__ uint32_t any_block(const adam_args &a, const agoqk_adam_tables &tables,
                                                  int64_t b) {
    return step_block<SOURCE, TARGET, false>(a, tables, b);
}

template <int SOURCE, int TARGET>
static __global__ void __launch_bounds__(THREADS, PER_SM) step_kernel(const __grid_constant__ adam_args a) {
    __shared__ agoqk_adam_tables tables;
    agoqk_adam_tables_make(&tables);
    const int aligned = a.state_vec && a.grad_vec && a.param_vec;
    uint32_t bad = 0;
    for (int64_t b = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32; b < a.n_blocks;
         b += (int64_t)gridDim.x * WARPS) {
        if (aligned && (b + 1) * AGOQK_ADAM_BLOCK <= a.n)
            bad += step_block<SOURCE, TARGET, true>(a, tables, b);
        else
            bad += any_block<SOURCE, TARGET>(a, tables, b);
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
    a.param_vec = ((uintptr_t)a.master | (uintptr_t)a.bf16) % 16 == 0; /* NULL is no obstacle */
    a.tame = adam->eps <= 1.0f;
    a.lr = adam->lr, a.eps = adam->eps, a.decay = adam->weight_decay, a.multiplier = adam->grad_multiplier;
    a.beta1 = adam->beta1, a.beta2 = adam->beta2;
    a.keep1 = 1.0f - adam->beta1, a.keep2 = 1.0f - adam->beta2;
    a.fix1 = agoqk_adam_correction(adam->beta1, adam->step);
    a.fix2 = agoqk_adam_correction(adam->beta2, adam->step);
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
                               sizeof(agoqk_adam_tables)};
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    if (source->grad8) {
        AGOQK_GRAD_SWITCH(source->grad8->format, FORMAT, launch<SOURCE_GRAD8 + FORMAT>(a, shape, stream))
    } else {
        AGOQK_DTYPE_SWITCH(source->dtype, DTYPE, launch<DTYPE>(a, shape, stream))
    }
    return agoqk_launched("adam8_step", source->grad8 ? AGOQ_DTYPE_F32 : source->dtype, 8, &shape);
}
