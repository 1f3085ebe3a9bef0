/* Answers to agoqctl: what they hold, that they stay within the wire's limits with many ranks, and without
 * memory. */
#include "agoqd/answer.h"
#include "agoqd/answer_parts.h"
#include "agoqd/core_decide.h"
#include "agoqd/core_words.h"
#include "core_ask.h"

static void with_nobody_connected(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    const Agoq__CtlReply *r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS);
    assert_int_equal(r->code, 0);
    assert_string_equal(r->status->job, "");
    assert_int_equal(r->status->step, -1);
    assert_string_equal(r->daemon_version, AGOQ_VERSION);
    assert_int_equal(world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS)->n_ranks, 0);
    assert_int_equal(world_budgets(w, "", -1)->n_budgets, 0);
    r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_HISTORY);
    assert_int_equal(r->n_events, 1);
    assert_string_equal(r->events[0]->what, "start");
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlExplain explain = AGOQ__CTL_EXPLAIN__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_EXPLAIN;
    q.explain = &explain;
    r = world_ask(w, &q, 5);
    assert_int_equal(r->code, 1);
    assert_string_equal(r->text, "no rank has connected yet");
    world_free(w);
}

static void everything_about_a_running_job(void **state) {
    (void)state;
    world *w = world_new(4, 4);
    world_join(w);
    world_switch(w, 0, 10);
    w->rank[2].peak = 777;
    world_run(w, 1500);
    const Agoq__CtlReply *r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS);
    assert_int_equal(r->n_ranks, 4);
    assert_string_equal(r->ranks[2]->state, "live");
    assert_string_equal(r->ranks[2]->device, "GPU-2");
    assert_int_equal(r->ranks[2]->stage, 2);
    assert_int_equal(r->ranks[2]->peak_bytes, 777);
    assert_int_equal(r->ranks[2]->budget_bytes, 4000000);
    assert_in_range(r->ranks[2]->predicted_bytes, 100000, 4000000);
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlExplain explain = AGOQ__CTL_EXPLAIN__INIT;
    explain.stage = -1;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_EXPLAIN;
    q.explain = &explain;
    r = world_ask(w, &q, 5);
    assert_int_equal(r->n_stages, 4);
    assert_int_equal(r->plan->id, w->rank[0].applied_id);
    static const uint32_t paper[4] = {4, 5, 8, 8}; /* live 4, 3, 2, 1 */
    for (uint32_t s = 0; s < 4; s++) {
        const Agoq__CtlStageInfo *i = r->stages[s];
        assert_int_equal(i->stage, s);
        assert_int_equal(i->n_live, 1);
        assert_int_equal(i->live[0], 4 - s);
        assert_int_equal(i->paper_bits, paper[s]);
        assert_int_equal(i->budget_bytes, 4000000);
        assert_int_equal(i->predicted_bytes + i->slack_bytes, budgets_usable(4000000, w->conf.margin_ppm));
        assert_true(i->activation_bytes16 >= i->activation_bytes);
        assert_true(i->objective >= i->lower_bound - 1e-12);
    }
    assert_int_equal(r->stages[2]->measured_peak_bytes, 777);
    explain.stage = 4;
    assert_int_equal(world_ask(w, &q, 5)->code, 1);
    world_free(w);
}

static const Agoq__CtlReply *explain_all(world *w) {
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlExplain explain = AGOQ__CTL_EXPLAIN__INIT;
    explain.stage = -1;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_EXPLAIN;
    q.explain = &explain;
    return world_ask(w, &q, 5);
}

/* The mean width of what rank 0 runs, by elements, from the plan itself. */
static double running_mean(world *w, uint32_t stage) {
    const planned *p = plans_find(&w->core->plans, w->rank[0].applied_id);
    double sum = 0, n = 0;
    for (uint32_t i = 0; i < 4; i++) {
        int count = i % 2 ? 2 : 1;
        int bits = p ? plan_bits(&p->plan, (int)(stage * 2 + i / 2),
                                 i % 2 ? AGOQ_ROLE_MLP_GATE_UP : AGOQ_ROLE_ATTN_NORM_IN)
                     : 4;
        sum += count * bits;
        n += count;
    }
    return sum / n;
}

