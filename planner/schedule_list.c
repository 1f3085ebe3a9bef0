/* The operation lists of every schedule whose ranks can be written down one by one: GPipe, 1F1B, interleaved
 * 1F1B (Megatron's order: arXiv 2104.04473), ZB-H1, ZB-H2 and ZB-V (arXiv 2401.10241, 2405.15362), DualPipe
 * and DualPipeV (arXiv 2412.19437). Lists are built in full rather than streamed: 8 bytes an operation buy
 * one form that the player, the live counts and files share. */
#include "common/mem.h"
#include "common/try.h"
#include "planner/schedule_internal.h"

typedef struct writer {
    const planner_schedule *s;
    planner_op *ops;
    uint32_t n, group;
} writer;

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

static void put(writer *w, planner_op_kind kind, uint32_t microbatch, uint32_t chunk) {
    w->ops[w->n++] = (planner_op){microbatch, (uint16_t)chunk, (uint16_t)kind};
}

/* GPipe and 1F1B: so many forwards ahead, then one forward, one backward. */
static void one_chunk(writer *w, uint32_t ahead) {
    const uint32_t m = w->s->n_microbatches;
    for (uint32_t k = 0; k < ahead; k++) put(w, PLANNER_OP_FORWARD, k, 0);
    for (uint32_t k = 0; k < m; k++) {
        if (k + ahead < m) put(w, PLANNER_OP_FORWARD, k + ahead, 0);
        put(w, PLANNER_OP_BACKWARD, k, 0);
    }
}

/* The k-th operation of a kind: groups of micro-batches walk through the chunks; the last one may be smaller.
 */
static void put_nth(writer *w, planner_op_kind kind, uint32_t k) {
    const planner_schedule *s = w->s;
    const uint32_t v = s->n_chunks, group = w->group;
    const uint32_t first = k / (group * v) * group, in = k % (group * v);
    const uint32_t size = least(group, s->n_microbatches - first), step = in / size;
    put(w, kind, first + in % size, kind == PLANNER_OP_FORWARD ? step : v - 1 - step);
}

static void interleaved(writer *w, uint32_t rank) {
    const planner_schedule *s = w->s;
    const uint32_t total = s->n_microbatches * s->n_chunks, group = w->group;
    const uint64_t wish =
        2 * (uint64_t)(s->n_ranks - rank - 1) + (uint64_t)(s->n_chunks - 1) * group + s->ahead;
    const uint32_t ahead = wish < total ? (uint32_t)wish : total;
    for (uint32_t k = 0; k < ahead; k++) put_nth(w, PLANNER_OP_FORWARD, k);
    for (uint32_t k = 0; k < total; k++) {
        if (k + ahead < total) put_nth(w, PLANNER_OP_FORWARD, k + ahead);
        put_nth(w, PLANNER_OP_BACKWARD, k);
    }
}

/* ZB-H1 and ZB-H2: 1F1B whose weight halves trail the input halves, so that they fill the bubble at the end.
 */
static void zero_bubble(writer *w, uint32_t ahead, uint32_t trail) {
    const uint32_t m = w->s->n_microbatches;
    for (uint32_t k = 0; k < least(ahead, m); k++) put(w, PLANNER_OP_FORWARD, k, 0);
    for (uint32_t k = 0; k < m + trail; k++) {
        if (k + ahead < m) put(w, PLANNER_OP_FORWARD, k + ahead, 0);
        if (k < m) put(w, PLANNER_OP_INPUT, k, 0);
        if (k >= trail) put(w, PLANNER_OP_WEIGHT, k - trail, 0);
    }
}

/* State of a list over two chunks: how many of each kind are written. Micro-batches from `end` on are not
 * written but counted, which shortens a list that is made for more. */
typedef struct two {
    writer *w;
    uint32_t end;
    uint32_t forward[2], input[2], weight[2];
} two;

static void put_two(two *t, planner_op_kind kind, uint32_t count[2], uint32_t chunk) {
    const uint32_t microbatch = count[chunk]++;
    if (microbatch < t->end) put(t->w, kind, microbatch, chunk);
}

static void forward(two *t, uint32_t chunk) {
    put_two(t, PLANNER_OP_FORWARD, t->forward, chunk);
}

