/* Whole blocks with AVX2, for the levels that have it (AVX-512 gains nothing on 64 elements): the interface
 * and the bytes of block_plain.h, without passing through fp32 arrays. Conversion to int32 rounds to nearest
 * even, so that clamping after it is the format's clamping before it; nothing is below -2^(b-1), because no
 * element is larger than the one that made the scale. The trade-off: plane words are made by shuffles that
 * only fit blocks of 64 and planes of 1, 2, 4 and 8 bits. */
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

/* stream: past the caches, to an address that is a multiple of 32. */
AGOQK_INLINE void avx2_write(void *y, __m256i v, int stream) {
    if (stream) {
        _mm256_stream_si256((__m256i *)y, v);
    } else {
        avx2_store(y, v);
    }
}

/* The same 16 byte indices in both halves. */
AGOQK_INLINE __m256i avx2_shuffle(__m256i v, int64_t low, int64_t high) {
    return _mm256_shuffle_epi8(v, _mm256_setr_epi64x(low, high, low, high));
}

/* Lane by lane, the largest statistic of 64 elements; of bf16 elements in 16 bits, whose order is the same.
 */
AGOQK_INLINE __m256i avx2_top(const uint8_t *x, agoq_dtype dtype) {
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < (dtype == AGOQ_DTYPE_BF16 ? 4 : 8); i++) {
        const __m256i v = avx2_load(x + 32 * i);
        top = dtype == AGOQ_DTYPE_BF16
                  ? _mm256_max_epu16(top, _mm256_or_si256(_mm256_add_epi16(v, v), _mm256_srli_epi16(v, 15)))
                  : _mm256_max_epu32(top, _mm256_or_si256(_mm256_add_epi32(v, v), _mm256_srli_epi32(v, 31)));
    }
    return top;
}

AGOQK_INLINE __m256i avx2_max(__m256i a, __m256i b, agoq_dtype dtype) {
    return dtype == AGOQ_DTYPE_BF16 ? _mm256_max_epu16(a, b) : _mm256_max_epu32(a, b);
}

/* Two blocks: both halves of each to one. */
AGOQK_INLINE __m256i avx2_halves(const uint8_t *const x[AGOQK_GROUP], int i, agoq_dtype dtype) {
    const __m256i a = avx2_top(x[i], dtype), b = avx2_top(x[i + 4], dtype);
    return avx2_max(_mm256_permute2x128_si256(a, b, 0x20), _mm256_permute2x128_si256(a, b, 0x31), dtype);
}

/* agoqk_stat of eight blocks, reduced together: a tree of transpositions. */
AGOQK_INLINE void agoqk_avx2_stats(const uint8_t *const x[AGOQK_GROUP], agoq_dtype dtype,
                                   uint32_t stat[AGOQK_GROUP]) {
    const __m256i a = avx2_halves(x, 0, dtype), b = avx2_halves(x, 1, dtype), c = avx2_halves(x, 2, dtype),
                  d = avx2_halves(x, 3, dtype);
    const __m256 ab = _mm256_castsi256_ps(
                     avx2_max(_mm256_unpacklo_epi64(a, b), _mm256_unpackhi_epi64(a, b), dtype)),
                 cd = _mm256_castsi256_ps(
                     avx2_max(_mm256_unpacklo_epi64(c, d), _mm256_unpackhi_epi64(c, d), dtype));
    __m256i top = avx2_max(_mm256_castps_si256(_mm256_shuffle_ps(ab, cd, 0x88)),
                           _mm256_castps_si256(_mm256_shuffle_ps(ab, cd, 0xDD)), dtype);
    if (dtype == AGOQ_DTYPE_BF16) {
        top = _mm256_max_epu16(top, _mm256_srli_epi32(top, 16));
        const __m256i sign = _mm256_and_si256(top, _mm256_set1_epi32(1));
        top = _mm256_or_si256(_mm256_slli_epi32(_mm256_sub_epi32(top, sign), 16), sign);
    }
    avx2_store(stat, top);
}

/* Of one. */
AGOQK_INLINE uint32_t agoqk_avx2_stat(const void *x, agoq_dtype dtype) {
    const __m256i top = avx2_top((const uint8_t *)x, dtype);
    const __m128i low = _mm256_castsi256_si128(top), high = _mm256_extracti128_si256(top, 1);
    if (dtype == AGOQ_DTYPE_BF16) {
        const __m128i least = _mm_minpos_epu16(_mm_xor_si128(_mm_max_epu16(low, high), _mm_set1_epi32(-1)));
        const uint32_t most = ~(uint32_t)_mm_cvtsi128_si32(least) & 0xFFFFu;
        return (most & 0xFFFEu) << 16 | (most & 1u);
    }
    __m128i half = _mm_max_epu32(low, high);
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0x4E));
    half = _mm_max_epu32(half, _mm_shuffle_epi32(half, 0xB1));
    return (uint32_t)_mm_cvtsi128_si32(half);
}

