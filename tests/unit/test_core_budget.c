/* Budgets through the core: refused before stored, pending until shown, effective in a few steps (S3, S8,
 * S11). */
#include "agoqd/core_budget.h"
#include "agoqd/core_decide.h"
#include "core_ask.h"

static world *running(void) {
    world *w = world_new(4, 4);
    world_join(w);
    assert_true(world_switch(w, 0, 10) > 0);
    return w;
}

static const budget *device(const world *w, const char *name) {
    return budgets_find(&w->core->budgets, name);
}

static void a_cut_is_pending_until_every_rank_fits(void **state) {
    (void)state;
    world *w = running();
    uint64_t first = w->rank[0].applied_id;
    int n = w->n_stored, prepares = world_prepares(w);
    const Agoq__CtlReply *reply = world_budget(w, 1, "", 3000000);
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->n_budgets, 1);
    assert_string_equal(reply->budgets[0]->device, "GPU-1");
    assert_string_equal(reply->budgets[0]->state, "pending");
    assert_int_equal(reply->budgets[0]->version, 2);
    assert_int_equal(reply->budgets[0]->effective_bytes, 4000000);
    assert_int_equal(w->n_stored, n + 1);              /* durable first, */
    assert_int_equal(w->rank[1].n_cancel, 1);          /* then the fence, */
    assert_int_equal(w->rank[0].n_cancel, 0);          /* on the ranks of that device, */
    assert_int_equal(world_prepares(w), prepares + 4); /* then the plan, all in one event */
    world_pump(w);
    assert_int_equal(w->rank[1].budget_version, 2);
    int64_t asked = w->step;
    world_boundary(w);
    assert_true(device(w, "GPU-1")->pending);
    world_boundary(w);
    assert_true(w->rank[0].applied_id != first);
    assert_false(device(w, "GPU-1")->pending);
    assert_int_equal(device(w, "GPU-1")->effective_bytes, 3000000);
    assert_int_equal(device(w, "GPU-1")->step_effective, asked + 2);
    planned *p = plans_find(&w->core->plans, w->rank[0].applied_id);
    assert_in_range(p->plan.stages[1].predicted_peak_bytes, 1, budgets_usable(3000000, w->conf.margin_ppm));
    assert_int_equal(p->plan.stages[1].budget_version, 2);
    assert_non_null(strstr(p->why, "operator: stage 1 budget 3.81 MiB -> 2.86 MiB"));
    const history_event *e = history_budget(&w->core->history, 2);
    assert_int_equal(e->step, asked);
    assert_int_equal(e->steps_to_effect, 2);
    world_free(w);
}

static void a_vote_on_a_bigger_plan_holds_it_back(void **state) {
    (void)state;
    world *w = running();
    world_budget(w, 1, "", 3000000);
    world_pump(w);
    world_boundary(w); /* all vote on the small plan */
    world_budget(w, 1, "", 3900000);
    world_pump(w); /* a bigger one is asked for; ranks are busy with the vote */
    world_boundary(w);
    assert_true(world_switch(w, w->rank[0].applied_id, 10) > 0);
    world_budget(w, 1, "", 3900000 - 1000);
    world_pump(w);
    world_boundary(w); /* now all vote on a plan of about 3.9 MB */
    uint64_t voted = w->rank[1].vote_id;
    assert_true(voted != 0);
    world_budget(w, 1, "", 3000000);
    world_pump(w);
    assert_int_equal(w->rank[1].vote_id, voted);
    w->rank[1].applied_id = 0; /* even a rank that runs the floor plan */
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_true(device(w, "GPU-1")->pending); /* ... may still switch to what it voted on */
    world_free(w);
}

static void a_reconnect_in_mid_vote_hides_no_vote(void **state) {
    (void)state;
    world *w = running();
    world_budget(w, 1, "", 3900000);
    world_pump(w);
    world_boundary(w); /* all vote on a plan of about 3.9 MB */
    uint64_t voted = w->rank[1].vote_id;
    assert_true(voted != 0);
    world_budget(w, 1, "", 3000000);
    world_pump(w);
    w->rank[1].applied_id = w->rank[1].applied_hash = 0; /* the floor plan would fit, */
    world_hello(w, &w->rank[1]);                         /* and HELLO has seen the cut, */
    world_pump(w);
    const session *s = &w->core->ranks.ranks[1];
    assert_true(s->now.budget_version == 3 && s->now.vote_id == voted && s->now.prepared_id == voted);
    assert_true(device(w, "GPU-1")->pending); /* but what it voted on may still win */
    w->rank[1].vote_id = 0;                   /* prepared alone counts as well */
    world_hello(w, &w->rank[1]);
    w->lost = 1;
    world_pump(w);
    w->lost = 0;
    assert_true(device(w, "GPU-1")->pending);
    world_free(w);
}

