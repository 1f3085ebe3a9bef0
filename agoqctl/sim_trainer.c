/* What agoq-train holds besides saved activations, tensor by tensor as trainer/ allocates it: fp32 weights,
 * gradients and moments, workspace of one micro-batch, and rings of sent messages. It exists so that what
 * `simulate` says can be held against what a trainer measures; a test does. The trade-off: this repeats sizes
 * from trainer/model.c, grads.c, optim.c and pipe.c; the test fails when they drift apart. */
#include <string.h>

#include "agoqctl/sim_answer.h"
#include "common/mem.h"
#include "common/most.h"
#include "common/try.h"

enum { ROUND = 64, ATTENTION_ROWS = 64 };

static uint64_t rounded(uint64_t bytes) {
    return (bytes + ROUND - 1) / ROUND * ROUND;
}

const char *sim_trainer_refused(const planner_model *m) {
    const planner_run *r = &m->run;
    if (r->accounting != PLANNER_ACCOUNT_FUSED || r->storage != PLANNER_STORE_PLAN)
        return "workspace agoq-train: it keeps activations as accounting fused does";
    if (r->tp > 1 || r->cp > 1) return "workspace agoq-train: it has neither tp nor cp";
    if (m->shape.tied || m->shape.qk_norm || m->shape.bare_norms || m->shape.no_gate ||
        (m->shape.head_dim && m->shape.head_dim * m->shape.heads != m->shape.hidden))
        return "workspace agoq-train: it trains plain LLaMA models";
    if (r->grad_bits == 16) return "workspace agoq-train: its gradients are fp8 or fp32";
    if (r->shard != PLANNER_SHARD_NONE && r->shard != PLANNER_SHARD_ZERO1)
        return "workspace agoq-train: it shards the optimizer or nothing";
    if (r->dp > 1 && r->grad_bits == 8)
        return "workspace agoq-train: with dp the exchange of fp8 gradients is not counted; use --grads fp32";
    if (r->recompute_layers || r->recompute || r->recompute_modules || r->loss_chunks > 1)
        return "workspace agoq-train: it recomputes nothing beyond what fused kernels do";
    if (r->no_live && r->route != PLANNER_ROUTE_LOOP)
        return "workspace agoq-train: its chunks follow each other round and round";
    if (!r->no_live && r->schedule != AGOQ_SCHEDULE_GPIPE && r->schedule != AGOQ_SCHEDULE_1F1B &&
        r->schedule != AGOQ_SCHEDULE_INTERLEAVED)
        return "workspace agoq-train: its schedules are gpipe, 1f1b and interleaved";
    if ((uint64_t)r->pp * r->chunks * r->microbatches > 1u << 18)
        return "workspace agoq-train: too many operations to find out how many messages are under way";
    return NULL;
}

/* Messages between stages, sent from rings: how many slots the lists need to complete, as pipe.c finds out.
 */
typedef struct player {
    uint32_t at;
    int took;
    uint32_t in_ring[2];
} player;

typedef struct play {
    const planner_ops *ops;
    uint32_t slots, n_virtual;
    player *ranks;
    char *sent; /* [2][microbatch][virtual stage] */
} play;

static int advance(play *p, uint32_t rank) {
    const planner_ops *o = p->ops;
    player *me = &p->ranks[rank];
    if (o->start[rank] + me->at == o->start[rank + 1]) return 0;
    const planner_op *op = &o->ops[o->start[rank] + me->at];
    const int back = op->kind != PLANNER_OP_FORWARD, step = back ? -1 : 1;
    const int64_t at = (int64_t)op->chunk * o->n_ranks + rank, from = at - step, to = at + step;
    char *row = p->sent + ((size_t)back * o->n_microbatches + op->microbatch) * p->n_virtual;
    int moved = 0;
    if (!me->took) {
        if (from >= 0 && from < p->n_virtual) {
            if (!row[at]) return 0;
            row[at] = 0;
            p->ranks[from % o->n_ranks].in_ring[back]--;
        }
        me->took = moved = 1;
    }
    if (to >= 0 && to < p->n_virtual) {
        if (me->in_ring[back] == p->slots) return moved;
        me->in_ring[back]++;
        row[to] = 1;
    }
    me->took = 0;
    me->at++;
    return 1;
}

static int completes(play *p) {
    const planner_ops *o = p->ops;
    int moved = 1;
    memset(p->ranks, 0, o->n_ranks * sizeof *p->ranks);
    memset(p->sent, 0, (size_t)2 * o->n_microbatches * p->n_virtual);
    while (moved) {
        moved = 0;
        for (uint32_t r = 0; r < o->n_ranks; r++) moved |= advance(p, r);
    }
    for (uint32_t r = 0; r < o->n_ranks; r++) {
        if (o->start[r] + p->ranks[r].at != o->start[r + 1]) return 0;
    }
    return 1;
}

