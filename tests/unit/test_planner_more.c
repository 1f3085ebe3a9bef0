/* What the planner's problem has beyond widths and budgets: error tables and their hull, minimax, ties and
 * the previous plan, shared plans, hysteresis, many layers at once, levers of the memory model pulled for
 * real. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "planner/hysteresis.h"
#include "tests/unit/planner_cases.h"

static planner_result solve(const planner_problem *problem) {
    planner_result result = {0};
    assert_int_equal(planner_solve(problem, &result), AGOQ_OK);
    return result;
}

static double item_error(const planner_stage *s, const planner_item *item, int w) {
    return s->errors ? s->errors->of[item->role][w] : planner_error(case_widths[w]);
}

/* Least harm of a stage by trying everything; in the sets of widths that mask leaves. INFINITY: nothing fits.
 */
static double try_all(const planner_stage *s, uint32_t at, const uint8_t *mask, int *bits, double harm) {
    double best = INFINITY;
    if (at == s->n_items) return case_peak(s, bits) <= case_available(s) ? harm : INFINITY;
    const planner_item *item = &s->items[at];
    for (int w = 0; w < 5; w++) {
        if (!(item->widths >> w & 1) || (mask && mask[item->role] >> w & 1)) continue;
        bits[at] = case_widths[w];
        const double found =
            try_all(s, at + 1, mask, bits, harm + item->sensitivity * item_error(s, item, w));
        best = found < best ? found : best;
    }
    return best;
}

static void random_errors(uint64_t *seed, planner_errors *e) {
    for (int r = 0; r < AGOQ_N_ROLES; r++) {
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) e->of[r][w] = 1e-6 * (double)(1 + case_below(seed, 100000));
    }
}

/* Tables that are neither convex nor even decreasing: still the optimum; with hull_only the optimum of what
 * the hull leaves, and the dropped widths are said. */
static void odd_error_tables(void **state) {
    (void)state;
    int dropped = 0, worse = 0;
    for (uint64_t seed = 1; seed <= 400; seed++) {
        planner_case c;
        planner_errors errors;
        uint64_t random = seed * 77;
        int bits[CASE_ITEMS];
        case_make(seed, &c);
        for (int p = 1; p < AGOQ_N_PHASES; p++) memset(&c.stage.phase[p], 0, sizeof c.stage.phase[p]);
        for (uint32_t i = 0; i < c.stage.n_items; i++) c.items[i].widths = 31;
        random_errors(&random, &errors);
        c.stage.errors = &errors;
        c.stage.budget_bytes += c.stage.budget_bytes / 3;
        planner_problem problem = {.n_stages = 1, .stages = &c.stage};
        for (int hull = 0; hull < 2; hull++) {
            problem.hull_only = hull;
            planner_result r = solve(&problem);
            const double best = try_all(&c.stage, 0, hull ? r.dropped_widths : NULL, bits, 0);
            assert_int_equal(r.feasible, isfinite(best));
            if (r.feasible) {
                assert_true(fabs(r.stages[0].objective - best) <= 1e-9 * best + 1e-300);
                assert_true(r.gap == 0 && r.stages[0].relaxed_bound <= r.objective);
                worse += hull && best > try_all(&c.stage, 0, NULL, bits, 0) * (1 + 1e-9);
            }
            for (int role = 0; role < 2; role++) {
                const uint32_t d = r.dropped_widths[role];
                dropped += hull && d;
                assert_false(d & 1); /* the narrowest stays */
                for (uint32_t i = 0; hull && i < r.plan.n_entries; i++)
                    assert_false(r.plan.entries[i].role == role &&
                                 d >> agoq_width_index(r.plan.entries[i].bits) & 1);
                for (int w = 1; !hull && w < 5; w++) { /* dominated, and only those */
                    double narrower = INFINITY;
                    for (int v = 0; v < w; v++) narrower = fmin(narrower, errors.of[role][v]);
                    if (d) assert_int_equal(d >> w & 1, errors.of[role][w] >= narrower);
                }
            }
            planner_result_fini(&r);
        }
    }
    assert_true(dropped > 300 && worse > 5);
}

