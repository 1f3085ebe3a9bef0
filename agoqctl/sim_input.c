/* See sim_input.h. Flags win over files; files over defaults. Numbers are strict everywhere, words are looked
 * up, and a setting given twice is an error: a wrong simulation would be believed. */
#include "agoqctl/sim_input.h"

#include <stdarg.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqd/yaml.h"
#include "common/units.h"
#include "planner/schedule.h"

typedef enum kind { KIND_COUNT, KIND_BYTES, KIND_PERCENT, KIND_WORD, KIND_SWITCH } kind;
typedef enum place { PLACE_MODEL = 1, PLACE_CLUSTER = 2, PLACE_FLAG = 4 } place;

#define AT(field) offsetof(sim_input, field)

typedef struct setting {
    const char *key; /* in a file; the flag is --key with '-' for '_' */
    kind type;
    int places;
    size_t at;
    const char *words[4]; /* KIND_WORD */
    int values[4];
    const char *help;
} setting;

#define MODEL_AND_FLAG   (PLACE_MODEL | PLACE_FLAG)
#define CLUSTER_AND_FLAG (PLACE_CLUSTER | PLACE_FLAG)

static const setting settings[] = {
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
#define N_SETTINGS (sizeof settings / sizeof *settings)

const char *sim_schedule_name(agoq_schedule schedule) {
    return planner_schedule_name(schedule);
}

static int fail(char *error, size_t error_size, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static int fail(char *error, size_t error_size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(error, error_size, "simulate", 0, 0, format, args);
    va_end(args);
    return CTL_USAGE;
}

/* 0; -1: text is no value of this setting. */
static int set_value(const setting *s, const char *text, sim_input *in) {
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

static void describe(const setting *s, char text[64]) {
    static const char *const what[] = {"a whole number", "a size such as 80GiB", "a percentage such as 10%",
                                       "", "true or false"};
    if (s->type != KIND_WORD) {
        snprintf(text, 64, "%s", what[s->type]);
        return;
    }
    snprintf(text, 64, "%s%s%s%s%s", s->words[0], s->words[1] ? ", " : "", s->words[1] ? s->words[1] : "",
             s->words[2] ? ", " : "", s->words[2] ? s->words[2] : "");
}

static const setting *find_key(const char *key, int where) {
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if ((settings[i].places & where) && strcmp(settings[i].key, key) == 0) return &settings[i];
    }
    return NULL;
}

static int read_map(const yaml_node *root, place where, sim_input *in, uint64_t *given, char *error,
                    size_t error_size) {
    const char *keys[N_SETTINGS + 2];
    size_t n = 0;
    keys[n++] = "name";
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (settings[i].places & (int)where) keys[n++] = settings[i].key;
    }
    keys[n] = NULL;
    if (yaml_known_keys(root, keys, error, error_size) != AGOQ_OK) return CTL_USAGE;
    for (const yaml_node *child = root->child; child; child = child->next) {
        if (yaml_expect(child, YAML_SCALAR, child->key, error, error_size) != AGOQ_OK) return CTL_USAGE;
        if (strcmp(child->key, "name") == 0) {
            if (where == PLACE_MODEL) snprintf(in->name, sizeof in->name, "%s", child->text);
            continue;
        }
        const setting *s = find_key(child->key, where);
        char expected[64];
        describe(s, expected);
        if (set_value(s, child->text, in) < 0) {
            (void)yaml_fail(child, error, error_size, "%s: '%.40s' is not %s", s->key, child->text, expected);
            return CTL_USAGE;
        }
        *given |= 1ull << (s - settings);
    }
    return CTL_OK;
}

static int read_file(const char *path, place where, sim_input *in, uint64_t *given, char *error,
                     size_t error_size) {
    yaml_doc *doc = NULL;
    const agoq_status status = yaml_load(path, &doc, error, error_size);
    if (status != AGOQ_OK) return status == AGOQ_E_FORMAT || status == AGOQ_E_LIMIT ? CTL_USAGE : CTL_FAILED;
    const int code = read_map(yaml_root(doc), where, in, given, error, error_size);
    yaml_unload(&doc);
    return code;
}

/* "--kv-heads" to the setting kv_heads; NULL if there is none. */
static const setting *find_flag(const char *flag) {
    char key[32];
    size_t n = 0;
    if (strncmp(flag, "--", 2) != 0) return NULL;
    for (flag += 2; *flag && n + 1 < sizeof key; flag++) {
        if (*flag == '_') return NULL;
        key[n++] = *flag == '-' ? '_' : *flag;
    }
    key[n] = 0;
    return *flag ? NULL : find_key(key, PLACE_FLAG);
}

static int unknown_flag(const char *flag, char *error, size_t error_size) {
    char names[N_SETTINGS + 4][32];
    const char *all[N_SETTINGS + 5] = {"--model", "--cluster", "--json", "--help"};
    size_t n = 4;
    for (size_t i = 0; i < N_SETTINGS; i++) {
        if (!(settings[i].places & PLACE_FLAG)) continue;
        snprintf(names[n], sizeof names[n], "--%s", settings[i].key);
        for (char *c = names[n]; *c; c++) *c = *c == '_' ? '-' : *c;
        all[n] = names[n];
        n++;
    }
    all[n] = NULL;
    const char *nearest = yaml_nearest(flag, all);
    if (nearest) return fail(error, error_size, "unknown option '%.40s'; did you mean %s?", flag, nearest);
    return fail(error, error_size, "unknown option '%.40s' (see agoqctl simulate --help)", flag);
}

/* One pass over the line. With `files` it only loads the files, without it only takes the flags. */
static int read_line(int argc, char **argv, int files, sim_input *in, uint64_t *given, char *error,
                     size_t error_size) {
    int loaded = 0;
    uint64_t seen = 0;
    for (int i = 1; i < argc; i++) {
        const char *flag = argv[i];
        const int where = strcmp(flag, "--model") == 0     ? PLACE_MODEL
                          : strcmp(flag, "--cluster") == 0 ? PLACE_CLUSTER
                                                           : 0;
        if (strcmp(flag, "--json") == 0) {
            in->json = 1;
            continue;
        }
        if (strcmp(flag, "--help") == 0) {
            in->help = 1;
            continue;
        }
        const setting *s = where ? NULL : find_flag(flag);
        if (!where && !s) return unknown_flag(flag, error, error_size);
        const int is_switch = s && s->type == KIND_SWITCH;
        if (!is_switch && ++i >= argc) return fail(error, error_size, "%s needs a value", flag);
        if (where) {
            if (loaded & where) return fail(error, error_size, "%s is given twice", flag);
            loaded |= where;
            if (!files) continue;
            const int code = read_file(argv[i], (place)where, in, given, error, error_size);
            if (code != CTL_OK) return code;
            continue;
        }
        if (seen >> (s - settings) & 1) return fail(error, error_size, "%s is given twice", flag);
        seen |= 1ull << (s - settings);
        if (files) continue;
        char expected[64];
        describe(s, expected);
        if (set_value(s, is_switch ? "true" : argv[i], in) < 0)
            return fail(error, error_size, "%s: '%.40s' is not %s", flag, argv[i], expected);
        *given |= 1ull << (s - settings);
    }
    return CTL_OK;
}

static int is_given(uint64_t given, const char *key) {
    return (int)(given >> (find_key(key, PLACE_MODEL | PLACE_CLUSTER | PLACE_FLAG) - settings) & 1);
}

static int fill_defaults(sim_input *in, uint64_t given, char *error, size_t error_size) {
    static const char *const needed[] = {"hidden", "ffn", "layers", "heads", "vocab", "seq"};
    planner_model *m = &in->model;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (!is_given(given, needed[i]))
            return fail(error, error_size, "--%s is missing: give a --model FILE or all of the shape",
                        needed[i]);
    }
    if (!is_given(given, "kv_heads")) m->shape.kv_heads = m->shape.heads;
    if (!is_given(given, "microbatches"))
        m->run.microbatches = m->run.pp < UINT32_MAX / 2 ? 2 * m->run.pp : m->run.pp;
    if (!is_given(given, "chunks")) m->run.chunks = m->run.schedule == AGOQ_SCHEDULE_INTERLEAVED ? 2 : 1;
    if (is_given(given, "budget") && !m->run.budget_bytes)
        return fail(error, error_size, "--budget: 0 is no budget");
    if (!is_given(given, "budget") && m->run.mode == PLANNER_BUDGET)
        return fail(error, error_size, "--budget SIZE or --cluster FILE is missing");
    if (is_given(given, "nodes") != is_given(given, "gpus_per_node"))
        return fail(error, error_size, "the cluster needs both nodes and gpus_per_node");
    const uint64_t gpus = (uint64_t)in->nodes * in->gpus_per_node, each = (uint64_t)m->run.pp * m->run.tp;
    if (is_given(given, "nodes")) {
        if (!gpus) return fail(error, error_size, "the cluster has no GPU");
        if (!is_given(given, "dp") && each && gpus % each == 0 && gpus / each <= UINT32_MAX)
            m->run.dp = (uint32_t)(gpus / each);
        if (!is_given(given, "dp") && (!each || gpus % each))
            return fail(error, error_size, "pp * tp does not divide the cluster's %llu GPUs: give --dp",
                        (unsigned long long)gpus);
        if (each && m->run.dp > gpus / each)
            return fail(error, error_size, "pp * tp * dp is more than the cluster's %llu GPUs",
                        (unsigned long long)gpus);
    }
    char wrong[256];
    return planner_model_check(m, wrong, sizeof wrong) != AGOQ_OK ? fail(error, error_size, "%s", wrong)
                                                                  : CTL_OK;
}

