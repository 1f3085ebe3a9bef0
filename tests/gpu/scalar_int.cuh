/* What block.cuh and whole.cuh have in place of kernels/format/int_block.h: scales of pairs, and decoding by
 * one fused multiply-add or by pairs of bf16. Plane words are put together by the rule of agoq/format.h,
 * written out here, with other codes and other lanes' bits around the one that is looked at. */
#ifndef TESTS_GPU_SCALAR_INT_CUH
#define TESTS_GPU_SCALAR_INT_CUH

#include "kernels/cuda/whole.cuh"
#include "tests/gpu/count.cuh"

/* Element j of a word of k-bit codes sits at bit k (j / 2) + 16 (j % 2). Bits of the high word that are not
 * this lane's are those of `junk`. */
template <int FORMAT>
static __device__ agoqk_codes8<FORMAT> int_words(const uint32_t code[AGOQK_VEC], uint16_t scale,
                                                 uint32_t junk) {
    constexpr int BITS = FORMAT % 64, low = BITS == 8 ? 8 : 4, high = BITS == 8 ? 0 : BITS - 4,
                  per_word = 32 / low;
    agoqk_codes8<FORMAT> c = {};
    uint32_t mine = 0;
    c.scale = scale;
    for (int j = 0; j < AGOQK_VEC; j++) {
        const int in = j % per_word, at = high * (j / 2) + 16 * (j % 2);
        const uint32_t word = (code[j] & ((1u << low) - 1)) << (low * (in / 2) + 16 * (in % 2));
        if (j < per_word)
            c.lo[0] |= word;
        else
            c.lo[sizeof c.lo / 4 - 1] |= word;
        mine |= ((1u << high) - 1) << at;
        c.hi |= high ? code[j] >> 4 << at : 0;
    }
    c.hi |= junk & ~mine;
    return c;
}

/* i: a scale in the upper half, a code in the lower. As codes go by, each comes to each of the eight places;
 * odd steps between them make all eight of a vector different. */
template <int FORMAT> struct int_decode_right {
    static __device__ bool right(uint32_t i) {
        constexpr int BITS = FORMAT % 64;
        const uint16_t scale = (uint16_t)(i >> BITS);
        const uint32_t mask = (1u << BITS) - 1, junk = i * 0x9E3779B9u;
        const bool nan = agoqk_int_scale_is_nan(scale);
        uint32_t code[AGOQK_VEC];
        for (int j = 0; j < AGOQK_VEC; j++) code[j] = (i + (uint32_t)j * (2 * (scale % 5) + 1)) & mask;
        const agoqk_codes8<FORMAT> c = int_words<FORMAT>(code, scale, junk);
        float whole[AGOQK_VEC], part[AGOQK_VEC];
        const int n = (int)(junk >> 29);
        agoqk_decode8<FORMAT>(c, AGOQK_VEC, whole);
        agoqk_decode8<FORMAT>(c, n, part);
        bool same = true;
        for (int j = 0; j < AGOQK_VEC; j++) {
            const float want = nan ? agoqk_float(AGOQK_NAN_BITS)
                                   : agoqk_int_decode(code[j], agoqk_bf16_decode(scale), FORMAT);
            same &= agoqk_bits(whole[j]) == agoqk_bits(want);
            same &= agoqk_bits(part[j]) == (j < n ? agoqk_bits(want) : 0);
        }
        if constexpr (BITS < 8) {
            const uint4 pairs = agoqk_decode8_bf16<FORMAT>(c);
            const uint32_t w[4] = {pairs.x, pairs.y, pairs.z, pairs.w};
            for (int j = 0; j < AGOQK_VEC; j++) {
                const uint16_t want = agoqk_bf16_encode(whole[j]);
                same &= (w[j / 2] >> 16 * (j % 2) & 0xFFFFu) == want;
            }
        }
        return same;
    }
};

/* Every pair of finite bf16 as the elements of a block: the scale from the largest and the negated smallest
 * of pairs is that from the statistic. */
template <int FORMAT> struct int_scale_right {
    static __device__ bool right(uint32_t u) {
        const float a = agoqk_bf16_decode((uint16_t)(u >> 16)), b = agoqk_bf16_decode((uint16_t)u);
        const uint32_t stat = max(agoqk_stat(a), agoqk_stat(b));
        if (agoqk_stat_nonfinite(stat)) return true;
        const uint32_t swapped = u >> 16 | u << 16, high = agoqk_max2(u, swapped),
                       low = agoqk_min2(u, swapped) ^ 0x80008000u;
        return agoqk_scale_of<FORMAT>(high & 0xFFFFu, low & 0xFFFFu) == agoqk_int_scale(stat, FORMAT);
    }
};

template <int FORMAT> static void count_int(const char *width) {
    char name[64];
    snprintf(name, sizeof name, "every scale, code and place at %s bits", width);
    count<int_decode_right<FORMAT>>(name, (uint64_t)65536 << FORMAT % 64);
    snprintf(name, sizeof name, "every scale of a pair at %s bits", width);
    count<int_scale_right<FORMAT>>(name, (uint64_t)1 << 32);
}

enum { INT_COUNTS = 5 * 2 };
static void count_ints(void) {
    count_int<4>("4");
    count_int<5>("5");
    count_int<6>("6");
    count_int<8>("8");
    count_int<AGOQ_FORMAT_CODE4>("CODE4's 4");
}

#endif