/* Several stages: the plan with the least worst stage, and among those the least sum, by trying all. */
static void minimax_is_lexicographic(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 60; seed++) {
        planner_case c[3];
        planner_stage stages[3];
        double worst = 0, sum = 0;
        int feasible = 1;
        for (uint32_t s = 0; s < 3; s++) {
            int bits[CASE_ITEMS];
            case_make(seed * 3 + s, &c[s]);
            if (c[s].stage.n_items > 4) c[s].stage.n_items = 4;
            for (uint32_t i = 0; i < c[s].stage.n_items; i++) c[s].items[i].layer = (uint16_t)(4 * s + i);
            for (int p = 1; p < AGOQ_N_PHASES; p++) memset(&c[s].stage.phase[p], 0, sizeof(planner_phase));
            stages[s] = c[s].stage;
            const double best = try_all(&stages[s], 0, NULL, bits, 0);
            feasible &= isfinite(best) != 0;
            worst = best > worst ? best : worst;
            sum += best;
        }
        if (!feasible) continue;
        planner_problem problem = {.n_stages = 3, .stages = stages, .objective = PLANNER_MINIMAX};
        planner_result r = solve(&problem);
        assert_true(fabs(r.objective - worst) <= 1e-9 * worst && r.gap == 0);
        assert_true(r.stages[r.worst_stage].objective == r.objective && r.lower_bound == r.objective);
        double all = 0;
        for (int s = 0; s < 3; s++) all += r.stages[s].objective;
        assert_true(fabs(all - sum) <= 1e-9 * sum);
        planner_result_fini(&r);
        problem.objective = PLANNER_SUM;
        r = solve(&problem);
        assert_true(fabs(r.objective - sum) <= 1e-9 * sum);
        planner_result_fini(&r);
    }
}

static planner_stage alike(planner_item *items, uint32_t n, const uint64_t *fixed, const uint32_t *live) {
    for (uint32_t i = 0; i < n; i++)
        items[i] = (planner_item){(uint16_t)i, AGOQ_ROLE_MLP_GATE_UP, 0, 1, 64, 256, 31, 1};
    return (planner_stage){
        .n_chunks = 1, .n_items = n, .n_live = 1, .fixed_bytes = fixed, .items = items, .live = live};
}

/* Equal tensors keep what they had; what is not decided by that goes to lower layers. */
static void previous_plan_breaks_ties(void **state) {
    (void)state;
    planner_item items[8];
    const uint64_t fixed = 0;
    const uint32_t live = 1;
    planner_stage s = alike(items, 8, &fixed, &live);
    s.budget_bytes = 3 * planner_item_bytes(items, 5, 0) + 5 * planner_item_bytes(items, 4, 0);
    plan_entry had[8];
    for (int i = 0; i < 8; i++)
        had[i] = (plan_entry){0, (uint16_t)i, AGOQ_ROLE_MLP_GATE_UP, i == 6 ? 6 : i == 4 ? 5 : 4};
    plan_stage none = {0};
    const plan previous = {1, 8, &none, had};
    const planner_problem problem = {.n_stages = 1, .stages = &s, .previous = &previous};
    planner_result r = solve(&problem);
    for (int i = 0; i < 8; i++)
        assert_int_equal(plan_bits(&r.plan, i, AGOQ_ROLE_MLP_GATE_UP), i == 6 || i == 4 || i == 0 ? 5 : 4);
    planner_result_fini(&r);
}

/* Two plans cost the same: {5, 5} and {4, 6} when the table is straight. One width is preferred to two. */
static void fewer_widths_win_ties(void **state) {
    (void)state;
    planner_item items[2];
    const uint64_t fixed = 0;
    const uint32_t live = 1;
    planner_errors straight = {0};
    for (int r = 0; r < AGOQ_N_ROLES; r++) {
        static const double row[AGOQ_N_WIDTHS] = {0.5, 0.375, 0.25, 0.125, 0.0625};
        memcpy(straight.of[r], row, sizeof row);
    }
    planner_stage s = alike(items, 2, &fixed, &live);
    s.errors = &straight;
    s.budget_bytes = 2 * planner_item_bytes(items, 5, 0);
    const planner_problem problem = {.n_stages = 1, .stages = &s};
    for (int other = 0; other < 2; other++) {
        items[1].sensitivity = 1;
        items[1].role = other ? AGOQ_ROLE_ATTN_NORM_IN : AGOQ_ROLE_MLP_GATE_UP;
        planner_result r = solve(&problem);
        assert_int_equal(r.plan.entries[0].bits, 5);
        assert_int_equal(r.plan.entries[1].bits, 5);
        planner_result_fini(&r);
    }
    uint64_t one, two;
    planner_result r = solve(&problem);
    assert_int_equal(planner_result_hash(&r, &one), AGOQ_OK);
    r.plan.entries[1].bits = 6;
    assert_int_equal(planner_result_hash(&r, &two), AGOQ_OK);
    assert_true(one != two && one && two);
    planner_result_fini(&r);
}

