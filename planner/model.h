/* Memory model of a LLaMA-family model on a cluster, before anyone starts it: from shape and parallelism to a
 * planner_problem. For `agoqctl simulate`; a running job is planned from what its ranks report instead.
 * Activations are exact for the tensors that agoq saves; static bytes and workspace are estimates, each term
 * written out in model.c. */
#ifndef PLANNER_MODEL_H
#define PLANNER_MODEL_H

#include "planner/planner.h"

typedef struct planner_model {
    /* the model */
    uint32_t hidden, ffn, layers, heads, kv_heads, vocab;
    int tied; /* embedding and head share their weights */
    /* the run */
    uint32_t seq, microbatch;    /* tokens of a sequence, sequences of a micro-batch */
    uint32_t pp, tp, dp, chunks; /* chunks: model chunks per rank; 1 unless interleaved */
    uint32_t microbatches;
    agoq_schedule schedule;
    int sequence_parallel; /* norm inputs are divided by tp too */
    int zero1;             /* optimizer state divided by dp */
    int adam8;             /* 8-bit moments; else fp32 */
    int grad_bits;         /* 8 (E4M3, block 128), 16 or 32 */
    int qkv_bits;          /* 16, or 8: also 8 is allowed for Q, K, V */
    int qkv_only8;         /* with qkv_bits 8: pinned there, not a choice */
    /* the machine */
    uint64_t budget_bytes;  /* of one GPU; PLANNER_NO_BUDGET */
    uint64_t context_bytes; /* CUDA context and communicators */
    uint32_t margin_ppm;
    uint64_t alloc_round_bytes;
    planner_mode mode;
} planner_model;

/* A problem that owns its arrays. */
typedef struct planner_model_problem {
    planner_problem problem;
    uint32_t *live_units;      /* [n_stages] */
    uint64_t *optimizer_bytes; /* [n_stages]: of one rank, as counted in static bytes */
    planner_stage *stages;
    planner_item *items;
    uint64_t *fixed;
    uint32_t *live;
} planner_model_problem;

/* NULL if the model is one; else what is wrong with it, a static sentence. */
const char *planner_model_check(const planner_model *model);
AGOQ_MUST_USE agoq_status planner_model_build(const planner_model *model, planner_model_problem *out);
void planner_model_fini(planner_model_problem *p);

/* Adds what only the model knows to the levers of an overshooting stage: sharding the optimizer over dp. */
void planner_model_levers(const planner_model *model, const planner_model_problem *p, planner_result *result);

/* Parameters of one rank of a stage. */
uint64_t planner_model_params(const planner_model *model, uint32_t stage);
/* Bytes per token and layer, without tensor parallelism: what a fused 16-bit trainer keeps; what agoq keeps
 * with the planned roles at `bits`. */
uint64_t planner_model_layer_bytes16(const planner_model *model);
double planner_model_layer_bytes(const planner_model *model, int bits, int qkv_bits);

#endif
