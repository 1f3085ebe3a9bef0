/* What brute force does not reach: AGoQ's equalize mode in its own setting, stages too large to enumerate
 * (against an exact table over bytes), odd and inconsistent problems, levers that really remove the
 * overshoot, lost allocations. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "planner/model.h"
#include "planner/planner.h"
#include "tests/unit/planner_cases.h"

#define GIB ((uint64_t)1 << 30)

static planner_model llama3_8b(void) {
    return (planner_model){
        .shape = {.hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .vocab = 128256},
        .run = {.seq = 4096,
                .microbatch = 1,
                .pp = 4,
                .tp = 1,
                .dp = 1,
                .chunks = 1,
                .microbatches = 8,
                .schedule = AGOQ_SCHEDULE_1F1B,
                .grad_bits = 8,
                .qkv_bits = 16,
                .budget_bytes = PLANNER_NO_BUDGET}};
}

static planner_result solve(const planner_problem *problem) {
    planner_result result = {0};
    assert_int_equal(planner_solve(problem, &result), AGOQ_OK);
    return result;
}

static void paper_case_equalized(void **state) {
    (void)state;
    static const uint32_t units[4] = {11, 9, 7, 5};
    static const uint8_t rule_bits[4] = {4, 5, 6, 8};
    planner_model m = llama3_8b();
    m.run.schedule = AGOQ_SCHEDULE_INTERLEAVED;
    m.run.chunks = 2;
    m.run.mode = PLANNER_EQUALIZE;
    planner_model_problem p;
    planner_stage_result rule[4];
    uint8_t bits[4];
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    assert_memory_equal(p.live_units, units, sizeof units);
    assert_int_equal(planner_paper_rule(p.live_units, 4, bits), AGOQ_OK);
    assert_memory_equal(bits, rule_bits, sizeof bits);
    assert_int_equal(planner_evaluate(&p.problem, bits, rule), AGOQ_OK);
    planner_result r = solve(&p.problem);
    assert_true(r.feasible);
    const uint64_t cap = r.stages[0].activation_peak_bytes;
    double last = 0;
    for (int s = 0; s < 4; s++) {
        assert_true(r.stages[s].activation_peak_bytes <= cap);
        assert_true(r.stages[s].bits_mean >= last);
        last = r.stages[s].bits_mean;
        if (rule[s].activation_peak_bytes <= cap) assert_true(r.stages[s].objective <= rule[s].objective);
    }
    /* The first stage sets the cap at its least widths; the others use what the rule leaves idle. */
    assert_true(r.stages[0].bits_mean == 4 && (r.stages[0].why & PLANNER_WHY_EQUALIZED));
    assert_true(r.stages[1].bits_mean > 5 && r.stages[2].bits_mean > 6 && r.stages[3].bits_mean > 8);
    assert_true(rule[2].objective > 2 * r.stages[2].objective);
    /* A budget below the cap wins over it. */
    p.stages[3].budget_bytes =
        p.stages[3].phase[0].static_bytes + p.stages[3].phase[0].workspace_bytes + cap / 2;
    planner_result_fini(&r);
    r = solve(&p.problem);
    assert_true(r.feasible && (r.stages[3].why & PLANNER_WHY_BUDGET_BINDS) &&
                r.stages[3].activation_peak_bytes <= cap / 2);
    planner_result_fini(&r);
    planner_model_fini(&p);
}

/* Exact over bytes in units of 1/4 bit of a 64-element block: the optimum by dynamic programming. Costs as
 * doubles. */
static double table_optimum(const planner_item *items, uint32_t n, uint64_t room, uint64_t unit) {
    const size_t cells = (size_t)(room / unit) + 1;
    double *best = malloc(cells * sizeof *best), *next = malloc(cells * sizeof *next);
    assert_true(best && next);
    for (size_t u = 0; u < cells; u++) best[u] = 0;
    for (uint32_t i = 0; i < n; i++) {
        for (size_t u = 0; u < cells; u++) {
            next[u] = INFINITY;
            for (int w = 0; w < 5; w++) {
                const size_t bytes = (size_t)(planner_item_bytes(&items[i], case_widths[w], 0) / unit);
                if (!(items[i].widths >> w & 1) || bytes > u) continue;
                const double cost = best[u - bytes] + items[i].sensitivity * planner_error(case_widths[w]);
                next[u] = cost < next[u] ? cost : next[u];
            }
        }
        double *swap = best;
        best = next;
        next = swap;
    }
    const double optimum = best[cells - 1];
    free(best);
    free(next);
    return optimum;
}

/* One and two weight classes, one live row, unequal sensitivities: the optimum, and the knowledge that it is
 * one. */
