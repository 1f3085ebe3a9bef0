/* Gradients of the trainer against central differences, in fp32 without rounding: every operation on its own,
 * one whole layer with respect to its input and weights, and the whole model with respect to every tensor.
 * Objectives are summed in double; what is left is fp32 noise, so a tensor's elements are compared relative
 * to the largest of them, and whole random directions more strictly. Then the three save-and-restore paths
 * against each other. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/trainer_case.h"

typedef double (*objective)(void *ctx);

static double difference(objective f, void *ctx, float *x, const float *direction, int64_t n, float *backup,
                         double eps) {
    double plus, minus;
    memcpy(backup, x, (size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) x[i] = backup[i] + (float)eps * direction[i];
    plus = f(ctx);
    for (int64_t i = 0; i < n; i++) x[i] = backup[i] - (float)eps * direction[i];
    minus = f(ctx);
    memcpy(x, backup, (size_t)n * sizeof(float));
    return (plus - minus) / (2 * eps);
}

/* x[n], of which `analytic` claims to be the gradient of f. */
static void check_gradient(const char *name, objective f, void *ctx, float *x, const float *analytic,
                           int64_t n, double eps) {
    float *direction = calloc((size_t)n, sizeof(float)), *backup = calloc((size_t)n, sizeof(float));
    double largest = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)analytic[i]));
        norm += (double)analytic[i] * (double)analytic[i];
    }
    norm = sqrt(norm);
    assert_true(norm > 0);
    for (uint64_t k = 0; k < 6; k++) { /* the gradient's own direction first, then random ones */
        double claimed = 0, length = 0;
        for (int64_t i = 0; i < n; i++) {
            direction[i] = k ? (float)(uniform(k, (uint64_t)i) - 0.5) : analytic[i];
            length += (double)direction[i] * (double)direction[i];
        }
        for (int64_t i = 0; i < n; i++) {
            direction[i] = (float)((double)direction[i] / sqrt(length));
            claimed += (double)direction[i] * (double)analytic[i];
        }
        const double found = difference(f, ctx, x, direction, n, backup, eps);
        if (fabs(found - claimed) > 4e-3 * norm)
            fail_msg("%s: direction %d: %g, not %g (norm %g)", name, (int)k, found, claimed, norm);
    }
    memset(direction, 0, (size_t)n * sizeof(float));
    for (int64_t k = 0; k < 24; k++) {
        const int64_t i = (int64_t)(uniform(77, (uint64_t)k) * (double)n);
        direction[i] = 1;
        const double found = difference(f, ctx, x, direction, n, backup, eps);
        direction[i] = 0;
        if (fabs(found - (double)analytic[i]) > 2e-2 * largest)
            fail_msg("%s[%d]: %g, not %g (largest %g)", name, (int)i, found, (double)analytic[i], largest);
    }
    free(direction);
    free(backup);
}

static double dot(const float *a, const float *b, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++) sum += (double)a[i] * (double)b[i];
    return sum;
}

/* ---- operations ---- */

enum { ROWS = 5, COLS = 22 };

typedef struct op_case {
    float *a, *b, *out, *weight; /* objective: weight . op(a, b) */
} op_case;

static op_case op_new(int64_t n_out) {
    return (op_case){random_floats(1, ROWS * COLS, 1), random_floats(2, ROWS * COLS, 1),
                     random_floats(3, n_out, 1), random_floats(4, n_out, 1)};
}

static void op_free(op_case *c) {
    free(c->a);
    free(c->b);
    free(c->out);
    free(c->weight);
}

static double norm_objective(void *ctx) {
    op_case *c = ctx;
    ops_rmsnorm(ops_mat_of(c->a, ROWS, COLS), NULL, c->b, 1e-5f, 0, NULL, ops_mat_of(c->out, ROWS, COLS));
    return dot(c->out, c->weight, ROWS * COLS);
}

static void rmsnorm(void **state) {
    (void)state;
    op_case c = op_new(ROWS * COLS);
    float dx[ROWS * COLS], dgamma[COLS] = {0};
    ops_rmsnorm_bwd(ops_mat_of(c.a, ROWS, COLS), c.b, 1e-5f, 0, ops_mat_of(c.weight, ROWS, COLS),
                    ops_mat_of(dx, ROWS, COLS), dgamma);
    check_gradient("x", norm_objective, &c, c.a, dx, ROWS * COLS, 1e-2);
    check_gradient("gamma", norm_objective, &c, c.b, dgamma, COLS, 1e-2);
    op_free(&c);
}

