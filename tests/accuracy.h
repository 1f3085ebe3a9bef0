/* Errors of the formats on synthetic data: what bench/accuracy.c prints and tests/unit/test_accuracy.c holds.
 * Gradients: five kinds of micro-batches, accumulated through the public API and compared with a sum in
 * double. Activations: five distributions packed and unpacked. The trade-off: synthetic data ranks formats
 * and finds biases; what a model sees is measured on dumps of real activations (bench/accuracy.c). */
#ifndef TESTS_ACCURACY_H
#define TESTS_ACCURACY_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agoq/agoq.h"
#include "kernels/format/half.h"
#include "tests/numeric.h"

/* ---- gradients ---- */

/* noise: N(0,1). signal: 0.3 m + N(0,1), m fixed. heavy: signal times lognormal(1) of the element and of its
 * row of 4096. burst: signal with a first micro-batch 30 times as large. frozen: one element in 32 is large
 * and stays, the others grow by the same amount each time, and only they are asked about. */
#define ACC_CASES(X)                                                                                         \
    X(NOISE, "noise") X(SIGNAL, "signal") X(HEAVY, "heavy") X(BURST, "burst") X(FROZEN, "frozen")
typedef enum acc_case {
#define ACC_CASE_ENUM(id, name) ACC_##id,
    ACC_CASES(ACC_CASE_ENUM)
#undef ACC_CASE_ENUM
        ACC_N_CASES
} acc_case;

static const char *const acc_case_names[ACC_N_CASES] = {
#define ACC_CASE_NAME(id, name) name,
    ACC_CASES(ACC_CASE_NAME)
#undef ACC_CASE_NAME
};

enum { ACC_ROW = 4096 };

/* How micro-batches are added up. staged > 1: in bf16, to nearest, and folded into the 8-bit gradient with
 * every staged-th. */
typedef struct acc_way {
    agoq_grad_format format;
    int stochastic, staged;
} acc_way;

/* Means over rows of the relative L2 error and of the bias, the projection on the reference minus 1; the
 * standard error of the latter. */
typedef struct acc_result {
    double error, bias, bias_error;
} acc_result;

typedef struct acc_run {
    acc_case kind;
    int64_t n;
    float *mean, *factor, *x; /* n each; x: the running micro-batch, bf16 values */
    double *sum;
    uint64_t seed;
    int m;
} acc_run;

static inline int acc_asked(const acc_run *r, int64_t i) {
    return r->kind != ACC_FROZEN || i % 32 != 0;
}

static inline acc_run acc_begin(acc_case kind, int64_t n) {
    acc_run r = {.kind = kind, .n = n, .seed = 5};
    float *memory = calloc((size_t)n * 3, sizeof *memory);
    r.sum = calloc((size_t)n, sizeof *r.sum);
    if (!memory || !r.sum) abort();
    r.mean = memory, r.factor = memory + n, r.x = memory + 2 * n;
    float row = 1.0f;
    for (int64_t i = 0; i < n; i++) {
        if (i % ACC_ROW == 0) row = expf(gauss(&r.seed));
        r.mean[i] = gauss(&r.seed);
        r.factor[i] = kind == ACC_HEAVY ? row * expf(gauss(&r.seed)) : 1.0f;
    }
    return r;
}

static inline void acc_end(acc_run *r) {
    free(r->mean), free(r->sum);
}

static inline void acc_next(acc_run *r) {
    const float signal = r->kind == ACC_NOISE ? 0.0f : 0.3f,
                times = r->kind == ACC_BURST && r->m == 0 ? 30.0f : 1.0f;
    for (int64_t i = 0; i < r->n; i++) {
        float x =
            (signal * r->mean[i] + (r->kind == ACC_FROZEN ? 0.0f : gauss(&r->seed))) * r->factor[i] * times;
        if (r->kind == ACC_FROZEN) x = i % 32 ? r->mean[i] : r->m ? 0.0f : 1000.0f;
        r->x[i] = agoqk_bf16_round(x);
        r->sum[i] += (double)r->x[i];
    }
    r->m++;
}

static inline acc_result acc_compare(const acc_run *r, const float *got) {
    double error = 0, bias = 0, variance = 0;
    for (int64_t first = 0; first < r->n; first += ACC_ROW) {
        double e2 = 0, n2 = 0, dot = 0, cross = 0;
        for (int64_t i = first; i < first + ACC_ROW && i < r->n; i++) {
            if (!acc_asked(r, i)) continue;
            const double want = r->sum[i], d = (double)got[i] - want;
            e2 += d * d, n2 += want * want, dot += d * want, cross += d * d * want * want;
        }
        if (!(n2 > 0)) continue;
        error += sqrt(e2 / n2), bias += dot / n2, variance += cross / (n2 * n2);
    }
    const double rows = (double)((r->n + ACC_ROW - 1) / ACC_ROW);
    return (acc_result){error / rows, bias / rows, sqrt(variance) / rows};
}