static void a_rank_that_has_not_seen_the_version_holds_it_back(void **state) {
    (void)state;
    world *w = running();
    world_budget(w, 1, "", 3000000);
    world_lose(w); /* every answer is lost */
    w->rank[1].budget_version = 1;
    w->rank[1].applied_id = w->rank[1].prepared_id = 0; /* it would fit */
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_true(device(w, "GPU-1")->pending);
    w->rank[1].budget_version = 2;
    world_report(w, &w->rank[1]);
    world_pump(w);
    assert_false(device(w, "GPU-1")->pending);
    world_free(w);
}

static void a_silent_rank_holds_it_back(void **state) {
    (void)state;
    world *w = running();
    w->rank[1].hung = 1;
    world_run(w, 5000);
    assert_int_equal(world_budget(w, 1, "", 3000000)->code, 0);
    world_run(w, 60000);
    assert_true(device(w, "GPU-1")->pending); /* silence is not freedom (S9) */
    w->rank[1].dead = 1;
    world_run(w, 2000);
    assert_false(device(w, "GPU-1")->pending); /* a verified exit is */
    world_free(w);
}

static void an_impossible_cut_changes_nothing(void **state) {
    (void)state;
    world *w = running();
    int n = w->n_stored, prepares = world_prepares(w);
    const Agoq__CtlReply *reply = world_budget(w, 0, "", 200000);
    assert_int_equal(reply->code, 5);
    assert_non_null(strstr(reply->text, "no plan fits stage 0 in 195.31 KiB: over by"));
    assert_int_equal(reply->n_budgets, 1);
    assert_int_equal(reply->budgets[0]->bytes, 4000000);
    assert_int_equal(reply->budgets[0]->version, 1);
    assert_int_equal(reply->n_stages, 4);
    assert_true(reply->stages[0]->overshoot_bytes > 0);
    assert_true(reply->stages[0]->n_levers > 0);
    assert_int_equal(w->n_stored, n);
    assert_int_equal(world_prepares(w), prepares);
    assert_int_equal(device(w, "GPU-0")->version, 1);
    w->rank[1].hung = 1; /* known profiles count also while a rank is silent */
    world_run(w, 5000);
    assert_int_equal(world_budget(w, 0, "", 200000)->code, 5);
    world_free(w);
}

static void what_cannot_be_judged_is_not_stored(void **state) {
    (void)state;
    world *w = running();
    world_restart(w);
    int n = w->n_stored;
    const Agoq__CtlReply *reply = world_budget(w, 0, "GPU-0", 1);
    assert_int_equal(reply->code, 1);
    assert_non_null(strstr(reply->text, "nothing was stored"));
    assert_int_equal(w->n_stored, n);
    assert_int_equal(device(w, "GPU-0")->bytes, 4000000);
    for (int i = 0; i < w->n; i++) world_hello(w, &w->rank[i]);
    world_pump(w);
    world_run(w, 2000);
    assert_int_equal(world_budget(w, 0, "GPU-0", 1)->code, 5);
    assert_int_equal(world_budget(w, 0, "GPU-0", 3900000)->code, 0);
    world_free(w);
}

static void a_full_disk_changes_nothing(void **state) {
    (void)state;
    world *w = running();
    int prepares = world_prepares(w);
    w->disk_full = 1;
    const Agoq__CtlReply *reply = world_budget(w, 1, "", 3000000);
    assert_int_equal(reply->code, 1);
    assert_non_null(strstr(reply->text, "nothing was changed"));
    assert_int_equal(device(w, "GPU-1")->bytes, 4000000);
    assert_int_equal(device(w, "GPU-1")->version, 1);
    assert_int_equal(world_prepares(w), prepares);
    assert_int_equal(w->rank[1].n_cancel, 0);
    world_run(w, 5000);
    w->disk_full = 0;
    assert_int_equal(world_budget(w, 1, "", 3000000)->code, 0);
    world_free(w);
}

static Agoq__CtlBudgetSet the_set;
static Agoq__CtlRequest request_of(const char *name, int stage, uint64_t bytes) {
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    agoq__ctl_budget_set__init(&the_set);
    the_set.device = (char *)name;
    the_set.stage = stage;
    the_set.bytes = bytes;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_SET;
    q.budget_set = &the_set;
    return q;
}

