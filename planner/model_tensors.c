/* What a decoder layer keeps for backward, tensor by tensor, one table for each way of counting. Every number
 * that anyone quotes per token and layer is a sum over one of these tables, and so are the items that the
 * solver plans: they cannot disagree. The trade-off: closed tables for one family of models, against a
 * general graph that no one would keep true. Sources: the paper's Table 1, COAT's Table 2, Megatron-LM's
 * report of theoretical memory, and for Hugging Face what autograd was seen to keep (RMSNorm: its input in
 * fp32, the normalised rows before and after the weight). */
#include <string.h>

#include "planner/model_internal.h"

enum { SPLIT_TP, SPLIT_SP }; /* columns are divided by tp; rows are, with sequence parallelism */
enum { ONLY_QK_NORM = 1, ONLY_ROPE_TABLE = 2 };

/* Columns: h * hidden + q * (width of Q) + kv * (width of K) + f * ffn + a * heads + one + scores * heads *
 * seq. Without a gate there are `gate` tensors fewer. */
typedef struct row {
    const char *name;
    uint8_t part;
    int8_t role;
    uint8_t bits, split, modules, count, gate, h, q, kv, f, a, one, scores, only;
} row;

#define NONE (-1)

static const row fused_plan[] = {
    {"attn_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_ATTN_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_MLP_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_gate_up", PLANNER_PART_ACT, AGOQ_ROLE_MLP_GATE_UP, 0, SPLIT_TP, PLANNER_RECOMPUTE_GATE_UP, 2, 1,
     .f = 1},
    {"attn_out", PLANNER_PART_LINEAR, AGOQ_ROLE_ATTN_OUT, 0, SPLIT_TP, 0, 1, .q = 1},
    {"attn_qkv", PLANNER_PART_ATTENTION, AGOQ_ROLE_ATTN_QKV, 0, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .q = 1,
     .kv = 2},
    {"qk_norm_in", PLANNER_PART_ATTENTION, AGOQ_ROLE_QK_NORM_IN, 0, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1,
     .q = 1, .kv = 1, .only = ONLY_QK_NORM},
    {"attn_lse", PLANNER_PART_ATTENTION, NONE, 32, SPLIT_TP, PLANNER_RECOMPUTE_CORE, 1, .a = 1},
    {0}};

