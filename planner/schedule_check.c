/* Plays operation lists: is every micro-batch taken once through every chunk of its path, and does every rank
 * get to its end? Ranks are woken by what they wait for, so the time is linear in the operations. Messages
 * are taken to be buffered without limit: a schedule that only a full buffer stops is fine here. */
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/schedule_internal.h"

enum { WENT_FORWARD = 1, HAS_INPUT = 2, HAS_WEIGHT = 4, HAS_ALL = 7 };

typedef struct play {
    const planner_ops *ops;
    uint32_t places;
    uint8_t *state;           /* [n_microbatches][places] */
    uint32_t *next;           /* [n_ranks] */
    uint32_t *queue, n_queue; /* ranks to be tried, a stack without doubles */
    uint8_t *queued;
} play;

uint32_t schedule_places(const planner_ops *ops) {
    return planner_route_pieces(ops->route, ops->n_ranks, ops->n_chunks);
}

/* Micro-batches that go upwards, chunk 0, in TWO_WAY. */
static uint32_t first_half(const planner_ops *ops) {
    return ops->n_microbatches - ops->n_microbatches / 2;
}

uint32_t schedule_place(const planner_ops *ops, uint32_t rank, uint32_t chunk, uint32_t microbatch) {
    if (ops->route == PLANNER_ROUTE_TWO_WAY && (microbatch >= first_half(ops)) != (chunk == 1))
        return UINT32_MAX;
    return planner_route_piece(ops->route, ops->n_ranks, rank, chunk);
}

static uint32_t rank_of_place(const planner_ops *ops, uint32_t place, uint32_t microbatch) {
    const uint32_t p = ops->n_ranks;
    switch (ops->route) {
    case PLANNER_ROUTE_VEE:
        return place < p ? place : 2 * p - 1 - place;
    case PLANNER_ROUTE_TWO_WAY:
        return microbatch >= first_half(ops) ? p - 1 - place : place;
    default:
        return place % p;
    }
}

static void wake(play *p, uint32_t rank) {
    if (p->queued[rank]) return;
    p->queued[rank] = 1;
    p->queue[p->n_queue++] = rank;
}

/* What is wrong with the operation itself, whatever others do; NULL if nothing. */
static const char *wrong(const play *p, uint32_t rank, const planner_op *op) {
    const planner_ops *ops = p->ops;
    if (op->microbatch >= ops->n_microbatches) return "there is no such micro-batch";
    if (op->chunk >= ops->n_chunks) return "there is no such chunk";
    const uint32_t place = schedule_place(ops, rank, op->chunk, op->microbatch);
    if (place == UINT32_MAX) return "this micro-batch does not pass this chunk";
    const uint8_t state = p->state[(size_t)op->microbatch * p->places + place];
    switch (op->kind) {
    case PLANNER_OP_FORWARD:
        return state & WENT_FORWARD ? "a second forward" : NULL;
    case PLANNER_OP_BACKWARD:
    case PLANNER_OP_INPUT:
        if (state & HAS_INPUT) return "a second backward";
        return state & WENT_FORWARD ? NULL : "backward before forward";
    case PLANNER_OP_WEIGHT:
        if (state & HAS_WEIGHT) return "a second weight half";
        return state & HAS_INPUT ? NULL : "weight half before the input half";
    default:
        return "there is no such operation";
    }
}

/* Does the rank on its other side have what the operation needs? */
static int is_ready(const play *p, const planner_op *op, uint32_t place) {
    const uint8_t *state = p->state + (size_t)op->microbatch * p->places;
    if (op->kind == PLANNER_OP_FORWARD) return place == 0 || (state[place - 1] & WENT_FORWARD);
    if (op->kind == PLANNER_OP_WEIGHT) return 1;
    return place + 1 == p->places || (state[place + 1] & HAS_INPUT);
}

/* One rank, until it waits or is through. */
static agoq_status go_on(play *p, uint32_t rank, planner_ops_fault *fault) {
    const planner_ops *ops = p->ops;
    for (; p->next[rank] < ops->start[rank + 1]; p->next[rank]++) {
        const planner_op *op = &ops->ops[p->next[rank]];
        const char *what = wrong(p, rank, op);
        if (what) {
            *fault = (planner_ops_fault){rank, p->next[rank] - ops->start[rank], what, *op};
            return AGOQ_E_INVAL;
        }
        const uint32_t place = schedule_place(ops, rank, op->chunk, op->microbatch);
        if (!is_ready(p, op, place)) return AGOQ_OK;
        static const uint8_t gives[] = {WENT_FORWARD, HAS_INPUT | HAS_WEIGHT, HAS_INPUT, HAS_WEIGHT};
        p->state[(size_t)op->microbatch * p->places + place] |= gives[op->kind];
        if (op->kind == PLANNER_OP_FORWARD && place + 1 < p->places)
            wake(p, rank_of_place(ops, place + 1, op->microbatch));
        else if (op->kind != PLANNER_OP_FORWARD && op->kind != PLANNER_OP_WEIGHT && place > 0)
            wake(p, rank_of_place(ops, place - 1, op->microbatch));
    }
    return AGOQ_OK;
}

