/* Whole blocks with AVX2, for the levels that have it (AVX-512 gains nothing on 64 elements): the interface
 * and the bytes of block_plain.h, without passing through fp32 arrays. Conversion to int32 rounds to nearest
 * even and packing saturates, which is clamp and rint of the format; t never leaves int32, because no element
 * of a block is larger than its scale allows. The trade-off: plane words are made by shuffles that only fit
 * blocks of 64 and planes of 1, 2, 4 and 8 bits. */
#ifndef KERNELS_CPU_BLOCK_AVX2_H
#define KERNELS_CPU_BLOCK_AVX2_H

#include <immintrin.h>

#include "kernels/cpu/block.h"
#include "kernels/format/int_block.h"

AGOQK_INLINE __m256i avx2_load(const void *at) {
    return _mm256_loadu_si256((const __m256i *)at);
}

AGOQK_INLINE void avx2_store(void *at, __m256i v) {
    _mm256_storeu_si256((__m256i *)at, v);
}

/* The same 16 byte indices in both halves. */
AGOQK_INLINE __m256i avx2_shuffle(__m256i v, int64_t low, int64_t high) {
    return _mm256_shuffle_epi8(v, _mm256_setr_epi64x(low, high, low, high));
}

/* agoqk_stat of 64 elements; of bf16 elements in 16 bits, whose order is the same. */
AGOQK_INLINE uint32_t agoqk_avx2_stat(const void *x, agoq_dtype dtype) {
    const uint8_t *at = (const uint8_t *)x;
    __m256i top = _mm256_setzero_si256();
    if (dtype == AGOQ_DTYPE_BF16) {
        for (int i = 0; i < 4; i++) {
            const __m256i v = avx2_load(at + 32 * i);
            top = _mm256_max_epu16(top, _mm256_or_si256(_mm256_slli_epi16(v, 1), _mm256_srli_epi16(v, 15)));
        }
        const __m128i half = _mm_max_epu16(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
        const __m128i least = _mm_minpos_epu16(_mm_xor_si128(half, _mm_set1_epi32(-1)));
        const uint32_t most = ~(uint32_t)_mm_cvtsi128_si32(least) & 0xFFFFu;
        return (most & 0xFFFEu) << 16 | (most & 1u);
    }
    for (int i = 0; i < 8; i++) {
        const __m256i v = avx2_load(at + 32 * i);
        top = _mm256_max_epu32(top, _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_srli_epi32(v, 31)));
    }
    __m128i half = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

AGOQK_INLINE __m256i avx2_rint(__m256i x, __m256 inverse) {
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_castsi256_ps(x), inverse));
}

/* Codes of elements 32 h .. 32 h + 31, groups of eight in the order 0, 2 | 1, 3. */
AGOQK_INLINE __m256i avx2_codes(const uint8_t *x, agoq_dtype dtype, int h, __m256 inverse, int bits) {
    __m256i level;
    if (dtype == AGOQ_DTYPE_BF16) {
        const __m256i zero = _mm256_setzero_si256(), a = avx2_load(x + 64 * h),
                      b = avx2_load(x + 64 * h + 32);
        level = _mm256_packs_epi16(_mm256_packs_epi32(avx2_rint(_mm256_unpacklo_epi16(zero, a), inverse),
                                                      avx2_rint(_mm256_unpackhi_epi16(zero, a), inverse)),
                                   _mm256_packs_epi32(avx2_rint(_mm256_unpacklo_epi16(zero, b), inverse),
                                                      avx2_rint(_mm256_unpackhi_epi16(zero, b), inverse)));
    } else {
        x += 128 * h;
        level = _mm256_packs_epi16(
            _mm256_packs_epi32(avx2_rint(avx2_load(x), inverse), avx2_rint(avx2_load(x + 32), inverse)),
            _mm256_packs_epi32(avx2_rint(avx2_load(x + 64), inverse), avx2_rint(avx2_load(x + 96), inverse)));
        level = _mm256_permutevar8x32_epi32(level, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
    }
    const int8_t half = (int8_t)(bits == 8 ? -128 : 1 << (bits - 1));
    if (bits < 8) {
        level = _mm256_min_epi8(level, _mm256_set1_epi8((char)(half - 1)));
        level = _mm256_max_epi8(level, _mm256_set1_epi8((char)-half));
    }
    return _mm256_add_epi8(level, _mm256_set1_epi8((char)half));
}

/* Groups of eight codes, elements 0 2 4 6 1 3 5 7 of each. */
AGOQK_INLINE __m256i avx2_even_odd(__m256i codes) {
    return avx2_shuffle(codes, 0x0705030106040200, 0x0F0D0B090E0C0A08);
}

/* 64 codes, each group even before odd, to a plane of their low 4 bits. */
AGOQK_INLINE void avx2_put4(uint8_t *at, __m256i a, __m256i b) {
    const __m256i mask = _mm256_set1_epi8(15), weights = _mm256_set1_epi16(0x1001);
    const __m256i bytes = _mm256_packus_epi16(
        _mm256_maddubs_epi16(_mm256_and_si256(a, mask), weights),
        _mm256_maddubs_epi16(_mm256_and_si256(b, mask), weights)); /* words 0 2 4 6 | 1 3 5 7 */
    avx2_store(at, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)));
}

