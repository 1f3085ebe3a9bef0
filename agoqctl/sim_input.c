/* See sim_input.h. Numbers are strict everywhere, words are looked up, and a setting given twice is an error:
 * a wrong simulation would be believed. The line is walked twice: first for the files, which flags override.
 */
#include "agoqctl/sim_input.h"

#include <stdarg.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqctl/sim_answer.h"
#include "agoqctl/sim_file.h"
#include "common/words.h"

const char *sim_schedule_name(const sim_input *in) {
    return in->has_ops ? "list" : planner_schedule_name(in->model.run.schedule);
}

int sim_fail(char *error, size_t error_size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(error, error_size, "simulate", 0, 0, format, args);
    va_end(args);
    return CTL_USAGE;
}

/* "--kv-heads" to the setting kv_heads; NULL if there is none. */
static const sim_setting *find_flag(const char *flag, size_t length) {
    char key[32];
    size_t n = 0;
    if (length < 3 || length - 2 >= sizeof key || strncmp(flag, "--", 2) != 0) return NULL;
    for (size_t i = 2; i < length; i++) {
        if (flag[i] == '_') return NULL;
        key[n++] = flag[i] == '-' ? '_' : flag[i];
    }
    key[n] = 0;
    return sim_setting_find(key, PLACE_FLAG);
}

static int unknown_flag(const char *flag, char *error, size_t error_size) {
    char names[SIM_MAX_SETTINGS][40];
    const char *all[SIM_MAX_SETTINGS + 8] = {"--model", "--cluster", "--gpu", "--job",
                                             "--json",  "--help",    "--out"};
    size_t n = 7, k = 0;
    for (size_t i = 0; i < sim_n_settings; i++) {
        if (!(sim_settings[i].places & PLACE_FLAG)) continue;
        sim_setting_flag(&sim_settings[i], names[k]);
        all[n++] = names[k++];
    }
    all[n] = NULL;
    const char *nearest = words_nearest(flag, all);
    if (nearest)
        return sim_fail(error, error_size, "unknown option '%.40s'; did you mean %s?", flag, nearest);
    return sim_fail(error, error_size, "unknown option '%.40s' (see --help)", flag);
}

typedef struct line {
    int argc;
    char **argv;
    int at;
    sim_files files;
    uint64_t given; /* by flags */
    char *error;
    size_t error_size;
} line;

/* The value of the flag at l->at, which may be written behind a '='. NULL: there is none. */
static const char *value_of(line *l) {
    const char *equals = strchr(l->argv[l->at], '=');
    if (equals) return equals + 1;
    return l->at + 1 < l->argc ? l->argv[++l->at] : NULL;
}

static int take_file(line *l, const char *flag, const char **to) {
    if (*to) return sim_fail(l->error, l->error_size, "%s is given twice", flag);
    *to = value_of(l);
    if (!*to) return sim_fail(l->error, l->error_size, "%s needs a value", flag);
    return **to ? CTL_OK : sim_fail(l->error, l->error_size, "%s: the name is empty", flag);
}

static int take_setting(line *l, const sim_setting *s, sim_input *in) {
    char name[40], why[256];
    sim_setting_flag(s, name);
    const char *value = s->type == KIND_SWITCH ? "true" : value_of(l);
    if (s->type == KIND_SWITCH && strchr(l->argv[l->at], '='))
        return sim_fail(l->error, l->error_size, "%s takes no value", name);
    if (!value) return sim_fail(l->error, l->error_size, "%s needs a value", name);
    if ((l->given & sim_setting_bit(s)) && s->type != KIND_STAGES)
        return sim_fail(l->error, l->error_size, "%s is given twice", name);
    if (sim_setting_set(s, value, in, why)) return sim_fail(l->error, l->error_size, "%s: %s", name, why);
    l->given |= sim_setting_bit(s);
    return CTL_OK;
}

