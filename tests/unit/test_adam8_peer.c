/* 8-bit AdamW next to the rules of bitsandbytes' AdamW8bit (block-wise, block 256), written down again here
 * from their description: maps from a linear grid in each decade, the nearest level, the sign of a first
 * moment kept, weights decayed after the step. Ours differs in three places: a second moment above zero never
 * becomes zero, a first moment may round to zero, and the decay is taken from the parameter before the step.
 * Bounds: on gradients whose scales within a block spread by e^0.5, parameters differ by 0.01 % of how far
 * they moved (with decay 0.02 %) and codes by none. Where scales spread by e^2.5, their second moments are
 * flushed by the thousand, and ours are nearer to an AdamW without coding. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "tests/numeric.h"

enum { N = 4096, BLOCK = 256, BLOCKS = N / BLOCK };

typedef struct peer {
    float level[2][256];    /* signed, unsigned */
    float m[N], v[N], p[N]; /* states as decoded */
    uint8_t code_m[N], code_v[N];
    int flushed; /* second moments above zero that became zero */
} peer;

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Middles of 2^i (unsigned: twice as many) equal parts of [0.1, 1], times 10^(i - 6), for i = 0 .. 6; zero
 * and one. */
static void make_map(float level[256], int is_signed) {
    int n = 0;
    for (int i = 0; i < 7; i++) {
        const int parts = (1 << i) * (is_signed ? 1 : 2);
        for (int j = 0; j < parts; j++) {
            const double low = 0.1 + 0.9 * j / parts, high = 0.1 + 0.9 * (j + 1) / parts;
            const float x = (float)(pow(10, i - 6) * (low + high) / 2);
            level[n++] = x;
            if (is_signed) level[n++] = -x;
        }
    }
    level[n++] = 0.0f, level[n++] = 1.0f;
    assert_int_equal(n, 256);
    qsort(level, 256, sizeof *level, ascending);
}

static int nearest(const float level[256], float t) {
    int best = 0;
    for (int c = 1; c < 256; c++) best = fabsf(level[c] - t) < fabsf(level[best] - t) ? c : best;
    return best;
}

static void code_block(peer *q, float *x, uint8_t *codes, int is_signed) {
    const float *level = q->level[!is_signed];
    float top = 0;
    for (int i = 0; i < BLOCK; i++) top = fmaxf(top, fabsf(x[i]));
    for (int i = 0; i < BLOCK; i++) {
        int c = nearest(level, top > 0 ? x[i] / top : 0);
        if (is_signed && signbit(level[c]) != signbit(x[i])) c += x[i] > 0 ? 1 : -1;
        q->flushed += !is_signed && x[i] > 0 && level[c] == 0;
        codes[i] = (uint8_t)c;
        x[i] = level[c] * top;
    }
}

static void peer_step(peer *q, const agoq_adam_params *a, const float *g) {
    const float correction1 = 1 - powf(a->beta1, (float)a->step),
                correction2 = sqrtf(1 - powf(a->beta2, (float)a->step));
    for (int i = 0; i < N; i++) {
        q->m[i] = q->m[i] * a->beta1 + (1 - a->beta1) * g[i];
        q->v[i] = q->v[i] * a->beta2 + (1 - a->beta2) * g[i] * g[i];
        q->p[i] -= a->lr * correction2 / correction1 * (q->m[i] / (sqrtf(q->v[i]) + correction2 * a->eps));
        if (a->weight_decay > 0) q->p[i] *= 1 - a->lr * a->weight_decay;
    }
    for (int b = 0; b < BLOCKS; b++) {
        code_block(q, q->m + b * BLOCK, q->code_m + b * BLOCK, 1);
        code_block(q, q->v + b * BLOCK, q->code_v + b * BLOCK, 0);
    }
}

/* AdamW in double, nothing coded. */
typedef struct exact {
    double m[N], v[N], p[N];
} exact;

static void exact_step(exact *e, const agoq_adam_params *a, const float *g) {
    const double b1 = (double)a->beta1, b2 = (double)a->beta2, step = (double)a->step;
    for (int i = 0; i < N; i++) {
        const double x = (double)g[i];
        e->m[i] = b1 * e->m[i] + (1 - b1) * x;
        e->v[i] = b2 * e->v[i] + (1 - b2) * x * x;
        const double u =
            e->m[i] / (1 - pow(b1, step)) / (sqrt(e->v[i] / (1 - pow(b2, step))) + (double)a->eps);
        e->p[i] -= (double)a->lr * (u + (double)a->weight_decay * e->p[i]);
    }
}

typedef struct outcome {
    double moved;            /* difference of the parameters over how far theirs moved */
    double ours, theirs;     /* difference from AdamW in double, over how far that moved */
    double one_code, beyond; /* share of states that differ by one code, by more */
    int flushed;
} outcome;

