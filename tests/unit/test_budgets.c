/* Budgets and the policy of replanning, each alone. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "agoqd/budgets.h"
#include "agoqd/policy.h"
#include "common/mem.h"

static void configuration_gives_the_first_value(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    conf_budget list[3] = {{"GPU-*", -1, 70}, {"", 2, 60}, {"GPU-b*", -1, 50}};
    conf_budget *own = c.budgets;
    c.budgets = list;
    c.n_budgets = 3;
    c.default_budget_bytes = 9;
    assert_int_equal(budgets_configured(&c, "cpu:h:0", 0), 9);
    assert_int_equal(budgets_configured(&c, "cpu:h:0", 2), 60);
    assert_int_equal(budgets_configured(&c, "GPU-a", 0), 70);
    assert_int_equal(budgets_configured(&c, "GPU-a", 2), 60); /* later entries win */
    assert_int_equal(budgets_configured(&c, "GPU-b1", 2), 50);
    c.budgets = own;
    c.n_budgets = 0;
    conf_fini(&c);
}

static void a_changed_file_counts_unless_an_operator_spoke(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    budgets t = {0};
    budget *b;
    c.default_budget_bytes = 100;
    assert_int_equal(budgets_device(&t, &c, "a", 0, &b), AGOQ_OK);
    assert_int_equal(b->version, 1);
    assert_int_equal(b->effective_bytes, 100);
    assert_int_equal(budgets_device(&t, &c, "b", 0, &b), AGOQ_OK);
    budgets_set(b, 80, budgets_next_version(&t), 1, 5, 1000);
    c.default_budget_bytes = 120;
    assert_int_equal(budgets_device(&t, &c, "a", 1, &b), AGOQ_OK);
    assert_int_equal(b->bytes, 120);
    assert_int_equal(b->stage, 1);
    assert_int_equal(b->version, 3);
    assert_int_equal(budgets_device(&t, &c, "b", 0, &b), AGOQ_OK);
    assert_int_equal(b->bytes, 80);
    assert_int_equal(b->configured_bytes, 120);
    assert_int_equal(b->version, 2);
    c.default_budget_bytes = 60; /* lowered in the file: a cut like any other */
    assert_int_equal(budgets_device(&t, &c, "a", 1, &b), AGOQ_OK);
    assert_true(b->pending);
    assert_int_equal(b->bytes, 60);
    assert_int_equal(b->effective_bytes, 120);
    budgets_effective(b, 9);
    c.default_budget_bytes = 120;
    assert_int_equal(budgets_device(&t, &c, "a", 1, &b), AGOQ_OK);
    assert_false(b->pending);
    assert_int_equal(b->effective_bytes, 120);
    budgets copy;
    mem_fail_after(1);
    assert_int_equal(budgets_copy(&copy, &t), AGOQ_E_NOMEM);
    mem_fail_after(0);
    assert_int_equal(budgets_copy(&copy, &t), AGOQ_OK);
    budgets_find(&copy, "a")->bytes = 1;
    assert_int_equal(budgets_find(&t, "a")->bytes, 120);
    assert_null(budgets_find(&t, "c"));
    budgets_fini(&copy);
    budgets_fini(&t);
    conf_fini(&c);
}

static void pending_until_effective(void **state) {
    (void)state;
    budget b = {.bytes = 100, .effective_bytes = 100, .version = 1};
    budgets_set(&b, 80, 2, 0, 7, 1000);
    assert_true(b.pending);
    assert_int_equal(b.effective_bytes, 100);
    assert_int_equal(b.step_effective, -1);
    budgets_set(&b, 90, 3, 0, 8, 1100); /* above the pending one, below what ranks keep to: still a cut */
    assert_true(b.pending);
    budgets_effective(&b, 10);
    assert_int_equal(b.effective_bytes, 90);
    assert_int_equal(b.step_effective, 10);
    budgets_set(&b, 95, 4, 0, 11, 1200);
    assert_false(b.pending);
    assert_int_equal(b.effective_bytes, 95);
    budgets_set(&b, 50, 5, 1, 12, 1300);
    assert_false(b.pending);
}

static void margin_rounds_down_and_never_overflows(void **state) {
    (void)state;
    assert_int_equal(budgets_usable(100, 0), 100);
    assert_int_equal(budgets_usable(100, 20000), 98);
    assert_int_equal(budgets_usable(99, 20000), 97);
    assert_int_equal(budgets_usable(1000000, 1), 999999);
    assert_true(budgets_usable(UINT64_MAX, 0) == UINT64_MAX);
    assert_int_equal(budgets_usable(100, 1000000), 0);
}

static policy_input growth(void) {
    return (policy_input){.free_ppm = 200000,
                          .objective_now = 1,
                          .objective_new = 0.5,
                          .steps_since_switch = 20,
                          .dwell_steps = 20};
}

