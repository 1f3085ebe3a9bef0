/* LLaMA shapes to planner_problem. Tensors are those that the fused kernels save: both norm inputs, Q K V
 * after RoPE, the attention output, gate and up, and the log-sum-exp in fp32; everything else is recomputed.
 * The trade-off: one closed list for one family of models, against a general graph that no one would keep
 * true. Layers are dealt to the pp * chunks virtual stages evenly, the first ones taking what is left over.
 */
#include "planner/model.h"

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

#define BUCKET_PARAMS  40000000u /* gradient bucket of an exchange, Megatron's default */
#define MAX_DIMENSION  (1u << 20)
#define MAX_LAYERS     1024u
#define ITEMS_OF_LAYER 5u
#define BYTES_WEIGHT   2u /* bf16 */
#define BYTES_MASTER   4u /* fp32 */

static uint32_t head_dim(const planner_model *m) {
    return m->hidden / m->heads;
}

static uint64_t tokens(const planner_model *m) {
    return (uint64_t)m->seq * m->microbatch;
}

/* Key/value heads of a rank: replicated where there are fewer than ranks. */
static uint32_t kv_heads_of_rank(const planner_model *m) {
    return m->kv_heads > m->tp ? m->kv_heads / m->tp : 1;
}

static uint32_t layers_of(const planner_model *m, uint32_t stage, uint32_t chunk) {
    const uint32_t n = m->pp * m->chunks, at = chunk * m->pp + stage;
    return m->layers / n + (at < m->layers % n);
}

static uint32_t first_layer_of(const planner_model *m, uint32_t stage, uint32_t chunk) {
    const uint32_t n = m->pp * m->chunks, at = chunk * m->pp + stage, extra = m->layers % n;
    return m->layers / n * at + (at < extra ? at : extra);
}

const char *planner_model_check(const planner_model *m) {
    const uint32_t sizes[] = {m->hidden, m->ffn,        m->heads, m->kv_heads,    m->vocab,
                              m->seq,    m->microbatch, m->dp,    m->microbatches};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!sizes[i] || sizes[i] > MAX_DIMENSION) return "sizes of model and batch must be 1 to 1048576";
    }
    if (!m->layers || m->layers > MAX_LAYERS) return "layers must be 1 to 1024";
    if (!m->pp || m->pp > PLAN_MAX_STAGES) return "pp must be 1 to 1024";
    if (!m->chunks || m->chunks > PLANNER_MAX_CHUNKS) return "chunks must be 1 to 64";
    if (!m->tp || m->tp > 1024) return "tp must be 1 to 1024";
    if (m->hidden % m->heads) return "hidden is no multiple of heads";
    if (m->heads % m->kv_heads) return "heads is no multiple of kv_heads";
    if (m->heads % m->tp || m->ffn % m->tp) return "tp must divide heads and ffn";
    if (m->kv_heads % m->tp && m->tp % m->kv_heads) return "of tp and kv_heads one must divide the other";
    if (m->sequence_parallel && m->seq % m->tp) return "with sequence parallelism tp must divide seq";
    if (m->layers < m->pp * m->chunks) return "fewer layers than pp * chunks";
    if (m->schedule == AGOQ_SCHEDULE_INTERLEAVED) {
        if (m->microbatches % m->pp) return "interleaved: pp must divide the number of micro-batches";
    } else if (m->chunks != 1) {
        return "only the interleaved schedule has chunks";
    }
    if (m->grad_bits != 8 && m->grad_bits != 16 && m->grad_bits != 32)
        return "gradients are fp8, bf16 or fp32";
    if (m->qkv_bits != 8 && m->qkv_bits != 16) return "Q, K, V are kept at 16 or 8 bits";
    return NULL;
}

static uint64_t layer_params(const planner_model *m) {
    const uint64_t q = m->hidden / m->tp, kv = (uint64_t)kv_heads_of_rank(m) * head_dim(m);
    return m->hidden * (2 * q + 2 * kv + 3 * (uint64_t)(m->ffn / m->tp)) + 2 * (uint64_t)m->hidden;
}

static uint64_t ceil_div(uint64_t a, uint64_t b) {
    return a / b + (a % b != 0);
}

uint64_t planner_model_params(const planner_model *m, uint32_t stage) {
    const uint64_t table = ceil_div((uint64_t)m->vocab, m->tp) * m->hidden; /* vocabulary split over tp */
    const int first = stage == 0, last = stage + 1 == m->pp;
    uint64_t params = 0;
    for (uint32_t c = 0; c < m->chunks; c++) params += layers_of(m, stage, c) * layer_params(m);
    if (first) params += table;
    if (last)
        params += m->hidden + (m->tied && first ? 0 : table); /* a tied head on another stage is a copy */
    return params;
}

static uint64_t grad_bytes(const planner_model *m, uint64_t params) {
    return m->grad_bits == 8 ? params + 4 * ceil_div(params, AGOQ_GRAD_BLOCK)
                             : params * (uint64_t)m->grad_bits / 8;
}