/* Takes the flags; files are only noted. */
static int read_line(line *l, sim_input *in) {
    for (l->at = 1; l->at < l->argc; l->at++) {
        const char *flag = l->argv[l->at];
        const size_t length = strcspn(flag, "=");
        const struct {
            const char *name;
            const char **to;
        } files[] = {{"--model", &l->files.model},
                     {"--cluster", &l->files.cluster},
                     {"--gpu", &l->files.gpu},
                     {"--job", &l->files.job},
                     {"--out", &in->out}};
        int code = CTL_OK, done = 0;
        for (size_t i = 0; i < sizeof files / sizeof *files && !done; i++) {
            if (strlen(files[i].name) != length || strncmp(flag, files[i].name, length) != 0) continue;
            code = take_file(l, files[i].name, files[i].to);
            done = 1;
        }
        if (!done && strcmp(flag, "--json") == 0) {
            in->json = done = 1;
        } else if (!done && (strcmp(flag, "--help") == 0 || strcmp(flag, "-h") == 0)) {
            in->help = done = 1;
        } else if (!done && flag[0] != '-') {
            if (l->files.job)
                return sim_fail(l->error, l->error_size, "one job file, not also '%.40s'", flag);
            if (!*flag) return sim_fail(l->error, l->error_size, "the name of the job file is empty");
            l->files.job = flag;
            done = 1;
        }
        if (!done) {
            const sim_setting *s = find_flag(flag, length);
            if (!s) return unknown_flag(flag, l->error, l->error_size);
            code = take_setting(l, s, in);
        }
        if (code != CTL_OK) return code;
    }
    if (l->files.cluster && l->files.gpu)
        return sim_fail(l->error, l->error_size, "--cluster and --gpu: give one of them");
    return CTL_OK;
}

static const sim_input defaults = {.model = {.run = {.microbatch = 1,
                                                     .pp = 1,
                                                     .tp = 1,
                                                     .cp = 1,
                                                     .dp = 1,
                                                     .chunks = 1,
                                                     .grad_bits = 8,
                                                     .qkv_bits = 16,
                                                     .schedule = AGOQ_SCHEDULE_1F1B,
                                                     .margin_ppm = 100000,
                                                     .budget_bytes = PLANNER_NO_BUDGET}}};

static int is_given(uint64_t given, const char *key) {
    return (given & sim_setting_bit(sim_setting_find(key, PLACE_ANY))) != 0;
}

/* A list from a file brings its own pipeline; what is said besides must agree. */
static int fill_list(sim_input *in, uint64_t given, char *error, size_t error_size) {
    planner_run *r = &in->model.run;
    const struct {
        const char *key;
        uint32_t *value, is;
    } facts[] = {{"pp", &r->pp, in->ops.n_ranks},
                 {"microbatches", &r->microbatches, in->ops.n_microbatches},
                 {"vpp", &r->chunks, in->ops.n_chunks}};
    if (is_given(given, "group"))
        return sim_fail(error, error_size, "--group says nothing of a list of operations");
    for (size_t i = 0; i < sizeof facts / sizeof *facts; i++) {
        if (is_given(given, facts[i].key) && *facts[i].value != facts[i].is)
            return sim_fail(error, error_size, "%s %u, but the list of operations is for %u", facts[i].key,
                            *facts[i].value, facts[i].is);
        *facts[i].value = facts[i].is;
    }
    r->no_live = 1;
    r->route = in->ops.route;
    return CTL_OK;
}

static uint32_t default_chunks(agoq_schedule kind) {
    switch (kind) {
    case AGOQ_SCHEDULE_GPIPE:
    case AGOQ_SCHEDULE_1F1B:
    case AGOQ_SCHEDULE_ZB_H1:
    case AGOQ_SCHEDULE_ZB_H2:
        return 1;
    default:
        return 2;
    }
}

