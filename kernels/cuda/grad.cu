/* Gradients in 8 bits: accumulate (a list of tensors per launch), read, count of NaN blocks, local sum. A
 * thread takes 16 elements (kernels/cuda/grad.cuh), a warp's 512 side by side, and loads UNROLL of them
 * before it works on the first. A list maps tiles of 8192 elements to tensors by a search in the kernel's
 * parameters. Every block is read and written by the same lanes, so that in-place use is safe. Deterministic:
 * no result depends on the launch shape. */
#include "kernels/cuda/grad.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/ops.h"

enum { THREADS = 256, UNROLL = 2, TILE = THREADS * UNROLL * AGOQK_LANE }; /* elements per block of threads */
enum { MOST_TERMS = 64, FEW_INPUTS = 64, MOST_INPUTS = 1024 };

/* First element of this thread's part u of a tile; a warp's parts lie side by side. */
static __device__ __forceinline__ int64_t first_of(int64_t tile, int u) {
    return tile * TILE + (int64_t)(threadIdx.x / 32 * UNROLL + u) * (32 * AGOQK_LANE) +
           threadIdx.x % 32 * AGOQK_LANE;
}

static int64_t tiles_of(int64_t n) {
    return n / TILE + (n % TILE != 0);
}

agoq_status agoqk_cuda_grad_zero(const agoq_exec *exec, const agoq_grad *grad) {
    agoqk_launch_begin("grad_zero");
    if (grad->n == 0) return AGOQ_OK;
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    const size_t blocks = (size_t)((grad->n - 1) / AGOQ_GRAD_BLOCK + 1);
    const agoq_status status = agoqk_from_cuda(cudaMemsetAsync(grad->codes, 0, (size_t)grad->n, stream));
    if (status != AGOQ_OK) return status;
    return agoqk_from_cuda(cudaMemsetAsync(grad->scales, 0, blocks * sizeof *grad->scales, stream));
}

/* ---- accumulate: 2 + 1/16 bytes of gradient and the input (bf16: 2) per element; bound: memory, with the
 * random bits and codes close behind ---- */

struct term {
    agoqk_gmat grad;
    const void *x;
    int64_t first_tile;
    agoqk_rng rng;
    int x_vec, whole;
};

struct term_list {
    int64_t n_tiles;
    int n;
    term t[MOST_TERMS];
};

/* One thread's sixteen elements of a term: x and codes in, codes out. */
template <int DTYPE> struct part {
    agoqk_raw16<DTYPE> x;
    agoqk_gcodes codes;
};

template <int DTYPE>
static __device__ __forceinline__ part<DTYPE> load_part(const term &t, const agoqk_gmat &g, int64_t first,
                                                        int n, int x_vec) {
    typedef typename agoqk_elem<DTYPE>::type T;
    part<DTYPE> p;
    p.x = agoqk_load_raw16<DTYPE>((const T *)t.x + first, n, x_vec);
    p.codes = agoqk_grad_load(g, first, n);
    return p;
}

template <int DTYPE, int FORMAT, bool STOCHASTIC>
static __device__ __forceinline__ uint32_t add_part(const part<DTYPE> &p, const agoqk_gmat &g, int64_t first,
                                                    int n, const uint32_t *random) {
    float x[AGOQK_LANE], sum[AGOQK_LANE];
    agoqk_convert<DTYPE>(p.x.half[0], x);
    agoqk_convert<DTYPE>(p.x.half[1], x + 8);
    agoqk_grad_decode16<FORMAT, false>(p.codes, sum); /* a sum is never -0 in the end */
#pragma unroll
    for (int i = 0; i < AGOQK_LANE; i++) sum[i] += x[i];
    return agoqk_grad_put16<FORMAT, STOCHASTIC, true>(g, first, n, sum, random);
}

/* A tile all of whose accesses are whole and aligned, and whose random bits begin with a word. */
template <int DTYPE, int FORMAT, bool STOCHASTIC>
static __device__ __forceinline__ uint32_t whole_tile(const term &t, int64_t tile) {
    const agoqk_gmat g = {t.grad.codes, t.grad.scales, t.grad.n, 1};
    part<DTYPE> p[UNROLL];
    uint32_t bad = 0, random[UNROLL][8];
#pragma unroll
    for (int u = 0; u < UNROLL; u++) p[u] = load_part<DTYPE>(t, g, first_of(tile, u), AGOQK_LANE, 1);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        if (STOCHASTIC) agoqk_random_whole16(t.rng, t.rng.offset + (uint64_t)first_of(tile, u), random[u]);
#pragma unroll
    for (int u = 0; u < UNROLL; u++)
        bad += add_part<DTYPE, FORMAT, STOCHASTIC>(p[u], g, first_of(tile, u), AGOQK_LANE, random[u]);
    return bad;
}