/* Code - 2^(b-1), before the upper end is clamped. */
AGOQK_INLINE __m256i avx2_rint(__m256i x, __m256 inverse, int format) {
    const __m256 t = _mm256_mul_ps(_mm256_castsi256_ps(x), inverse);
    if (format != AGOQ_FORMAT_CODE4) return _mm256_cvtps_epi32(t);
    const __m256 curve =
                     _mm256_fmadd_ps(t, _mm256_set1_ps(AGOQK_CODE4_CUBE), _mm256_set1_ps(AGOQK_CODE4_SQUARE)),
                 slope = _mm256_fmadd_ps(t, curve, _mm256_set1_ps(AGOQK_CODE4_LINE)),
                 rounded = _mm256_fmadd_ps(t, slope, _mm256_set1_ps(AGOQK_ROUND_MAGIC));
    return _mm256_sub_epi32(_mm256_castps_si256(rounded), _mm256_set1_epi32(AGOQK_ROUND_MAGIC_BITS));
}

/* Levels of 16 bf16 elements, as words: two groups of eight, even elements before odd ones. */
AGOQK_INLINE __m256i avx2_levels(const uint8_t *x, __m256 inverse, int format) {
    const __m256i v = avx2_load(x), odd = _mm256_and_si256(v, _mm256_set1_epi32(-65536));
    return _mm256_packs_epi32(avx2_rint(_mm256_slli_epi32(v, 16), inverse, format),
                              avx2_rint(odd, inverse, format));
}

/* Codes of elements 32 h .. 32 h + 31: groups of eight in the order 0 2 | 1 3, each even before odd. */
AGOQK_INLINE __m256i avx2_codes(const uint8_t *x, agoq_dtype dtype, int h, __m256 inverse, int format) {
    __m256i level;
    if (dtype == AGOQ_DTYPE_BF16) {
        x += 64 * h;
        level = _mm256_packs_epi16(avx2_levels(x, inverse, format), avx2_levels(x + 32, inverse, format));
    } else {
        x += 128 * h;
        level = _mm256_packs_epi16(_mm256_packs_epi32(avx2_rint(avx2_load(x), inverse, format),
                                                      avx2_rint(avx2_load(x + 32), inverse, format)),
                                   _mm256_packs_epi32(avx2_rint(avx2_load(x + 64), inverse, format),
                                                      avx2_rint(avx2_load(x + 96), inverse, format)));
        level = _mm256_permutevar8x32_epi32(level, _mm256_setr_epi32(0, 4, 2, 6, 1, 5, 3, 7));
        level = avx2_shuffle(level, 0x0705030106040200, 0x0F0D0B090E0C0A08);
    }
    const int8_t half = (int8_t)(format == AGOQ_FORMAT_INT8 ? -128 : agoqk_int_zero_code(format));
    if (format < AGOQ_FORMAT_INT8) level = _mm256_min_epi8(level, _mm256_set1_epi8((char)(half - 1)));
    return _mm256_add_epi8(level, _mm256_set1_epi8((char)half));
}

/* 64 codes to a plane of their low 4 bits; more: they have others. */
AGOQK_INLINE void avx2_put4(uint8_t *at, __m256i a, __m256i b, int more, int stream) {
    const __m256i mask = _mm256_set1_epi8(15), weights = _mm256_set1_epi16(0x1001);
    if (more) {
        a = _mm256_and_si256(a, mask);
        b = _mm256_and_si256(b, mask);
    }
    const __m256i bytes = _mm256_packus_epi16(_mm256_maddubs_epi16(a, weights),
                                              _mm256_maddubs_epi16(b, weights)); /* 0 2 4 6 | 1 3 5 7 */
    avx2_write(at, _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)), stream);
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

/* Scales of eight blocks from their statistics, and inverses: 0 where codes do not depend on x. Returns
 * blocks with a NaN or Inf. agoqk_int_scale, lane by lane. */