static int fill_cluster(sim_input *in, uint64_t given, char *error, size_t error_size) {
    planner_run *r = &in->model.run;
    if (is_given(given, "nodes") != is_given(given, "gpus_per_node"))
        return sim_fail(error, error_size, "the cluster needs both nodes and gpus_per_node");
    if (!is_given(given, "nodes")) return CTL_OK;
    const uint64_t gpus = (uint64_t)in->nodes * in->gpus_per_node;
    if (!gpus) return sim_fail(error, error_size, "the cluster has no GPU");
    if (!r->pp || r->pp > SIM_MAX_STAGES || !r->tp || r->tp > 65536 || !r->cp || r->cp > 65536)
        return CTL_OK; /* the model's check says so */
    const uint64_t each = (uint64_t)r->pp * r->tp * r->cp;
    if (each > gpus)
        return sim_fail(error, error_size, "pp * tp%s is %llu, more than the cluster's %llu GPUs",
                        r->cp > 1 ? " * cp" : "", (unsigned long long)each, (unsigned long long)gpus);
    if (!is_given(given, "dp") && gpus % each == 0 && gpus / each <= UINT32_MAX)
        r->dp = (uint32_t)(gpus / each);
    else if (!is_given(given, "dp"))
        return sim_fail(error, error_size, "pp * tp%s does not divide the cluster's %llu GPUs: give --dp",
                        r->cp > 1 ? " * cp" : "", (unsigned long long)gpus);
    if (r->dp > gpus / each)
        return sim_fail(error, error_size, "pp * tp%s * dp is more than the cluster's %llu GPUs",
                        r->cp > 1 ? " * cp" : "", (unsigned long long)gpus);
    return CTL_OK;
}

/* Budgets of stages, and lists of numbers whose length the pipeline says. */
static int fill_stages(sim_input *in, uint64_t given, char *error, size_t error_size) {
    planner_run *r = &in->model.run;
    if (r->pp > SIM_MAX_STAGES || !r->pp) return CTL_OK;
    if (in->budgets.n > r->pp || in->extras.n > r->pp)
        return sim_fail(error, error_size, "%s: stage %u, but the last one is %u",
                        in->budgets.n > r->pp ? "budget_stage" : "extra_stage",
                        (in->budgets.n > r->pp ? in->budgets.n : in->extras.n) - 1, r->pp - 1);
    int all = 1;
    for (uint32_t s = 0; s < r->pp; s++) {
        in->stage_budgets[s] = in->budgets.given[s] ? in->budgets.bytes[s] : r->budget_bytes;
        all &= in->budgets.given[s];
    }
    if (in->budgets.n) r->stage_budgets = in->stage_budgets;
    if (in->extras.n) r->stage_extras = in->extras.bytes;
    if (!is_given(given, "budget") && !all && r->mode == PLANNER_BUDGET && !in->trainer)
        return sim_fail(error, error_size, "--budget SIZE, --gpu NAME or --cluster FILE is missing");
    if (is_given(given, "layout")) {
        const uint32_t pieces = planner_model_n_virtual(&in->model);
        if (in->layout.n != pieces)
            return sim_fail(error, error_size, "the layout has %u numbers, the model is cut into %u pieces",
                            in->layout.n, pieces);
        if (in->max == SIM_MAX_LAYERS)
            return sim_fail(error, error_size,
                            "--max layers and a layout: the layout says how many there are");
        r->layout = in->layout.value;
    }
    if (in->observed.n && in->observed.n != r->pp)
        return sim_fail(error, error_size, "observed_live has %u numbers for %u stages", in->observed.n,
                        r->pp);
    return CTL_OK;
}

/* Layers to recompute that no rank has. */
static int check_recompute(const sim_input *in, char *error, size_t error_size) {
    const planner_run *r = &in->model.run;
    uint32_t most = 0;
    for (uint32_t s = 0; s < r->pp; s++) {
        uint32_t layers = 0;
        for (uint32_t c = 0; c < r->chunks; c++)
            layers += planner_model_layers_of(&in->model, planner_model_virtual(&in->model, s, c));
        most = layers > most ? layers : most;
    }
    if (in->max == SIM_MAX_LAYERS || r->recompute_layers == PLANNER_ALL_LAYERS || r->recompute_layers <= most)
        return CTL_OK;
    return sim_fail(error, error_size,
                    "recompute %u, but no rank has more than %u layers (full: all of them)",
                    r->recompute_layers, most);
}