int sim_input_read(int argc, char **argv, sim_input *in, char *error, size_t error_size) {
    uint64_t given = 0;
    *in = (sim_input){.model = {.run = {.microbatch = 1,
                                        .pp = 1,
                                        .tp = 1,
                                        .dp = 1,
                                        .chunks = 1,
                                        .grad_bits = 8,
                                        .qkv_bits = 16,
                                        .schedule = AGOQ_SCHEDULE_1F1B,
                                        .margin_ppm = 100000,
                                        .budget_bytes = PLANNER_NO_BUDGET}}};
    int code = read_line(argc, argv, 1, in, &given, error, error_size);
    if (code == CTL_OK) code = read_line(argc, argv, 0, in, &given, error, error_size);
    if (code != CTL_OK || in->help) return code;
    return fill_defaults(in, given, error, error_size);
}

void sim_input_help(FILE *out) {
    fputs("usage: agoqctl simulate --model FILE --cluster FILE [options]\n\n"
          "Will this model fit on that cluster? The daemon's planner on a described model; needs no daemon "
          "and no GPU.\n"
          "Static bytes and workspace are estimates; a running job is planned from what its ranks report.\n"
          "Exit status: 0 it fits, 5 it does not (the levers say what would help), 2 wrong usage.\n\n"
          "  --model FILE           shape, as in config/models/llama3-8b.yaml\n"
          "  --cluster FILE         machine, as in config/clusters/h100-80.yaml\n"
          "  --json                 JSON on stdout\n",
          out);
    for (size_t i = 0; i < N_SETTINGS; i++) {
        const setting *s = &settings[i];
        char flag[128], words[64];
        if (!(s->places & PLACE_FLAG)) continue;
        describe(s, words);
        for (char *c = words; *c; c++) *c = *c == ',' ? '|' : *c;
        size_t n = 0;
        for (const char *c = words; *c; c++) { /* "a| b" to "a|b" */
            if (*c != ' ' || s->type != KIND_WORD) words[n++] = *c;
        }
        words[n] = 0;
        snprintf(flag, sizeof flag, "--%s %s", s->key,
                 s->type == KIND_SWITCH    ? ""
                 : s->type == KIND_COUNT   ? "N"
                 : s->type == KIND_BYTES   ? "SIZE"
                 : s->type == KIND_PERCENT ? "P%"
                                           : words);
        for (char *c = flag; *c; c++) *c = *c == '_' ? '-' : *c;
        fprintf(out, "  %-22s %s\n", flag, s->help);
    }
}
