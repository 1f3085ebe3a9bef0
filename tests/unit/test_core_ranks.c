/* Ranks that hang, die, come back or do not belong; a daemon that dies (S9, S13, S15). */
#include "agoqd/core_ranks.h"
#include "core_ask.h"

static void a_hung_rank_makes_the_cycle_give_up(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->rank[1].live = 1;
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    w->rank[1].hung = 1;
    world_budget(w, 0, "", 2000000);
    assert_int_equal(w->core->cycle.state, CYCLE_PREPARING);
    world_run(w, 2900);
    assert_int_equal(w->core->ranks.ranks[1].state, SESSION_LIVE);
    world_run(w, 1100);
    assert_int_equal(w->core->ranks.ranks[1].state, SESSION_SILENT);
    assert_int_equal(w->core->cycle.state, CYCLE_PREPARING);
    world_run(w, 7000);
    assert_int_equal(w->core->cycle.state, CYCLE_IDLE); /* 10 s after PREPARE */
    assert_true(w->rank[0].n_abort > 0);
    assert_int_equal(w->rank[0].prepared_id, 0);
    assert_true(w->rank[0].applied_id == first); /* nobody was hurt */
    int n = w->rank[0].n_prepare;
    world_run(w, 60000);
    assert_int_equal(w->rank[0].n_prepare, n); /* and nobody is bothered while it hangs */
    w->rank[1].hung = 0;
    world_run(w, 1500);
    assert_int_equal(world_switch(w, first, 10), 2);
    world_free(w);
}

static void a_long_step_is_no_reason_to_give_up(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_run(w, 60000); /* all hold the plan, the step takes a minute */
    assert_int_equal(w->core->cycle.state, CYCLE_ARMED);
    assert_int_equal(w->rank[0].n_abort, 0);
    assert_int_equal(world_switch(w, 0, 10), 2);
    world_free(w);
}

static void a_killed_rank_is_noticed_and_its_heir_gets_the_plan(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    w->rank[1].dead = 1;
    world_run(w, 600);
    assert_int_equal(w->core->ranks.ranks[1].state, SESSION_GONE);
    world_rank *r = &w->rank[1];
    r->dead = 0;
    r->incarnation = 2;
    r->pid = 555;
    r->seq = r->applied_id = r->applied_hash = r->prepared_id = r->vote_id = r->observed_steps = 0;
    world_hello(w, r);
    world_pump(w);
    assert_int_equal(w->core->ranks.ranks[1].state, SESSION_LIVE);
    assert_int_equal(w->core->ranks.ranks[1].who.pid, 555);
    assert_true(world_switch(w, first, 10) > 0); /* the first vote: floor */
    assert_int_equal(w->rank[0].applied_id, 0);
    assert_true(world_switch(w, 0, 10) > 0); /* then the plan afresh, under a new id */
    assert_true(w->rank[0].applied_id != first && w->rank[0].applied_id == w->rank[1].applied_id);
    world_free(w);
}

static void a_rank_that_reconnects_gets_the_plan_at_once(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    w->rank[1].hung = 1; /* PREPARE goes under with the connection */
    world_budget(w, 0, "", 3500000);
    world_pump(w);
    w->rank[1].hung = 0;
    assert_true(w->rank[1].prepared_id == 0 && w->core->cycle.state == CYCLE_PREPARING);
    uint64_t id = w->core->cycle.id;
    world_hello(w, &w->rank[1]);
    world_pump(w); /* no time has passed */
    assert_true(w->core->cycle.id == id && w->rank[1].prepared_id == id);
    assert_int_equal(w->core->cycle.state, CYCLE_ARMED);
    world_free(w);
}

static void a_plan_that_was_taken_closes_the_vote_before_it(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    session *s = &w->core->ranks.ranks[1];
    w->rank[1].vote_id = w->rank[1].applied_id + 1; /* a vote that the last report told of */
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_true(s->now.vote_id != 0);
    w->rank[1].vote_id = 0; /* read meanwhile */
    world_budget(w, 1, "", 2000000);
    world_pump(w);
    assert_int_equal(s->now.vote_id, 0);
    assert_true(s->now.prepared_id == w->core->cycle.id);
    assert_int_equal(s->now.budget_version, 2);
    world_free(w);
}

static void a_closed_session_of_the_same_process_is_turned_away(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_rank *r = &w->rank[1];
    r->incarnation = 2; /* the same process opens a session anew */
    r->seq = 0;
    world_hello(w, r);
    world_pump(w);
    assert_int_equal(w->core->ranks.ranks[1].state, SESSION_LIVE);
    r->incarnation = 1; /* the old one speaks again */
    r->seq = 100;
    world_report(w, r);
    world_pump(w);
    assert_int_equal(r->last_refuse, WIRE_REFUSE_HELLO_FIRST);
    world_hello(w, r);
    world_pump(w);
    assert_int_equal(r->last_refuse, WIRE_REFUSE_REPLACED);
    world_free(w);
}

