/* See sim_settings.h: the table, and finding in it. The trade-off: a field is named by its offset, so the
 * table's type column must match it; enums and switches are ints, counts 32 bits, sizes 64. */
#include "agoqctl/sim_settings.h"

#include <string.h>

#define AT(field)    offsetof(sim_input, field)
#define RUN(field)   AT(model.run.field)
#define SHAPE(field) AT(model.shape.field)

enum {
    MODEL = PLACE_MODEL | PLACE_FLAG | PLACE_JOB,
    CLUSTER = PLACE_CLUSTER | PLACE_FLAG | PLACE_JOB,
    RUN_ONLY = PLACE_FLAG | PLACE_JOB
};

// clang-format off
const sim_setting sim_settings[] = {
    {"hidden", KIND_COUNT, MODEL, SHAPE(hidden), "width of the model", {0}, {0}},
    {"ffn", KIND_COUNT, MODEL, SHAPE(ffn), "width of the feed-forward layer", {0}, {0}},
    {"layers", KIND_COUNT, MODEL, SHAPE(layers), "decoder layers", {0}, {0}},
    {"heads", KIND_COUNT, MODEL, SHAPE(heads), "attention heads", {0}, {0}},
    {"kv_heads", KIND_COUNT, MODEL, SHAPE(kv_heads), "key/value heads (default: heads)", {0}, {0}},
    {"vocab", KIND_COUNT, MODEL, SHAPE(vocab), "vocabulary", {0}, {0}},
    {"head_dim", KIND_COUNT, MODEL, SHAPE(head_dim), "width of a head (default: hidden / heads)", {0}, {0}},
    {"tied", KIND_SWITCH, MODEL, SHAPE(tied), "embedding and head share weights", {0}, {0}},
    {"bare_norms", KIND_SWITCH, MODEL, SHAPE(bare_norms), "norms have no weights", {0}, {0}},
    {"qk_norm", KIND_SWITCH, MODEL, SHAPE(qk_norm), "Q and K are normalised", {0}, {0}},
    {"no_gate", KIND_SWITCH, MODEL, SHAPE(no_gate), "feed-forward with one up projection (GPT)", {0}, {0}},
    {"seq", KIND_COUNT, MODEL, RUN(seq), "tokens of a sequence", {0}, {0}},
    {"mbs", KIND_COUNT, RUN_ONLY, RUN(microbatch), "sequences of a micro-batch (default 1)", {0}, {0}},
    {"microbatches", KIND_COUNT, RUN_ONLY, RUN(microbatches), "per step and replica (default 2 pp)", {0}, {0}},
    {"pp", KIND_COUNT, RUN_ONLY, RUN(pp), "pipeline stages (default 1)", {0}, {0}},
    {"vpp", KIND_COUNT, RUN_ONLY, RUN(chunks), "model chunks of a rank (default: what the schedule needs; interleaved 2)", {0}, {0}},
    {"tp", KIND_COUNT, RUN_ONLY, RUN(tp), "tensor-parallel ranks (default 1)", {0}, {0}},
    {"sp", KIND_SWITCH, RUN_ONLY, RUN(sequence_parallel), "sequence parallelism with tp", {0}, {0}},
    {"cp", KIND_COUNT, RUN_ONLY, RUN(cp), "context-parallel ranks (default 1)", {0}, {0}},
    {"dp", KIND_COUNT, RUN_ONLY, RUN(dp), "data-parallel ranks (default: the cluster / (pp tp cp), or 1)", {0}, {0}},
    {"zero", KIND_WORD, RUN_ONLY, RUN(shard), "what dp x cp ranks divide (dist: Megatron's distributed optimizer)",
     {"0", "1", "2", "3", "dist"},
     {PLANNER_SHARD_NONE, PLANNER_SHARD_ZERO1, PLANNER_SHARD_ZERO2, PLANNER_SHARD_ZERO3, PLANNER_SHARD_DISTRIBUTED}},
    {"schedule", KIND_SCHEDULE, RUN_ONLY, RUN(schedule), "gpipe, 1f1b (default), interleaved, zb-h1, zb-h2, zb-v, v-half, v-min, dualpipe, dualpipev, or a file of operations", {0}, {0}},
    {"group", KIND_COUNT, RUN_ONLY, RUN(group), "interleaved: micro-batches that pass a chunk in a row (default: pp)", {0}, {0}},
    {"layout", KIND_NUMBERS, RUN_ONLY, AT(layout), "layers of each piece of the model, such as 4,5,5,4 (default: evenly)", {0}, {0}},
    {"observed_live", KIND_NUMBERS, RUN_ONLY, AT(observed), "chunks seen alive at once on each stage; more than the schedule's wins", {0}, {0}},
    {"grads", KIND_WORD, RUN_ONLY, RUN(grad_bits), "main gradients (default fp8)", {"fp8", "bf16", "fp32"}, {8, 16, 32}},
    {"optimizer", KIND_WORD, RUN_ONLY, RUN(adam8), "moments in fp32 (default) or 8 bits", {"adam", "adam8"}, {0, 1}},
    {"weights", KIND_WORD, RUN_ONLY, RUN(weights32), "bf16 with an fp32 master copy (default), or fp32", {"bf16", "fp32"}, {0, 1}},
    {"attn_qkv", KIND_WORD, RUN_ONLY, RUN(qkv_bits), "Q, K, V: 16 bits (default), or 8 where that is needed", {"16", "8"}, {16, 8}},
    {"attn_out16", KIND_SWITCH, RUN_ONLY, RUN(out16), "allow 16 bits for the attention output", {0}, {0}},
    {"recompute", KIND_RECOMPUTE, RUN_ONLY, RUN(recompute_layers),
     "none, full, or a list: N layers of each rank, and modules of the others: norms,core,act,gate-up,qkv", {0}, {0}},
    {"loss_chunks", KIND_COUNT, RUN_ONLY, RUN(loss_chunks), "parts of the cross-entropy (default 1)", {0}, {0}},
    {"mode", KIND_WORD, RUN_ONLY, RUN(mode), "fill each budget (default), or no stage above the fullest one",
     {"budget", "equalize"}, {PLANNER_BUDGET, PLANNER_EQUALIZE}},
    {"objective", KIND_WORD, RUN_ONLY, AT(objective), "least error in all (default), or of the worst stage",
     {"sum", "minimax"}, {PLANNER_SUM, PLANNER_MINIMAX}},
    {"accounting", KIND_WORD, RUN_ONLY, RUN(accounting), "way of counting; all but fused (default) are yardsticks without a plan",
     {"fused", "fused-1.4", "hf-eager", "megatron", "paper", "paper-scales"},
     {PLANNER_ACCOUNT_FUSED, PLANNER_ACCOUNT_FUSED_14, PLANNER_ACCOUNT_HF_EAGER, PLANNER_ACCOUNT_MEGATRON,
      PLANNER_ACCOUNT_PAPER, PLANNER_ACCOUNT_PAPER_SCALES}},
    {"storage", KIND_WORD, RUN_ONLY, RUN(storage), "packed by a plan (default), 16 bits, or the paper's COAT",
     {"plan", "16", "coat", "coat-own"},
     {PLANNER_STORE_PLAN, PLANNER_STORE_16, PLANNER_STORE_COAT, PLANNER_STORE_COAT_OWN}},
    {"account_bits", KIND_COUNT, RUN_ONLY, RUN(account_bits), "width of packed tensors of a yardstick (default 4)", {0}, {0}},
    {"workspace", KIND_WORD, RUN_ONLY, AT(trainer), "static and transient bytes: estimated (default), or those of this project's CPU trainer",
     {"estimate", "agoq-train"}, {0, 1}},
    {"budget", KIND_BYTES, CLUSTER, RUN(budget_bytes), "of one GPU, such as 80GiB", {0}, {0}},
    {"budget_stage", KIND_STAGES, RUN_ONLY, AT(budgets), "of the GPUs of some stages, such as 0=70GiB,3=60GiB", {0}, {0}},
    {"extra_stage", KIND_STAGES, RUN_ONLY, AT(extras), "bytes that something else holds on the GPUs of some stages", {0}, {0}},
    {"margin", KIND_PERCENT, CLUSTER, RUN(margin_ppm), "of the budget, kept free (default 10%)", {0}, {0}},
    {"context", KIND_BYTES, CLUSTER, RUN(context_bytes), "CUDA context, communicators and the like (default 0B)", {0}, {0}},
    {"alloc_round", KIND_BYTES, CLUSTER, RUN(alloc_round_bytes), "allocations are rounded up to this (default 0B: exact)", {0}, {0}},
    {"caching_allocator", KIND_SWITCH, CLUSTER, AT(caching), "or rounded as PyTorch's allocator does", {0}, {0}},
    {"nodes", KIND_COUNT, PLACE_CLUSTER | PLACE_JOB, AT(nodes), "", {0}, {0}},
    {"gpus_per_node", KIND_COUNT, PLACE_CLUSTER | PLACE_JOB, AT(gpus_per_node), "", {0}, {0}},
    {"compare", KIND_SWITCH, RUN_ONLY, AT(compare), "AGoQ's rule, uniform widths and both modes side by side", {0}, {0}},
    {"max", KIND_WORD, RUN_ONLY, AT(max), "the largest that fits",
     {"seq", "mbs", "layers"}, {SIM_MAX_SEQ, SIM_MAX_MBS, SIM_MAX_LAYERS}},
};
// clang-format on
const size_t sim_n_settings = sizeof sim_settings / sizeof *sim_settings;
_Static_assert(sizeof sim_settings / sizeof *sim_settings <= SIM_MAX_SETTINGS, "a set fits 64 bits");