static void input(two *t, uint32_t chunk) {
    put_two(t, PLANNER_OP_INPUT, t->input, chunk);
}

static void weight(two *t, uint32_t chunk) {
    put_two(t, PLANNER_OP_WEIGHT, t->weight, chunk);
}

static void whole(two *t, uint32_t chunk) {
    input(t, chunk);
    weight(t, chunk);
}

/* The pipeline is full with 2p - 1 micro-batches; fewer leave holes in the same list. */
static void zb_v(writer *w, uint32_t rank) {
    const uint32_t p = w->s->n_ranks, m = w->s->n_microbatches, full = m < 2 * p - 1 ? 2 * p - 1 : m;
    two t = {.w = w, .end = m};
    for (uint32_t k = 0; k < 2 * (p - rank) - 1; k++) forward(&t, 0);
    for (uint32_t k = 0; k < rank; k++) forward(&t, 1), forward(&t, 0);
    for (uint32_t k = 0; k < p - rank; k++) forward(&t, 1), whole(&t, 1);
    while (t.forward[1] < t.forward[0] || t.forward[0] < full) {
        if (t.forward[0] < full) forward(&t, 0);
        whole(&t, 0);
        forward(&t, 1);
        whole(&t, 1);
    }
    for (uint32_t k = 0; k < rank; k++) input(&t, 0), input(&t, 1);
    for (uint32_t k = 0; k < p - rank; k++) input(&t, 0), weight(&t, 0);
    while (t.weight[1] < full) weight(&t, 1);
    while (t.weight[0] < full) weight(&t, 0);
}

/* DualPipe and DualPipeV. `near` is the direction whose micro-batches reach this rank first; the other comes
 * back (DualPipeV) or from the other end (DualPipe). Backwards are whole or split; the weight halves of split
 * ones are done in the order in which they were put off. */
typedef struct dual {
    writer *w;
    uint32_t chunk[2], base[2]; /* of the near and the far direction: chunk, first micro-batch */
    uint32_t forward[2], backward[2];
    uint32_t put_off, done; /* weight halves: of the operations written, those up to `done` are scanned */
} dual;

static void dual_forward(dual *d, int far) {
    put(d->w, PLANNER_OP_FORWARD, d->base[far] + d->forward[far]++, d->chunk[far]);
}

static void dual_backward(dual *d, int far, int split) {
    put(d->w, split ? PLANNER_OP_INPUT : PLANNER_OP_BACKWARD, d->base[far] + d->backward[far]++,
        d->chunk[far]);
    d->put_off += split != 0;
}

static void dual_weight(dual *d) {
    if (!d->put_off) return;
    while (d->w->ops[d->done].kind != PLANNER_OP_INPUT) d->done++;
    const planner_op op = d->w->ops[d->done++];
    put(d->w, PLANNER_OP_WEIGHT, op.microbatch, op.chunk);
    d->put_off--;
}

/* `half` ranks from the middle of the pipeline outwards, of which this one is number `at` from outside;
 * `each` micro-batches in each direction. A forward and a backward that run together are written forward
 * first: both are held meanwhile. */
static void dual_list(dual *d, uint32_t half, uint32_t at, uint32_t each) {
    const uint32_t inner = half - at - 1;
    for (uint32_t k = 0; k < 2 * inner; k++) dual_forward(d, 0);
    for (uint32_t k = 0; k < at + 1; k++) dual_forward(d, 0), dual_forward(d, 1);
    for (uint32_t k = 0; k < inner; k++) dual_backward(d, 1, 1), dual_weight(d), dual_forward(d, 1);
    for (uint32_t k = 0; k < each - 2 * half + at + 1; k++) {
        dual_forward(d, 0), dual_backward(d, 1, 0);
        dual_forward(d, 1), dual_backward(d, 0, 0);
    }
    for (uint32_t k = 0; k < inner; k++) dual_backward(d, 1, 0), dual_forward(d, 1), dual_backward(d, 0, 0);
    for (uint32_t k = 0; k < at + 1; k++) { /* split from the middle of this phase on */
        const uint32_t middle = (at + 1) / 2;
        dual_backward(d, 1, k > middle || (k == middle && at % 2 == 1));
        dual_backward(d, 0, k >= middle);
    }
    for (uint32_t k = 0; k < inner; k++) dual_weight(d), dual_backward(d, 0, 1);
    while (d->put_off) dual_weight(d);
}