static agoq_status ring_slots(const planner_model *m, const planner_ops *list, uint32_t *slots) {
    const planner_run *r = &m->run;
    const planner_schedule s = {r->schedule, r->pp, r->microbatches, r->chunks, r->group, 0};
    planner_ops made = {0};
    agoq_status status = AGOQ_E_NOMEM;
    if (!list) AGOQ_TRY(planner_ops_make(&s, &made));
    play p = {.ops = list ? list : &made, .n_virtual = r->pp * r->chunks};
    p.ranks = mem_zalloc(r->pp, sizeof *p.ranks);
    p.sent = mem_zalloc((size_t)2 * r->microbatches, p.n_virtual);
    if (!p.ranks || !p.sent) goto out;
    const uint32_t most = r->microbatches * r->chunks;
    p.slots = 1;
    while (p.slots < most && !completes(&p)) p.slots++;
    *slots = p.slots + 1;
    status = AGOQ_OK;
out:
    mem_free(p.ranks);
    mem_free(p.sent);
    planner_ops_fini(&made);
    return status;
}

typedef struct state {
    const planner_run *run;
    uint64_t weights, grads, optimizer, largest;
} state;

static void add_param(state *t, uint64_t n, int matrix) {
    const planner_run *r = t->run;
    const uint64_t blocks = (n + AGOQ_GRAD_BLOCK - 1) / AGOQ_GRAD_BLOCK;
    uint64_t own = n;
    t->weights += rounded(4 * n);
    t->grads += r->grad_bits == 8 && matrix ? rounded(n) + rounded(4 * blocks) : rounded(4 * n);
    if (r->shard == PLANNER_SHARD_ZERO1 && matrix) { /* the first replica's: the largest */
        own = (blocks + r->dp - 1) / r->dp * AGOQ_GRAD_BLOCK;
        own = own < n ? own : n;
    }
    t->optimizer +=
        r->adam8 && matrix ? 2 * rounded(own) + 2 * rounded(4 * ((own + 255) / 256)) : 2 * rounded(4 * own);
    if (matrix) t->largest = most_u64(t->largest, n);
}

/* Which virtual stages the rank has: loop order is all that the trainer knows. */
static void add_params(state *t, const planner_model *m, uint32_t rank, uint32_t layers) {
    const uint64_t h = m->shape.hidden, f = m->shape.ffn,
                   qkv = h + 2 * (h / m->shape.heads) * m->shape.kv_heads;
    for (uint32_t l = 0; l < layers; l++) {
        add_param(t, 2 * h, 0);
        add_param(t, h * qkv, 1);
        add_param(t, h * h, 1);
        add_param(t, 2 * h * f, 1);
        add_param(t, f * h, 1);
    }
    if (rank == 0) add_param(t, m->shape.vocab * h, 1);
    if (rank == m->run.pp - 1) {
        add_param(t, h, 0);
        add_param(t, h * m->shape.vocab, 1);
    }
}

static uint64_t workspace(const planner_model *m, uint32_t rank, uint64_t largest) {
    const uint64_t h = m->shape.hidden, f = m->shape.ffn, d = h / m->shape.heads,
                   qkv = h + 2 * d * m->shape.kv_heads, n = (uint64_t)m->run.seq * m->run.microbatch;
    uint64_t bytes =
        6 * rounded(4 * n * h) + 2 * rounded(4 * n * qkv) + 2 * rounded(8 * n * f) + 2 * rounded(4 * n * f);
    if (rank == m->run.pp - 1) bytes += rounded(4 * n * m->shape.vocab);
    bytes += rounded(4 * (2ull * ATTENTION_ROWS * m->run.seq + ATTENTION_ROWS));
    bytes += rounded(4 * m->run.seq * d) + 2 * rounded(n) + rounded(4 * largest);
    return bytes;
}

static uint64_t rings(const planner_model *m, uint32_t rank, uint32_t slots) {
    const uint32_t pp = m->run.pp, v = m->run.chunks;
    const uint64_t message = rounded(2ull * m->run.seq * m->run.microbatch * m->shape.hidden);
    if (pp == 1) return 0;
    const int ways = (v > 1 || rank != pp - 1) + (v > 1 || rank != 0);
    return message * (uint64_t)ways * slots + message;
}

/* Token ids take a byte in the trainer, eight in the model. */
static void adjust_saved(const planner_model *m, planner_model_problem *p) {
    const uint64_t n = (uint64_t)m->run.seq * m->run.microbatch, less = rounded(8 * n) - rounded(n);
    p->fixed[0] -= less;
    p->fixed[(size_t)m->run.pp * m->run.chunks - 1] -= less;
}

agoq_status sim_trainer_bytes(const planner_model *m, const planner_ops *list, planner_model_problem *p) {
    uint32_t slots = 0;
    if (m->run.pp > 1) AGOQ_TRY(ring_slots(m, list, &slots));
    adjust_saved(m, p);
    for (uint32_t s = 0; s < m->run.pp; s++) {
        planner_parts *parts = &p->parts[s];
        state t = {.run = &m->run};
        add_params(&t, m, s, parts->layers);
        const uint64_t own = workspace(m, s, t.largest), sent = rings(m, s, slots);
        parts->weight_bytes = t.weights;
        parts->grad_bytes = t.grads;
        parts->optimizer_bytes = p->optimizer_bytes[s] = t.optimizer;
        parts->layer_bytes = own;
        parts->logits_bytes = 0;
        parts->receive_bytes = sent;
        const uint64_t extra = m->run.stage_extras ? m->run.stage_extras[s] : 0;
        for (int i = 0; i < AGOQ_N_PHASES; i++)
            p->stages[s].phase[i] = (planner_phase){.static_bytes = t.weights + t.grads + t.optimizer +
                                                                    m->run.context_bytes + extra,
                                                    .workspace_bytes = own + sent};
    }
    return AGOQ_OK;
}
