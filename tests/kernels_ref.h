/* Every codec operation one element at a time, from docs/FORMATS.md and the scalar functions of
 * kernels/format/ (which tests/unit/test_scalar.c and the exhaustive tests hold to the text). It shares no
 * loop, buffer or layout code with kernels/cpu/, so it is what vectorised kernels are compared with, byte for
 * byte. The trade-off: it allocates a row here and there and is slow. */
#ifndef TESTS_KERNELS_REF_H
#define TESTS_KERNELS_REF_H

#include <math.h>
#include <stdlib.h>

#include "kernels/agoq_kernels.h"
#include "kernels/format/half.h"
#include "kernels/format/int_block.h"
#include "kernels/format/philox.h"
#include "kernels/format/plane.h"
#include "kernels/format/silu.h"

static float kref_read(const void *data, agoq_dtype dtype, int64_t at) {
    if (dtype == AGOQ_DTYPE_F32) return ((const float *)data)[at];
    const uint16_t half = ((const uint16_t *)data)[at];
    return dtype == AGOQ_DTYPE_BF16 ? agoqk_bf16_decode(half) : agoqk_f16_decode(half);
}

static float kref_at(const agoq_view *v, int64_t r, int64_t c) {
    return kref_read(v->data, v->dtype, r * v->row_stride + c);
}

static void kref_set(const agoq_view *v, int64_t r, int64_t c, int round_bf16, float x) {
    const int64_t at = r * v->row_stride + c;
    if (round_bf16) x = agoqk_bf16_round(x);
    if (v->dtype == AGOQ_DTYPE_F32) {
        ((float *)v->data)[at] = x;
    } else {
        ((uint16_t *)v->data)[at] = v->dtype == AGOQ_DTYPE_BF16 ? agoqk_bf16_encode(x) : agoqk_f16_encode(x);
    }
}

/* The random bits of one element. */
static uint32_t kref_word(const agoq_key *key, uint64_t index) {
    const agoqk_stream s =
        agoqk_stream_make(key->seed, key->tensor, key->step, key->microbatch, key->replica);
    const uint64_t g = (uint64_t)key->offset + index;
    return agoqk_stream_words(&s, g / 8).w[g % 8 / 2] >> (g % 2 ? 16 : 0) & 0xFFFFu;
}

static uint32_t kref_stat(const float *x, int64_t n) {
    uint32_t stat = 0;
    for (int64_t i = 0; i < n; i++) stat = agoqk_stat(x[i]) > stat ? agoqk_stat(x[i]) : stat;
    return stat;
}

static int64_t kref_least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* ---- packed tensors ---- */

/* Little-endian on any machine. */
static void kref_store32(uint8_t *at, uint32_t word) {
    at[0] = (uint8_t)word;
    at[1] = (uint8_t)(word >> 8);
    at[2] = (uint8_t)(word >> 16);
    at[3] = (uint8_t)(word >> 24);
}

