/* What ranks hold and how it becomes one problem; and the daemon's own sum of bytes against the solver's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoqd/held.h"
#include "agoqd/merge.h"
#include "agoqd/sessions.h"
#include "common/mem.h"

static Agoq__Item items[8], *pointers[8];
static uint64_t fixed_bytes[2], statics[3], workspaces[3];
static uint32_t live[16];
static Agoq__Profile profile;

static Agoq__Profile *make_profile(uint32_t n_chunks, size_t n_items) {
    Agoq__Profile p = AGOQ__PROFILE__INIT;
    profile = p;
    for (size_t i = 0; i < n_items; i++) {
        agoq__item__init(&items[i]);
        items[i].layer = (uint32_t)(n_items - 1 - i); /* in no order */
        items[i].chunk = (uint32_t)i % n_chunks;
        items[i].count = 1;
        items[i].rows = 64;
        items[i].cols = 128;
        items[i].widths = 31;
        items[i].sensitivity = 1;
        pointers[i] = &items[i];
    }
    for (int i = 0; i < 3; i++) statics[i] = workspaces[i] = 0;
    fixed_bytes[0] = fixed_bytes[1] = 16;
    profile.schedule = AGOQ_SCHEDULE_1F1B;
    profile.n_microbatches = 8;
    profile.n_chunks = n_chunks;
    profile.n_layers = 8;
    profile.items = pointers;
    profile.n_items = n_items;
    profile.fixed_bytes = fixed_bytes;
    profile.n_fixed_bytes = n_chunks;
    profile.static_bytes = statics;
    profile.workspace_bytes = workspaces;
    profile.n_static_bytes = profile.n_workspace_bytes = 3;
    profile.live = live;
    return &profile;
}

static void formula_or_observation(void **state) {
    (void)state;
    held h;
    const char *why = NULL;
    make_profile(1, 2);
    assert_int_equal(held_from_wire(&profile, 4, 1, &h, &why), AGOQ_OK);
    assert_int_equal(h.live_units, 3); /* 1F1B, stage 1 of 4 */
    assert_int_equal(h.items[0].layer, 0);
    assert_false(h.above_schedule);
    held_fini(&h);
    live[0] = 2; /* less was seen than the formula says: the formula holds */
    profile.n_live = 1;
    profile.observed_steps = 1;
    assert_int_equal(held_from_wire(&profile, 4, 1, &h, &why), AGOQ_OK);
    assert_int_equal(h.live_units, 3);
    held_fini(&h);
    live[0] = 5;
    assert_int_equal(held_from_wire(&profile, 4, 1, &h, &why), AGOQ_OK);
    assert_int_equal(h.live_units, 5);
    assert_int_equal(h.formula_units, 3);
    assert_true(h.above_schedule);
    held_fini(&h);
    make_profile(2, 4);
    profile.schedule = AGOQ_SCHEDULE_INTERLEAVED;
    assert_int_equal(held_from_wire(&profile, 4, 0, &h, &why), AGOQ_OK);
    assert_int_equal(h.live_units, 11); /* the paper's own case */
    held_fini(&h);
    profile.schedule = AGOQ_SCHEDULE_DUALPIPE;
    profile.n_microbatches = 9; /* an odd number: no formula */
    profile.observed_steps = 1;
    assert_int_equal(held_from_wire(&profile, 4, 0, &h, &why), AGOQ_E_INVAL);
    assert_non_null(strstr(why, "no formula"));
    live[0] = 4;
    live[1] = 3;
    profile.n_live = 2;
    assert_int_equal(held_from_wire(&profile, 4, 0, &h, &why), AGOQ_OK);
    assert_int_equal(h.live_units, 7);
    assert_false(h.above_schedule);
    held_fini(&h);
}

