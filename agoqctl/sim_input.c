/* See sim_input.h. Flags win over files; files over defaults. Numbers are strict everywhere, words are looked
 * up, and a setting given twice is an error: a wrong simulation would be believed. */
#include "agoqctl/sim_input.h"

#include <stdarg.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqctl/sim_hf.h"
#include "agoqctl/sim_settings.h"
#include "agoqd/yaml.h"
#include "planner/schedule.h"

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

static int read_map(const yaml_node *root, sim_place where, sim_input *in, uint64_t *given, char *error,
                    size_t error_size) {
    const char *keys[SIM_MAX_SETTINGS + 2];
    size_t n = 0;
    keys[n++] = "name";
    for (size_t i = 0; i < sim_n_settings; i++) {
        if (sim_settings[i].places & (int)where) keys[n++] = sim_settings[i].key;
    }
    keys[n] = NULL;
    if (yaml_known_keys(root, keys, error, error_size) != AGOQ_OK) return CTL_USAGE;
    for (const yaml_node *child = root->child; child; child = child->next) {
        if (yaml_expect(child, YAML_SCALAR, child->key, error, error_size) != AGOQ_OK) return CTL_USAGE;
        if (strcmp(child->key, "name") == 0) {
            if (where == PLACE_MODEL) snprintf(in->name, sizeof in->name, "%s", child->text);
            continue;
        }
        const sim_setting *s = sim_setting_find(child->key, where);
        char expected[64];
        sim_setting_describe(s, expected);
        if (sim_setting_set(s, child->text, in) < 0) {
            (void)yaml_fail(child, error, error_size, "%s: '%.40s' is not %s", s->key, child->text, expected);
            return CTL_USAGE;
        }
        *given |= 1ull << (s - sim_settings);
    }
    return CTL_OK;
}

static int ends_in(const char *text, const char *end) {
    const size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

/* A config.json says all of the shape, and the longest sequence, as a model file here says seq. */
static int read_hf(const char *path, sim_input *in, uint64_t *given, char *error, size_t error_size) {
    static const char *const keys[] = {"hidden", "ffn", "layers", "heads", "kv_heads", "vocab", "tied"};
    const agoq_status status = sim_hf_load(path, &in->model.shape, in->name, error, error_size);
    if (status != AGOQ_OK) return status == AGOQ_E_FORMAT || status == AGOQ_E_LIMIT ? CTL_USAGE : CTL_FAILED;
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++)
        *given |= 1ull << (sim_setting_find(keys[i], PLACE_MODEL) - sim_settings);
    if (in->model.shape.max_seq) {
        in->model.run.seq = in->model.shape.max_seq;
        *given |= 1ull << (sim_setting_find("seq", PLACE_MODEL) - sim_settings);
    }
    return CTL_OK;
}

static int read_file(const char *path, sim_place where, sim_input *in, uint64_t *given, char *error,
                     size_t error_size) {
    yaml_doc *doc = NULL;
    if (where == PLACE_MODEL && ends_in(path, ".json")) return read_hf(path, in, given, error, error_size);
    const agoq_status status = yaml_load(path, &doc, error, error_size);
    if (status != AGOQ_OK) return status == AGOQ_E_FORMAT || status == AGOQ_E_LIMIT ? CTL_USAGE : CTL_FAILED;
    const int code = read_map(yaml_root(doc), where, in, given, error, error_size);
    yaml_unload(&doc);
    return code;
}

/* "--kv-heads" to the setting kv_heads; NULL if there is none. */
static const sim_setting *find_flag(const char *flag) {
    char key[32];
    size_t n = 0;
    if (strncmp(flag, "--", 2) != 0) return NULL;
    for (flag += 2; *flag && n + 1 < sizeof key; flag++) {
        if (*flag == '_') return NULL;
        key[n++] = *flag == '-' ? '_' : *flag;
    }
    key[n] = 0;
    return *flag ? NULL : sim_setting_find(key, PLACE_FLAG);
}

static int unknown_flag(const char *flag, char *error, size_t error_size) {
    char names[SIM_MAX_SETTINGS + 4][32];
    const char *all[SIM_MAX_SETTINGS + 5] = {"--model", "--cluster", "--json", "--help"};
    size_t n = 4;
    for (size_t i = 0; i < sim_n_settings; i++) {
        if (!(sim_settings[i].places & PLACE_FLAG)) continue;
        snprintf(names[n], sizeof names[n], "--%s", sim_settings[i].key);
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
        const sim_setting *s = where ? NULL : find_flag(flag);
        if (!where && !s) return unknown_flag(flag, error, error_size);
        const int is_switch = s && s->type == KIND_SWITCH;
        if (!is_switch && ++i >= argc) return fail(error, error_size, "%s needs a value", flag);
        if (where) {
            if (loaded & where) return fail(error, error_size, "%s is given twice", flag);
            loaded |= where;
            if (!files) continue;
            const int code = read_file(argv[i], (sim_place)where, in, given, error, error_size);
            if (code != CTL_OK) return code;
            continue;
        }
        if (seen >> (s - sim_settings) & 1) return fail(error, error_size, "%s is given twice", flag);
        seen |= 1ull << (s - sim_settings);
        if (files) continue;
        char expected[64];
        sim_setting_describe(s, expected);
        if (sim_setting_set(s, is_switch ? "true" : argv[i], in) < 0)
            return fail(error, error_size, "%s: '%.40s' is not %s", flag, argv[i], expected);
        *given |= 1ull << (s - sim_settings);
    }
    return CTL_OK;
}

static int is_given(uint64_t given, const char *key) {
    return (int)(given >> (sim_setting_find(key, PLACE_MODEL | PLACE_CLUSTER | PLACE_FLAG) - sim_settings) &
                 1);
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
    fputs(
        "usage: agoqctl simulate --model FILE --cluster FILE [options]\n\n"
        "Will this model fit on that cluster? The daemon's planner on a described model; needs no daemon "
        "and no GPU.\n"
        "Static bytes and workspace are estimates; a running job is planned from what its ranks report.\n"
        "Exit status: 0 it fits, 5 it does not (the levers say what would help), 2 wrong usage.\n\n"
        "  --model FILE           shape, as in config/models/llama3-8b.yaml, or a Hugging Face config.json\n"
        "  --cluster FILE         machine, as in config/clusters/h100-80.yaml\n"
        "  --json                 JSON on stdout\n",
        out);
    for (size_t i = 0; i < sim_n_settings; i++) {
        const sim_setting *s = &sim_settings[i];
        char flag[128], words[64];
        if (!(s->places & PLACE_FLAG)) continue;
        sim_setting_describe(s, words);
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
