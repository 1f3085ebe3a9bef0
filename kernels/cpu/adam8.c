/* AdamW with 8-bit state. The step runs in fp32 on decoded m and v; parameters take the new fp32 moments, and
 * only what is kept is coded. A second moment above zero is never coded as zero: m / (0 + eps) would throw
 * the parameter away, while a second moment coded too large only makes its step smaller. A NaN or Inf makes
 * the state of its block NaN. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/format/dynmap.h"

/* One dynamic map: its levels and the midpoints that the encoder compares with. Built per call: 3 us, no
 * state. */
typedef struct adam_map {
    float level[256], middle[255];
} adam_map;

static void map_make(adam_map *map, int is_signed) {
    for (int c = 0; c < 256; c++)
        map->level[c] = is_signed ? agoqk_dynmap_signed(c) : agoqk_dynmap_unsigned(c);
    for (int c = 0; c < 255; c++) map->middle[c] = agoqk_dynmap_middle(map->level[c], map->level[c + 1]);
}

/* Codes x[0 .. n); zero: code of 0; least: smallest code of an element that is not zero. Returns 1 for a NaN
 * block. */
static uint32_t encode(const adam_map *map, const float *x, int n, int zero, int least, uint8_t *codes,
                       float *absmax) {
    const uint32_t stat = agoqk_block_stat(x, n);
    const float top = agoqk_stat_nonfinite(stat) ? agoqk_float(AGOQK_NAN_BITS) : agoqk_float(stat >> 1);
    *absmax = top;
    if (!(top > 0.0f)) {
        memset(codes, zero, (size_t)n);
        return (uint32_t)agoqk_stat_nonfinite(stat);
    }
    for (int i = 0; i < n; i++) {
        const int code = agoqk_dynmap_encode(map->middle, x[i] / top);
        codes[i] = (uint8_t)(code < least && x[i] != 0.0f ? least : code);
    }
    return 0;
}

static float integer_power(float base, int64_t exponent) {
    double result = 1.0, square = (double)base;
    for (; exponent > 0; exponent >>= 1, square *= square) {
        if (exponent & 1) result *= square;
    }
    return (float)result;
}

agoq_status AGOQK_CPU(adam8_init)(const agoq_exec *exec, const agoq_adam8 *state) {
    (void)exec;
    if (state->n == 0) return AGOQ_OK;
    memset(state->m, AGOQK_DYNMAP_ZERO_SIGNED, (size_t)state->n);
    memset(state->v, 0, (size_t)state->n);
    for (int64_t b = 0; b < agoqk_blocks(state->n, AGOQK_ADAM_BLOCK); b++)
        state->m_absmax[b] = state->v_absmax[b] = 0.0f;
    return AGOQ_OK;
}

static void load_gradient(const agoq_grad *grad8, const float *grad, int64_t at, int n, float *g) {
    if (grad) {
        memcpy(g, grad + at, (size_t)n * sizeof *g);
        return;
    }
    for (int i = 0; i < n; i += AGOQ_GRAD_BLOCK) agoqk_grad_get(grad8, (at + i) / AGOQ_GRAD_BLOCK, g + i);
}

agoq_status AGOQK_CPU(adam8_step)(const agoq_exec *exec, const agoq_adam_params *adam, const agoq_grad *grad8,
                                  const float *grad, float *params, const agoq_adam8 *state) {
    adam_map map_m, map_v;
    map_make(&map_m, 1);
    map_make(&map_v, 0);
    const float keep1 = 1.0f - adam->beta1, keep2 = 1.0f - adam->beta2;
    const float fix1 = 1.0f / (1.0f - integer_power(adam->beta1, adam->step));
    const float fix2 = 1.0f / (1.0f - integer_power(adam->beta2, adam->step));
    uint32_t nonfinite = 0;
    float g[AGOQK_ADAM_BLOCK], m[AGOQK_ADAM_BLOCK], v[AGOQK_ADAM_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(state->n, AGOQK_ADAM_BLOCK); b++) {
        const int64_t at = b * AGOQK_ADAM_BLOCK;
        const int n = agoqk_tail(state->n, b, AGOQK_ADAM_BLOCK);
        const float top_m = state->m_absmax[b], top_v = state->v_absmax[b];
        uint8_t *codes_m = state->m + at, *codes_v = state->v + at;
        float *p = params + at;
        load_gradient(grad8, grad, at, n, g);
        for (int i = 0; i < n; i++) {
            const float x = g[i] * adam->grad_multiplier;
            m[i] = adam->beta1 * (map_m.level[codes_m[i]] * top_m) + keep1 * x;
            v[i] = adam->beta2 * (map_v.level[codes_v[i]] * top_v) + keep2 * (x * x);
            const float update = m[i] * fix1 / (sqrtf(v[i] * fix2) + adam->eps) + adam->weight_decay * p[i];
            p[i] -= adam->lr * update;
        }
        nonfinite += encode(&map_m, m, n, AGOQK_DYNMAP_ZERO_SIGNED, 0, codes_m, &state->m_absmax[b]);
        nonfinite += encode(&map_v, v, n, 0, 1, codes_v, &state->v_absmax[b]);
    }
    agoqk_count(exec, nonfinite);
    return AGOQ_OK;
}
