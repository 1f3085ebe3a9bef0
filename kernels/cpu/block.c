/* See block.h. Each step of a block is a loop of constant length over plain arrays, which compilers vectorise
 * for whatever the level has; the arithmetic of one element is kernels/format/. */
#include "kernels/cpu/block.h"

#include "kernels/format/e4m3.h"
#include "kernels/format/int_block.h"
#include "kernels/format/plane.h"

enum { PLANE_LANES = AGOQ_BLOCK / 8 };

agoqk_random agoqk_random_make(const agoq_key *key) {
    agoqk_random random = {{{0, 0, 0, 0}}, 0, 0};
    if (!key) return random;
    random.stream = agoqk_stream_make(key->seed, key->tensor, key->step, key->microbatch, key->replica);
    random.offset = (uint64_t)key->offset;
    random.stochastic = 1;
    return random;
}

/* words[i] of global indices first + i, 0 <= i < n; n is a constant. A block that does not start on a group
 * of four costs one group more. */
AGOQK_INLINE void random_words(const agoqk_random *random, uint64_t first, int n, uint32_t *words) {
    const uint64_t most = UINT64_MAX / 4, group = first / 4;
    const size_t skip = (size_t)(first % 4);
    uint32_t all[AGOQ_GRAD_BLOCK + 4];
    for (int i = 0; i < n / 4; i++) {
        const agoqk_words four = agoqk_stream_words(&random->stream, (group + (uint64_t)i) & most);
        for (int lane = 0; lane < 4; lane++) all[4 * i + lane] = four.w[lane];
    }
    if (skip) {
        const agoqk_words four = agoqk_stream_words(&random->stream, (group + (uint64_t)(n / 4)) & most);
        memcpy(all + n, four.w, sizeof four.w);
    }
    memcpy(words, all + skip, (size_t)n * sizeof *words);
}

/* The switches hand a constant k to the inlined word rule: one source, unrolled by the compiler for each
 * plane. */
