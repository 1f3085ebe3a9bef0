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
    return ops->n_ranks * (ops->route == PLANNER_ROUTE_TWO_WAY ? 1 : ops->n_chunks);
}

/* Micro-batches that go upwards, chunk 0, in TWO_WAY. */
static uint32_t first_half(const planner_ops *ops) {
    return ops->n_microbatches - ops->n_microbatches / 2;
}

uint32_t schedule_place(const planner_ops *ops, uint32_t rank, uint32_t chunk, uint32_t microbatch) {
    const uint32_t p = ops->n_ranks;
    switch (ops->route) {
    case PLANNER_ROUTE_VEE:
        return chunk ? 2 * p - 1 - rank : rank;
    case PLANNER_ROUTE_TWO_WAY:
        if ((microbatch >= first_half(ops)) != (chunk == 1)) return UINT32_MAX;
        return chunk ? p - 1 - rank : rank;
    default:
        return chunk * p + rank;
    }
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
            *fault = (planner_ops_fault){rank, p->next[rank] - ops->start[rank], what};
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
        *fault = (planner_ops_fault){r, p->next[r] - ops->start[r], "the rank waits for ever here"};
        return AGOQ_E_INVAL;
    }
    for (size_t k = 0; k < (size_t)ops->n_microbatches * p->places; k++) {
        if (p->state[k] == HAS_ALL) continue;
        const uint32_t microbatch = (uint32_t)(k / p->places), place = (uint32_t)(k % p->places);
        const uint32_t rank = rank_of_place(ops, place, microbatch);
        const char *what = p->state[k] & HAS_INPUT      ? "the weight half of a micro-batch is missing"
                           : p->state[k] & WENT_FORWARD ? "the backward of a micro-batch is missing"
                                                        : "the forward of a micro-batch is missing";
        *fault = (planner_ops_fault){rank, ops->start[rank + 1] - ops->start[rank], what};
        return AGOQ_E_INVAL;
    }
    return AGOQ_OK;
}

agoq_status planner_ops_check(const planner_ops *ops, planner_ops_fault *fault) {
    if (!ops || !fault || !ops->start || !ops->n_ranks || !ops->n_microbatches || !ops->n_chunks)
        return AGOQ_E_INVAL;
    *fault = (planner_ops_fault){0, 0, "vee and two-way routes have two chunks on a rank"};
    if (ops->route != PLANNER_ROUTE_LOOP && ops->n_chunks != 2) return AGOQ_E_INVAL;
    agoq_status status = AGOQ_E_NOMEM;
    play p = {.ops = ops, .places = schedule_places(ops)};
    /* More places than operations: something is missing, and the tables could be huge. */
    *fault = (planner_ops_fault){0, 0, "a rank lacks operations"};
    if ((uint64_t)ops->n_microbatches * p.places * 2 > ops->start[ops->n_ranks]) return AGOQ_E_INVAL;
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
