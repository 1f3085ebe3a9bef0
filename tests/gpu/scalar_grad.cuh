/* What grad.cuh and ptx.cuh have in place of kernels/format/grad_block.h: FP8 conversions of the chip and the
 * rounding that prepares for them, the scale of a block and its inverse. Every input that a kernel can feed
 * them is tried, most often more. */
#ifndef TESTS_GPU_SCALAR_GRAD_CUH
#define TESTS_GPU_SCALAR_GRAD_CUH

#include "kernels/cuda/grad.cuh"
#include "tests/gpu/count.cuh"

/* Sixteen floats from bits `first` on to codes, nearest. The kernels feed |t| at most a rounding error above
 * the largest value; this takes every float but NaN. i: one sixteenth of the first. */
template <int FORMAT> struct grad_encode_right {
    static __device__ bool right(uint32_t i) {
        float t[AGOQK_LANE], x[AGOQK_LANE];
        uint32_t codes[4];
        for (int k = 0; k < AGOQK_LANE; k++) {
            const float u = agoqk_float(16 * i + (uint32_t)k);
            t[k] = x[k] = u == u ? u : 0.0f;
        }
        agoqk_grad_encode16<FORMAT, false>(t, NULL, codes);
        bool same = true;
        for (int k = 0; k < AGOQK_LANE; k++)
            same &=
                (codes[k / 4] >> 8 * (k % 4) & 0xFFu) == agoqk_grad_encode(x[k], (agoq_grad_format)FORMAT);
        return same;
    }
};

/* Random words: none, all, each bit alone, some others. A bit b is in the number of an even element, b + 16
 * in that of an odd one, so that every float meets 0, all ones and each of the 16 bits. */
enum { GRAD_WORDS = 2 + 32 + 6 };
static __device__ __forceinline__ uint32_t grad_word(int i) {
    return i == 0 ? 0u : i == 1 ? 0xFFFFFFFFu : i < 34 ? 1u << (i - 2) : (uint32_t)(i - 33) * 0x9E3779B9u;
}

/* The same stochastically, with every word above. The domain: |t| <= largest (1 + 2^-10), which is far more
 * than the rounding errors of the scale, its inverse and the product. agoqk_fp8_round_sr does one thing if
 * all sixteen values are normal and another if one is not: with MIXED, fifteen floats are next to a zero, in
 * turn at each of the sixteen places. */
template <int FORMAT, bool MIXED> struct grad_encode_sr_right {
    static __device__ bool right(uint32_t i) {
        const agoq_grad_format format = (agoq_grad_format)FORMAT;
        const float most = agoqk_grad_max(format) * (1.0f + 0x1p-10f);
        const int zero = MIXED ? (int)(i % AGOQK_LANE) : AGOQK_LANE, taken = MIXED ? 15 : 16;
        bool same = true;
        float x[AGOQK_LANE];
#pragma unroll
        for (int k = 0; k < AGOQK_LANE; k++) {
            const uint64_t u = (uint64_t)taken * i + (uint64_t)(k > zero ? k - 1 : k);
            const float t = agoqk_float((uint32_t)u);
            x[k] = u >> 32 == 0 && k != zero && fabsf(t) <= most ? t : MIXED ? 0.0f : 1.0f;
        }
#pragma unroll 1
        for (int j = 0; j < GRAD_WORDS; j++) {
            const uint32_t word = grad_word(j);
            float t[AGOQK_LANE];
            uint32_t random[AGOQK_LANE / 2], codes[4];
#pragma unroll
            for (int k = 0; k < AGOQK_LANE; k++) t[k] = x[k], random[k / 2] = word;
            agoqk_grad_encode16<FORMAT, true>(t, random, codes);
#pragma unroll
            for (int k = 0; k < AGOQK_LANE; k++)
                same &= (codes[k / 4] >> 8 * (k % 4) & 0xFFu) ==
                        agoqk_grad_encode_sr(x[k], word >> 16 * (k % 2) & 0xFFFFu, format);
        }
        return same;
    }
};

