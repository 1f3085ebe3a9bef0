/* See block.h. A whole block to nearest even goes through the level's own code (block_plain.h, block_avx2.h),
 * from and to fp32 or bf16 memory directly; short blocks and stochastic rounding go element by element, by
 * loops that compilers vectorise. The arithmetic of one element is kernels/format/. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/block_plain.h"
#include "kernels/cpu/random.h"

#if defined(__AVX2__)
#include "kernels/cpu/block_avx2.h"
#define whole_stat   agoqk_avx2_stat
#define whole_encode agoqk_avx2_encode
#define whole_decode agoqk_avx2_decode
#else
#define whole_stat   agoqk_plain_stat
#define whole_encode agoqk_plain_encode
#define whole_decode agoqk_plain_decode
#endif

agoqk_random agoqk_random_make(const agoq_key *key) {
    agoqk_random random = {{{0, 0, 0, 0}}, 0, 0};
    if (!key) return random;
    random.stream = agoqk_stream_make(key->seed, key->tensor, key->step, key->microbatch, key->replica);
    random.offset = (uint64_t)key->offset;
    random.stochastic = 1;
    return random;
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
    agoqk_plane_put(p->lo, lane, p->n, lo, 0);
    if (hi) agoqk_plane_put(p->hi, lane, p->n, hi, lo);
    memcpy(p->scale, &d, sizeof d);
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

AGOQK_INLINE void get_int(const block_place *p, float *x, int bits, int lo, int hi) {
    uint16_t scale;
    memcpy(&scale, p->scale, sizeof scale);
    uint64_t lane[PLANE_LANES] = {0};
    agoqk_plane_get(p->lo, lane, p->n, lo, 0);
    if (hi) agoqk_plane_get(p->hi, lane, p->n, hi, lo);
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

static const float zeros[AGOQ_BLOCK];

/* A whole block of fp32 or bf16 elements at x, to nearest even; dtype, bits, lo and hi are constants. */
AGOQK_INLINE uint32_t put_whole(const block_place *p, const void *x, agoq_dtype dtype, int bits, int lo,
                                int hi) {
    const uint32_t stat = whole_stat(x, dtype);
    const uint16_t d = agoqk_int_scale(stat, bits);
    const int nan = agoqk_int_scale_is_nan(d);
    const float inverse = d == 0 || nan ? 0.0f : agoqk_int_inverse(d);
    whole_encode(nan ? zeros : x, dtype, inverse, bits, lo, hi, p->lo, p->hi);
    memcpy(p->scale, &d, sizeof d);
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

/* Into fp32 or bf16 memory. */
AGOQK_INLINE void get_whole(const block_place *p, int bits, int lo, int hi, agoq_dtype dtype, void *y) {
    uint16_t d;
    memcpy(&d, p->scale, sizeof d);
    if (agoqk_int_scale_is_nan(d)) {
        float nan[AGOQ_BLOCK];
        for (int i = 0; i < AGOQ_BLOCK; i++) nan[i] = agoqk_float(AGOQK_NAN_BITS);
        agoqk_store(y, dtype, 0, AGOQ_BLOCK, nan, AGOQ_BLOCK);
    } else {
        whole_decode(p->lo, p->hi, agoqk_bf16_decode(d), bits, lo, hi, dtype, y);
    }
}

AGOQK_INLINE uint32_t put_block(const block_place *p, const float *x, const uint32_t *words, int count,
                                int bits, int lo, int hi) {
    if (bits == 16) return put_bf16(p, x, words, count);
    if (p->n == AGOQ_BLOCK && !words) return put_whole(p, x, AGOQ_DTYPE_F32, bits, lo, hi);
    return put_int(p, x, words, bits, lo, hi);
}

AGOQK_INLINE void get_block(const block_place *p, float *x, int bits, int lo, int hi) {
    if (bits == 16) {
        agoqk_load(p->lo, AGOQ_DTYPE_BF16, 0, p->n, x, AGOQ_BLOCK);
    } else if (p->n == AGOQ_BLOCK) {
        get_whole(p, bits, lo, hi, AGOQ_DTYPE_F32, x);
    } else {
        get_int(p, x, bits, lo, hi);
    }
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
        return put_block(&p, x, w, count, bits, lo, hi);
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
        get_block(&p, x, bits, lo, hi);                                                                      \
        break;
        AGOQ_WIDTHS(GET)
#undef GET
    }
}

/* ---- rows ---- */

/* bf16 to bf16: bits stay but for NaNs. Returns 1 for a NaN or Inf. */
AGOQK_INLINE uint32_t copy_bf16(const uint8_t *from, uint8_t *to) {
    uint16_t half[AGOQ_BLOCK], bad = 0;
    memcpy(half, from, sizeof half);
    for (int i = 0; i < AGOQ_BLOCK; i++) {
        const uint16_t mag = half[i] & 0x7FFFu;
        bad |= mag >= 0x7F80u ? 1 : 0;
        half[i] = mag > 0x7F80u ? AGOQK_BF16_NAN : half[i];
    }
    memcpy(to, half, sizeof half);
    return bad;
}

