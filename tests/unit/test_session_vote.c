/* Sessions that vote: when a plan becomes the applied one, what a failing communicator does, and that the
 * record of a run replays to the same plans at the same steps. */
#include "tests/unit/session_fixture.h"

static void ranks_switch_at_the_boundary_after_the_vote(void **state) {
    (void)state;
    agoq_session *s = open_daemon(0, 2);
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 5, -1);
    partner p = {0};
    const agoq_vote_comm comm = comm_of(&p);
    agoq_plan_state now;
    set_profile(s);
    partner_holds(&p, 0, 0, 0);
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_OK);
    assert_true(p.started == 1 && p.finished == 1); /* blocking, before the first forward */
    step(s, 0);
    assert_true(p.started == 2 && p.finished == 1);
    prepare(s, &a);
    step(s, 1); /* votes with the plan, reads a vote without */
    assert_true(applied(s) == 0 && p.buf[0] == a.id && p.buf[2] == a.hash);
    step(s, 2); /* the partner does not have it */
    assert_true(applied(s) == 0);
    partner_holds(&p, a.id, a.hash + 1, 0); /* nor the same bytes */
    step(s, 3);
    assert_true(applied(s) == 0);
    prepare(s, &b); /* busy: a is voted on */
    partner_holds(&p, a.id, a.hash, 0);
    step(s, 4);
    assert_true(applied(s) == a.id);
    agoq_session_state(s, &now);
    assert_true(now.since_step == 4 && now.switches == 1 && now.disagreements == 0);
    assert_true(p.buf[0] == 0 && p.buf[4] == a.id); /* the next vote: nothing prepared */
    partner_holds(&p, 0, 0, a.id);
    step(s, 5);
    assert_true(applied(s) == a.id);
    partner_holds(&p, 0, 0, b.id); /* the other rank is on something else: both go to the floor */
    step(s, 6);
    agoq_session_state(s, &now);
    assert_true(now.plan_id == 0 && now.disagreements == 1 && now.switches == 2);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 4);
    agoq_session_close(&s);
    assert_int_equal(p.destroyed, 1);
    slot_fini(&a);
    slot_fini(&b);
}

static void a_failing_communicator_keeps_the_plan(void **state) {
    (void)state;
    agoq_session *s = open_daemon(0, 2);
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1);
    partner p = {0}, q = {0};
    agoq_vote_comm comm = comm_of(&p), other = comm_of(&q);
    set_profile(s);
    p.start_status = AGOQ_E_IO;
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_E_COMM);
    assert_int_equal(p.destroyed, 0); /* stays the caller's */
    prepare(s, &a);
    assert_int_equal(agoq_step_begin(s, 0), AGOQ_E_COMM); /* alone it could leave the others behind */
    assert_true(applied(s) == 0);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK); /* the step goes on with the plan it had */
    p.start_status = AGOQ_OK;
    partner_holds(&p, a.id, a.hash, 0);
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_OK); /* S15: this vote is effective at once */
    assert_true(applied(s) == a.id);
    partner_holds(&p, 0, 0, a.id);
    step(s, 1);
    p.finish_status = AGOQ_E_IO;
    assert_int_equal(agoq_step_begin(s, 2), AGOQ_E_COMM);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
    const int started = p.started;
    assert_int_equal(agoq_step_begin(s, 3), AGOQ_E_COMM);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
    assert_int_equal(p.started, started); /* not used again */
    assert_true(applied(s) == a.id);
    char text[4096];
    agoq_session_report(s, text, sizeof text);
    assert_non_null(strstr(text, "vote of the ranks failed"));
    partner_holds(&q, 0, 0, 0); /* the other rank has restarted: the floor plan, on both */
    assert_int_equal(agoq_session_attach(s, &other), AGOQ_OK);
    assert_int_equal(p.destroyed, 1);
    assert_true(applied(s) == 0);
    q.garbage = 1;
    step(s, 4);
    assert_int_equal(agoq_step_begin(s, 5), AGOQ_E_COMM);
    assert_non_null(strstr(agoq_last_error(), "no reduction"));
    comm.finish = NULL;
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_attach(s, &other), AGOQ_E_STATE); /* inside of a step */
    agoq_session_close(&s);
    assert_int_equal(q.destroyed, 1);
    slot_fini(&a);
}

