/* See sim_settings.h. Numbers are strict everywhere and words are looked up. The trade-off: a field is named
 * by its offset, so the table's type column must match it; enums and switches are ints, counts 32 bits,
 * sizes 64. */
#include "agoqctl/sim_settings.h"

#include <string.h>

#include "common/units.h"

#define AT(field) offsetof(sim_input, field)

#define MODEL_AND_FLAG   (PLACE_MODEL | PLACE_FLAG)
#define CLUSTER_AND_FLAG (PLACE_CLUSTER | PLACE_FLAG)

const sim_setting sim_settings[] = {
    {"hidden", KIND_COUNT, MODEL_AND_FLAG, AT(model.shape.hidden), {0}, {0}, "width of the model"},
    {"ffn", KIND_COUNT, MODEL_AND_FLAG, AT(model.shape.ffn), {0}, {0}, "width of the feed-forward layer"},
    {"layers", KIND_COUNT, MODEL_AND_FLAG, AT(model.shape.layers), {0}, {0}, "decoder layers"},
    {"heads", KIND_COUNT, MODEL_AND_FLAG, AT(model.shape.heads), {0}, {0}, "attention heads"},
    {"kv_heads",
     KIND_COUNT,
     MODEL_AND_FLAG,
     AT(model.shape.kv_heads),
     {0},
     {0},
     "key/value heads (default: heads)"},
    {"vocab", KIND_COUNT, MODEL_AND_FLAG, AT(model.shape.vocab), {0}, {0}, "vocabulary"},
    {"head_dim",
     KIND_COUNT,
     MODEL_AND_FLAG,
     AT(model.shape.head_dim),
     {0},
     {0},
     "width of a head (default: hidden / heads)"},
    {"bare_norms",
     KIND_SWITCH,
     MODEL_AND_FLAG,
     AT(model.shape.bare_norms),
     {0},
     {0},
     "norms have no weights"},
    {"qk_norm", KIND_SWITCH, MODEL_AND_FLAG, AT(model.shape.qk_norm), {0}, {0}, "Q and K are normalised"},
    {"tied", KIND_SWITCH, MODEL_AND_FLAG, AT(model.shape.tied), {0}, {0}, "embedding and head share weights"},
    {"seq", KIND_COUNT, MODEL_AND_FLAG, AT(model.run.seq), {0}, {0}, "tokens of a sequence"},
    {"mbs",
     KIND_COUNT,
     PLACE_FLAG,
     AT(model.run.microbatch),
     {0},
     {0},
     "sequences of a micro-batch (default 1)"},
    {"pp", KIND_COUNT, PLACE_FLAG, AT(model.run.pp), {0}, {0}, "pipeline stages (default 1)"},
    {"tp", KIND_COUNT, PLACE_FLAG, AT(model.run.tp), {0}, {0}, "tensor-parallel ranks (default 1)"},
    {"dp",
     KIND_COUNT,
     PLACE_FLAG,
     AT(model.run.dp),
     {0},
     {0},
     "data-parallel ranks (default: the cluster / (pp tp), or 1)"},
    {"sp",
     KIND_SWITCH,
     PLACE_FLAG,
     AT(model.run.sequence_parallel),
     {0},
     {0},
     "sequence parallelism with tp"},
    {"schedule",
     KIND_WORD,
     PLACE_FLAG,
     AT(model.run.schedule),
     {"gpipe", "1f1b", "interleaved"},
     {AGOQ_SCHEDULE_GPIPE, AGOQ_SCHEDULE_1F1B, AGOQ_SCHEDULE_INTERLEAVED},
     "default 1f1b"},
    {"microbatches",
     KIND_COUNT,
     PLACE_FLAG,
     AT(model.run.microbatches),
     {0},
     {0},
     "per step and replica (default 2 pp)"},
    {"chunks",
     KIND_COUNT,
     PLACE_FLAG,
     AT(model.run.chunks),
     {0},
     {0},
     "model chunks of a rank (default 1; interleaved 2)"},
    {"qkv_bits",
     KIND_WORD,
     PLACE_FLAG,
     AT(model.run.qkv_bits),
     {"16", "8"},
     {16, 8},
     "Q, K, V: 16 (default), or 8 where that is needed"},
    {"mode",
     KIND_WORD,
     PLACE_FLAG,
     AT(model.run.mode),
     {"budget", "equalize"},
     {PLANNER_BUDGET, PLANNER_EQUALIZE},
     "fill each budget (default), or no stage above the fullest one"},
    {"adam", KIND_WORD, PLACE_FLAG, AT(model.run.adam8), {"fp32", "8bit"}, {0, 1}, "moments (default fp32)"},
    {"grads",
     KIND_WORD,
     PLACE_FLAG,
     AT(model.run.grad_bits),
     {"fp8", "bf16", "fp32"},
     {8, 16, 32},
     "main gradients (default fp8)"},
    {"zero1", KIND_SWITCH, PLACE_FLAG, AT(model.run.shard), {0}, {0}, "shard the optimizer over dp"},
    {"budget",
     KIND_BYTES,
     CLUSTER_AND_FLAG,
     AT(model.run.budget_bytes),
     {0},
     {0},
     "of one GPU, such as 80GiB"},
    {"margin",
     KIND_PERCENT,
     CLUSTER_AND_FLAG,
     AT(model.run.margin_ppm),
     {0},
     {0},
     "of the budget, kept free (default 10%)"},
    {"context",
     KIND_BYTES,
     CLUSTER_AND_FLAG,
     AT(model.run.context_bytes),
     {0},
     {0},
     "CUDA context and communicators (default 0B)"},
    {"alloc_round",
     KIND_BYTES,
     CLUSTER_AND_FLAG,
     AT(model.run.alloc_round_bytes),
     {0},
     {0},
     "allocations are rounded up to this (default 0B: exact)"},
    {"nodes", KIND_COUNT, PLACE_CLUSTER, AT(nodes), {0}, {0}, ""},
    {"gpus_per_node", KIND_COUNT, PLACE_CLUSTER, AT(gpus_per_node), {0}, {0}, ""},
};
const size_t sim_n_settings = sizeof sim_settings / sizeof *sim_settings;
_Static_assert(sizeof sim_settings / sizeof *sim_settings <= SIM_MAX_SETTINGS, "a set fits 64 bits");

