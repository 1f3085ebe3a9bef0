/* planner_solve against brute force, and what must hold for any problem: never over budget, never worse than
 * AGoQ's rule at the rule's own bytes, a larger budget never worse, the same answer every time, honest
 * answers when nothing fits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "tests/unit/planner_cases.h"

#define INSTANCES 2500

static planner_result solve(const planner_problem *problem) {
    planner_result result = {0};
    assert_int_equal(planner_solve(problem, &result), AGOQ_OK);
    return result;
}

static planner_result solve_one(const planner_stage *stage) {
    const planner_problem problem = {.n_stages = 1, .stages = stage};
    return solve(&problem);
}

static int near(double a, double b) {
    return fabs(a - b) <= 1e-9 * (fabs(a) + fabs(b)) + 1e-300;
}

/* Peak and objective recomputed from the plan's entries alone. */
static void check_plan(const planner_stage *s, const planner_result *r) {
    int bits[CASE_ITEMS];
    double objective = 0;
    for (uint32_t i = 0; i < s->n_items; i++) {
        bits[i] = plan_bits(&r->plan, s->items[i].layer, s->items[i].role);
        assert_true(agoq_width_index(bits[i]) >= 0 && (s->items[i].widths >> agoq_width_index(bits[i]) & 1));
        objective += s->items[i].sensitivity * planner_error(bits[i]);
    }
    uint64_t peak = case_peak(s, bits);
    assert_int_equal(r->stages[0].activation_peak_bytes,
                     peak - s->phase[0].static_bytes - s->phase[0].workspace_bytes);
    for (int p = 1; p < AGOQ_N_PHASES; p++) {
        const uint64_t sum = s->phase[p].static_bytes + s->phase[p].workspace_bytes;
        peak = sum > peak ? sum : peak;
    }
    assert_int_equal(r->stages[0].predicted_peak_bytes, peak);
    assert_int_equal(r->plan.stages[0].predicted_peak_bytes, peak);
    assert_true(near(objective, r->stages[0].objective));
    if (r->feasible) {
        assert_true(peak <= case_available(s));
        assert_int_equal(r->stages[0].slack_bytes, case_available(s) - peak);
        assert_int_equal(r->stages[0].overshoot_bytes, 0);
    } else {
        assert_int_equal(r->stages[0].overshoot_bytes, peak - case_available(s));
        assert_int_equal(r->stages[0].slack_bytes, 0);
    }
}

static void equals_brute_force(void **state) {
    (void)state;
    int feasible = 0, infeasible = 0, several_rows = 0, bound = 0;
    for (uint64_t seed = 1; seed <= INSTANCES; seed++) {
        planner_case c;
        case_make(seed, &c);
        const case_best best = case_brute_force(&c.stage);
        planner_result r = solve_one(&c.stage);
        check_plan(&c.stage, &r);
        if (r.feasible != best.found || (best.found && !near(r.stages[0].objective, best.objective)))
            fail_msg("seed %u: %d/%d, %.17g instead of %.17g", (unsigned)seed, r.feasible, best.found,
                     r.stages[0].objective, best.objective);
        if (best.found) {
            assert_true(r.stages[0].lower_bound == r.stages[0].objective); /* and knows that it is the best */
            bound += (r.stages[0].why & PLANNER_WHY_BUDGET_BINDS) != 0;
            several_rows += c.stage.n_live > 1 && c.stage.n_chunks > 1;
        } else {
            assert_true(r.stages[0].why & PLANNER_WHY_INFEASIBLE);
            assert_int_equal(r.stages[0].predicted_peak_bytes, best.least_peak);
        }
        feasible += best.found;
        infeasible += !best.found;
        planner_result_fini(&r);
    }
    /* The cases must be worth something. */
    printf("%d feasible, %d infeasible, %d bound, %d of several rows\n", feasible, infeasible, bound,
           several_rows);
    assert_true(feasible > INSTANCES / 2 && infeasible > INSTANCES / 50);
    assert_true(bound > INSTANCES / 3 && several_rows > INSTANCES / 5);
}

static void larger_budget_is_never_worse(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        planner_case c;
        case_make(seed, &c);
        double last = INFINITY;
        int was_feasible = 0;
        const uint64_t start = c.stage.budget_bytes / 2, step = c.stage.budget_bytes / 40 + 1;
        for (int k = 0; k < 60; k++) {
            c.stage.budget_bytes = start + (uint64_t)k * step;
            planner_result r = solve_one(&c.stage);
            assert_true(r.feasible || !was_feasible);
            if (r.feasible) {
                assert_true(r.stages[0].objective <= last * (1 + 1e-12));
                last = r.stages[0].objective;
                was_feasible = 1;
            }
            planner_result_fini(&r);
        }
    }
}

