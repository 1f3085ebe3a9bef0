/* See sim_hf.h. Known keys are collected first and judged at the end, since their order is free; unknown keys
 * are passed over, for these files hold dozens that say nothing of memory. A key given twice, or a known key
 * with a value that cannot be, is an error: a wrong simulation would be believed. */
#include "agoqctl/sim_hf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agoqctl/json_read.h"
#include "agoqd/yaml.h"
#include "common/file.h"
#include "common/mem.h"
#include "common/units.h"

enum {
    HIDDEN,
    FFN,
    LAYERS,
    HEADS,
    KV_HEADS,
    VOCAB,
    HEAD_DIM,
    MAX_SEQ, /* Hugging Face */
    D_MODEL,
    MLP_HIDDEN,
    MLP_RATIO,
    N_LAYERS,
    N_HEADS,
    N_KV_HEADS,
    EMBEDDING,
    MAX_LENGTH, /* OLMo's own */
    N_COUNTS
};
static const char *const counts[N_COUNTS] = {"hidden_size",
                                             "intermediate_size",
                                             "num_hidden_layers",
                                             "num_attention_heads",
                                             "num_key_value_heads",
                                             "vocab_size",
                                             "head_dim",
                                             "max_position_embeddings",
                                             "d_model",
                                             "mlp_hidden_size",
                                             "mlp_ratio",
                                             "n_layers",
                                             "n_heads",
                                             "n_kv_heads",
                                             "embedding_size",
                                             "max_sequence_length"};

enum { TIED, TYING, MULTI_QUERY, AFFINE, N_SWITCHES };
static const char *const switches[N_SWITCHES] = {"tie_word_embeddings", "weight_tying",
                                                 "multi_query_attention", "layer_norm_with_affine"};

enum { TYPE, NAME, ACTIVATION, N_WORDS };
static const char *const words[N_WORDS] = {"model_type", "_name_or_path", "activation_type"};

typedef struct collected {
    const char *file;
    uint32_t count[N_COUNTS];
    int on[N_SWITCHES];
    char word[N_WORDS][64];
    uint64_t seen; /* bit per key, in the order of the three lists */
    char *error;
    size_t error_size;
} collected;

