/* See walk.h. Chunks of inputs are small enough for the first-level cache. */
#include "tests/full/walk.h"

#include "kernels/format/grad_block.h"
#include "kernels/format/int_block.h"

enum { CHUNK = 4096 };

/* fmt, and whether it is stochastic, are constants. */
AGOQK_INLINE void encode_int(const float *x, uint8_t *codes, float inverse, int fmt, int stochastic,
                             uint32_t random) {
    for (int i = 0; i < CHUNK; i++) {
        codes[i] = (uint8_t)(stochastic ? agoqk_int_encode_sr(x[i], inverse, fmt, random)
                                        : agoqk_int_encode(x[i], inverse, fmt));
    }
}

static void encode_activations(const thr_table *t, const float *x, uint8_t *codes) {
    const float inverse = agoqk_int_inverse((uint16_t)t->scale);
    const uint32_t random = (uint32_t)t->random;
    switch (t->fmt) {
#define WALK_FORMAT(id, number, name, bits, lo, hi)                                                          \
    case number:                                                                                             \
        if (number == AGOQ_FORMAT_BF16) break;                                                               \
        if (t->random < 0) encode_int(x, codes, inverse, number, 0, 0);                                      \
        if (t->random >= 0) encode_int(x, codes, inverse, number, 1, random);                                \
        break;
        AGOQ_FORMATS(WALK_FORMAT)
#undef WALK_FORMAT
    }
}

AGOQK_INLINE void encode_codes(const float *x, uint8_t *codes, agoq_grad_format format, int stochastic,
                               uint32_t random) {
    for (int i = 0; i < CHUNK; i++) {
        codes[i] = (uint8_t)(stochastic ? agoqk_grad_encode_sr(x[i], random, format)
                                        : agoqk_grad_encode(x[i], format));
    }
}

/* format is a constant. */
AGOQK_INLINE void encode_format(const thr_table *t, const float *x, uint8_t *codes, agoq_grad_format format) {
    if (t->random < 0) {
        encode_codes(x, codes, format, 0, 0);
    } else {
        encode_codes(x, codes, format, 1, (uint32_t)t->random);
    }
}

static void encode_grad(const thr_table *t, const float *x, uint8_t *codes) {
    switch (t->format) {
    case AGOQ_GRAD_E4M3:
        encode_format(t, x, codes, AGOQ_GRAD_E4M3);
        break;
    case AGOQ_GRAD_E5M2:
        encode_format(t, x, codes, AGOQ_GRAD_E5M2);
        break;
    case AGOQ_GRAD_INT8:
        encode_format(t, x, codes, AGOQ_GRAD_INT8);
        break;
    case AGOQ_N_GRAD_FORMATS:
        break;
    }
}

/* Of a negative t: the sign bit, or in INT8 the two's complement. */
static void negate(const thr_table *t, uint8_t *codes) {
    for (int i = 0; i < CHUNK; i++)
        codes[i] = (uint8_t)(t->format == AGOQ_GRAD_INT8 ? 0x100 - codes[i] : codes[i] | 0x80);
}

static void inputs(const thr_table *t, uint32_t first, uint32_t sign, float *x) {
    if (t->fmt) {
        for (uint32_t i = 0; i < CHUNK; i++) x[i] = agoqk_float(thr_disorder(first + i));
    } else {
        for (uint32_t i = 0; i < CHUNK; i++) x[i] = agoqk_float(sign | (first + i));
    }
}

walk_result AGOQK_CPU(walk_codes)(const thr_table *table, uint32_t from, uint32_t to, int negative) {
    float x[CHUNK];
    uint8_t want[CHUNK], got[CHUNK];
    walk_result result = {(uint64_t)to - from + 1, 0, 0};
    int run = 0;
    for (uint64_t at = from; at <= to; at += CHUNK) {
        const int n = to - at < CHUNK ? (int)(to - at) + 1 : CHUNK;
        thr_expect(table, (uint32_t)at, n, &run, want);
        inputs(table, (uint32_t)at, negative ? 0x80000000u : 0, x);
        if (negative) negate(table, want);
        if (table->fmt) {
            encode_activations(table, x, got);
        } else {
            encode_grad(table, x, got);
        }
        if (memcmp(got, want, (size_t)n) == 0) continue;
        for (int i = n - 1; i >= 0; i--) {
            if (got[i] == want[i]) continue;
            if (result.wrong == 0) result.first = (uint32_t)at + (uint32_t)i;
            result.wrong++;
        }
    }
    return result;
}

AGOQK_INLINE void encode_bf16(const uint16_t *x, int n, float inverse, int fmt, uint8_t *codes) {
    for (int i = 0; i < n; i++) codes[i] = (uint8_t)agoqk_int_encode(agoqk_bf16_decode(x[i]), inverse, fmt);
}

void AGOQK_CPU(walk_bf16)(const uint16_t *x, int n, uint16_t d, int fmt, uint8_t *codes) {
    const float inverse = agoqk_int_inverse(d);
    switch (fmt) {
#define WALK_FORMAT(id, number, name, bits, lo, hi)                                                          \
    case number:                                                                                             \
        encode_bf16(x, n, inverse, number == AGOQ_FORMAT_BF16 ? AGOQ_FORMAT_INT8 : number, codes);           \
        break;
        AGOQ_FORMATS(WALK_FORMAT)
#undef WALK_FORMAT
    }
}
