/* See block.h. */
#include "kernels/cpu/block.h"

#include "kernels/format/e4m3.h"
#include "kernels/format/int_block.h"
#include "kernels/format/plane.h"

agoqk_random agoqk_random_make(const agoq_key *key) {
    agoqk_random random = {{{0, 0, 0, 0}}, 0, 0};
    if (!key) return random;
    random.stream = agoqk_stream_make(key->seed, key->tensor, key->step, key->microbatch, key->replica);
    random.offset = (uint64_t)key->offset;
    random.stochastic = 1;
    return random;
}

void agoqk_random_words(const agoqk_random *random, uint64_t first, int n, uint32_t words[AGOQ_GRAD_BLOCK]) {
    for (int i = 0; i < n;) {
        const uint64_t index = first + (uint64_t)i;
        const agoqk_words group = agoqk_stream_words(&random->stream, index / 4);
        for (int lane = (int)(index % 4); lane < 4 && i < n; lane++) words[i++] = group.w[lane];
    }
}

void agoqk_load(const void *base, agoq_dtype dtype, int64_t at, int n, float *out, int size) {
    if (dtype == AGOQ_DTYPE_F32) {
        memcpy(out, (const uint8_t *)base + at * 4, (size_t)n * 4);
    } else {
        uint16_t half[AGOQ_GRAD_BLOCK];
        memcpy(half, (const uint8_t *)base + at * 2, (size_t)n * 2);
        if (dtype == AGOQ_DTYPE_BF16) {
            for (int i = 0; i < n; i++) out[i] = agoqk_bf16_decode(half[i]);
        } else {
            for (int i = 0; i < n; i++) out[i] = agoqk_f16_decode(half[i]);
        }
    }
    for (int i = n; i < size; i++) out[i] = 0.0f;
}

void agoqk_store(void *base, agoq_dtype dtype, int64_t at, int n, const float *in) {
    if (dtype == AGOQ_DTYPE_F32) {
        memcpy((uint8_t *)base + at * 4, in, (size_t)n * 4);
        return;
    }
    uint16_t half[AGOQ_GRAD_BLOCK];
    if (dtype == AGOQ_DTYPE_BF16) {
        for (int i = 0; i < n; i++) half[i] = agoqk_bf16_encode(in[i]);
    } else {
        for (int i = 0; i < n; i++) half[i] = agoqk_f16_encode(in[i]);
    }
    memcpy((uint8_t *)base + at * 2, half, (size_t)n * 2);
}

void agoqk_round_bf16(float *x, int n) {
    for (int i = 0; i < n; i++) x[i] = agoqk_bf16_round(x[i]);
}

uint32_t agoqk_block_stat(const float *x, int n) {
    uint32_t stat = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t s = agoqk_stat(x[i]);
        stat = s > stat ? s : stat;
    }
    return stat;
}

/* The switches hand a constant k to the inlined word rule: one source, unrolled by the compiler for each
 * plane. */
static inline void put_words(uint8_t *at, const uint8_t *codes, int n, int k, int shift) {
    const int per_word = 32 / k;
    for (int i = 0; i < n; i += per_word)
        agoqk_store_le32(at + i / per_word * 4, agoqk_plane_word(codes + i, k, shift));
}

static inline void get_words(const uint8_t *at, uint8_t *codes, int n, int k, int shift) {
    const int per_word = 32 / k;
    for (int i = 0; i < n; i += per_word)
        agoqk_plane_codes(agoqk_load_le32(at + i / per_word * 4), k, shift, codes + i);
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
    uint16_t half[AGOQ_BLOCK + 1];
    for (int i = 0; i < p->n; i++)
        half[i] = words ? agoqk_bf16_encode_sr(x[i], words[i]) : agoqk_bf16_encode(x[i]);
    half[p->n] = 0; /* the other half of an odd row's last word */
    const int stored = p->n + p->n % 2;
    for (int i = 0; i < stored; i++) agoqk_store_le16(p->lo + 2 * i, half[i]);
    return count ? (uint32_t)agoqk_stat_nonfinite(agoqk_block_stat(x, p->n)) : 0;
}

uint32_t agoqk_block_put(const agoq_packed *packed, int64_t r, int64_t b, const float x[AGOQ_BLOCK],
                         const agoqk_random *random, int count) {
    const agoq_layout *l = &packed->layout;
    const int bits = l->bits;
    const block_place p = place_of(packed, r, b);
    uint32_t words[AGOQ_GRAD_BLOCK];
    if (random->stochastic) {
        memset(words, 0, sizeof words);
        agoqk_random_words(random, random->offset + (uint64_t)(r * l->cols + b * AGOQ_BLOCK), p.n, words);
    }
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
    agoqk_store_le16(p.scale, d);
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

void agoqk_block_get(const agoq_packed *packed, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    const agoq_layout *l = &packed->layout;
    const block_place p = place_of(packed, r, b);
    if (l->bits == 16) {
        for (int i = 0; i < p.n; i++) x[i] = agoqk_bf16_decode(agoqk_load_le16(p.lo + 2 * i));
    } else {
        const uint16_t scale = agoqk_load_le16(p.scale);
        const float d = agoqk_bf16_decode(scale);
        uint8_t codes[AGOQ_BLOCK] = {0};
        get_plane(p.lo, codes, p.n, l->lo_bits, 0);
        if (l->hi_bits) get_plane(p.hi, codes, p.n, l->hi_bits, l->lo_bits);
        if (agoqk_int_scale_is_nan(scale)) {
            for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_float(AGOQK_NAN_BITS);
        } else {
            for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_int_decode(codes[i], d, l->bits);
        }
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
        agoqk_random_words(random, first, n, words);
        const float inverse = 1.0f / scale;
        for (int i = 0; i < n; i++) codes[i] = (uint8_t)agoqk_e4m3_encode_sr(x[i] * inverse, words[i]);
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
