/* A two-layer model with everything around it, for the trainer's unit tests. */
#ifndef TESTS_TRAINER_CASE_H
#define TESTS_TRAINER_CASE_H

#include <stdlib.h>

#include "trainer/model.h"

static inline double uniform(uint64_t stream, uint64_t i) {
    return (double)(ops_hash(99, stream, i) >> 11) / 9007199254740992.0;
}

static inline float *random_floats(uint64_t stream, int64_t n, float std) {
    float *x = calloc((size_t)n, sizeof(float));
    ops_normal(5, stream, std, x, n);
    return x;
}

typedef struct model_case {
    alloc_stats mem;
    model m;
    store s;
    grads g;
    model_kept *kept;
    uint8_t ids[64], targets[64];
    float *x, *weight; /* layer: objective weight . layer(x) */
} model_case;

static inline void case_init(model_case *c, store_kind kind, int fp32) {
    const options_shape shape = {
        .hidden = 24, .ffn = 20, .layers = 2, .heads = 4, .kv_heads = 2, .seq = 10, .mb_size = 2};
    memset(c, 0, sizeof *c);
    assert_int_equal(model_init(&c->m, &shape, 1, 0, 1, 3, !fp32, &c->mem), AGOQ_OK);
    assert_int_equal(grads_init(&c->g, &c->m.params, 0, 3, 0, &c->mem), AGOQ_OK);
    store_init(&c->s, kind, &c->mem, NULL, fp32);
    c->kept = model_kept_new(&c->m, 0);
    for (int i = 0; i < c->m.params.n; i++) { /* gains that are not all ones */
        const param *t = &c->m.params.list[i];
        for (int64_t k = 0; k < t->n && !t->matrix; k++) t->w[k] = 0.5f + (float)uniform(9, (uint64_t)k);
    }
    for (uint64_t i = 0; i < 20; i++) {
        c->ids[i] = (uint8_t)(ops_hash(1, 2, i) % 256);
        c->targets[i] = (uint8_t)(ops_hash(1, 3, i) % 256);
    }
    c->x = random_floats(21, 20 * 24, 1);
    c->weight = random_floats(22, 20 * 24, 1);
    ops_round(ops_mat_of(c->x, 20, 24));
    ops_round(ops_mat_of(c->weight, 20, 24));
    assert_int_equal(grads_start(&c->g, 0), AGOQ_OK);
}

static inline void case_fini(model_case *c) {
    assert_int_equal(c->mem.current[ALLOC_SAVED], 0); /* backward frees all it kept */
    assert_int_equal(c->s.live16, 0);
    model_kept_delete(c->kept);
    grads_fini(&c->g);
    model_fini(&c->m);
    free(c->x);
    free(c->weight);
    assert_int_equal(c->mem.total, 0);
}

/* Forward and backward of one micro-batch through all of it; the summed loss. */
static inline double model_gradient(model_case *c) {
    double loss = 0;
    assert_int_equal(model_forward(&c->m, 0, c->ids, c->targets, &c->s, c->kept, &loss), AGOQ_OK);
    assert_int_equal(model_backward(&c->m, 0, 1.0f, &c->s, c->kept, &c->g), AGOQ_OK);
    return loss;
}

#endif
