/* Every codec operation one element at a time, from docs/FORMATS.md and the scalar functions of
 * kernels/format/ (which tests/unit/test_scalar.c and the exhaustive tests hold to the text). It shares no
 * loop, buffer or layout code with kernels/cpu/, so it is what vectorised kernels are compared with, byte for
 * byte. The trade-off: it allocates a row here and there and is slow. */
#ifndef TESTS_KERNELS_REF_H
#define TESTS_KERNELS_REF_H

#include <math.h>
#include <stdlib.h>

#include "kernels/agoq_kernels.h"
#include "kernels/format/dynmap.h"
#include "kernels/format/e4m3.h"
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

static uint32_t kref_word(const agoq_key *key, uint64_t index) {
    const agoqk_stream s =
        agoqk_stream_make(key->seed, key->tensor, key->step, key->microbatch, key->replica);
    const uint64_t g = (uint64_t)key->offset + index;
    return agoqk_stream_words(&s, g / 4).w[g % 4];
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

static uint8_t *kref_plane(const agoq_packed *p, int high, int64_t r) {
    const agoq_layout *l = &p->layout;
    uint8_t *low = (uint8_t *)p->data;
    return high ? low + l->hi_offset + (size_t)r * l->hi_row_bytes : low + (size_t)r * l->lo_row_bytes;
}

static void kref_bits_set(uint8_t *row, int k, int64_t c, uint32_t bits) {
    uint8_t *at = row + c / (32 / k) * 4;
    agoqk_store_le32(at, agoqk_load_le32(at) | bits << agoqk_plane_shift((int)(c % (32 / k)), k));
}

static uint32_t kref_bits_get(const uint8_t *row, int k, int64_t c) {
    const uint32_t word = agoqk_load_le32(row + c / (32 / k) * 4);
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
        const uint16_t d = l->bits == 16 ? 0 : agoqk_int_scale(stat, l->bits);
        const int flat = d == 0 || agoqk_int_scale_is_nan(d);
        if (l->bits != 16 || count) nonfinite += (uint32_t)agoqk_stat_nonfinite(stat);
        for (int64_t c = first; c < end; c++) {
            const uint32_t w = key ? kref_word(key, (uint64_t)(r * l->cols + c)) : 0;
            uint32_t code;
            if (l->bits == 16) {
                code = key ? agoqk_bf16_encode_sr(x[c], w) : agoqk_bf16_encode(x[c]);
            } else if (flat) {
                code = (uint32_t)agoqk_int_zero_code(l->bits);
            } else {
                const float inverse = agoqk_int_inverse(d);
                code = key ? agoqk_int_encode_sr(x[c], inverse, l->bits, w)
                           : agoqk_int_encode(x[c], inverse, l->bits);
            }
            kref_bits_set(kref_plane(p, 0, r), l->lo_bits, c, code & ((1u << l->lo_bits) - 1));
            if (l->hi_bits) kref_bits_set(kref_plane(p, 1, r), l->hi_bits, c, code >> l->lo_bits);
        }
        uint8_t *scales = (uint8_t *)p->data + l->scale_offset;
        if (l->bits != 16) agoqk_store_le16(scales + 2 * (r * l->blocks_per_row + b), d);
    }
    return nonfinite;
}