/* The same of bit 4. */
AGOQK_INLINE uint32_t avx2_put1(__m256i v) {
    const __m256i order = _mm256_permutevar8x32_epi32(v, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
    return (uint32_t)_mm256_movemask_epi8(_mm256_slli_epi16(order, 3));
}

/* Bits 4 and 5: every group becomes two bytes, of even and of odd elements. */
AGOQK_INLINE __m256i avx2_put2(__m256i v) {
    const __m256i two = _mm256_and_si256(_mm256_srli_epi16(v, 4), _mm256_set1_epi8(3));
    return _mm256_madd_epi16(_mm256_maddubs_epi16(two, _mm256_set1_epi16(0x0401)),
                             _mm256_set1_epi32(0x00100001));
}

AGOQK_INLINE void agoqk_avx2_encode(const void *x, agoq_dtype dtype, float inverse, int bits, int lo, int hi,
                                    uint8_t *lo_at, uint8_t *hi_at) {
    const __m256 scale = _mm256_set1_ps(inverse);
    __m256i a = avx2_codes((const uint8_t *)x, dtype, 0, scale, bits),
            b = avx2_codes((const uint8_t *)x, dtype, 1, scale, bits);
    if (lo == 8) { /* elements 0 2 1 3 of each word */
        const int64_t low = 0x0705060403010200, high = 0x0F0D0E0C0B090A08;
        avx2_store(lo_at, avx2_shuffle(_mm256_permute4x64_epi64(a, 0xD8), low, high));
        avx2_store(lo_at + 32, avx2_shuffle(_mm256_permute4x64_epi64(b, 0xD8), low, high));
        return;
    }
    a = avx2_even_odd(a);
    b = avx2_even_odd(b);
    avx2_put4(lo_at, a, b);
    if (hi == 1) {
        const uint32_t words[2] = {avx2_put1(a), avx2_put1(b)};
        memcpy(hi_at, words, sizeof words);
    } else if (hi == 2) {
        const __m256i v = _mm256_packus_epi32(avx2_put2(a), avx2_put2(b)); /* groups 0 2 4 6 | 1 3 5 7 */
        const __m128i odd = _mm_slli_epi16(_mm256_extracti128_si256(v, 1), 8);
        _mm_storeu_si128((__m128i *)(void *)hi_at, _mm_or_si128(_mm256_castsi256_si128(v), odd));
    }
}

/* 64 codes: n[0] holds elements 0-15 and 32-47, n[1] the others. */
AGOQK_INLINE void avx2_get4(const uint8_t *at, __m256i n[2]) {
    const __m256i v = avx2_load(at), mask = _mm256_set1_epi8(15);
    const __m256i low = _mm256_and_si256(v, mask), high = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    n[0] = avx2_shuffle(_mm256_unpacklo_epi8(low, high), 0x0703060205010400, 0x0F0B0E0A0D090C08);
    n[1] = avx2_shuffle(_mm256_unpackhi_epi8(low, high), 0x0703060205010400, 0x0F0B0E0A0D090C08);
}

/* ORs a plane of one bit into bit 4. */
AGOQK_INLINE void avx2_get1(const uint8_t *at, __m256i n[2]) {
    const __m256i bit = _mm256_set1_epi64x((int64_t)0x0808040402020101),
                  bits = _mm256_blend_epi32(bit, _mm256_slli_epi16(bit, 4), 0xCC);
    int32_t words[2];
    memcpy(words, at, sizeof words);
    const __m256i v = _mm256_inserti128_si256(_mm256_set1_epi32(words[0]), _mm_set1_epi32(words[1]), 1);
    for (int i = 0; i < 2; i++) {
        const int64_t place = i ? 0x0301030103010301 : 0x0200020002000200;
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(avx2_shuffle(v, place, place), bits), bits);
        n[i] = _mm256_or_si256(n[i], _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
}

/* ORs a plane of two bits into bits 4 and 5: each pair of elements is shifted up to bit 6, then down. */
AGOQK_INLINE void avx2_get2(const uint8_t *at, __m256i n[2]) {
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m256i mask = _mm256_set1_epi64x((int64_t)0xC0C030300C0C0303),
                  up = _mm256_set1_epi64x(0x0001000400100040);
    for (int i = 0; i < 2; i++) {
        const int64_t word = (int64_t)0x0404040404040404 * i, low = 0x0200020002000200 + word,
                      next = 0x0808080808080808, high = 0x0301030103010301 + word;
        const __m256i bytes = _mm256_shuffle_epi8(v, _mm256_setr_epi64x(low, high, low + next, high + next));
        const __m256i top = _mm256_mullo_epi16(_mm256_and_si256(bytes, mask), up);
        n[i] = _mm256_or_si256(n[i], _mm256_srli_epi16(top, 2));
    }
}

AGOQK_INLINE void avx2_get8(const uint8_t *at, __m256i n[2]) {
    const int64_t low = 0x0705060403010200, high = 0x0F0D0E0C0B090A08;
    const __m256i a = avx2_shuffle(avx2_load(at), low, high), b = avx2_shuffle(avx2_load(at + 32), low, high);
    n[0] = _mm256_permute2x128_si256(a, b, 0x20);
    n[1] = _mm256_permute2x128_si256(a, b, 0x31);
}

/* fp32 of eight levels: level * d, +0 for -0. */
AGOQK_INLINE __m256 avx2_values(__m256i level, __m256 d) {
    return _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(level), d), _mm256_setzero_ps());
}

