/* The scalar arithmetic on the GPU. Encoders: every one of 2^32 floats gives the code that the CPU gives, by
 * memcmp. Instructions that stand in for the portable code (conversions, reciprocals, scales, decoding):
 * every input, counted on the GPU against the portable code; INT encoding: every bf16 input at every scale
 * that it can meet. Gradients are in scalar_grad.cuh, decoding in scalar_int.cuh. */
#include <pthread.h>

#include "tests/gpu/scalar_grad.cuh"
#include "tests/gpu/scalar_int.cuh"

enum { CHUNK = 1 << 26, MOST_THREADS = 32 };

template <agoq_grad_format F> struct grad_nearest {
    static __host__ __device__ uint8_t code(uint32_t u) {
        return (uint8_t)agoqk_grad_encode(agoqk_float(u), F);
    }
};
template <agoq_grad_format F, int R> struct grad_stochastic {
    static __host__ __device__ uint8_t code(uint32_t u) {
        return (uint8_t)agoqk_grad_encode_sr(agoqk_float(u), R, F);
    }
};
template <int BITS> struct int_nearest { /* finite floats at a scale with an inverse of all ones */
    static __host__ __device__ uint8_t code(uint32_t u) {
        if ((u & AGOQK_INF_BITS) == AGOQK_INF_BITS) return 0;
        return (uint8_t)agoqk_int_encode(agoqk_float(u), 1.9999999f, BITS);
    }
};

template <class F> static __global__ void codes_kernel(uint32_t first, uint8_t *out) {
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    out[i] = F::code(first + i);
}

struct slice {
    uint32_t first;
    uint8_t *out;
    int n;
};

template <class F> static void *codes_cpu(void *arg) {
    const slice *s = (const slice *)arg;
    for (int i = 0; i < s->n; i++) s->out[i] = F::code(s->first + (uint32_t)i);
    return NULL;
}

template <class F> static void exhaustive(const char *name) {
    uint8_t *device, *got = (uint8_t *)malloc(CHUNK), *want = (uint8_t *)malloc(CHUNK);
    int right = got && want;
    char detail[64] = "";
    gpu_must(cudaMalloc(&device, CHUNK), "cudaMalloc");
    for (uint64_t first = 0; first < (uint64_t)1 << 32 && right; first += CHUNK) {
        pthread_t thread[MOST_THREADS];
        slice slices[MOST_THREADS];
        codes_kernel<F><<<CHUNK / 256, 256>>>((uint32_t)first, device);
        for (int t = 0; t < MOST_THREADS; t++) {
            const int n = CHUNK / MOST_THREADS;
            slices[t] = {(uint32_t)first + (uint32_t)(t * n), want + t * n, n};
            pthread_create(&thread[t], NULL, codes_cpu<F>, &slices[t]);
        }
        for (int t = 0; t < MOST_THREADS; t++) pthread_join(thread[t], NULL);
        gpu_must(cudaMemcpy(got, device, CHUNK, cudaMemcpyDeviceToHost), "codes");
        if (memcmp(got, want, CHUNK) == 0) continue;
        right = 0;
        int i = 0;
        while (got[i] == want[i]) i++;
        snprintf(detail, sizeof detail, "float %08x: GPU %02x, CPU %02x", (uint32_t)first + i, got[i],
                 want[i]);
    }
    gpu_check(right, name, detail);
    gpu_must(cudaFree(device), "free");
    free(got);
    free(want);
}

/* ---- on the device: instructions against the portable code ---- */