AGOQK_INLINE uint32_t agoqk_avx2_scales(const uint32_t stat[AGOQK_GROUP], int format, uint16_t d[AGOQK_GROUP],
                                        float inverse[AGOQK_GROUP]) {
    const __m256i s = avx2_load(stat), mag = _mm256_srli_epi32(s, 1), zero = _mm256_setzero_si256();
    const __m256i bad = _mm256_cmpgt_epi32(mag, _mm256_set1_epi32(AGOQK_INF_BITS - 1));
    const __m256 top = _mm256_castsi256_ps(_mm256_or_si256(mag, _mm256_slli_epi32(s, 31)));
    const __m256i q =
        _mm256_castps_si256(_mm256_mul_ps(top, _mm256_set1_ps(-1.0f / (float)agoqk_int_zero_code(format))));
    const __m256i tie = _mm256_and_si256(_mm256_srli_epi32(q, 16), _mm256_set1_epi32(1));
    const __m256i half =
        _mm256_srli_epi32(_mm256_add_epi32(_mm256_add_epi32(q, tie), _mm256_set1_epi32(0x7FFF)), 16);
    const __m256i flat = _mm256_cmpeq_epi32(_mm256_and_si256(half, _mm256_set1_epi32(0x7F80)), zero);
    const __m256 one = _mm256_set1_ps(1.0f), value = _mm256_castsi256_ps(_mm256_slli_epi32(half, 16));
    const __m256 none = _mm256_castsi256_ps(_mm256_or_si256(flat, bad));
    _mm256_storeu_ps(inverse, _mm256_andnot_ps(none, _mm256_div_ps(one, value)));
    const __m256i scale =
        _mm256_blendv_epi8(_mm256_andnot_si256(flat, half), _mm256_set1_epi32(AGOQK_BF16_NAN), bad);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(scale, zero), 0xD8);
    _mm_storeu_si128((__m128i *)(void *)d, _mm256_castsi256_si128(packed));
    return (uint32_t)__builtin_popcount((unsigned)_mm256_movemask_ps(_mm256_castsi256_ps(bad)));
}

AGOQK_INLINE void agoqk_avx2_encode(const void *x, agoq_dtype dtype, float inverse, int format, int lo,
                                    int hi, uint8_t *lo_at, uint8_t *hi_at, int stream) {
    const __m256 scale = _mm256_set1_ps(inverse);
    const __m256i a = avx2_codes((const uint8_t *)x, dtype, 0, scale, format),
                  b = avx2_codes((const uint8_t *)x, dtype, 1, scale, format);
    if (lo == 8) { /* elements 0 2 1 3 of each word */
        const int64_t low = 0x0706030205040100, high = 0x0F0E0B0A0D0C0908;
        avx2_write(lo_at, avx2_shuffle(_mm256_permute4x64_epi64(a, 0xD8), low, high), stream);
        avx2_write(lo_at + 32, avx2_shuffle(_mm256_permute4x64_epi64(b, 0xD8), low, high), stream);
        return;
    }
    avx2_put4(lo_at, a, b, hi > 0, stream);
    if (hi == 1) {
        const uint32_t words[2] = {avx2_put1(a), avx2_put1(b)};
        memcpy(hi_at, words, sizeof words);
    } else if (hi == 2) {
        const __m256i v = _mm256_packus_epi32(avx2_put2(a), avx2_put2(b)); /* groups 0 2 4 6 | 1 3 5 7 */
        const __m128i odd = _mm_slli_epi16(_mm256_extracti128_si256(v, 1), 8);
        _mm_storeu_si128((__m128i *)(void *)hi_at, _mm_or_si128(_mm256_castsi256_si128(v), odd));
    }
}

/* 64 codes in the order of avx2_codes: n[0] holds groups 0 2 | 1 3, n[1] holds 4 6 | 5 7. */
AGOQK_INLINE void avx2_get4(const uint8_t *at, __m256i n[2]) {
    const __m256i v = _mm256_permutevar8x32_epi32(avx2_load(at), _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7));
    const __m256i mask = _mm256_set1_epi8(15), low = _mm256_and_si256(v, mask),
                  high = _mm256_and_si256(_mm256_srli_epi16(v, 4), mask);
    n[0] = avx2_shuffle(_mm256_unpacklo_epi8(low, high), 0x0703060205010400, 0x0F0B0E0A0D090C08);
    n[1] = avx2_shuffle(_mm256_unpackhi_epi8(low, high), 0x0703060205010400, 0x0F0B0E0A0D090C08);
}

