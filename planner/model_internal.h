/* What the files of the memory model share: dimensions of one rank, placement of layers, and sums that
 * saturate instead of overflowing (a saturated sum is above every limit, so it is refused at the end). */
#ifndef PLANNER_MODEL_INTERNAL_H
#define PLANNER_MODEL_INTERNAL_H

#include "planner/internal.h"
#include "planner/model.h"

static inline uint64_t planner_add(uint64_t a, uint64_t b) {
    return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t planner_mul(uint64_t a, uint64_t b) {
    return a && b > UINT64_MAX / a ? UINT64_MAX : a * b;
}

static inline uint64_t planner_ceil_div(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

/* Of one rank; heads of K and V are replicated where there are fewer than tensor-parallel ranks. */
typedef struct planner_dims {
    uint64_t head_dim, heads, kv_heads; /* heads of this rank */
    uint64_t q, kv, ffn;                /* widths of Q, of K (and V), of gate */
    uint64_t tokens;                    /* of a micro-batch on this rank */
    uint64_t replicas;                  /* ranks that shard state: dp * cp */
} planner_dims;
planner_dims planner_model_dims(const planner_model *m);
/* Rows of a tensor that sequence parallelism divides. */
uint64_t planner_model_spread(const planner_model *m, uint64_t tokens);

uint32_t planner_model_rank_layers(const planner_model *m, uint32_t rank); /* of all its chunks */
/* Chunk of this rank that is virtual stage `at`, or -1. */
int planner_model_chunk_at(const planner_model *m, uint32_t rank, uint32_t at);
uint64_t planner_model_layer_params(const planner_model *m); /* of one rank */
uint32_t planner_model_recomputed(const planner_model *m, uint32_t rank);

/* One stage alone, without live vectors; items and fixed are the caller's: planner_model_most_items, chunks.
 * E_LIMIT. */
AGOQ_MUST_USE agoq_status planner_model_build_stage(const planner_model *m, uint32_t rank,
                                                    planner_item *items, uint64_t *fixed,
                                                    planner_parts *parts, planner_stage *stage);
size_t planner_model_most_items(const planner_model *m); /* of all stages together */

uint64_t planner_model_round(const planner_model *m, uint64_t bytes); /* as the allocator does */
uint32_t planner_model_widths(const planner_model *m, int role);
uint64_t planner_model_optimizer_bytes(const planner_model *m, uint64_t params, planner_shard shard);
/* Everything but fixed_bytes. */
void planner_model_fill_parts(const planner_model *m, uint32_t rank, planner_parts *parts);

#endif