static void a_pair_twice_is_refused(void **state) {
    (void)state;
    held h;
    const char *why = NULL;
    make_profile(1, 3);
    items[2].layer = items[0].layer;
    assert_int_equal(held_from_wire(&profile, 1, 0, &h, &why), AGOQ_E_INVAL);
    assert_non_null(strstr(why, "twice"));
    make_profile(1, 3);
    for (long n = 1;; n++) {
        mem_fail_after(n);
        agoq_status status = held_from_wire(&profile, 1, 0, &h, &why);
        mem_fail_after(0);
        if (status == AGOQ_OK) break;
        assert_int_equal(status, AGOQ_E_NOMEM);
    }
    held_fini(&h);
}

static void only_what_the_planner_sees_counts_as_a_change(void **state) {
    (void)state;
    held a, b;
    const char *why = NULL;
    make_profile(1, 3);
    profile.observed_steps = 1;
    assert_int_equal(held_from_wire(&profile, 2, 0, &a, &why), AGOQ_OK);
    profile.observed_steps = 9;
    assert_int_equal(held_from_wire(&profile, 2, 0, &b, &why), AGOQ_OK);
    assert_true(held_same(&a, &b));
    held_fini(&b);
    workspaces[2] = 5;
    assert_int_equal(held_from_wire(&profile, 2, 0, &b, &why), AGOQ_OK);
    assert_false(held_same(&a, &b));
    held_fini(&b);
    workspaces[2] = 0;
    items[1].rows = 65;
    assert_int_equal(held_from_wire(&profile, 2, 0, &b, &why), AGOQ_OK);
    assert_false(held_same(&a, &b));
    held_fini(&a);
    held_fini(&b);
}

/* Random stages: the veto's own sum is the solver's prediction, for its plan and for the floor plan. */
static void own_sum_is_the_solvers(void **state) {
    (void)state;
    srand(99);
    for (int round = 0; round < 300; round++) {
        held h;
        const char *why = NULL;
        uint32_t chunks = 1 + (uint32_t)(rand() % 2);
        make_profile(chunks, 6);
        for (int i = 0; i < 6; i++) {
            items[i].rows = 1 + (uint64_t)(rand() % 100);
            items[i].cols = 1 + (uint64_t)(rand() % 300);
            items[i].count = 1 + (uint32_t)(rand() % 3);
            items[i].widths = 1 + (uint32_t)(rand() % 31);
        }
        for (int i = 0; i < 3; i++) {
            statics[i] = (uint64_t)(rand() % 1000000);
            workspaces[i] = (uint64_t)(rand() % 100000);
        }
        profile.alloc_round_bytes = rand() % 2 ? 512 : 0;
        profile.observed_steps = 1;
        profile.n_live = 2 * chunks;
        for (uint32_t i = 0; i < 2 * chunks; i++) live[i] = 4 + (uint32_t)(rand() % 9);
        assert_int_equal(held_from_wire(&profile, 4, 3, &h, &why), AGOQ_OK);
        planner_stage stage = held_stage(&h);
        planner_problem problem = {.n_stages = 1, .stages = &stage};
        planner_result r;
        stage.budget_bytes = PLANNER_NO_BUDGET;
        assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
        assert_int_equal(held_predict(&stage, &r.plan), r.stages[0].predicted_peak_bytes);
        planner_result_fini(&r);
        uint64_t floor_bytes = held_predict(&stage, NULL);
        stage.budget_bytes = floor_bytes + (uint64_t)(rand() % 2000);
        assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
        assert_true(r.feasible);
        assert_int_equal(held_predict(&stage, &r.plan), r.stages[0].predicted_peak_bytes);
        planner_result_fini(&r);
        held_fini(&h);
    }
}

static void add_rank(sessions *t, budgets *b, const conf *c, int rank, int stage) {
    session *s = &t->ranks[rank];
    const char *why = NULL;
    budget *device;
    held_fini(&s->held);
    assert_int_equal(held_from_wire(&profile, (uint32_t)t->n_stages, (uint32_t)stage, &s->held, &why),
                     AGOQ_OK);
    s->has_held = 1;
    s->state = SESSION_LIVE;
    s->who.stage = stage;
    snprintf(s->who.device, sizeof s->who.device, "GPU-%d", rank);
    assert_int_equal(budgets_device(b, c, s->who.device, stage, &device), AGOQ_OK);
}

