/* The daemon's core on virtual time: from the first HELLO to a plan on every rank, and what must not disturb
 * it. */
#include "core_ask.h"

static void first_plan_waits_for_every_rank_and_step(void **state) {
    (void)state;
    world *w = world_new(4, 4);
    for (int i = 0; i < 3; i++) world_hello(w, &w->rank[i]);
    world_pump(w);
    world_run(w, 5000);
    assert_int_equal(world_prepares(w), 0);
    const Agoq__CtlReply *reply = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_string_equal(reply->status->state, "collect");
    assert_non_null(strstr(reply->status->why, "rank 3"));
    world_hello(w, &w->rank[3]);
    world_pump(w);
    world_run(w, 2000);
    assert_int_equal(world_prepares(w), 0); /* no step was observed */
    world_boundary(w);
    assert_int_equal(world_prepares(w), 4); /* in the same event, no tick needed */
    assert_int_equal(world_switch(w, 0, 10), 2);
    reply = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_string_equal(reply->status->state, "idle");
    assert_int_equal(reply->status->plan_id, w->rank[0].applied_id);
    assert_int_equal(reply->status->switches, 1);
    assert_non_null(strstr(reply->status->why, "first plan: stage 0 bound by budget 3.81 MiB (live 4)"));
    assert_non_null(strstr(reply->status->why, "stage 3 every tensor at its largest width (live 1)"));
    assert_int_equal(plan_id_term(w->rank[0].applied_id), 1);
    world_free(w);
}

static void nothing_is_proposed_twice(void **state) {
    (void)state;
    world *w = world_new(4, 4);
    world_join(w);
    world_switch(w, 0, 10);
    int before = world_prepares(w);
    for (int i = 0; i < 200; i++) {
        world_run(w, 1000);
        world_boundary(w);
    }
    for (int i = 0; i < 4; i++) world_profile(w, &w->rank[i]); /* the same again */
    world_pump(w);
    world_run(w, 5000);
    assert_int_equal(world_prepares(w), before);
    world_free(w);
}

static void observed_live_counts_win(void **state) {
    (void)state;
    world *w = world_new(4, 4);
    w->rank[2].live = 3; /* the formula says 2 */
    world_join(w);
    world_switch(w, 0, 10);
    planned *p = plans_find(&w->core->plans, w->rank[0].applied_id);
    assert_non_null(strstr(p->why, "stage 2"));
    assert_non_null(strstr(p->why, "live above schedule: holds 3, formula 2"));
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlExplain explain = AGOQ__CTL_EXPLAIN__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_EXPLAIN;
    q.explain = &explain;
    explain.stage = 2;
    const Agoq__CtlReply *reply = world_ask(w, &q, 5);
    assert_int_equal(reply->n_stages, 1);
    assert_int_equal(reply->stages[0]->live[0], 3);
    assert_true(reply->stages[0]->why & PLANNER_WHY_LIVE_ABOVE_SCHEDULE);
    world_free(w);
}

static void prediction_keeps_to_the_budget_of_the_tightest_rank(void **state) {
    (void)state;
    world *w = world_new(4, 2); /* two ranks a stage */
    w->rank[1].static_bytes = 900000;
    world_join(w);
    world_switch(w, 0, 10);
    planned *p = plans_find(&w->core->plans, w->rank[0].applied_id);
    uint64_t usable = budgets_usable(4000000, w->conf.margin_ppm);
    assert_in_range(p->plan.stages[0].predicted_peak_bytes, 900000, usable);
    for (int i = 0; i < 4; i++) {
        planner_stage stage = held_stage(&w->core->ranks.ranks[i].held);
        assert_in_range(held_predict(&stage, &p->plan), 1, usable);
    }
    world_free(w);
}

static void garbage_is_counted_and_changes_nothing(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    peer from = world_peer(0, 9, 9);
    uint8_t bytes[300];
    for (int i = 0; i < 1000; i++) {
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)(i * 31 + (int)k * 7);
        core_receive(w->core, &from, bytes, (size_t)i % sizeof bytes, w->now);
    }
    const Agoq__CtlReply *reply = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_int_equal(reply->status->rejected_messages, 1000);
    assert_int_equal(reply->status->plan_id, w->rank[0].applied_id);
    world_free(w);
}

