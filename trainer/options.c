/* The option table. Numbers are parsed strictly (whole string, range checked): a typo is an error and never a
 * default. A value may follow its option as the next argument or after '='. */
#include "trainer/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "agoq/format.h"

typedef enum option_type { TYPE_INT, TYPE_I64, TYPE_REAL, TYPE_TEXT, TYPE_FLAG, TYPE_CHOICE } option_type;

typedef struct option {
    const char *name;
    option_type type;
    size_t at;
    const char *value; /* default; for a choice the choices follow in `choices` */
    double min, max;
    const char *choices, *help;
} option;

#define AT(field) offsetof(options, field)
static const option table[] = {
    {"data", TYPE_TEXT, AT(files.data), NULL, 0, 0, NULL,
     "text of at most 1 GiB: a file, or a folder whose regular files are read in order of name (required)"},
    {"hidden", TYPE_INT, AT(shape.hidden), "96", 2, 65536, NULL, "width of the model"},
    {"ffn", TYPE_INT, AT(shape.ffn), "256", 1, 262144, NULL, "width of the SwiGLU layer"},
    {"layers", TYPE_INT, AT(shape.layers), "8", 1, 4096, NULL, "decoder layers"},
    {"heads", TYPE_INT, AT(shape.heads), "6", 1, 1024, NULL, "query heads; hidden must be a multiple"},
    {"kv-heads", TYPE_INT, AT(shape.kv_heads), "3", 1, 1024, NULL,
     "key and value heads; heads must be a multiple"},
    {"seq", TYPE_INT, AT(shape.seq), "128", 2, 1 << 20, NULL, "tokens (bytes) in a sequence"},
    {"mb-size", TYPE_INT, AT(shape.mb_size), "2", 1, 65536, NULL, "sequences in a micro-batch"},
    {"microbatches", TYPE_INT, AT(par.microbatches), "4", 1, 4096, NULL,
     "micro-batches in a step, per replica"},
    {"steps", TYPE_INT, AT(train.steps), "300", 1, 1e9, NULL, "training steps"},
    {"stop-at", TYPE_INT, AT(train.stop_at), "0", 0, 1e9, NULL,
     "end after this many steps, learning rate as for --steps; 0: at --steps"},
    {"seed", TYPE_I64, AT(train.seed), "1", 0, 9e15, NULL, "of weights, data order and stochastic rounding"},
    {"lr", TYPE_REAL, AT(train.lr), "1e-3", 0, 10, NULL, "peak learning rate"},
    {"warmup", TYPE_INT, AT(train.warmup), "20", 0, 1e9, NULL, "steps of linear warm-up"},
    {"lr-schedule", TYPE_CHOICE, AT(train.lr_schedule), "cosine", 0, 0, "cosine|constant",
     "after the warm-up; cosine ends at a tenth"},
    {"weight-decay", TYPE_REAL, AT(train.weight_decay), "0.1", 0, 10, NULL, "of matrices (AdamW)"},
    {"clip", TYPE_REAL, AT(train.clip), "1.0", 0, 1e9, NULL, "largest norm of the gradient; 0: no clipping"},
    {"eval", TYPE_INT, AT(train.eval), "0", 0, 4096, NULL,
     "at the end, loss on this many micro-batches of the held-out tail of the text (0: none)"},
    {"memory-limit", TYPE_I64, AT(train.memory_limit), "0", 0, 9e15, NULL,
     "bytes that a rank may hold, as if its device had no more (0: no limit). When a saved activation does "
     "not fit, it and all after it take their smallest widths; a step that does not fit even so ends the "
     "job"},
    {"pp", TYPE_INT, AT(par.pp), "1", 1, 1024, NULL,
     "pipeline stages; pp x dp must be the number of MPI ranks"},
    {"dp", TYPE_INT, AT(par.dp), "1", 1, 1024, NULL, "data-parallel replicas"},
    {"schedule", TYPE_CHOICE, AT(par.schedule), "1f1b", 0, 0, "gpipe|1f1b|interleaved", "of the pipeline"},
    {"chunks", TYPE_INT, AT(par.chunks), "1", 1, 64, NULL,
     "model chunks on a stage (interleaved: 2 or more)"},
    {"zero1", TYPE_FLAG, AT(par.zero1), NULL, 0, 0, NULL, "shard the optimizer over the replicas"},
    {"hold-extra", TYPE_INT, AT(par.hold_extra), "-1", -1, 1023, NULL,
     "stage that keeps one micro-batch more alive (-1: none)"},
    {"grads", TYPE_CHOICE, AT(train.grads), "auto", 0, 0, "auto|fp32|fp8",
     "main gradients; auto: fp32 with --baseline, else fp8"},
    {"adam", TYPE_CHOICE, AT(train.adam), "fp32", 0, 0, "fp32|8bit", "optimizer state"},
    {"baseline", TYPE_FLAG, AT(store.baseline), NULL, 0, 0, NULL,
     "keep 16-bit activations and make no agoq call at all"},
    {"fp32", TYPE_FLAG, AT(store.fp32), NULL, 0, 0, NULL, "tests: no rounding to bf16 (with --baseline)"},
    {"mode", TYPE_CHOICE, AT(store.mode), "normal", 0, 0, "normal|identity|poison", "of the agoq session"},
    {"poison-roles", TYPE_TEXT, AT(store.poison_roles), NULL, 0, 0, NULL,
     "roles to poison, with commas (default: all)"},
    {"fixed-bits", TYPE_TEXT, AT(store.fixed_bits), NULL, 0, 0, NULL,
     "plan without a daemon or plan file: role=bits,... or one number for the planned roles"},
    {"plan-file", TYPE_TEXT, AT(store.plan_file), NULL, 0, 0, NULL, "replay a recorded plan"},
    {"record-plan", TYPE_TEXT, AT(store.record_plan), NULL, 0, 0, NULL, "rank 0 records (step, plan) here"},
    {"socket", TYPE_TEXT, AT(store.socket), NULL, 0, 0, NULL, "agoqd's socket (default: AGOQ_SOCKET)"},
    {"job", TYPE_TEXT, AT(store.job), NULL, 0, 0, NULL, "name of the job at the daemon"},
    {"qkv-bits", TYPE_CHOICE, AT(store.qkv_bits), "16", 0, 0, "16|8", "width of stored Q, K and V"},
    {"format4", TYPE_CHOICE, AT(store.format4), "int4", 0, 0, "int4|code4",
     "format of activations that the plan keeps in 4 bits (docs/FORMATS.md)"},
    {"checkpoint-dir", TYPE_TEXT, AT(files.checkpoint_dir), NULL, 0, 0, NULL, "folder of checkpoints"},
    {"checkpoint-every", TYPE_INT, AT(files.checkpoint_every), "0", 0, 1e9, NULL,
     "steps between checkpoints (0: none)"},
    {"resume", TYPE_FLAG, AT(files.resume), NULL, 0, 0, NULL,
     "go on from the newest checkpoint of the folder"},
    {"dump-activations", TYPE_TEXT, AT(files.dump_activations), NULL, 0, 0, NULL,
     "folder for the activations that are packed in the first micro-batch of one step of the first replica, "
     "as "
     "floats: ROLE.LAYER.SERIAL.ROWSxCOLS.f32"},
    {"dump-step", TYPE_INT, AT(files.dump_step), "0", 0, 1e9, NULL, "that step"},
    {"log-dir", TYPE_TEXT, AT(files.log_dir), NULL, 0, 0, NULL, "each rank writes rank-R.jsonl here"},
};
#undef AT
enum { N_OPTIONS = sizeof table / sizeof table[0] };

