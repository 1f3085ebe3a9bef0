/* How the helper thread answers PREPARE, CANCEL and ABORT, and that nothing a stranger or a broken daemon
 * sends gets a plan in. */
#include "tests/unit/link_fixture.h"

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
        CASE(prepare_is_checked_to_the_last_byte),
        CASE(a_width_that_is_not_allowed_is_refused),
        CASE(cancel_and_abort),
        CASE(strangers_are_ignored),
        CASE(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