/* fp32 master weights and both moments; 8-bit moments have one fp32 per block of 256 each. */
static uint64_t optimizer_bytes(const planner_model *m, uint64_t params, int zero1) {
    const uint64_t own = zero1 ? ceil_div(params, m->dp) : params;
    return own * BYTES_MASTER + (m->adam8 ? 2 * own + 8 * ceil_div(own, 256) : 8 * own);
}

uint64_t planner_model_layer_bytes16(const planner_model *m) {
    const uint64_t kv = (uint64_t)m->kv_heads * head_dim(m);
    /* norm inputs and outputs, Q and O, K and V, gate, up and product, log-sum-exp, two 1/rms */
    return 8ull * m->hidden + 4ull * m->hidden + 4 * kv + 6ull * m->ffn + 4ull * m->heads + 8;
}

double planner_model_layer_bytes(const planner_model *m, int bits, int qkv_bits) {
    const double scale = bits == 16 ? 0 : 16.0 / AGOQ_BLOCK,
                 qkv_scale = qkv_bits == 16 ? 0 : 16.0 / AGOQ_BLOCK;
    const double qkv = m->hidden + 2.0 * m->kv_heads * head_dim(m);
    return (2.0 * m->hidden + 2.0 * m->ffn) * (bits + scale) / 8 + m->hidden * (8 + 16.0 / AGOQ_BLOCK) / 8 +
           qkv * (qkv_bits + qkv_scale) / 8 + 4.0 * m->heads;
}

/* Backward holds one layer unpacked, with as much again for its gradients; the last stage holds logits (bf16,
 * and fp32 that becomes the gradient) of one micro-batch, not at the same time. Received tensors: two in
 * flight. */
static uint64_t forward_workspace(const planner_model *m, uint32_t stage) {
    const uint64_t n = tokens(m), layer = 2 * n * ceil_div(planner_model_layer_bytes16(m), m->tp);
    const uint64_t logits = stage + 1 == m->pp ? 6 * n * ceil_div(m->vocab, m->tp) : 0;
    const uint64_t rows = m->sequence_parallel ? n / m->tp : n;
    const uint64_t received = m->pp > 1 ? 2 * rows * m->hidden * BYTES_WEIGHT : 0;
    return (layer > logits ? layer : logits) + received;
}

static void fill_phases(const planner_model *m, uint32_t stage, planner_stage *s, uint64_t *optimizer) {
    const uint64_t params = planner_model_params(m, stage),
                   bucket = params < BUCKET_PARAMS ? params : BUCKET_PARAMS;
    *optimizer = optimizer_bytes(m, params, m->zero1);
    for (int p = 0; p < AGOQ_N_PHASES; p++)
        s->phase[p].static_bytes =
            params * BYTES_WEIGHT + grad_bytes(m, params) + *optimizer + m->context_bytes;
    s->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes = forward_workspace(m, stage);
    s->phase[AGOQ_PHASE_EXCHANGE].workspace_bytes = m->dp > 1 ? 2 * grad_bytes(m, bucket) : 0;
    s->phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes = bucket * 4; /* one bucket of gradients in fp32 */
}

static double sensitivity_of(int role) {
    switch (role) {
#define ROLE_SENSITIVITY(id, name, sensitivity, mask)                                                        \
    case AGOQ_ROLE_##id:                                                                                     \
        return sensitivity;
        AGOQ_ROLES(ROLE_SENSITIVITY)
#undef ROLE_SENSITIVITY
    default:
        return 1;
    }
}

static uint32_t widths_of(const planner_model *m, int role) {
    if (role == AGOQ_ROLE_ATTN_QKV && m->qkv_bits == 8)
        return AGOQ_MASK_8 | (m->qkv_only8 ? 0 : AGOQ_MASK_16);
    switch (role) {
#define ROLE_MASK(id, name, sensitivity, mask)                                                               \
    case AGOQ_ROLE_##id:                                                                                     \
        return mask;
        AGOQ_ROLES(ROLE_MASK)
#undef ROLE_MASK
    default:
        return AGOQ_MASK_16;
    }
}

static planner_item *add_layer(const planner_model *m, uint32_t layer, uint32_t chunk, planner_item *item) {
    const int64_t n = (int64_t)tokens(m), spread = m->sequence_parallel ? n / m->tp : n;
    const int64_t qkv = m->hidden / m->tp + 2 * (int64_t)kv_heads_of_rank(m) * head_dim(m);
    const struct {
        uint8_t role, count;
        int64_t rows, cols;
    } shapes[ITEMS_OF_LAYER] = {{AGOQ_ROLE_ATTN_NORM_IN, 1, spread, m->hidden},
                                {AGOQ_ROLE_MLP_NORM_IN, 1, spread, m->hidden},
                                {AGOQ_ROLE_MLP_GATE_UP, 2, n, m->ffn / m->tp},
                                {AGOQ_ROLE_ATTN_OUT, 1, n, m->hidden / m->tp},
                                {AGOQ_ROLE_ATTN_QKV, 1, n, qkv}};
    for (uint32_t k = 0; k < ITEMS_OF_LAYER; k++) {
        *item++ = (planner_item){(uint16_t)layer,
                                 shapes[k].role,
                                 (uint8_t)chunk,
                                 shapes[k].count,
                                 shapes[k].rows,
                                 shapes[k].cols,
                                 widths_of(m, shapes[k].role),
                                 sensitivity_of(shapes[k].role) / m->layers};
    }
    return item;
}

