/* The helper thread's messages, driven without a thread, a socket or a clock: what it says when, how it
 * answers PREPARE, CANCEL, ABORT and REFUSE, and that nothing a daemon sends makes it do more than it should.
 */
#include "tests/unit/session_cases.h"

#include "libagoq/link_messages.h"
#include "planner/plan.h"

#define MAX_SENT 64

typedef struct wire_tap {
    Agoq__Envelope *sent[MAX_SENT];
    int n, blocked;
} wire_tap;

typedef struct fixture {
    link_identity me;
    mailbox *mail;
    link_state state;
    wire_tap tap;
    uint64_t daemon_seq;
    int64_t now;
} fixture;

static int tap_send(void *user, const uint8_t *data, size_t size) {
    wire_tap *tap = user;
    if (tap->blocked) return -1;
    assert_true(tap->n < MAX_SENT);
    assert_int_equal(wire_decode(data, size, WIRE_MAX_RANK_BYTES, &tap->sent[tap->n], NULL), AGOQ_OK);
    tap->n++;
    return 0;
}

static void forget(wire_tap *tap) {
    for (int i = 0; i < tap->n; i++) wire_free(tap->sent[i]);
    tap->n = 0;
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    f->mail = mailbox_new();
    f->me = (link_identity){.job = "job",
                            .device = "cpu:here:1",
                            .host = "here",
                            .rank = 1,
                            .world = 4,
                            .n_stages = 2,
                            .n_dp = 2,
                            .n_tp = 1};
    memset(f->me.sender, 7, sizeof f->me.sender);
    link_state_init(&f->state, &f->me, f->mail, 1234);
    f->state.send = tap_send;
    f->state.user = &f->tap;
    f->now = 100000;
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    forget(&f->tap);
    mailbox_release(f->mail);
    free(f);
    return 0;
}

static void hear(fixture *f, Agoq__Envelope__BodyCase which, void *body, uint64_t reply_to) {
    size_t size;
    uint8_t *data = case_from_daemon("job", which, body, ++f->daemon_seq, reply_to, &size);
    link_receive(&f->state, data, size, f->now);
    mem_free(data);
}

static void welcome(fixture *f, uint64_t term, uint64_t budget_version) {
    Agoq__Welcome m = AGOQ__WELCOME__INIT;
    m.term = term;
    m.budget_version = budget_version;
    m.heartbeat_ms = 1000;
    hear(f, AGOQ__ENVELOPE__BODY_WELCOME, &m, 0);
}

static void ack(fixture *f, uint64_t seq) {
    Agoq__Ack m = AGOQ__ACK__INIT;
    hear(f, AGOQ__ENVELOPE__BODY_ACK, &m, seq);
}

static int count(const wire_tap *tap, Agoq__Envelope__BodyCase which) {
    int n = 0;
    for (int i = 0; i < tap->n; i++) n += tap->sent[i]->body_case == which;
    return n;
}

static const Agoq__Envelope *last(const wire_tap *tap, Agoq__Envelope__BodyCase which) {
    const Agoq__Envelope *found = NULL;
    for (int i = 0; i < tap->n; i++) {
        if (tap->sent[i]->body_case == which) found = tap->sent[i];
    }
    assert_non_null(found);
    return found;
}

/* Runs the timers up to `until`, always at the moment that the link asked for. Returns how often it asked. */
static int run_to(fixture *f, int64_t until) {
    int ticks = 0;
    while (f->now < until) {
        const int64_t next = link_tick(&f->state, f->now);
        assert_true(next > f->now);
        f->now = next < until ? next : until;
        ticks++;
    }
    return ticks;
}

static void hold_profile(fixture *f) {
    agoq_item items[CASE_ITEMS];
    const agoq_profile said = case_profile(items);
    profile_fini(&f->mail->held);
    assert_int_equal(profile_copy(&said, &f->mail->held), AGOQ_OK);
    f->mail->has_profile = 1;
    f->mail->profile_version++;
}

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

static void expect_nack(fixture *f, const Agoq__Prepare *m, Agoq__NackReason reason) {
    Agoq__Prepare copy = *m;
    const uint64_t prepared = f->mail->vote.prepared_id;
    forget(&f->tap);
    hear(f, AGOQ__ENVELOPE__BODY_PREPARE, &copy, 0);
    assert_int_equal(f->tap.n, 1);
    assert_int_equal(f->tap.sent[0]->body_case, AGOQ__ENVELOPE__BODY_NACK);
    assert_int_equal(f->tap.sent[0]->nack->reason, reason);
    assert_true(f->tap.sent[0]->nack->id == m->id && f->tap.sent[0]->reply_to == f->daemon_seq);
    assert_true(f->mail->vote.prepared_id == prepared);
}

