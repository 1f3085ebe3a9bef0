/* Ranks that have heard more than this daemon has said: its state was removed or is older than they are, or
 * they make it up. Terms and budget versions go above what was heard (S1, S3, S8), and no message can use
 * them up. */
#include "agoqd/core_past.h"
#include "core_ask.h"

static budget *device(const world *w, const char *name) {
    return budgets_find(&w->core->budgets, name);
}

static void a_later_term_is_topped_once(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[0].highest_term = 41;
    world_hello(w, &w->rank[0]);
    int n = w->n_stored;
    world_pump(w);
    assert_int_equal(w->core->term, 42);
    assert_int_equal(w->n_stored, n + 1);
    for (int i = 0; i < 5; i++) { /* now it has heard 42, from us */
        world_hello(w, &w->rank[0]);
        world_pump(w);
    }
    assert_int_equal(w->core->term, 42);
    w->rank[1].highest_term = 42; /* the same number from an earlier life may be in its plan's id */
    world_hello(w, &w->rank[1]);
    world_pump(w);
    assert_int_equal(w->core->term, 43);
    core_free(&w->core);
    world_start_daemon(w);
    assert_int_equal(w->core->term, 44); /* it was stored */
    world_free(w);
}

static void one_message_does_not_use_up_the_terms(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[0].highest_term = 0xfffffe;
    world_hello(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(w->rank[0].last_refuse, WIRE_REFUSE_PAST);
    assert_int_equal(w->core->ranks.ranks[0].state, SESSION_NONE);
    assert_int_equal(w->core->term, 1);
    w->rank[0].highest_term = 0; /* nor does the id of the plan that it runs */
    w->rank[0].vote_id = plan_id_make(0xfffffe, 0, 1);
    world_hello(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(w->core->term, 1);
    core_free(&w->core);
    world_start_daemon(w); /* it still starts */
    world_free(w);
}

static void a_late_nack_costs_no_term(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    world_run(w, 2000);
    assert_int_equal(w->core->cycle.state, CYCLE_IDLE);
    int n = w->n_stored;
    Agoq__Nack m = AGOQ__NACK__INIT;
    m.id = w->core->cycle.id;
    const uint32_t reasons[2] = {AGOQ__NACK_REASON__NACK_OLD_TERM, AGOQ__NACK_REASON__NACK_OLD_BUDGET};
    for (int i = 0; i < 2; i++) {
        m.reason = reasons[i];
        world_say(w, &w->rank[0], AGOQ__ENVELOPE__BODY_NACK, &m);
        world_pump(w);
    }
    assert_int_equal(w->core->term, 1);
    assert_int_equal(device(w, "GPU-0")->version, 1);
    assert_int_equal(w->n_stored, n);
    world_free(w);
}

static void a_nack_in_time_costs_one_term(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    w->rank[1].highest_term = 2; /* it knows of one that we have not heard of */
    world_budget(w, 0, "", 3000000);
    world_pump(w);
    assert_int_equal(w->core->term, 2);
    world_run(w, 5000);
    assert_int_equal(w->core->term, 2);
    assert_int_equal(world_switch(w, w->rank[0].applied_id, 10), 2);
    assert_int_equal(plan_id_term(w->rank[0].applied_id), 2);
    world_free(w);
}

/* The state was removed: versions start at 1 again, and the ranks have seen 7. */
static void a_later_budget_version_is_topped_at_hello(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[1].budget_version = 7;
    world_hello(w, &w->rank[1]);
    int n = w->n_stored;
    world_pump(w);
    assert_int_equal(device(w, "GPU-1")->version, 8);
    assert_int_equal(w->n_stored, n + 1);           /* durable, */
    assert_int_equal(w->rank[1].budget_version, 8); /* then said */
    world_join(w);
    assert_int_equal(device(w, "GPU-1")->version, 8);
    assert_int_equal(device(w, "GPU-0")->version, 1);
    assert_int_equal(world_switch(w, 0, 10), 2);
    w->lost = 1;
    world_budget(w, 1, "", 3000000);
    assert_int_equal(device(w, "GPU-1")->version, 9);
    w->rank[1].applied_id = w->rank[1].prepared_id = 0; /* the floor would fit, but has it seen the cut? */
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_true(device(w, "GPU-1")->pending);
    w->lost = 0;
    w->rank[1].budget_version = 9;
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_false(device(w, "GPU-1")->pending);
    world_restart(w);
    assert_int_equal(w->core->budgets.version, 9);
    world_free(w);
}

static void a_later_budget_version_is_topped_at_a_report(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    w->rank[1].budget_version = 20;
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_int_equal(device(w, "GPU-1")->version, 21);
    assert_int_equal(w->rank[1].budget_version, 21); /* told at once */
    world_budget(w, 1, "", 3000000);
    world_pump(w);
    assert_int_equal(world_switch(w, first, 10), 2);
    assert_false(device(w, "GPU-1")->pending);
    world_free(w);
}

static void a_nack_tells_of_a_later_budget_version(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    w->rank[1].budget_version = 5;
    world_budget(w, 0, "", 3000000); /* so far rank 1 has said nothing of it */
    world_pump(w);
    assert_true(device(w, "GPU-1")->version > 1);
    uint64_t first = w->rank[0].applied_id;
    world_run(w, 3000);
    assert_true(device(w, "GPU-1")->version > 5);
    assert_int_equal(world_switch(w, first, 10), 2);
    world_free(w);
}

static void an_impossible_budget_version_is_refused(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[0].budget_version = (uint64_t)1 << 60;
    world_hello(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(w->rank[0].last_refuse, WIRE_REFUSE_PAST);
    assert_int_equal(w->core->budgets.version, 1);
    w->rank[0].budget_version = 0;
    world_join(w);
    w->rank[0].budget_version = (uint64_t)1 << 60;
    world_report(w, &w->rank[0]);
    world_pump(w);
    assert_int_equal(w->core->budgets.version, 1);
    assert_non_null(strstr(w->core->why.alarm, "budget version"));
    world_free(w);
}

static void what_cannot_be_stored_is_not_said(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->disk_full = 1;
    w->rank[0].budget_version = 7;
    w->rank[0].highest_term = 3;
    world_hello(w, &w->rank[0]);
    world_pump(w);
    assert_false(w->rank[0].welcomed);
    assert_int_equal(w->rank[0].last_refuse, WIRE_REFUSE_LIMIT);
    assert_true(w->core->term == 1 && w->core->budgets.version == 1 && device(w, "GPU-0")->version == 1);
    w->disk_full = 0;
    world_hello(w, &w->rank[0]);
    world_pump(w);
    assert_true(w->rank[0].welcomed);
    assert_true(w->core->term == 4 && device(w, "GPU-0")->version == 8);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_later_term_is_topped_once),
        cmocka_unit_test(one_message_does_not_use_up_the_terms),
        cmocka_unit_test(a_late_nack_costs_no_term),
        cmocka_unit_test(a_nack_in_time_costs_one_term),
        cmocka_unit_test(a_later_budget_version_is_topped_at_hello),
        cmocka_unit_test(a_later_budget_version_is_topped_at_a_report),
        cmocka_unit_test(a_nack_tells_of_a_later_budget_version),
        cmocka_unit_test(an_impossible_budget_version_is_refused),
        cmocka_unit_test(what_cannot_be_stored_is_not_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