static void same_answer_for_any_order_of_items(void **state) {
    (void)state;
    uint8_t a[PLAN_MAX_BYTES], b[PLAN_MAX_BYTES];
    size_t n_a, n_b;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        planner_case c;
        case_make(seed, &c);
        planner_result r = solve_one(&c.stage);
        assert_int_equal(plan_encode(&r.plan, a, sizeof a, &n_a), AGOQ_OK);
        planner_result_fini(&r);
        for (uint32_t i = 0; i < c.stage.n_items / 2; i++) {
            const planner_item swap = c.items[i];
            c.items[i] = c.items[c.stage.n_items - 1 - i];
            c.items[c.stage.n_items - 1 - i] = swap;
        }
        r = solve_one(&c.stage);
        assert_int_equal(plan_encode(&r.plan, b, sizeof b, &n_b), AGOQ_OK);
        planner_result_fini(&r);
        assert_int_equal(n_a, n_b);
        assert_memory_equal(a, b, n_a);
    }
}

/* A plan measured afterwards has the figures that it was solved with; without its last entry that item has 16
 * bits. */
static void measured_is_solved(const planner_problem *problem, const planner_result *r) {
    planner_stage_result m;
    assert_int_equal(planner_measure_plan(problem, &r->plan, &m), AGOQ_OK);
    assert_int_equal(m.predicted_peak_bytes, r->stages[0].predicted_peak_bytes);
    assert_int_equal(m.activation_peak_bytes, r->stages[0].activation_peak_bytes);
    assert_int_equal(m.slack_bytes, r->stages[0].slack_bytes);
    assert_true(m.bits_mean == r->stages[0].bits_mean);
    assert_true(fabs(m.objective - r->stages[0].objective) <= 1e-12 * m.objective);
    plan less = r->plan;
    less.n_entries--;
    assert_int_equal(planner_measure_plan(problem, &less, &m), AGOQ_OK);
    if (r->plan.entries[less.n_entries].bits < 16) assert_true(m.objective <= r->stages[0].objective);
    const planner_problem none = {.n_stages = 0};
    assert_int_equal(planner_measure_plan(&none, &r->plan, &m), AGOQ_E_INVAL);
}

static void never_worse_than_the_rule(void **state) {
    (void)state;
    int better = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        planner_case c;
        case_make(seed, &c);
        c.stage.margin_ppm = 0;
        for (uint8_t bits = 4; bits <= 16; bits++) {
            if (agoq_width_index(bits) < 0) continue;
            planner_stage_result rule;
            const planner_problem problem = {.n_stages = 1, .stages = &c.stage};
            assert_int_equal(planner_evaluate(&problem, &bits, &rule), AGOQ_OK);
            c.stage.budget_bytes = rule.predicted_peak_bytes;
            planner_result r = solve(&problem);
            assert_true(r.feasible);
            assert_true(r.stages[0].predicted_peak_bytes <= rule.predicted_peak_bytes);
            assert_true(r.stages[0].objective <= rule.objective * (1 + 1e-12));
            better += r.stages[0].objective < rule.objective * 0.99;
            measured_is_solved(&problem, &r);
            planner_result_fini(&r);
        }
    }
    assert_true(better > 100);
}

/* Identical layers: the first ones get what is left over. */
static void ties_go_to_lower_layers(void **state) {
    (void)state;
    planner_item items[8];
    const uint64_t fixed = 0;
    const uint32_t live = 3;
    for (int i = 0; i < 8; i++)
        items[i] = (planner_item){(uint16_t)(7 - i), AGOQ_ROLE_MLP_GATE_UP, 0, 2, 64, 256, 31, 1};
    planner_stage s = {
        .n_chunks = 1, .n_items = 8, .n_live = 1, .fixed_bytes = &fixed, .items = items, .live = &live};
    s.budget_bytes =
        live * (3 * planner_item_bytes(&items[0], 5, 0) + 5 * planner_item_bytes(&items[0], 4, 0)) + 100;
    planner_result r = solve_one(&s);
    for (int layer = 0; layer < 8; layer++)
        assert_int_equal(plan_bits(&r.plan, layer, AGOQ_ROLE_MLP_GATE_UP), layer < 3 ? 5 : 4);
    assert_int_equal(r.stages[0].slack_bytes, 100);
    assert_true(fabs(r.stages[0].bits_mean - 4.375) < 1e-12);
    planner_result_fini(&r);
}