static double swiglu_objective(void *ctx) {
    op_case *c = ctx;
    ops_swiglu(ops_mat_of(c->a, ROWS, COLS), ops_mat_of(c->b, ROWS, COLS), 0, ops_mat_of(c->out, ROWS, COLS));
    return dot(c->out, c->weight, ROWS * COLS);
}

static void swiglu(void **state) {
    (void)state;
    op_case c = op_new(ROWS * COLS);
    float dgate[ROWS * COLS], dup[ROWS * COLS], again[ROWS * COLS];
    ops_swiglu_bwd(ops_mat_of(c.a, ROWS, COLS), ops_mat_of(c.b, ROWS, COLS), 0,
                   ops_mat_of(c.weight, ROWS, COLS), ops_mat_of(again, ROWS, COLS),
                   ops_mat_of(dgate, ROWS, COLS), ops_mat_of(dup, ROWS, COLS));
    check_gradient("gate", swiglu_objective, &c, c.a, dgate, ROWS * COLS, 1e-2);
    check_gradient("up", swiglu_objective, &c, c.b, dup, ROWS * COLS, 1e-2);
    (void)swiglu_objective(&c);
    assert_memory_equal(again, c.out, sizeof again);
    op_free(&c);
}

static double entropy_objective(void *ctx) {
    op_case *c = ctx;
    static const uint8_t targets[ROWS] = {0, 7, 21, 3, 3};
    float used_up[ROWS * COLS];
    memcpy(used_up, c->a, sizeof used_up);
    return ops_cross_entropy(ops_mat_of(used_up, ROWS, COLS), targets);
}

static void cross_entropy(void **state) {
    (void)state;
    op_case c = op_new(1);
    static const uint8_t targets[ROWS] = {0, 7, 21, 3, 3};
    float d[ROWS * COLS];
    memcpy(d, c.a, sizeof d);
    ops_cross_entropy_bwd(ops_mat_of(d, ROWS, COLS), targets, 1.0f, 0);
    check_gradient("logits", entropy_objective, &c, c.a, d, ROWS * COLS, 1e-2);
    op_free(&c);
}

/* A rotation: backward is its inverse, norms are kept, and scores depend on distances alone. */
static void rope(void **state) {
    (void)state;
    enum { SEQ = 6, HEADS = 3, DIM = 8 };
    float table[SEQ * DIM], *x = random_floats(1, SEQ * HEADS * DIM, 1),
                            *y = random_floats(1, SEQ * HEADS * DIM, 1);
    ops_rope_table(SEQ, DIM, table);
    const ops_mat m = ops_mat_of(y, SEQ, HEADS * DIM);
    for (int t = 1; t < SEQ; t++)
        memcpy(y + t * HEADS * DIM, y, HEADS * DIM * sizeof(float)); /* same row everywhere */
    memcpy(x, y, SEQ * HEADS * DIM * sizeof(float));
    ops_rope(m, HEADS, DIM, SEQ, table, +1, 0);
    for (int h = 0; h < HEADS; h++) {
        const float *first = y + h * DIM;
        assert_float_equal(dot(first, first, DIM), dot(x + h * DIM, x + h * DIM, DIM), 1e-4);
        assert_float_equal(dot(first + HEADS * DIM, first + 3 * HEADS * DIM, DIM), /* 1 and 3, 2 and 4 */
                           dot(first + 2 * HEADS * DIM, first + 4 * HEADS * DIM, DIM), 1e-4);
        assert_true(fabs(dot(first, first + HEADS * DIM, DIM) - dot(first, first, DIM)) > 1e-2);
    }
    ops_rope(m, HEADS, DIM, SEQ, table, -1, 0);
    for (int i = 0; i < SEQ * HEADS * DIM; i++) assert_float_equal(y[i], x[i], 1e-5);
    free(x);
    free(y);
}

typedef struct attention_case {
    attention_shape shape;
    ops_mat qkv, o, weight;
    float *lse, *scratch;
} attention_case;

static double attention_objective(void *ctx) {
    attention_case *c = ctx;
    attention_forward(&c->shape, c->qkv, 0, c->o, c->lse, c->scratch);
    return dot(c->o.p, c->weight.p, c->o.rows * c->o.cols);
}