static int choice_index(const char *choices, const char *value) {
    int index = 0;
    const size_t n = strlen(value);
    for (const char *c = choices; n && c; index++) {
        const char *end = strchr(c, '|');
        if (n == (end ? (size_t)(end - c) : strlen(c)) && strncmp(c, value, n) == 0) return index;
        c = end ? end + 1 : NULL;
    }
    return -1;
}

static int set_number(const option *opt, void *at, const char *value) {
    char *end = NULL;
    errno = 0;
    /* strtod would take blanks, hexadecimal, inf and nan */
    if (!*value || strspn(value, opt->type == TYPE_REAL ? "0123456789+-.eE" : "0123456789-") != strlen(value))
        return -1;
    if (*value == '0' && value[1] >= '0' && value[1] <= '9') return -1; /* octal to some, decimal to others */
    if (opt->type == TYPE_REAL) {
        const double x = strtod(value, &end);
        if (errno || *end || !isfinite(x) || x < opt->min || x > opt->max) return -1;
        *(double *)at = x;
        return 0;
    }
    const long long i = strtoll(value, &end, 10);
    if (errno || *end || (double)i < opt->min || (double)i > opt->max) return -1;
    if (opt->type == TYPE_INT)
        *(int *)at = (int)i;
    else
        *(int64_t *)at = i;
    return 0;
}