/* Budgets are doubled and nobody has switched: all figures are of the plan that runs, and the text says what
 * a new one would be. */
static void explain_is_about_the_plan_that_runs(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    w->conf.default_budget_bytes = 2500000;
    world_join(w);
    const Agoq__CtlReply *r = explain_all(w);
    assert_int_equal(r->n_stages, 2);
    assert_int_equal(r->plan->id, 0);
    assert_true(r->stages[0]->bits_mean == 4); /* the floor plan still runs */
    assert_non_null(strstr(r->stages[0]->why_text, "not what a plan made now would be"));
    assert_true(world_switch(w, 0, 10) > 0);
    double mean = running_mean(w, 0);
    assert_true(mean > 4 && mean < 16);
    r = explain_all(w);
    assert_true(r->stages[0]->bits_mean == mean);
    assert_int_equal(r->stages[0]->why, PLANNER_WHY_BUDGET_BINDS);
    assert_null(strstr(r->stages[0]->why_text, "made now"));
    uint64_t predicted = r->stages[0]->predicted_bytes, saved = r->stages[0]->activation_bytes;
    double objective = r->stages[0]->objective;
    assert_int_equal(world_budget(w, 0, "", 8000000)->code, 0);
    r = explain_all(w);
    const Agoq__CtlStageInfo *i = r->stages[0];
    assert_int_equal(r->plan->id, w->rank[0].applied_id);
    assert_int_equal(i->predicted_bytes, predicted);
    assert_int_equal(i->activation_bytes, saved);
    assert_true(i->bits_mean == mean);
    assert_true(i->objective == objective);
    assert_true(i->lower_bound < objective);
    assert_int_equal(i->predicted_bytes + i->slack_bytes, budgets_usable(8000000, w->conf.margin_ppm));
    assert_int_equal(i->why, 0);
    assert_non_null(strstr(i->why_text, "not what a plan made now would be: that has mean width 16.00 bits"));
    assert_true(world_switch(w, w->rank[0].applied_id, 10) > 0);
    r = explain_all(w);
    assert_true(r->stages[0]->bits_mean == 16);
    assert_int_equal(r->stages[0]->why, PLANNER_WHY_ALL_AT_MAX);
    world_free(w);
}

static void plans_can_be_looked_up(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    world_join(w);
    world_switch(w, 0, 10);
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlPlanGet get = AGOQ__CTL_PLAN_GET__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_PLAN_GET;
    q.plan_get = &get;
    const Agoq__CtlReply *r = world_ask(w, &q, 5);
    assert_int_equal(r->plan->id, w->rank[0].applied_id);
    assert_true(plan_hash(r->plan->bytes.data, r->plan->bytes.len) == r->plan->hash);
    assert_int_equal(r->plan->applied_step, w->step);
    get.id = 12345;
    assert_int_equal(world_ask(w, &q, 5)->code, 1);
    r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_HISTORY);
    const Agoq__CtlEvent *event = r->events[r->n_events - 1];
    assert_string_equal(event->what, "plan");
    assert_int_equal(event->plan_id, w->rank[0].applied_id);
    assert_int_equal(event->steps_to_effect, w->step); /* no step was known when it was made: from 0 */
    world_free(w);
}

static int n_sent;
static size_t last_size;
static int send_nowhere(void *user, const peer *to, const uint8_t *data, size_t size) {
    (void)user;
    (void)to;
    (void)data;
    n_sent++;
    last_size = size;
    return 0;
}