/* S9: a process that may be alive keeps its memory, and so its place. */
static void a_living_process_is_not_replaced(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    const session *s = &w->core->ranks.ranks[1];
    world_rank *r = &w->rank[1], old = *r;
    w->others[0] = r->pid; /* it lives on, and somebody else comes */
    r->incarnation = 2;
    r->pid = 555;
    r->seq = r->applied_id = r->applied_hash = 0;
    for (int silent = 0; silent <= 1; silent++) {
        world_hello(w, r);
        world_pump(w);
        assert_int_equal(r->last_refuse, WIRE_REFUSE_TAKEN);
        assert_true(s->who.pid == old.pid && s->who.applied_id == old.applied_id && s->has_held);
        r->connected = 0;
        world_run(w, 5000);
        assert_int_equal(s->state, SESSION_SILENT); /* silence frees nothing */
    }
    w->others[0] = 0; /* it exits, and its heir need not wait for the next look */
    world_hello(w, r);
    world_pump(w);
    assert_true(s->state == SESSION_LIVE && s->who.pid == 555);
    world_free(w);
}

static void the_daemons_death_changes_nothing(void **state) {
    (void)state;
    world *w = world_new(4, 4);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    int n = world_prepares(w);
    world_run(w, 2000);
    world_restart(w);
    for (int i = 0; i < 3; i++) world_hello(w, &w->rank[i]);
    world_pump(w);
    world_run(w, 5000);
    assert_string_equal(world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS)->status->state, "recover");
    world_hello(w, &w->rank[3]);
    world_pump(w);
    for (int i = 0; i < 100; i++) {
        world_run(w, 1000);
        world_boundary(w);
    }
    assert_int_equal(world_prepares(w), n);
    assert_true(w->rank[0].applied_id == first);
    const Agoq__CtlReply *reply = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_string_equal(reply->status->state, "idle");
    assert_true(reply->status->plan_id == first);
    assert_int_equal(reply->status->term, 2);
    world_budget(w, 1, "", 3000000); /* and it still works */
    world_pump(w);
    assert_int_equal(world_switch(w, first, 10), 2);
    assert_int_equal(plan_id_term(w->rank[0].applied_id), 2);
    world_free(w);
}

static void a_cut_survives_the_daemons_death(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    uint64_t first = w->rank[0].applied_id;
    world_run(w, 2000);
    w->lost = 1; /* stored, and the daemon dies before a word gets out */
    world_budget(w, 1, "", 1000000);
    world_lose(w);
    w->lost = 0;
    world_restart(w);
    assert_int_equal(budgets_find(&w->core->budgets, "GPU-1")->bytes, 1000000);
    assert_true(budgets_find(&w->core->budgets, "GPU-1")->pending);
    for (int i = 0; i < 2; i++) world_hello(w, &w->rank[i]);
    world_pump(w);
    assert_int_equal(world_switch(w, first, 10), 2);
    assert_false(budgets_find(&w->core->budgets, "GPU-1")->pending);
    world_free(w);
}

static void a_roster_rank_that_exited_is_not_waited_for(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    world_run(w, 2000);
    w->rank[1].dead = 1;
    world_restart(w);
    world_hello(w, &w->rank[0]);
    world_pump(w);
    world_run(w, 2000);
    const Agoq__CtlReply *reply = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_string_equal(reply->status->state, "collect");
    world_free(w);
}

/* SO_PEERCRED says pid 0: what HELLO calls its pid means nothing here, and nothing can be verified. */
static void a_process_of_another_pid_namespace_has_not_exited(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_rank *r = &w->rank[1];
    r->hidden = 1;
    world_join(w);
    world_switch(w, 0, 10);
    world_run(w, 5000);
    const session *s = &w->core->ranks.ranks[1];
    assert_int_equal(s->state, SESSION_LIVE);
    assert_true(s->who.pid == 0 && s->who.start_time == 0);
    r->incarnation = 9; /* another one, or the same: who can tell */
    world_hello(w, r);
    world_pump(w);
    assert_int_equal(r->last_refuse, WIRE_REFUSE_TAKEN);
    r->incarnation = 1;
    world_hello(w, r);
    world_pump(w);
    assert_true(r->welcomed);
    world_free(w);
}

static void a_living_process_of_the_roster_is_not_replaced(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    world_run(w, 2000);
    world_restart(w);
    const session *s = &w->core->ranks.ranks[1];
    world_rank *r = &w->rank[1];
    w->others[0] = r->pid;
    r->incarnation = 2;
    r->pid = 555;
    world_hello(w, &w->rank[0]);
    world_hello(w, r);
    world_pump(w);
    assert_int_equal(r->last_refuse, WIRE_REFUSE_TAKEN);
    assert_int_equal(s->state, SESSION_EXPECTED);
    assert_string_equal(world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS)->status->state, "recover");
    w->others[0] = 0;
    world_hello(w, r);
    world_pump(w);
    assert_true(s->state == SESSION_LIVE && s->who.pid == 555);
    assert_non_null(strstr(w->core->history.event[w->core->history.n - 1].why, "rank 1 joined"));
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hung_rank_makes_the_cycle_give_up),
        cmocka_unit_test(a_long_step_is_no_reason_to_give_up),
        cmocka_unit_test(a_killed_rank_is_noticed_and_its_heir_gets_the_plan),
        cmocka_unit_test(a_rank_that_reconnects_gets_the_plan_at_once),
        cmocka_unit_test(a_plan_that_was_taken_closes_the_vote_before_it),
        cmocka_unit_test(a_closed_session_of_the_same_process_is_turned_away),
        cmocka_unit_test(a_living_process_is_not_replaced),
        cmocka_unit_test(the_daemons_death_changes_nothing),
        cmocka_unit_test(a_cut_survives_the_daemons_death),
        cmocka_unit_test(a_roster_rank_that_exited_is_not_waited_for),
        cmocka_unit_test(a_process_of_another_pid_namespace_has_not_exited),
        cmocka_unit_test(a_living_process_of_the_roster_is_not_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