template <int DTYPE, int FORMAT, bool STOCHASTIC>
static __device__ __noinline__ uint32_t any_tile(const term &t, int64_t tile) {
    uint32_t bad = 0, random[8];
#pragma unroll 1
    for (int u = 0; u < UNROLL; u++) {
        const int64_t first = first_of(tile, u);
        const int n = agoqk_count_of(t.grad.n, first, AGOQK_LANE);
        const part<DTYPE> p = load_part<DTYPE>(t, t.grad, first, n, t.x_vec);
        if (STOCHASTIC) agoqk_random_words16(t.rng, t.rng.offset + (uint64_t)first, random);
        bad += add_part<DTYPE, FORMAT, STOCHASTIC>(p, t.grad, first, n, random);
    }
    return bad;
}

template <int DTYPE, int FORMAT, bool STOCHASTIC>
static __global__ void __launch_bounds__(THREADS, 3)
    accumulate_kernel(const __grid_constant__ term_list list, uint32_t *nonfinite) {
    uint32_t bad = 0;
    for (int64_t tile = blockIdx.x; tile < list.n_tiles; tile += gridDim.x) {
        int at = 0; /* the last term that begins at or before the tile */
        for (int half = list.n > 1 ? MOST_TERMS / 2 : 0; half > 0; half /= 2)
            if (at + half < list.n && list.t[at + half].first_tile <= tile) at += half;
        const term &t = list.t[at];
        const int64_t own = tile - t.first_tile;
        if (t.whole && (own + 1) * TILE <= t.grad.n)
            bad += whole_tile<DTYPE, FORMAT, STOCHASTIC>(t, own);
        else
            bad += any_tile<DTYPE, FORMAT, STOCHASTIC>(t, own);
    }
    agoqk_count(nonfinite, bad);
}

static agoq_status accumulate(const agoq_exec *exec, const term_list *list, agoq_dtype dtype,
                              agoq_grad_format format, int stochastic) {
    const agoqk_shape shape = {dim3(agoqk_grid(list->n_tiles)), dim3(THREADS), 0};
    const cudaStream_t stream = (cudaStream_t)exec->stream;
    AGOQK_DTYPE_SWITCH(dtype, DTYPE, AGOQK_GRAD_SWITCH(format, FORMAT, {
                           if (stochastic)
                               accumulate_kernel<DTYPE, FORMAT, true>
                                   <<<shape.grid, shape.block, 0, stream>>>(*list, exec->nonfinite);
                           else
                               accumulate_kernel<DTYPE, FORMAT, false>
                                   <<<shape.grid, shape.block, 0, stream>>>(*list, exec->nonfinite);
                       }))
    return agoqk_launched("grad_accumulate", dtype, 8, &shape);
}

agoq_status agoqk_cuda_grad_accumulate(const agoq_exec *exec, const agoq_grad_term *terms, int n_terms,
                                       agoq_dtype x_dtype, int stochastic) {
    agoqk_launch_begin("grad_accumulate");
    term_list list;
    list.n = 0;
    list.n_tiles = 0;
    for (int i = 0; i < n_terms; i++) {
        if (terms[i].grad.n == 0) continue;
        term *t = &list.t[list.n++];
        t->grad = agoqk_gmat_of(&terms[i].grad);
        t->x = terms[i].x;
        t->x_vec = (uintptr_t)t->x % 16 == 0;
        t->rng = agoqk_rng_of(stochastic ? &terms[i].key : NULL);
        t->whole = t->grad.vec && t->x_vec && t->rng.offset % 8 == 0;
        t->first_tile = list.n_tiles;
        list.n_tiles += tiles_of(t->grad.n);
        if (list.n < MOST_TERMS) continue;
        const agoq_status status = accumulate(exec, &list, x_dtype, terms[0].grad.format, stochastic);
        if (status != AGOQ_OK) return status;
        list.n = 0;
        list.n_tiles = 0;
    }
    return list.n ? accumulate(exec, &list, x_dtype, terms[0].grad.format, stochastic) : AGOQ_OK;
}

/* ---- read: 1 + 1/32 bytes in, 4 out per element; bound: memory. A warp takes 128 elements at a time: four
 * side by side a lane where every access is aligned, else one a lane ---- */

enum { READ = 4, READ_TILE = THREADS * 4 * READ };

template <int FORMAT>
static __device__ __forceinline__ void read_values(uint32_t codes, float scale, float multiplier,
                                                   float x[4]) {
    agoqk_grad_values4<FORMAT>(codes, x);
#pragma unroll
    for (int i = 0; i < 4; i++) x[i] = agoqk_canonical(multiplier * (x[i] * scale + 0.0f));
}

