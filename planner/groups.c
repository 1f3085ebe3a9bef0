/* Stages that hold the same tensors (planner_problem.same_as): a layer has one width wherever it lies, so
 * each group becomes one stage with the live rows of all members, each row with its member's own room, that
 * problem is solved, and every member is then measured under its plan. Members may number their chunks
 * differently: which chunk is which follows from the tensors. The trade-off: a member with less room holds
 * the others back, since a tensor that only they could keep wider has no second width. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

typedef struct group {
    planner_stage *members; /* with the first one's chunks */
    planner_item *items;    /* of the members, then of the shared stage */
    uint64_t *fixed;
    uint32_t *live;
    uint32_t n_members, n_rows, first;
} group;

static int by_layer_role(const void *a, const void *b) {
    const planner_item *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->role - (int)y->role;
}

/* to[c]: the first member's number of this one's chunk c. Chunks without tensors take what is left. */
static agoq_status match_chunks(const planner_stage *first, const planner_stage *s, uint8_t *to) {
    uint8_t taken[PLANNER_MAX_CHUNKS] = {0};
    memset(to, UINT8_MAX, PLANNER_MAX_CHUNKS);
    for (uint32_t i = 0; i < s->n_items; i++) {
        const planner_item *a = &first->items[i], *b = &s->items[i];
        if (a->layer != b->layer || a->role != b->role) return AGOQ_E_INVAL;
        if (to[b->chunk] == a->chunk) continue;
        if (to[b->chunk] != UINT8_MAX || taken[a->chunk]++) return AGOQ_E_INVAL;
        to[b->chunk] = a->chunk;
    }
    for (uint32_t c = 0, k = 0; c < s->n_chunks; c++) {
        if (to[c] != UINT8_MAX) continue;
        while (taken[k]) k++;
        to[c] = (uint8_t)k++;
    }
    return AGOQ_OK;
}

/* One more member: its items in order, its chunks as the first one's. */
static agoq_status add_member(group *g, const planner_stage *s) {
    const uint32_t at = g->n_members++, v = s->n_chunks;
    planner_stage *m = &g->members[at];
    const planner_stage *first = &g->members[0];
    uint8_t to[PLANNER_MAX_CHUNKS];
    *m = *s;
    if (m->n_items != first->n_items || v != first->n_chunks) return AGOQ_E_INVAL;
    planner_item *items = g->items + (size_t)at * s->n_items;
    uint64_t *fixed = g->fixed + (size_t)at * v;
    uint32_t *live = g->live + (size_t)g->n_rows * v;
    if (s->n_items) memcpy(items, s->items, s->n_items * sizeof *items);
    if (s->n_items) qsort(items, s->n_items, sizeof *items, by_layer_role);
    m->items = items;
    AGOQ_TRY(match_chunks(first, m, to));
    for (uint32_t i = 0; i < s->n_items; i++) items[i].chunk = to[items[i].chunk];
    for (uint32_t c = 0; c < v; c++) fixed[to[c]] = s->fixed_bytes[c];
    for (uint32_t k = 0; k < s->n_live; k++) {
        for (uint32_t c = 0; c < v; c++) live[(size_t)k * v + to[c]] = s->live[(size_t)k * v + c];
    }
    m->fixed_bytes = fixed;
    m->live = live;
    g->n_rows += s->n_live;
    return AGOQ_OK;
}

/* The harm of a tensor is what its members do together: their mean, as often as there are members. */
static void take_mean(const group *g, planner_item *items) {
    for (uint32_t i = 0; i < g->members[0].n_items; i++) {
        double sum = 0;
        for (uint32_t m = 0; m < g->n_members; m++) sum += g->members[m].items[i].sensitivity;
        items[i].sensitivity = sum / g->n_members;
    }
}

/* Activations with every tensor at its smallest, and at its largest. */
static void find_range(const planner_stage *s, uint64_t *least, uint64_t *most) {
    uint64_t low[PLANNER_MAX_CHUNKS], high[PLANNER_MAX_CHUNKS];
    for (uint32_t c = 0; c < s->n_chunks; c++) low[c] = high[c] = s->fixed_bytes[c];
    for (uint32_t i = 0; i < s->n_items; i++) {
        uint64_t smallest = UINT64_MAX, largest = 0;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (!planner_allows(&s->items[i], agoq_width_bits(w))) continue;
            const uint64_t bytes = planner_item_bytes(&s->items[i], agoq_width_bits(w), s->alloc_round_bytes);
            smallest = bytes < smallest ? bytes : smallest;
            largest = bytes > largest ? bytes : largest;
        }
        low[s->items[i].chunk] += smallest;
        high[s->items[i].chunk] += largest;
    }
    *least = planner_rows_peak(s, low, NULL);
    *most = planner_rows_peak(s, high, NULL);
}

