/* Memory model of a LLaMA-family model on a cluster, before anyone starts it. For `agoqctl simulate` and for
 * the levers; a running job is planned from what its ranks report instead.
 *
 * How to use it:
 *     planner_model m = {.shape = ..., .run = ...};         zero is a valid "off" for every option
 *     planner_model_check(&m, why, sizeof why)              E_INVAL: why says what cannot be
 *     planner_model_build(&m, &job)                         stages with items, fixed bytes, live vectors, and
 *                                                           static and workspace bytes of each phase
 *     planner_solve(&job.problem, &result)                  the daemon's own planner on it
 *     planner_model_fini(&job)
 * job.parts[s] says what the sums are made of. For operation lists from a file: run.no_live = 1 and
 * run.route, and the caller sets stages[s].live, n_live and live_units[s] between build and solve.
 *
 * What one micro-batch keeps is a list of tensors (planner_tensor), one list per way of counting
 * (planner_accounting) and storage (planner_storage). Only FUSED with STORE_PLAN is what this project does
 * and can be planned: it becomes items for the solver. All others are yardsticks: fixed bytes, no items.
 * Bytes are integers; sums saturate, and what passes 64 PiB is E_LIMIT. Activations are exact for the tensors
 * listed; static bytes and workspace are estimates, each term written out in model_state.c. */
#ifndef PLANNER_MODEL_H
#define PLANNER_MODEL_H

#include "planner/planner.h"
#include "planner/schedule.h"

typedef struct planner_shape {
    uint32_t hidden, ffn, layers, heads, kv_heads, vocab;
    uint32_t head_dim; /* 0: hidden / heads */
    uint32_t max_seq;  /* longest sequence it was made for; 0: not known; nothing is computed from it */
    int tied;          /* embedding and head share their weights */
    int bare_norms;    /* norms without weights (OLMo) */
    int qk_norm;       /* Q and K are normalised before RoPE (OLMo 2, Qwen 3) */
    int no_gate;       /* feed-forward with one up projection (GPT) */
} planner_shape;

/* What the dp * cp ranks of a replica group divide among them. DISTRIBUTED: Megatron's distributed optimizer,
 * ZERO1 whose collectives work inside the gradient and parameter buffers. */
typedef enum planner_shard {
    PLANNER_SHARD_NONE,
    PLANNER_SHARD_ZERO1,      /* optimizer state */
    PLANNER_SHARD_ZERO2,      /* and gradients */
    PLANNER_SHARD_ZERO3,      /* and weights */
    PLANNER_SHARD_DISTRIBUTED /* optimizer state */
} planner_shard;

typedef enum planner_accounting {
    PLANNER_ACCOUNT_FUSED,       /* fused kernels; packed: block 64, O at 8 bits: what this project keeps */
    PLANNER_ACCOUNT_FUSED_14,    /* the same tensors, block 128, O in 16 bits */
    PLANNER_ACCOUNT_HF_EAGER,    /* Hugging Face eager, bf16: what autograd keeps, measured */
    PLANNER_ACCOUNT_MEGATRON,    /* Megatron-LM's own report: GELU, dropout, no GQA */
    PLANNER_ACCOUNT_PAPER,       /* AGoQ's Table 1; scales are not counted */
    PLANNER_ACCOUNT_PAPER_SCALES /* the same with 16-bit scales of 128 elements */
} planner_accounting;
#define PLANNER_N_ACCOUNTINGS 6

typedef enum planner_storage {
    PLANNER_STORE_PLAN,    /* agoq: the planned roles packed */
    PLANNER_STORE_16,      /* the framework alone */
    PLANNER_STORE_COAT,    /* FP8 as Table 1 counts it (paper only) */
    PLANNER_STORE_COAT_OWN /* FP8 as COAT counts itself: half a unit less (paper only) */
} planner_storage;

