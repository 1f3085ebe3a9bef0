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

static uint64_t least_peak(const planner_stage *stage, uint8_t *scratch) {
    planner_least(stage, scratch);
    return planner_activation_peak(stage, scratch, NULL);
}

static uint64_t equal_cap(const planner_problem *problem, uint8_t *scratch) {
    uint64_t cap = 0;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        const uint64_t peak = least_peak(&problem->stages[s], scratch);
        if (peak > cap) cap = peak;
    }
    return cap;
}

/* Static and workspace bytes of some phase exceed the budget alone. */
static int static_alone(const planner_stage *stage) {
    return planner_total_peak(stage, 0) > planner_available(stage);
}

static agoq_status solve_stage(const planner_problem *problem, const planner_stage *stage, uint64_t cap,
                               uint8_t *bits, planner_stage_result *result) {
    planner_bound bound;
    const uint64_t least = least_peak(stage, bits);
    if (planner_total_peak(stage, least) > planner_available(stage)) {
        planner_measure(stage, bits, result);
        result->why = PLANNER_WHY_INFEASIBLE | (static_alone(stage) ? PLANNER_WHY_STATIC_ALONE : 0);
        return AGOQ_OK;
    }
    const planner_phase *phase = &stage->phase[AGOQ_PHASE_FWD_BWD];
    uint64_t room = planner_available(stage) - phase->static_bytes - phase->workspace_bytes;
    const int equalized = problem->mode == PLANNER_EQUALIZE && cap < room;
    if (equalized) room = cap;
    AGOQ_TRY(planner_stage_solve(stage, room, bits, &bound));
    planner_measure(stage, bits, result);
    if (!bound.proved && isfinite(result->objective) && bound.lower_bound < result->objective)
        result->lower_bound = bound.lower_bound > 0 ? bound.lower_bound : 0;
    result->why = bound.best_possible ? PLANNER_WHY_ALL_AT_MAX
                  : equalized         ? PLANNER_WHY_EQUALIZED
                                      : PLANNER_WHY_BUDGET_BINDS;
    return AGOQ_OK;
}

static agoq_status check(const planner_problem *problem, uint32_t *n_items, uint32_t *most) {
    uint64_t total = 0;
    *most = 0;
    if (!problem->n_stages || !problem->stages) return AGOQ_E_INVAL;
    if (problem->mode != PLANNER_BUDGET && problem->mode != PLANNER_EQUALIZE) return AGOQ_E_INVAL;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        AGOQ_TRY(planner_stage_check(&problem->stages[s]));
        total += problem->stages[s].n_items;
        if (problem->stages[s].n_items > *most) *most = problem->stages[s].n_items;
    }
    if (total > PLAN_MAX_ENTRIES) return AGOQ_E_LIMIT;
    *n_items = (uint32_t)total;
    return AGOQ_OK;
}

static void fill_stage(plan *p, uint32_t s, const planner_stage *stage, const planner_item *items,
                       const uint8_t *bits, const planner_stage_result *result, uint32_t *at) {
    const uint64_t budget = stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes;
    p->stages[s] = (plan_stage){budget, stage->budget_version, result->predicted_peak_bytes};
    for (uint32_t i = 0; i < stage->n_items; i++)
        p->entries[(*at)++] = (plan_entry){(uint16_t)s, items[i].layer, items[i].role, bits[i]};
}

static agoq_status solve_all(const planner_problem *problem, planner_item *items, uint8_t *bits,
                             planner_result *result) {
    const uint64_t cap = problem->mode == PLANNER_EQUALIZE ? equal_cap(problem, bits) : 0;
    uint32_t at = 0;
    result->feasible = 1;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        planner_stage stage = problem->stages[s];
        if (stage.n_items) memcpy(items, stage.items, stage.n_items * sizeof *items);
        if (stage.n_items) qsort(items, stage.n_items, sizeof *items, item_order);
        stage.items = items;
        AGOQ_TRY(solve_stage(problem, &stage, cap, bits, &result->stages[s]));
        fill_stage(&result->plan, s, &stage, items, bits, &result->stages[s], &at);
        if (!(result->stages[s].why & PLANNER_WHY_INFEASIBLE)) continue;
        result->feasible = 0;
        AGOQ_TRY(planner_levers(problem, s, &result->stages[s]));
    }
    plan *p = &result->plan;
    if (p->n_entries) qsort(p->entries, p->n_entries, sizeof *p->entries, entry_order);
    for (uint32_t i = 1; i < p->n_entries; i++) {
        if (entry_order(&p->entries[i - 1], &p->entries[i]) == 0)
            return AGOQ_E_INVAL; /* one width, two owners */
    }
    return AGOQ_OK;
}

agoq_status planner_solve(const planner_problem *problem, planner_result *result) {
    agoq_status status = AGOQ_E_NOMEM;
    planner_result r = {0};
    planner_item *items = NULL;
    uint8_t *bits = NULL;
    uint32_t n_items, most;
    if (!problem || !result) return AGOQ_E_INVAL;
    AGOQ_TRY(check(problem, &n_items, &most));
    AGOQ_TRY(plan_init(&r.plan, problem->n_stages, n_items));
    r.stages = mem_zalloc(problem->n_stages, sizeof *r.stages);
    items = mem_zalloc(most, sizeof *items);
    bits = mem_alloc(most);
    if (!r.stages || !items || !bits) goto out;
    AGOQ_TRY_OUT(solve_all(problem, items, bits, &r));
    *result = r;
    r = (planner_result){0};
out:
    mem_free(bits);
    mem_free(items);
    planner_result_fini(&r);
    return status;
}

void planner_result_fini(planner_result *result) {
    if (!result) return;
    plan_fini(&result->plan);
    mem_free(result->stages);
    *result = (planner_result){0};
}
