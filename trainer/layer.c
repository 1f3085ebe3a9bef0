/* One decoder layer, forward and backward. The order of operations is that of a fused 16-bit trainer: norm,
 * QKV, RoPE, attention, output projection, residual add inside the second norm, gate and up in one GEMM,
 * SwiGLU, down, residual add. In backward each weight gradient is formed while its input, recomputed or
 * fetched, is in the workspace, and handed to the gradients before the next one starts: with FP8 gradients
 * one fp32 matrix is alive at a time. */
#include "trainer/model.h"

#include "trainer/try.h"

static void rotate(const model *m, ops_mat qkv, int direction) {
    const attention_shape *a = &m->attention;
    ops_rope(qkv, a->heads + a->kv_heads, a->head_dim, a->seq, m->work.rope, direction, m->round);
    if (m->round) {
        const int64_t v_at = (int64_t)(a->heads + a->kv_heads) * a->head_dim;
        ops_round(ops_columns(qkv, v_at, qkv.cols - v_at));
    }
}

static void linear(const model *m, ops_mat x, int weight, ops_mat y, int round) {
    ops_linear(x, m->params.list[weight].w, y);
    if (round) ops_round(y);
}

static void linear_dx(const model *m, ops_mat dy, int weight, ops_mat dx) {
    ops_linear_dx(dy, m->params.list[weight].w, dx);
    if (m->round) ops_round(dx);
}

static agoq_status linear_dw(ops_mat x, ops_mat dy, int weight, grads *g) {
    float beta, *dw = grads_target(g, weight, &beta);
    ops_linear_dw(x, dy, beta, dw);
    return grads_done(g, weight);
}

agoq_status layer_forward(model *m, const model_layer *l, store *s, model_layer_kept *kept) {
    model_work *w = &m->work;
    const int64_t h = m->shape.hidden, f = m->shape.ffn;
    const float *gamma = m->params.list[l->norms].w;

    TRY(s->ops->norm(s, l->index, AGOQ_ROLE_ATTN_NORM_IN, w->x, NULL, gamma, NULL, w->n, &kept->attn_norm));
    linear(m, w->n, l->qkv, w->qkv, 0);
    rotate(m, w->qkv, +1);
    TRY(s->ops->keep(s, l->index, AGOQ_ROLE_ATTN_QKV, w->qkv, &kept->qkv));
    kept->lse = store_raw(s, (size_t)m->attention.heads * (size_t)m->tokens * sizeof(float));
    if (!kept->lse) return AGOQ_E_NOMEM;
    attention_forward(&m->attention, w->qkv, m->round, w->o, kept->lse, w->attention);
    TRY(s->ops->keep(s, l->index, AGOQ_ROLE_ATTN_OUT, w->o, &kept->o));
    linear(m, w->o, l->out, w->r, m->round);

    TRY(s->ops->norm(s, l->index, AGOQ_ROLE_MLP_NORM_IN, w->x, &w->r, gamma + h, &w->sum, w->n,
                     &kept->mlp_norm));
    linear(m, w->n, l->gu, w->gu, m->round);
    TRY(s->ops->swiglu(s, l->index, ops_columns(w->gu, 0, f), ops_columns(w->gu, f, f), w->prod, &kept->mlp));
    linear(m, w->prod, l->down, w->r, m->round);
    ops_add(w->sum, w->r, m->round, w->x);
    return AGOQ_OK;
}

static agoq_status mlp_backward(model *m, const model_layer *l, store *s, model_layer_kept *kept, grads *g) {
    model_work *w = &m->work;
    const int64_t h = m->shape.hidden, f = m->shape.ffn;
    const float *gamma = m->params.list[l->norms].w + h;
    float beta;
    linear_dx(m, w->x, l->down, w->dprod);
    TRY(s->ops->swiglu_bwd(s, &kept->mlp, w->dprod, w->gu, w->prod, ops_columns(w->dgu, 0, f),
                           ops_columns(w->dgu, f, f)));
    TRY(store_drop(s, &kept->mlp.gate));
    TRY(store_drop(s, &kept->mlp.up));
    TRY(store_drop(s, &kept->mlp.product));
    TRY(linear_dw(w->prod, w->x, l->down, g));
    linear_dx(m, w->dgu, l->gu, w->dn);
    TRY(s->ops->norm_again(s, &kept->mlp_norm, gamma, w->sum, w->n));
    TRY(s->ops->norm_bwd(s, &kept->mlp_norm, gamma, w->dn, w->sum, w->r,
                         grads_target(g, l->norms, &beta) + h));
    TRY(store_drop(s, &kept->mlp_norm.in));
    TRY(store_drop(s, &kept->mlp_norm.out));
    TRY(linear_dw(w->n, w->dgu, l->gu, g));
    ops_add(w->x, w->r, m->round, w->x);
    return AGOQ_OK;
}

static agoq_status attention_part_backward(model *m, const model_layer *l, store *s, model_layer_kept *kept,
                                           grads *g) {
    model_work *w = &m->work;
    const float *gamma = m->params.list[l->norms].w;
    float beta;
    linear_dx(m, w->x, l->out, w->dn);
    TRY(s->ops->fetch(s, &kept->o, w->o));
    TRY(linear_dw(w->o, w->x, l->out, g));
    TRY(s->ops->fetch(s, &kept->qkv, w->qkv));
    attention_backward(&m->attention, w->qkv, w->o, w->dn, kept->lse, w->dqkv, w->attention);
    TRY(store_drop(s, &kept->o));
    TRY(store_drop(s, &kept->qkv));
    if (!s->hold) kept->lse = store_free_raw(s, kept->lse);
    rotate(m, w->dqkv, -1);
    linear_dx(m, w->dqkv, l->qkv, w->dn);
    TRY(s->ops->norm_again(s, &kept->attn_norm, gamma, w->sum, w->n));
    TRY(s->ops->norm_bwd(s, &kept->attn_norm, gamma, w->dn, w->sum, w->r, grads_target(g, l->norms, &beta)));
    TRY(store_drop(s, &kept->attn_norm.in));
    TRY(store_drop(s, &kept->attn_norm.out));
    TRY(linear_dw(w->n, w->dqkv, l->qkv, g));
    ops_add(w->x, w->r, m->round, w->x);
    return AGOQ_OK;
}

agoq_status layer_backward(model *m, const model_layer *l, store *s, model_layer_kept *kept, grads *g) {
    TRY(mlp_backward(m, l, s, kept, g));
    return attention_part_backward(m, l, s, kept, g);
}

agoq_status layer_release(store *s, model_layer_kept *kept) {
    store_tensor *all[] = {&kept->attn_norm.in, &kept->attn_norm.out, &kept->mlp_norm.in,
                           &kept->mlp_norm.out, &kept->qkv,           &kept->o,
                           &kept->mlp.gate,     &kept->mlp.up,        &kept->mlp.product};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) TRY(store_free(s, all[i]));
    kept->lse = store_free_raw(s, kept->lse);
    return AGOQ_OK;
}