static int fill_defaults(sim_input *in, uint64_t given, char *error, size_t error_size) {
    static const char *const needed[] = {"hidden", "ffn", "layers", "heads", "vocab", "seq"};
    planner_model *m = &in->model;
    planner_run *r = &m->run;
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (!is_given(given, needed[i]) && !(strcmp(needed[i], "seq") == 0 && in->max == SIM_MAX_SEQ))
            return sim_fail(error, error_size, "--%s is missing: give a --model, or all of the shape",
                            needed[i]);
    }
    if (!is_given(given, "kv_heads")) m->shape.kv_heads = m->shape.heads;
    int code = in->has_ops ? fill_list(in, given, error, error_size) : CTL_OK;
    if (code != CTL_OK) return code;
    if (!is_given(given, "microbatches") && !in->has_ops)
        r->microbatches = r->pp < UINT32_MAX / 2 ? 2 * r->pp : r->pp;
    if (!is_given(given, "vpp") && !in->has_ops) r->chunks = default_chunks(r->schedule);
    if (!is_given(given, "storage") &&
        (r->accounting == PLANNER_ACCOUNT_HF_EAGER || r->accounting == PLANNER_ACCOUNT_MEGATRON))
        r->storage = PLANNER_STORE_16;
    if (in->caching && is_given(given, "alloc_round"))
        return sim_fail(error, error_size, "alloc_round and caching_allocator: give one of them");
    if (in->caching) r->alloc_round_bytes = PLANNER_ALLOC_CACHING;
    if (is_given(given, "budget") && !r->budget_bytes)
        return sim_fail(error, error_size, "--budget: 0 is no budget");
    if (in->max && !is_given(given, "budget") && !in->budgets.n)
        return sim_fail(error, error_size, "--max needs a budget");
    if (in->max == SIM_MAX_SEQ && !r->seq) r->seq = r->cp * (r->sequence_parallel ? r->tp : 1);
    if (is_given(given, "account_bits") && r->accounting == PLANNER_ACCOUNT_FUSED &&
        r->storage == PLANNER_STORE_PLAN)
        return sim_fail(error, error_size, "account_bits is for yardsticks: a plan has its own widths");
    code = fill_cluster(in, given, error, error_size);
    if (code == CTL_OK) code = fill_stages(in, given, error, error_size);
    if (in->trainer && !is_given(given, "alloc_round") && !in->caching) r->alloc_round_bytes = 64;
    if (in->trainer && r->qkv_bits == 8) r->qkv_only8 = 1; /* its profile offers no choice */
    char wrong[256];
    if (code == CTL_OK && planner_model_check(m, wrong, sizeof wrong) != AGOQ_OK)
        return sim_fail(error, error_size, "%s", wrong);
    if (code == CTL_OK) code = check_recompute(in, error, error_size);
    const char *why = code == CTL_OK && in->trainer ? sim_trainer_refused(m) : NULL;
    return why ? sim_fail(error, error_size, "%s", why) : code;
}

static int status_code(agoq_status status) {
    return status == AGOQ_E_FORMAT || status == AGOQ_E_LIMIT ? CTL_USAGE : CTL_FAILED;
}

static int read_job(const line *l, sim_input *in, uint64_t *given) {
    yaml_doc *doc = NULL;
    const char *slash = strrchr(l->files.job, '/');
    if (slash) snprintf(in->folder, sizeof in->folder, "%.*s", (int)(slash - l->files.job), l->files.job);
    if (slash == l->files.job) snprintf(in->folder, sizeof in->folder, "/");
    const agoq_status status = yaml_load(l->files.job, &doc, l->error, l->error_size);
    if (status != AGOQ_OK) return status_code(status);
    const int code = sim_file_job(yaml_root(doc), &l->files, in, given, l->error, l->error_size);
    yaml_unload(&doc);
    in->folder[0] = 0;
    return code;
}