static agoq_status fill_stage(const planner_model *m, uint32_t stage, planner_model_problem *p,
                              planner_item **item, uint64_t *fixed, uint32_t **live) {
    planner_stage *s = &p->stages[stage];
    const uint64_t n = tokens(m);
    planner_item *first = *item;
    for (uint32_t c = 0; c < m->chunks; c++) {
        const uint32_t from = first_layer_of(m, stage, c), count = layers_of(m, stage, c);
        for (uint32_t l = 0; l < count; l++) *item = add_layer(m, from + l, c, *item);
        fixed[c] = count * n * 4 * (m->heads / m->tp);
    }
    if (stage == 0) fixed[0] += 8 * n; /* token ids */
    if (stage + 1 == m->pp) {
        const int64_t rows = (int64_t)(m->sequence_parallel ? n / m->tp : n);
        fixed[m->chunks - 1] += 8 * n; /* targets */
        *(*item)++ = (planner_item){(uint16_t)m->layers,
                                    AGOQ_ROLE_FINAL_NORM_IN,
                                    (uint8_t)(m->chunks - 1),
                                    1,
                                    rows,
                                    m->hidden,
                                    widths_of(m, AGOQ_ROLE_FINAL_NORM_IN),
                                    sensitivity_of(AGOQ_ROLE_FINAL_NORM_IN)};
    }
    *s = (planner_stage){.budget_bytes = m->budget_bytes,
                         .margin_ppm = m->margin_ppm,
                         .alloc_round_bytes = m->alloc_round_bytes,
                         .n_chunks = m->chunks,
                         .n_items = (uint32_t)(*item - first),
                         .fixed_bytes = fixed,
                         .items = first,
                         .live = *live};
    fill_phases(m, stage, s, &p->optimizer_bytes[stage]);
    AGOQ_TRY(planner_live(m->schedule, m->pp, stage, m->microbatches, m->chunks, *live, PLANNER_MAX_LIVE,
                          &s->n_live));
    p->live_units[stage] = planner_live_units(*live, s->n_live, m->chunks);
    *live += (size_t)s->n_live * m->chunks;
    return AGOQ_OK;
}

agoq_status planner_model_build(const planner_model *model, planner_model_problem *out) {
    agoq_status status = AGOQ_E_NOMEM;
    planner_model_problem p = {0};
    if (!model || !out || planner_model_check(model)) return AGOQ_E_INVAL;
    const size_t n = model->pp, v = model->chunks;
    p.stages = mem_zalloc(n, sizeof *p.stages);
    p.items = mem_zalloc((size_t)model->layers * ITEMS_OF_LAYER + 1, sizeof *p.items);
    p.fixed = mem_zalloc(n * v, sizeof *p.fixed);
    p.live = mem_zalloc(PLANNER_MAX_LIVE * v * n, sizeof *p.live);
    p.live_units = mem_zalloc(n, sizeof *p.live_units);
    p.optimizer_bytes = mem_zalloc(n, sizeof *p.optimizer_bytes);
    if (!p.stages || !p.items || !p.fixed || !p.live || !p.live_units || !p.optimizer_bytes) goto out;
    planner_item *item = p.items;
    uint32_t *live = p.live;
    for (uint32_t s = 0; s < model->pp; s++)
        AGOQ_TRY_OUT(fill_stage(model, s, &p, &item, p.fixed + s * v, &live));
    p.problem = (planner_problem){model->mode, model->pp, p.stages};
    *out = p;
    return AGOQ_OK;
out:
    planner_model_fini(&p);
    return status;
}

void planner_model_fini(planner_model_problem *p) {
    if (!p) return;
    mem_free(p->stages);
    mem_free(p->items);
    mem_free(p->fixed);
    mem_free(p->live);
    mem_free(p->live_units);
    mem_free(p->optimizer_bytes);
    *p = (planner_model_problem){0};
}

void planner_model_levers(const planner_model *model, const planner_model_problem *p,
                          planner_result *result) {
    if (model->zero1 || model->dp < 2) return;
    for (uint32_t s = 0; s < p->problem.n_stages; s++) {
        planner_stage_result *r = &result->stages[s];
        if (!r->overshoot_bytes) continue;
        const uint64_t sharded = optimizer_bytes(model, planner_model_params(model, s), 1);
        const uint64_t saves = p->optimizer_bytes[s] - sharded;
        const planner_lever lever = {PLANNER_LEVER_SHARD_OPTIMIZER, 0, -1, -1, saves,
                                     saves >= r->overshoot_bytes};
        if (r->n_levers == PLANNER_MAX_LEVERS) r->n_levers--; /* the least useful one is last */
        uint32_t at = lever.enough ? 0 : r->n_levers;
        for (uint32_t k = r->n_levers; k > at; k--) r->levers[k] = r->levers[k - 1];
        r->levers[at] = lever;
        r->n_levers++;
    }
}
