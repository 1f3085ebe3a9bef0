/* DualPipe: ranks r and p - 1 - r hold the same layers, each for half of the micro-batches, and a layer has
 * one width wherever it lies. So each pair becomes one shared stage (planner_share), whose plan fits both;
 * every rank is then measured under that plan. The trade-off: a pair with unequal budgets is held to the
 * smaller. */
#include <string.h>

#include "agoqctl/sim_answer.h"
#include "common/mem.h"
#include "common/try.h"

typedef struct pair {
    planner_item *turned, *items;
    uint64_t *fixed;
    uint32_t *live;
} pair;

/* The other rank with its chunks the other way round: chunk 0 is then the same piece as on the first. */
static planner_stage turn(const planner_stage *s, planner_item *items, uint64_t *fixed, uint32_t *live) {
    planner_stage t = *s;
    uint32_t n = 0;
    for (int chunk = 1; chunk >= 0; chunk--) {
        for (uint32_t i = 0; i < s->n_items; i++) {
            if (s->items[i].chunk != chunk) continue;
            items[n] = s->items[i];
            items[n++].chunk ^= 1;
        }
        fixed[1 - chunk] = s->fixed_bytes[chunk];
    }
    for (uint32_t k = 0; k < 2 * s->n_live; k++) live[k ^ 1] = s->live[k];
    t.items = items;
    t.fixed_bytes = fixed;
    t.live = live;
    return t;
}

static agoq_status share_pair(const planner_model_problem *p, uint32_t r, pair *own, planner_stage *out) {
    const planner_stage *first = &p->stages[r], *other = &p->stages[p->problem.n_stages - 1 - r];
    const size_t rows = (size_t)first->n_live + other->n_live;
    own->turned = mem_alloc((other->n_items + 1) * sizeof *own->turned);
    own->items = mem_alloc((first->n_items + 1) * sizeof *own->items);
    own->fixed = mem_alloc(4 * sizeof *own->fixed);
    own->live = mem_alloc((rows + other->n_live) * 2 * sizeof *own->live);
    if (!own->turned || !own->items || !own->fixed || !own->live) return AGOQ_E_NOMEM;
    const planner_stage members[2] = {*first, turn(other, own->turned, own->fixed + 2, own->live + 2 * rows)};
    return planner_share(members, 2, own->items, own->fixed, own->live, out);
}

/* Plan and stages of all ranks from those of the pairs. */
static agoq_status spread(const planner_model_problem *p, const planner_result *pairs, planner_result *out) {
    const uint32_t n = p->problem.n_stages, half = n / 2;
    planner_result all = *pairs;
    all.plan = (plan){0};
    all.stages = mem_zalloc(n, sizeof *all.stages);
    agoq_status status = all.stages ? plan_init(&all.plan, n, pairs->plan.n_entries) : AGOQ_E_NOMEM;
    if (status == AGOQ_OK) {
        memcpy(all.plan.entries, pairs->plan.entries, pairs->plan.n_entries * sizeof *all.plan.entries);
        status = planner_measure_plan(&p->problem, &all.plan, all.stages);
    }
    if (status != AGOQ_OK) {
        planner_result_fini(&all);
        return status;
    }
    all.feasible = 1;
    for (uint32_t s = 0; s < n; s++) {
        const uint32_t r = s < half ? s : n - 1 - s;
        const planner_stage_result *from = &pairs->stages[r];
        planner_stage_result *to = &all.stages[s];
        to->lower_bound = from->lower_bound;
        to->relaxed_bound = from->relaxed_bound;
        to->why = from->why & ~(uint32_t)(PLANNER_WHY_INFEASIBLE | PLANNER_WHY_STATIC_ALONE);
        if (to->overshoot_bytes) {
            to->why = from->why;
            to->n_levers = from->n_levers;
            memcpy(to->levers, from->levers, sizeof to->levers);
            all.feasible = 0;
        }
        const planner_stage *stage = &p->stages[s];
        all.plan.stages[s] =
            (plan_stage){.budget_bytes = stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes,
                         .budget_version = stage->budget_version,
                         .predicted_peak_bytes = to->predicted_peak_bytes};
    }
    if (p->problem.objective == PLANNER_SUM) {
        all.objective *= 2;
        all.lower_bound *= 2;
    }
    *out = all;
    return AGOQ_OK;
}

agoq_status sim_solve_two_way(const planner_model_problem *p, planner_result *result) {
    const uint32_t half = p->problem.n_stages / 2;
    planner_result pairs = {0};
    agoq_status status = AGOQ_E_NOMEM;
    pair *own = mem_zalloc(half, sizeof *own);
    planner_stage *stages = mem_zalloc(half, sizeof *stages);
    if (!own || !stages) goto out;
    for (uint32_t r = 0; r < half; r++) AGOQ_TRY_OUT(share_pair(p, r, &own[r], &stages[r]));
    planner_problem problem = p->problem;
    problem.n_stages = half;
    problem.stages = stages;
    AGOQ_TRY_OUT(planner_solve(&problem, &pairs));
    status = spread(p, &pairs, result);
out:
    for (uint32_t r = 0; own && r < half; r++) {
        mem_free(own[r].turned);
        mem_free(own[r].items);
        mem_free(own[r].fixed);
        mem_free(own[r].live);
    }
    mem_free(own);
    mem_free(stages);
    planner_result_fini(&pairs);
    return status;
}