static void expect_prepared(fixture *f, const Agoq__Prepare *m) {
    Agoq__Prepare copy = *m;
    forget(&f->tap);
    hear(f, AGOQ__ENVELOPE__BODY_PREPARE, &copy, 0);
    assert_int_equal(f->tap.n, 1);
    assert_int_equal(f->tap.sent[0]->body_case, AGOQ__ENVELOPE__BODY_PREPARED);
    assert_true(f->tap.sent[0]->prepared->id == m->id && f->tap.sent[0]->prepared->hash == m->hash);
}

static void prepare_is_checked_to_the_last_byte(void **state) {
    fixture *f = *state;
    slot good = case_plan(plan_id_make(2, 0, 1), 5, -1), lacks = case_plan(plan_id_make(2, 0, 2), 5, 1);
    Agoq__Prepare m = case_prepare(&good, 3), bad;
    hear(f, AGOQ__ENVELOPE__BODY_PREPARE, &m, 0);
    assert_int_equal(f->tap.n, 0); /* from a daemon that has not welcomed this rank */
    run_to(f, f->now + 10);
    welcome(f, 2, 3);
    expect_nack(f, &m, AGOQ__NACK_REASON__NACK_BAD_PLAN); /* nothing is known about this rank yet */
    hold_profile(f);
    bad = m;
    bad.hash ^= 1;
    expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_BAD_HASH);
    for (size_t i = 0; i < good.size; i++) { /* every byte of the plan matters */
        good.bytes[i] ^= 1;
        expect_nack(f, &m, AGOQ__NACK_REASON__NACK_BAD_HASH);
        bad = m;
        bad.hash = plan_hash(good.bytes, good.size);
        if (i < 12)
            expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_BAD_PLAN); /* head: the counts do not add up */
        good.bytes[i] ^= 1;
    }
    bad = case_prepare(&lacks, 3);
    expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_BAD_PLAN);
    assert_non_null(strstr(f->tap.sent[0]->nack->text, "layer 1 role mlp_gate_up"));
    bad = m;
    bad.budget_version = 2;
    expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_OLD_BUDGET);
    bad = m;
    bad.id = plan_id_make(1, 0, 9);
    expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_OLD_TERM);
    expect_prepared(f, &m);
    assert_true(f->mail->prepared.id == good.id && f->mail->prepared.size == good.size);
    expect_prepared(f, &m); /* a copy */
    slot other = case_plan(good.id, 6, -1);
    bad = case_prepare(&other, 3);
    expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_SAME_ID);
    uint64_t words[VOTE_WORDS];
    vote_start(&f->mail->vote, words);
    slot later = case_plan(plan_id_make(2, 0, 7), 6, -1);
    bad = case_prepare(&later, 3);
    expect_nack(f, &bad, AGOQ__NACK_REASON__NACK_BUSY);
    assert_true(f->mail->prepared.id == good.id && f->mail->prepared.bytes);
    slot_fini(&good);
    slot_fini(&lacks);
    slot_fini(&other);
    slot_fini(&later);
}

static void a_width_that_is_not_allowed_is_refused(void **state) {
    fixture *f = *state;
    agoq_item items[CASE_ITEMS];
    agoq_profile said = case_profile(items);
    items[2].widths = AGOQ_MASK_4 | AGOQ_MASK_8;
    assert_int_equal(profile_copy(&said, &f->mail->held), AGOQ_OK);
    f->mail->has_profile = 1;
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    slot five = case_plan(plan_id_make(1, 0, 1), 5, -1), eight = case_plan(plan_id_make(1, 0, 2), 8, -1);
    const Agoq__Prepare m5 = case_prepare(&five, 1), m8 = case_prepare(&eight, 1);
    expect_nack(f, &m5, AGOQ__NACK_REASON__NACK_BAD_PLAN);
    assert_non_null(strstr(f->tap.sent[0]->nack->text, "not allowed: layer 1"));
    expect_prepared(f, &m8);
    slot_fini(&five);
    slot_fini(&eight);
}