/* What a stage has for activations, in mode EQUALIZE at most cap; -1: nothing, or not even all else fits. No
 * more than it could use, so that rooms without a limit stay small. */
static int64_t room_of(const planner_stage *s, uint64_t cap) {
    const uint64_t available = planner_available(s), taken = s->phase[AGOQ_PHASE_FWD_BWD].static_bytes +
                                                             s->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes;
    uint64_t least, most;
    find_range(s, &least, &most);
    if (planner_total_peak(s, 0) > available) return -1;
    if (most > cap) most = cap;
    return (int64_t)(available - taken < most ? available - taken : most);
}

/* What a row of a member holds besides, so that the group may have the largest room of its members: in two
 * chunks without tensors, of 16 MiB and of single bytes, since live counts are whole. */
static void write_row(const planner_stage *m, const uint32_t *from, const uint64_t *fixed, uint64_t besides,
                      uint32_t *to) {
    for (uint32_t c = 0; c < m->n_chunks; c++) {
        to[c] = from[c];
        besides += from[c] * (m->fixed_bytes[c] - fixed[c]);
    }
    to[m->n_chunks] = (uint32_t)(besides >> 24);
    to[m->n_chunks + 1] = (uint32_t)(besides & 0xffffff);
}

/* Every member's live rows with its own room and its own bytes that are never packed. */
static agoq_status give_rooms(const group *g, uint64_t cap, uint64_t *fixed, uint32_t *live,
                              planner_stage *out) {
    const uint32_t v = out->n_chunks;
    int64_t most = 0, least = 0;
    if (v + 2 > PLANNER_MAX_CHUNKS) return AGOQ_E_LIMIT;
    memcpy(fixed, g->members[0].fixed_bytes, v * sizeof *fixed);
    for (uint32_t m = 0; m < g->n_members; m++) {
        const int64_t room = room_of(&g->members[m], cap);
        most = room > most ? room : most;
        least = room < least ? room : least;
        for (uint32_t c = 0; c < v; c++) {
            const uint64_t own = g->members[m].fixed_bytes[c];
            fixed[c] = own < fixed[c] ? own : fixed[c];
        }
    }
    fixed[v] = 1 << 24;
    fixed[v + 1] = 1;
    for (uint32_t m = 0, at = 0; m < g->n_members; m++) {
        const planner_stage *s = &g->members[m];
        const int64_t room = room_of(s, cap);
        for (uint32_t k = 0; k < s->n_live; k++, at++)
            write_row(s, s->live + (size_t)k * v, fixed, (uint64_t)(most - (room > 0 ? room : 0)),
                      live + (size_t)at * (v + 2));
    }
    memset(out->phase, 0, sizeof out->phase);
    out->budget_bytes = (uint64_t)most;
    if (least < 0) out->phase[AGOQ_PHASE_FWD_BWD].static_bytes = out->budget_bytes + 1;
    out->n_chunks = v + 2;
    out->fixed_bytes = fixed;
    out->live = live;
    return AGOQ_OK;
}

static agoq_status share_group(const planner_problem *problem, uint32_t first, uint64_t cap, group *g,
                               planner_stage *out) {
    const planner_stage *stages = problem->stages;
    const size_t n = stages[first].n_items, v = stages[first].n_chunks;
    size_t members = 0, rows = 0;
    for (uint32_t s = first; s < problem->n_stages; s++) {
        if (problem->same_as[s] != first) continue;
        members++;
        rows += stages[s].n_live;
    }
    g->first = first;
    g->members = mem_zalloc(members, sizeof *g->members);
    g->items = mem_alloc(((members + 1) * n + 1) * sizeof *g->items);
    g->fixed = mem_alloc(((members + 2) * v + 2) * sizeof *g->fixed);
    g->live = mem_alloc(((2 * v + v + 2) * rows + 1) * sizeof *g->live);
    if (!g->members || !g->items || !g->fixed || !g->live) return AGOQ_E_NOMEM;
    for (uint32_t s = first; s < problem->n_stages; s++) {
        if (problem->same_as[s] == first) AGOQ_TRY(add_member(g, &stages[s]));
    }
    planner_item *items = g->items + members * n;
    uint64_t *fixed = g->fixed + members * v;
    uint32_t *live = g->live + rows * v;
    AGOQ_TRY(planner_share(g->members, g->n_members, items, fixed, live, out));
    take_mean(g, items);
    return give_rooms(g, cap, fixed + v, live + rows * v, out);
}

/* As planner_solve: no stage above the activations of the fullest one at its least widths. */
static agoq_status find_cap(const planner_problem *problem, uint64_t *cap) {
    *cap = problem->mode == PLANNER_EQUALIZE ? 0 : UINT64_MAX;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        uint64_t least, most;
        AGOQ_TRY(planner_stage_check(&problem->stages[s]));
        find_range(&problem->stages[s], &least, &most);
        *cap = least > *cap ? least : *cap;
    }
    return AGOQ_OK;
}