static void paper_rule(void **state) {
    (void)state;
    static const struct {
        uint32_t live[8], n;
        uint8_t bits[8];
    } cases[] = {{{11, 9, 7, 5}, 4, {4, 5, 6, 8}},
                 {{8, 7, 6, 5, 4, 3, 2, 1}, 8, {4, 5, 5, 6, 8, 8, 8, 8}},
                 {{4, 4, 4, 4}, 4, {4, 4, 4, 4}},
                 {{5, 9}, 2, {4, 4}},
                 {{7, 4}, 2, {4, 8}},   /* exactly 7: halfway, up */
                 {{9, 8}, 2, {4, 5}},   /* exactly 4.5 */
                 {{11, 8}, 2, {4, 6}}}; /* exactly 5.5 */
    uint8_t bits[8];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(planner_paper_rule(cases[i].live, cases[i].n, bits), AGOQ_OK);
        assert_memory_equal(bits, cases[i].bits, cases[i].n);
    }
    static const uint32_t zero[2] = {3, 0};
    assert_int_equal(planner_paper_rule(zero, 2, bits), AGOQ_E_INVAL);
}

static void live_vectors(void **state) {
    (void)state;
    static const struct {
        uint32_t p, m, v, r, n_rows, rows[8], units;
    } cases[] = {{4, 8, 2, 0, 2, {7, 4, 8, 3}, 11},
                 {4, 8, 2, 1, 4, {5, 4, 6, 3, 7, 2, 8, 1}, 9},
                 {4, 8, 2, 2, 4, {4, 3, 5, 2, 6, 1, 7, 0}, 7},
                 {4, 8, 2, 3, 2, {4, 1, 5, 0}, 5},
                 {4, 4, 2, 0, 1, {4, 4}, 8},
                 {4, 4, 2, 1, 1, {4, 4}, 8},
                 {4, 4, 2, 2, 1, {4, 3}, 7},
                 {4, 4, 2, 3, 1, {4, 1}, 5},
                 {1, 3, 2, 0, 2, {1, 1, 2, 0}, 2}};
    uint32_t rows[PLANNER_MAX_LIVE * 8], n;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(planner_live(AGOQ_SCHEDULE_INTERLEAVED, cases[i].p, cases[i].r, cases[i].m,
                                      cases[i].v, rows, PLANNER_MAX_LIVE, &n),
                         AGOQ_OK);
        assert_int_equal(n, cases[i].n_rows);
        for (uint32_t k = 0; k < n; k++) { /* in any order */
            int found = 0;
            for (uint32_t j = 0; j < n; j++)
                found |= rows[2 * j] == cases[i].rows[2 * k] && rows[2 * j + 1] == cases[i].rows[2 * k + 1];
            assert_true(found);
        }
        assert_int_equal(planner_live_units(rows, n, 2), cases[i].units);
    }
    /* Closed form of the sum, many shapes; more micro-batches change nothing. */
    for (uint32_t p = 1; p <= 9; p++) {
        for (uint32_t v = 2; v <= 5; v++) {
            for (uint32_t k = 1; k <= 9; k++) {
                for (uint32_t r = 0; r < p; r++) {
                    const uint32_t m = k * p, most = 2 * (p - r - 1) + (v - 1) * p + 1;
                    assert_int_equal(
                        planner_live(AGOQ_SCHEDULE_INTERLEAVED, p, r, m, v, rows, PLANNER_MAX_LIVE, &n),
                        AGOQ_OK);
                    assert_int_equal(planner_live_units(rows, n, v), m * v < most ? m * v : most);
                }
            }
        }
    }
    static const uint32_t few[8] = {4, 4, 4, 4, 4, 3, 2, 1};
    for (uint32_t r = 0; r < 8; r++) {
        assert_int_equal(planner_live(AGOQ_SCHEDULE_1F1B, 8, r, 4, 1, rows, 1, &n), AGOQ_OK);
        assert_int_equal(n, 1);
        assert_int_equal(rows[0], few[r]);
        assert_int_equal(planner_live(AGOQ_SCHEDULE_GPIPE, 8, r, 5, 1, rows, 1, &n), AGOQ_OK);
        assert_int_equal(rows[0], 5);
    }
    assert_int_equal(planner_live(AGOQ_SCHEDULE_DUALPIPE, 4, 0, 9, 2, rows, 8, &n), AGOQ_E_INVAL);
    assert_int_equal(planner_live(AGOQ_SCHEDULE_1F1B, 4, 0, 8, 2, rows, 8, &n), AGOQ_E_INVAL);
    assert_int_equal(planner_live(AGOQ_SCHEDULE_1F1B, 4, 4, 8, 1, rows, 8, &n), AGOQ_E_INVAL);
    assert_int_equal(planner_live(AGOQ_SCHEDULE_INTERLEAVED, 4, 1, 8, 2, rows, 3, &n), AGOQ_E_LIMIT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(live_vectors),
        cmocka_unit_test(paper_rule),
        cmocka_unit_test(equals_brute_force),
        cmocka_unit_test(larger_budget_is_never_worse),
        cmocka_unit_test(same_answer_for_any_order_of_items),
        cmocka_unit_test(never_worse_than_the_rule),
        cmocka_unit_test(ties_go_to_lower_layers),
    };
    return cmocka_run_group_tests_name("planner", tests, NULL, NULL);
}