/* ORs a plane of one bit into bit 4. */
AGOQK_INLINE void avx2_get1(const uint8_t *at, __m256i n[2]) {
    const int64_t low = 0x0808040402020101, high = (int64_t)0x8080404020201010;
    const __m256i bits = _mm256_setr_epi64x(low, low, high, high);
    int32_t words[2];
    memcpy(words, at, sizeof words);
    for (int i = 0; i < 2; i++) {
        const __m256i v = avx2_shuffle(_mm256_set1_epi32(words[i]), 0x0200020002000200, 0x0301030103010301);
        const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(v, bits), bits);
        n[i] = _mm256_or_si256(n[i], _mm256_and_si256(set, _mm256_set1_epi8(16)));
    }
}

/* ORs a plane of two bits into bits 4 and 5: each pair of elements is shifted up to bit 6, then down. */
AGOQK_INLINE void avx2_get2(const uint8_t *at, __m256i n[2]) {
    const __m256i v = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)at));
    const __m256i mask = _mm256_set1_epi64x((int64_t)0xC0C030300C0C0303),
                  up = _mm256_set1_epi64x(0x0001000400100040);
    for (int i = 0; i < 2; i++) {
        const int64_t word = 0x0808080808080808 * i, even = 0x0200020002000200 + word,
                      odd = 0x0301030103010301 + word, next = 0x0404040404040404;
        const __m256i bytes = _mm256_shuffle_epi8(v, _mm256_setr_epi64x(even, even + next, odd, odd + next));
        const __m256i top = _mm256_mullo_epi16(_mm256_and_si256(bytes, mask), up);
        n[i] = _mm256_or_si256(n[i], _mm256_srli_epi16(top, 2));
    }
}

AGOQK_INLINE void avx2_get8(const uint8_t *at, __m256i n[2]) {
    const int64_t low = 0x0705060403010200, high = 0x0F0D0E0C0B090A08;
    for (int i = 0; i < 2; i++)
        n[i] = avx2_shuffle(_mm256_permute4x64_epi64(avx2_load(at + 32 * i), 0xD8), low, high);
}

/* level * d, +0 for -0. */
AGOQK_INLINE __m256i avx2_values(__m256i level, __m256 d) {
    const __m256 product = _mm256_mul_ps(_mm256_cvtepi32_ps(level), d);
    return _mm256_castps_si256(_mm256_add_ps(product, _mm256_setzero_ps()));
}

/* fp32 to bf16, nearest even, of even and of odd elements. No NaN comes here, and the low byte is 0 (a
 * product of two numbers of 8 bits), so that adding 1 to the low half does not carry. */
AGOQK_INLINE __m256i avx2_bf16(__m256i even, __m256i odd) {
    const __m256i high = _mm256_blend_epi16(_mm256_srli_epi32(even, 16), odd, 0xAA),
                  low = _mm256_blend_epi16(even, _mm256_slli_epi32(odd, 16), 0xAA);
    const __m256i tie = _mm256_add_epi16(low, _mm256_and_si256(high, _mm256_set1_epi16(1)));
    const __m256i above = _mm256_xor_si256(tie, _mm256_set1_epi16((short)-32768));
    return _mm256_sub_epi16(high, _mm256_cmpgt_epi16(above, _mm256_setzero_si256()));
}

/* agoqk_int_steps of codes below 16 as bytes, in both halves. */
AGOQK_INLINE __m256i avx2_steps(int format) {
    uint64_t half[2] = {0, 0};
    for (uint32_t c = 0; c < 16; c++)
        half[c / 8] |= (uint64_t)(agoqk_int_steps(c, format) & 0xFF) << 8 * (c % 8);
    return _mm256_setr_epi64x((int64_t)half[0], (int64_t)half[1], (int64_t)half[0], (int64_t)half[1]);
}

/* bf16 of what codes first .. first + 15 stand for: low and high bytes, each in both halves. */
AGOQK_INLINE void avx2_table(int format, int first, __m256 d, __m256i *low, __m256i *high) {
    const __m256i steps = avx2_steps(format), up = _mm256_set1_epi32(first);
    const __m128i even_bytes = _mm_set1_epi64x(0x0E0C0A0806040200),
                  odd_bytes = _mm_set1_epi64x(0x0F0D0B0907050301);
    const __m128i all = _mm256_castsi256_si128(steps);
    const __m256i even = _mm256_add_epi32(_mm256_cvtepi8_epi32(_mm_shuffle_epi8(all, even_bytes)), up),
                  odd = _mm256_add_epi32(_mm256_cvtepi8_epi32(_mm_shuffle_epi8(all, odd_bytes)), up);
    const __m256i v = avx2_bf16(avx2_values(even, d), avx2_values(odd, d));
    const __m256i bytes =
        _mm256_packus_epi16(_mm256_and_si256(v, _mm256_set1_epi16(255)), _mm256_srli_epi16(v, 8));
    *low = _mm256_permute4x64_epi64(bytes, 0x88);
    *high = _mm256_permute4x64_epi64(bytes, 0xDD);
}