struct inverse_right { /* every normal scale */
    static __device__ bool right(uint32_t d) {
        if ((d & 0x7F80) == 0 || (d & 0x7F80) == 0x7F80 || (d & 0x7FFF) >= 0x7E00) return true;
        return agoqk_bits(agoqk_inverse((uint16_t)d)) == agoqk_bits(agoqk_int_inverse((uint16_t)d));
    }
};
struct rcp_right { /* every float from 1 to 2^126 */
    static __device__ bool right(uint32_t i) {
        const float x = agoqk_float(0x3F800000u + i);
        return agoqk_bits(agoqk_rcp_from_1(x)) == agoqk_bits(1.0f / x);
    }
};
struct half2_right { /* bf16 and fp16 conversions of everything but NaN */
    static __device__ bool right(uint32_t u) {
        const float x = agoqk_float(u);
        if (x != x) return true;
        const uint32_t b = agoqk_bf16_encode(x), h = agoqk_f16_encode(x);
        return agoqk_pack_half2(x, x, AGOQ_DTYPE_BF16) == (b | b << 16) &&
               agoqk_pack_half2(x, x, AGOQ_DTYPE_F16) == (h | h << 16);
    }
};
struct unhalf_right { /* fp16 to fp32 of everything but NaN */
    static __device__ bool right(uint32_t h) {
        float a, b;
        agoqk_unpack_half2(h | h << 16, AGOQ_DTYPE_F16, a, b);
        const float want = agoqk_f16_decode((uint16_t)h);
        return want != want || (agoqk_bits(a) == agoqk_bits(want) && agoqk_bits(b) == agoqk_bits(want));
    }
};
/* A block of one element x and its neighbour of the same magnitude class: codes as the portable encoder. u:
 * bf16 x in the high half, bf16 extreme in the low half, taken only where the extreme is larger. */
template <int BITS> struct int_block_right {
    static __device__ bool right(uint32_t u) {
        const float x = agoqk_bf16_decode((uint16_t)(u >> 16)), ext = agoqk_bf16_decode((uint16_t)u);
        if (!(fabsf(x) <= fabsf(ext)) || agoqk_stat_nonfinite(agoqk_stat(ext))) return true;
        const uint16_t d = agoqk_int_scale(max(agoqk_stat(x), agoqk_stat(ext)), BITS);
        if (d == 0) return true;
        const float e[AGOQK_VEC] = {x, ext, x, ext, x, ext, x, ext};
        uint32_t c[AGOQK_VEC];
        agoqk_encode8<BITS>(e, agoqk_inverse(d), c);
        const uint32_t mask = (1u << BITS % 64) - 1;
        return (c[0] & mask) == agoqk_int_encode(x, agoqk_int_inverse(d), BITS) &&
               (c[1] & mask) == agoqk_int_encode(ext, agoqk_int_inverse(d), BITS);
    }
};

int main(void) {
    const int skip = gpu_open(18 + GRAD_COUNTS + INT_COUNTS);
    if (skip) return skip;
    const uint64_t all = (uint64_t)1 << 32;
    count<inverse_right>("every scale's inverse", 65536);
    count<rcp_right>("every reciprocal of a number above 1", (126ull << 23) + 1);
    count<half2_right>("every float to bf16 and fp16", all);
    count<unhalf_right>("every fp16 to float", 65536);
    count<int_block_right<4>>("every bf16 pair at 4 bits", all);
    count<int_block_right<5>>("every bf16 pair at 5 bits", all);
    count<int_block_right<6>>("every bf16 pair at 6 bits", all);
    count<int_block_right<8>>("every bf16 pair at 8 bits", all);
    count<int_block_right<AGOQ_FORMAT_CODE4>>("every bf16 pair in CODE4", all);
    count_ints();
    count_grads();
    exhaustive<grad_nearest<AGOQ_GRAD_E4M3>>("every float to E4M3");
    exhaustive<grad_stochastic<AGOQ_GRAD_E4M3, 0x7FFF>>("every float to E4M3, stochastic");
    exhaustive<grad_nearest<AGOQ_GRAD_E5M2>>("every float to E5M2");
    exhaustive<grad_stochastic<AGOQ_GRAD_E5M2, 0x7FFF>>("every float to E5M2, stochastic");
    exhaustive<grad_nearest<AGOQ_GRAD_INT8>>("every float to INT8");
    exhaustive<grad_stochastic<AGOQ_GRAD_INT8, 0x7FFF>>("every float to INT8, stochastic");
    exhaustive<int_nearest<4>>("every float to 4 bits");
    exhaustive<int_nearest<8>>("every float to 8 bits");
    exhaustive<int_nearest<AGOQ_FORMAT_CODE4>>("every float to CODE4");
    return gpu_close();
}