/* The rows of Table 1. */
typedef enum planner_part {
    PLANNER_PART_QKV,
    PLANNER_PART_ATTENTION,
    PLANNER_PART_LINEAR,
    PLANNER_PART_NORMS,
    PLANNER_PART_FFN1,
    PLANNER_PART_ACT,
    PLANNER_PART_FFN2,
    PLANNER_N_PARTS
} planner_part;

/* Modules that backward recomputes, so that their tensors are not kept; bits of run.recompute_modules. */
enum {
    PLANNER_RECOMPUTE_NORMS = 1,   /* norm outputs (inputs of QKV and FFN1) */
    PLANNER_RECOMPUTE_CORE = 2,    /* core attention: scores and log-sum-exp */
    PLANNER_RECOMPUTE_ACT = 4,     /* silu(gate) and the product (input of FFN2) */
    PLANNER_RECOMPUTE_GATE_UP = 8, /* and gate and up: FFN1 runs again */
    PLANNER_RECOMPUTE_QKV = 16     /* Q, K, V: the QKV product and RoPE run again */
};
#define PLANNER_ALL_LAYERS UINT32_MAX

typedef struct planner_run {
    /* batch and parallelism; 0 counts as 1 for cp alone */
    uint32_t seq, microbatch, microbatches; /* tokens of a sequence, sequences of a micro-batch */
    uint32_t pp, tp, cp, dp, chunks;        /* chunks: model chunks of a rank */
    agoq_schedule schedule;
    uint32_t group;         /* as in planner_schedule; 0: its default */
    int no_live;            /* build leaves the live vectors to the caller; schedule and group do not count */
    planner_route route;    /* with no_live: which pieces of the model a rank's chunks are */
    const uint32_t *layout; /* layers of each piece of the model (planner_schedule_piece); NULL: evenly */
    int sequence_parallel;  /* norms are divided by tp too */
    planner_shard shard;
    /* formats */
    int grad_bits; /* main gradients: 8 (E4M3, block 128), 16 or 32 */
    int adam8;     /* 8-bit moments; else fp32 */
    int weights32; /* weights in fp32 and no master copy; else bf16 and an fp32 master */
    int qkv_bits;  /* 16, or 8: also 8 is allowed for Q, K, V */
    int qkv_only8; /* with qkv_bits 8: pinned there, not a choice */
    int out16;     /* also 16 is allowed for the attention output */
    /* what is kept */
    planner_accounting accounting;
    planner_storage storage;
    int account_bits;           /* width of packed tensors where there is no plan; 0: 4 */
    uint32_t recompute_modules; /* PLANNER_RECOMPUTE_* */
    uint32_t recompute_layers;  /* so many of each rank's layers, the first ones, keep only their input */
    const uint32_t *recompute;  /* the same for each stage apart; NULL: recompute_layers */
    uint32_t loss_chunks;       /* cross-entropy in so many parts; 0, 1: at once */
    /* the machine */
    uint64_t budget_bytes;         /* of one GPU; PLANNER_NO_BUDGET */
    const uint64_t *stage_budgets; /* of each stage apart; NULL: budget_bytes */
    uint64_t context_bytes;        /* CUDA context and communicators */
    const uint64_t *stage_extras;  /* what something else holds on the GPUs of each stage; NULL: nothing */
    uint32_t margin_ppm;
    uint64_t alloc_round_bytes;
    planner_mode mode;
} planner_run;

typedef struct planner_model {
    planner_shape shape;
    planner_run run;
} planner_model;

/* One kind of tensor that a layer (or the end of the model) keeps, on one rank. */
typedef struct planner_tensor {
    const char *name;
    uint8_t part;   /* planner_part */
    int8_t role;    /* AGOQ_ROLE_*: packed at that role's width; -1: kept at `bits` */
    uint16_t bits;  /* of an element as it is kept */
    uint32_t count; /* tensors of rows x cols */
    uint64_t rows, cols;
} planner_tensor;
#define PLANNER_MAX_TENSORS 24