static void least_budget_most_bytes(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    c.default_budget_bytes = 1000000;
    sessions t = {0};
    budgets b = {0};
    merged m;
    char text[512];
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_WAIT);
    assert_int_equal(sessions_reset(&t, "j", 2, 1, 2, 1), AGOQ_OK);
    make_profile(1, 2);
    profile.observed_steps = 1;
    statics[0] = 100;
    items[0].sensitivity = 3;
    items[1].widths = 7;
    live[0] = 2;
    profile.n_live = 1;
    add_rank(&t, &b, &c, 0, 0);
    statics[0] = 50;
    statics[2] = 70;
    items[0].sensitivity = 1;
    items[0].rows = 128;
    items[1].widths = 6;
    fixed_bytes[0] = 20;
    live[0] = 3;
    add_rank(&t, &b, &c, 1, 0);
    budgets_set(budgets_find(&b, "GPU-1"), 900000, 5, 1, 0, 0);
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_OK);
    const planner_stage *s = &m.stages[0];
    assert_int_equal(s->budget_bytes, 900000);
    assert_int_equal(s->budget_version, 5);
    assert_int_equal(m.made[0].tightest_rank, 1);
    assert_int_equal(s->phase[0].static_bytes, 100);
    assert_int_equal(s->phase[2].static_bytes, 70);
    assert_int_equal(s->fixed_bytes[0], 20);
    assert_int_equal(s->items[0].widths, 6); /* layer 0: both allow */
    assert_int_equal(s->items[1].rows, 128);
    assert_true(s->items[1].sensitivity == 3);
    assert_int_equal(planner_live_units(s->live, s->n_live, 1), 3);
    assert_int_equal(s->n_live, 2);
    merge_fini(&m);
    uint64_t cap = 500000;
    assert_int_equal(merge_build(&t, &b, &c, &cap, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_OK);
    assert_in_range(budgets_usable(900000, m.stages[0].margin_ppm), 499990, 500000);
    merge_fini(&m);
    c.role_widths[0] = AGOQ_MASK_6 | AGOQ_MASK_16; /* the operator's word */
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_OK);
    assert_int_equal(m.stages[0].items[0].widths, AGOQ_MASK_6);
    merge_fini(&m);
    c.role_widths[0] = AGOQ_MASK_16;
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_CONFLICT);
    assert_non_null(strstr(text, "no width"));
    c.role_widths[0] = 0;
    t.ranks[0].state = SESSION_SILENT;
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_WAIT);
    assert_non_null(strstr(text, "rank 0 (device GPU-0, stage 0) is silent; waiting for 1 of 2 ranks"));
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_JUDGE, &m, text, sizeof text), MERGE_OK);
    merge_fini(&m);
    t.ranks[0].state = SESSION_LIVE;
    for (long n = 1;; n++) {
        mem_fail_after(n);
        merge_status status = merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text);
        mem_fail_after(0);
        if (status == MERGE_OK) break;
        assert_int_equal(status, MERGE_NOMEM);
    }
    merge_fini(&m);
    t.n_stages = 2;
    assert_int_equal(merge_build(&t, &b, &c, NULL, MERGE_TO_PLAN, &m, text, sizeof text), MERGE_CONFLICT);
    assert_non_null(strstr(text, "no rank runs stage 1"));
    sessions_fini(&t);
    budgets_fini(&b);
    conf_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formula_or_observation),
        cmocka_unit_test(a_pair_twice_is_refused),
        cmocka_unit_test(only_what_the_planner_sees_counts_as_a_change),
        cmocka_unit_test(own_sum_is_the_solvers),
        cmocka_unit_test(least_budget_most_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