/* Sum of micro-batches 0 .. G-1 at each power of two G up to 2^(n_results - 1). */
static inline agoq_status acc_accumulate(acc_case kind, acc_way way, int64_t n, acc_result *results,
                                         int n_results) {
    acc_run r = acc_begin(kind, n);
    agoq_grad g = {malloc((size_t)n), malloc((size_t)agoq_grad_blocks(n) * sizeof(float)), n, way.format};
    float *got = malloc((size_t)n * sizeof *got), *staged = calloc((size_t)n, sizeof *staged);
    if (!g.codes || !g.scales || !got || !staged) abort();
    agoq_status status = agoq_grad_zero(NULL, &g);
    for (int k = 0; k < n_results; k++) {
        while (r.m < 1 << k && status == AGOQ_OK) {
            const agoq_key key = {1, 2, 3, (uint32_t)r.m, 0, 0};
            const float *add = r.x;
            acc_next(&r);
            if (way.staged > 1) {
                for (int64_t i = 0; i < n; i++) staged[i] = agoqk_bf16_round(staged[i] + r.x[i]);
                if (r.m % way.staged) continue;
                add = staged;
            }
            status = agoq_grad_accumulate(NULL, add, AGOQ_DTYPE_F32, way.stochastic ? &key : NULL, &g);
            if (way.staged > 1) memset(staged, 0, (size_t)n * sizeof *staged);
        }
        if (status == AGOQ_OK) status = agoq_grad_read(NULL, &g, 0, n, 1.0f, got);
        for (int64_t i = 0; i < n; i++) got[i] += staged[i]; /* what is not folded yet */
        results[k] = acc_compare(&r, got);
    }
    free(g.codes), free(g.scales), free(got), free(staged);
    acc_end(&r);
    return status;
}

/* ---- activations ---- */

/* outlier channels: lognormal(0.7), and one in 500 is 20 times as large. silu(g) u: of two normal numbers. */
#define ACT_CASES(X)                                                                                         \
    X(NORMAL, "normal")                                                                                      \
    X(LAPLACE, "laplace")                                                                                    \
    X(CHANNELS, "outlier channels") X(SILU_UP, "silu(g) u") X(SILU, "silu(g)") X(SHIFTED, "N(0.5,1)")
typedef enum act_case {
#define ACT_CASE_ENUM(id, name) ACT_##id,
    ACT_CASES(ACT_CASE_ENUM)
#undef ACT_CASE_ENUM
        ACT_N_CASES
} act_case;

static const char *const act_case_names[ACT_N_CASES] = {
#define ACT_CASE_NAME(id, name) name,
    ACT_CASES(ACT_CASE_NAME)
#undef ACT_CASE_NAME
};

static inline void act_channels(float *channel, int64_t cols, uint64_t *seed) {
    for (int64_t c = 0; c < cols; c++) {
        channel[c] = expf(0.7f * gauss(seed));
        if (uniform(seed) < 0.002) channel[c] *= 20.0f;
    }
}

static inline void act_fill(act_case kind, float *x, int64_t rows, int64_t cols) {
    uint64_t seed = 11;
    float *channel = malloc((size_t)cols * sizeof *channel);
    if (!channel) abort();
    for (int64_t i = 0; i < rows * cols; i++) {
        /* a few outliers decide about the error: the mean is over many draws of channels */
        if (kind == ACT_CHANNELS && i % (4 * cols) == 0) act_channels(channel, cols, &seed);
        const float g = gauss(&seed), silu = g / (1.0f + expf(-g));
        float v = g;
        if (kind == ACT_LAPLACE) v = (float)(log(uniform(&seed)) * (g < 0.0f ? -1.0 : 1.0));
        if (kind == ACT_CHANNELS) v = g * channel[i % cols];
        if (kind == ACT_SILU_UP) v = silu * gauss(&seed);
        if (kind == ACT_SILU) v = silu;
        if (kind == ACT_SHIFTED) v = g + 0.5f;
        x[i] = agoqk_bf16_round(v);
    }
    free(channel);
}

/* RMS(x - decoded) / RMS(x); bias as above. key NULL: nearest. */
static inline agoq_status act_error(const float *x, int64_t rows, int64_t cols, int bits, const agoq_key *key,
                                    acc_result *result) {
    agoq_packed p;
    agoq_status status = agoq_layout_make(bits, rows, cols, &p.layout);
    if (status != AGOQ_OK) return status;
    const int64_t n = rows * cols;
    p.data = aligned_alloc(AGOQ_PLANE_ALIGN, p.layout.bytes + AGOQ_PLANE_ALIGN);
    float *y = malloc((size_t)n * sizeof *y);
    if (!p.data || !y) abort();
    const agoq_view in = {(void *)(uintptr_t)x, AGOQ_DTYPE_F32, rows, cols, cols};
    agoq_view out = {y, AGOQ_DTYPE_F32, rows, cols, cols};
    status = agoq_pack(NULL, &in, key, &p);
    if (status == AGOQ_OK) status = agoq_unpack(NULL, &p, &out);
    double e2 = 0, n2 = 0, dot = 0, cross = 0;
    for (int64_t i = 0; i < n; i++) {
        const double want = (double)x[i], d = (double)y[i] - want;
        e2 += d * d, n2 += want * want, dot += d * want, cross += d * d * want * want;
    }
    *result = (acc_result){n2 > 0 ? sqrt(e2 / n2) : 0, n2 > 0 ? dot / n2 : 0, n2 > 0 ? sqrt(cross) / n2 : 0};
    free(p.data), free(y);
    return status;
}

#endif
