/* V-Half and V-Min (arXiv 2405.15362): a building block of six slots, one for each of forward, input and
 * weight half of both chunks, repeated for every micro-batch. How far the block of a rank is stretched
 * decides how much is alive. The block alone leaves the first ranks idle at the start, so there operations
 * are drawn forward into free slots as long as no rank holds more than the block's own peak; the end is left
 * as the block has it, which costs time but no memory. The scheduler of that paper's
 * authors reaches the same peaks on every rank and, for V-Half, has one micro-batch more in the one chunk and
 * less in the other on some ranks: under unequal chunks observed counts tell.
 *
 * All ranks are laid out together, for a forward may only move behind the one it waits for. */
#include "common/mem.h"
#include "common/try.h"
#include "planner/schedule_internal.h"

#define BLOCK 6
enum { F0, F1, I1, I0, N_STEPS }; /* in the order of a micro-batch's path; then the weight halves, anywhere */
enum { W1 = N_STEPS, W0 };
#define FREE 0xffffffffu

static const planner_op of_step[] = {{0, 0, PLANNER_OP_FORWARD}, {0, 1, PLANNER_OP_FORWARD},
                                     {0, 1, PLANNER_OP_INPUT},   {0, 0, PLANNER_OP_INPUT},
                                     {0, 1, PLANNER_OP_WEIGHT},  {0, 0, PLANNER_OP_WEIGHT}};

typedef struct layout {
    uint32_t p, m, n_slots, cap;
    uint32_t *slot; /* [p][n_slots]: microbatch * BLOCK + step, or FREE */
    uint32_t *held; /* [p][n_slots]: chunks held after the slot */
    uint32_t *at;   /* [N_STEPS][m][p]: slot of a forward or input half */
} layout;

/* First slot of each step on a rank. Both halves of the path are passed at 1 slot a rank (V-Min), or one of
 * them at 2 (V-Half); a pause before the backward keeps steps out of each other's slot modulo 6. */
static void block(agoq_schedule kind, uint32_t p, uint32_t rank, uint32_t first[N_STEPS]) {
    const int half = kind == AGOQ_SCHEDULE_V_HALF;
    const uint32_t down = half ? 2 : 1, pause = half ? (p % 2 ? 0 : 3) : (p % 3 ? 0 : 2);
    first[F0] = down * rank;
    first[F1] = down * (p - 1) + 1 + (p - 1 - rank);
    const uint32_t back = (down + 1) * (p - 1) + 2 + pause;
    first[I1] = back + down * rank;
    first[I0] = back + down * (p - 1) + down + (p - 1 - rank);
}

static uint32_t *when(const layout *l, uint32_t step, uint32_t microbatch, uint32_t rank) {
    return &l->at[((size_t)step * l->m + microbatch) * l->p + rank];
}

/* Weight halves into the free slots: the first one after the input half, chunk 1 first. */
static agoq_status place_weights(const layout *l, uint32_t rank) {
    uint32_t *slot = l->slot + (size_t)rank * l->n_slots, ready[2] = {0}, done[2] = {0};
    for (uint32_t t = 0; t < l->n_slots; t++) {
        if (slot[t] != FREE) {
            const uint32_t step = slot[t] % BLOCK;
            ready[0] += step == I0;
            ready[1] += step == I1;
        } else if (done[1] < ready[1]) {
            slot[t] = done[1]++ * BLOCK + W1;
        } else if (done[0] < ready[0]) {
            slot[t] = done[0]++ * BLOCK + W0;
        }
    }
    return done[0] == l->m && done[1] == l->m ? AGOQ_OK : AGOQ_E_LIMIT;
}

static uint32_t count_held(const layout *l, uint32_t rank) {
    const uint32_t *slot = l->slot + (size_t)rank * l->n_slots;
    uint32_t *held = l->held + (size_t)rank * l->n_slots, now = 0, most = 0;
    for (uint32_t t = 0; t < l->n_slots; t++) {
        const uint32_t step = slot[t] % BLOCK;
        if (slot[t] != FREE) now += step <= F1;
        if (slot[t] != FREE) now -= step >= W1;
        held[t] = now;
        if (now > most) most = now;
    }
    return most;
}

/* The slot after all that the operation waits for. */
static uint32_t earliest(const layout *l, uint32_t microbatch, uint32_t step, uint32_t rank) {
    uint32_t after = 0;
    const int upwards = step == F0 || step == I1; /* from rank 0 on */
    if (microbatch) after = *when(l, step, microbatch - 1, rank) + 1;
    if (step && *when(l, step - 1, microbatch, rank) >= after)
        after = *when(l, step - 1, microbatch, rank) + 1;
    if (upwards ? rank > 0 : rank + 1 < l->p) {
        const uint32_t before = *when(l, step, microbatch, upwards ? rank - 1 : rank + 1);
        if (before >= after) after = before + 1;
    }
    return after;
}