/* Gradients with a mean and noise; spread: of their logarithm within a block. */
static outcome compare(float decay, double spread, int steps) {
    static uint8_t m[N], v[N];
    static float m_top[BLOCKS], v_top[BLOCKS], p[N], start[N], g[N], scale[N], mean[N];
    agoq_adam8 state = {m, v, m_top, v_top, N};
    agoq_adam_params a = AGOQ_ADAM_PARAMS_INIT;
    a.weight_decay = decay;
    peer *q = calloc(1, sizeof *q);
    exact *e64 = calloc(1, sizeof *e64);
    assert_non_null(q);
    assert_non_null(e64);
    make_map(q->level[0], 1), make_map(q->level[1], 0);
    uint64_t seed = 12;
    for (int i = 0; i < N; i++) {
        q->p[i] = p[i] = start[i] = gauss(&seed);
        e64->p[i] = (double)p[i];
        scale[i] = (float)exp(spread * (double)gauss(&seed)), mean[i] = gauss(&seed);
    }
    assert_int_equal(agoq_adam8_init(NULL, &state), AGOQ_OK);
    for (a.step = 1; a.step <= steps; a.step++) {
        for (int i = 0; i < N; i++) g[i] = 1e-3f * scale[i] * (mean[i] + gauss(&seed));
        const agoq_adam_source source = {NULL, g, AGOQ_DTYPE_F32};
        const agoq_adam_target target = {p, NULL, NULL};
        assert_int_equal(agoq_adam8_step(NULL, &a, &source, &target, &state), AGOQ_OK);
        peer_step(q, &a, g);
        exact_step(e64, &a, g);
    }
    outcome o = {.flushed = q->flushed};
    double difference = 0, moved = 0, ours = 0, theirs = 0, way = 0;
    for (int i = 0; i < N; i++) {
        const int d = abs(m[i] - q->code_m[i]), e = abs(v[i] - q->code_v[i]);
        o.one_code += ((d == 1) + (e == 1)) / (2.0 * N), o.beyond += ((d > 1) + (e > 1)) / (2.0 * N);
        difference += pow((double)p[i] - (double)q->p[i], 2),
            moved += pow((double)q->p[i] - (double)start[i], 2);
    }
    for (int i = 0; i < N; i++) {
        ours += pow((double)p[i] - e64->p[i], 2), theirs += pow((double)q->p[i] - e64->p[i], 2);
        way += pow(e64->p[i] - (double)start[i], 2);
    }
    o.moved = sqrt(difference / moved), o.ours = sqrt(ours / way), o.theirs = sqrt(theirs / way);
    print_message(
        "decay %.2f, spread %.1f: parameters %.4f %% of the move, codes off by one %.3f %%, by more "
        "%.3f %%, %d flushed; from exact: ours %.2f %%, theirs %.2f %%\n",
        (double)decay, spread, 100 * o.moved, 100 * o.one_code, 100 * o.beyond, o.flushed, 100 * o.ours,
        100 * o.theirs);
    free(e64);
    free(q);
    return o;
}

static void maps_are_the_same(void **state) {
    (void)state;
    static float level[2][256];
    float top_m, top_v;
    make_map(level[0], 1), make_map(level[1], 0);
    /* with betas of 0 the moments are the gradient and its square */
    for (int c = 0; c < 256; c++) {
        const agoq_adam_params a = {0, 0, 0, 1, 0, 1, 1};
        float p[2] = {0}, g[2] = {level[0][c], 1};
        uint8_t codes[2], squares[2];
        agoq_adam8 s = {codes, squares, &top_m, &top_v, 2};
        assert_int_equal(agoq_adam8_init(NULL, &s), AGOQ_OK);
        assert_int_equal(agoq_adam8_step(NULL, &a, &(agoq_adam_source){NULL, g, AGOQ_DTYPE_F32},
                                         &(agoq_adam_target){p, NULL, NULL}, &s),
                         AGOQ_OK);
        assert_int_equal(codes[0], c);
        g[0] = sqrtf(level[1][c]);
        assert_int_equal(agoq_adam8_step(NULL, &a, &(agoq_adam_source){NULL, g, AGOQ_DTYPE_F32},
                                         &(agoq_adam_target){p, NULL, NULL}, &s),
                         AGOQ_OK);
        assert_int_equal(squares[0], c);
    }
}

static void bounds(void **state) {
    (void)state;
    const outcome plain = compare(0.0f, 0.5, 60), decayed = compare(0.01f, 0.5, 60);
    const outcome wide = compare(0.01f, 2.5, 60);
    assert_true(plain.moved < 1e-4 && decayed.moved < 2e-4);
    assert_true(plain.one_code < 1e-3 && decayed.one_code < 1e-3 && plain.beyond == 0 && decayed.beyond == 0);
    assert_true(plain.ours < 0.05);
    assert_true(wide.flushed > 1000 && wide.ours < 0.5 * wide.theirs);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(maps_are_the_same), cmocka_unit_test(bounds)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