template <int FORMAT, bool ALIGNED>
static __global__ void __launch_bounds__(THREADS)
    read_kernel(agoqk_gmat g, int64_t begin, int64_t n_tiles, float multiplier, float *out) {
    constexpr int each = ALIGNED ? 4 : 1; /* elements of a lane that lie side by side */
    for (int64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const int64_t base =
            begin + tile * READ_TILE + threadIdx.x / 32 * (32 * 4 * READ) + threadIdx.x % 32 * each;
        uint32_t codes[4 / each * READ];
        float scale[4 / each * READ];
#pragma unroll
        for (int u = 0; u < 4 / each * READ; u++) {
            const int64_t at = base + u * 32 * each;
            codes[u] = 0, scale[u] = 0.0f;
            if (at + each > g.n) continue;
            codes[u] = ALIGNED ? __ldcs((const uint32_t *)(g.codes + at)) : g.codes[at];
            scale[u] = g.scales[at / AGOQ_GRAD_BLOCK];
        }
#pragma unroll
        for (int u = 0; u < 4 / each * READ; u++) {
            const int64_t at = base + u * 32 * each;
            float x[4];
            read_values<FORMAT>(codes[u], scale[u], multiplier, x);
            if (at + each > g.n) continue;
            if (ALIGNED)
                __stcs((float4 *)(out + (at - begin)), make_float4(x[0], x[1], x[2], x[3]));
            else
                out[at - begin] = x[0];
        }
    }
}

template <int FORMAT, bool ALIGNED>
static agoq_status read_range(const agoq_exec *exec, const agoqk_gmat &g, int64_t begin, float multiplier,
                              float *out) {
    const int64_t n_tiles = (g.n - begin - 1) / READ_TILE + 1;
    const agoqk_shape shape = {dim3(agoqk_grid(n_tiles)), dim3(THREADS), 0};
    read_kernel<FORMAT, ALIGNED>
        <<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(g, begin, n_tiles, multiplier, out);
    return agoqk_launched("grad_read", AGOQ_DTYPE_F32, 8, &shape);
}

agoq_status agoqk_cuda_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                                 float multiplier, float *out) {
    agoqk_launch_begin("grad_read");
    if (count == 0) return AGOQ_OK;
    agoqk_gmat g = agoqk_gmat_of(grad);
    const int64_t end = begin + count,
                  last = begin + count / 4 * 4; /* what follows it is less than a vector */
    const bool aligned =
        (uintptr_t)out % 16 == 0 && begin % 4 == 0 && (uintptr_t)g.codes % 4 == 0 && last > begin;
    agoq_status status = AGOQ_E_UNSUPPORTED;
    AGOQK_GRAD_SWITCH(grad->format, FORMAT, {
        status = AGOQ_OK;
        g.n = last;
        if (aligned) status = read_range<FORMAT, true>(exec, g, begin, multiplier, out);
        g.n = end;
        if (status == AGOQ_OK && (!aligned || last < end))
            status = read_range<FORMAT, false>(exec, g, aligned ? last : begin, multiplier,
                                               aligned ? out + count / 4 * 4 : out);
    })
    return status;
}

/* ---- check_finite: 1/32 bytes per element; a thread takes CHECKED scales ---- */

enum { CHECKED = 8 };

static __global__ void __launch_bounds__(THREADS)
    check_kernel(const float *scales, int64_t n_blocks, int64_t n_tiles, uint32_t *blocks) {
    uint32_t bad = 0;
    for (int64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const int64_t first = tile * (THREADS * CHECKED) + threadIdx.x;
#pragma unroll
        for (int i = 0; i < CHECKED; i++) {
            const int64_t b = first + (int64_t)i * THREADS;
            const float s = b < n_blocks ? __ldcs(scales + b) : 0.0f;
            bad += (__float_as_uint(s) & AGOQK_INF_BITS) == AGOQK_INF_BITS;
        }
    }
    bad = __reduce_add_sync(0xFFFFFFFFu, bad);
    if (threadIdx.x % 32 == 0) agoqk_count(blocks, bad);
}

agoq_status agoqk_cuda_grad_check_finite(const agoq_exec *exec, const agoq_grad *grad, uint32_t *blocks) {
    agoqk_launch_begin("grad_check_finite");
    if (grad->n == 0) return AGOQ_OK;
    const int64_t n_blocks = (grad->n - 1) / AGOQ_GRAD_BLOCK + 1, tile = THREADS * CHECKED;
    const int64_t n_tiles = (n_blocks - 1) / tile + 1;
    const agoqk_shape shape = {dim3(agoqk_grid(n_tiles)), dim3(THREADS), 0};
    check_kernel<<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(grad->scales, n_blocks, n_tiles,
                                                                             blocks);
    return agoqk_launched("grad_check_finite", AGOQ_DTYPE_F32, 8, &shape);
}

