/* Dimensions of a rank, where layers lie, and everything that is not saved activations: weights, gradients,
 * optimizer, context, and the workspace of each phase. The terms are estimates; each is written out once
 * here. The trade-off: workspace counts what every trainer of this kind needs at the least (one layer
 * unpacked and its widest gradients, logits of one micro-batch, two received tensors), not what a given
 * framework wastes: the margin is for that. */
#include "planner/model_internal.h"

#define BUCKET_PARAMS 40000000u /* gradient bucket of an exchange, Megatron's default */

planner_dims planner_model_dims(const planner_model *m) {
    const planner_shape *s = &m->shape;
    const uint64_t tp = m->run.tp, cp = m->run.cp ? m->run.cp : 1;
    planner_dims d = {.head_dim = s->head_dim ? s->head_dim : s->hidden / s->heads,
                      .heads = s->heads / tp,
                      .kv_heads = s->kv_heads > tp ? s->kv_heads / tp : 1,
                      .ffn = s->ffn / tp,
                      .tokens = (uint64_t)m->run.seq * m->run.microbatch / cp,
                      .replicas = m->run.dp * cp};
    d.q = d.heads * d.head_dim;
    d.kv = d.kv_heads * d.head_dim;
    return d;
}

uint64_t planner_model_spread(const planner_model *m, uint64_t tokens) {
    return m->run.sequence_parallel ? planner_ceil_div(tokens, m->run.tp) : tokens;
}

uint64_t planner_model_round(const planner_model *m, uint64_t bytes) {
    return planner_alloc_rounded(bytes, m->run.alloc_round_bytes);
}

planner_route planner_model_route(const planner_model *m) {
    return m->run.no_live ? m->run.route : planner_schedule_route(m->run.schedule);
}

uint32_t planner_model_virtual(const planner_model *m, uint32_t rank, uint32_t chunk) {
    return planner_route_piece(planner_model_route(m), m->run.pp, rank, chunk);
}

uint32_t planner_model_n_virtual(const planner_model *m) {
    return planner_route_pieces(planner_model_route(m), m->run.pp, m->run.chunks);
}

/* Evenly, the first virtual stages taking what is left over. */
uint32_t planner_model_layers_of(const planner_model *m, uint32_t at) {
    const uint32_t n = planner_model_n_virtual(m);
    return m->run.layout ? m->run.layout[at] : m->shape.layers / n + (at < m->shape.layers % n);
}

uint32_t planner_model_first_layer_of(const planner_model *m, uint32_t at) {
    const uint32_t n = planner_model_n_virtual(m), extra = m->shape.layers % n;
    uint32_t first = 0;
    if (!m->run.layout) return m->shape.layers / n * at + (at < extra ? at : extra);
    for (uint32_t k = 0; k < at; k++) first += m->run.layout[k];
    return first;
}

int planner_model_chunk_at(const planner_model *m, uint32_t rank, uint32_t at) {
    for (uint32_t c = 0; c < m->run.chunks; c++) {
        if (planner_model_virtual(m, rank, c) == at) return (int)c;
    }
    return -1;
}

uint32_t planner_model_rank_layers(const planner_model *m, uint32_t rank) {
    uint32_t n = 0;
    for (uint32_t c = 0; c < m->run.chunks; c++)
        n += planner_model_layers_of(m, planner_model_virtual(m, rank, c));
    return n;
}

uint32_t planner_model_recomputed(const planner_model *m, uint32_t rank) {
    const uint32_t asked = m->run.recompute ? m->run.recompute[rank] : m->run.recompute_layers,
                   has = planner_model_rank_layers(m, rank);
    return asked < has ? asked : has;
}

uint64_t planner_model_layer_params(const planner_model *m) {
    const planner_dims d = planner_model_dims(m);
    const uint64_t norms = m->shape.bare_norms ? 0 : 2ull * m->shape.hidden,
                   qk = m->shape.qk_norm ? 2 * d.head_dim : 0;
    return m->shape.hidden * (2 * d.q + 2 * d.kv + (m->shape.no_gate ? 2 : 3) * d.ffn) + norms + qk;
}

/* The vocabulary is split over tp. */
static uint64_t table_params(const planner_model *m) {
    return planner_ceil_div(m->shape.vocab, m->run.tp) * m->shape.hidden;
}

static int has_first(const planner_model *m, uint32_t rank) {
    return planner_model_chunk_at(m, rank, 0) >= 0;
}

static int has_last(const planner_model *m, uint32_t rank) {
    return planner_model_chunk_at(m, rank, planner_model_n_virtual(m) - 1) >= 0;
}

uint64_t planner_model_params(const planner_model *m, uint32_t rank) {
    const int first = has_first(m, rank), last = has_last(m, rank);
    uint64_t params = planner_mul(planner_model_rank_layers(m, rank), planner_model_layer_params(m));
    if (first) params += table_params(m);
    if (last) /* a tied head on another rank is a copy */
        params +=
            (m->shape.bare_norms ? 0 : m->shape.hidden) + (m->shape.tied && first ? 0 : table_params(m));
    return params;
}

static uint64_t weight_bytes(const planner_model *m, uint64_t params) {
    return planner_mul(params, m->run.weights32 ? 4 : 2);
}

static uint64_t grad_bytes(const planner_model *m, uint64_t params) {
    return m->run.grad_bits == 8 ? planner_add(params, 4 * planner_ceil_div(params, AGOQ_GRAD_BLOCK))
                                 : planner_mul(params, (uint64_t)m->run.grad_bits / 8);
}