/* Codes below 32 (two tables) or 16 to bf16: what is beyond a table has bit 7 set and gives 0. */
AGOQK_INLINE void avx2_lookup(const __m256i n[2], int format, __m256 d, uint8_t *y, int stream) {
    __m256i low[2], high[2];
    avx2_table(format, 0, d, &low[0], &high[0]);
    if (format == AGOQ_FORMAT_INT5) avx2_table(format, 16, d, &low[1], &high[1]);
    for (int i = 0; i < 2; i++) {
        __m256i first = n[i];
        if (format == AGOQ_FORMAT_INT5) first = _mm256_add_epi8(first, _mm256_set1_epi8(0x70));
        __m256i l = _mm256_shuffle_epi8(low[0], first), h = _mm256_shuffle_epi8(high[0], first);
        if (format == AGOQ_FORMAT_INT5) {
            const __m256i second = _mm256_sub_epi8(n[i], _mm256_set1_epi8(16));
            l = _mm256_or_si256(l, _mm256_shuffle_epi8(low[1], second));
            h = _mm256_or_si256(h, _mm256_shuffle_epi8(high[1], second));
        }
        avx2_write(y + 64 * i, _mm256_unpacklo_epi8(l, h), stream);
        avx2_write(y + 64 * i + 32, _mm256_unpackhi_epi8(l, h), stream);
    }
}

/* 16 levels in the upper bytes of words to bf16. */
AGOQK_INLINE __m256i avx2_round(__m256i level, __m256 d) {
    const __m256i even = _mm256_srai_epi32(_mm256_slli_epi32(level, 16), 24),
                  odd = _mm256_srai_epi32(level, 24);
    return avx2_bf16(avx2_values(even, d), avx2_values(odd, d));
}

/* 32 levels, groups 0 2 | 1 3. */
AGOQK_INLINE void avx2_multiply(__m256i level, __m256 d, agoq_dtype dtype, uint8_t *y, int stream) {
    if (dtype == AGOQ_DTYPE_BF16) {
        const __m256i zero = _mm256_setzero_si256();
        avx2_write(y, avx2_round(_mm256_unpacklo_epi8(zero, level), d), stream);
        avx2_write(y + 32, avx2_round(_mm256_unpackhi_epi8(zero, level), d), stream);
        return;
    }
    const __m128i even = _mm256_castsi256_si128(level), odd = _mm256_extracti128_si256(level, 1);
    avx2_write(y, avx2_values(_mm256_cvtepi8_epi32(even), d), stream);
    avx2_write(y + 32, avx2_values(_mm256_cvtepi8_epi32(odd), d), stream);
    avx2_write(y + 64, avx2_values(_mm256_cvtepi8_epi32(_mm_srli_si128(even, 8)), d), stream);
    avx2_write(y + 96, avx2_values(_mm256_cvtepi8_epi32(_mm_srli_si128(odd, 8)), d), stream);
}

/* stream: y is aligned to 32 bytes and better not cached. */
AGOQK_INLINE void agoqk_avx2_decode(const uint8_t *lo_at, const uint8_t *hi_at, float d, int format, int lo,
                                    int hi, agoq_dtype dtype, void *y, int stream) {
    const __m256 scale = _mm256_set1_ps(agoqk_int_unit(d, format));
    __m256i n[2];
    if (lo == 8) {
        avx2_get8(lo_at, n);
    } else {
        avx2_get4(lo_at, n);
    }
    if (hi == 1) avx2_get1(hi_at, n);
    if (hi == 2) avx2_get2(hi_at, n);
    if (lo + hi <= 5 && dtype == AGOQ_DTYPE_BF16) {
        avx2_lookup(n, format, scale, (uint8_t *)y, stream);
        return;
    }
    const __m256i offset = _mm256_set1_epi8((char)(lo == 8 ? -128 : agoqk_int_zero_code(format)));
    const int half = dtype == AGOQ_DTYPE_BF16 ? 64 : 128;
    for (int i = 0; i < 2; i++) {
        const __m256i steps = format == AGOQ_FORMAT_CODE4 ? _mm256_shuffle_epi8(avx2_steps(format), n[i])
                                                          : _mm256_sub_epi8(n[i], offset);
        avx2_multiply(steps, scale, dtype, (uint8_t *)y + half * i, stream);
    }
}

#endif