static void many_ranks_fit_one_answer(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    char long_name[WIRE_MAX_DEVICE + 1];
    memset(long_name, 'g', sizeof long_name - 1);
    long_name[sizeof long_name - 1] = 0;
    assert_int_equal(sessions_reset(&w->core->ranks, "job", 4096, 1, 4096, 1), AGOQ_OK);
    for (int i = 0; i < 4096; i++) {
        session *s = &w->core->ranks.ranks[i];
        s->state = SESSION_LIVE;
        snprintf(s->who.device, sizeof s->who.device, "%.60s%d", long_name, i);
        snprintf(s->who.host, sizeof s->who.host, "%.60s", long_name);
    }
    const Agoq__CtlReply *r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS);
    assert_int_equal(r->code, 8); /* partial, and says so */
    assert_int_equal(r->n_ranks, 1000);
    for (int i = 0; i < 4096; i++) snprintf(w->core->ranks.ranks[i].who.host, 128, "%s", long_name);
    for (int i = 0; i < 4096; i++) snprintf(w->core->ranks.ranks[i].who.device, 128, "%s", long_name);
    r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS);
    assert_int_equal(r->code, 1);
    assert_non_null(strstr(r->text, "too long"));
    world_free(w);
}

static void say_usage(world *w, uint64_t reserved, uint32_t retries, uint64_t peak) {
    Agoq__Report m = AGOQ__REPORT__INIT;
    world_rank *r = &w->rank[0];
    m.step = w->step;
    m.applied_id = r->applied_id;
    m.budget_version = r->budget_version;
    m.reserved_bytes = reserved;
    m.oom_retries = retries;
    m.peak_since_switch_bytes = peak;
    world_say(w, r, AGOQ__ENVELOPE__BODY_REPORT, &m);
    world_pump(w);
}

/* REPORT counts retries since the one before: the answer has their sum. The peak is that of the plan that
 * runs, from the moment of the switch. */
static void what_the_allocator_does(void **state) {
    (void)state;
    world *w = world_new(1, 1);
    world_join(w);
    world_switch(w, 0, 10);
    say_usage(w, 5000, 2, 900);
    say_usage(w, 4000, 3, 900);
    const Agoq__CtlReply *r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS);
    assert_int_equal(r->ranks[0]->reserved_bytes, 4000);
    assert_int_equal(r->ranks[0]->oom_retries, 5);
    assert_int_equal(explain_all(w)->stages[0]->measured_peak_bytes, 900);
    assert_int_equal(world_budget(w, 0, "", 8000000)->code, 0);
    uint64_t old = w->rank[0].applied_id;
    while (w->rank[0].applied_id == old) world_boundary(w); /* no time passes: no REPORT after APPLIED */
    assert_int_equal(explain_all(w)->stages[0]->measured_peak_bytes, 0);
    world_hello(w, &w->rank[0]);
    world_pump(w);
    r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS);
    assert_int_equal(r->ranks[0]->oom_retries, 5); /* a reconnect is the same process */
    w->rank[0].dead = 1;
    world_run(w, 6000);
    w->rank[0].dead = 0;
    w->rank[0].pid = 777;
    w->rank[0].incarnation++;
    world_hello(w, &w->rank[0]);
    world_pump(w);
    r = world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_RANKS);
    assert_int_equal(r->ranks[0]->oom_retries, 0);
    world_free(w);
}

