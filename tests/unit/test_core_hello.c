/* Who may come in: jobs, shapes, devices, rosters and plan ids that do not fit what is known (S1, S13). */
#include "agoqd/core_hello.h"
#include "agoqd/core_ranks.h"
#include "core_ask.h"

static void those_who_do_not_belong_are_refused(void **state) {
    (void)state;
    world *w = world_new(3, 3);
    world_hello(w, &w->rank[0]);
    world_pump(w);
    w->n = 2; /* another idea of the world */
    w->n_stages = 2;
    world_hello(w, &w->rank[1]);
    world_pump(w);
    assert_int_equal(w->rank[1].last_refuse, WIRE_REFUSE_SHAPE);
    w->n = w->n_stages = 3;
    w->rank[1].rank = 0; /* claims a device that rank 0 has */
    Agoq__Hello m = AGOQ__HELLO__INIT;
    w->rank[1].rank = 1;
    m.world = m.n_stages = 3;
    m.n_dp = m.n_tp = 1;
    m.device = (char *)"GPU-0";
    m.host = (char *)"host";
    m.pid = 101;
    m.vote_period = 1;
    world_say(w, &w->rank[1], AGOQ__ENVELOPE__BODY_HELLO, &m);
    world_pump(w);
    assert_int_equal(w->rank[1].last_refuse, WIRE_REFUSE_DEVICE);
    m.device = (char *)"GPU-1"; /* an applied plan that is none */
    m.applied_id = 5;
    m.applied_hash = 6;
    m.applied_plan.data = (uint8_t *)"AGQP";
    m.applied_plan.len = 4;
    world_say(w, &w->rank[1], AGOQ__ENVELOPE__BODY_HELLO, &m);
    world_pump(w);
    assert_int_equal(w->rank[1].last_refuse, WIRE_REFUSE_PLAN);
    assert_int_equal(w->core->ranks.ranks[1].state, SESSION_NONE);
    assert_int_equal(w->core->ranks.ranks[0].state, SESSION_LIVE);
    snprintf(w->core->ranks.job, sizeof w->core->ranks.job, "other");
    world_hello(w, &w->rank[2]);
    world_pump(w);
    assert_int_equal(w->rank[2].last_refuse, WIRE_REFUSE_JOB);
    world_free(w);
}

static void the_next_job_starts_when_the_last_rank_is_gone(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    Agoq__Bye bye = AGOQ__BYE__INIT;
    world_say(w, &w->rank[0], AGOQ__ENVELOPE__BODY_BYE, &bye);
    world_pump(w);
    w->rank[1].dead = 1;
    world_run(w, 1000);
    w->n = w->n_stages = 1;
    world_rank *r = &w->rank[0];
    r->incarnation = 2;
    r->pid = 700;
    r->seq = r->applied_id = r->applied_hash = r->observed_steps = 0;
    r->live = 1;
    world_hello(w, r);
    world_pump(w);
    assert_int_equal(w->core->ranks.world, 1);
    world_boundary(w);
    assert_int_equal(world_switch(w, 0, 10), 2);
    world_free(w);
}

static void ranks_that_contradict_each_other_raise_an_alarm(void **state) {
    (void)state;
    world *w = world_new(2, 1); /* two data-parallel ranks of one stage */
    w->rank[1].stage = 0;
    world_join(w);
    world_switch(w, 0, 10);
    int n = world_prepares(w);
    w->rank[1].stage = 1; /* now it says it holds layers 2 and 3 */
    world_profile(w, &w->rank[1]);
    world_pump(w);
    world_run(w, 2000);
    assert_int_equal(world_prepares(w), n);
    assert_non_null(strstr(w->core->why.alarm, "rank 1 does not hold the same layers"));
    world_free(w);
}

static void devices_of_the_past_make_room(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    budget *b;
    char name[32];
    world_hello(w, &w->rank[0]);
    world_pump(w);
    for (int i = 1; i < BUDGETS_MAX; i++) {
        snprintf(name, sizeof name, "cpu:host:%d", i);
        assert_int_equal(budgets_device(&w->core->budgets, &w->conf, name, 0, &b), AGOQ_OK);
    }
    world_hello(w, &w->rank[1]);
    world_pump(w);
    assert_true(w->rank[1].welcomed);
    assert_non_null(budgets_find(&w->core->budgets, "GPU-0")); /* a rank has it */
    assert_null(budgets_find(&w->core->budgets, "cpu:host:1"));
    assert_int_equal(w->core->budgets.n, BUDGETS_MAX);
    world_free(w);
}

/* S1: refused, and somebody has to look. */
static void other_bytes_under_a_known_id_raise_an_alarm(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    Agoq__Prepared m = AGOQ__PREPARED__INIT;
    m.id = w->core->cycle.id;
    m.hash = w->core->cycle.hash ^ 1;
    world_say(w, &w->rank[0], AGOQ__ENVELOPE__BODY_PREPARED, &m);
    world_pump(w);
    assert_non_null(strstr(w->core->why.alarm, "rank 0 holds other bytes under the id"));
    assert_int_equal(w->core->cycle.n_aborts, 1);
    core_calm(w->core);
    world_run(w, 2000);
    world_switch(w, 0, 10);
    Agoq__Applied applied = AGOQ__APPLIED__INIT;
    applied.id = w->rank[0].applied_id;
    applied.hash = w->rank[0].applied_hash ^ 1;
    world_say(w, &w->rank[0], AGOQ__ENVELOPE__BODY_APPLIED, &applied);
    world_pump(w);
    assert_non_null(strstr(w->core->why.alarm, "rank 0 holds other bytes under the id"));
    core_calm(w->core);
    w->rank[1].plan[w->rank[1].plan_size - 1] = 4; /* HELLO with the bytes of another plan, and their hash */
    w->rank[1].applied_hash = plan_hash(w->rank[1].plan, w->rank[1].plan_size);
    assert_true(w->rank[1].applied_hash != w->rank[0].applied_hash);
    world_hello(w, &w->rank[1]);
    world_pump(w);
    assert_int_equal(w->rank[1].last_refuse, WIRE_REFUSE_PLAN);
    assert_non_null(strstr(w->core->why.alarm, "rank 1 holds other bytes under the id"));
    world_free(w);
}

static void another_vote_or_roster_is_refused(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    Agoq__Hello m = AGOQ__HELLO__INIT;
    m.world = m.n_stages = 2;
    m.n_dp = m.n_tp = 1;
    m.device = (char *)"GPU-0";
    m.host = (char *)"host";
    m.pid = 100;
    w->rank[0].connected = 1;
    for (int i = 0; i < 3; i++) {
        const uint32_t periods[3] = {2, 0, 1};
        m.vote_period = periods[i];
        m.roster_hash = i == 2 ? 77 : 0;
        world_say(w, &w->rank[0], AGOQ__ENVELOPE__BODY_HELLO, &m);
        world_pump(w);
        assert_int_equal(w->rank[0].n_refuse, i + 1);
        assert_int_equal(w->rank[0].last_refuse, WIRE_REFUSE_SHAPE);
        assert_int_equal(w->core->ranks.world, 0);
    }
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_who_do_not_belong_are_refused),
        cmocka_unit_test(the_next_job_starts_when_the_last_rank_is_gone),
        cmocka_unit_test(ranks_that_contradict_each_other_raise_an_alarm),
        cmocka_unit_test(devices_of_the_past_make_room),
        cmocka_unit_test(other_bytes_under_a_known_id_raise_an_alarm),
        cmocka_unit_test(another_vote_or_roster_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