static const row fused_14_plan[] = {
    {"attn_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_ATTN_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_MLP_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_gate_up", PLANNER_PART_ACT, AGOQ_ROLE_MLP_GATE_UP, 0, SPLIT_TP, PLANNER_RECOMPUTE_GATE_UP, 2, 1,
     .f = 1},
    {"attn_out", PLANNER_PART_LINEAR, NONE, 16, SPLIT_TP, 0, 1, .q = 1},
    {"attn_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .q = 1, .kv = 2},
    {"qk_norm_in", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .q = 1, .kv = 1,
     .only = ONLY_QK_NORM},
    {"attn_lse", PLANNER_PART_ATTENTION, NONE, 32, SPLIT_TP, PLANNER_RECOMPUTE_CORE, 1, .a = 1},
    {0}};

static const row fused_16[] = {
    {"attn_norm_in", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
    {"attn_rstd", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .one = 1},
    {"qkv_in", PLANNER_PART_QKV, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"attn_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .q = 1, .kv = 2},
    {"qk_norm_in", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .q = 1, .kv = 1,
     .only = ONLY_QK_NORM},
    {"attn_lse", PLANNER_PART_ATTENTION, NONE, 32, SPLIT_TP, PLANNER_RECOMPUTE_CORE, 1, .a = 1},
    {"attn_out", PLANNER_PART_LINEAR, NONE, 16, SPLIT_TP, 0, 1, .q = 1},
    {"mlp_norm_in", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_rstd", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .one = 1},
    {"ffn1_in", PLANNER_PART_FFN1, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"mlp_gate_up", PLANNER_PART_ACT, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_GATE_UP, 2, 1, .f = 1},
    {"ffn2_in", PLANNER_PART_FFN2, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_ACT | PLANNER_RECOMPUTE_GATE_UP, 1,
     .f = 1},
    {0}};

static const row hf_eager[] = {
    {"attn_norm_in", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .h = 1},
    {"attn_rstd", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .one = 1},
    {"attn_norm_rows", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"qkv_in", PLANNER_PART_QKV, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"qk_norm_in", PLANNER_PART_ATTENTION, NONE, 32, SPLIT_TP, 0, 1, .q = 1, .kv = 1, .only = ONLY_QK_NORM},
    {"qk_norm_rows", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, 0, 1, .q = 1, .kv = 1, .only = ONLY_QK_NORM},
    {"attn_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .q = 1, .kv = 2},
    {"attn_lse", PLANNER_PART_ATTENTION, NONE, 32, SPLIT_TP, PLANNER_RECOMPUTE_CORE, 1, .a = 1},
    {"attn_out", PLANNER_PART_LINEAR, NONE, 16, SPLIT_TP, 0, 1, .q = 1},
    {"mlp_norm_in", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_rstd", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .one = 1},
    {"mlp_norm_rows", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"ffn1_in", PLANNER_PART_FFN1, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"mlp_gate_up", PLANNER_PART_ACT, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_GATE_UP, 2, 1, .f = 1},
    {"mlp_silu", PLANNER_PART_ACT, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_ACT | PLANNER_RECOMPUTE_GATE_UP, 1,
     1, .f = 1},
    {"ffn2_in", PLANNER_PART_FFN2, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_ACT | PLANNER_RECOMPUTE_GATE_UP, 1,
     .f = 1},
    {0}};

/* 34 + 5 a s / h bytes per h of hidden where f = 4 h. Scores: softmax in and out in 16 bits, a mask byte. */
static const row megatron[] = {
    {"attn_norm_in", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
    {"qkv_in", PLANNER_PART_QKV, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"attn_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_QKV, 1, .h = 3},
    {"attn_scores", PLANNER_PART_ATTENTION, NONE, 40, SPLIT_TP, PLANNER_RECOMPUTE_CORE, 1, .scores = 1},
    {"attn_out", PLANNER_PART_LINEAR, NONE, 16, SPLIT_TP, 0, 1, .h = 1},
    {"attn_mask", PLANNER_PART_LINEAR, NONE, 8, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_norm_in", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
    {"ffn1_in", PLANNER_PART_FFN1, NONE, 16, SPLIT_SP, PLANNER_RECOMPUTE_NORMS, 1, .h = 1},
    {"mlp_gelu_in", PLANNER_PART_ACT, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_GATE_UP, 1, .f = 1},
    {"ffn2_in", PLANNER_PART_FFN2, NONE, 16, SPLIT_TP, PLANNER_RECOMPUTE_ACT | PLANNER_RECOMPUTE_GATE_UP, 1,
     .f = 1},
    {"mlp_mask", PLANNER_PART_FFN2, NONE, 8, SPLIT_SP, 0, 1, .h = 1},
    {0}};

static const row paper_16[] = {{"qkv_in", PLANNER_PART_QKV, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
                               {"attn_rope_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, 0, 1, .h = 5},
                               {"attn_out", PLANNER_PART_LINEAR, NONE, 16, SPLIT_TP, 0, 1, .h = 1},
                               {"norm_in", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 2, .h = 1},
                               {"ffn1_in", PLANNER_PART_FFN1, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
                               {"mlp_gate_up_silu", PLANNER_PART_ACT, NONE, 16, SPLIT_TP, 0, 3, .f = 1},
                               {"ffn2_in", PLANNER_PART_FFN2, NONE, 16, SPLIT_TP, 0, 1, .f = 1},
                               {0}};

static const row paper_coat[] = {{"qkv_in", PLANNER_PART_QKV, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
                                 {"attn_rope_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, 0, 1, .h = 5},
                                 {"attn_out", PLANNER_PART_LINEAR, NONE, 16, SPLIT_TP, 0, 1, .h = 1},
                                 {"norm_in", PLANNER_PART_NORMS, NONE, 8, SPLIT_SP, 0, 2, .h = 1},
                                 {"ffn1_in", PLANNER_PART_FFN1, NONE, 8, SPLIT_SP, 0, 1, .h = 1},
                                 {"mlp_gate_up_silu", PLANNER_PART_ACT, NONE, 8, SPLIT_TP, 0, 3, .f = 1},
                                 {"ffn2_in", PLANNER_PART_FFN2, NONE, 8, SPLIT_TP, 0, 1, .f = 1},
                                 {0}};

/* Norm 1, act 4, RoPE 2, flash attention 3, linear 3.33 units where f = 8/3 h. */
static const row paper_coat_own[] = {{"norm_in", PLANNER_PART_NORMS, NONE, 8, SPLIT_SP, 0, 2, .h = 1},
                                     {"mlp_gate_up_silu", PLANNER_PART_ACT, NONE, 8, SPLIT_TP, 0, 3, .f = 1},
                                     {"attn_rope", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, 0, 1, .h = 2},
                                     {"attn_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, 0, 1, .h = 3},
                                     {"linear_in", PLANNER_PART_LINEAR, NONE, 8, SPLIT_SP, 0, 1, .h = 4},
                                     {"ffn2_in", PLANNER_PART_FFN2, NONE, 8, SPLIT_TP, 0, 1, .f = 1},
                                     {0}};

static const row paper_agoq[] = {
    {"attn_rope_qkv", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_TP, 0, 1, .h = 5},
    {"attn_out", PLANNER_PART_LINEAR, AGOQ_ROLE_ATTN_OUT, 0, SPLIT_TP, 0, 1, .h = 1},
    {"attn_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_ATTN_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_MLP_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1},
    {"mlp_gate_up", PLANNER_PART_ACT, AGOQ_ROLE_MLP_GATE_UP, 0, SPLIT_TP, 0, 2, 1, .f = 1},
    {0}};

/* After the last layer. */
static const row end_plan[] = {
    {"final_norm_in", PLANNER_PART_NORMS, AGOQ_ROLE_FINAL_NORM_IN, 0, SPLIT_SP, 0, 1, .h = 1}, {0}};
static const row end_16[] = {{"final_norm_in", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
                             {"final_rstd", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .one = 1},
                             {"head_in", PLANNER_PART_LINEAR, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
                             {0}};
static const row end_hf[] = {
    {"final_norm_in", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .h = 1},
    {"final_rstd", PLANNER_PART_NORMS, NONE, 32, SPLIT_SP, 0, 1, .one = 1},
    {"final_norm_rows", PLANNER_PART_NORMS, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
    {"head_in", PLANNER_PART_LINEAR, NONE, 16, SPLIT_SP, 0, 1, .h = 1},
    {"rope_cos_sin", PLANNER_PART_ATTENTION, NONE, 16, SPLIT_SP, 0, 2, .one = 1, .only = ONLY_ROPE_TABLE},
    {0}};

static const row *table_of(const planner_run *r, int last) {
    const int packed = r->storage == PLANNER_STORE_PLAN;
    switch (r->accounting) {
    case PLANNER_ACCOUNT_FUSED:
        return packed ? last ? end_plan : fused_plan : last ? end_16 : fused_16;
    case PLANNER_ACCOUNT_FUSED_14:
        return packed ? last ? end_plan : fused_14_plan : last ? end_16 : fused_16;
    case PLANNER_ACCOUNT_HF_EAGER:
        return last ? end_hf : hf_eager;
    case PLANNER_ACCOUNT_MEGATRON:
        return last ? end_16 : megatron;
    default:
        if (last) return packed ? end_plan : end_16;
        return packed                             ? paper_agoq
               : r->storage == PLANNER_STORE_16   ? paper_16
               : r->storage == PLANNER_STORE_COAT ? paper_coat
                                                  : paper_coat_own;
    }
}

void planner_model_tensors(const planner_model *m, uint64_t tokens, int last,
                           planner_tensor tensors[PLANNER_MAX_TENSORS], uint32_t *n_tensors) {
    const planner_dims d = planner_model_dims(m);
    uint32_t n = 0;
    for (const row *r = table_of(&m->run, last); r->name; r++) {
        const uint32_t count = r->count - (m->shape.no_gate ? r->gate : 0u);
        if ((r->modules & m->run.recompute_modules) || !count) continue;
        if (r->only == ONLY_QK_NORM && !m->shape.qk_norm) continue;
        const uint64_t h = r->split == SPLIT_TP ? m->shape.hidden / m->run.tp : m->shape.hidden;
        uint64_t cols = r->h * h + r->q * d.q + r->kv * d.kv + r->f * d.ffn + r->a * d.heads + r->one;
        cols = planner_add(cols, r->scores * planner_mul(d.heads, m->run.seq));
        if (r->only == ONLY_ROPE_TABLE) cols = d.head_dim;
        /* The table of angles is one for all sequences of the micro-batch. */
        const uint64_t of = r->only == ONLY_ROPE_TABLE ? tokens / m->run.microbatch : tokens;
        tensors[n++] = (planner_tensor){.name = r->name,
                                        .part = r->part,
                                        .role = r->role,
                                        .bits = r->bits,
                                        .count = count,
                                        .rows = r->split == SPLIT_SP ? planner_model_spread(m, of) : of,
                                        .cols = cols};
    }
    *n_tensors = n;
}

/* Scale elements of a block, 16 bits each; 0: no scales are counted. */
static uint64_t scale_block(planner_accounting accounting) {
    return accounting == PLANNER_ACCOUNT_PAPER ? 0 : 128;
}

uint64_t planner_model_tensor_bytes(const planner_model *m, const planner_tensor *t, int bits) {
    const planner_accounting accounting = m->run.accounting;
    uint64_t width = planner_ceil_div(planner_mul(t->cols, t->bits), 8);
    if (t->role >= 0 && accounting == PLANNER_ACCOUNT_FUSED) {
        const planner_item item = {.count = t->count,
                                   .rows = t->rows > INT64_MAX ? INT64_MAX : (int64_t)t->rows,
                                   .cols = t->cols > INT64_MAX ? INT64_MAX : (int64_t)t->cols,
                                   .widths = planner_model_widths(m, t->role)};
        return planner_item_bytes(&item, planner_nearest_bits(&item, bits), m->run.alloc_round_bytes);
    }
    if (t->role >= 0) {
        const uint64_t block = bits == 16 ? 0 : scale_block(accounting);
        width = planner_ceil_div(planner_mul(t->cols, (uint64_t)bits), 8);
        if (block) width = planner_add(width, 2 * planner_ceil_div(t->cols, block));
    }
    return planner_mul(t->count, planner_model_round(m, planner_mul(t->rows, width)));
}

uint64_t planner_model_layer_bytes(const planner_model *m, uint64_t tokens, int part, int bits) {
    planner_tensor tensors[PLANNER_MAX_TENSORS];
    uint32_t n;
    uint64_t sum = 0;
    planner_model_tensors(m, tokens, 0, tensors, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (part < 0 || tensors[i].part == part)
            sum = planner_add(sum, planner_model_tensor_bytes(m, &tensors[i], bits));
    }
    return sum;
}

uint64_t planner_model_input_bytes(const planner_model *m, uint64_t tokens) {
    return planner_model_round(m, planner_mul(planner_model_spread(m, tokens), 2ull * m->shape.hidden));
}

static const char *const names[PLANNER_N_ACCOUNTINGS] = {"fused",    "fused-1.4", "hf-eager",
                                                         "megatron", "paper",     "paper-scales"};

const char *planner_accounting_name(planner_accounting accounting) {
    return (unsigned)accounting < PLANNER_N_ACCOUNTINGS ? names[accounting] : "?";
}

int planner_accounting_from_name(const char *name) {
    for (int i = 0; i < PLANNER_N_ACCOUNTINGS; i++) {
        if (strcmp(name, names[i]) == 0) return i;
    }
    return -1;
}