/* Block b of row r. */
AGOQK_INLINE uint8_t *elements(const agoq_view *v, int64_t r, int64_t b, agoq_dtype dtype) {
    const size_t size = dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    return (uint8_t *)v->data + (size_t)(r * v->row_stride + b * AGOQ_BLOCK) * size;
}

/* Whole blocks [0, n) of a row; dtype is F32 or BF16, and constant as are the others. */
AGOQK_INLINE uint32_t put_row(const agoq_packed *packed, int64_t r, const agoq_view *x, int64_t n,
                              agoq_dtype dtype, int count, int bits, int lo, int hi) {
    uint32_t nonfinite = 0;
    for (int64_t b = 0; b < n; b++) {
        const block_place p = place_of(packed, r, b);
        const uint8_t *from = elements(x, r, b, dtype);
        if (bits == 16 && dtype == AGOQ_DTYPE_BF16) {
            const uint32_t bad = copy_bf16(from, p.lo);
            nonfinite += count ? bad : 0;
        } else if (bits == 16) {
            float buf[AGOQ_BLOCK];
            memcpy(buf, from, sizeof buf);
            nonfinite += put_bf16(&p, buf, NULL, count);
        } else {
            nonfinite += put_whole(&p, from, dtype, bits, lo, hi);
        }
    }
    return nonfinite;
}

AGOQK_INLINE void get_row(const agoq_packed *packed, int64_t r, const agoq_view *y, int64_t n,
                          agoq_dtype dtype, int bits, int lo, int hi) {
    for (int64_t b = 0; b < n; b++) {
        const block_place p = place_of(packed, r, b);
        uint8_t *to = elements(y, r, b, dtype);
        if (bits == 16 && dtype == AGOQ_DTYPE_BF16) {
            (void)copy_bf16(p.lo, to);
        } else if (bits == 16) {
            float buf[AGOQ_BLOCK];
            agoqk_load(p.lo, AGOQ_DTYPE_BF16, 0, AGOQ_BLOCK, buf, AGOQ_BLOCK);
            memcpy(to, buf, sizeof buf);
        } else {
            get_whole(&p, bits, lo, hi, dtype, to);
        }
    }
}

uint32_t agoqk_row_put(const agoq_packed *packed, int64_t r, const agoq_view *x, int count) {
    const agoqk_random nearest = {{{0, 0, 0, 0}}, 0, 0};
    const int64_t whole = x->dtype == AGOQ_DTYPE_F16 ? 0 : x->cols / AGOQ_BLOCK;
    uint32_t nonfinite = 0;
    switch (packed->layout.bits) {
#define PUT(id, bits, lo, hi)                                                                                \
    case bits:                                                                                               \
        nonfinite = x->dtype == AGOQ_DTYPE_BF16                                                              \
                        ? put_row(packed, r, x, whole, AGOQ_DTYPE_BF16, count, bits, lo, hi)                 \
                        : put_row(packed, r, x, whole, AGOQ_DTYPE_F32, count, bits, lo, hi);                 \
        break;
        AGOQ_WIDTHS(PUT)
#undef PUT
    }
    for (int64_t b = whole; b < agoqk_blocks(x->cols, AGOQ_BLOCK); b++) {
        float buf[AGOQ_BLOCK];
        agoqk_view_load(x, r, b, buf);
        nonfinite += agoqk_block_put(packed, r, b, buf, &nearest, count);
    }
    return nonfinite;
}

void agoqk_row_get(const agoq_packed *packed, int64_t r, const agoq_view *y) {
    const int64_t whole = y->dtype == AGOQ_DTYPE_F16 ? 0 : y->cols / AGOQ_BLOCK;
    switch (packed->layout.bits) {
#define GET(id, bits, lo, hi)                                                                                \
    case bits:                                                                                               \
        if (y->dtype == AGOQ_DTYPE_BF16) {                                                                   \
            get_row(packed, r, y, whole, AGOQ_DTYPE_BF16, bits, lo, hi);                                     \
        } else {                                                                                             \
            get_row(packed, r, y, whole, AGOQ_DTYPE_F32, bits, lo, hi);                                      \
        }                                                                                                    \
        break;
        AGOQ_WIDTHS(GET)
#undef GET
    }
    for (int64_t b = whole; b < agoqk_blocks(y->cols, AGOQ_BLOCK); b++) {
        float buf[AGOQ_BLOCK];
        agoqk_block_get(packed, r, b, buf);
        agoqk_view_store(y, r, b, buf);
    }
}