/* A plan with a width for all that this rank holds, and yet another job's. */
static void other_shapes(const agoq_session_config *replay) {
    static const char *const why[] = {"2 pipeline stages, and there are 4",
                                      "is on stage 0 in the plan, here on 1",
                                      "stage 0 has layer 2 role attn_out in the plan, not here"};
    for (int i = 0; i < 3; i++) {
        agoq_session_config c = *replay;
        agoq_item items[CASE_ITEMS];
        agoq_profile said = case_profile(items);
        if (i == 0) c.n_stages = c.world = 4;
        if (i == 1) c.stage = c.rank = 1;
        if (i == 2) said.n_items--;
        agoq_session *s = open_session(&c);
        assert_int_equal(agoq_session_profile(s, &said), AGOQ_E_FORMAT);
        if (!strstr(agoq_last_error(), why[i])) fail_msg("case %d: %s", i, agoq_last_error());
        agoq_session_close(&s);
    }
}

static int n_warnings;

static void count_warnings(void *user, agoq_log_level level, const char *module, const char *text) {
    (void)user, (void)module;
    n_warnings += level == AGOQ_LOG_WARN && strstr(text, "another job") && strstr(text, "measured=4007") &&
                  strstr(text, "predicted=4006");
}

/* Tensors of other sizes cannot be seen in a plan; what it predicts is then refuted by the first step. */
static void a_file_that_predicts_too_little(void **state) {
    (void)state;
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 5, -1);
    planfile_writer w;
    unlink(plan_path);
    assert_int_equal(planfile_writer_open(plan_path, &w), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 1, &a), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 4, &b), AGOQ_OK);
    planfile_writer_close(&w);
    agoq_session_config c = AGOQ_SESSION_CONFIG_INIT;
    c.plan_file = plan_path;
    c.world = c.n_stages = 2;
    agoq_session *s = open_session(&c);
    set_profile(s);
    n_warnings = 0;
    agoq_set_log(count_warnings, NULL);
    for (int i = 0; i < 6; i++) { /* step 0 has no prediction, 1 keeps it, 2 breaks it */
        const agoq_usage used = {.peak_bytes = i == 0 ? 9000 : i == 1 ? 4006 : 4007};
        agoq_plan_state now;
        assert_int_equal(agoq_step_begin(s, i), AGOQ_OK);
        agoq_session_state(s, &now);
        assert_int_equal(now.predicted_bytes, i == 1 || i == 2 ? 4006 : 0);
        assert_int_equal(agoq_step_end(s, &used), AGOQ_OK);
        assert_int_equal(n_warnings, i >= 2);
        assert_int_equal(agoq_session_bits(s, 0, GATE_UP), i == 0 ? 4 : i < 4 ? 6 : 5);
    }
    agoq_set_log(NULL, NULL);
    agoq_session_close(&s);
    slot_fini(&a);
    slot_fini(&b);
}

/* Run A takes plans from the daemon and records; run B replays the record: the same ids and widths at every
 * step. */
