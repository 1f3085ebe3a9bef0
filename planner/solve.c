/* planner_solve: checks, the common cap of mode EQUALIZE, one independent problem per stage, the reasons, and
 * the plan. Items are put in (layer, role) order first, so that the plan does not depend on the order in
 * which ranks report. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

static int item_order(const void *a, const void *b) {
    const planner_item *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->role - (int)y->role;
}

static int entry_order(const void *a, const void *b) {
    const plan_entry *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->role - (int)y->role;
}

static int in_order(const planner_stage *stage) {
    uint32_t last = 0, ordered = 1;
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const uint32_t at = (uint32_t)stage->items[i].layer << 8 | stage->items[i].role;
        ordered &= at >= last;
        last = at;
    }
    return (int)ordered;
}

/* Activations of a stage whose kinds are known, everything at its least width. */
static uint64_t least_peak(const planner_space *space, const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    planner_kinds_least(space, stage, chunk);
    return planner_rows_peak(stage, chunk, NULL);
}

static agoq_status equal_cap(const planner_problem *problem, planner_space *space, uint64_t *cap) {
    uint8_t dropped[AGOQ_N_ROLES] = {0};
    *cap = 0;
    for (uint32_t s = 0; problem->mode == PLANNER_EQUALIZE && s < problem->n_stages; s++) {
        AGOQ_TRY(planner_kinds_make(space, &problem->stages[s], problem->hull_only, dropped));
        const uint64_t peak = least_peak(space, &problem->stages[s]);
        if (peak > *cap) *cap = peak;
    }
    return AGOQ_OK;
}

static void take_least(planner_space *space) {
    for (uint32_t i = 0; i < space->n_kinds; i++) {
        planner_kind *k = &space->kinds[i];
        k->whole = (uint8_t)(1 + space->classes[k->of].least);
    }
}

static agoq_status solve_stage(const planner_problem *problem, const planner_stage *stage, uint64_t cap,
                               planner_space *space, planner_stage_result *result) {
    planner_bound bound;
    const uint64_t least = least_peak(space, stage), available = planner_available(stage);
    if (planner_total_peak(stage, least) > available) {
        take_least(space);
        planner_kinds_measure(space, stage, result);
        /* Static and workspace bytes of some phase may exceed the budget alone. */
        result->why = PLANNER_WHY_INFEASIBLE |
                      (planner_total_peak(stage, 0) > available ? PLANNER_WHY_STATIC_ALONE : 0);
        return AGOQ_OK;
    }
    const planner_phase *phase = &stage->phase[AGOQ_PHASE_FWD_BWD];
    uint64_t room = available - phase->static_bytes - phase->workspace_bytes;
    const int equalized = problem->mode == PLANNER_EQUALIZE && cap < room;
    if (equalized) room = cap;
    AGOQ_TRY(planner_stage_solve(space, stage, room, &bound));
    planner_kinds_measure(space, stage, result);
    if (!bound.proved && isfinite(result->objective) && bound.lower_bound < result->objective)
        result->lower_bound = bound.lower_bound > 0 ? bound.lower_bound : 0;
    result->relaxed_bound = isfinite(result->objective) && bound.relaxed > 0 ? bound.relaxed : 0;
    if (result->relaxed_bound > result->objective) result->relaxed_bound = result->objective;
    result->why = bound.best_possible ? PLANNER_WHY_ALL_AT_MAX
                  : equalized         ? PLANNER_WHY_EQUALIZED
                                      : PLANNER_WHY_BUDGET_BINDS;
    return AGOQ_OK;
}

/* What the space needs for the largest stage. */
typedef struct extent {
    uint32_t items, most, rows;
    size_t cells;
} extent;

static agoq_status measure_problem(const planner_problem *problem, extent *e) {
    uint64_t total = 0;
    *e = (extent){0};
    if (!problem->n_stages || !problem->stages) return AGOQ_E_INVAL;
    if (problem->n_stages > PLAN_MAX_STAGES) return AGOQ_E_LIMIT;
    if (problem->mode != PLANNER_BUDGET && problem->mode != PLANNER_EQUALIZE) return AGOQ_E_INVAL;
    if (problem->objective != PLANNER_SUM && problem->objective != PLANNER_MINIMAX) return AGOQ_E_INVAL;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        const planner_stage *stage = &problem->stages[s];
        AGOQ_TRY(planner_check_scalars(stage));
        const size_t cells =
            (size_t)(stage->n_live ? stage->n_live : 1) * (stage->n_chunks ? stage->n_chunks : 1);
        total += stage->n_items;
        if (stage->n_items > e->most) e->most = stage->n_items;
        if (stage->n_live > e->rows) e->rows = stage->n_live;
        if (cells > e->cells) e->cells = cells;
    }
    if (total > PLANNER_MAX_ITEMS) return AGOQ_E_LIMIT;
    e->items = (uint32_t)total;
    return AGOQ_OK;
}

