/* See block.h. A whole block to nearest even goes through the level's own code (block_plain.h, block_avx2.h),
 * from and to fp32 or bf16 memory directly; short blocks and stochastic rounding go element by element, by
 * loops that compilers vectorise. The arithmetic of one element is kernels/format/. */
#include "kernels/cpu/block.h"

#include "kernels/cpu/block_plain.h"
#include "kernels/cpu/random.h"

#if defined(__AVX2__)
#include "kernels/cpu/block_avx2.h"
#define whole_stat   agoqk_avx2_stat
#define whole_stats  agoqk_avx2_stats
#define whole_scales agoqk_avx2_scales
#define whole_encode agoqk_avx2_encode
#define whole_decode agoqk_avx2_decode
#else
#define whole_stat   agoqk_plain_stat
#define whole_stats  agoqk_plain_stats
#define whole_scales agoqk_plain_scales
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

/* format, lo and hi are constants; words NULL: nearest even. */
AGOQK_INLINE uint32_t put_int(const block_place *p, const float *x, const uint32_t *words, int format, int lo,
                              int hi) {
    const uint32_t stat = agoqk_block_stat(x, AGOQ_BLOCK);
    const uint16_t d = agoqk_int_scale(stat, format);
    uint8_t codes[AGOQ_BLOCK];
    if (d == 0 || agoqk_int_scale_is_nan(d)) {
        memset(codes, agoqk_int_zero_code(format), sizeof codes);
    } else if (words) {
        const float inverse = agoqk_int_inverse(d);
        for (int i = 0; i < AGOQ_BLOCK; i++)
            codes[i] = (uint8_t)agoqk_int_encode_sr(x[i], inverse, format, words[i]);
    } else {
        const float inverse = agoqk_int_inverse(d);
        for (int i = 0; i < AGOQ_BLOCK; i++) codes[i] = (uint8_t)agoqk_int_encode(x[i], inverse, format);
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

AGOQK_INLINE void get_int(const block_place *p, float *x, int format, int lo, int hi) {
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
        for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_int_decode(codes[i], d, format);
    }
    for (int i = p->n; i < AGOQ_BLOCK; i++) x[i] = 0.0f;
}

/* AHEAD: bytes between what is read and what is fetched; an address beyond the tensor is no fault. */
enum { STREAM_BYTES = 1 << 24, AHEAD = 6144 };

static const float zeros[AGOQ_BLOCK];

/* Whole blocks of fp32 or bf16 elements at x, to nearest even; dtype, format, lo and hi are constants. p is
 * the first block's place, n <= AGOQK_GROUP their number. */
AGOQK_INLINE uint32_t put_group(const block_place *p, int n, const uint8_t *x, agoq_dtype dtype, int format,
                                int lo, int hi, int stream) {
    const size_t block = AGOQ_BLOCK * (dtype == AGOQ_DTYPE_F32 ? 4 : 2);
    const uint8_t *from[AGOQK_GROUP];
    uint32_t stat[AGOQK_GROUP];
    uint16_t d[AGOQK_GROUP];
    float inverse[AGOQK_GROUP];
    for (int i = 0; i < AGOQK_GROUP; i++)
        from[i] = i < n ? x + (size_t)i * block : (const uint8_t *)(const void *)zeros;
    whole_stats(from, dtype, stat);
    const uint32_t nonfinite = whole_scales(stat, format, d, inverse);
    for (int i = 0; i < n; i++) {
        for (size_t line = 0; line < block; line += 64)
            __builtin_prefetch(x + (size_t)i * block + line + AHEAD);
        const void *at = d[i] == AGOQK_BF16_NAN ? (const void *)zeros : from[i];
        whole_encode(at, dtype, inverse[i], format, lo, hi, p->lo + (size_t)i * 8 * (size_t)lo,
                     p->hi + (size_t)i * 8 * (size_t)hi, stream);
    }
    memcpy(p->scale, d, (size_t)n * sizeof *d);
    return nonfinite;
}

AGOQK_INLINE uint32_t put_whole(const block_place *p, const float *x, int format, int lo, int hi) {
    const uint32_t stat = whole_stat(x, AGOQ_DTYPE_F32);
    const uint16_t d = agoqk_int_scale(stat, format);
    const int nan = agoqk_int_scale_is_nan(d);
    const float inverse = d == 0 || nan ? 0.0f : agoqk_int_inverse(d);
    whole_encode(nan ? zeros : x, AGOQ_DTYPE_F32, inverse, format, lo, hi, p->lo, p->hi, 0);
    memcpy(p->scale, &d, sizeof d);
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

/* One whole block, of scale bits d, into fp32 or bf16 memory. */
AGOQK_INLINE void get_whole(uint16_t d, const uint8_t *lo_at, const uint8_t *hi_at, int format, int lo,
                            int hi, agoq_dtype dtype, void *y, int stream) {
    if (agoqk_int_scale_is_nan(d)) {
        float nan[AGOQ_BLOCK];
        for (int i = 0; i < AGOQ_BLOCK; i++) nan[i] = agoqk_float(AGOQK_NAN_BITS);
        agoqk_store(y, dtype, 0, AGOQ_BLOCK, nan, AGOQ_BLOCK);
    } else {
        whole_decode(lo_at, hi_at, agoqk_bf16_decode(d), format, lo, hi, dtype, y, stream);
    }
}

AGOQK_INLINE uint32_t put_block(const block_place *p, const float *x, const uint32_t *words, int count,
                                int format, int lo, int hi) {
    if (format == AGOQ_FORMAT_BF16) return put_bf16(p, x, words, count);
    if (p->n == AGOQ_BLOCK && !words) return put_whole(p, x, format, lo, hi);
    return put_int(p, x, words, format, lo, hi);
}

AGOQK_INLINE void get_block(const block_place *p, float *x, int format, int lo, int hi) {
    if (format == AGOQ_FORMAT_BF16) {
        agoqk_load(p->lo, AGOQ_DTYPE_BF16, 0, p->n, x, AGOQ_BLOCK);
    } else if (p->n == AGOQ_BLOCK) {
        uint16_t d;
        memcpy(&d, p->scale, sizeof d);
        get_whole(d, p->lo, p->hi, format, lo, hi, AGOQ_DTYPE_F32, x, 0);
    } else {
        get_int(p, x, format, lo, hi);
    }
}

/* The switches hand each format's constants to one inlined body. */
uint32_t agoqk_block_put(const agoq_packed *packed, int64_t r, int64_t b, const float x[AGOQ_BLOCK],
                         const agoqk_random *random, int count) {
    const agoq_layout *l = &packed->layout;
    const block_place p = place_of(packed, r, b);
    uint32_t words[AGOQ_BLOCK];
    const uint32_t *w = random->stochastic ? words : NULL;
    if (w)
        agoqk_random_bits(random, random->offset + (uint64_t)(r * l->cols + b * AGOQ_BLOCK), AGOQ_BLOCK,
                          words);
    switch (l->format) {
#define PUT(id, format, name, bits, lo, hi)                                                                  \
    case format:                                                                                             \
        return put_block(&p, x, w, count, format, lo, hi);
        AGOQ_FORMATS(PUT)
#undef PUT
    }
    return 0;
}

void agoqk_block_get(const agoq_packed *packed, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    const block_place p = place_of(packed, r, b);
    switch (packed->layout.format) {
#define GET(id, format, name, bits, lo, hi)                                                                  \
    case format:                                                                                             \
        get_block(&p, x, format, lo, hi);                                                                    \
        break;
        AGOQ_FORMATS(GET)
#undef GET
    }
}

/* ---- rows ---- */

/* bf16 to bf16: bits stay but for NaNs. Returns 1 for a NaN or Inf, looked for if `count`. */
AGOQK_INLINE uint32_t copy_bf16(const uint8_t *from, uint8_t *to, int count) {
    uint16_t half[AGOQ_BLOCK], out[AGOQ_BLOCK];
    memcpy(half, from, sizeof half);
    for (int i = 0; i < AGOQ_BLOCK; i++) {
        const int16_t mag = (int16_t)(half[i] & 0x7FFF);
        out[i] = mag > 0x7F80 ? AGOQK_BF16_NAN : half[i];
    }
    const uint32_t bad = count && agoqk_stat_nonfinite(whole_stat(half, AGOQ_DTYPE_BF16));
    memcpy(to, out, sizeof out);
    return bad;
}

/* Block b of row r. */
AGOQK_INLINE uint8_t *elements(const agoq_view *v, int64_t r, int64_t b, agoq_dtype dtype) {
    const size_t size = dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    return (uint8_t *)v->data + (size_t)(r * v->row_stride + b * AGOQ_BLOCK) * size;
}

/* Whole blocks [0, n) of a row; dtype is F32 or BF16, and constant as are the others. */
AGOQK_INLINE uint32_t put_row(const agoq_packed *packed, int64_t r, const agoq_view *x, int64_t n,
                              agoq_dtype dtype, int count, int format, int lo, int hi, int stream) {
    uint32_t nonfinite = 0;
    for (int64_t b = 0; b < n; b += format == AGOQ_FORMAT_BF16 ? 1 : AGOQK_GROUP) {
        const block_place p = place_of(packed, r, b);
        const uint8_t *from = elements(x, r, b, dtype);
        if (format == AGOQ_FORMAT_BF16 && dtype == AGOQ_DTYPE_BF16) {
            nonfinite += copy_bf16(from, p.lo, count);
        } else if (format == AGOQ_FORMAT_BF16) {
            float buf[AGOQ_BLOCK];
            memcpy(buf, from, sizeof buf);
            nonfinite += put_bf16(&p, buf, NULL, count);
        } else {
            nonfinite += put_group(&p, n - b < AGOQK_GROUP ? (int)(n - b) : AGOQK_GROUP, from, dtype, format,
                                   lo, hi, stream);
        }
    }
    return nonfinite;
}

AGOQK_INLINE void get_row(const agoq_packed *packed, int64_t r, const agoq_view *y, int64_t n,
                          agoq_dtype dtype, int format, int lo, int hi, int stream) {
    const block_place p = place_of(packed, r, 0);
    for (int64_t b = 0; b < n; b++) {
        const uint8_t *lo_at = p.lo + b * 8 * lo, *hi_at = p.hi + b * 8 * hi;
        uint8_t *to = elements(y, r, b, dtype);
        if (format == AGOQ_FORMAT_BF16 && dtype == AGOQ_DTYPE_BF16) {
            (void)copy_bf16(lo_at, to, 0);
        } else if (format == AGOQ_FORMAT_BF16) {
            float buf[AGOQ_BLOCK];
            agoqk_load(lo_at, AGOQ_DTYPE_BF16, 0, AGOQ_BLOCK, buf, AGOQ_BLOCK);
            memcpy(to, buf, sizeof buf);
        } else {
            uint16_t d;
            memcpy(&d, p.scale + 2 * b, sizeof d);
            get_whole(d, lo_at, hi_at, format, lo, hi, dtype, to, stream);
        }
    }
}

/* What is larger than a core's caches is written past them; 32: what such stores need. */
static int row_streams(const void *data, int64_t row_bytes, int64_t rows) {
    return (uintptr_t)data % 32 == 0 && row_bytes % 32 == 0 && rows > STREAM_BYTES / row_bytes;
}

uint32_t agoqk_row_put(const agoq_packed *packed, int64_t r, const agoq_view *x, int count) {
    const agoqk_random nearest = {{{0, 0, 0, 0}}, 0, 0};
    const int64_t whole = x->dtype == AGOQ_DTYPE_F16 ? 0 : x->cols / AGOQ_BLOCK;
    uint32_t nonfinite = 0;
    const int stream =
        whole > 0 && row_streams(packed->data, (int64_t)packed->layout.lo_row_bytes, packed->layout.rows);
    switch (packed->layout.format) {
#define PUT(id, format, name, bits, lo, hi)                                                                  \
    case format:                                                                                             \
        nonfinite = x->dtype == AGOQ_DTYPE_BF16                                                              \
                        ? put_row(packed, r, x, whole, AGOQ_DTYPE_BF16, count, format, lo, hi, stream)       \
                        : put_row(packed, r, x, whole, AGOQ_DTYPE_F32, count, format, lo, hi, stream);       \
        break;
        AGOQ_FORMATS(PUT)
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
    const int64_t row = y->row_stride * (y->dtype == AGOQ_DTYPE_F32 ? 4 : 2);
    const int stream = whole > 0 && row_streams(y->data, row, y->rows);
    switch (packed->layout.format * 4 + (y->dtype == AGOQ_DTYPE_BF16) * 2 + stream) {
#define GET(id, format, name, bits, lo, hi)                                                                  \
    case format * 4:                                                                                         \
        get_row(packed, r, y, whole, AGOQ_DTYPE_F32, format, lo, hi, 0);                                     \
        break;                                                                                               \
    case format * 4 + 1:                                                                                     \
        get_row(packed, r, y, whole, AGOQ_DTYPE_F32, format, lo, hi, 1);                                     \
        break;                                                                                               \
    case format * 4 + 2:                                                                                     \
        get_row(packed, r, y, whole, AGOQ_DTYPE_BF16, format, lo, hi, 0);                                    \
        break;                                                                                               \
    case format * 4 + 3:                                                                                     \
        get_row(packed, r, y, whole, AGOQ_DTYPE_BF16, format, lo, hi, 1);                                    \
        break;
        AGOQ_FORMATS(GET)
#undef GET
    }
    for (int64_t b = whole; b < agoqk_blocks(y->cols, AGOQ_BLOCK); b++) {
        float buf[AGOQ_BLOCK];
        agoqk_block_get(packed, r, b, buf);
        agoqk_view_store(y, r, b, buf);
    }
}

void agoqk_rows_end(void) {
#if defined(__AVX2__)
    _mm_sfence();
#endif
}