/* ---- reduce: 1 + 1/32 bytes per element and input, and the output (1 + 1/32, or 4); bound: memory. A thread
 * keeps its 16 sums in registers over all inputs, whose addresses come with the launch ---- */

template <int MOST> struct input_list {
    int64_t n;
    int n_in, vec;
    struct {
        const uint8_t *codes;
        const float *scales;
    } in[MOST];
};

struct reduce_out {
    agoqk_gmat grad; /* codes NULL: out32 is written */
    float *out32;
    float multiplier;
    int vec;
    uint32_t *nonfinite;
};

template <int FORMAT, int MOST>
static __global__ void __launch_bounds__(THREADS)
    reduce_kernel(const __grid_constant__ input_list<MOST> list, const __grid_constant__ reduce_out out) {
    constexpr int PART = THREADS * AGOQK_LANE;
    const int64_t n_tiles = (list.n - 1) / PART + 1;
    uint32_t bad = 0;
    for (int64_t tile = blockIdx.x; tile < n_tiles; tile += gridDim.x) {
        const int64_t first = tile * PART + threadIdx.x * AGOQK_LANE;
        const int n = agoqk_count_of(list.n, first, AGOQK_LANE);
        float sum[AGOQK_LANE];
#pragma unroll 4
        for (int k = 0; k < list.n_in; k++) {
            const agoqk_gmat g = {(uint8_t *)list.in[k].codes, (float *)list.in[k].scales, list.n, list.vec};
            float x[AGOQK_LANE];
            agoqk_grad_decode16<FORMAT, true>(agoqk_grad_load(g, first, n), x);
#pragma unroll
            for (int i = 0; i < AGOQK_LANE; i++) sum[i] = k == 0 ? x[i] : sum[i] + x[i];
        }
#pragma unroll
        for (int i = 0; i < AGOQK_LANE; i++) sum[i] = agoqk_canonical(out.multiplier * sum[i]);
        if (out.grad.codes) {
            if (n < AGOQK_LANE) {
#pragma unroll
                for (int i = 0; i < AGOQK_LANE; i++) sum[i] = i < n ? sum[i] : 0.0f;
            }
            bad += agoqk_grad_put16<FORMAT, false, false>(out.grad, first, n, sum, NULL);
            continue;
        }
        float top = 0.0f;
#pragma unroll
        for (int i = 0; i < AGOQK_LANE; i++) top = agoqk_max_nan(top, i < n ? fabsf(sum[i]) : 0.0f);
        const uint32_t most = agoqk_max8(__float_as_uint(top) & 0x7FFFFFFFu);
        bad += threadIdx.x % 8 == 0 && most >= AGOQK_INF_BITS;
        agoqk_store8<AGOQ_DTYPE_F32>(out.out32 + first, n < 8 ? n : 8, out.vec, sum);
        agoqk_store8<AGOQ_DTYPE_F32>(out.out32 + first + 8, n - 8, out.vec, sum + 8);
    }
    agoqk_count(out.nonfinite, bad);
}

template <int MOST>
static agoq_status reduce(const agoq_exec *exec, const agoq_grad *in, int n_in, const reduce_out *out) {
    input_list<MOST> list;
    list.n = in[0].n;
    list.n_in = n_in;
    list.vec = 1;
    for (int k = 0; k < n_in; k++) {
        list.in[k].codes = in[k].codes;
        list.in[k].scales = in[k].scales;
        list.vec &= (uintptr_t)in[k].codes % 16 == 0;
    }
    const int64_t part = THREADS * AGOQK_LANE;
    const agoqk_shape shape = {dim3(agoqk_grid((list.n - 1) / part + 1)), dim3(THREADS), 0};
    AGOQK_GRAD_SWITCH(in[0].format, FORMAT,
                      reduce_kernel<FORMAT, MOST>
                      <<<shape.grid, shape.block, 0, (cudaStream_t)exec->stream>>>(list, *out))
    return agoqk_launched("grad_reduce", AGOQ_DTYPE_F32, 8, &shape);
}

agoq_status agoqk_cuda_grad_reduce(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                                   const agoq_grad *out8, float *out32) {
    agoqk_launch_begin("grad_reduce");
    if (n_in > MOST_INPUTS) return AGOQ_E_UNSUPPORTED;
    if (in[0].n == 0) return AGOQ_OK;
    reduce_out out = {{NULL, NULL, 0, 0}, out32, multiplier, (uintptr_t)out32 % 16 == 0, exec->nonfinite};
    if (out8) out.grad = agoqk_gmat_of(out8);
    return n_in <= FEW_INPUTS ? reduce<FEW_INPUTS>(exec, in, n_in, &out)
                              : reduce<MOST_INPUTS>(exec, in, n_in, &out);
}