static int set_value(const option *opt, options *o, const char *value, char *error, size_t size) {
    void *at = (char *)o + opt->at;
    if (opt->type == TYPE_TEXT) {
        if (value && !*value) {
            snprintf(error, size, "--%s needs a value", opt->name);
            return -1;
        }
        *(const char **)at = value;
    } else if (opt->type == TYPE_FLAG) {
        *(int *)at = value != NULL;
    } else if (opt->type == TYPE_CHOICE) {
        const int index = choice_index(opt->choices, value);
        if (index < 0) {
            snprintf(error, size, "--%s: \"%s\" is none of %s", opt->name, value, opt->choices);
            return -1;
        }
        *(int *)at = index;
    } else if (set_number(opt, at, value)) {
        snprintf(error, size, "--%s: \"%s\" is not a number between %.10g and %.10g", opt->name, value,
                 opt->min, opt->max);
        return -1;
    }
    return 0;
}

static int check_shape(const options *o, char *error, size_t size) {
    const options_shape *s = &o->shape;
    if (s->hidden % s->heads || s->hidden / s->heads % 2) {
        snprintf(error, size, "--hidden %d must be --heads %d times an even head size", s->hidden, s->heads);
    } else if (s->heads % s->kv_heads) {
        snprintf(error, size, "--heads %d must be a multiple of --kv-heads %d", s->heads, s->kv_heads);
    } else if ((int64_t)s->mb_size * s->seq > 1 << 24) {
        snprintf(error, size, "--mb-size %d x --seq %d: more than 16777216 tokens in a micro-batch",
                 s->mb_size, s->seq);
    } else {
        return 0;
    }
    return -1;
}

static int check_parallel(const options *o, char *error, size_t size) {
    const options_parallel *p = &o->par;
    if (p->schedule != OPTIONS_INTERLEAVED && p->chunks != 1) {
        snprintf(error, size, "--chunks %d needs --schedule interleaved", p->chunks);
    } else if (p->schedule == OPTIONS_INTERLEAVED && (p->chunks < 2 || p->pp < 2)) {
        snprintf(error, size, "--schedule interleaved needs --chunks 2 or more and --pp 2 or more");
    } else if (p->schedule == OPTIONS_INTERLEAVED && p->microbatches % p->pp) {
        snprintf(error, size, "--schedule interleaved: --microbatches %d must be a multiple of --pp %d",
                 p->microbatches, p->pp);
    } else if (o->shape.layers < p->pp * p->chunks) {
        snprintf(error, size, "--layers %d cannot fill --pp %d x --chunks %d: every chunk needs a layer",
                 o->shape.layers, p->pp, p->chunks);
    } else if (p->hold_extra >= p->pp) {
        snprintf(error, size, "--hold-extra %d: the last stage is %d", p->hold_extra, p->pp - 1);
    } else {
        return 0;
    }
    return -1;
}

static int check_modes(const options *o, char *error, size_t size) {
    const options_store *s = &o->store;
    if (!o->files.data) {
        snprintf(error, size, "--data is required");
    } else if (s->baseline && (o->train.grads == OPTIONS_GRADS_FP8 || o->train.adam == OPTIONS_ADAM_8BIT)) {
        snprintf(error, size, "--baseline makes no agoq call: it has no --grads fp8 and no --adam 8bit");
    } else if (s->baseline &&
               (s->mode || s->fixed_bits || s->plan_file || s->record_plan || s->socket || s->poison_roles)) {
        snprintf(error, size,
                 "--baseline opens no agoq session: no --mode, --fixed-bits, --plan-file, --record-plan, "
                 "--socket or --poison-roles with it");
    } else if (s->record_plan && s->fixed_bits) {
        snprintf(error, size, "--record-plan records plans, and --fixed-bits is none");
    } else if (s->fixed_bits && (s->plan_file || s->socket)) {
        snprintf(error, size, "--fixed-bits is a plan of its own: no %s with it",
                 s->plan_file ? "--plan-file" : "--socket");
    } else if (s->fp32 && !s->baseline) {
        snprintf(error, size, "--fp32 needs --baseline");
    } else if (s->poison_roles && s->mode != OPTIONS_MODE_POISON) {
        snprintf(error, size, "--poison-roles needs --mode poison");
    } else if ((o->files.checkpoint_every || o->files.resume) && !o->files.checkpoint_dir) {
        snprintf(error, size, "--checkpoint-every and --resume need --checkpoint-dir");
    } else if (o->files.dump_activations && s->baseline) {
        snprintf(error, size, "--baseline packs nothing: no --dump-activations with it");
    } else if (o->files.dump_activations &&
               o->files.dump_step >= (o->train.stop_at ? o->train.stop_at : o->train.steps)) {
        snprintf(error, size, "--dump-step %d does not come: the last step is %d", o->files.dump_step,
                 (o->train.stop_at ? o->train.stop_at : o->train.steps) - 1);
    } else if (o->train.stop_at > o->train.steps) {
        snprintf(error, size, "--stop-at %d is after --steps %d", o->train.stop_at, o->train.steps);
    } else {
        return 0;
    }
    return -1;
}

