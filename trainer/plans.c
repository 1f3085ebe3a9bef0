/* Session set-up: see session.h. The profile lists exactly the tensors that layer.c and model.c keep; a test
 * compares the bytes it predicts with what the allocator counted. */
#include "trainer/plans.h"

#include <stdio.h>
#include <stdlib.h>

#include "trainer/try.h"

/* The roles that --fixed-bits N sets: those that a plan varies. */
static const int planned_roles[] = {AGOQ_ROLE_ATTN_NORM_IN, AGOQ_ROLE_MLP_NORM_IN, AGOQ_ROLE_MLP_GATE_UP};

/* Next word of a list with commas; returns its length and moves *at past it. */
static int next_word(const char **at, const char **word) {
    *word = *at;
    const int n = (int)strcspn(*at, ",");
    *at += n + ((*at)[n] == ',');
    return n;
}

static int role_of(const char *word, int n) {
    char name[64];
    if (n <= 0 || n >= (int)sizeof name) return -1;
    snprintf(name, sizeof name, "%.*s", n, word);
    return agoq_role_from_name(name);
}

static int width_of(const char *text, int n) {
    if (n == 1 && *text >= '1' && *text <= '9') return agoq_width_index(*text - '0') < 0 ? -1 : *text - '0';
    return n == 2 && strncmp(text, "16", 2) == 0 ? 16 : -1;
}

static int parse_fixed(const options *o, uint8_t bits[AGOQ_N_ROLES], char *error, size_t size) {
    const char *at = o->store.fixed_bits, *word;
    uint32_t seen = 0;
    memset(bits, 0, AGOQ_N_ROLES);
    bits[AGOQ_ROLE_ATTN_QKV] = (uint8_t)o->store.qkv_bits;
    const int all = width_of(at, (int)strlen(at));
    for (size_t i = 0; all > 0 && i < sizeof planned_roles / sizeof planned_roles[0]; i++)
        bits[planned_roles[i]] = (uint8_t)all;
    while (all < 0 && *at) {
        const int n = next_word(&at, &word), name = (int)strcspn(word, "=,");
        const int role = role_of(word, name), width = name < n ? width_of(word + name + 1, n - name - 1) : -1;
        if (role < 0 || width < 0) {
            snprintf(error, size,
                     "--fixed-bits \"%s\": \"%.*s\" is not ROLE=4|5|6|8|16, and the whole is not one such "
                     "number alone",
                     o->store.fixed_bits, n, word);
            return -1;
        }
        if (seen >> role & 1) {
            snprintf(error, size, "--fixed-bits: %s is there twice", agoq_role_name(role));
            return -1;
        }
        seen |= 1u << role;
        bits[role] = (uint8_t)width;
    }
    return 0;
}

static int parse_poison(const options *o, uint32_t *roles, char *error, size_t size) {
    const char *at = o->store.poison_roles, *word;
    *roles = at ? 0 : (1u << AGOQ_N_ROLES) - 1;
    while (at && *at) {
        const int n = next_word(&at, &word), role = role_of(word, n);
        if (role < 0) {
            snprintf(error, size, "--poison-roles: there is no role \"%.*s\"", n, word);
            return -1;
        }
        *roles |= 1u << role;
    }
    return 0;
}

int plans_check(const options *o, char *error, size_t size) {
    uint8_t bits[AGOQ_N_ROLES];
    uint32_t roles;
    if (o->store.fixed_bits && parse_fixed(o, bits, error, size)) return -1;
    return parse_poison(o, &roles, error, size);
}

static void add_item(plans_profile *p, int chunk, int layer, int role, int count, int64_t rows, int64_t cols,
                     uint32_t widths) {
    p->items[p->said.n_items++] = (agoq_item){.layer = layer,
                                              .role = role,
                                              .chunk = chunk,
                                              .count = count,
                                              .rows = rows,
                                              .cols = cols,
                                              .widths = widths};
}