/* Draws the operation in slot t forward, if that is possible. */
static void draw(const layout *l, uint32_t rank, uint32_t t) {
    uint32_t *slot = l->slot + (size_t)rank * l->n_slots, *held = l->held + (size_t)rank * l->n_slots;
    const uint32_t microbatch = slot[t] / BLOCK, step = slot[t] % BLOCK;
    uint32_t to = earliest(l, microbatch, step, rank);
    if (step <= F1) { /* held longer: only as far back as there is room */
        uint32_t from = t;
        while (from > to && held[from - 1] < l->cap) from--;
        to = from;
    }
    while (to < t && slot[to] != FREE) to++;
    if (to >= t) return;
    slot[to] = slot[t];
    slot[t] = FREE;
    *when(l, step, microbatch, rank) = to;
    if (step <= F1) {
        for (uint32_t k = to; k < t; k++) held[k]++;
    }
}

static void draw_weight(const layout *l, uint32_t rank, uint32_t t) {
    uint32_t *slot = l->slot + (size_t)rank * l->n_slots, *held = l->held + (size_t)rank * l->n_slots;
    uint32_t to = *when(l, slot[t] % BLOCK == W1 ? I1 : I0, slot[t] / BLOCK, rank) + 1;
    while (to < t && slot[to] != FREE) to++;
    if (to >= t) return;
    slot[to] = slot[t];
    slot[t] = FREE;
    for (uint32_t k = to; k < t; k++) held[k]--;
}

/* Until the first micro-batch is back on rank 0. */
static void fill_start(const layout *l, uint32_t end) {
    for (uint32_t t = 0; t < end; t++) {
        for (uint32_t r = 0; r < l->p; r++) {
            const uint32_t code = l->slot[(size_t)r * l->n_slots + t];
            if (code == FREE) continue;
            if (code % BLOCK >= W1)
                draw_weight(l, r, t);
            else
                draw(l, r, t);
        }
    }
}

static agoq_status lay_out(const planner_schedule *s, layout *l) {
    uint32_t first[N_STEPS], end = 0;
    for (size_t k = 0; k < (size_t)l->p * l->n_slots; k++) l->slot[k] = FREE;
    for (uint32_t r = 0; r < l->p; r++) {
        block(s->kind, l->p, r, first);
        if (r == 0) end = first[I0];
        for (uint32_t step = 0; step < N_STEPS; step++) {
            for (uint32_t b = 0; b < l->m; b++) {
                const uint32_t t = first[step] + BLOCK * b;
                *when(l, step, b, r) = t;
                l->slot[(size_t)r * l->n_slots + t] = b * BLOCK + step;
            }
        }
        AGOQ_TRY(place_weights(l, r));
        const uint32_t most = count_held(l, r);
        if (most > l->cap) l->cap = most;
    }
    fill_start(l, end);
    return AGOQ_OK;
}

static void write_lists(const layout *l, planner_ops *out) {
    uint32_t n = 0;
    for (uint32_t r = 0; r < l->p; r++) {
        for (uint32_t t = 0; t < l->n_slots; t++) {
            const uint32_t code = l->slot[(size_t)r * l->n_slots + t];
            if (code == FREE) continue;
            out->ops[n] = of_step[code % BLOCK];
            out->ops[n++].microbatch = code / BLOCK;
        }
        out->start[r + 1] = n;
    }
}

agoq_status schedule_vee_ops(const planner_schedule *s, planner_ops *out) {
    agoq_status status = AGOQ_E_NOMEM;
    planner_ops made = {PLANNER_ROUTE_VEE, s->n_ranks, s->n_microbatches, 2, NULL, NULL};
    /* A block of 6 has 6 free slots for 6 operations, so weight halves end soon after the last input half. */
    layout l = {.p = s->n_ranks, .m = s->n_microbatches};
    l.n_slots = BLOCK * (l.m + l.p + 2) + 2 * l.m;
    if ((uint64_t)l.p * l.n_slots > PLANNER_MAX_OPS / 2) return AGOQ_E_LIMIT;
    l.slot = mem_zalloc((size_t)l.p * l.n_slots, sizeof *l.slot);
    l.held = mem_zalloc((size_t)l.p * l.n_slots, sizeof *l.held);
    l.at = mem_zalloc((size_t)N_STEPS * l.m * l.p, sizeof *l.at);
    made.start = mem_zalloc(l.p + 1, sizeof *made.start);
    made.ops = mem_zalloc((size_t)BLOCK * l.m * l.p, sizeof *made.ops);
    if (!l.slot || !l.held || !l.at || !made.start || !made.ops) goto out;
    AGOQ_TRY_OUT(lay_out(s, &l));
    write_lists(&l, &made);
    *out = made;
    made = (planner_ops){0};
out:
    mem_free(l.slot);
    mem_free(l.held);
    mem_free(l.at);
    planner_ops_fini(&made);
    return status;
}