static agoq_status missing(const planner_ops *ops, uint32_t rank, uint32_t microbatch, uint32_t chunk,
                           uint8_t state, planner_ops_fault *fault) {
    static const char *const whats[] = {[PLANNER_OP_FORWARD] = "a forward is missing",
                                        [PLANNER_OP_BACKWARD] = "a backward is missing",
                                        [PLANNER_OP_INPUT] = "an input half is missing",
                                        [PLANNER_OP_WEIGHT] = "a weight half is missing"};
    const planner_op_kind kind = !(state & WENT_FORWARD) ? PLANNER_OP_FORWARD
                                 : state & HAS_INPUT     ? PLANNER_OP_WEIGHT
                                 : state & HAS_WEIGHT    ? PLANNER_OP_INPUT
                                                         : PLANNER_OP_BACKWARD;
    *fault = (planner_ops_fault){rank,
                                 ops->start[rank + 1] - ops->start[rank],
                                 whats[kind],
                                 {microbatch, (uint16_t)chunk, (uint16_t)kind}};
    return AGOQ_E_INVAL;
}

/* Forwards first: what did not go forward has no backward. */
static uint32_t first_lacking(const planner_ops *ops, uint32_t rank, const uint8_t *state) {
    const uint32_t v = ops->n_chunks, n = ops->n_microbatches * v;
    uint32_t lacks = 0, found = 0;
    for (uint32_t k = 0; k < n; k++) {
        if (schedule_place(ops, rank, k % v, k / v) == UINT32_MAX) continue;
        if (!(state[k] & WENT_FORWARD)) return k;
        if (found || state[k] == HAS_ALL) continue;
        lacks = k;
        found = 1;
    }
    return lacks;
}

/* A rank with fewer operations than every micro-batch needs there, and the first that it lacks: a table of
 * one rank, since that of all may be huge where most is missing. */
static agoq_status lacking(const planner_ops *ops, planner_ops_fault *fault) {
    static const uint8_t gives[] = {WENT_FORWARD, HAS_INPUT | HAS_WEIGHT, HAS_INPUT, HAS_WEIGHT};
    const uint32_t m = ops->n_microbatches, v = ops->n_chunks;
    const uint64_t needed = (ops->route == PLANNER_ROUTE_TWO_WAY ? 2ull : 2ull * v) * m;
    uint32_t rank = 0;
    while (rank + 1 < ops->n_ranks && ops->start[rank + 1] - ops->start[rank] >= needed) rank++;
    uint8_t *state = mem_zalloc(m, v);
    if (!state) return AGOQ_E_NOMEM;
    for (uint32_t k = ops->start[rank]; k < ops->start[rank + 1]; k++) {
        const planner_op *op = &ops->ops[k];
        if (op->microbatch < m && op->chunk < v && op->kind <= PLANNER_OP_WEIGHT)
            state[(size_t)op->microbatch * v + op->chunk] |= gives[op->kind];
    }
    const uint32_t at = first_lacking(ops, rank, state);
    const uint8_t has = state[at];
    mem_free(state);
    return missing(ops, rank, at / v, at % v, has, fault);
}

static agoq_status run(play *p, planner_ops_fault *fault) {
    const planner_ops *ops = p->ops;
    for (uint32_t r = ops->n_ranks; r-- > 0;) {
        p->next[r] = ops->start[r];
        wake(p, r);
    }
    while (p->n_queue) {
        const uint32_t rank = p->queue[--p->n_queue];
        p->queued[rank] = 0;
        AGOQ_TRY(go_on(p, rank, fault));
    }
    for (uint32_t r = 0; r < ops->n_ranks; r++) {
        if (p->next[r] == ops->start[r + 1]) continue;
        *fault = (planner_ops_fault){r, p->next[r] - ops->start[r], "the rank waits for ever here",
                                     ops->ops[p->next[r]]};
        return AGOQ_E_INVAL;
    }
    for (size_t k = 0; k < (size_t)ops->n_microbatches * p->places; k++) {
        if (p->state[k] == HAS_ALL) continue;
        const uint32_t microbatch = (uint32_t)(k / p->places), place = (uint32_t)(k % p->places);
        const uint32_t rank = rank_of_place(ops, place, microbatch);
        uint32_t chunk = 0;
        while (schedule_place(ops, rank, chunk, microbatch) != place) chunk++;
        return missing(ops, rank, microbatch, chunk, p->state[k], fault);
    }
    return AGOQ_OK;
}

agoq_status planner_ops_check(const planner_ops *ops, planner_ops_fault *fault) {
    if (!ops || !fault || !ops->start || !ops->n_ranks || !ops->n_microbatches || !ops->n_chunks)
        return AGOQ_E_INVAL;
    *fault = (planner_ops_fault){
        0, 0, "vee and two-way routes have two chunks on a rank", {.kind = PLANNER_OP_NONE}};
    if (ops->route != PLANNER_ROUTE_LOOP && ops->n_chunks != 2) return AGOQ_E_INVAL;
    agoq_status status = AGOQ_E_NOMEM;
    play p = {.ops = ops, .places = schedule_places(ops)};
    if (ops->n_microbatches > PLANNER_MAX_MICROBATCHES || ops->n_chunks > PLANNER_MAX_CHUNKS) {
        fault->what = "too many micro-batches or chunks";
        return AGOQ_E_INVAL;
    }
    /* More places than operations: something is missing, and the tables could be huge. */
    if ((uint64_t)ops->n_microbatches * p.places * 2 > ops->start[ops->n_ranks]) return lacking(ops, fault);
    p.state = mem_zalloc((size_t)ops->n_microbatches, p.places);
    p.next = mem_zalloc(ops->n_ranks, sizeof *p.next);
    p.queue = mem_zalloc(ops->n_ranks, sizeof *p.queue);
    p.queued = mem_zalloc(ops->n_ranks, 1);
    if (!p.state || !p.next || !p.queue || !p.queued) goto out;
    status = run(&p, fault);
out:
    mem_free(p.state);
    mem_free(p.next);
    mem_free(p.queue);
    mem_free(p.queued);
    return status;
}