static void add_chunk(plans_profile *p, const options *o, const model *m, int chunk) {
    const model_chunk *c = &m->chunks[chunk];
    const attention_shape *a = &m->attention;
    const int64_t t = m->tokens, h = m->shape.hidden,
                  qkv = (int64_t)(a->heads + 2 * a->kv_heads) * a->head_dim;
    const size_t ids = alloc_rounded((size_t)t),
                 lse = alloc_rounded((size_t)a->heads * (size_t)t * sizeof(float));
    for (int i = 0; i < c->n_layers; i++) {
        const int layer = c->first_layer + i;
        add_item(p, chunk, layer, AGOQ_ROLE_ATTN_NORM_IN, 1, t, h, 0);
        add_item(p, chunk, layer, AGOQ_ROLE_ATTN_QKV, 1, t, qkv,
                 o->store.qkv_bits == 8 ? AGOQ_MASK_8 : AGOQ_MASK_16);
        add_item(p, chunk, layer, AGOQ_ROLE_ATTN_OUT, 1, t, h, 0);
        add_item(p, chunk, layer, AGOQ_ROLE_MLP_NORM_IN, 1, t, h, 0);
        add_item(p, chunk, layer, AGOQ_ROLE_MLP_GATE_UP, 2, t, m->shape.ffn, 0);
    }
    if (c->has_head) add_item(p, chunk, m->shape.layers - 1, AGOQ_ROLE_FINAL_NORM_IN, 1, t, h, 0);
    p->fixed_bytes[chunk] = (uint64_t)c->n_layers * lse + (c->has_embed ? ids : 0) + (c->has_head ? ids : 0);
}

agoq_status plans_profile_init(plans_profile *p, const options *o, const model *m) {
    static const agoq_schedule kinds[] = {[OPTIONS_GPIPE] = AGOQ_SCHEDULE_GPIPE,
                                          [OPTIONS_1F1B] = AGOQ_SCHEDULE_1F1B,
                                          [OPTIONS_INTERLEAVED] = AGOQ_SCHEDULE_INTERLEAVED};
    size_t n = 0;
    for (int c = 0; c < m->n_chunks; c++) n += (size_t)m->chunks[c].n_layers * 5 + 1;
    *p = (plans_profile){.said = {.size = sizeof p->said,
                                  .schedule = kinds[o->par.schedule],
                                  .n_microbatches = o->par.microbatches,
                                  .n_chunks = m->n_chunks,
                                  .n_layers = m->shape.layers,
                                  .alloc_round_bytes = ALLOC_ROUND}};
    p->items = calloc(n, sizeof *p->items);
    p->fixed_bytes = calloc((size_t)m->n_chunks, sizeof *p->fixed_bytes);
    if (!p->items || !p->fixed_bytes) return AGOQ_E_NOMEM;
    p->said.items = p->items;
    p->said.fixed_bytes = p->fixed_bytes;
    for (int c = 0; c < m->n_chunks; c++) add_chunk(p, o, m, c);
    return AGOQ_OK;
}

void plans_profile_fini(plans_profile *p) {
    free(p->items);
    free(p->fixed_bytes);
    *p = (plans_profile){0};
}

/* What the library warns of concerns the user of this program: recording that stopped, a plan file of another
 * job, a daemon that refuses. */
static void warn(void *user, agoq_log_level level, const char *module, const char *text) {
    (void)user, (void)module;
    if (level <= AGOQ_LOG_WARN) fprintf(stderr, "agoq-train: %s\n", text);
}

agoq_status plans_open(agoq_session **out, const options *o, int rank, int world, int stage, int replica,
                       const char *plan_file, const char *record_file) {
    static const agoq_mode modes[] = {[OPTIONS_MODE_NORMAL] = AGOQ_MODE_NORMAL,
                                      [OPTIONS_MODE_IDENTITY] = AGOQ_MODE_IDENTITY,
                                      [OPTIONS_MODE_POISON] = AGOQ_MODE_POISON};
    agoq_session_config c = {.size = sizeof c};
    char error[256];
    c.rank = rank;
    c.world = world;
    c.stage = stage;
    c.n_stages = o->par.pp;
    c.dp = replica;
    c.n_dp = o->par.dp;
    c.n_tp = 1;
    c.mode = modes[o->store.mode];
    c.socket = o->store.socket;
    c.job = o->store.job;
    c.plan_file = plan_file ? plan_file : o->store.plan_file;
    c.record_file = rank == 0 ? record_file ? record_file : o->store.record_plan : NULL;
    if (o->store.fixed_bits) {
        c.use_fixed_bits = 1;
        if (parse_fixed(o, c.fixed_bits, error, sizeof error)) return AGOQ_E_INVAL;
    }
    if (parse_poison(o, &c.poison_roles, error, sizeof error)) return AGOQ_E_INVAL;
    if (c.mode != AGOQ_MODE_POISON) c.poison_roles = 0;
    agoq_session_config_env(&c);
    agoq_set_log(warn, NULL);
    TRY(agoq_session_open(&c, out));
    return AGOQ_OK;
}