/* 2500 devices, of stages 0, 1, 0, 1, ..: more than an answer holds, and none is out of reach. */
static void every_budget_can_be_asked_for(void **state) {
    (void)state;
    world *w = world_new(2, 2);
    char name[32];
    budget *b;
    for (int i = 0; i < 2500; i++) {
        snprintf(name, sizeof name, "GPU-%d", i);
        assert_int_equal(budgets_device(&w->core->budgets, &w->conf, name, i == 2499 ? 7 : i % 2, &b),
                         AGOQ_OK);
    }
    const Agoq__CtlReply *r = world_budgets(w, "", -1);
    assert_int_equal(r->n_budgets, 1000);
    assert_int_equal(r->code, 8);
    assert_non_null(strstr(r->text, "only the first 1000"));
    r = world_budgets(w, "GPU-2400", -1);
    assert_int_equal(r->code, 0);
    assert_int_equal(r->n_budgets, 1);
    assert_string_equal(r->budgets[0]->device, "GPU-2400");
    assert_int_equal(world_budgets(w, "", 7)->n_budgets, 1);
    assert_int_equal(world_budgets(w, "GPU-2400", 1)->n_budgets, 0);
    /* What a change left pending comes first, although it is last in the list. */
    for (int i = 500; i < 2500; i++) w->core->budgets.list[i].version = 9;
    w->core->budgets.list[2400].pending = 1;
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetWait wait = AGOQ__CTL_BUDGET_WAIT__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_WAIT;
    q.budget_wait = &wait;
    wait.version = 9;
    r = world_ask(w, &q, 5);
    assert_int_equal(r->code, 8);
    assert_string_equal(r->budgets[0]->device, "GPU-2400");
    assert_string_equal(r->budgets[0]->state, "pending");
    assert_string_equal(r->budgets[1]->device, "GPU-500");
    wait.by_stage = 1;
    wait.stage = 7;
    r = world_ask(w, &q, 5);
    assert_int_equal(r->code, 0);
    assert_int_equal(r->n_budgets, 1);
    wait.version = 10;
    assert_int_equal(world_ask(w, &q, 5)->n_budgets, 0);
    world_free(w);
}

static void without_memory_the_answer_says_so(void **state) {
    (void)state;
    world *w = world_new(4, 4);
    world_join(w);
    world_switch(w, 0, 10);
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlExplain explain = AGOQ__CTL_EXPLAIN__INIT;
    Agoq__Envelope e = AGOQ__ENVELOPE__INIT;
    peer from = {.id_len = 1, .uid = 0};
    explain.stage = -1;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_EXPLAIN;
    q.explain = &explain;
    e.job = (char *)"-";
    e.seq = 1;
    e.body_case = AGOQ__ENVELOPE__BODY_CTL_REQUEST;
    e.ctl_request = &q;
    w->core->io.send = send_nowhere;
    answer_request(w->core, &e, &from, w->now);
    size_t whole = last_size;
    long n = 1;
    for (; n < 5000; n++) {
        mem_fail_after(n);
        last_size = 0;
        answer_request(w->core, &e, &from, w->now);
        mem_fail_after(0);
        if (last_size >= whole) break; /* not equal: the sequence number grows */
    }
    assert_in_range(n, 20, 4999); /* the sweep met every allocation and ended */
    w->core->io.send = world_send;
    assert_int_equal(world_ask_plain(w, AGOQ__CTL_REQUEST__VERB_STATUS)->code, 0);
    world_free(w);
}

static void levers_in_words(void **state) {
    (void)state;
    char text[128];
    words_lever(&(planner_lever){.kind = PLANNER_LEVER_RECOMPUTE_LAYERS, .amount = 1}, 3, text, sizeof text);
    assert_string_equal(text, "recompute 1 layer of stage 3");
    words_lever(&(planner_lever){.kind = PLANNER_LEVER_MOVE_LAYERS, .amount = 2, .to = 1}, 0, text,
                sizeof text);
    assert_string_equal(text, "move 2 layers from stage 0 to stage 1");
    words_lever(&(planner_lever){.kind = PLANNER_LEVER_LOWER_PIN, .amount = 8, .role = AGOQ_ROLE_ATTN_QKV}, 0,
                text, sizeof text);
    assert_string_equal(text, "allow attn_qkv at 8 bits");
    words_lever(&(planner_lever){.kind = PLANNER_LEVER_LOWER_PIN, .amount = 8, .role = 99}, 0, text,
                sizeof text);
    assert_string_equal(text, "allow a role at 8 bits");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_nobody_connected),
        cmocka_unit_test(everything_about_a_running_job),
        cmocka_unit_test(explain_is_about_the_plan_that_runs),
        cmocka_unit_test(plans_can_be_looked_up),
        cmocka_unit_test(many_ranks_fit_one_answer),
        cmocka_unit_test(what_the_allocator_does),
        cmocka_unit_test(every_budget_can_be_asked_for),
        cmocka_unit_test(without_memory_the_answer_says_so),
        cmocka_unit_test(levers_in_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
