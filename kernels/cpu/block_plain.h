/* Whole blocks without vector intrinsics: what a level without AVX2 does with a block, and every level with a
 * short one. Loops of constant length over plain arrays, which compilers vectorise. The interface is that of
 * block_avx2.h. */
#ifndef KERNELS_CPU_BLOCK_PLAIN_H
#define KERNELS_CPU_BLOCK_PLAIN_H

#include "kernels/cpu/block.h"
#include "kernels/format/int_block.h"
#include "kernels/format/plane.h"

enum { PLANE_LANES = AGOQ_BLOCK / 8 };

/* One plane of k bits of a block's codes, of which each lane holds eight; k, shift and `bytes` of a whole
 * block are constants. */
AGOQK_INLINE void agoqk_plane_put(uint8_t *at, const uint64_t lane[PLANE_LANES], int n, int k, int shift) {
    uint32_t words[AGOQ_BLOCK / 4];
    if (k == 8) {
        memcpy(words, lane, AGOQ_BLOCK);
        for (int i = 0; i < AGOQ_BLOCK / 4; i++) words[i] = agoqk_plane_swap(words[i]);
    } else {
        const int per_word = 4 / k;
        uint32_t part[PLANE_LANES];
        for (int i = 0; i < PLANE_LANES; i++) part[i] = agoqk_plane_fold(lane[i] >> shift, k);
        for (int w = 0; w < PLANE_LANES / per_word; w++) {
            words[w] = part[w * per_word];
            for (int q = 1; q < per_word; q++) words[w] |= part[w * per_word + q] << 4 * k * q;
        }
    }
    if (n == AGOQ_BLOCK) {
        memcpy(at, words, (size_t)(AGOQ_BLOCK / 8 * k));
    } else {
        memcpy(at, words, (size_t)((n * k + 31) / 32 * 4));
    }
}

/* ORs the plane's bits into the codes. */
AGOQK_INLINE void agoqk_plane_get(const uint8_t *at, uint64_t lane[PLANE_LANES], int n, int k, int shift) {
    uint32_t words[AGOQ_BLOCK / 4];
    if (n == AGOQ_BLOCK) {
        memcpy(words, at, (size_t)(AGOQ_BLOCK / 8 * k));
    } else {
        memset(words, 0, sizeof words);
        memcpy(words, at, (size_t)((n * k + 31) / 32 * 4));
    }
    if (k == 8) {
        for (int i = 0; i < AGOQ_BLOCK / 4; i++) words[i] = agoqk_plane_swap(words[i]);
        memcpy(lane, words, AGOQ_BLOCK);
    } else {
        const int per_word = 4 / k;
        uint32_t part[PLANE_LANES];
        for (int i = 0; i < PLANE_LANES; i++) part[i] = words[i / per_word] >> 4 * k * (i % per_word);
        for (int i = 0; i < PLANE_LANES; i++) lane[i] |= agoqk_plane_spread(part[i], k) << shift;
    }
}

/* A whole block of fp32 or bf16 elements (dtype, format, lo and hi are constants): its statistic, its codes
 * for a scale with this inverse, and back. */
AGOQK_INLINE uint32_t agoqk_plain_stat(const void *x, agoq_dtype dtype) {
    float buf[AGOQ_BLOCK];
    agoqk_load(x, dtype, 0, AGOQ_BLOCK, buf, AGOQ_BLOCK);
    return agoqk_block_stat(buf, AGOQ_BLOCK);
}

AGOQK_INLINE void agoqk_plain_stats(const uint8_t *const x[AGOQK_GROUP], agoq_dtype dtype,
                                    uint32_t stat[AGOQK_GROUP]) {
    for (int i = 0; i < AGOQK_GROUP; i++) stat[i] = agoqk_plain_stat(x[i], dtype);
}

/* Scales of a group of blocks and their inverses, 0 where codes do not depend on x; returns blocks with a NaN
 * or Inf. */
AGOQK_INLINE uint32_t agoqk_plain_scales(const uint32_t stat[AGOQK_GROUP], int format,
                                         uint16_t d[AGOQK_GROUP], float inverse[AGOQK_GROUP]) {
    uint32_t nonfinite = 0;
    for (int i = 0; i < AGOQK_GROUP; i++) {
        d[i] = agoqk_int_scale(stat[i], format);
        inverse[i] = d[i] == 0 || agoqk_int_scale_is_nan(d[i]) ? 0.0f : agoqk_int_inverse(d[i]);
        nonfinite += (uint32_t)agoqk_stat_nonfinite(stat[i]);
    }
    return nonfinite;
}

AGOQK_INLINE void agoqk_plain_encode(const void *x, agoq_dtype dtype, float inverse, int format, int lo,
                                     int hi, uint8_t *lo_at, uint8_t *hi_at, int stream) {
    (void)stream;
    float buf[AGOQ_BLOCK];
    uint8_t codes[AGOQ_BLOCK];
    uint64_t lane[PLANE_LANES];
    agoqk_load(x, dtype, 0, AGOQ_BLOCK, buf, AGOQ_BLOCK);
    for (int i = 0; i < AGOQ_BLOCK; i++) codes[i] = (uint8_t)agoqk_int_encode(buf[i], inverse, format);
    memcpy(lane, codes, sizeof lane);
    agoqk_plane_put(lo_at, lane, AGOQ_BLOCK, lo, 0);
    if (hi) agoqk_plane_put(hi_at, lane, AGOQ_BLOCK, hi, lo);
}

AGOQK_INLINE void agoqk_plain_decode(const uint8_t *lo_at, const uint8_t *hi_at, float d, int format, int lo,
                                     int hi, agoq_dtype dtype, void *y, int stream) {
    (void)stream;
    float buf[AGOQ_BLOCK];
    uint8_t codes[AGOQ_BLOCK];
    uint64_t lane[PLANE_LANES] = {0};
    agoqk_plane_get(lo_at, lane, AGOQ_BLOCK, lo, 0);
    if (hi) agoqk_plane_get(hi_at, lane, AGOQ_BLOCK, hi, lo);
    memcpy(codes, lane, sizeof codes);
    for (int i = 0; i < AGOQ_BLOCK; i++) buf[i] = agoqk_int_decode(codes[i], d, format);
    agoqk_store(y, dtype, 0, AGOQ_BLOCK, buf, AGOQ_BLOCK);
}

#endif