static uint32_t kref_load32(const uint8_t *at) {
    return (uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static void kref_store16(uint8_t *at, uint16_t half) {
    at[0] = (uint8_t)half;
    at[1] = (uint8_t)(half >> 8);
}

static uint16_t kref_load16(const uint8_t *at) {
    return (uint16_t)(at[0] | at[1] << 8);
}

static uint8_t *kref_plane(const agoq_packed *p, int high, int64_t r) {
    const agoq_layout *l = &p->layout;
    uint8_t *low = (uint8_t *)p->data;
    return high ? low + l->hi_offset + (size_t)r * l->hi_row_bytes : low + (size_t)r * l->lo_row_bytes;
}

static void kref_bits_set(uint8_t *row, int k, int64_t c, uint32_t bits) {
    uint8_t *at = row + c / (32 / k) * 4;
    kref_store32(at, kref_load32(at) | bits << agoqk_plane_shift((int)(c % (32 / k)), k));
}

static uint32_t kref_bits_get(const uint8_t *row, int k, int64_t c) {
    const uint32_t word = kref_load32(row + c / (32 / k) * 4);
    return (uint32_t)(word >> agoqk_plane_shift((int)(c % (32 / k)), k) & (((uint64_t)1 << k) - 1));
}

static uint32_t kref_put_row(const agoq_packed *p, int64_t r, const float *x, const agoq_key *key,
                             int count) {
    const agoq_layout *l = &p->layout;
    uint32_t nonfinite = 0;
    memset(kref_plane(p, 0, r), 0, l->lo_row_bytes);
    if (l->hi_bits) memset(kref_plane(p, 1, r), 0, l->hi_row_bytes);
    for (int64_t b = 0; b * AGOQ_BLOCK < l->cols; b++) {
        const int64_t first = b * AGOQ_BLOCK, end = kref_least(first + AGOQ_BLOCK, l->cols);
        const uint32_t stat = kref_stat(x + first, end - first);
        const uint16_t d = l->format == AGOQ_FORMAT_BF16 ? 0 : agoqk_int_scale(stat, l->format);
        const int flat = d == 0 || agoqk_int_scale_is_nan(d);
        if (l->format != AGOQ_FORMAT_BF16 || count) nonfinite += (uint32_t)agoqk_stat_nonfinite(stat);
        for (int64_t c = first; c < end; c++) {
            const uint32_t w = key ? kref_word(key, (uint64_t)(r * l->cols + c)) : 0;
            uint32_t code;
            if (l->format == AGOQ_FORMAT_BF16) {
                code = key ? agoqk_bf16_encode_sr(x[c], w) : agoqk_bf16_encode(x[c]);
            } else if (flat) {
                code = (uint32_t)agoqk_int_zero_code(l->format);
            } else {
                const float inverse = agoqk_int_inverse(d);
                code = key ? agoqk_int_encode_sr(x[c], inverse, l->format, w)
                           : agoqk_int_encode(x[c], inverse, l->format);
            }
            kref_bits_set(kref_plane(p, 0, r), l->lo_bits, c, code & ((1u << l->lo_bits) - 1));
            if (l->hi_bits) kref_bits_set(kref_plane(p, 1, r), l->hi_bits, c, code >> l->lo_bits);
        }
        uint8_t *scales = (uint8_t *)p->data + l->scale_offset;
        if (l->format != AGOQ_FORMAT_BF16) kref_store16(scales + 2 * (r * l->blocks_per_row + b), d);
    }
    return nonfinite;
}

static float kref_get(const agoq_packed *p, int64_t r, int64_t c) {
    const agoq_layout *l = &p->layout;
    const uint32_t low = kref_bits_get(kref_plane(p, 0, r), l->lo_bits, c);
    if (l->format == AGOQ_FORMAT_BF16) return agoqk_bf16_decode((uint16_t)low);
    const uint32_t high = l->hi_bits ? kref_bits_get(kref_plane(p, 1, r), l->hi_bits, c) : 0;
    const uint8_t *scales = (const uint8_t *)p->data + l->scale_offset;
    const uint16_t d = kref_load16(scales + 2 * (r * l->blocks_per_row + c / AGOQ_BLOCK));
    if (agoqk_int_scale_is_nan(d)) return agoqk_float(AGOQK_NAN_BITS);
    return agoqk_int_decode(low | high << l->lo_bits, agoqk_bf16_decode(d), l->format);
}

static void kref_count(const agoq_exec *exec, uint32_t blocks) {
    if (exec->nonfinite) *exec->nonfinite += blocks;
}

static agoq_status kref_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                             const agoq_packed *packed) {
    float *row = malloc((size_t)(x->cols + 1) * sizeof *row);
    for (int64_t r = 0; row && r < x->rows; r++) {
        for (int64_t c = 0; c < x->cols; c++) row[c] = kref_at(x, r, c);
        kref_count(exec, kref_put_row(packed, r, row, key, exec->nonfinite != NULL));
    }
    free(row);
    return row ? AGOQ_OK : AGOQ_E_NOMEM;
}

static agoq_status kref_unpack(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y) {
    (void)exec;
    for (int64_t r = 0; r < y->rows; r++) {
        for (int64_t c = 0; c < y->cols; c++) kref_set(y, r, c, 0, kref_get(packed, r, c));
    }
    return AGOQ_OK;
}

/* ---- norms ---- */

static float kref_fold32(float sums[32]) {
    for (int half = 16; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) sums[i] += sums[i + half];
    }
    return sums[0];
}

/* The group of 8 elements from `first` on: of e, or of the products e x f. */
static float kref_group(const float *e, const float *f, int64_t first, int64_t n) {
    float p[8], q[8];
    for (int i = 0; i < 8; i++) {
        p[i] = first + i < n ? e[first + i] : 0.0f;
        q[i] = f && first + i < n ? f[first + i] : 0.0f;
    }
    for (int i = 0; i < 4; i++) p[i] = f ? fmaf(p[i + 4], q[i + 4], p[i] * q[i]) : p[i] + p[i + 4];
    return (p[0] + p[2]) + (p[1] + p[3]);
}