static void what_must_or_was_asked_goes_at_once(void **state) {
    (void)state;
    policy p = {0};
    policy_input in = {.must = 1};
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_PROPOSE);
    in = (policy_input){.asked = 1};
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_PROPOSE);
    in = (policy_input){.same_bytes = 1, .must = 1, .asked = 1};
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_KEEP);
}

static void a_smaller_plan_goes_at_once_where_it_is_too_full(void **state) {
    (void)state;
    policy p = {0};
    policy_input in = growth();
    in.shrinks = 1;
    in.peak_ppm = 970000;
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_LATER);
    in.peak_ppm = 970001;
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_PROPOSE);
    in.shrinks = 0;
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_LATER);
}

static void growth_needs_windows_gain_room_and_dwell(void **state) {
    (void)state;
    policy p = {0};
    policy_input in = growth();
    assert_int_equal(policy_decide(&p, &in, 0), POLICY_LATER);
    assert_int_equal(policy_decide(&p, &in, 10), POLICY_LATER); /* the same window */
    assert_int_equal(policy_decide(&p, &in, 1000), POLICY_LATER);
    assert_int_equal(policy_decide(&p, &in, 2000), POLICY_STEP);
    in.free_ppm = 100000; /* exactly 10 % is not more than 10 % */
    assert_int_equal(policy_decide(&p, &in, 3000), POLICY_LATER);
    in = growth();
    assert_int_equal(policy_decide(&p, &in, 4000), POLICY_LATER); /* windows start again */
    in.objective_new = 0.96;
    assert_int_equal(policy_decide(&p, &in, 5000), POLICY_KEEP);
    in = growth();
    in.steps_since_switch = 19;
    for (int i = 0; i < 10; i++) assert_int_equal(policy_decide(&p, &in, 6000 + i * 1000), POLICY_LATER);
    in.steps_since_switch = 20;
    assert_int_equal(policy_decide(&p, &in, 20000), POLICY_STEP);
}

static void one_width_a_step(void **state) {
    (void)state;
    planner_item items[3] = {{.layer = 0, .role = 0, .widths = 31},
                             {.layer = 0, .role = 1, .widths = AGOQ_MASK_4 | AGOQ_MASK_8},
                             {.layer = 0, .role = 2, .widths = 31}};
    planner_stage stage = {.n_items = 3, .items = items};
    planner_problem problem = {.n_stages = 1, .stages = &stage};
    plan from, to;
    assert_int_equal(plan_init(&from, 1, 3), AGOQ_OK);
    for (uint8_t i = 0; i < 3; i++) from.entries[i] = (plan_entry){.role = i, .bits = 4};
    from.entries[2].bits = 8;
    assert_int_equal(plan_copy(&to, &from), AGOQ_OK);
    to.entries[0].bits = to.entries[1].bits = 16;
    to.entries[2].bits = 5;
    policy_step(&problem, &from, &to);
    assert_int_equal(to.entries[0].bits, 5);
    assert_int_equal(to.entries[1].bits, 8); /* the next width that it has */
    assert_int_equal(to.entries[2].bits, 5); /* down: all the way */
    plan_fini(&from);
    plan_fini(&to);
}

static int used_is(const void *user, const char *name) {
    return strcmp(user, name) == 0;
}

static void the_oldest_device_without_use_is_forgotten(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    c.default_budget_bytes = 100;
    budgets t = {0};
    budget *b;
    const char *const names[4] = {"a", "b", "c", "d"};
    for (int i = 0; i < 4; i++) assert_int_equal(budgets_device(&t, &c, names[i], 0, &b), AGOQ_OK);
    budgets_set(budgets_find(&t, "b"), 80, budgets_next_version(&t), 1, 5, 1000); /* an operator's word */
    assert_true(budgets_forget(&t, used_is, "a"));
    assert_null(budgets_find(&t, "c"));
    assert_non_null(budgets_find(&t, "a"));
    assert_int_equal(budgets_find(&t, "b")->bytes, 80);
    assert_true(budgets_forget(&t, used_is, "a"));
    assert_int_equal(t.n, 2);
    assert_false(budgets_forget(&t, used_is, "a")); /* the rest is wanted */
    budgets_fini(&t);
    conf_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(configuration_gives_the_first_value),
        cmocka_unit_test(a_changed_file_counts_unless_an_operator_spoke),
        cmocka_unit_test(pending_until_effective),
        cmocka_unit_test(margin_rounds_down_and_never_overflows),
        cmocka_unit_test(what_must_or_was_asked_goes_at_once),
        cmocka_unit_test(a_smaller_plan_goes_at_once_where_it_is_too_full),
        cmocka_unit_test(growth_needs_windows_gain_room_and_dwell),
        cmocka_unit_test(one_width_a_step),
        cmocka_unit_test(the_oldest_device_without_use_is_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