/* What the group's plan is to one member, which has been measured under it. */
static void finish_member(const planner_stage *stage, uint64_t cap, const planner_stage_result *of,
                          planner_stage_result *r) {
    const double share = of->objective > 0 ? r->objective / of->objective : 1;
    const uint32_t bad = PLANNER_WHY_INFEASIBLE | PLANNER_WHY_STATIC_ALONE;
    if (isfinite(of->objective)) {
        if (of->lower_bound < of->objective) r->lower_bound = of->lower_bound * share;
        r->relaxed_bound = of->relaxed_bound * share;
    }
    r->why = of->why & ~bad;
    if (r->overshoot_bytes) {
        const int alone = planner_total_peak(stage, 0) > planner_available(stage);
        r->why = PLANNER_WHY_INFEASIBLE | (alone ? PLANNER_WHY_STATIC_ALONE : 0);
    } else if (!r->why) {
        r->why = PLANNER_WHY_BUDGET_BINDS; /* another member's */
    } else if ((r->why & PLANNER_WHY_BUDGET_BINDS) && cap != UINT64_MAX &&
               planner_total_peak(stage, cap) < planner_available(stage)) {
        r->why = PLANNER_WHY_EQUALIZED;
    }
}

/* Plan and stages of all members from those of their groups. */
static agoq_status spread(const planner_problem *problem, uint64_t cap, const group *groups,
                          const uint32_t *group_of, planner_result *of, planner_result *result) {
    const uint32_t n = problem->n_stages;
    plan_stage *stages = mem_zalloc(n, sizeof *stages);
    result->stages = mem_zalloc(n, sizeof *result->stages);
    result->plan = (plan){n, of->plan.n_entries, stages, of->plan.entries};
    of->plan.entries = NULL;
    if (!stages || !result->stages) return AGOQ_E_NOMEM;
    for (uint32_t i = 0; i < result->plan.n_entries; i++) {
        plan_entry *e = &result->plan.entries[i];
        e->stage = (uint16_t)groups[e->stage].first;
    }
    AGOQ_TRY(planner_measure_plan(problem, &result->plan, result->stages));
    memcpy(result->dropped_widths, of->dropped_widths, sizeof result->dropped_widths);
    result->feasible = 1;
    for (uint32_t s = 0; s < n; s++) {
        const planner_stage *stage = &problem->stages[s];
        planner_stage_result *r = &result->stages[s];
        finish_member(stage, cap, &of->stages[group_of[s]], r);
        if (r->overshoot_bytes) result->feasible = 0;
        stages[s] = (plan_stage){stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes,
                                 stage->budget_version, r->predicted_peak_bytes};
    }
    planner_sum_up(problem, result);
    return AGOQ_OK;
}

agoq_status planner_solve_groups(const planner_problem *problem, planner_result *result) {
    const uint32_t n = problem->n_stages;
    planner_problem shared = *problem;
    planner_result of = {0}, all = {0};
    uint64_t cap;
    agoq_status status = AGOQ_E_NOMEM;
    if (!n || !problem->stages) return AGOQ_E_INVAL;
    if (n > PLAN_MAX_STAGES) return AGOQ_E_LIMIT;
    group *groups = mem_zalloc(n, sizeof *groups);
    planner_stage *stages = mem_zalloc(n, sizeof *stages);
    uint32_t *group_of = mem_zalloc(n, sizeof *group_of);
    shared.n_stages = 0;
    shared.stages = stages;
    shared.same_as = NULL;
    shared.mode = PLANNER_BUDGET;
    if (!groups || !stages || !group_of) goto out;
    AGOQ_TRY_OUT(find_cap(problem, &cap));
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t first = problem->same_as[s];
        status = AGOQ_E_INVAL;
        if (first > s || problem->same_as[first] != first) goto out;
        group_of[s] = first == s ? shared.n_stages++ : group_of[first];
        if (first == s)
            AGOQ_TRY_OUT(share_group(problem, s, cap, &groups[group_of[s]], &stages[group_of[s]]));
    }
    AGOQ_TRY_OUT(planner_solve_apart(&shared, &of));
    AGOQ_TRY_OUT(spread(problem, cap, groups, group_of, &of, &all));
    *result = all;
    all = (planner_result){0};
out:
    for (uint32_t g = 0; groups && g < n; g++) {
        mem_free(groups[g].members);
        mem_free(groups[g].items);
        mem_free(groups[g].fixed);
        mem_free(groups[g].live);
    }
    mem_free(groups);
    mem_free(stages);
    mem_free(group_of);
    planner_result_fini(&of);
    planner_result_fini(&all);
    return status;
}
