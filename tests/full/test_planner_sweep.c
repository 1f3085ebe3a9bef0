/* Long sweeps of the planner: tens of thousands of random stages against brute force; a million random
 * problems, some with hundreds of tensors, in which no plan may be over its budget on any live vector, nor
 * worse than the paper's rule at the rule's own bytes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "tests/unit/planner_cases.h"

#define AGAINST_BRUTE_FORCE 40000
#define WITHIN_BUDGET       1000000
#define MOST_ITEMS          200

static void equals_brute_force(void **state) {
    (void)state;
    int feasible = 0;
    for (uint64_t seed = 1000001; seed <= 1000000 + AGAINST_BRUTE_FORCE; seed++) {
        planner_case c;
        case_make(seed, &c);
        const case_best best = case_brute_force(&c.stage);
        const planner_problem problem = {.n_stages = 1, .stages = &c.stage};
        planner_result r;
        assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
        const double objective = r.stages[0].objective;
        if (r.feasible != best.found ||
            (best.found &&
             (fabs(objective - best.objective) > 1e-9 * (best.objective + objective) || r.gap != 0)))
            fail_msg("seed %llu: %.17g instead of %.17g", (unsigned long long)seed, objective,
                     best.objective);
        feasible += best.found;
        planner_result_fini(&r);
    }
    assert_true(feasible > AGAINST_BRUTE_FORCE / 2);
}

/* Layers of three kinds of tensors, alike or not, over up to three chunks and eight rows. */
static uint32_t make_large(uint64_t seed, planner_item *items, uint64_t *fixed, uint32_t *live,
                           planner_stage *s) {
    uint64_t random = seed * 0x9e3779b97f4a7c15ull;
    const uint32_t chunks = 1 + case_below(&random, 3), rows = 1 + case_below(&random, 8),
                   layers = 1 + case_below(&random, seed % 50 ? 6 : MOST_ITEMS / 3);
    const int apart = case_below(&random, 3) == 0;
    static const int64_t cols[3] = {512, 512, 1792};
    *s = (planner_stage){.n_chunks = chunks, .n_items = 3 * layers, .n_live = rows};
    for (uint32_t i = 0; i < 3 * layers; i++) {
        items[i] = (planner_item){(uint16_t)(i / 3),
                                  (uint8_t)(i % 3),
                                  (uint8_t)(i / 3 * chunks / layers),
                                  1 + (i % 3 == 2),
                                  16,
                                  cols[i % 3],
                                  31,
                                  0.1 + (i % 3)};
        if (apart) items[i].sensitivity *= exp((double)case_below(&random, 4000) / 1000);
        if (case_below(&random, 40) == 0) items[i].widths = 1 + case_below(&random, 31);
    }
    for (uint32_t i = 0; i < chunks; i++) fixed[i] = case_below(&random, 100000);
    for (uint32_t i = 0; i < rows * chunks; i++) live[i] = case_below(&random, 12);
    s->items = items;
    s->fixed_bytes = fixed;
    s->live = live;
    s->margin_ppm = case_below(&random, 2) ? case_below(&random, 200000) : 0;
    s->phase[0] = (planner_phase){case_below(&random, 1000000), case_below(&random, 100000)};
    return 1 + case_below(&random, 1000);
}

static void never_over_budget_nor_worse_than_the_rule(void **state) {
    (void)state;
    static planner_item items[3 * MOST_ITEMS];
    int proved = 0, feasible = 0;
    for (uint64_t seed = 1; seed <= WITHIN_BUDGET; seed++) {
        uint64_t fixed[3];
        uint32_t live[24];
        planner_stage s;
        planner_stage_result rule, measured;
        const planner_problem problem = {.n_stages = 1, .stages = &s};
        const uint32_t permille = make_large(seed, items, fixed, live, &s);
        const uint8_t bits = (uint8_t)case_widths[seed % 5];
        s.budget_bytes = PLANNER_NO_BUDGET;
        assert_int_equal(planner_evaluate(&problem, &bits, &rule), AGOQ_OK);
        /* Half of them with the rule's own bytes, half with any budget. */
        const int own = seed % 2 == 0;
        s.budget_bytes = rule.predicted_peak_bytes;
        if (own)
            s.margin_ppm = 0;
        else
            s.budget_bytes = s.budget_bytes / 2 + s.budget_bytes / 1000 * permille;
        planner_result r;
        assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
        assert_int_equal(planner_measure_plan(&problem, &r.plan, &measured), AGOQ_OK);
        if (measured.predicted_peak_bytes != r.stages[0].predicted_peak_bytes ||
            (r.feasible && (measured.overshoot_bytes || r.lower_bound > r.objective * (1 + 1e-12))) ||
            (!r.feasible && !measured.overshoot_bytes))
            fail_msg("seed %llu: over its budget", (unsigned long long)seed);
        if (own && (!r.feasible || r.objective > rule.objective * (1 + 1e-12)))
            fail_msg("seed %llu: worse than the rule", (unsigned long long)seed);
        feasible += r.feasible;
        proved += r.feasible && r.gap == 0;
        planner_result_fini(&r);
    }
    printf("%d feasible, %d of them proved optimal\n", feasible, proved);
    assert_true(feasible > WITHIN_BUDGET / 2 && proved > feasible / 10 * 9);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_brute_force),
        cmocka_unit_test(never_over_budget_nor_worse_than_the_rule),
    };
    return cmocka_run_group_tests_name("planner_sweep", tests, NULL, NULL);
}
