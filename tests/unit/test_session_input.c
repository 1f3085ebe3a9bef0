/* What a caller can say to a session, right and wrong: configuration, environment, profile, micro-batches;
 * and every allocation that may fail on the way. */
#include "tests/unit/session_fixture.h"

static void bad_configurations(void **state) {
    (void)state;
    agoq_session *s = NULL;
    char long_text[200];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    assert_int_equal(agoq_session_open(NULL, &s), AGOQ_E_INVAL);
    for (int i = 0; i < 19; i++) {
        agoq_session_config c = AGOQ_SESSION_CONFIG_INIT;
        agoq_status want = AGOQ_E_INVAL;
        if (i == 0) c.size = 0;
        if (i == 1) c.size += 8, want = AGOQ_E_VERSION;
        if (i == 2) c.rank = 1;
        if (i == 3) c.rank = -1;
        if (i == 4) c.world = -1;
        if (i == 5) c.stage = 2, c.n_stages = 2;
        if (i == 6) c.dp = 1;
        if (i == 7) c.tp = -1;
        if (i == 8) c.mode = (agoq_mode)3;
        if (i == 9) c.job = long_text;
        if (i == 10) c.device = "a\nb";
        if (i == 11) c.socket = long_text;
        if (i == 12) c.n_stages = PLAN_MAX_STAGES + 1;
        if (i == 14) c.world = 1, c.n_dp = c.n_tp = INT32_MAX;
        if (i == 15) c.world = 4, c.n_dp = 5;
        if (i == 16) c.world = 8, c.n_stages = c.n_dp = 2, c.n_tp = 3;
        if (i == 17) c.n_stages = 2;
        if (i == 18) c.world = INT32_MAX, c.n_dp = c.n_tp = INT32_MAX;
        if (i == 13) c.plan_file = "/nonexistent/plan", want = AGOQ_E_IO;
        if (agoq_session_open(&c, &s) != want) fail_msg("case %d: %s", i, agoq_last_error());
        assert_null(s);
        assert_true(agoq_last_error()[0]);
    }
    agoq_session_config c = AGOQ_SESSION_CONFIG_INIT;
    assert_int_equal(agoq_session_open(&c, NULL), AGOQ_E_INVAL);
    c.world = 13; /* every coordinate has a rank; the job may have more */
    c.n_stages = c.n_dp = 2;
    c.n_tp = 3;
    s = open_session(&c);
    agoq_session_close(&s);
}

static void clear_environment(void) {
    static const char *const names[] = {"AGOQ_SOCKET",
                                        "AGOQ_PLAN_FILE",
                                        "AGOQ_JOB",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "RANK",
                                        "WORLD_SIZE"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) unsetenv(names[i]);
}

static void the_environment_fills_gaps_only(void **state) {
    (void)state;
    clear_environment();
    agoq_session_config c = AGOQ_SESSION_CONFIG_INIT;
    agoq_session_config_env(NULL);
    agoq_session_config_env(&c);
    assert_true(!c.socket && !c.plan_file && !c.job && c.rank == 0 && c.world == 0);
    setenv("AGOQ_SOCKET", "/run/x.sock", 1);
    setenv("AGOQ_PLAN_FILE", "", 1);
    setenv("AGOQ_JOB", "j1", 1);
    setenv("RANK", "2", 1);
    setenv("WORLD_SIZE", "4", 1);
    setenv("SLURM_PROCID", "9", 1);
    setenv("SLURM_NTASKS", "5", 1); /* nonsense: skipped */
    agoq_session_config_env(&c);
    assert_string_equal(c.socket, "/run/x.sock");
    assert_string_equal(c.job, "j1");
    assert_true(!c.plan_file && c.rank == 2 && c.world == 4);
    setenv("OMPI_COMM_WORLD_RANK", "1", 1);
    setenv("OMPI_COMM_WORLD_SIZE", "3", 1);
    agoq_session_config_env(&c); /* set already */
    assert_true(c.rank == 2 && c.world == 4);
    agoq_session_config d = AGOQ_SESSION_CONFIG_INIT;
    d.socket = "mine";
    agoq_session_config_env(&d);
    assert_string_equal(d.socket, "mine");
    assert_true(d.rank == 1 && d.world == 3);
    setenv("OMPI_COMM_WORLD_RANK", "01", 1);
    agoq_session_config e = AGOQ_SESSION_CONFIG_INIT;
    agoq_session_config_env(&e);
    assert_true(e.rank == 2 && e.world == 4);
    clear_environment();
}