AGOQK_INLINE void put_words(uint8_t *at, const uint8_t *codes, int n, int k, int shift) {
    uint32_t words[AGOQ_BLOCK / 4];
    if (k == 8) {
        memcpy(words, codes, AGOQ_BLOCK);
        for (int i = 0; i < AGOQ_BLOCK / 4; i++) words[i] = agoqk_plane_swap(words[i]);
    } else {
        const int per_word = 4 / k;
        uint64_t lane[PLANE_LANES];
        uint32_t part[PLANE_LANES];
        memcpy(lane, codes, AGOQ_BLOCK);
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

/* ORs the plane's bits into codes. */
AGOQK_INLINE void get_words(const uint8_t *at, uint8_t *codes, int n, int k, int shift) {
    uint32_t words[AGOQ_BLOCK / 4] = {0};
    if (n == AGOQ_BLOCK) {
        memcpy(words, at, (size_t)(AGOQ_BLOCK / 8 * k));
    } else {
        memcpy(words, at, (size_t)((n * k + 31) / 32 * 4));
    }
    if (k == 8) {
        for (int i = 0; i < AGOQ_BLOCK / 4; i++) words[i] = agoqk_plane_swap(words[i]);
        memcpy(codes, words, AGOQ_BLOCK);
    } else {
        const int per_word = 4 / k;
        uint64_t lane[PLANE_LANES];
        uint32_t part[PLANE_LANES];
        memcpy(lane, codes, AGOQ_BLOCK);
        for (int i = 0; i < PLANE_LANES; i++) part[i] = words[i / per_word] >> 4 * k * (i % per_word);
        for (int i = 0; i < PLANE_LANES; i++) lane[i] |= agoqk_plane_spread(part[i], k) << shift;
        memcpy(codes, lane, AGOQ_BLOCK);
    }
}

static void put_plane(uint8_t *at, const uint8_t *codes, int n, int k, int shift) {
    switch (k) {
    case 1:
        put_words(at, codes, n, 1, shift);
        break;
    case 2:
        put_words(at, codes, n, 2, shift);
        break;
    case 4:
        put_words(at, codes, n, 4, shift);
        break;
    case 8:
        put_words(at, codes, n, 8, shift);
        break;
    }
}

static void get_plane(const uint8_t *at, uint8_t *codes, int n, int k, int shift) {
    switch (k) {
    case 1:
        get_words(at, codes, n, 1, shift);
        break;
    case 2:
        get_words(at, codes, n, 2, shift);
        break;
    case 4:
        get_words(at, codes, n, 4, shift);
        break;
    case 8:
        get_words(at, codes, n, 8, shift);
        break;
    }
}

typedef struct block_place {
    uint8_t *lo, *hi, *scale;
    int n;
} block_place;

static inline block_place place_of(const agoq_packed *packed, int64_t r, int64_t b) {
    const agoq_layout *l = &packed->layout;
    uint8_t *base = packed->data;
    const size_t at = (size_t)b * AGOQ_BLOCK / 8;
    block_place p;
    p.lo = base + (size_t)r * l->lo_row_bytes + at * (size_t)l->lo_bits;
    p.hi = base + l->hi_offset + (size_t)r * l->hi_row_bytes + at * (size_t)l->hi_bits;
    p.scale = base + l->scale_offset + (size_t)(r * l->blocks_per_row + b) * 2;
    p.n = agoqk_tail(l->cols, b, AGOQ_BLOCK);
    return p;
}

static uint32_t put_bf16(const block_place *p, const float *x, const uint32_t *words, int count) {
    uint16_t half[AGOQ_BLOCK];
    if (words) {
        for (int i = 0; i < AGOQ_BLOCK; i++) half[i] = agoqk_bf16_encode_sr(x[i], words[i]);
    } else {
        for (int i = 0; i < AGOQ_BLOCK; i++) half[i] = agoqk_bf16_encode(x[i]);
    }
    if (p->n == AGOQ_BLOCK) {
        memcpy(p->lo, half, sizeof half);
    } else { /* zeros fill the other half of an odd row's last word: x is zero there */
        memcpy(p->lo, half, (size_t)(p->n + p->n % 2) * sizeof *half);
    }
    return count ? (uint32_t)agoqk_stat_nonfinite(agoqk_block_stat(x, AGOQ_BLOCK)) : 0;
}

uint32_t agoqk_block_put(const agoq_packed *packed, int64_t r, int64_t b, const float x[AGOQ_BLOCK],
                         const agoqk_random *random, int count) {
    const agoq_layout *l = &packed->layout;
    const int bits = l->bits;
    const block_place p = place_of(packed, r, b);
    uint32_t words[AGOQ_BLOCK];
    if (random->stochastic)
        random_words(random, random->offset + (uint64_t)(r * l->cols + b * AGOQ_BLOCK), AGOQ_BLOCK, words);
    if (bits == 16) return put_bf16(&p, x, random->stochastic ? words : NULL, count);

    const uint32_t stat = agoqk_block_stat(x, AGOQ_BLOCK);
    const uint16_t d = agoqk_int_scale(stat, bits);
    uint8_t codes[AGOQ_BLOCK];
    if (d == 0 || agoqk_int_scale_is_nan(d)) {
        memset(codes, agoqk_int_zero_code(bits), sizeof codes);
    } else if (random->stochastic) {
        const float inverse = agoqk_int_inverse(d);
        for (int i = 0; i < AGOQ_BLOCK; i++)
            codes[i] = (uint8_t)agoqk_int_encode_sr(x[i], inverse, bits, words[i]);
    } else {
        const float inverse = agoqk_int_inverse(d);
        for (int i = 0; i < AGOQ_BLOCK; i++) codes[i] = (uint8_t)agoqk_int_encode(x[i], inverse, bits);
    }
    if (p.n < AGOQ_BLOCK)
        memset(codes + p.n, 0, (size_t)(AGOQ_BLOCK - p.n)); /* padding bits of words are zero */
    put_plane(p.lo, codes, p.n, l->lo_bits, 0);
    if (l->hi_bits) put_plane(p.hi, codes, p.n, l->hi_bits, l->lo_bits);
    memcpy(p.scale, &d, sizeof d);
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

void agoqk_block_get(const agoq_packed *packed, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    const agoq_layout *l = &packed->layout;
    const block_place p = place_of(packed, r, b);
    if (l->bits == 16) {
        agoqk_load(p.lo, AGOQ_DTYPE_BF16, 0, p.n, x, AGOQ_BLOCK);
        return;
    }
    uint16_t scale;
    memcpy(&scale, p.scale, sizeof scale);
    uint8_t codes[AGOQ_BLOCK] = {0};
    get_plane(p.lo, codes, p.n, l->lo_bits, 0);
    if (l->hi_bits) get_plane(p.hi, codes, p.n, l->hi_bits, l->lo_bits);
    if (agoqk_int_scale_is_nan(scale)) {
        for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_float(AGOQK_NAN_BITS);
    } else {
        const float d = agoqk_bf16_decode(scale);
        for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_int_decode(codes[i], d, l->bits);
    }
    for (int i = p.n; i < AGOQ_BLOCK; i++) x[i] = 0.0f;
}

uint32_t agoqk_grad_put(const agoq_grad *grad, int64_t b, const float x[AGOQ_GRAD_BLOCK],
                        const agoqk_random *random, uint64_t first) {
    const int n = agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK);
    const uint32_t stat = agoqk_block_stat(x, AGOQ_GRAD_BLOCK);
    const float scale = agoqk_e4m3_scale(stat);
    uint8_t codes[AGOQ_GRAD_BLOCK];
    if (!(scale > 0.0f)) {
        memset(codes, 0, sizeof codes);
    } else if (random->stochastic) {
        uint32_t words[AGOQ_GRAD_BLOCK];
        random_words(random, first, AGOQ_GRAD_BLOCK, words);
        const float inverse = 1.0f / scale;
        for (int i = 0; i < AGOQ_GRAD_BLOCK; i++)
            codes[i] = (uint8_t)agoqk_e4m3_encode_sr(x[i] * inverse, words[i]);
    } else {
        const float inverse = 1.0f / scale;
        for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) codes[i] = (uint8_t)agoqk_e4m3_encode(x[i] * inverse);
    }
    memcpy(grad->codes + b * AGOQ_GRAD_BLOCK, codes, (size_t)n);
    grad->scales[b] = scale;
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

void agoqk_grad_get(const agoq_grad *grad, int64_t b, float x[AGOQ_GRAD_BLOCK]) {
    const int n = agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK);
    const float scale = grad->scales[b];
    uint8_t codes[AGOQ_GRAD_BLOCK] = {0};
    memcpy(codes, grad->codes + b * AGOQ_GRAD_BLOCK, (size_t)n);
    for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) x[i] = agoqk_e4m3_decode(codes[i], scale);
    for (int i = n; i < AGOQ_GRAD_BLOCK; i++) x[i] = 0.0f;
}