/* Which word belongs to which element: eight different ones, from the index. Values between two codes, so
 * that a wrong word gives a wrong code for about half of the elements. */
template <int FORMAT> struct grad_random_right {
    static __device__ bool right(uint32_t i) {
        float t[AGOQK_LANE], x[AGOQK_LANE];
        uint32_t random[AGOQK_LANE / 2], codes[4];
        uint32_t state = i;
        for (int k = 0; k < AGOQK_LANE; k++) {
            state = state * 1664525u + 1013904223u;
            x[k] = t[k] = (float)(int32_t)state * 0x1p-31f * agoqk_grad_max((agoq_grad_format)FORMAT);
        }
        for (int k = 0; k < AGOQK_LANE / 2; k++) {
            state = state * 1664525u + 1013904223u;
            random[k] = state ^ state >> 15;
        }
        uint32_t words[AGOQK_LANE / 2];
        for (int k = 0; k < AGOQK_LANE / 2; k++) words[k] = random[k];
        agoqk_grad_encode16<FORMAT, true>(t, random, codes);
        bool same = true;
        for (int k = 0; k < AGOQK_LANE; k++)
            same &=
                (codes[k / 4] >> 8 * (k % 4) & 0xFFu) ==
                agoqk_grad_encode_sr(x[k], words[k / 2] >> 16 * (k % 2) & 0xFFFFu, (agoq_grad_format)FORMAT);
        return same;
    }
};

/* Every four codes. */
template <int FORMAT> struct grad_values_right {
    static __device__ bool right(uint32_t w) {
        float v[4];
        agoqk_grad_values4<FORMAT>(w, v);
        bool same = true;
        for (int k = 0; k < 4; k++)
            same &= count_same(v[k], agoqk_grad_value(w >> 8 * k & 0xFFu, (agoq_grad_format)FORMAT));
        return same;
    }
};

/* Every amax from 0 to the largest float. */
template <int FORMAT> struct grad_scale_right {
    static __device__ bool right(uint32_t u) {
        return agoqk_bits(agoqk_grad_scale_of<FORMAT>(agoqk_float(u))) ==
               agoqk_bits(agoqk_grad_scale(u << 1, (agoq_grad_format)FORMAT));
    }
};

struct grad_inverse_right { /* every normal s below 2^125 */
    static __device__ bool right(uint32_t i) {
        const float s = agoqk_float(0x00800000u + i);
        return agoqk_bits(agoqk_grad_inverse(s)) == agoqk_bits(1.0f / s);
    }
};

template <int FORMAT> static void count_grad(const char *format) {
    const uint64_t all = (uint64_t)1 << 32;
    char name[96];
    snprintf(name, sizeof name, "every float to %s by sixteens", format);
    count<grad_encode_right<FORMAT>>(name, all / 16);
    snprintf(name, sizeof name, "every float to %s by sixteens, stochastic", format);
    count<grad_encode_sr_right<FORMAT, false>>(name, all / 16);
    snprintf(name, sizeof name, "every float to %s beside a zero, stochastic", format);
    count<grad_encode_sr_right<FORMAT, true>>(name, all / 15 + 1);
    snprintf(name, sizeof name, "random words of %s", format);
    count<grad_random_right<FORMAT>>(name, 1 << 24);
    snprintf(name, sizeof name, "every four codes of %s", format);
    count<grad_values_right<FORMAT>>(name, all);
    snprintf(name, sizeof name, "every scale of %s", format);
    count<grad_scale_right<FORMAT>>(name, AGOQK_INF_BITS);
}

enum { GRAD_COUNTS = 3 * 6 + 1 };
static void count_grads(void) {
    count_grad<AGOQ_GRAD_E4M3>("E4M3");
    count_grad<AGOQ_GRAD_E5M2>("E5M2");
    count_grad<AGOQ_GRAD_INT8>("INT8");
    count<grad_inverse_right>("every inverse of a gradient's scale", 0x7E000000u - 0x00800000u);
}

#endif