static void a_profile_that_makes_no_sense_is_refused(void **state) {
    (void)state;
    agoq_session *s = open_floor();
    set_profile(s);
    static uint64_t sixty_five[65];
    for (int i = 0; i < 23; i++) {
        agoq_item items[CASE_ITEMS];
        agoq_profile p = case_profile(items);
        agoq_status want = AGOQ_E_INVAL;
        if (i == 0) p.size--, want = AGOQ_E_VERSION;
        if (i == 1) p.schedule = AGOQ_N_SCHEDULES;
        if (i == 2) p.n_chunks = 0;
        if (i == 3) p.n_chunks = 65, p.fixed_bytes = sixty_five;
        if (i == 4) p.n_microbatches = 0;
        if (i == 5) p.n_layers = 0;
        if (i == 6) p.n_items = -1;
        if (i == 7) p.items = NULL;
        if (i == 8) p.fixed_bytes = NULL;
        if (i == 9) items[1].layer = -1;
        if (i == 10) items[1].layer = UINT16_MAX;
        if (i == 11) items[1].role = AGOQ_N_ROLES;
        if (i == 12) items[1].chunk = 1;
        if (i == 13) items[1].count = 0;
        if (i == 14) items[1].rows = -1;
        if (i == 15) items[1].widths = 32;
        if (i == 16) items[1].sensitivity = -1;
        if (i == 17) items[1].sensitivity = 0.0 / (p.n_layers - CASE_LAYERS ? 1 : 0.0);
        if (i == 18) items[2] = items[0];
        if (i == 19) items[1].rows = INT64_MAX;
        if (i == 20) p.static_bytes[1] = UINT64_MAX;
        if (i == 22) items[1].layer = p.n_layers;
        if (i == 21) p.n_items = 5000, want = AGOQ_E_LIMIT;
        if (agoq_session_profile(s, &p) != want) fail_msg("case %d: %s", i, agoq_last_error());
        assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 4); /* the old one holds */
    }
    agoq_session_close(&s);
}

static void observed_live_vectors(void **state) {
    (void)state;
    agoq_session *s = open_floor();
    agoq_item items[CASE_ITEMS];
    agoq_profile said = case_profile(items);
    static const uint64_t two[2];
    said.n_chunks = 2;
    said.fixed_bytes = two;
    said.schedule = AGOQ_SCHEDULE_INTERLEAVED;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_OK);
    const uint64_t version = s->mail->profile_version;
    /* (2,0) then (1,1) then (0,2): three maxima; (1,0) and (0,1) on the way are none. */
    static const int events[][2] = {{0, 1}, {0, 1}, {0, -1}, {1, 1}, {0, -1}, {1, 1}, {1, -1}, {1, -1}};
    for (int round = 0; round < 3; round++) {
        assert_int_equal(agoq_step_begin(s, round), AGOQ_OK);
        for (size_t i = 0; i < sizeof events / sizeof *events; i++)
            assert_int_equal(agoq_session_microbatch(s, events[i][0], events[i][1]), AGOQ_OK);
        if (round == 2) { /* one more alive than before */
            for (int k = 0; k < 3; k++) assert_int_equal(agoq_session_microbatch(s, 0, 1), AGOQ_OK);
            for (int k = 0; k < 3; k++) assert_int_equal(agoq_session_microbatch(s, 0, -1), AGOQ_OK);
        }
        assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
        const profile *held = &s->mail->held;
        assert_int_equal(s->mail->profile_version, version + (round == 2 ? 2 : 1));
        assert_int_equal(held->observed_steps, round == 2 ? 3 : 1);
        assert_int_equal(held->n_live_rows, 3);
        static const uint32_t want[2][6] = {{2, 0, 1, 1, 0, 2}, {1, 1, 0, 2, 3, 0}};
        assert_memory_equal(held->live, want[round == 2], sizeof want[0]);
    }
    said.static_bytes[0] = 5; /* the same shape: what was seen stays */
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_OK);
    assert_int_equal(s->mail->held.n_live_rows, 3);
    said.n_microbatches = 8;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_OK);
    assert_int_equal(s->mail->held.n_live_rows, 0);
    assert_int_equal(agoq_session_microbatch(s, 1, 1), AGOQ_OK);
    said.n_chunks = 1;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_E_STATE);
    agoq_session_close(&s);
}

