/* Inputs of a case, written on the host. Drawn by a sum of four uniform numbers: ten times as fast as a
 * normal distribution, and codes do not care. */
#ifndef TESTS_GPU_FILL_H
#define TESTS_GPU_FILL_H

#include "tests/gpu/gcase.h"

static void put_elem(uint8_t *at, agoq_dtype d, float x) {
    const uint16_t h = d == AGOQ_DTYPE_BF16 ? agoqk_bf16_encode(x) : agoqk_f16_encode(x);
    if (d == AGOQ_DTYPE_F32) {
        memcpy(at, &x, 4);
    } else {
        memcpy(at, &h, 2);
    }
}

/* Mean 0, variance 1, never exactly 0. */
static float bell(uint64_t *state) {
    const uint64_t u = next_random(state);
    const int32_t sum = (int32_t)((u & 0xFFFF) + (u >> 16 & 0xFFFF) + (u >> 32 & 0xFFFF) + (u >> 48));
    return ((float)(sum - 131070) + 0.5f) * 2.6429e-5f;
}

static float draw(const gcase *c, uint64_t *state, int zero) {
    static const float odd[] = {-0.0f, 1e-40f,   -3e-38f,   1e-30f, 65520.0f,
                                3e38f, INFINITY, -INFINITY, NAN,    6e-5f};
    const uint64_t dice = next_random(state) >> 40;
    float x = bell(state) * (dice % 97 == 0 ? 30.0f : 1.0f);
    if (zero) x = 0.0f;
    if (c->special && dice % 997 == 0) x = odd[dice / 997 % 10];
    return x;
}

static void fill_view(const gcase *c, arena *a, int i, uint64_t seed) {
    uint64_t state = seed;
    const size_t e = elem(c->dtype);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t k = 0; k < c->cols; k++) {
            float x = draw(c, &state, (r + k / 64) % 13 == 12);
            if (c->extreme == ZERO_BLOCKS && (r + i) % 5 == 2) x = -0.0f; /* whole rows, of dy too */
            put_elem(a->host + c->view[i] + (size_t)(r * stride_of(c, i) + k) * e, c->dtype, x);
        }
}

static void fill_floats(float *at, int64_t n, uint64_t seed, float middle, float width) {
    uint64_t state = seed;
    for (int64_t i = 0; i < n; i++) at[i] = middle + width * bell(&state);
}

static void fill_weight(const gcase *c, uint8_t *at, uint64_t seed, float middle) {
    uint64_t state = seed;
    const agoq_dtype d = weight_dtype(c);
    for (int64_t i = 0; i < c->cols; i++) put_elem(at + (size_t)i * elem(d), d, middle + 0.1f * bell(&state));
}

/* What an extreme case has for a scale (bf16 bits), from 32 random bits. */
static uint16_t extreme_scale(int extreme, uint32_t dice) {
    static const uint16_t nonfinite[] = {0x7FC0, 0x7F80, 0xFF80, 0xFFFF};
    const uint32_t sign = dice << 15 & 0x8000u;
    switch (extreme) {
    case NONFINITE_BLOCKS:
        return nonfinite[dice >> 1 & 3];
    case HUGE_BLOCKS: /* 2^112 and more */
        return (uint16_t)(sign | (0x7780u + (dice >> 1) % 0x800u));
    case ZERO_BLOCKS:
        return (uint16_t)sign;
    default: /* subnormal and the smallest normal ones */
        return (uint16_t)(sign | (1 + (dice >> 1) % 0x200u));
    }
}