const sim_setting *sim_setting_find(const char *key, int where) {
    for (size_t i = 0; i < sim_n_settings; i++) {
        if ((sim_settings[i].places & where) && strcmp(sim_settings[i].key, key) == 0)
            return &sim_settings[i];
    }
    return NULL;
}

void sim_setting_flag(const sim_setting *s, char text[40]) {
    snprintf(text, 40, "--%s", s->key);
    for (char *c = text; *c; c++) *c = *c == '_' ? '-' : *c;
}

void sim_setting_value(const sim_setting *s, char text[96]) {
    static const char *const forms[] = {[KIND_COUNT] = "N",        [KIND_BYTES] = "SIZE",
                                        [KIND_PERCENT] = "P%",     [KIND_SWITCH] = "",
                                        [KIND_WORD] = "",          [KIND_SCHEDULE] = "NAME|FILE",
                                        [KIND_RECOMPUTE] = "WHAT", [KIND_STAGES] = "N=SIZE,..",
                                        [KIND_NUMBERS] = "N,N,.."};
    size_t n = (size_t)snprintf(text, 96, "%s", forms[s->type]);
    for (int i = 0; i < 8 && s->words[i]; i++)
        n += (size_t)snprintf(text + n, 96 - n, "%s%s", i ? "|" : "", s->words[i]);
}
