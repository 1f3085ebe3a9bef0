/* Thresholds against a row of kernels: inputs are laid into blocks whose scale is forced by one element,
 * packed and unpacked (or accumulated into a zero gradient), and what comes out is compared with the table by
 * memcmp. Inputs larger than the element that sets the scale cannot occur in its block and are left out. */
#ifndef TESTS_THRESHOLD_ROWS_H
#define TESTS_THRESHOLD_ROWS_H

#include "kernels/agoq_kernels.h"
#include "tests/thresholds.h"

enum { TROW_BLOCKS = 128, TROW_INPUTS = TROW_BLOCKS * (AGOQ_BLOCK - 1) };

typedef struct trow_work {
    uint32_t index[TROW_BLOCKS * AGOQ_GRAD_BLOCK]; /* the caller fills the first n, n <= TROW_INPUTS */
    float input[TROW_BLOCKS * AGOQ_GRAD_BLOCK], x[TROW_BLOCKS * AGOQ_GRAD_BLOCK];
    float want[TROW_BLOCKS * AGOQ_BLOCK], got[TROW_BLOCKS * AGOQ_BLOCK];
    uint8_t codes[TROW_BLOCKS * AGOQ_GRAD_BLOCK], want_codes[TROW_BLOCKS * AGOQ_GRAD_BLOCK];
    _Alignas(AGOQ_PLANE_ALIGN) uint8_t packed[TROW_BLOCKS * (AGOQ_BLOCK + 2) + 64];
} trow_work;

/* The element that gives a block the scale of a table; of the largest scale, 2^128 / 2^(b-1), the largest
 * float. */
static inline float trow_extreme(const thr_table *t) {
    const double x = (double)thr_float(t->scale << 16) * -(double)(1 << (agoq_format_of(t->fmt)->bits - 1));
    return x >= 0x1p128 ? 0x1.fffffep127f : x <= -0x1p128 ? -0x1.fffffep127f : (float)x;
}

/* Smallest and largest index below the extreme. */
static inline void trow_range(const thr_table *t, uint32_t *from, uint32_t *to) {
    const float x = trow_extreme(t) < 0 ? -trow_extreme(t) : trow_extreme(t);
    const uint32_t u = thr_bits(x);
    *from = thr_order((u - 1) | 0x80000000u);
    *to = thr_order(u - 1);
}

/* Codes of inputs index[0 .. n), which ascend but for jumps back to a smaller one. */
static inline void trow_codes(const thr_table *t, const uint32_t *index, int n, uint8_t *codes) {
    int run = 0;
    for (int i = 0; i < n; i++) {
        if (i && index[i] < index[i - 1]) run = 0;
        while (t->end[run] < index[i]) run++;
        codes[i] = t->code[run];
    }
}

/* Lays n inputs and their codes into blocks of `size`, of which one element, at another place in every block,
 * and all that is left over is the extreme. The number of blocks. */
static inline int trow_lay(trow_work *w, int n, int size, float extreme, uint8_t extreme_code) {
    const int inside = size - 1, blocks = (n + inside - 1) / inside;
    for (int i = n; i < blocks * inside; i++) w->input[i] = extreme, w->codes[i] = extreme_code;
    for (int b = 0; b < blocks; b++) {
        const int place = b % size;
        float *x = w->x + b * size;
        uint8_t *codes = w->want_codes + b * size;
        for (int half = 0; half < 2; half++) { /* before and after the extreme */
            const int first = half ? place : 0, count = half ? inside - place : place;
            memcpy(x + first + half, w->input + b * inside + first, (size_t)count * sizeof *x);
            memcpy(codes + first + half, w->codes + b * inside + first, (size_t)count);
        }
        x[place] = extreme;
        codes[place] = extreme_code;
    }
    return blocks;
}