static void who_may_and_which_version(void **state) {
    (void)state;
    world *w = running();
    Agoq__CtlRequest q = request_of("GPU-1", -1, 3000000);
    assert_int_equal(world_ask(w, &q, 1001)->code, 4);
    assert_int_equal(device(w, "GPU-1")->version, 1);
    the_set.dry_run = 1; /* asking costs nothing */
    const Agoq__CtlReply *reply = world_ask(w, &q, 1001);
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->budgets[0]->bytes, 3000000);
    assert_int_equal(device(w, "GPU-1")->bytes, 4000000);
    the_set.dry_run = 0;
    assert_int_equal(world_ask(w, &q, 0)->code, 0); /* root may */
    the_set.has_if_version = 1;
    the_set.if_version = 1;
    reply = world_ask(w, &q, 1000);
    assert_int_equal(reply->code, 7);
    assert_non_null(strstr(reply->text, "has version 2, not 1"));
    the_set.if_version = 2;
    assert_int_equal(world_ask(w, &q, 1000)->code, 0);
    q = request_of("GPU-77", -1, 3000000);
    assert_int_equal(world_ask(w, &q, 1000)->code, 1);
    q = request_of("", 9, 3000000);
    assert_int_equal(world_ask(w, &q, 1000)->code, 1);
    q = request_of("GPU-1", -1, 0);
    assert_int_equal(world_ask(w, &q, 1000)->code, 1);
    the_set.reset = 1;
    reply = world_ask(w, &q, 1000);
    assert_int_equal(reply->code, 0);
    assert_int_equal(reply->budgets[0]->bytes, 4000000);
    world_free(w);
}

static void raising_is_effective_at_once_and_used(void **state) {
    (void)state;
    world *w = running();
    uint64_t first = w->rank[0].applied_id;
    assert_string_equal(world_budget(w, 0, "", 8000000)->budgets[0]->state, "effective");
    world_pump(w);
    assert_int_equal(world_switch(w, first, 10), 2); /* asked for: no dwell */
    planned *p = plans_find(&w->core->plans, w->rank[0].applied_id);
    assert_true(p->plan.stages[0].predicted_peak_bytes > 4000000);
    world_free(w);
}

static void a_cut_overtakes_a_plan_in_flight(void **state) {
    (void)state;
    world *w = running();
    uint64_t first = w->rank[0].applied_id;
    world_budget(w, 1, "", 3200000);
    world_pump(w);
    uint64_t old_plan = w->core->cycle.id;
    assert_int_equal(w->core->cycle.state, CYCLE_ARMED);
    world_budget(w, 2, "", 2000000);
    assert_true(w->core->cycle.id != old_plan); /* no waiting for the old one */
    assert_int_equal(w->rank[0].n_abort, 1);
    world_pump(w);
    for (int i = 0; i < 4; i++) assert_true(w->rank[i].prepared_id == w->core->cycle.id);
    assert_int_equal(world_switch(w, first, 10), 2);
    assert_true(w->rank[0].applied_id != old_plan);
    assert_false(device(w, "GPU-2")->pending);
    assert_false(device(w, "GPU-1")->pending);
    world_free(w);
}

/* S2, apart from the solver: a plan that the budgets of today do not allow never leaves. */
static void a_plan_over_budget_is_vetoed(void **state) {
    (void)state;
    world *w = running();
    plan p;
    assert_int_equal(plan_copy(&p, &plans_find(&w->core->plans, w->rank[0].applied_id)->plan), AGOQ_OK);
    assert_null(core_veto(w->core, &p));
    budget *b = budgets_find(&w->core->budgets, "GPU-3");
    uint64_t need = p.stages[3].predicted_peak_bytes;
    b->bytes = need; /* the margin is not free any more */
    assert_string_equal(core_veto(w->core, &p), "it would break the budget of a device");
    b->bytes = need + need / 20;
    assert_null(core_veto(w->core, &p));
    w->core->ranks.ranks[2].held.items[0].widths = AGOQ_MASK_4;
    assert_string_equal(core_veto(w->core, &p), "a rank does not allow a width of the plan");
    plan_fini(&p);
    world_free(w);
}

static void a_device_without_budget_waits_for_one(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->conf.default_budget_bytes = 0;
    world_join(w);
    world_run(w, 5000);
    assert_int_equal(world_prepares(w), 0);
    const Agoq__CtlReply *reply = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_non_null(strstr(reply->status->why, "rank 0 (device GPU-0, stage 0) has no budget"));
    world_budget(w, 0, "", 4000000);
    world_pump(w);
    assert_int_equal(world_prepares(w), 0);
    world_budget(w, 1, "", 4000000);
    world_pump(w);
    assert_int_equal(world_switch(w, 0, 10), 2);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_cut_is_pending_until_every_rank_fits),
        cmocka_unit_test(a_vote_on_a_bigger_plan_holds_it_back),
        cmocka_unit_test(a_reconnect_in_mid_vote_hides_no_vote),
        cmocka_unit_test(a_rank_that_has_not_seen_the_version_holds_it_back),
        cmocka_unit_test(a_silent_rank_holds_it_back),
        cmocka_unit_test(an_impossible_cut_changes_nothing),
        cmocka_unit_test(what_cannot_be_judged_is_not_stored),
        cmocka_unit_test(a_full_disk_changes_nothing),
        cmocka_unit_test(who_may_and_which_version),
        cmocka_unit_test(raising_is_effective_at_once_and_used),
        cmocka_unit_test(a_cut_overtakes_a_plan_in_flight),
        cmocka_unit_test(a_plan_over_budget_is_vetoed),
        cmocka_unit_test(a_device_without_budget_waits_for_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
