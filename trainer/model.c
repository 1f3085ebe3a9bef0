/* One rank's part of the model: who holds which layers, their weights and workspace, and the way of one
 * micro-batch through a chunk. All workspace is allocated once, so that in the forward/backward phase what is
 * measured is static bytes + workspace + saved activations and nothing else moves. The last chunk recomputes
 * the logits in backward from the final norm's input instead of keeping them: vocabulary-wide rows are the
 * widest of the model. */
#include "trainer/model.h"

#include <math.h>
#include <stdlib.h>

#include "trainer/try.h"

void model_spread(int layers, int virtual_stages, int virtual_stage, int *first, int *count) {
    const int base = layers / virtual_stages, more = layers % virtual_stages;
    *count = base + (virtual_stage < more);
    *first = virtual_stage * base + (virtual_stage < more ? virtual_stage : more);
}

static int new_mat(model *m, int64_t cols, ops_mat *out) {
    float *p = alloc_zero(m->mem, ALLOC_WORKSPACE, (size_t)(m->tokens * cols) * sizeof(float));
    *out = ops_mat_of(p, m->tokens, cols);
    return p != NULL;
}

static agoq_status work_init(model *m, int has_head) {
    model_work *w = &m->work;
    const attention_shape *a = &m->attention;
    const int64_t h = m->shape.hidden, f = m->shape.ffn,
                  qkv = (int64_t)(a->heads + 2 * a->kv_heads) * a->head_dim;
    int ok = new_mat(m, h, &w->x) && new_mat(m, h, &w->sum) && new_mat(m, h, &w->n) && new_mat(m, h, &w->r);
    ok = ok && new_mat(m, h, &w->dn) && new_mat(m, h, &w->o) && new_mat(m, qkv, &w->qkv) &&
         new_mat(m, qkv, &w->dqkv);
    ok = ok && new_mat(m, 2 * f, &w->gu) && new_mat(m, 2 * f, &w->dgu) && new_mat(m, f, &w->prod) &&
         new_mat(m, f, &w->dprod);
    if (has_head) ok = ok && new_mat(m, OPTIONS_VOCAB, &w->logits);
    w->attention = alloc_zero(m->mem, ALLOC_WORKSPACE, attention_scratch(a) * sizeof(float));
    w->rope = alloc_zero(m->mem, ALLOC_WORKSPACE, (size_t)a->seq * (size_t)a->head_dim * sizeof(float));
    if (!ok || !w->attention || !w->rope) return AGOQ_E_NOMEM;
    ops_rope_table(a->seq, a->head_dim, w->rope);
    return AGOQ_OK;
}

static void work_fini(model *m) {
    model_work *w = &m->work;
    ops_mat *mats[] = {&w->x,    &w->sum, &w->n,   &w->r,    &w->dn,    &w->o,     &w->qkv,
                       &w->dqkv, &w->gu,  &w->dgu, &w->prod, &w->dprod, &w->logits};
    for (size_t i = 0; i < sizeof mats / sizeof mats[0]; i++) alloc_free(m->mem, mats[i]->p);
    alloc_free(m->mem, w->attention);
    alloc_free(m->mem, w->rope);
}

static int layer_init(model *m, model_layer *l, int index, uint64_t seed) {
    const int64_t h = m->shape.hidden, f = m->shape.ffn;
    const attention_shape *a = &m->attention;
    const uint64_t id = (uint64_t)(index + 1) * PARAMS_PER_LAYER;
    const float in = 1.0f / sqrtf((float)h), residual = 1.0f / sqrtf(2.0f * (float)m->shape.layers);
    params *p = &m->params;
    l->index = index;
    l->norms = params_add(p, id + PARAMS_NORMS, 2, h, 0, seed, m->mem);
    l->qkv = params_add(p, id + PARAMS_QKV, h, (int64_t)(a->heads + 2 * a->kv_heads) * a->head_dim, in, seed,
                        m->mem);
    l->out = params_add(p, id + PARAMS_OUT, h, h, in * residual, seed, m->mem);
    l->gu = params_add(p, id + PARAMS_GU, h, 2 * f, in, seed, m->mem);
    l->down = params_add(p, id + PARAMS_DOWN, f, h, residual / sqrtf((float)f), seed, m->mem);
    return l->norms >= 0 && l->qkv >= 0 && l->out >= 0 && l->gu >= 0 && l->down >= 0;
}

static agoq_status chunk_init(model *m, int chunk, uint64_t seed) {
    model_chunk *c = &m->chunks[chunk];
    const int n_virtual = m->pp * m->n_chunks, at = chunk * m->pp + m->stage;
    const int64_t h = m->shape.hidden;
    model_spread(m->shape.layers, n_virtual, at, &c->first_layer, &c->n_layers);
    c->has_embed = at == 0;
    c->has_head = at == n_virtual - 1;
    c->embed = c->final_norm = c->head = -1;
    c->layers = calloc((size_t)c->n_layers + 1, sizeof *c->layers);
    if (!c->layers) return AGOQ_E_NOMEM;
    if (c->has_embed) {
        c->embed = params_add(&m->params, 0, OPTIONS_VOCAB, h, 1.0f, seed, m->mem);
        if (c->embed < 0) return AGOQ_E_NOMEM;
    }
    for (int i = 0; i < c->n_layers; i++) {
        if (!layer_init(m, &c->layers[i], c->first_layer + i, seed)) return AGOQ_E_NOMEM;
    }
    if (c->has_head) {
        c->final_norm = params_add(&m->params, 1, 1, h, 0, seed, m->mem);
        c->head = params_add(&m->params, 2, h, OPTIONS_VOCAB, 0.5f / sqrtf((float)h), seed, m->mem);
        if (c->final_norm < 0 || c->head < 0) return AGOQ_E_NOMEM;
    }
    return AGOQ_OK;
}

