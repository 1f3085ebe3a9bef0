/* The models that tests of the planner start from; each changes what it is about. */
#ifndef TESTS_MODEL_CASES_H
#define TESTS_MODEL_CASES_H

#include "planner/model.h"

static inline planner_model model_of_shape(const planner_shape *shape) {
    return (planner_model){.shape = *shape,
                           .run = {.seq = 4096,
                                   .microbatch = 1,
                                   .microbatches = 8,
                                   .pp = 1,
                                   .tp = 1,
                                   .dp = 1,
                                   .chunks = 1,
                                   .schedule = AGOQ_SCHEDULE_1F1B,
                                   .grad_bits = 8,
                                   .qkv_bits = 16,
                                   .budget_bytes = PLANNER_NO_BUDGET}};
}

static inline planner_model model_llama3_8b(uint32_t pp, uint32_t dp) {
    const planner_shape shape = {
        .hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .vocab = 128256};
    planner_model m = model_of_shape(&shape);
    m.run.pp = pp;
    m.run.dp = dp;
    return m;
}

#endif
