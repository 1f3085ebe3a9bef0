/* AdamW with 8-bit state. The step runs in fp32 on decoded m and v; parameters take the new fp32 moments, and
 * only what is kept is coded. A second moment above zero is never coded as zero: m / (0 + eps) would throw
 * the parameter away, while a second moment coded too large only makes its step smaller. A NaN or Inf makes
 * the state of its block NaN. */
#include <math.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/grad_block.h"
#include "kernels/cpu/random.h"
#include "kernels/format/adam.h"
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

/* Codes x[0 .. n); zero: code of 0; least: smallest code of an element that is not zero. All elements take a
 * step of the bisection together. Returns 1 for a NaN block. */
static uint32_t encode(const adam_map *map, const float x[AGOQK_ADAM_BLOCK], int n, int zero, int least,
                       uint8_t *codes, float *absmax) {
    const uint32_t stat = agoqk_block_stat(x, n);
    const float top = agoqk_stat_nonfinite(stat) ? agoqk_float(AGOQK_NAN_BITS) : agoqk_float(stat >> 1);
    *absmax = top;
    if (!(top > 0.0f)) {
        memset(codes, zero, (size_t)n);
        return (uint32_t)agoqk_stat_nonfinite(stat);
    }
    float t[AGOQK_ADAM_BLOCK];
    int32_t code[AGOQK_ADAM_BLOCK] = {0};
    uint8_t out[AGOQK_ADAM_BLOCK];
    const float inverse = agoqk_dynmap_inverse(top);
    for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) t[i] = agoqk_dynmap_unit(x[i], top, inverse);
    for (int half = 128; half > 0; half >>= 1) {
        for (int i = 0; i < AGOQK_ADAM_BLOCK; i++)
            code[i] = agoqk_dynmap_halve(map->middle, t[i], code[i], half);
    }
    for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) {
        const int floor_code = x[i] != 0.0f ? least : 0;
        out[i] = (uint8_t)(code[i] < floor_code ? floor_code : code[i]);
    }
    memcpy(codes, out, (size_t)n);
    return 0;
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

static void load_gradient(const agoq_adam_source *source, int64_t at, int n, float g[AGOQK_ADAM_BLOCK]) {
    for (int i = 0; i < n; i += AGOQ_GRAD_BLOCK) {
        const int part = n - i < AGOQ_GRAD_BLOCK ? n - i : AGOQ_GRAD_BLOCK;
        if (source->grad) {
            agoqk_load(source->grad, source->dtype, at + i, part, g + i, AGOQ_GRAD_BLOCK);
        } else {
            agoqk_grad_get(source->grad8, (at + i) / AGOQ_GRAD_BLOCK, g + i);
        }
    }
}

/* Parameters of one block: the master if there is one, else what bf16 holds. */
static void load_params(const agoq_adam_target *target, int64_t at, int n, float p[AGOQK_ADAM_BLOCK]) {
    if (target->master) {
        memcpy(p, target->master + at, (size_t)n * sizeof *p);
        return;
    }
    uint16_t half[AGOQK_ADAM_BLOCK] = {0};
    memcpy(half, (const uint8_t *)target->bf16 + 2 * at, (size_t)n * sizeof *half);
    for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) p[i] = agoqk_bf16_decode(half[i]);
}

static void store_params(const agoq_adam_target *target, const agoqk_random *random, int64_t at, int n,
                         const float p[AGOQK_ADAM_BLOCK]) {
    if (target->master) memcpy(target->master + at, p, (size_t)n * sizeof *p);
    if (!target->bf16) return;
    uint16_t half[AGOQK_ADAM_BLOCK];
    if (random->stochastic && !target->master) {
        uint32_t bits[AGOQK_ADAM_BLOCK];
        for (int i = 0; i < AGOQK_ADAM_BLOCK; i += AGOQ_GRAD_BLOCK)
            agoqk_random_bits(random, random->offset + (uint64_t)(at + i), AGOQ_GRAD_BLOCK, bits + i);
        for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) half[i] = agoqk_bf16_encode_sr(p[i], bits[i]);
    } else {
        for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) half[i] = agoqk_bf16_encode(p[i]);
    }
    memcpy((uint8_t *)target->bf16 + 2 * at, half, (size_t)n * sizeof *half);
}

/* m and v of one block: what its n codes stand for. Beyond them lie finite values that nobody stores. */
static void decode(const adam_map *map, const uint8_t *codes, int n, float top, float out[AGOQK_ADAM_BLOCK]) {
    uint8_t code[AGOQK_ADAM_BLOCK] = {0};
    memcpy(code, codes, (size_t)n);
    for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) out[i] = map->level[code[i]] * top;
}

agoq_status AGOQK_CPU(adam8_step)(const agoq_exec *exec, const agoq_adam_params *adam,
                                  const agoq_adam_source *source, const agoq_adam_target *target,
                                  const agoq_adam8 *state) {
    const agoqk_random random = agoqk_random_make(target->master ? NULL : target->key);
    adam_map map_m, map_v;
    map_make(&map_m, 1);
    map_make(&map_v, 0);
    const float keep1 = 1.0f - adam->beta1, keep2 = 1.0f - adam->beta2;
    const float fix1 = agoqk_adam_correction(adam->beta1, adam->step);
    const float fix2 = agoqk_adam_correction(adam->beta2, adam->step);
    const float beta1 = adam->beta1, beta2 = adam->beta2, multiplier = adam->grad_multiplier;
    const float lr = adam->lr, eps = adam->eps, decay = adam->weight_decay;
    uint32_t nonfinite = 0;
    float g[AGOQK_ADAM_BLOCK] = {0}, m[AGOQK_ADAM_BLOCK], v[AGOQK_ADAM_BLOCK], p[AGOQK_ADAM_BLOCK] = {0};
    for (int64_t b = 0; b < agoqk_blocks(state->n, AGOQK_ADAM_BLOCK); b++) {
        const int64_t at = b * AGOQK_ADAM_BLOCK;
        const int n = agoqk_tail(state->n, b, AGOQK_ADAM_BLOCK);
        uint8_t *codes_m = state->m + at, *codes_v = state->v + at;
        load_gradient(source, at, n, g);
        load_params(target, at, n, p);
        decode(&map_m, codes_m, n, state->m_absmax[b], m);
        decode(&map_v, codes_v, n, state->v_absmax[b], v);
        for (int i = 0; i < AGOQK_ADAM_BLOCK; i++) {
            const float x = g[i] * multiplier;
            m[i] = beta1 * m[i] + keep1 * x;
            v[i] = beta2 * v[i] + keep2 * (x * x);
            const float update = m[i] * fix1 / (sqrtf(v[i] * fix2) + eps) + decay * p[i];
            p[i] = agoqk_canonical(p[i] - lr * update);
        }
        store_params(target, &random, at, n, p);
        nonfinite += encode(&map_m, m, n, AGOQK_DYNMAP_ZERO_SIGNED, 0, codes_m, &state->m_absmax[b]);
        nonfinite += encode(&map_v, v, n, 0, 1, codes_v, &state->v_absmax[b]);
    }
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}