/* A plan for the shared stage fits every member, and a little more budget in all would not have been idle. */
static void shared_plans_fit_everyone(void **state) {
    (void)state;
    int feasible = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        planner_case c;
        uint64_t random = seed;
        planner_item items[CASE_ITEMS];
        uint64_t fixed[CASE_CHUNKS], least = UINT64_MAX;
        uint32_t live[3 * CASE_ROWS * CASE_CHUNKS];
        planner_stage members[3], shared;
        planner_stage_result m[3];
        case_make(seed, &c);
        for (int k = 0; k < 3; k++) {
            members[k] = c.stage;
            members[k].budget_bytes += case_below(&random, 3000);
            members[k].margin_ppm = case_below(&random, 100000);
            members[k].phase[case_below(&random, 3)].static_bytes += case_below(&random, 2000);
        }
        assert_int_equal(planner_share(members, 3, items, fixed, live, &shared), AGOQ_OK);
        planner_problem problem = {.n_stages = 1, .stages = &shared};
        planner_result r = solve(&problem);
        for (int k = 0; k < 3; k++) {
            const planner_problem one = {.n_stages = 1, .stages = &members[k]};
            assert_int_equal(planner_measure_plan(&one, &r.plan, &m[k]), AGOQ_OK);
            const uint64_t slack = m[k].slack_bytes;
            least = m[k].overshoot_bytes ? 0 : slack < least ? slack : least;
            if (r.feasible) assert_int_equal(m[k].overshoot_bytes, 0);
        }
        if (r.feasible) assert_int_equal(least, r.stages[0].slack_bytes);
        feasible += r.feasible;
        planner_result_fini(&r);
    }
    assert_true(feasible > 60);
    planner_case c;
    planner_item items[CASE_ITEMS];
    uint64_t fixed[CASE_CHUNKS];
    uint32_t live[3 * CASE_ROWS * CASE_CHUNKS];
    case_make(5, &c);
    planner_stage two[2] = {c.stage, c.stage}, out;
    planner_item changed[CASE_ITEMS];
    memcpy(changed, c.items, sizeof changed);
    changed[0].layer = 99;
    two[1].items = changed;
    assert_int_equal(planner_share(two, 2, items, fixed, live, &out), AGOQ_E_INVAL);
}

static void hysteresis(void **state) {
    (void)state;
    planner_switch_state s = {0};
    const planner_switch_rules *rules = &planner_switch_defaults;
    planner_switch_input in = {
        .free_ppm = 200000, .objective_now = 1, .objective_new = 0.9, .steps_since_switch = 20};
    assert_int_equal(planner_switch_decide(&s, rules, &in, 0), PLANNER_SWITCH_LATER);
    assert_int_equal(planner_switch_decide(&s, rules, &in, 999), PLANNER_SWITCH_LATER); /* the same window */
    assert_int_equal(planner_switch_decide(&s, rules, &in, 1000), PLANNER_SWITCH_LATER);
    in.free_ppm = 100000; /* not more than 10 %: the row is broken */
    assert_int_equal(planner_switch_decide(&s, rules, &in, 2000), PLANNER_SWITCH_LATER);
    in.free_ppm = 100001;
    for (int k = 3; k < 5; k++)
        assert_int_equal(planner_switch_decide(&s, rules, &in, 1000 * k), PLANNER_SWITCH_LATER);
    in.steps_since_switch = 19;
    assert_int_equal(planner_switch_decide(&s, rules, &in, 5000), PLANNER_SWITCH_LATER);
    in.steps_since_switch = 20;
    assert_int_equal(planner_switch_decide(&s, rules, &in, 5001), PLANNER_SWITCH_STEP);
    in.objective_new = 0.951; /* no more than 5 % better */
    assert_int_equal(planner_switch_decide(&s, rules, &in, 9000), PLANNER_SWITCH_KEEP);
    in.peak_ppm = 970001; /* near the budget: down at once, but only down */
    assert_int_equal(planner_switch_decide(&s, rules, &in, 9000), PLANNER_SWITCH_KEEP);
    in.shrinks = 1;
    assert_int_equal(planner_switch_decide(&s, rules, &in, 9000), PLANNER_SWITCH_NOW);
    in.same_bytes = 1;
    assert_int_equal(planner_switch_decide(&s, rules, &in, 9000), PLANNER_SWITCH_KEEP);
}

/* More entries than a plan on the wire may have: solved all the same, refused by the encoder. */
static void large_problems_are_solved(void **state) {
    (void)state;
    const uint32_t n = PLAN_MAX_ENTRIES + 8;
    planner_item *items = calloc(n, sizeof *items);
    const uint64_t fixed = 0;
    const uint32_t live = 1;
    assert_non_null(items);
    planner_stage s = alike(items, n, &fixed, &live);
    s.budget_bytes = n * planner_item_bytes(items, 5, 0);
    const planner_problem problem = {.n_stages = 1, .stages = &s};
    planner_result r = solve(&problem);
    uint64_t hash;
    assert_true(r.feasible && r.gap == 0 && r.stages[0].slack_bytes == 0);
    assert_int_equal(planner_result_hash(&r, &hash), AGOQ_E_LIMIT);
    planner_result_fini(&r);
    free(items);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_error_tables),          cmocka_unit_test(minimax_is_lexicographic),
        cmocka_unit_test(previous_plan_breaks_ties), cmocka_unit_test(fewer_widths_win_ties),
        cmocka_unit_test(shared_plans_fit_everyone), cmocka_unit_test(hysteresis),
        cmocka_unit_test(large_problems_are_solved),
    };
    return cmocka_run_group_tests_name("planner_more", tests, NULL, NULL);
}
