/* See checkpoint_config.h. The order is the file's: a change of it is a new version of checkpoints. */
#include "trainer/checkpoint_config.h"

#include <inttypes.h>
#include <string.h>

#include "agoq/format.h"

/* choices: names of the values 0, 1, ...; "": a real number's bits; NULL: an integer. */
typedef struct field {
    const char *name, *choices[3];
} field;

static const char real[] = "";
static const field fields[CHECKPOINT_FIELDS] = {
    {"rank", {0}},
    {"step", {0}},
    {"hidden", {0}},
    {"ffn", {0}},
    {"layers", {0}},
    {"heads", {0}},
    {"kv-heads", {0}},
    {"seq", {0}},
    {"mb-size", {0}},
    {"microbatches", {0}},
    {"pp", {0}},
    {"dp", {0}},
    {"chunks", {0}},
    {"zero1", {"off", "on"}},
    {"adam", {"fp32", "8bit"}},
    {"seed", {0}},
    {"grads", {"auto", "fp32", "fp8"}},
    {"lr", {real}},
    {"warmup", {0}},
    {"lr-schedule", {"cosine", "constant"}},
    {"steps", {0}},
    {"weight-decay", {real}},
    {"clip", {real}},
    {"qkv-bits", {0}},
    {"format4", {"int4", "code4"}},
    {"baseline", {"off", "on"}},
    {"mode", {"normal", "identity", "poison"}},
};

static int64_t bits_of(double x) {
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

void checkpoint_config_fill(const options *o, int rank, int64_t step, int64_t out[CHECKPOINT_FIELDS]) {
    const options_shape *s = &o->shape;
    const options_parallel *p = &o->par;
    const options_train *t = &o->train;
    /* A constant rate does not depend on where the run ends: such a run may be made longer. */
    const int64_t steps = t->lr_schedule == OPTIONS_LR_CONSTANT ? 0 : t->steps;
    const int64_t values[CHECKPOINT_FIELDS] = {
        rank,
        step,
        s->hidden,
        s->ffn,
        s->layers,
        s->heads,
        s->kv_heads,
        s->seq,
        s->mb_size,
        p->microbatches,
        p->pp,
        p->dp,
        p->chunks,
        p->zero1,
        t->adam,
        t->seed,
        t->grads,
        bits_of(t->lr),
        t->warmup,
        t->lr_schedule,
        steps,
        bits_of(t->weight_decay),
        bits_of(t->clip),
        o->store.qkv_bits,
        o->store.format4 == AGOQ_FORMAT_CODE4,
        o->store.baseline,
        o->store.mode,
    };
    memcpy(out, values, sizeof values);
}

static void show(const field *f, int64_t value, char text[32]) {
    double x;
    memcpy(&x, &value, sizeof x);
    if (f->choices[0] == real)
        snprintf(text, 32, "%.17g", x);
    else if (f->choices[0] && value >= 0 && value < 3 && f->choices[value])
        snprintf(text, 32, "%s", f->choices[value]);
    else
        snprintf(text, 32, "%" PRId64, value);
}

int checkpoint_config_differs(const int64_t found[CHECKPOINT_FIELDS], const int64_t want[CHECKPOINT_FIELDS],
                              char *text, size_t text_bytes) {
    char was[32], is[32];
    for (int i = 0; i < CHECKPOINT_FIELDS; i++) {
        if (found[i] == want[i]) continue;
        show(&fields[i], found[i], was);
        show(&fields[i], want[i], is);
        snprintf(text, text_bytes, "was written with %s %s, this run has %s", fields[i].name, was, is);
        return 1;
    }
    return 0;
}
