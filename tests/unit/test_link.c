/* What the helper thread says, and when: HELLO, PROFILE, REPORT and APPLIED, to a daemon that answers, is
 * silent, refuses or is another one. */
#include "tests/unit/link_fixture.h"

static void says_hello_until_it_is_welcomed(void **state) {
    fixture *f = *state;
    run_to(f, f->now + 3500);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_HELLO), f->tap.n); /* and nothing else */
    assert_int_equal(f->tap.n, 4);                                          /* at once, then every second */
    const Agoq__Envelope *e = f->tap.sent[3];
    assert_true(e->rank == 1 && e->seq == 4 && e->hello->world == 4 && e->hello->start_time == 1234);
    assert_string_equal(e->job, "job");
    assert_string_equal(e->hello->device, "cpu:here:1");
    welcome(f, 1, 1);
    forget(&f->tap);
    run_to(f, f->now + 900);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_HELLO), 0);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_REPORT), 1); /* what HELLO does not say follows */
    run_to(f, f->now + 6000); /* silence, and no profile to ask with */
    assert_true(count(&f->tap, AGOQ__ENVELOPE__BODY_HELLO) >= 3);
}

static void profile_repeats_until_acknowledged(void **state) {
    fixture *f = *state;
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    hold_profile(f);
    run_to(f, f->now + 1500);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE), 2);
    const Agoq__Envelope *e = last(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE);
    assert_int_equal(e->profile->n_items, CASE_ITEMS);
    assert_int_equal(e->profile->items[0]->widths, 31);
    assert_true(e->profile->items[0]->sensitivity > 0.35 && e->profile->items[0]->sensitivity < 0.37);
    ack(f, 999); /* of nothing */
    run_to(f, f->now + 1500);
    assert_true(count(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE) >= 3);
    const uint64_t early = e->seq;
    ack(f, early); /* of an earlier copy: it will do */
    assert_true(f->mail->profile_acked == f->mail->profile_version);
    forget(&f->tap);
    run_to(f, f->now + 1900);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE), 0);
    run_to(f, f->now + 200); /* 2 s of silence: asks with the profile */
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE), 1);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_HELLO), 0);
    run_to(f, f->now + 1200); /* 3 s: says HELLO */
    assert_true(count(&f->tap, AGOQ__ENVELOPE__BODY_HELLO) >= 1);
    hold_profile(f); /* changed: an ACK of the old one does not count */
    run_to(f, f->now + 10);
    ack(f, early);
    assert_true(f->mail->profile_acked != f->mail->profile_version);
}

static void reports_at_most_twice_a_second_and_at_least_once(void **state) {
    fixture *f = *state;
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    int ticks = 0;
    for (int step = 0; step < 2000; step++) { /* steps of 5 ms, 10 s of them */
        f->mail->usage.step = step;
        f->mail->usage.peak_bytes = step == 500 ? 1000000 : f->mail->usage.peak_bytes;
        f->mail->usage_news = 1;
        if (step % 200 == 0) ack(f, 999); /* not silent */
        ticks += run_to(f, f->now + 5);
    }
    const int reports = count(&f->tap, AGOQ__ENVELOPE__BODY_REPORT);
    assert_in_range(reports, 10, 21);
    uint64_t most = 0;
    int with_peak = 0;
    for (int i = 0; i < f->tap.n; i++) {
        if (f->tap.sent[i]->body_case != AGOQ__ENVELOPE__BODY_REPORT) continue;
        if (f->tap.sent[i]->report->peak_bytes > most) most = f->tap.sent[i]->report->peak_bytes;
        with_peak += f->tap.sent[i]->report->peak_bytes != 0;
    }
    assert_true(most == 1000000 && with_peak == 1); /* said once, and not lost */
    forget(&f->tap);
    f->mail->usage_news = 0;
    for (int i = 0; i < 10; i++) {
        ack(f, 999);
        run_to(f, f->now + 1000);
    }
    assert_in_range(count(&f->tap, AGOQ__ENVELOPE__BODY_REPORT), 9, 11);
    assert_true(ticks < 2000 + 60); /* it asks for a call when something is due, and steps do not wake it */
}

static void a_report_that_does_not_leave_loses_no_peak(void **state) {
    fixture *f = *state;
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    f->mail->usage.peak_bytes = 500;
    f->mail->usage.oom_retries = 2;
    f->tap.blocked = 1;
    assert_true(run_to(f, f->now + 2500) < 100); /* and it does not spin */
    f->mail->usage.peak_bytes = f->mail->usage.peak_bytes > 300 ? f->mail->usage.peak_bytes : 300;
    f->tap.blocked = 0;
    forget(&f->tap);
    welcome(f, 1, 1);
    run_to(f, f->now + 10);
    const Agoq__Envelope *e = last(&f->tap, AGOQ__ENVELOPE__BODY_REPORT);
    assert_true(e->report->peak_bytes == 500 && e->report->oom_retries == 2);
}