static agoq_status fail(const collected *c, int line, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static agoq_status fail(const collected *c, int line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(c->error, c->error_size, c->file, line, 1, format, args);
    va_end(args);
    return AGOQ_E_FORMAT;
}

static int find(const char *const *list, int n, const char *key) {
    for (int i = 0; i < n; i++) {
        if (strcmp(list[i], key) == 0) return i;
    }
    return -1;
}

static agoq_status collect(void *user, const char *key, json_kind kind, const char *text, int line) {
    collected *c = user;
    const int count = find(counts, N_COUNTS, key), on = find(switches, N_SWITCHES, key),
              word = find(words, N_WORDS, key);
    const int index = count >= 0  ? count
                      : on >= 0   ? N_COUNTS + on
                      : word >= 0 ? N_COUNTS + N_SWITCHES + word
                                  : -1;
    uint64_t number;
    if (index < 0) return AGOQ_OK;
    if (c->seen >> index & 1) return fail(c, line, "\"%s\" is given twice", key);
    c->seen |= (uint64_t)1 << index;
    if (kind == JSON_NULL) return AGOQ_OK;
    if (count >= 0) {
        if (kind != JSON_NUMBER || units_parse_uint(text, &number) || number > UINT32_MAX)
            return fail(c, line, "%s is not a whole number below 2^32", key);
        if (!number) return fail(c, line, "%s is 0, and must be at least 1", key);
        c->count[count] = (uint32_t)number;
    } else if (on >= 0) {
        if (kind != JSON_BOOL) return fail(c, line, "%s is neither true nor false", key);
        c->on[on] = text[0] == 't' ? 1 : -1;
    } else {
        if (kind != JSON_STRING) return fail(c, line, "%s is no text", key);
        snprintf(c->word[word], sizeof c->word[word], "%s", text);
    }
    return AGOQ_OK;
}

static agoq_status need(const collected *c, int first, const int *which, int n) {
    for (int i = 0; i < n; i++) {
        if (!c->count[which[i]])
            return fail(c, 0, "%s is missing (found %s)", counts[which[i]], counts[first]);
    }
    return AGOQ_OK;
}

static agoq_status shape_of_hf(const collected *c, planner_shape *s) {
    static const int needed[] = {FFN, LAYERS, HEADS, VOCAB};
    static const char *const types[] = {"llama", "mistral", "olmo", "olmo2", "qwen2", "qwen3", NULL};
    const char *type = c->word[TYPE];
    if (type[0] && find(types, 6, type) < 0) {
        return fail(c, 0,
                    "model_type '%s' is not of the LLaMA family (llama, mistral, olmo, olmo2, qwen2, qwen3)",
                    type);
    }
    const agoq_status status = need(c, HIDDEN, needed, 4);
    if (status != AGOQ_OK) return status;
    *s = (planner_shape){.hidden = c->count[HIDDEN],
                         .ffn = c->count[FFN],
                         .layers = c->count[LAYERS],
                         .heads = c->count[HEADS],
                         .kv_heads = c->count[KV_HEADS] ? c->count[KV_HEADS] : c->count[HEADS],
                         .vocab = c->count[VOCAB],
                         .head_dim = c->count[HEAD_DIM],
                         .max_seq = c->count[MAX_SEQ],
                         .tied = c->on[TIED] > 0,
                         .bare_norms = strcmp(type, "olmo") == 0,
                         .qk_norm = strcmp(type, "olmo2") == 0 || strcmp(type, "qwen3") == 0};
    return AGOQ_OK;
}

/* mlp_hidden_size, or mlp_ratio times the width, is what the first product gives; SwiGLU halves it. The table
 * is padded to embedding_size. */
static agoq_status shape_of_olmo(const collected *c, planner_shape *s) {
    static const int needed[] = {N_LAYERS, N_HEADS, VOCAB};
    const int gated = !c->word[ACTIVATION][0] || strcmp(c->word[ACTIVATION], "swiglu") == 0;
    const agoq_status status = need(c, D_MODEL, needed, 3);
    if (status != AGOQ_OK) return status;
    const uint64_t wide =
        c->count[MLP_HIDDEN] ? c->count[MLP_HIDDEN] : (uint64_t)c->count[MLP_RATIO] * c->count[D_MODEL];
    if (!wide || wide > UINT32_MAX)
        return fail(c, 0, "mlp_hidden_size and mlp_ratio are missing, or too large");
    if (gated && wide % 2) return fail(c, 0, "the feed-forward width %llu is odd", (unsigned long long)wide);
    const uint32_t kv = c->count[N_KV_HEADS]     ? c->count[N_KV_HEADS]
                        : c->on[MULTI_QUERY] > 0 ? 1
                                                 : c->count[N_HEADS];
    *s = (planner_shape){.hidden = c->count[D_MODEL],
                         .ffn = (uint32_t)(gated ? wide / 2 : wide),
                         .layers = c->count[N_LAYERS],
                         .heads = c->count[N_HEADS],
                         .kv_heads = kv,
                         .vocab = c->count[EMBEDDING] ? c->count[EMBEDDING] : c->count[VOCAB],
                         .max_seq = c->count[MAX_LENGTH],
                         .tied = c->on[TYING] > 0,
                         .bare_norms = c->on[AFFINE] < 0,
                         .no_gate = !gated};
    return AGOQ_OK;
}

agoq_status sim_hf_parse(const char *file, const char *text, size_t size, planner_shape *shape, char name[64],
                         char *error, size_t error_size) {
    collected c = {.file = file, .error = error, .error_size = error_size};
    agoq_status status = json_read_object(file, text, size, collect, &c, error, error_size);
    if (status != AGOQ_OK) return status;
    if (c.count[HIDDEN])
        status = shape_of_hf(&c, shape);
    else if (c.count[D_MODEL])
        status = shape_of_olmo(&c, shape);
    else
        status = fail(&c, 0, "hidden_size is missing: is this a model's config.json?");
    if (status == AGOQ_OK) memcpy(name, c.word[NAME], 64);
    return status;
}

agoq_status sim_hf_load(const char *path, planner_shape *shape, char name[64], char *error,
                        size_t error_size) {
    const collected c = {.file = path, .error = error, .error_size = error_size};
    const char *why;
    char *text = NULL;
    size_t size = 0;
    agoq_status status = file_read(path, JSON_READ_MAX_BYTES, &text, &size, &why);
    if (status == AGOQ_OK)
        status = sim_hf_parse(path, text, size, shape, name, error, error_size);
    else
        (void)fail(&c, 0, "%s%s", why, status == AGOQ_E_LIMIT ? " for a config.json" : "");
    mem_free(text);
    return status;
}
