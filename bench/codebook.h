/* Where the levels of CODE4 come from, and what rounding them to eighths and coding by a cubic costs: 16
 * levels in blocks of 64, each element taking the nearest. The scale is the element of largest magnitude with
 * its sign, and the levels are fitted (Lloyd) to x / x_ext of normal data, weighted by x_ext^2, the squared
 * error that is minimised; 1 and 0 stay where they are. Without a level 0 the error on normal data is the
 * same, and larger by a tenth where outliers flush their neighbours. */
#ifndef BENCH_CODEBOOK_H
#define BENCH_CODEBOOK_H

#include "kernels/format/half.h"
#include "tests/numeric.h"

enum { CODEBOOK_LEVELS = 16, CODEBOOK_BLOCK = 64 };

typedef struct codebook {
    float level[CODEBOOK_LEVELS]; /* ascending; the last is 1 */
} codebook;

static int codebook_code(const codebook *b, float t) {
    int c = 0;
    while (c < CODEBOOK_LEVELS - 1 && t > (b->level[c] + b->level[c + 1]) * 0.5f) c++;
    return c;
}

static float codebook_scale(const float *x, int n) {
    float top = 0;
    for (int i = 0; i < n; i++) top = fabsf(x[i]) > fabsf(top) ? x[i] : top;
    return agoqk_bf16_round(top);
}

static codebook codebook_fit(void) {
    enum { BLOCKS = 1 << 14, ROUNDS = 120 };
    codebook b;
    float x[CODEBOOK_BLOCK];
    const int zero = 7; /* index of the level 0 */
    for (int c = 0; c < CODEBOOK_LEVELS; c++) b.level[c] = (float)(c - zero) / (c < zero ? 7.0f : 8.0f);
    for (int round = 0; round < ROUNDS; round++) {
        double sum[CODEBOOK_LEVELS] = {0}, weight[CODEBOOK_LEVELS] = {0};
        uint64_t seed = 3;
        for (int k = 0; k < BLOCKS; k++) {
            for (int i = 0; i < CODEBOOK_BLOCK; i++) x[i] = gauss(&seed);
            const float d = codebook_scale(x, CODEBOOK_BLOCK);
            for (int i = 0; i < CODEBOOK_BLOCK; i++) {
                const float t = x[i] / d;
                const int c = codebook_code(&b, t);
                sum[c] += (double)(d * d * t), weight[c] += (double)(d * d);
            }
        }
        for (int c = 0; c < CODEBOOK_LEVELS - 1; c++) {
            if (weight[c] > 0 && c != zero) b.level[c] = (float)(sum[c] / weight[c]);
        }
    }
    return b;
}

/* RMS(x - decoded) / RMS(x) of rows x cols. */
static double codebook_error(const codebook *b, const float *x, int64_t rows, int64_t cols) {
    double e2 = 0, n2 = 0;
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t first = 0; first < cols; first += CODEBOOK_BLOCK) {
            const float *p = x + r * cols + first;
            const int n = cols - first < CODEBOOK_BLOCK ? (int)(cols - first) : CODEBOOK_BLOCK;
            const float d = codebook_scale(p, n);
            for (int i = 0; i < n; i++) {
                const float y = d != 0.0f ? b->level[codebook_code(b, p[i] / d)] * d : 0.0f;
                e2 += (double)(y - p[i]) * (double)(y - p[i]), n2 += (double)p[i] * (double)p[i];
            }
        }
    }
    return n2 > 0 ? sqrt(e2 / n2) : 0;
}

#endif