/* 70 tokens: more than one block of query rows, and a short last one. Two query heads share a key head. */
static void attention(void **state) {
    (void)state;
    const attention_shape s = {.seq = 70, .n_seqs = 2, .heads = 4, .kv_heads = 2, .head_dim = 6};
    const int64_t t = (int64_t)s.seq * s.n_seqs, q = (int64_t)s.heads * s.head_dim,
                  w = q + 2L * s.kv_heads * s.head_dim;
    attention_case c = {s,
                        ops_mat_of(random_floats(1, t * w, 1), t, w),
                        ops_mat_of(random_floats(2, t * q, 1), t, q),
                        ops_mat_of(random_floats(3, t * q, 1), t, q),
                        random_floats(4, t * s.heads, 1),
                        random_floats(5, (int64_t)attention_scratch(&s), 1)};
    float *d = random_floats(6, t * w, 1);
    (void)attention_objective(&c);
    attention_backward(&s, c.qkv, c.o, c.weight, c.lse, ops_mat_of(d, t, w), c.scratch);
    check_gradient("qkv", attention_objective, &c, c.qkv.p, d, t * w, 2e-2);
    /* Causal: the last token's keys and values do not touch the first token. */
    const double before = (double)c.o.p[0];
    c.qkv.p[(s.seq - 1) * w + q] += 10;
    (void)attention_objective(&c);
    assert_true((double)c.o.p[0] == before);
    free(d);
    free(c.qkv.p);
    free(c.o.p);
    free(c.weight.p);
    free(c.lse);
    free(c.scratch);
}

/* ---- layer and model ---- */

static double layer_objective(void *ctx) {
    model_case *c = ctx;
    memcpy(c->m.work.x.p, c->x, 20 * 24 * sizeof(float));
    assert_int_equal(layer_forward(&c->m, &c->m.chunks[0].layers[1], &c->s, &c->kept->layers[1]), AGOQ_OK);
    const double sum = dot(c->m.work.x.p, c->weight, 20 * 24);
    assert_int_equal(layer_release(&c->s, &c->kept->layers[1]), AGOQ_OK);
    return sum;
}

static void layer_gradient(model_case *c) {
    const model_layer *l = &c->m.chunks[0].layers[1];
    memcpy(c->m.work.x.p, c->x, 20 * 24 * sizeof(float));
    assert_int_equal(layer_forward(&c->m, l, &c->s, &c->kept->layers[1]), AGOQ_OK);
    memcpy(c->m.work.x.p, c->weight, 20 * 24 * sizeof(float));
    assert_int_equal(layer_backward(&c->m, l, &c->s, &c->kept->layers[1], &c->g), AGOQ_OK);
}

static void layer(void **state) {
    (void)state;
    model_case c;
    case_init(&c, STORE_BASELINE, 1);
    float dx[20 * 24];
    layer_gradient(&c);
    memcpy(dx, c.m.work.x.p, sizeof dx);
    check_gradient("input", layer_objective, &c, c.x, dx, 20 * 24, 1e-2);
    const model_layer *l = &c.m.chunks[0].layers[1];
    const int weights[] = {l->norms, l->qkv, l->out, l->gu, l->down};
    const char *const names[] = {"norms", "qkv", "out", "gate_up", "down"};
    for (int i = 0; i < 5; i++) {
        const param *t = &c.m.params.list[weights[i]];
        check_gradient(names[i], layer_objective, &c, t->w, c.g.list[weights[i]].g32, t->n, 1e-2);
    }
    case_fini(&c);
}

static double model_objective(void *ctx) {
    model_case *c = ctx;
    double loss = 0;
    assert_int_equal(model_loss(&c->m, 0, c->ids, c->targets, &c->s, c->kept, &loss), AGOQ_OK);
    return loss;
}

static void whole_model(void **state) {
    (void)state;
    model_case c;
    case_init(&c, STORE_BASELINE, 1);
    const double loss = model_gradient(&c);
    assert_float_equal(loss, model_objective(&c), 1e-12);
    assert_true(fabs(loss / 20 - log(256.0)) < 1.5);
    for (int i = 0; i < c.m.params.n; i++) {
        const param *t = &c.m.params.list[i];
        char name[32];
        snprintf(name, sizeof name, "parameter %d", (int)t->id);
        check_gradient(name, model_objective, &c, t->w, c.g.list[i].g32, t->n, 1e-2);
    }
    case_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rmsnorm),     cmocka_unit_test(swiglu),    cmocka_unit_test(cross_entropy),
        cmocka_unit_test(rope),        cmocka_unit_test(attention), cmocka_unit_test(layer),
        cmocka_unit_test(whole_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