static void dualpipe(writer *w, uint32_t rank) {
    const uint32_t p = w->s->n_ranks, m = w->s->n_microbatches, lower = rank >= p / 2;
    dual d = {.w = w, .chunk = {lower, !lower}, .base = {lower ? m / 2 : 0, lower ? 0 : m / 2}};
    dual_list(&d, p / 2, lower ? p - 1 - rank : rank, m / 2);
}

static void dualpipev(writer *w, uint32_t rank) {
    dual d = {.w = w, .chunk = {0, 1}};
    dual_list(&d, w->s->n_ranks, rank, w->s->n_microbatches);
}

uint64_t schedule_rank_most(const planner_schedule *s) {
    return 3 * (uint64_t)s->n_microbatches * s->n_chunks;
}

uint32_t schedule_rank_ops(const planner_schedule *s, uint32_t rank, planner_op *ops) {
    const uint32_t p = s->n_ranks, m = s->n_microbatches;
    writer w = {s, ops, 0, planner_schedule_group(s)};
    switch (s->kind) {
    case AGOQ_SCHEDULE_1F1B:
        one_chunk(&w, least(m, p - rank - 1));
        break;
    case AGOQ_SCHEDULE_INTERLEAVED:
        interleaved(&w, rank);
        break;
    case AGOQ_SCHEDULE_ZB_H1:
        zero_bubble(&w, p - rank - 1, rank);
        break;
    case AGOQ_SCHEDULE_ZB_H2:
        zero_bubble(&w, 2 * (p - rank - 1), 2 * rank);
        break;
    case AGOQ_SCHEDULE_ZB_V:
        zb_v(&w, rank);
        break;
    case AGOQ_SCHEDULE_DUALPIPE:
        dualpipe(&w, rank);
        break;
    case AGOQ_SCHEDULE_DUALPIPEV:
        dualpipev(&w, rank);
        break;
    default:
        one_chunk(&w, m);
        break;
    }
    return w.n;
}

agoq_status schedule_ops_alloc(planner_ops *ops, const uint32_t *n_of_rank) {
    uint64_t total = 0;
    if (!(ops->start = mem_zalloc(ops->n_ranks + 1, sizeof *ops->start))) return AGOQ_E_NOMEM;
    for (uint32_t r = 0; r < ops->n_ranks; r++) {
        total += n_of_rank[r];
        if (total > PLANNER_MAX_OPS) return AGOQ_E_LIMIT;
        ops->start[r + 1] = (uint32_t)total;
    }
    ops->ops = mem_zalloc((size_t)total, sizeof *ops->ops);
    return ops->ops ? AGOQ_OK : AGOQ_E_NOMEM;
}

agoq_status planner_ops_make(const planner_schedule *s, planner_ops *out) {
    if (!s || !out || planner_schedule_refused(s)) return AGOQ_E_INVAL;
    const uint64_t most = schedule_rank_most(s);
    if (most * s->n_ranks > PLANNER_MAX_OPS) return AGOQ_E_LIMIT;
    if (s->kind == AGOQ_SCHEDULE_V_HALF || s->kind == AGOQ_SCHEDULE_V_MIN) return schedule_vee_ops(s, out);
    planner_ops made = {
        planner_schedule_route(s->kind), s->n_ranks, s->n_microbatches, s->n_chunks, NULL, NULL};
    made.start = mem_zalloc(s->n_ranks + 1, sizeof *made.start);
    made.ops = mem_zalloc((size_t)most * s->n_ranks, sizeof *made.ops);
    if (!made.start || !made.ops) {
        planner_ops_fini(&made);
        return AGOQ_E_NOMEM;
    }
    for (uint32_t r = 0; r < s->n_ranks; r++)
        made.start[r + 1] = made.start[r] + schedule_rank_ops(s, r, made.ops + made.start[r]);
    *out = made;
    return AGOQ_OK;
}

void planner_ops_fini(planner_ops *ops) {
    if (!ops) return;
    mem_free(ops->start);
    mem_free(ops->ops);
    *ops = (planner_ops){0};
}