static void a_stranger_is_told_to_say_hello(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[0].connected = 1;
    world_report(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(w->rank[0].last_refuse, WIRE_REFUSE_HELLO_FIRST);
    world_free(w);
}

static void copies_and_late_messages_change_nothing(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t plan_id = w->rank[0].applied_id, seq = w->rank[0].seq;
    w->rank[0].applied_id = 0; /* a report from before the switch, delivered late */
    w->rank[0].seq = 2;
    world_report(w, &w->rank[0]);
    w->rank[0].seq = seq;
    w->rank[0].applied_id = plan_id;
    world_pump(w);
    assert_true(w->core->ranks.ranks[0].who.applied_id == plan_id);
    assert_true(w->core->count.duplicates > 0);
    assert_int_equal(w->core->mixed, 0);
    world_free(w);
}

static void a_busy_rank_is_asked_again_soon(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[1].busy_always = 1;
    world_join(w);
    int before = w->rank[1].n_prepare;
    world_run(w, 500);
    assert_in_range(w->rank[1].n_prepare - before, 8, 11); /* every 50 ms */
    assert_int_equal(w->rank[0].n_prepare, 1);
    w->rank[1].busy_always = 0;
    assert_int_equal(world_switch(w, 0, 10), 2);
    world_free(w);
}

static void mixed_plans_are_brought_together(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    w->rank[1].applied_id = 0; /* for whatever reason */
    world_run(w, 3000);
    assert_true(world_switch(w, first, 10) > 0);
    assert_int_equal(w->rank[0].applied_id, 0); /* the vote sends a mixed world to the floor plan */
    assert_true(world_switch(w, 0, 10) > 0);
    assert_true(w->rank[0].applied_id == w->rank[1].applied_id && w->rank[0].applied_id);
    world_free(w);
}

static void the_guard_gets_a_smaller_plan(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    planned *p = plans_find(&w->core->plans, first);
    uint64_t predicted = p->plan.stages[0].predicted_peak_bytes;
    w->rank[0].guarded = 1;
    w->rank[0].peak = predicted - predicted / 10;
    world_report(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(world_switch(w, first, 10), 2);
    p = plans_find(&w->core->plans, w->rank[0].applied_id);
    assert_true(p->plan.stages[0].predicted_peak_bytes < predicted - predicted / 10);
    assert_non_null(strstr(p->why, "memory guard: rank 0: allocation failed"));
    int n = world_prepares(w);
    world_run(w, 30000); /* and no growing back by itself */
    assert_int_equal(world_prepares(w), n);
    world_free(w);
}

static void growth_nobody_asked_for_waits_and_goes_step_by_step(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    plan before;
    assert_int_equal(plan_copy(&before, &plans_find(&w->core->plans, first)->plan), AGOQ_OK);
    w->rank[0].rows = 512; /* half the tokens */
    world_profile(w, &w->rank[0]);
    world_pump(w);
    int n = world_prepares(w), steps = 0;
    while (world_prepares(w) == n && steps < 60) {
        world_run(w, 1000);
        world_boundary(w);
        steps++;
    }
    assert_in_range(steps, 18, 25); /* the dwell */
    assert_true(world_switch(w, first, 10) > 0);
    planned *p = plans_find(&w->core->plans, w->rank[0].applied_id);
    for (uint32_t i = 0; i < before.n_entries; i++) {
        int from = agoq_width_index(before.entries[i].bits), to = agoq_width_index(p->plan.entries[i].bits);
        assert_in_range(to - from + 1, 0, 2);
    }
    plan_fini(&before);
    world_free(w);
}

/* What a rank was seen to use is not free, whatever the plan predicts. */
static void growth_needs_room_that_was_seen(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    const uint64_t usable = budgets_usable(w->conf.default_budget_bytes, w->conf.margin_ppm);
    for (int i = 0; i < 2; i++) w->rank[i].peak = usable - usable / 12;
    w->rank[0].rows = 512;
    world_profile(w, &w->rank[0]);
    world_pump(w);
    int n = world_prepares(w);
    for (int i = 0; i < 60; i++) {
        world_run(w, 1000);
        world_boundary(w);
    }
    assert_int_equal(world_prepares(w), n);
    w->rank[1].peak = usable / 2;
    for (int i = 0; i < 10; i++) world_run(w, 1000);
    assert_int_equal(world_prepares(w), n + 2);
    world_free(w);
}

/* Stage 1 may have less since the fullest stage needs less; that alone is worth no switch, until rank 1 is
 * seen too near its budget. */
static void a_full_rank_gets_the_smaller_plan(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->conf.mode = PLANNER_EQUALIZE;
    world_join(w);
    world_switch(w, 0, 10);
    const uint64_t usable = budgets_usable(w->conf.default_budget_bytes, w->conf.margin_ppm);
    const uint64_t before =
        plans_find(&w->core->plans, w->rank[1].applied_id)->plan.stages[1].predicted_peak_bytes;
    w->rank[0].rows = 768;
    world_profile(w, &w->rank[0]);
    world_pump(w);
    int n = world_prepares(w);
    world_run(w, 40000);
    w->rank[1].peak = usable / 100 * 96;
    world_run(w, 40000);
    assert_int_equal(world_prepares(w), n);
    w->rank[1].peak = usable / 100 * 98;
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_int_equal(world_prepares(w), n + 2);
    const planned *p = plans_find(&w->core->plans, w->rank[1].prepared_id);
    assert_non_null(p);
    assert_non_null(strstr(p->why, "rank 1 was seen at 9"));
    assert_true(p->plan.stages[1].predicted_peak_bytes < before);
    world_free(w);
}

static void shrinking_never_waits(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    int n = world_prepares(w);
    w->rank[0].static_bytes += 1000000;
    world_profile(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(world_prepares(w), n + 2);
    world_free(w);
}

static void every_failed_allocation_leaves_it_running(void **state) {
    (void)state;
    for (long n = 1; n < 400; n += 3) {
        world *w = world_new(2, 2);
        for (int i = 0; i < 2; i++) {
            world_hello(w, &w->rank[i]);
            world_pump(w);
        }
        world_message m;
        world_profile(w, &w->rank[0]); /* only the core's own allocations may fail: deliver by hand */
        m = w->queue[--w->n_queue];
        peer from = world_peer(0, 1, 100);
        mem_fail_after(n);
        w->lost = 1;
        core_receive(w->core, &from, m.data, m.size, w->now);
        mem_fail_after(0);
        w->lost = 0;
        mem_free(m.data);
        world_run(w, 3000);
        world_boundary(w);
        assert_true(world_switch(w, 0, 20) > 0);
        world_free(w);
    }
}

/* Forty cuts, each overtaken by the next before the ranks could switch: what they run must not be forgotten,
 * or they would count as too big for ever. */
static void plans_in_use_are_not_forgotten(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    w->rank[1].hung = 1;
    for (int i = 1; i <= 40; i++) {
        world_budget(w, 0, "", 4000000 - (uint64_t)i * 20000);
        world_pump(w);
    }
    assert_true(w->core->plans.n > PLANS_KEPT);
    assert_non_null(plans_find(&w->core->plans, first));
    assert_non_null(plans_find(&w->core->plans, w->core->cycle.id));
    w->rank[1].hung = 0;
    world_run(w, 3000);
    assert_int_equal(world_switch(w, first, 10), 2);
    assert_false(budgets_find(&w->core->budgets, "GPU-0")->pending);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_plan_waits_for_every_rank_and_step),
        cmocka_unit_test(nothing_is_proposed_twice),
        cmocka_unit_test(observed_live_counts_win),
        cmocka_unit_test(prediction_keeps_to_the_budget_of_the_tightest_rank),
        cmocka_unit_test(garbage_is_counted_and_changes_nothing),
        cmocka_unit_test(a_stranger_is_told_to_say_hello),
        cmocka_unit_test(copies_and_late_messages_change_nothing),
        cmocka_unit_test(a_busy_rank_is_asked_again_soon),
        cmocka_unit_test(mixed_plans_are_brought_together),
        cmocka_unit_test(the_guard_gets_a_smaller_plan),
        cmocka_unit_test(growth_nobody_asked_for_waits_and_goes_step_by_step),
        cmocka_unit_test(growth_needs_room_that_was_seen),
        cmocka_unit_test(a_full_rank_gets_the_smaller_plan),
        cmocka_unit_test(shrinking_never_waits),
        cmocka_unit_test(every_failed_allocation_leaves_it_running),
        cmocka_unit_test(plans_in_use_are_not_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