static void fill_stage(plan *p, uint32_t s, const planner_stage *stage, const uint8_t *bits,
                       const planner_stage_result *result, uint32_t *at) {
    const uint64_t budget = stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes;
    p->stages[s] = (plan_stage){budget, stage->budget_version, result->predicted_peak_bytes};
    for (uint32_t i = 0; i < stage->n_items; i++)
        p->entries[(*at)++] = (plan_entry){(uint16_t)s, stage->items[i].layer, stage->items[i].role, bits[i]};
}

static agoq_status solve_all(const planner_problem *problem, planner_space *space, planner_result *result) {
    uint32_t at = 0;
    uint64_t cap = 0;
    result->feasible = 1;
    AGOQ_TRY(equal_cap(problem, space, &cap));
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        planner_stage stage = problem->stages[s];
        if (!in_order(&stage)) {
            memcpy(space->items, stage.items, stage.n_items * sizeof *space->items);
            qsort(space->items, stage.n_items, sizeof *space->items, item_order);
            stage.items = space->items;
        }
        planner_stage_result *r = &result->stages[s];
        AGOQ_TRY(planner_kinds_make(space, &stage, problem->hull_only, result->dropped_widths));
        AGOQ_TRY(solve_stage(problem, &stage, cap, space, r));
        planner_spread(space, &stage, problem->previous);
        fill_stage(&result->plan, s, &stage, space->bits, r, &at);
        if (r->why & PLANNER_WHY_INFEASIBLE) result->feasible = 0;
    }
    return AGOQ_OK;
}

/* Entries of all stages by (layer, role): mostly they already are. */
static agoq_status order_entries(plan *p) {
    int64_t last = -1;
    int ordered = 1;
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const int64_t at = (int64_t)p->entries[i].layer << 8 | p->entries[i].role;
        ordered &= at > last;
        last = at;
    }
    if (ordered) return AGOQ_OK;
    qsort(p->entries, p->n_entries, sizeof *p->entries, entry_order);
    for (uint32_t i = 1; i < p->n_entries; i++) {
        if (entry_order(&p->entries[i - 1], &p->entries[i]) == 0)
            return AGOQ_E_INVAL; /* one width, two owners */
    }
    return AGOQ_OK;
}

void planner_sum_up(const planner_problem *problem, planner_result *result) {
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        const planner_stage_result *r = &result->stages[s];
        if (r->objective > result->stages[result->worst_stage].objective) result->worst_stage = s;
        if (problem->objective == PLANNER_SUM) {
            result->objective += r->objective;
            result->lower_bound += r->lower_bound;
        } else if (r->lower_bound > result->lower_bound) {
            result->lower_bound = r->lower_bound;
        }
    }
    if (problem->objective == PLANNER_MINIMAX)
        result->objective = result->stages[result->worst_stage].objective;
    if (result->objective > result->lower_bound)
        result->gap = (result->objective - result->lower_bound) / result->objective;
}

agoq_status planner_solve_apart(const planner_problem *problem, planner_result *result) {
    agoq_status status = AGOQ_E_NOMEM;
    planner_result r = {0};
    planner_space space = {0};
    extent e;
    AGOQ_TRY(measure_problem(problem, &e));
    AGOQ_TRY(planner_space_init(&space, e.most, e.rows, e.cells));
    r.stages = mem_zalloc(problem->n_stages, sizeof *r.stages);
    r.plan.stages = mem_zalloc(problem->n_stages, sizeof *r.plan.stages);
    r.plan.entries = mem_alloc((e.items ? e.items : 1) * sizeof *r.plan.entries);
    if (!r.stages || !r.plan.stages || !r.plan.entries) goto out;
    r.plan.n_stages = problem->n_stages;
    r.plan.n_entries = e.items;
    AGOQ_TRY_OUT(solve_all(problem, &space, &r));
    AGOQ_TRY_OUT(order_entries(&r.plan));
    planner_sum_up(problem, &r);
    *result = r;
    r = (planner_result){0};
out:
    planner_space_fini(&space);
    planner_result_fini(&r);
    return status;
}

agoq_status planner_solve(const planner_problem *problem, planner_result *result) {
    planner_result r = {0};
    if (!problem || !result) return AGOQ_E_INVAL;
    agoq_status status =
        problem->same_as ? planner_solve_groups(problem, &r) : planner_solve_apart(problem, &r);
    if (status == AGOQ_OK && !r.feasible) status = planner_levers(problem, &r);
    if (status == AGOQ_OK)
        *result = r;
    else
        planner_result_fini(&r);
    return status;
}

agoq_status planner_result_hash(const planner_result *result, uint64_t *hash) {
    size_t size;
    if (!result || !hash) return AGOQ_E_INVAL;
    AGOQ_TRY(plan_encode(&result->plan, NULL, 0, &size));
    uint8_t *bytes = mem_alloc(size);
    if (!bytes) return AGOQ_E_NOMEM;
    const agoq_status status = plan_encode(&result->plan, bytes, size, &size);
    if (status == AGOQ_OK) *hash = plan_hash(bytes, size);
    mem_free(bytes);
    return status;
}

void planner_result_fini(planner_result *result) {
    if (!result) return;
    plan_fini(&result->plan);
    mem_free(result->stages);
    *result = (planner_result){0};
}