/* Of one rank of a stage. */
typedef struct planner_parts {
    uint64_t params; /* weights it computes with, before ZERO3 divides them */
    uint64_t weight_bytes, grad_bytes, optimizer_bytes; /* static: with the context bytes */
    uint64_t layer_bytes;   /* transient: one layer unpacked, and the gradients on their way */
    uint64_t logits_bytes;  /* transient: on the rank with the head, not at the same time as layer_bytes */
    uint64_t receive_bytes; /* pipeline and context-parallel buffers */
    uint64_t gather_bytes;  /* ZERO2, ZERO3: weights and gradients of the layer at work */
    uint64_t exchange_bytes, update_bytes; /* workspace of the gradient exchange and of the optimizer */
    uint64_t fixed_bytes;                  /* kept and never packed, one micro-batch, all chunks */
    uint32_t layers, recomputed;
} planner_parts;

/* A problem that owns its arrays. */
typedef struct planner_model_problem {
    planner_problem problem;
    uint32_t *live_units;      /* [n_stages] */
    uint64_t *optimizer_bytes; /* [n_stages]: parts[].optimizer_bytes */
    planner_parts *parts;      /* [n_stages] */
    planner_stage *stages;
    planner_item *items;
    uint64_t *fixed;
    uint32_t *same_as; /* [n_stages] with a two-way schedule, else NULL: problem.same_as */
    planner_live_set live;
} planner_model_problem;

/* OK, or E_INVAL with one sentence in why ("tp 3 does not divide the 32 heads"); why may be NULL. */
AGOQ_MUST_USE agoq_status planner_model_check(const planner_model *model, char *why, size_t why_size);
/* E_INVAL: not a model (see check), E_LIMIT; E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_model_build(const planner_model *model, planner_model_problem *out);
void planner_model_fini(planner_model_problem *p);

/* Adds what only the model knows to the levers of overshooting stages: sharding the optimizer, chunking the
 * loss, more TP or CP, another schedule; layers move with their weights. Each is tried on the model itself.
 * E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_model_levers(const planner_model *model, const planner_model_problem *p,
                                               planner_result *result);

/* Names: "fused", "fused-1.4", "hf-eager", "megatron", "paper", "paper-scales"; -1: no such name. */
const char *planner_accounting_name(planner_accounting accounting);
int planner_accounting_from_name(const char *name);

/* The schedule's, or with no_live the caller's. */
planner_route planner_model_route(const planner_model *model);
/* The model is cut into consecutive pieces (virtual stages): how many there are, which one a rank's chunk is,
 * and its layers. */
uint32_t planner_model_n_virtual(const planner_model *model);
uint32_t planner_model_virtual(const planner_model *model, uint32_t rank, uint32_t chunk);
uint32_t planner_model_layers_of(const planner_model *model, uint32_t piece);
uint32_t planner_model_first_layer_of(const planner_model *model, uint32_t piece);

/* Parameters of one rank of a stage. */
uint64_t planner_model_params(const planner_model *model, uint32_t stage);
/* What a whole layer keeps of `tokens` tokens on one rank, after recomputed modules; n in *n_tensors. With
 * `last`, what the end of the model keeps instead (final norm, head). */
void planner_model_tensors(const planner_model *model, uint64_t tokens, int last,
                           planner_tensor tensors[PLANNER_MAX_TENSORS], uint32_t *n_tensors);
/* Bytes of such a tensor if packed roles have `bits` (O and Q, K, V as the accounting and run say). */
uint64_t planner_model_tensor_bytes(const planner_model *model, const planner_tensor *tensor, int bits);
/* Sum over a layer's tensors, or over those of one part of Table 1 (part -1: all). A recomputed layer keeps
 * planner_model_input_bytes instead. */
uint64_t planner_model_layer_bytes(const planner_model *model, uint64_t tokens, int part, int bits);
uint64_t planner_model_input_bytes(const planner_model *model, uint64_t tokens);

#endif