/* Both moments, and master weights where the weights are bf16; 8-bit moments have one fp32 per block of 256
 * each. */
uint64_t planner_model_optimizer_bytes(const planner_model *m, uint64_t params, planner_shard shard) {
    const uint64_t own =
        shard == PLANNER_SHARD_NONE ? params : planner_ceil_div(params, planner_model_dims(m).replicas);
    const uint64_t moments =
        m->run.adam8 ? planner_add(2 * own, 8 * planner_ceil_div(own, 256)) : planner_mul(8, own);
    return planner_add(m->run.weights32 ? 0 : 4 * own, moments);
}

/* Backward of one layer. Packed: the whole layer unpacked as a fused 16-bit trainer would have kept it, and
 * gradients of gate and up and of the residual. Not packed: it is there already; gradients of product, gate,
 * up, and of input and output. What is recomputed is there for one layer at a time. */
static uint64_t layer_transient(const planner_model *m, uint32_t recomputed) {
    const planner_dims d = planner_model_dims(m);
    const uint64_t n = d.tokens, ups = m->shape.no_gate ? 1 : 2,
                   residual = planner_mul(planner_model_spread(m, n), 2ull * m->shape.hidden),
                   up_grads = planner_mul(n, 2 * ups * d.ffn);
    const int bits = m->run.account_bits ? m->run.account_bits : 4;
    planner_model whole = *m;
    whole.run.recompute_modules = 0;
    const uint64_t full = planner_model_layer_bytes(&whole, n, -1, bits),
                   kept = planner_model_layer_bytes(m, n, -1, bits), again = recomputed ? full : full - kept;
    if (m->run.storage != PLANNER_STORE_PLAN) {
        const uint64_t product = planner_mul(n, 2 * d.ffn);
        return planner_add(planner_add(again, up_grads), planner_add(product, 2 * residual));
    }
    whole.run.accounting = PLANNER_ACCOUNT_FUSED;
    whole.run.storage = PLANNER_STORE_16;
    const uint64_t unpacked = planner_model_layer_bytes(&whole, n, -1, 16);
    return planner_add(planner_add(unpacked, recomputed ? full : 0), planner_add(up_grads, residual));
}

/* bf16 logits and an fp32 copy that becomes the gradient, of one micro-batch or of one part of it. */
static uint64_t logits_transient(const planner_model *m, uint32_t rank) {
    const uint32_t parts = m->run.loss_chunks ? m->run.loss_chunks : 1;
    if (!has_last(m, rank)) return 0;
    return planner_mul(6 * planner_ceil_div(planner_model_dims(m).tokens, parts),
                       planner_ceil_div(m->shape.vocab, m->run.tp));
}

/* Two tensors from the neighbours in flight; two blocks of K and V that go round the context ring. */
static uint64_t receive_buffers(const planner_model *m) {
    const planner_dims d = planner_model_dims(m);
    const uint64_t stage = m->run.pp > 1 ? 2 * planner_model_input_bytes(m, d.tokens) : 0;
    return planner_add(stage, m->run.cp > 1 ? planner_mul(2 * d.tokens, 4 * d.kv) : 0);
}

/* ZERO3: weights of the layer at work and of the next one, or a vocabulary table and a layer. ZERO2 too: the
 * gradients of what is at work, in 16 bits, before they are reduced. */
static uint64_t gathered(const planner_model *m, uint32_t rank) {
    const int shards = m->run.shard == PLANNER_SHARD_ZERO2 || m->run.shard == PLANNER_SHARD_ZERO3;
    const uint64_t layer = planner_model_layer_params(m),
                   table = has_first(m, rank) || has_last(m, rank) ? table_params(m) : 0,
                   largest = layer > table ? layer : table;
    if (!shards || planner_model_dims(m).replicas < 2) return 0;
    const uint64_t weights =
        m->run.shard == PLANNER_SHARD_ZERO3 ? weight_bytes(m, planner_add(largest, layer)) : 0;
    return planner_add(weights, planner_mul(2, largest));
}

void planner_model_fill_parts(const planner_model *m, uint32_t rank, planner_parts *parts) {
    const planner_run *r = &m->run;
    const uint64_t params = planner_model_params(m, rank), replicas = planner_model_dims(m).replicas,
                   bucket = params < BUCKET_PARAMS ? params : BUCKET_PARAMS;
    const int grads_shared = r->shard == PLANNER_SHARD_ZERO2 || r->shard == PLANNER_SHARD_ZERO3,
              in_place = r->shard == PLANNER_SHARD_DISTRIBUTED && r->grad_bits != 8;
    const uint32_t recomputed = planner_model_recomputed(m, rank);
    *parts = (planner_parts){
        .params = params,
        .weight_bytes =
            weight_bytes(m, r->shard == PLANNER_SHARD_ZERO3 ? planner_ceil_div(params, replicas) : params),
        .grad_bytes = grad_bytes(m, grads_shared ? planner_ceil_div(params, replicas) : params),
        .optimizer_bytes = planner_model_optimizer_bytes(m, params, r->shard),
        .layer_bytes = planner_model_rank_layers(m, rank) ? layer_transient(m, recomputed) : 0,
        .logits_bytes = logits_transient(m, rank),
        .receive_bytes = receive_buffers(m),
        .gather_bytes = gathered(m, rank),
        .exchange_bytes = replicas > 1 && !in_place ? 2 * grad_bytes(m, bucket) : 0,
        .update_bytes = bucket * 4, /* one bucket of gradients in fp32 */
        .layers = planner_model_rank_layers(m, rank),
        .recomputed = recomputed};
}