static void record_and_replay(void **state) {
    (void)state;
    enum { STEPS = 20 };
    uint64_t ids[STEPS];
    int bits[STEPS];
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 5, -1);
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    partner p = {0};
    const agoq_vote_comm comm = comm_of(&p);
    unlink(record_path);
    config.socket = socket_path;
    config.record_file = record_path;
    agoq_session *s = open_session(&config);
    set_profile(s);
    partner_holds(&p, 0, 0, 0);
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_OK);
    for (int i = 0; i < STEPS; i++) {
        if (i == 3) prepare(s, &a);
        if (i == 9) prepare(s, &b);
        partner_holds(&p, s->mail->vote.voted_id, s->mail->vote.voted_hash,
                      i == 15 ? 1 : s->mail->vote.applied_id);
        assert_int_equal(agoq_step_begin(s, 2 * i), AGOQ_OK);
        ids[i] = applied(s);
        bits[i] = agoq_session_bits(s, 1, GATE_UP);
        assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
    }
    assert_true(ids[3] == 0 && ids[4] == a.id && ids[9] == a.id && ids[10] == b.id && ids[15] == 0 &&
                ids[19] == 0);
    agoq_session_close(&s);

    agoq_session_config replay = AGOQ_SESSION_CONFIG_INIT;
    replay.world = replay.n_stages = 2;
    replay.plan_file = record_path;
    replay.socket = socket_path;                  /* the file comes first, and no thread is started */
    for (int start = 0; start < STEPS; start++) { /* also as a run that resumes at any step */
        s = open_session(&replay);
        assert_null(s->link);
        set_profile(s);
        for (int i = start; i < STEPS; i++) {
            assert_int_equal(agoq_step_begin(s, 2 * i), AGOQ_OK);
            assert_true(applied(s) == ids[i]);
            assert_int_equal(agoq_session_bits(s, 1, GATE_UP), bits[i]);
            assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
        }
        agoq_session_close(&s);
    }
    /* The vote says what is applied, so that ranks with other files notice. */
    s = open_session(&replay);
    set_profile(s);
    partner_holds(&p, 0, 0, 0);
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_OK);
    step(s, 8);
    assert_true(p.buf[4] == a.id && p.buf[0] == 0);
    step(s, 9);
    agoq_plan_state now;
    agoq_session_state(s, &now);
    assert_true(now.disagreements == 1 && now.plan_id == a.id);
    agoq_session_close(&s);
    /* A plan file that does not fit what is held is refused as a whole, before any step. */
    s = open_session(&replay);
    agoq_item items[CASE_ITEMS];
    agoq_profile said = case_profile(items);
    items[4].layer = 7;
    said.n_layers = 8;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_E_FORMAT);
    assert_non_null(strstr(agoq_last_error(), "step 8"));
    agoq_session_close(&s);
    other_shapes(&replay);
    slot_fini(&a);
    slot_fini(&b);
}

static void a_resumed_run_records_over_the_future(void **state) {
    (void)state;
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(2, 0, 2), 5, -1);
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    planfile f;
    unlink(record_path);
    config.socket = socket_path;
    config.record_file = record_path;
    agoq_session *s = open_session(&config);
    set_profile(s);
    step(s, 0);
    prepare(s, &a);
    step(s, 10);
    agoq_session_close(&s);
    s = open_session(&config); /* from a checkpoint of step 5 */
    set_profile(s);
    step(s, 5);
    prepare(s, &b);
    step(s, 6);
    agoq_session_close(&s);
    assert_int_equal(planfile_read(record_path, &f), AGOQ_OK);
    assert_int_equal(f.n, 2);
    assert_true(f.entries[0].step == 5 && f.entries[0].plan.id == 0);
    assert_true(f.entries[1].step == 6 && f.entries[1].plan.id == b.id);
    planfile_fini(&f);
    /* Also when the last line happens to name what is in force at the resumed step. */
    planfile_writer w;
    slot floor_plan = {0};
    assert_int_equal(planfile_writer_open(record_path, &w), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 12, &floor_plan), AGOQ_OK);
    planfile_writer_close(&w);
    s = open_session(&config);
    step(s, 7);
    agoq_session_close(&s);
    assert_int_equal(planfile_read(record_path, &f), AGOQ_OK);
    assert_true(planfile_at(&f, 7)->plan.id == 0 && planfile_at(&f, 11)->plan.id == 0);
    planfile_fini(&f);
    slot_fini(&a);
    slot_fini(&b);
}

static void a_record_that_cannot_be_written_stops_nothing(void **state) {
    (void)state;
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1);
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    config.socket = socket_path;
    unlink(record_path);
    config.record_file = folder;
    agoq_session *s;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_E_IO);
    config.record_file = record_path;
    s = open_session(&config);
    set_profile(s);
    close(s->record.fd);
    s->record.fd = open("/dev/full", O_WRONLY);
    assert_true(s->record.fd >= 0);
    prepare(s, &a);
    step(s, 0);
    assert_true(applied(s) == a.id && s->record.failed);
    char text[4096];
    agoq_session_report(s, text, sizeof text);
    assert_non_null(strstr(text, "recording stopped"));
    agoq_session_close(&s);
    slot_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_switch_at_the_boundary_after_the_vote),
        cmocka_unit_test(a_failing_communicator_keeps_the_plan),
        cmocka_unit_test(record_and_replay),
        cmocka_unit_test(a_file_that_predicts_too_little),
        cmocka_unit_test(a_resumed_run_records_over_the_future),
        cmocka_unit_test(a_record_that_cannot_be_written_stops_nothing),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
