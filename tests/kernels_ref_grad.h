/* Gradients and the 8-bit Adam step one element at a time, from docs/FORMATS.md: what the vectorised kernels
 * are compared with, byte for byte (tests/kernels_ref.h). */
#ifndef TESTS_KERNELS_REF_GRAD_H
#define TESTS_KERNELS_REF_GRAD_H

#include "kernels/format/dynmap.h"
#include "kernels/format/grad_block.h"
#include "tests/dynmap_ref.h"
#include "tests/kernels_ref.h"

/* ---- gradients ---- */

static float kref_grad_get(const agoq_grad *g, int64_t i) {
    return agoqk_grad_decode(g->codes[i], g->scales[i / AGOQ_GRAD_BLOCK], g->format);
}

static uint32_t kref_grad_put(const agoq_grad *g, int64_t b, const float *x, const agoq_key *key) {
    const int64_t first = b * AGOQ_GRAD_BLOCK, n = kref_least(g->n - first, AGOQ_GRAD_BLOCK);
    const uint32_t stat = kref_stat(x, n);
    const float scale = agoqk_grad_scale(stat, g->format);
    for (int64_t i = 0; i < n; i++) {
        const float t = x[i] * (1.0f / scale);
        uint32_t code = 0;
        if (scale > 0.0f)
            code = key ? agoqk_grad_encode_sr(t, kref_word(key, (uint64_t)(first + i)), g->format)
                       : agoqk_grad_encode(t, g->format);
        g->codes[first + i] = (uint8_t)code;
    }
    g->scales[b] = scale;
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

static agoq_status kref_grad_add(const agoq_exec *exec, const void *x, agoq_dtype x_dtype,
                                 const agoq_key *key, const agoq_grad *grad) {
    for (int64_t b = 0; b * AGOQ_GRAD_BLOCK < grad->n; b++) {
        float sum[AGOQ_GRAD_BLOCK];
        for (int64_t i = b * AGOQ_GRAD_BLOCK; i < grad->n && i < (b + 1) * AGOQ_GRAD_BLOCK; i++)
            sum[i % AGOQ_GRAD_BLOCK] = kref_grad_get(grad, i) + kref_read(x, x_dtype, i);
        kref_count(exec, kref_grad_put(grad, b, sum, key));
    }
    return AGOQ_OK;
}

static agoq_status kref_grad_accumulate(const agoq_exec *exec, const agoq_grad_term *terms, int n_terms,
                                        agoq_dtype x_dtype, int stochastic) {
    for (int i = 0; i < n_terms; i++)
        (void)kref_grad_add(exec, terms[i].x, x_dtype, stochastic ? &terms[i].key : NULL, &terms[i].grad);
    return AGOQ_OK;
}

static agoq_status kref_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                                  float multiplier, float *out) {
    (void)exec;
    for (int64_t i = 0; i < count; i++) out[i] = agoqk_canonical(multiplier * kref_grad_get(grad, begin + i));
    return AGOQ_OK;
}

/* 256 numbers in halves: 128, 64, .. 1. */
static double kref_fold(double x[256]) {
    for (int h = 128; h > 0; h /= 2)
        for (int i = 0; i < h; i++) x[i] += x[i + h];
    return x[0];
}

static double kref_square(const agoq_grad *g, int64_t i) {
    const double v = i < g->n ? (double)agoqk_grad_value(g->codes[i], g->format) : 0.0;
    return v * v;
}

/* Sixteen groups of eight, folded. */
static double kref_block_sum(const agoq_grad *g, int64_t b) {
    double p[16];
    for (int k = 0; k < 16; k++) {
        double q[8];
        for (int i = 0; i < 8; i++) q[i] = kref_square(g, b * AGOQ_GRAD_BLOCK + 8 * k + i);
        p[k] = ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]));
    }
    for (int h = 8; h > 0; h /= 2)
        for (int i = 0; i < h; i++) p[i] += p[i + h];
    return p[0];
}

/* Terms fold by 256, their sums fold by 256, the rest is added. */
static agoq_status kref_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    (void)exec;
    const int64_t n_blocks = grad->n / AGOQ_GRAD_BLOCK + (grad->n % AGOQ_GRAD_BLOCK != 0);
    double total = 0.0;
    for (int64_t first = 0; first < n_blocks; first += 65536) {
        double sums[256] = {0};
        for (int64_t k = 0; k < 256 && first + 256 * k < n_blocks; k++) {
            double terms[256] = {0};
            for (int64_t b = first + 256 * k; b < n_blocks && b < first + 256 * (k + 1); b++) {
                const double scale = (double)grad->scales[b];
                terms[b % 256] = kref_block_sum(grad, b) * (scale * scale);
            }
            sums[k] = kref_fold(terms);
        }
        total += kref_fold(sums);
    }
    *sqnorm += total;
    const uint64_t nan = UINT64_C(0x7FF8) << 48;
    if (*sqnorm != *sqnorm) memcpy(sqnorm, &nan, sizeof nan);
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
            const float t = *absmax < 0x1p-126f ? x[i] / *absmax : x[i] * (1.0f / *absmax);
            code = dynmap_code(middle, t);
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

static float kref_param(const agoq_adam_target *target, int64_t i) {
    return target->master ? target->master[i] : kref_read(target->bf16, AGOQ_DTYPE_BF16, i);
}

static void kref_param_set(const agoq_adam_target *target, int64_t i, float p) {
    uint16_t *half = target->bf16;
    const int stochastic = !target->master && target->key;
    if (half) half[i] = agoqk_bf16_encode(p);
    if (stochastic) half[i] = agoqk_bf16_encode_sr(p, kref_word(target->key, (uint64_t)i));
    if (target->master) target->master[i] = p;
}

static agoq_status kref_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam,
                                   const agoq_adam_source *source, const agoq_adam_target *target,
                                   const agoq_adam8 *state) {
    const float fix1 = 1.0f / (1.0f - kref_power(adam->beta1, adam->step));
    const float fix2 = 1.0f / (1.0f - kref_power(adam->beta2, adam->step));
    for (int64_t first = 0; first < state->n; first += AGOQK_ADAM_BLOCK) {
        const int64_t n = kref_least(state->n - first, AGOQK_ADAM_BLOCK), b = first / AGOQK_ADAM_BLOCK;
        float m[AGOQK_ADAM_BLOCK], v[AGOQK_ADAM_BLOCK];
        for (int64_t i = 0; i < n; i++) {
            const float p = kref_param(target, first + i);
            const float g = source->grad ? kref_read(source->grad, source->dtype, first + i)
                                         : kref_grad_get(source->grad8, first + i);
            const float x = g * adam->grad_multiplier;
            const float old_m = agoqk_dynmap_signed(state->m[first + i]) * state->m_absmax[b];
            const float old_v = agoqk_dynmap_unsigned(state->v[first + i]) * state->v_absmax[b];
            m[i] = adam->beta1 * old_m + (1.0f - adam->beta1) * x;
            v[i] = adam->beta2 * old_v + (1.0f - adam->beta2) * (x * x);
            const float u = m[i] * fix1 / (sqrtf(v[i] * fix2) + adam->eps) + adam->weight_decay * p;
            kref_param_set(target, first + i, agoqk_canonical(p - adam->lr * u));
        }
        kref_count(exec, kref_adam_code(m, n, 1, state->m + first, &state->m_absmax[b]));
        kref_count(exec, kref_adam_code(v, n, 0, state->v + first, &state->v_absmax[b]));
    }
    return AGOQ_OK;
}

#endif
