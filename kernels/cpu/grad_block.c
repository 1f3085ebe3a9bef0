/* See grad_block.h. As in block.c, each step of a block is a loop of constant length; the switches hand each
 * format's constants to one inlined body. */
#include "kernels/cpu/grad_block.h"

#include "kernels/cpu/random.h"
#include "kernels/format/grad_block.h"

/* One body per format: F is the constant. */
#define FOR_FORMAT(format, BODY)                                                                             \
    switch (format) {                                                                                        \
    case AGOQ_GRAD_E4M3:                                                                                     \
        BODY(AGOQ_GRAD_E4M3);                                                                                \
        break;                                                                                               \
    case AGOQ_GRAD_E5M2:                                                                                     \
        BODY(AGOQ_GRAD_E5M2);                                                                                \
        break;                                                                                               \
    case AGOQ_GRAD_INT8:                                                                                     \
        BODY(AGOQ_GRAD_INT8);                                                                                \
        break;                                                                                               \
    case AGOQ_N_GRAD_FORMATS:                                                                                \
        break;                                                                                               \
    }

/* format is a constant; words NULL: nearest even. Returns the scale. */
AGOQK_INLINE float put(const float *x, const uint32_t *words, uint32_t stat, uint8_t *codes,
                       agoq_grad_format format) {
    const float scale = agoqk_grad_scale(stat, format);
    if (!(scale > 0.0f)) {
        memset(codes, 0, AGOQ_GRAD_BLOCK);
        return scale;
    }
    const float inverse = 1.0f / scale;
    if (words) {
        for (int i = 0; i < AGOQ_GRAD_BLOCK; i++)
            codes[i] = (uint8_t)agoqk_grad_encode_sr(x[i] * inverse, words[i], format);
    } else {
        for (int i = 0; i < AGOQ_GRAD_BLOCK; i++)
            codes[i] = (uint8_t)agoqk_grad_encode(x[i] * inverse, format);
    }
    return scale;
}

uint32_t agoqk_grad_put(const agoq_grad *grad, int64_t b, const float x[AGOQ_GRAD_BLOCK],
                        const agoqk_random *random, uint64_t first) {
    const int n = agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK);
    const uint32_t stat = agoqk_block_stat(x, AGOQ_GRAD_BLOCK);
    uint32_t words[AGOQ_GRAD_BLOCK];
    const uint32_t *w = random->stochastic ? words : NULL;
    if (w) agoqk_random_bits(random, first, AGOQ_GRAD_BLOCK, words);
    uint8_t codes[AGOQ_GRAD_BLOCK];
    float scale = 0.0f;
#define PUT(F) scale = put(x, w, stat, codes, F)
    FOR_FORMAT(grad->format, PUT)
#undef PUT
    memcpy(grad->codes + b * AGOQ_GRAD_BLOCK, codes, (size_t)n);
    grad->scales[b] = scale;
    return (uint32_t)agoqk_stat_nonfinite(stat);
}

AGOQK_INLINE void get(const uint8_t *codes, float scale, float *x, agoq_grad_format format) {
    for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) x[i] = agoqk_grad_decode(codes[i], scale, format);
}

void agoqk_grad_get(const agoq_grad *grad, int64_t b, float x[AGOQ_GRAD_BLOCK]) {
    const int n = agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK);
    const float scale = grad->scales[b];
    uint8_t codes[AGOQ_GRAD_BLOCK] = {0};
    memcpy(codes, grad->codes + b * AGOQ_GRAD_BLOCK, (size_t)n);
#define GET(F) get(codes, scale, x, F)
    FOR_FORMAT(grad->format, GET)
#undef GET
    for (int i = n; i < AGOQ_GRAD_BLOCK; i++) x[i] = 0.0f;
}

AGOQK_INLINE double sum_squares(const uint8_t *codes, agoq_grad_format format) {
    enum { GROUPS = AGOQ_GRAD_BLOCK / 8 };
    double q[AGOQ_GRAD_BLOCK], four[4 * GROUPS], two[2 * GROUPS], p[GROUPS];
    for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) {
        const double value = (double)agoqk_grad_value(codes[i], format);
        q[i] = value * value;
    }
    for (int g = 0; g < GROUPS; g++) {
        for (int j = 0; j < 4; j++) four[4 * g + j] = q[8 * g + j] + q[8 * g + j + 4];
    }
    for (int g = 0; g < GROUPS; g++) {
        for (int j = 0; j < 2; j++) two[2 * g + j] = four[4 * g + j] + four[4 * g + j + 2];
    }
    for (int g = 0; g < GROUPS; g++) p[g] = two[2 * g] + two[2 * g + 1];
    for (int h = GROUPS / 2; h > 0; h /= 2) {
        for (int i = 0; i < h; i++) p[i] += p[i + h];
    }
    return p[0];
}

double agoqk_grad_sum(const agoq_grad *grad, int64_t b) {
    uint8_t codes[AGOQ_GRAD_BLOCK] = {0};
    memcpy(codes, grad->codes + b * AGOQ_GRAD_BLOCK, (size_t)agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK));
    double sum = 0.0;
#define SUM(F) sum = sum_squares(codes, F)
    FOR_FORMAT(grad->format, SUM)
#undef SUM
    return sum;
}