/* R(e), or R(e x f). */
static float kref_sum(const float *e, const float *f, int64_t n) {
    float total = 0.0f;
    for (int64_t first = 0; first < n; first += 8192) {
        float segment[32] = {0};
        for (int s = 0; s < 32 && first + 256 * s < n; s++) {
            float group[32];
            for (int g = 0; g < 32; g++) group[g] = kref_group(e, f, first + 256 * s + 8 * g, n);
            segment[s] = kref_fold32(group);
        }
        total += kref_fold32(segment);
    }
    return total;
}

/* x becomes x - mean; 1 / sqrt of the mean square is returned. */
static float kref_center(const agoq_norm *n, float *x, int64_t cols) {
    const float part = 1.0f / (float)cols;
    const float mean = n->kind == AGOQ_NORM_LAYER ? kref_sum(x, NULL, cols) * part : 0.0f;
    for (int64_t c = 0; n->kind == AGOQ_NORM_LAYER && c < cols; c++) x[c] -= mean;
    return 1.0f / sqrtf(kref_sum(x, x, cols) * part + n->eps);
}

static float kref_rounded(agoq_dtype dtype, int round_bf16, float x) {
    if (round_bf16 || dtype == AGOQ_DTYPE_BF16) return agoqk_bf16_round(x);
    return dtype == AGOQ_DTYPE_F16 ? agoqk_f16_decode(agoqk_f16_encode(x)) : x;
}

/* x: the row, spoilt. */
static void kref_norm_row(const agoq_norm *n, float *x, const agoq_view *y, int64_t r) {
    const float inv = kref_center(n, x, y->cols);
    for (int64_t c = 0; c < y->cols; c++) {
        float h = x[c] * inv;
        if (n->round_first) h = kref_rounded(y->dtype, n->round_bf16, h);
        if (n->weight) h = h * kref_read(n->weight, n->weight_dtype, c);
        if (n->bias) h = h + kref_read(n->bias, n->weight_dtype, c);
        kref_set(y, r, c, n->round_bf16, h);
    }
}

static agoq_status kref_norm_fwd_pack(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                      const agoq_norm *norm, const agoq_view *sum, const agoq_view *y,
                                      const agoq_packed *packed) {
    float *row = malloc((size_t)(x->cols + 1) * sizeof *row);
    for (int64_t r = 0; row && r < x->rows; r++) {
        for (int64_t c = 0; c < x->cols; c++) {
            row[c] = kref_at(x, r, c);
            if (!residual) continue;
            kref_set(sum, r, c, norm->round_bf16, row[c] + kref_at(residual, r, c));
            row[c] = kref_at(sum, r, c);
        }
        kref_count(exec, kref_put_row(packed, r, row, NULL, exec->nonfinite != NULL));
        kref_norm_row(norm, row, y, r);
    }
    free(row);
    return row ? AGOQ_OK : AGOQ_E_NOMEM;
}

static agoq_status kref_norm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                        const agoq_norm *norm, const agoq_view *y) {
    (void)exec;
    float *row = malloc((size_t)(y->cols + 1) * sizeof *row);
    for (int64_t r = 0; row && r < y->rows; r++) {
        for (int64_t c = 0; c < y->cols; c++) row[c] = kref_get(packed, r, c);
        kref_norm_row(norm, row, y, r);
    }
    free(row);
    return row ? AGOQ_OK : AGOQ_E_NOMEM;
}

/* into[c] += the chunk sums of e[rows][cols], or of e x f, in order. */
static void kref_sum_rows(const float *e, const float *f, int64_t rows, int64_t cols, float *into) {
    for (int64_t c = 0; into && c < cols; c++) {
        for (int64_t first = 0; first < rows; first += 32) {
            float part[2] = {0, 0};
            for (int64_t r = first; r < rows && r < first + 32; r++) {
                const int64_t at = r * cols + c;
                part[r % 2] = f ? fmaf(e[at], f[at], part[r % 2]) : part[r % 2] + e[at];
            }
            into[c] += part[0] + part[1];
        }
    }
}