int sim_input_read(int argc, char **argv, sim_input *in, char *error, size_t error_size) {
    line l = {.argc = argc, .argv = argv, .error = error, .error_size = error_size};
    uint64_t given = 0;
    *in = defaults;
    int code = read_line(&l, in);
    if (code != CTL_OK || in->help) return code;
    sim_input_fini(in);
    *in = defaults;
    if (l.files.model) code = sim_file_model(l.files.model, in, &given, error, error_size);
    if (code == CTL_OK && l.files.job) code = read_job(&l, in, &given);
    if (code == CTL_OK && (l.files.cluster || l.files.gpu))
        code = sim_file_cluster(l.files.cluster ? l.files.cluster : l.files.gpu, !l.files.cluster, in, &given,
                                error, error_size);
    if (code != CTL_OK) return code;
    if (l.given & sim_setting_bit(sim_setting_find("budget_stage", PLACE_FLAG)))
        in->budgets = defaults.budgets;
    if (l.given & sim_setting_bit(sim_setting_find("extra_stage", PLACE_FLAG))) in->extras = defaults.extras;
    line again = {.argc = argc, .argv = argv, .error = error, .error_size = error_size};
    code = read_line(&again, in);
    return code == CTL_OK ? fill_defaults(in, given | l.given, error, error_size) : code;
}

int sim_input_parse(const char *file, const char *text, size_t size, sim_input *in, char *error,
                    size_t error_size) {
    static const sim_files none;
    yaml_doc *doc = NULL;
    uint64_t given = 0;
    *in = defaults;
    const agoq_status status = yaml_parse(file, text, size, &doc, error, error_size);
    if (status != AGOQ_OK) return status_code(status);
    int code = sim_file_job(yaml_root(doc), &none, in, &given, error, error_size);
    yaml_unload(&doc);
    if (code == CTL_OK) code = fill_defaults(in, given, error, error_size);
    return code;
}

void sim_input_fini(sim_input *in) {
    planner_ops_fini(&in->ops);
    in->has_ops = 0;
}

void sim_input_help(const char *verb, FILE *out) {
    const int dry = strcmp(verb, "dry-run") == 0;
    fprintf(out,
            "usage: agoqctl %s [JOB.yaml] [--model NAME|FILE] [--gpu NAME | --cluster FILE] [options]\n\n",
            dry ? "plan dry-run" : verb);
    fputs(dry ? "The plan that `simulate` would make, as a daemon would send it: widths, hash and canonical "
                "bytes; "
                "needs no daemon.\n"
                "--out FILE writes a plan file that a trainer replays (agoq-train --plan-file FILE).\n"
              : "Will this model fit on that cluster? The daemon's planner on a described model; needs no "
                "daemon "
                "and no GPU.\n"
                "Static bytes and workspace are estimates; a running job is planned from what its ranks "
                "report.\n",
          out);
    fputs("Exit status: 0 it fits, 5 it does not (the levers say what would help), 2 wrong usage.\n\n"
          "  JOB.yaml, --job FILE   the keys model, gpu or cluster, and every option below (kv_heads for "
          "--kv-heads);\n"
          "                         options on the line win over it\n"
          "  --model NAME|FILE      shape: a name from config/models, a file like those, or a Hugging Face "
          "config.json\n"
          "  --gpu NAME|FILE        budget, margin and context of one GPU: a name from config/clusters\n"
          "  --cluster NAME|FILE    the same, and how many GPUs there are\n"
          "  --json                 JSON on stdout\n",
          out);
    for (size_t i = 0; i < sim_n_settings; i++) {
        const sim_setting *s = &sim_settings[i];
        char flag[40], value[96], left[140];
        if (!(s->places & PLACE_FLAG) || (dry && (s->type == KIND_SWITCH || s->type == KIND_WORD) &&
                                          (strcmp(s->key, "max") == 0 || strcmp(s->key, "compare") == 0)))
            continue;
        sim_setting_flag(s, flag);
        sim_setting_value(s, value);
        snprintf(left, sizeof left, "%s %s", flag, value);
        fprintf(out,
                strlen(left) > 22 || strlen(s->help) > 90 ? "  %s\n                         %s\n"
                                                          : "  %-22s %s\n",
                left, s->help);
    }
}
