/* See block.h. Each step of a block is a loop of constant length over plain arrays, which compilers vectorise
 * for whatever the level has; the arithmetic of one element is kernels/format/. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/random.h"
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

/* One plane of k bits of a block's codes, of which each lane holds eight; k, shift and `bytes` of a whole
 * block are constants. */
AGOQK_INLINE void put_plane(uint8_t *at, const uint64_t lane[PLANE_LANES], int n, int k, int shift) {
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
AGOQK_INLINE void get_plane(const uint8_t *at, uint64_t lane[PLANE_LANES], int n, int k, int shift) {
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

/* bits, lo and hi are constants; words NULL: nearest even. */
AGOQK_INLINE uint32_t put_int(const block_place *p, const float *x, const uint32_t *words, int bits, int lo,
                              int hi) {
    const uint32_t stat = agoqk_block_stat(x, AGOQ_BLOCK);
    const uint16_t d = agoqk_int_scale(stat, bits);
    uint8_t codes[AGOQ_BLOCK];
    if (d == 0 || agoqk_int_scale_is_nan(d)) {
        memset(codes, agoqk_int_zero_code(bits), sizeof codes);
    } else if (words) {
        const float inverse = agoqk_int_inverse(d);
        for (int i = 0; i < AGOQ_BLOCK; i++)
            codes[i] = (uint8_t)agoqk_int_encode_sr(x[i], inverse, bits, words[i]);
    } else {
        const float inverse = agoqk_int_inverse(d);
        for (int i = 0; i < AGOQ_BLOCK; i++) codes[i] = (uint8_t)agoqk_int_encode(x[i], inverse, bits);
    }
    if (p->n < AGOQ_BLOCK)
        memset(codes + p->n, 0, (size_t)(AGOQ_BLOCK - p->n)); /* padding bits of words are zero */
    uint64_t lane[PLANE_LANES];
    memcpy(lane, codes, sizeof lane);
    put_plane(p->lo, lane, p->n, lo, 0);
    if (hi) put_plane(p->hi, lane, p->n, hi, lo);
    memcpy(p->scale, &d, sizeof d);
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

AGOQK_INLINE void get_int(const block_place *p, float *x, int bits, int lo, int hi) {
    uint16_t scale;
    memcpy(&scale, p->scale, sizeof scale);
    uint64_t lane[PLANE_LANES] = {0};
    get_plane(p->lo, lane, p->n, lo, 0);
    if (hi) get_plane(p->hi, lane, p->n, hi, lo);
    uint8_t codes[AGOQ_BLOCK];
    memcpy(codes, lane, sizeof codes);
    if (agoqk_int_scale_is_nan(scale)) {
        for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_float(AGOQK_NAN_BITS);
    } else {
        const float d = agoqk_bf16_decode(scale);
        for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_int_decode(codes[i], d, bits);
    }
    for (int i = p->n; i < AGOQ_BLOCK; i++) x[i] = 0.0f;
}

static void get_bf16(const block_place *p, float *x) {
    agoqk_load(p->lo, AGOQ_DTYPE_BF16, 0, p->n, x, AGOQ_BLOCK);
}

/* The switches hand each width's constants to one inlined body. */
uint32_t agoqk_block_put(const agoq_packed *packed, int64_t r, int64_t b, const float x[AGOQ_BLOCK],
                         const agoqk_random *random, int count) {
    const agoq_layout *l = &packed->layout;
    const block_place p = place_of(packed, r, b);
    uint32_t words[AGOQ_BLOCK];
    const uint32_t *w = random->stochastic ? words : NULL;
    if (w)
        agoqk_random_bits(random, random->offset + (uint64_t)(r * l->cols + b * AGOQ_BLOCK), AGOQ_BLOCK,
                          words);
    switch (l->bits) {
#define PUT(id, bits, lo, hi)                                                                                \
    case bits:                                                                                               \
        return bits == 16 ? put_bf16(&p, x, w, count) : put_int(&p, x, w, bits, lo, hi);
        AGOQ_WIDTHS(PUT)
#undef PUT
    }
    return 0;
}

void agoqk_block_get(const agoq_packed *packed, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    const block_place p = place_of(packed, r, b);
    switch (packed->layout.bits) {
#define GET(id, bits, lo, hi)                                                                                \
    case bits:                                                                                               \
        bits == 16 ? get_bf16(&p, x) : get_int(&p, x, bits, lo, hi);                                         \
        break;
        AGOQ_WIDTHS(GET)
#undef GET
    }
}