static void large_stages_are_exact(void **state) {
    (void)state;
    planner_item items[60];
    uint64_t seed = 11;
    const uint64_t fixed = 0;
    for (int trial = 0; trial < 30; trial++) {
        const uint32_t live = 1 + case_below(&seed, 5);
        uint64_t low = 0, high = 0;
        for (uint32_t i = 0; i < 60; i++) {
            const int64_t cols = trial % 2 && i % 3 == 2 ? 64 * 7 : 64 * 2;
            items[i] =
                (planner_item){(uint16_t)(i / 3),
                               (uint8_t)(i % 3),
                               0,
                               1,
                               8,
                               cols,
                               31,
                               trial % 3 ? exp((double)case_below(&seed, 1000) / 200) : 1 + (double)(i % 3)};
            low += planner_item_bytes(&items[i], 4, 0);
            high += planner_item_bytes(&items[i], 16, 0);
        }
        planner_stage s = {
            .n_chunks = 1, .n_items = 60, .n_live = 1, .fixed_bytes = &fixed, .items = items, .live = &live};
        const uint64_t room = low + (high - low) * (1 + case_below(&seed, 98)) / 100;
        s.budget_bytes = live * room + case_below(&seed, live);
        const planner_problem problem = {.n_stages = 1, .stages = &s};
        planner_result r = solve(&problem);
        const double best = table_optimum(items, 60, room, 16);
        assert_true(fabs(r.stages[0].objective - best) <= 1e-9 * best);
        assert_true(r.stages[0].lower_bound == r.stages[0].objective);
        assert_true(r.stages[0].predicted_peak_bytes <= s.budget_bytes);
        planner_result_fini(&r);
    }
}

/* Many chunks and live vectors: perhaps not proved, but bounded, within budget, no worse than any one width.
 */
static void many_rows_stay_honest(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    m.run.schedule = AGOQ_SCHEDULE_INTERLEAVED;
    m.shape.layers = 256;
    m.run.pp = 8;
    m.run.chunks = 8;
    m.run.microbatches = 64;
    planner_model_problem p;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    static const uint8_t five[8] = {5, 5, 5, 5, 5, 5, 5, 5}, eight[8] = {8, 8, 8, 8, 8, 8, 8, 8};
    planner_stage_result rule[8], more[8];
    assert_int_equal(planner_evaluate(&p.problem, five, rule), AGOQ_OK);
    assert_int_equal(planner_evaluate(&p.problem, eight, more), AGOQ_OK);
    for (uint64_t s = 0; s < 8; s++)
        p.stages[s].budget_bytes =
            rule[s].predicted_peak_bytes +
            (more[s].predicted_peak_bytes - rule[s].predicted_peak_bytes) * (s + 1) / 10 + 12345;
    planner_result r = solve(&p.problem);
    int open = 0;
    for (int s = 0; s < 8; s++) {
        open += r.stages[s].lower_bound < r.stages[s].objective;
        assert_true(r.stages[s].predicted_peak_bytes <= p.stages[s].budget_bytes);
        assert_true(r.stages[s].objective <= rule[s].objective);
        assert_true(r.stages[s].lower_bound <= r.stages[s].objective);
        assert_true(r.stages[s].lower_bound >= 0.85 * r.stages[s].objective);
    }
    assert_true(open > 0); /* some of these are beyond the work limit, and it must say so */
    planner_result_fini(&r);
    planner_model_fini(&p);
}

static void odd_problems(void **state) {
    (void)state;
    const uint64_t fixed = 10;
    const uint32_t live = 2;
    planner_item items[2] = {{0, AGOQ_ROLE_MLP_GATE_UP, 0, 1, 8, 64, 31, NAN},
                             {0, AGOQ_ROLE_MLP_NORM_IN, 0, 1, 8, 64, 31, 1e6}};
    planner_stage s[2] = {{.budget_bytes = PLANNER_NO_BUDGET,
                           .n_chunks = 1,
                           .n_items = 2,
                           .n_live = 1,
                           .fixed_bytes = &fixed,
                           .items = items,
                           .live = &live},
                          {.budget_bytes = 0}};
    const planner_problem problem = {.n_stages = 2, .stages = s};
    /* No budget: everything at its best. An empty stage needs nothing, and fits in nothing. */
    planner_result r = solve(&problem);
    assert_true(r.feasible && r.stages[0].why == PLANNER_WHY_ALL_AT_MAX &&
                r.plan.stages[0].budget_bytes == 0);
    assert_int_equal(plan_bits(&r.plan, 0, AGOQ_ROLE_MLP_GATE_UP), 16);
    assert_int_equal(r.stages[1].predicted_peak_bytes, 0);
    planner_result_fini(&r);
    /* Unknown sensitivity gets its bits first: all of them, before the other gets any. */
    s[0].budget_bytes = 2 * (10 + planner_item_bytes(&items[0], 16, 0) + planner_item_bytes(&items[1], 4, 0));
    r = solve(&problem);
    assert_true(r.feasible && isinf(r.stages[0].objective));
    assert_int_equal(plan_bits(&r.plan, 0, AGOQ_ROLE_MLP_GATE_UP), 16);
    assert_int_equal(plan_bits(&r.plan, 0, AGOQ_ROLE_MLP_NORM_IN), 4);
    planner_result_fini(&r);
    /* Budget 0: nothing fits, and the overshoot is what the least widths take. */
    s[0].budget_bytes = 0;
    r = solve(&problem);
    assert_true(!r.feasible && !(r.stages[0].why & PLANNER_WHY_STATIC_ALONE));
    assert_int_equal(r.stages[0].overshoot_bytes,
                     2 * (10 + planner_item_bytes(&items[0], 4, 0) + planner_item_bytes(&items[1], 4, 0)));
    planner_result_fini(&r);
    /* A phase without activations can be what does not fit. */
    s[0].budget_bytes = 100000;
    s[0].phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes = 100001;
    r = solve(&problem);
    assert_true(!r.feasible && (r.stages[0].why & PLANNER_WHY_STATIC_ALONE) &&
                r.stages[0].overshoot_bytes == 1);
    planner_result_fini(&r);
    /* The margin is kept free: rounded against the plan. */
    s[0].phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes = 89999;
    s[0].margin_ppm = 100001;
    r = solve(&problem);
    assert_true(r.feasible);
    planner_result_fini(&r);
    s[0].phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes = 90000;
    r = solve(&problem);
    assert_true(!r.feasible);
    planner_result_fini(&r);
}