static float kref_get(const agoq_packed *p, int64_t r, int64_t c) {
    const agoq_layout *l = &p->layout;
    const uint32_t low = kref_bits_get(kref_plane(p, 0, r), l->lo_bits, c);
    if (l->bits == 16) return agoqk_bf16_decode((uint16_t)low);
    const uint32_t high = l->hi_bits ? kref_bits_get(kref_plane(p, 1, r), l->hi_bits, c) : 0;
    const uint8_t *scales = (const uint8_t *)p->data + l->scale_offset;
    const uint16_t d = agoqk_load_le16(scales + 2 * (r * l->blocks_per_row + c / AGOQ_BLOCK));
    if (agoqk_int_scale_is_nan(d)) return agoqk_float(AGOQK_NAN_BITS);
    return agoqk_int_decode(low | high << l->lo_bits, agoqk_bf16_decode(d), l->bits);
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

/* ---- RMSNorm ---- */

static float kref_lanes_sum(float lane[256]) {
    for (int half = 128; half > 0; half /= 2) {
        for (int i = 0; i < half; i++) lane[i] += lane[i + half];
    }
    return lane[0];
}

static float kref_inverse(const float *x, int64_t cols, float eps) {
    float lane[256] = {0};
    for (int64_t c = 0; c < cols; c++) lane[c % 256] += x[c] * x[c];
    return 1.0f / sqrtf(kref_lanes_sum(lane) / (float)cols + eps);
}

static void kref_norm_row(const agoq_norm *n, const float *x, const agoq_view *y, int64_t r) {
    const float inv = kref_inverse(x, y->cols, n->eps);
    for (int64_t c = 0; c < y->cols; c++)
        kref_set(y, r, c, n->round_bf16, x[c] * inv * (n->gamma ? n->gamma[c] : 1.0f));
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

static agoq_status kref_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                        const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                        float *dgamma) {
    (void)exec;
    const int64_t cols = dy->cols;
    float *x = malloc((size_t)(cols + 1) * 2 * sizeof *x), *part = x + cols;
    if (!x) return AGOQ_E_NOMEM;
    for (int64_t r = 0; r < dy->rows; r++) {
        float lane[256] = {0};
        if (r % 64 == 0) memset(part, 0, (size_t)cols * sizeof *part);
        for (int64_t c = 0; c < cols; c++) {
            x[c] = kref_get(packed, r, c);
            lane[c % 256] += (norm->gamma ? norm->gamma[c] : 1.0f) * kref_at(dy, r, c) * x[c];
        }
        const float inv = kref_inverse(x, cols, norm->eps);
        const float mean = kref_lanes_sum(lane) * inv / (float)cols;
        for (int64_t c = 0; c < cols; c++) {
            const float d = kref_at(dy, r, c), g = (norm->gamma ? norm->gamma[c] : 1.0f) * d;
            const float xhat = x[c] * inv;
            part[c] += d * xhat;
            kref_set(dx, r, c, norm->round_bf16, inv * (g - xhat * mean));
        }
        const int last = r % 64 == 63 || r == dy->rows - 1;
        for (int64_t c = 0; last && dgamma && c < cols; c++) dgamma[c] += part[c];
    }
    free(x);
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

/* ---- gradients ---- */

static float kref_grad_get(const agoq_grad *g, int64_t i) {
    return agoqk_e4m3_decode(g->codes[i], g->scales[i / AGOQ_GRAD_BLOCK]);
}

static uint32_t kref_grad_put(const agoq_grad *g, int64_t b, const float *x, const agoq_key *key) {
    const int64_t first = b * AGOQ_GRAD_BLOCK, n = kref_least(g->n - first, AGOQ_GRAD_BLOCK);
    const uint32_t stat = kref_stat(x, n);
    const float scale = agoqk_e4m3_scale(stat);
    for (int64_t i = 0; i < n; i++) {
        const float t = x[i] * (1.0f / scale);
        const uint32_t code = !(scale > 0.0f) ? 0
                              : key           ? agoqk_e4m3_encode_sr(t, kref_word(key, (uint64_t)(first + i)))
                                              : agoqk_e4m3_encode(t);
        g->codes[first + i] = (uint8_t)code;
    }
    g->scales[b] = scale;
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

static agoq_status kref_grad_accumulate(const agoq_exec *exec, const void *x, agoq_dtype x_dtype,
                                        const agoq_key *key, const agoq_grad *grad) {
    for (int64_t b = 0; b * AGOQ_GRAD_BLOCK < grad->n; b++) {
        float sum[AGOQ_GRAD_BLOCK];
        for (int64_t i = b * AGOQ_GRAD_BLOCK; i < grad->n && i < (b + 1) * AGOQ_GRAD_BLOCK; i++)
            sum[i % AGOQ_GRAD_BLOCK] = kref_grad_get(grad, i) + kref_read(x, x_dtype, i);
        kref_count(exec, kref_grad_put(grad, b, sum, key));
    }
    return AGOQ_OK;
}

static agoq_status kref_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                                  float multiplier, float *out) {
    (void)exec;
    for (int64_t i = 0; i < count; i++) out[i] = agoqk_canonical(multiplier * kref_grad_get(grad, begin + i));
    return AGOQ_OK;
}

static agoq_status kref_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    (void)exec;
    double total = 0.0, chunk = 0.0;
    for (int64_t b = 0; b * AGOQ_GRAD_BLOCK < grad->n; b++) {
        double block = 0.0;
        const double scale = (double)grad->scales[b];
        for (int64_t i = b * AGOQ_GRAD_BLOCK; i < grad->n && i < (b + 1) * AGOQ_GRAD_BLOCK; i++)
            block += (double)agoqk_e4m3_value(grad->codes[i]) * (double)agoqk_e4m3_value(grad->codes[i]);
        chunk += block * (scale * scale);
        if (b % 256 == 255) total += chunk, chunk = 0.0;
    }
    *sqnorm += total + chunk;
    return AGOQ_OK;
}

static agoq_status kref_grad_reduce(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                                    const agoq_grad *out8, float *out32) {
    for (int64_t b = 0; b * AGOQ_GRAD_BLOCK < in[0].n; b++) {
        float sum[AGOQ_GRAD_BLOCK];
        for (int64_t i = b * AGOQ_GRAD_BLOCK; i < in[0].n && i < (b + 1) * AGOQ_GRAD_BLOCK; i++) {
            float *s = &sum[i % AGOQ_GRAD_BLOCK];
            *s = kref_grad_get(&in[0], i);
            for (int k = 1; k < n_in; k++) *s += kref_grad_get(&in[k], i);
            *s = agoqk_canonical(multiplier * *s);
            if (!out8) out32[i] = *s;
        }
        const int64_t n = kref_least(in[0].n - b * AGOQ_GRAD_BLOCK, AGOQ_GRAD_BLOCK);
        kref_count(exec, out8 ? kref_grad_put(out8, b, sum, NULL)
                              : (uint32_t)agoqk_stat_nonfinite(kref_stat(sum, n)));
    }
    return AGOQ_OK;
}

/* ---- 8-bit Adam ---- */

static uint32_t kref_adam_code(const float *x, int64_t n, int is_signed, uint8_t *codes, float *absmax) {
    float middle[255];
    for (int c = 0; c < 255; c++) {
        middle[c] = is_signed ? agoqk_dynmap_middle(agoqk_dynmap_signed(c), agoqk_dynmap_signed(c + 1))
                              : agoqk_dynmap_middle(agoqk_dynmap_unsigned(c), agoqk_dynmap_unsigned(c + 1));
    }
    const uint32_t stat = kref_stat(x, n);
    *absmax = agoqk_stat_nonfinite(stat) ? agoqk_float(AGOQK_NAN_BITS) : agoqk_float(stat >> 1);
    for (int64_t i = 0; i < n; i++) {
        int code = 0;
        if (!(*absmax > 0.0f)) {
            code = is_signed ? AGOQK_DYNMAP_ZERO_SIGNED : 0;
        } else {
            while (code < 255 && middle[code] < x[i] / *absmax) code++;
            if (!is_signed && code == 0 && x[i] != 0.0f) code = 1;
        }
        codes[i] = (uint8_t)code;
    }
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

static float kref_power(float base, int64_t exponent) {
    double result = 1.0, square = (double)base;
    for (; exponent > 0; exponent /= 2, square *= square) result *= exponent % 2 ? square : 1.0;
    return (float)result;
}

static agoq_status kref_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam,
                                   const agoq_grad *grad8, const float *grad, float *params,
                                   const agoq_adam8 *state) {
    const float fix1 = 1.0f / (1.0f - kref_power(adam->beta1, adam->step));
    const float fix2 = 1.0f / (1.0f - kref_power(adam->beta2, adam->step));
    for (int64_t first = 0; first < state->n; first += AGOQK_ADAM_BLOCK) {
        const int64_t n = kref_least(state->n - first, AGOQK_ADAM_BLOCK), b = first / AGOQK_ADAM_BLOCK;
        float m[AGOQK_ADAM_BLOCK], v[AGOQK_ADAM_BLOCK];
        for (int64_t i = 0; i < n; i++) {
            float *p = &params[first + i];
            const float g = grad ? grad[first + i] : kref_grad_get(grad8, first + i);
            const float x = g * adam->grad_multiplier;
            const float old_m = agoqk_dynmap_signed(state->m[first + i]) * state->m_absmax[b];
            const float old_v = agoqk_dynmap_unsigned(state->v[first + i]) * state->v_absmax[b];
            m[i] = adam->beta1 * old_m + (1.0f - adam->beta1) * x;
            v[i] = adam->beta2 * old_v + (1.0f - adam->beta2) * (x * x);
            const float u = m[i] * fix1 / (sqrtf(v[i] * fix2) + adam->eps) + adam->weight_decay * *p;
            *p -= adam->lr * u;
        }
        kref_count(exec, kref_adam_code(m, n, 1, state->m + first, &state->m_absmax[b]));
        kref_count(exec, kref_adam_code(v, n, 0, state->v + first, &state->v_absmax[b]));
    }
    return AGOQ_OK;
}

static const agoqk_ops kref_ops = {
    .pack = kref_pack,
    .unpack = kref_unpack,
    .norm_fwd_pack = kref_norm_fwd_pack,
    .norm_fwd_packed = kref_norm_fwd_packed,
    .norm_bwd_packed = kref_norm_bwd_packed,
    .swiglu_fwd_pack = kref_swiglu_fwd_pack,
    .swiglu_bwd_packed = kref_swiglu_bwd_packed,
    .grad_accumulate = kref_grad_accumulate,
    .grad_read = kref_grad_read,
    .grad_sqnorm = kref_grad_sqnorm,
    .grad_reduce = kref_grad_reduce,
    .adam8_step = kref_adam8_step,
};

#endif