/* To bf16, nearest even, in the low half of each lane. No NaN comes here. */
AGOQK_INLINE __m256i avx2_bf16(__m256 x) {
    const __m256i u = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(u, odd), _mm256_set1_epi32(0x7FFF)), 16);
}

/* 16 levels. */
AGOQK_INLINE void avx2_write(__m128i level, __m256 d, agoq_dtype dtype, uint8_t *y) {
    if (dtype == AGOQ_DTYPE_BF16) {
        const __m256i wide = _mm256_cvtepi8_epi16(level), zero = _mm256_setzero_si256();
        const __m256i a = _mm256_srai_epi32(_mm256_unpacklo_epi16(zero, wide), 16),
                      b = _mm256_srai_epi32(_mm256_unpackhi_epi16(zero, wide), 16);
        avx2_store(y, _mm256_packus_epi32(avx2_bf16(avx2_values(a, d)), avx2_bf16(avx2_values(b, d))));
    } else {
        const __m256i a = _mm256_cvtepi8_epi32(level), b = _mm256_cvtepi8_epi32(_mm_srli_si128(level, 8));
        avx2_store(y, _mm256_castps_si256(avx2_values(a, d)));
        avx2_store(y + 32, _mm256_castps_si256(avx2_values(b, d)));
    }
}

AGOQK_INLINE void agoqk_avx2_decode(const uint8_t *lo_at, const uint8_t *hi_at, float d, int bits, int lo,
                                    int hi, agoq_dtype dtype, void *y) {
    const size_t quarter = dtype == AGOQ_DTYPE_BF16 ? 32 : 64;
    const __m256 scale = _mm256_set1_ps(d);
    const __m256i offset = _mm256_set1_epi8((char)(bits == 8 ? -128 : 1 << (bits - 1)));
    uint8_t *to = (uint8_t *)y;
    __m256i n[2];
    if (lo == 8) {
        avx2_get8(lo_at, n);
    } else {
        avx2_get4(lo_at, n);
    }
    if (hi == 1) avx2_get1(hi_at, n);
    if (hi == 2) avx2_get2(hi_at, n);
    n[0] = _mm256_sub_epi8(n[0], offset);
    n[1] = _mm256_sub_epi8(n[1], offset);
    avx2_write(_mm256_castsi256_si128(n[0]), scale, dtype, to);
    avx2_write(_mm256_castsi256_si128(n[1]), scale, dtype, to + quarter);
    avx2_write(_mm256_extracti128_si256(n[0], 1), scale, dtype, to + 2 * quarter);
    avx2_write(_mm256_extracti128_si256(n[1], 1), scale, dtype, to + 3 * quarter);
}

#endif