/* What a code stands for, in units of the scale (docs/FORMATS.md). */
static inline float trow_level(int fmt, int code) {
    static const int code4[] = {-64, -50, -40, -32, -25, -18, -12, -6, 0, 6, 12, 19, 26, 34, 43, 55};
    if (fmt == AGOQ_FORMAT_CODE4) return (float)code4[code] / 8;
    return (float)(code - (1 << (agoq_format_of(fmt)->bits - 1)));
}

/* 1 if the row of operations codes inputs index[0 .. n) as the table says. */
static inline int trow_check_int(const agoqk_ops *ops, const thr_table *t, trow_work *w, int n) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    float level[THR_CODES];
    for (int c = 0; c < t->n; c++) level[c] = trow_level(t->fmt, c) * thr_float(t->scale << 16) + 0.0f;
    for (int i = 0; i < n; i++) w->input[i] = thr_float(thr_disorder(w->index[i]));
    trow_codes(t, w->index, n, w->codes);
    const int blocks = trow_lay(w, n, AGOQ_BLOCK, trow_extreme(t), 0), cols = blocks * AGOQ_BLOCK;
    for (int i = 0; i < cols; i++) w->want[i] = level[w->want_codes[i]];
    agoq_packed packed = {.data = w->packed};
    const agoq_view in = {w->x, AGOQ_DTYPE_F32, 1, cols, cols}, out = {w->got, AGOQ_DTYPE_F32, 1, cols, cols};
    if (agoq_layout_make(t->fmt, 1, cols, &packed.layout) != AGOQ_OK) return 0;
    if (packed.layout.bytes > sizeof w->packed) return 0;
    if (ops->pack(&exec, &in, NULL, &packed) != AGOQ_OK) return 0;
    for (int b = 0; b < blocks; b++) {
        const uint8_t *at = w->packed + packed.layout.scale_offset + 2 * b;
        if ((uint32_t)(at[0] | at[1] << 8) != t->scale) return 0;
    }
    if (ops->unpack(&exec, &packed, &out) != AGOQ_OK) return 0;
    return memcmp(w->got, w->want, (size_t)cols * sizeof *w->got) == 0;
}

/* Pattern of the largest value of a gradient format: the largest magnitude beside an element that makes the
 * scale 1. */
static inline uint32_t trow_largest(agoq_grad_format format) {
    static const uint32_t of[] = {0x43E00000u, 0x47600000u, 0x42FE0000u}; /* 448, 57344, 127 */
    return of[format];
}

/* Inputs index[0 .. n), magnitudes not above the format's largest value, or their negatives, at scale 1. */
static inline int trow_check_grad(const agoqk_ops *ops, const thr_table *t, trow_work *w, int n,
                                  int negative) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    float scales[TROW_BLOCKS];
    for (int i = 0; i < n; i++) w->input[i] = thr_float(w->index[i] | (negative ? 0x80000000u : 0));
    trow_codes(t, w->index, n, w->codes);
    if (negative) {
        for (int i = 0; i < n; i++) /* 0 + -0 is +0 before it is coded */
            w->codes[i] = w->index[i] == 0              ? 0
                          : t->format == AGOQ_GRAD_INT8 ? (uint8_t)(0x100 - w->codes[i])
                                                        : (uint8_t)(w->codes[i] | 0x80);
    }
    const uint8_t largest = t->code[t->n - 1];
    const int blocks = trow_lay(w, n, AGOQ_GRAD_BLOCK, thr_float(trow_largest(t->format)), largest);
    const int64_t total = blocks * AGOQ_GRAD_BLOCK;
    const agoq_grad_term term = {{w->codes, scales, total, t->format}, w->x, {0}};
    if (ops->grad_zero(&exec, &term.grad) != AGOQ_OK) return 0;
    if (ops->grad_accumulate(&exec, &term, 1, AGOQ_DTYPE_F32, 0) != AGOQ_OK) return 0;
    for (int b = 0; b < blocks; b++) {
        if (!(scales[b] == 1.0f)) return 0;
    }
    return memcmp(w->codes, w->want_codes, (size_t)total) == 0;
}

#endif