int sim_setting_set(const sim_setting *s, const char *text, sim_input *in) {
    char *field = (char *)in + s->at;
    uint64_t number;
    uint32_t ppm;
    int value = -1;
    switch (s->type) {
    case KIND_COUNT:
        if (units_parse_uint(text, &number) || number > UINT32_MAX) return -1;
        memcpy(field, &(uint32_t){(uint32_t)number}, sizeof(uint32_t));
        return 0;
    case KIND_BYTES:
        if (units_parse_bytes(text, &number) || number == PLANNER_NO_BUDGET) return -1;
        memcpy(field, &number, sizeof number);
        return 0;
    case KIND_PERCENT:
        if (units_parse_ppm(text, &ppm)) return -1;
        memcpy(field, &ppm, sizeof ppm);
        return 0;
    case KIND_SWITCH:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0) return -1;
        value = text[0] == 't';
        break;
    case KIND_WORD:
        for (int i = 0; i < 4 && s->words[i]; i++) {
            if (strcmp(text, s->words[i]) == 0) value = s->values[i];
        }
        if (value < 0) return -1;
        break;
    }
    memcpy(field, &value, sizeof value); /* enums and switches are ints */
    return 0;
}

void sim_setting_describe(const sim_setting *s, char text[64]) {
    static const char *const what[] = {"a whole number", "a size such as 80GiB", "a percentage such as 10%",
                                       "", "true or false"};
    if (s->type != KIND_WORD) {
        snprintf(text, 64, "%s", what[s->type]);
        return;
    }
    snprintf(text, 64, "%s%s%s%s%s", s->words[0], s->words[1] ? ", " : "", s->words[1] ? s->words[1] : "",
             s->words[2] ? ", " : "", s->words[2] ? s->words[2] : "");
}

const sim_setting *sim_setting_find(const char *key, int where) {
    for (size_t i = 0; i < sim_n_settings; i++) {
        if ((sim_settings[i].places & where) && strcmp(sim_settings[i].key, key) == 0)
            return &sim_settings[i];
    }
    return NULL;
}