static void many_live_vectors_are_merged_upwards(void **state) {
    (void)state;
    observe *o = calloc(1, sizeof *o);
    assert_int_equal(observe_reset(o, 2), AGOQ_OK);
    enum { N = 200 };
    for (int i = 0; i <= N; i++) { /* (i, N - i): none dominates another */
        for (int k = 0; k < i; k++) assert_int_equal(observe_microbatch(o, 0, 1), AGOQ_OK);
        for (int k = 0; k < N - i; k++) assert_int_equal(observe_microbatch(o, 1, 1), AGOQ_OK);
        for (int k = 0; k < i; k++) assert_int_equal(observe_microbatch(o, 0, -1), AGOQ_OK);
        for (int k = 0; k < N - i; k++) assert_int_equal(observe_microbatch(o, 1, -1), AGOQ_OK);
    }
    assert_true(observe_step_end(o));
    assert_in_range(o->n_rows, 1, OBSERVE_MAX_ROWS);
    for (uint32_t i = 0; i <= N; i++) {
        int covered = 0;
        for (uint32_t r = 0; r < o->n_rows; r++) covered |= o->rows[r][0] >= i && o->rows[r][1] >= N - i;
        assert_true(covered);
    }
    free(o);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1);
    planfile_writer w;
    unlink(plan_path);
    unlink(record_path);
    assert_int_equal(planfile_writer_open(plan_path, &w), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 1, &a), AGOQ_OK);
    planfile_writer_close(&w);
    for (int with_socket = 0; with_socket < 2; with_socket++) {
        agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
        config.socket = with_socket ? socket_path : NULL;
        config.plan_file = with_socket ? NULL : plan_path;
        config.world = config.n_stages = 2; /* as the plan has it */
        config.record_file = record_path;
        agoq_session *s = NULL;
        int n = 0;
        for (; !s; n++) {
            mem_fail_after(n + 1);
            const agoq_status status = agoq_session_open(&config, &s);
            mem_fail_after(0);
            assert_true(status == AGOQ_OK ? s != NULL : status == AGOQ_E_NOMEM && s == NULL);
        }
        assert_true(n > 3);
        agoq_item items[CASE_ITEMS];
        const agoq_profile said = case_profile(items);
        agoq_status status = AGOQ_E_NOMEM;
        for (n = 0; status != AGOQ_OK; n++) {
            mem_fail_after(n + 1);
            status = agoq_session_profile(s, &said);
            mem_fail_after(0);
            assert_true(status == AGOQ_OK || status == AGOQ_E_NOMEM);
        }
        assert_true(n > 5);
        mem_fail_after(1); /* no allocation at a step boundary, but for recording a switch */
        step(s, 0);
        mem_fail_after(0);
        agoq_session_close(&s);
    }
    slot_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_configurations),
        cmocka_unit_test(the_environment_fills_gaps_only),
        cmocka_unit_test(a_profile_that_makes_no_sense_is_refused),
        cmocka_unit_test(observed_live_vectors),
        cmocka_unit_test(many_live_vectors_are_merged_upwards),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