static void make_extreme(const gcase *c, arena *a, int i) {
    const agoq_packed p = packed(c, a->host, i);
    uint64_t state = c->seed + 40 + (uint64_t)i;
    for (int64_t r = i; r < c->rows; r += 4) {
        uint8_t *row = (uint8_t *)p.data + (size_t)r * p.layout.lo_row_bytes,
                *scale =
                    (uint8_t *)p.data + p.layout.scale_offset + (size_t)(r * p.layout.blocks_per_row) * 2;
        const int whole = r / 4 % 3 == 0, bf16 = p.layout.blocks_per_row == 0;
        for (int64_t b = 0; b < (bf16 ? c->cols : p.layout.blocks_per_row); b++) {
            const uint32_t dice = (uint32_t)(next_random(&state) >> 32);
            uint16_t d = extreme_scale(c->extreme, dice);
            if (bf16 && (d & 0x7FFFu) > 0x7F80u) d = AGOQK_BF16_NAN; /* the one that is stored */
            if (whole || dice >> 20 & 1) memcpy((bf16 ? row : scale) + (size_t)b * 2, &d, 2);
        }
    }
}

static void fill_activations(gcase *c, arena *a) {
    for (int i = 0; i < 3; i++) fill_view(c, a, i, c->seed + (uint64_t)i);
    for (int i = 0; i < 2; i++) {
        const agoq_view v = view(c, a->host, i);
        agoq_packed p = packed(c, a->host, i);
        if (agoq_pack(NULL, &v, NULL, &p) != AGOQ_OK) exit(1);
        if (c->extreme) make_extreme(c, a, i);
    }
    fill_weight(c, a->host + c->weight, c->seed + 5, 1.0f);
    fill_weight(c, a->host + c->bias, c->seed + 6, 0.0f);
    fill_floats(floats_at(a->host, c->dweight), c->cols, c->seed + 7, 0.0f, 1.0f);
    fill_floats(floats_at(a->host, c->dbias), c->cols, c->seed + 8, 0.0f, 1.0f);
    fill_floats(floats_at(a->host, c->table), (c->cols + 2) * 32, c->seed + 9, 0.0f, 0.7f);
    int32_t *positions = (int32_t *)(void *)(a->host + c->positions);
    for (int64_t r = 0; r < c->rows; r++) positions[r] = (int32_t)((r * 7 + 3) % 18) - (c->special ? 1 : 0);
}

static void fill_gradients(gcase *c, arena *a) {
    const int64_t n = c->rows * c->cols;
    fill_view(c, a, 0, c->seed);
    for (int i = 0; i <= N_GRADS; i++) { /* scaled, so that the sums are of one size */
        agoq_grad g = grad(c, a->host, i);
        fill_floats(floats_at(a->host, c->flat), n, c->seed + 20 + (uint64_t)i, 0.0f, 1.0f);
        if (c->special && n > 300) floats_at(a->host, c->flat)[299] = i == 1 ? NAN : 1e-30f;
        if (agoq_grad_zero(NULL, &g) != AGOQ_OK) exit(1);
        if (agoq_grad_accumulate(NULL, floats_at(a->host, c->flat), AGOQ_DTYPE_F32, NULL, &g) != AGOQ_OK)
            exit(1);
    }
    fill_floats(floats_at(a->host, c->master), n, c->seed + 30, 0.0f, 0.5f);
    for (int64_t i = 0; i < n; i++)
        put_elem(a->host + c->bf16 + (size_t)i * 2, AGOQ_DTYPE_BF16, floats_at(a->host, c->master)[i]);
    uint64_t state = c->seed + 31;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t dice = next_random(&state);
        a->host[c->m + (size_t)i] = (uint8_t)dice;
        a->host[c->v + (size_t)i] = (uint8_t)(dice >> 8);
    }
    for (int64_t b = 0; b < agoq_adam8_blocks(n); b++) {
        floats_at(a->host, c->m_top)[b] = b % 5 == 4 && c->special ? 1e-39f : 0.01f * (float)(b % 3 + 1);
        floats_at(a->host, c->v_top)[b] = b % 5 == 3 && c->special ? 0.0f : 0.001f * (float)(b % 4 + 1);
    }
}

static void case_fill(gcase *c, arena *a) {
    if (of_activations(c->o))
        fill_activations(c, a);
    else
        fill_gradients(c, a);
    memset(a->host + c->sqnorm, 0, 8);
    memset(a->host + c->counter, 0, 8);
    case_mask(c, a);
}

#endif