static int is_given(const char given[N_OPTIONS], const char *name) {
    int i = 0;
    while (strcmp(table[i].name, name) != 0) i++;
    return given[i];
}

int options_parse(int argc, char **argv, options *o, char *error, size_t error_bytes) {
    char given[N_OPTIONS] = {0};
    memset(o, 0, sizeof *o);
    for (int i = 0; i < N_OPTIONS; i++) {
        if (set_value(&table[i], o, table[i].value, error, error_bytes)) return OPTIONS_BAD;
    }
    for (int i = 1; i < argc; i++) {
        const char *arg = argv[i];
        if (strcmp(arg, "--help") == 0 || strcmp(arg, "-h") == 0) return OPTIONS_HELP;
        const option *opt = NULL;
        const size_t n = strcspn(arg, "=");
        for (int k = 0; k < N_OPTIONS && n > 2 && strncmp(arg, "--", 2) == 0; k++) {
            if (strlen(table[k].name) == n - 2 && strncmp(table[k].name, arg + 2, n - 2) == 0)
                opt = &table[k];
        }
        if (!opt) {
            snprintf(error, error_bytes, "unknown option \"%s\" (--help lists them)", arg);
            return OPTIONS_BAD;
        }
        if (given[opt - table]++) {
            snprintf(error, error_bytes, "--%s is there twice", opt->name);
            return OPTIONS_BAD;
        }
        const char *value = arg[n] == '=' ? arg + n + 1 : NULL;
        if (opt->type == TYPE_FLAG && value) {
            snprintf(error, error_bytes, "--%s takes no value", opt->name);
            return OPTIONS_BAD;
        }
        if (opt->type == TYPE_FLAG) {
            value = "";
        } else if (!value) {
            if (i + 1 >= argc) {
                snprintf(error, error_bytes, "--%s needs a value", opt->name);
                return OPTIONS_BAD;
            }
            value = argv[++i];
        }
        if (set_value(opt, o, value, error, error_bytes)) return OPTIONS_BAD;
    }
    if (is_given(given, "dump-step") && !o->files.dump_activations) {
        snprintf(error, error_bytes, "--dump-step needs --dump-activations");
        return OPTIONS_BAD;
    }
    if (check_shape(o, error, error_bytes) || check_parallel(o, error, error_bytes) ||
        check_modes(o, error, error_bytes))
        return OPTIONS_BAD;
    o->store.qkv_bits = o->store.qkv_bits ? 8 : 16;
    o->store.format4 = o->store.format4 ? AGOQ_FORMAT_CODE4 : AGOQ_FORMAT_INT4;
    if (o->train.grads == OPTIONS_GRADS_AUTO)
        o->train.grads = o->store.baseline ? OPTIONS_GRADS_FP32 : OPTIONS_GRADS_FP8;
    if (!o->train.stop_at) o->train.stop_at = o->train.steps;
    return OPTIONS_OK;
}

double options_rate(const options_train *train, int64_t step) {
    if (step < train->warmup) return train->lr * (double)(step + 1) / (double)train->warmup;
    if (train->lr_schedule == OPTIONS_LR_CONSTANT || train->steps <= train->warmup) return train->lr;
    const double at = (double)(step - train->warmup) / (double)(train->steps - train->warmup);
    return train->lr * (0.1 + 0.45 * (1.0 + cos(3.141592653589793 * at)));
}

void options_help(FILE *to) {
    fputs("usage: mpirun -n PPxDP agoq-train --data FILE [options]\n"
          "Trains a LLaMA model on the bytes of a text. Saved activations are packed at the widths of the "
          "plan in\n"
          "force: of agoqd, a plan file or --fixed-bits; with none of them, the smallest allowed.\n\n",
          to);
    for (int i = 0; i < N_OPTIONS; i++) {
        const option *opt = &table[i];
        char left[96];
        snprintf(left, sizeof left, "--%s%s%s", opt->name, opt->type == TYPE_FLAG ? "" : " ",
                 opt->type == TYPE_FLAG     ? ""
                 : opt->type == TYPE_CHOICE ? opt->choices
                 : opt->type == TYPE_TEXT   ? "TEXT"
                                            : "N");
        fprintf(to, "  %-38s %s%s%s%s\n", left, opt->help, opt->value ? " [" : "",
                opt->value ? opt->value : "", opt->value ? "]" : "");
    }
}
