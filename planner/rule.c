/* AGoQ's own rule (arXiv 2605.00539, equation 22 with the index its text uses), and the bytes and harm of a
 * plan that has one width per stage. It is here for comparison only: the rule scales what is packed and
 * ignores what is not, so it neither fills a budget nor keeps to one (5 bits x 9 live = 45 > 44 = 4 bits x
 * 11). */
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

agoq_status planner_paper_rule(const uint32_t *live_units, uint32_t n_stages, uint8_t *bits) {
    if (!live_units || !bits || !n_stages) return AGOQ_E_INVAL;
    for (uint32_t i = 0; i < n_stages; i++) {
        if (!live_units[i]) return AGOQ_E_INVAL;
    }
    for (uint32_t i = 0; i < n_stages; i++) {
        /* Ideal width 4 N_0 / N_i against the midpoints 4.5, 5.5, 7, times 2 N_i. */
        const uint64_t twice = 8ull * live_units[0], n = live_units[i];
        bits[i] = twice < 9 * n ? 4 : twice < 11 * n ? 5 : twice < 14 * n ? 6 : 8;
    }
    return AGOQ_OK;
}

uint8_t planner_nearest_bits(const planner_item *item, int bits) {
    uint8_t found = 0;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if (planner_allows(item, agoq_width_bits(w)) && (!found || agoq_width_bits(w) <= bits))
            found = (uint8_t)agoq_width_bits(w);
    }
    return found;
}

agoq_status planner_evaluate(const planner_problem *problem, const uint8_t *bits,
                             planner_stage_result *stages) {
    if (!problem || !bits || !stages || !problem->n_stages || !problem->stages) return AGOQ_E_INVAL;
    uint32_t most = 0;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        AGOQ_TRY(planner_stage_check(&problem->stages[s]));
        if (problem->stages[s].n_items > most) most = problem->stages[s].n_items;
    }
    uint8_t *widths = mem_alloc(most);
    if (!widths) return AGOQ_E_NOMEM;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        const planner_stage *stage = &problem->stages[s];
        for (uint32_t i = 0; i < stage->n_items; i++)
            widths[i] = planner_nearest_bits(&stage->items[i], bits[s]);
        planner_measure(stage, widths, &stages[s]);
        if (stages[s].overshoot_bytes) stages[s].why = PLANNER_WHY_INFEASIBLE;
    }
    mem_free(widths);
    return AGOQ_OK;
}