static void cancel_and_abort(void **state) {
    fixture *f = *state;
    slot a = case_plan(plan_id_make(1, 0, 1), 5, -1), b = case_plan(plan_id_make(1, 0, 2), 6, -1);
    const Agoq__Prepare ma = case_prepare(&a, 1), mb = case_prepare(&b, 2);
    uint64_t words[VOTE_WORDS];
    Agoq__Cancel cancel = AGOQ__CANCEL__INIT;
    Agoq__Abort abort_a = AGOQ__ABORT__INIT;
    char reason[] = "test";
    abort_a.id = a.id;
    abort_a.reason = reason;
    hold_profile(f);
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    ack(f, f->state.seq);

    expect_prepared(f, &ma); /* not voted on: goes */
    forget(&f->tap);
    hear(f, AGOQ__ENVELOPE__BODY_ABORT, &abort_a, 0);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_ACK), 1);
    assert_true(f->mail->vote.prepared_id == 0 && f->mail->prepared.bytes == NULL);

    expect_prepared(f, &ma); /* voted on: stays, and the answer says so */
    vote_start(&f->mail->vote, words);
    cancel.budget_version = 2;
    forget(&f->tap);
    hear(f, AGOQ__ENVELOPE__BODY_CANCEL, &cancel, 0);
    const Agoq__Envelope *e = last(&f->tap, AGOQ__ENVELOPE__BODY_CANCELLED);
    assert_true(e->cancelled->vote_id == a.id && e->cancelled->budget_version == 2 &&
                e->reply_to == f->daemon_seq);
    assert_true(f->mail->vote.prepared_id == a.id);
    expect_nack(f, &mb, AGOQ__NACK_REASON__NACK_BUSY);
    forget(&f->tap);
    link_tick(&f->state, f->now);
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_CANCELLED), 0);
    assert_int_equal(vote_finish(&f->mail->vote, NULL), VOTE_KEEP); /* read: told at once */
    link_tick(&f->state, f->now);
    e = last(&f->tap, AGOQ__ENVELOPE__BODY_CANCELLED);
    assert_true(e->cancelled->vote_id == 0 && e->cancelled->applied_id == 0 && e->reply_to == 0);
    expect_nack(f, &ma, AGOQ__NACK_REASON__NACK_OLD_BUDGET);
    expect_prepared(f, &mb);
    cancel.all = 1;
    hear(f, AGOQ__ENVELOPE__BODY_CANCEL, &cancel, 0);
    assert_true(f->mail->vote.prepared_id == 0);
    slot_fini(&a);
    slot_fini(&b);
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

static void strangers_are_ignored(void **state) {
    fixture *f = *state;
    slot a = case_plan(plan_id_make(1, 0, 1), 5, -1);
    Agoq__Prepare m = case_prepare(&a, 1);
    size_t size;
    hold_profile(f);
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    forget(&f->tap);
    uint8_t *data = case_from_daemon("another", AGOQ__ENVELOPE__BODY_PREPARE, &m, 9, 0, &size);
    link_receive(&f->state, data, size, f->now);
    mem_free(data);
    data = case_from_daemon("job", AGOQ__ENVELOPE__BODY_PREPARE, &m, 9, 0, &size);
    for (size_t n = 0; n < size; n++) link_receive(&f->state, data, n, f->now);
    for (size_t i = 0; i < 30; i++) { /* magic, version, job, sender */
        data[i] ^= 0x55;
        link_receive(&f->state, data, size, f->now);
        data[i] ^= 0x55;
    }
    assert_int_equal(f->tap.n, 0);
    assert_true(f->mail->vote.prepared_id == 0);
    link_receive(&f->state, data, size, f->now); /* as it should be */
    assert_int_equal(count(&f->tap, AGOQ__ENVELOPE__BODY_PREPARED), 1);
    mem_free(data);
    slot_fini(&a);
}

static void every_allocation_may_fail(void **state) {
    fixture *f = *state;
    slot a = case_plan(plan_id_make(1, 0, 1), 5, -1);
    Agoq__Prepare m = case_prepare(&a, 1);
    size_t size;
    hold_profile(f);
    run_to(f, f->now + 10);
    welcome(f, 1, 1);
    uint8_t *data = case_from_daemon("job", AGOQ__ENVELOPE__BODY_PREPARE, &m, 9, 0, &size);
    int n = 0;
    /* The tap allocates as well: only the receiving side counts, so it is the mailbox that is looked at. */
    f->tap.blocked = 1;
    for (; f->mail->vote.prepared_id == 0 && n < 100; n++) {
        mem_fail_after(n + 1);
        link_receive(&f->state, data, size, f->now);
        mem_fail_after(0);
        assert_true(f->mail->vote.prepared_id == 0 || f->mail->prepared.bytes);
    }
    assert_in_range(n, 5, 99);
    f->mail->profile_version++;
    for (n = 0; n < 20; n++) {
        mem_fail_after(n + 1);
        link_tick(&f->state, f->now);
        mem_fail_after(0);
        f->now += 1000;
    }
    f->tap.blocked = 0;
    mem_free(data);
    slot_fini(&a);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(says_hello_until_it_is_welcomed),
        CASE(profile_repeats_until_acknowledged),
        CASE(reports_at_most_twice_a_second_and_at_least_once),
        CASE(a_report_that_does_not_leave_loses_no_peak),
        CASE(prepare_is_checked_to_the_last_byte),
        CASE(a_width_that_is_not_allowed_is_refused),
        CASE(cancel_and_abort),
        CASE(applied_repeats_until_acknowledged),
        CASE(another_daemon_is_told_everything_again),
        CASE(strangers_are_ignored),
        CASE(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