agoq_status model_init(model *m, const options_shape *shape, int pp, int stage, int n_chunks, uint64_t seed,
                       int round, alloc_stats *mem) {
    *m = (model){.shape = *shape, .pp = pp, .stage = stage, .n_chunks = n_chunks, .round = round, .mem = mem};
    m->tokens = shape->mb_size * shape->seq;
    m->attention = (attention_shape){shape->seq, shape->mb_size, shape->heads, shape->kv_heads,
                                     shape->hidden / shape->heads};
    m->chunks = calloc((size_t)n_chunks, sizeof *m->chunks);
    if (!m->chunks) return AGOQ_E_NOMEM;
    for (int c = 0; c < n_chunks; c++) TRY(chunk_init(m, c, seed));
    return work_init(m, stage == pp - 1);
}

void model_fini(model *m) {
    work_fini(m);
    for (int c = 0; m->chunks && c < m->n_chunks; c++) free(m->chunks[c].layers);
    free(m->chunks);
    params_fini(&m->params, m->mem);
    *m = (model){0};
}

model_kept *model_kept_new(const model *m, int chunk) {
    model_kept *kept = calloc(1, sizeof *kept);
    if (!kept) return NULL;
    kept->layers = calloc((size_t)m->chunks[chunk].n_layers + 1, sizeof *kept->layers);
    if (kept->layers) return kept;
    free(kept);
    return NULL;
}

void model_kept_delete(model_kept *kept) {
    if (kept) free(kept->layers);
    free(kept);
}

static agoq_status keep_ids(const model *m, const uint8_t *ids, store *s, uint8_t **kept) {
    *kept = store_raw(s, (size_t)m->tokens);
    if (!*kept) return AGOQ_E_NOMEM;
    memcpy(*kept, ids, (size_t)m->tokens);
    return AGOQ_OK;
}

agoq_status model_forward(model *m, int chunk, const uint8_t *ids, const uint8_t *targets, store *s,
                          model_kept *kept, double *loss) {
    const model_chunk *c = &m->chunks[chunk];
    model_work *w = &m->work;
    if (c->has_embed) {
        TRY(keep_ids(m, ids, s, &kept->ids));
        ops_embed(kept->ids, m->params.list[c->embed].w, m->round, w->x);
    }
    for (int i = 0; i < c->n_layers; i++) TRY(layer_forward(m, &c->layers[i], s, &kept->layers[i]));
    if (c->has_head) {
        TRY(keep_ids(m, targets, s, &kept->targets));
        TRY(s->ops->norm(s, m->shape.layers - 1, AGOQ_ROLE_FINAL_NORM_IN, w->x, NULL,
                         m->params.list[c->final_norm].w, NULL, w->n, &kept->final_norm));
        ops_linear(w->n, m->params.list[c->head].w, w->logits);
        *loss += ops_cross_entropy(w->logits, kept->targets);
    }
    return AGOQ_OK;
}

/* With the loss's input normalised again, the gradient of the head has all it needs in n and logits. */
static agoq_status head_backward(model *m, const model_chunk *c, float scale, store *s, model_kept *kept,
                                 grads *g) {
    model_work *w = &m->work;
    const float *gamma = m->params.list[c->final_norm].w, *head = m->params.list[c->head].w;
    TRY(s->ops->norm_again(s, &kept->final_norm, gamma, w->sum, w->n));
    ops_linear(w->n, head, w->logits);
    ops_cross_entropy_bwd(w->logits, kept->targets, scale, m->round);
    float beta, *dw = grads_target(g, c->head, &beta);
    ops_linear_dw(w->n, w->logits, beta, dw);
    TRY(grads_done(g, c->head));
    ops_linear_dx(w->logits, head, w->dn);
    if (m->round) ops_round(w->dn);
    TRY(s->ops->norm_bwd(s, &kept->final_norm, gamma, w->dn, w->sum, w->x,
                         grads_target(g, c->final_norm, &beta)));
    if (!s->hold) kept->targets = store_free_raw(s, kept->targets);
    TRY(store_drop(s, &kept->final_norm.in));
    return store_drop(s, &kept->final_norm.out);
}

agoq_status model_backward(model *m, int chunk, float scale, store *s, model_kept *kept, grads *g) {
    const model_chunk *c = &m->chunks[chunk];
    float beta;
    if (c->has_head) TRY(head_backward(m, c, scale, s, kept, g));
    for (int i = c->n_layers - 1; i >= 0; i--) TRY(layer_backward(m, &c->layers[i], s, &kept->layers[i], g));
    if (c->has_embed) {
        float *to = grads_target(g, c->embed, &beta);
        if (beta == 0) memset(to, 0, (size_t)m->params.list[c->embed].n * sizeof(float));
        ops_embed_bwd(kept->ids, m->work.x, to);
        TRY(grads_done(g, c->embed));
        if (!s->hold) kept->ids = store_free_raw(s, kept->ids);
    }
    return AGOQ_OK;
}

agoq_status model_release(model *m, int chunk, store *s, model_kept *kept) {
    for (int i = 0; i < m->chunks[chunk].n_layers; i++) TRY(layer_release(s, &kept->layers[i]));
    kept->ids = store_free_raw(s, kept->ids);
    kept->targets = store_free_raw(s, kept->targets);
    TRY(store_free(s, &kept->final_norm.in));
    return store_free(s, &kept->final_norm.out);
}

agoq_status model_loss(model *m, int chunk, const uint8_t *ids, const uint8_t *targets, store *s,
                       model_kept *kept, double *loss) {
    TRY(model_forward(m, chunk, ids, targets, s, kept, loss));
    return model_release(m, chunk, s, kept);
}