static agoq_status kref_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                        const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                        float *dweight, float *dbias) {
    (void)exec;
    const int64_t rows = dy->rows, cols = dy->cols, n = rows * cols;
    float *all_d = malloc((size_t)(3 * n + 2 * cols + 1) * sizeof *all_d);
    if (!all_d) return AGOQ_E_NOMEM;
    float *all_h = all_d + n, *all_dy = all_h + n, *g = all_dy + n, *w = g + cols;
    const float part = 1.0f / (float)cols;
    for (int64_t c = 0; c < cols; c++)
        w[c] = norm->weight ? kref_read(norm->weight, norm->weight_dtype, c) : 1.0f;
    for (int64_t r = 0; r < rows; r++) {
        float *d = all_d + r * cols, *h = all_h + r * cols, *dy_row = all_dy + r * cols;
        for (int64_t c = 0; c < cols; c++) {
            d[c] = kref_get(packed, r, c);
            dy_row[c] = kref_at(dy, r, c);
            g[c] = dy_row[c] * w[c];
        }
        const float inv = kref_center(norm, d, cols);
        const float slope = kref_sum(g, d, cols) * part * inv * inv * inv;
        const float shift = norm->kind == AGOQ_NORM_LAYER ? kref_sum(g, NULL, cols) * part * inv : 0.0f;
        for (int64_t c = 0; c < cols; c++) {
            h[c] = dy_row[c] * inv;
            kref_set(dx, r, c, norm->round_bf16, fmaf(d[c], -slope, fmaf(h[c], w[c], -shift)));
        }
    }
    kref_sum_rows(all_h, all_d, rows, cols, dweight);
    kref_sum_rows(all_dy, NULL, rows, cols, dbias);
    free(all_d);
    return AGOQ_OK;
}

/* ---- RoPE ---- */

static agoq_status kref_rope(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                             const agoq_view *y, const agoq_packed *packed) {
    const int half = rope->rotary / 2;
    float *row = malloc((size_t)(x->cols + 1) * sizeof *row);
    if (!row) return AGOQ_E_NOMEM;
    for (int64_t r = 0; r < x->rows; r++) {
        const int64_t p = rope->positions ? rope->positions[r] : r % rope->n_positions;
        for (int64_t c = 0; c < x->cols; c++) row[c] = kref_at(x, r, c);
        for (int64_t c = 0; c < x->cols; c++) {
            const int e = (int)(c % rope->head_dim);
            float out = row[c];
            if (e < rope->rotary) {
                const int i = rope->interleaved ? e / 2 : e % half;
                const int second = rope->interleaved ? e % 2 : e >= half;
                const int64_t far = rope->interleaved ? 1 : half;
                out = agoqk_float(AGOQK_NAN_BITS);
                if (p >= 0 && p < rope->n_positions) {
                    const float cosine = rope->cos[p * half + i];
                    const float sine = backward ? -rope->sin[p * half + i] : rope->sin[p * half + i];
                    out = second ? row[c] * cosine + row[c - far] * sine
                                 : row[c] * cosine - row[c + far] * sine;
                }
            }
            kref_set(y, r, c, 0, out);
        }
        for (int64_t c = 0; packed && c < x->cols; c++) row[c] = kref_at(y, r, c);
        if (packed) kref_count(exec, kref_put_row(packed, r, row, NULL, exec->nonfinite != NULL));
    }
    free(row);
    return AGOQ_OK;
}

/* ---- SwiGLU ---- */

static agoq_status kref_swiglu_fwd_pack(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                        int round_bf16, const agoq_view *product,
                                        const agoq_packed *packed_gate, const agoq_packed *packed_up) {
    const agoq_status gate_status = kref_pack(exec, gate, NULL, packed_gate);
    const agoq_status up_status = kref_pack(exec, up, NULL, packed_up);
    for (int64_t r = 0; r < gate->rows; r++) {
        for (int64_t c = 0; c < gate->cols; c++) {
            const float g = kref_at(gate, r, c);
            float low, high;
            agoqk_logistic(g, &low, &high);
            kref_set(product, r, c, round_bf16, g * high * kref_at(up, r, c));
        }
    }
    return gate_status ? gate_status : up_status;
}

static agoq_status kref_swiglu_bwd_packed(const agoq_exec *exec, const agoq_packed *packed_gate,
                                          const agoq_packed *packed_up, int round_bf16,
                                          const agoq_view *dproduct, const agoq_view *product,
                                          const agoq_view *dgate, const agoq_view *dup) {
    (void)exec;
    for (int64_t r = 0; r < dproduct->rows; r++) {
        for (int64_t c = 0; c < dproduct->cols; c++) {
            const float g = kref_get(packed_gate, r, c), u = kref_get(packed_up, r, c);
            const float d = kref_at(dproduct, r, c);
            float low, high;
            agoqk_logistic(g, &low, &high);
            if (product) kref_set(product, r, c, round_bf16, g * high * u);
            kref_set(dgate, r, c, round_bf16, d * u * (high * (1.0f + g * low)));
            kref_set(dup, r, c, round_bf16, d * (g * high));
        }
    }
    return AGOQ_OK;
}

#endif