/* Memory is short: told at once, not at the next turn; steps alone do not hurry it. */
static void a_guard_is_told_at_once(void **state) {
    fixture *f = *state;
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    run_to(f, f->now + 10);
    forget(&f->tap);
    f->mail->usage_news = 1;
    run_to(f, f->now + 10);
    assert_int_equal(f->tap.n, 0);
    f->mail->usage.guarded = 1;
    f->mail->urgent = 1; /* as agoq_session_pressure, which wakes the thread */
    run_to(f, f->now + 1);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_REPORT), 1);
    assert_true(f->tap.sent[0]->report->guarded);
    run_to(f, f->now + 200);
    assert_int_equal(f->tap.n, 1); /* once */
    f->mail->urgent = 1;
    f->tap.blocked = 1;
    assert_true(run_to(f, f->now + 400) < 5); /* and it does not spin while nothing leaves */
    f->tap.blocked = 0;
    run_to(f, f->now + 200);
    assert_int_equal(f->tap.n, 2);
}

static void applied_repeats_until_acknowledged(void **state) {
    fixture *f = *state;
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    f->mail->vote.applied_id = 5;
    f->mail->vote.applied_hash = 6;
    f->mail->n_switches = 1;
    f->mail->applied_step = 12;
    forget(&f->tap);
    run_to(f, f->now + 1500);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_APPLIED), 2);
    const Agoq__Envelope *e = last(&f->tap, AGOQ__ENVELOPE__BODY_APPLIED);
    assert_true(e->applied->id == 5 && e->applied->hash == 6 && e->applied->step == 12);
    ack(f, e->seq);
    forget(&f->tap);
    run_to(f, f->now + 1500);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_APPLIED), 0);
    /* It says "nothing prepared" to the daemon, so it waits while something is. */
    f->mail->n_switches = 2;
    f->mail->vote.prepared_id = 9;
    run_to(f, f->now + 500);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_APPLIED), 0);
    f->mail->vote.prepared_id = 0;
    run_to(f, f->now + 600);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_APPLIED), 1);
}

static void another_daemon_is_told_everything_again(void **state) {
    fixture *f = *state;
    slot a = case_plan(plan_id_make(1, 0, 1), 5, -1);
    Agoq__Refuse refuse = AGOQ__REFUSE__INIT;
    char text[] = "say HELLO";
    refuse.reason = WIRE_REFUSE_HELLO_FIRST;
    refuse.text = text;
    hold_profile(f);
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    run_to(f, f->now + 10);
    ack(f, last(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE)->seq);
    f->mail->vote.applied_id = a.id;
    f->mail->vote.applied_hash = a.hash;
    f->mail->applied = a;
    forget(&f->tap);
    hear(f, AGOQ__ENVELOPE__BODY_REFUSE, &refuse, 0);
    run_to(f, f->now + 10);
    assert_int_equal(f->tap.n, 1); /* HELLO at once, and nothing else before WELCOME */
    const Agoq__Envelope *e = last(&f->tap, AGOQ__ENVELOPE__BODY_HELLO);
    assert_true(e->hello->applied_id == a.id && e->hello->applied_plan.len == a.size);
    assert_memory_equal(e->hello->applied_plan.data, a.bytes, a.size);
    welcome(f, 2, 1);
    run_to(f, f->now + 10);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_PROFILE), 1);
    assert_true(f->mail->vote.highest_term == 2);
    forget(&f->tap);
    refuse.reason = WIRE_REFUSE_JOB; /* stays as it is: HELLO every 5 s, nothing else */
    hear(f, AGOQ__ENVELOPE__BODY_REFUSE, &refuse, 0);
    run_to(f, f->now + 11000);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_HELLO), f->tap.n);
    assert_in_range(f->tap.n, 1, 3);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(says_hello_until_it_is_welcomed),
        CASE(profile_repeats_until_acknowledged),
        CASE(reports_at_most_twice_a_second_and_at_least_once),
        CASE(a_report_that_does_not_leave_loses_no_peak),
        CASE(a_guard_is_told_at_once),
        CASE(applied_repeats_until_acknowledged),
        CASE(another_daemon_is_told_everything_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