static void inconsistent_problems_are_refused(void **state) {
    (void)state;
    const uint64_t fixed = 0;
    const uint32_t live = 1;
    planner_item good = {0, AGOQ_ROLE_MLP_GATE_UP, 0, 1, 8, 64, 31, 1}, item = good;
    const planner_stage stage = {.budget_bytes = 1 << 20,
                                 .n_chunks = 1,
                                 .n_items = 1,
                                 .n_live = 1,
                                 .fixed_bytes = &fixed,
                                 .items = &item,
                                 .live = &live};
    planner_stage s[2] = {stage, {0}};
    const planner_problem problem = {.n_stages = 1, .stages = s}, twice = {.n_stages = 2, .stages = s};
    planner_result r = {0};
    assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
    planner_result_fini(&r);
#define REFUSED(change, status)                                                                              \
    change;                                                                                                  \
    assert_int_equal(planner_solve(&problem, &r), status);                                                   \
    assert_null(r.stages);                                                                                   \
    item = good;                                                                                             \
    s[0] = stage
    REFUSED(item.widths = 0, AGOQ_E_INVAL);
    REFUSED(item.widths = 32, AGOQ_E_INVAL);
    REFUSED(item.role = AGOQ_N_ROLES, AGOQ_E_INVAL);
    REFUSED(item.chunk = 1, AGOQ_E_INVAL);
    REFUSED(item.rows = -1, AGOQ_E_INVAL);
    REFUSED(item.sensitivity = -1, AGOQ_E_INVAL);
    REFUSED(item.rows = INT64_MAX / 100, AGOQ_E_LIMIT);
    REFUSED((item.rows = (int64_t)1 << 40, item.count = UINT32_MAX), AGOQ_E_LIMIT);
    REFUSED(s[0].margin_ppm = 1000001, AGOQ_E_INVAL);
    REFUSED(s[0].fixed_bytes = NULL, AGOQ_E_INVAL);
    REFUSED(s[0].live = NULL, AGOQ_E_INVAL);
    REFUSED(s[0].n_chunks = PLANNER_MAX_CHUNKS + 1, AGOQ_E_LIMIT);
    REFUSED(s[0].n_live = PLANNER_MAX_LIVE + 1, AGOQ_E_LIMIT);
    REFUSED(s[0].phase[1].static_bytes = UINT64_MAX, AGOQ_E_LIMIT);
#undef REFUSED
    s[1] = stage; /* (layer, role) with two owners */
    assert_int_equal(planner_solve(&twice, &r), AGOQ_E_INVAL);
    assert_int_equal(planner_solve(NULL, &r), AGOQ_E_INVAL);
}

static void allocation_failures_are_reported(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    m.run.schedule = AGOQ_SCHEDULE_INTERLEAVED;
    m.run.chunks = 2;
    m.run.budget_bytes = 58 * GIB;
    int failures = 0;
    for (long n = 1;; n++) {
        planner_model_problem p = {0};
        planner_result r = {0};
        planner_stage_result rule[4];
        static const uint8_t bits[4] = {4, 5, 6, 8};
        mem_fail_after(n);
        agoq_status status = planner_model_build(&m, &p);
        if (status == AGOQ_OK) p.stages[0].budget_bytes = 1; /* levers too */
        if (status == AGOQ_OK) status = planner_solve(&p.problem, &r);
        if (status == AGOQ_OK) status = planner_evaluate(&p.problem, bits, rule);
        mem_fail_after(0);
        planner_result_fini(&r);
        planner_model_fini(&p);
        if (status == AGOQ_OK) break;
        assert_int_equal(status, AGOQ_E_NOMEM);
        failures++;
    }
    assert_true(failures > 25);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(paper_case_equalized),
        cmocka_unit_test(large_stages_are_exact),
        cmocka_unit_test(many_rows_stay_honest),
        cmocka_unit_test(odd_problems),
        cmocka_unit_test(inconsistent_problems_are_refused),
        cmocka_unit_test(allocation_failures_are_reported),
    };
    return cmocka_run_group_tests_name("planner_edges", tests, NULL, NULL);
}
