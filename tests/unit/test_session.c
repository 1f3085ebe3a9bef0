/* Sessions from the caller's side, with the inside in view: sources of plans, modes, boundaries, the memory
 * guard, the report, and that nothing ever waits for a daemon. */
#include "tests/unit/session_fixture.h"

static void floor_plan(void **state) {
    (void)state;
    agoq_session *s = open_floor();
    agoq_plan_state now;
    for (int layer = 0; layer < 100000; layer += 9999) { /* nobody has said which layers exist */
        assert_int_equal(agoq_session_bits(s, layer, GATE_UP), 4);
        assert_int_equal(agoq_session_bits(s, layer, OUT), 8);
        assert_int_equal(agoq_session_bits(s, layer, AGOQ_ROLE_ATTN_QKV), 16);
    }
    assert_int_equal(agoq_session_bits(s, -1, GATE_UP), 16);
    assert_int_equal(agoq_session_bits(s, 0, -1), 16);
    assert_int_equal(agoq_session_bits(s, 0, AGOQ_N_ROLES), 16);
    assert_int_equal(agoq_session_bits(NULL, 0, 0), 16);
    agoq_item items[CASE_ITEMS];
    agoq_profile said = case_profile(items);
    items[2].widths = AGOQ_MASK_6 | AGOQ_MASK_16;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_OK);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 4);
    assert_int_equal(agoq_session_bits(s, 1, GATE_UP), 6);
    assert_int_equal(agoq_session_bits(s, 0, AGOQ_ROLE_ATTN_NORM_IN), 16); /* not held */
    assert_int_equal(agoq_session_bits(s, 3, GATE_UP), 16);                /* no such layer here */
    step(s, 0);
    step(s, 0);
    step(s, 9);
    agoq_session_state(s, &now);
    assert_true(now.plan_id == 0 && now.plan_hash == 0 && now.switches == 0 && !now.connected &&
                now.since_step == -1);
    agoq_session_close(&s);
    assert_null(s);
    agoq_session_close(&s);
    agoq_session_close(NULL);
}

static void fixed_widths(void **state) {
    (void)state;
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    config.use_fixed_bits = 1;
    config.fixed_bits[GATE_UP] = 6;
    agoq_session *s = open_session(&config);
    assert_int_equal(agoq_session_bits(s, 5, GATE_UP), 6);
    assert_int_equal(agoq_session_bits(s, 5, OUT), 8);
    set_profile(s);
    assert_int_equal(agoq_session_bits(s, 1, GATE_UP), 6);
    assert_int_equal(agoq_session_bits(s, 1, OUT), 8);
    const uint64_t id = applied(s);
    assert_true(id != 0);
    agoq_item items[CASE_ITEMS];
    agoq_profile said = case_profile(items);
    items[0].widths = AGOQ_MASK_4;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_E_INVAL); /* 6 is not allowed there */
    assert_non_null(strstr(agoq_last_error(), "mlp_gate_up"));
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 6);
    agoq_session_close(&s);

    config.fixed_bits[GATE_UP] = 5; /* other widths are another plan in the vote */
    s = open_session(&config);
    assert_true(applied(s) != id);
    partner p = {0};
    partner_holds(&p, 0, 0, id);
    const agoq_vote_comm comm = comm_of(&p);
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_OK);
    step(s, 0);
    step(s, 1);
    agoq_plan_state now;
    agoq_session_state(s, &now);
    assert_true(now.disagreements == 2 && now.switches == 0);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 5); /* the source stays the source */
    agoq_session_close(&s);

    config.fixed_bits[0] = 7;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_E_INVAL);
    config.fixed_bits[0] = 0;
    config.record_file = record_path;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_E_INVAL);
}

static void identity_and_poison(void **state) {
    (void)state;
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    config.mode = AGOQ_MODE_IDENTITY;
    agoq_session *s = open_session(&config);
    set_profile(s);
    assert_int_equal(agoq_session_mode(s), AGOQ_MODE_IDENTITY);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 16);
    assert_int_equal(agoq_session_bits(s, 99, OUT), 16);
    assert_int_equal(agoq_session_pressure(s, "test"), AGOQ_OK);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 16);
    agoq_session_close(&s);

    config.mode = AGOQ_MODE_POISON;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_E_INVAL); /* no role: nothing would be poisoned */
    config.poison_roles = 1u << GATE_UP;
    s = open_session(&config);
    for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
        static const int widths[] = {4, 5, 6, 8, 16};
        _Alignas(16) uint8_t data[1024] = {0};
        agoq_packed p = packed_of(widths[i], data);
        assert_int_equal(agoq_session_saved(s, 0, OUT, &p), AGOQ_OK);
        for (size_t b = 0; b < p.layout.bytes; b++) assert_int_equal(data[b], 0);
        assert_int_equal(agoq_session_saved(s, 0, GATE_UP, &p), AGOQ_OK);
        const size_t from = widths[i] == 16 ? 0 : p.layout.scale_offset;
        for (size_t b = 0; b < sizeof data; b++)
            assert_int_equal(data[b], b >= from && b < p.layout.bytes ? 0xff : 0);
        assert_true(p.layout.bytes > from);
    }
    agoq_session_close(&s);
}

static void a_rank_alone_takes_a_plan_at_its_boundary(void **state) {
    (void)state;
    agoq_session *s = open_daemon(0, 1);
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 5, -1);
    set_profile(s);
    step(s, 3);
    prepare(s, &a);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 4);
    assert_int_equal(agoq_step_begin(s, 4), AGOQ_OK);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 6);
    assert_int_equal(agoq_session_bits(s, 2, OUT), 8);
    agoq_plan_state now;
    agoq_session_state(s, &now);
    assert_true(now.plan_id == a.id && now.plan_hash == a.hash && now.since_step == 4 && now.switches == 1);
    assert_true(now.predicted_bytes == 4006);
    prepare(s, &b); /* in the middle of a step: waits for the boundary */
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 6);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
    step(s, 5);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 5);
    /* What this rank holds changes while a plan waits: one that no longer fits is not applied. */
    slot c = case_plan(plan_id_make(1, 0, 3), 8, -1);
    agoq_item items[CASE_ITEMS];
    agoq_profile said = case_profile(items);
    prepare(s, &c);
    items[4].layer = 9;
    said.n_layers = 10;
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_OK);
    step(s, 6);
    assert_true(applied(s) == b.id);
    agoq_session_close(&s);
    slot_fini(&a);
    slot_fini(&b);
    slot_fini(&c);
}

static void memory_guard(void **state) {
    (void)state;
    agoq_session *s = open_daemon(0, 1);
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 8, -1);
    agoq_plan_state now;
    set_profile(s);
    prepare(s, &a);
    assert_int_equal(agoq_step_begin(s, 0), AGOQ_OK);
    assert_int_equal(agoq_session_pressure(s, NULL), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 6);
    assert_int_equal(agoq_session_pressure(s, "allocation of 1 GiB failed\n"), AGOQ_OK);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 4); /* at once */
    assert_int_equal(agoq_session_bits(s, 0, OUT), 8);
    agoq_session_state(s, &now);
    assert_true(now.guarded && now.plan_id == a.id);
    pthread_mutex_lock(&s->mail->mutex);
    assert_true(s->mail->usage.guarded);
    assert_string_equal(s->mail->usage.guard_why, "allocation of 1 GiB failed?");
    pthread_mutex_unlock(&s->mail->mutex);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
    step(s, 1); /* holds until the next switch */
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 4);
    char text[4096];
    agoq_session_report(s, text, sizeof text);
    assert_non_null(strstr(text, "memory guard"));
    prepare(s, &b);
    step(s, 2);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 8);
    agoq_session_state(s, &now);
    assert_true(!now.guarded && now.plan_id == b.id);
    agoq_session_close(&s);
    slot_fini(&a);
    slot_fini(&b);
}

static void calls_out_of_order(void **state) {
    (void)state;
    agoq_session *s = open_floor();
    _Alignas(16) uint8_t data[1024];
    agoq_packed p = packed_of(4, data);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_E_STATE);
    assert_int_equal(agoq_step_begin(s, -1), AGOQ_E_INVAL);
    assert_int_equal(agoq_step_begin(s, 5), AGOQ_OK);
    assert_int_equal(agoq_step_begin(s, 6), AGOQ_E_STATE);
    assert_int_equal(agoq_session_saved(s, 0, GATE_UP, &p), AGOQ_OK);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
    assert_int_equal(agoq_step_begin(s, 4), AGOQ_E_INVAL);
    assert_int_equal(agoq_step_begin(s, 6), AGOQ_E_STATE); /* S6: something saved is still live */
    assert_non_null(strstr(agoq_last_error(), "1 saved"));
    assert_int_equal(agoq_session_released(s, 0, GATE_UP, &p), AGOQ_OK);
    assert_int_equal(agoq_session_released(s, 0, GATE_UP, &p), AGOQ_E_STATE);
    assert_int_equal(agoq_step_begin(s, 6), AGOQ_OK);
    assert_int_equal(agoq_session_microbatch(s, 0, -1), AGOQ_E_STATE);
    assert_int_equal(agoq_session_microbatch(s, 0, 2), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_microbatch(s, -1, 1), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_microbatch(s, 64, 1), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_saved(s, 0, GATE_UP, NULL), AGOQ_E_INVAL);
    p.data = NULL;
    assert_int_equal(agoq_session_saved(s, 0, GATE_UP, &p), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_saved(s, -1, GATE_UP, &p), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_profile(s, NULL), AGOQ_E_INVAL);
    assert_int_equal(agoq_session_attach(s, NULL), AGOQ_E_INVAL);
    assert_int_equal(agoq_step_begin(NULL, 0), AGOQ_E_INVAL);
    agoq_session_close(&s);
}

static void opening_waits_for_nobody(void **state) {
    (void)state;
    const int64_t before = clock_ms();
    agoq_session *s = open_daemon(1, 4);
    set_profile(s);
    for (int i = 0; i < 1000; i++) step(s, i);
    agoq_plan_state now;
    agoq_session_state(s, &now);
    assert_false(now.connected);
    agoq_session_close(&s);
    assert_true(clock_ms() - before < 5000); /* generous: a default LINGER or a blocking connect never ends */
}

static void a_forked_child_may_only_close(void **state) {
    (void)state;
    agoq_session *s = open_daemon(0, 1);
    partner p = {0};
    const agoq_vote_comm comm = comm_of(&p);
    partner_holds(&p, 0, 0, 0);
    set_profile(s);
    assert_int_equal(agoq_session_attach(s, &comm), AGOQ_OK);
    for (int no_page = 0; no_page < 2; no_page++) {
        volatile int *page = s->mark.page;
        if (no_page) s->mark.page = NULL; /* as on a kernel without MADV_WIPEONFORK */
        step(s, no_page);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            _Alignas(16) uint8_t data[1024];
            agoq_packed t = packed_of(4, data);
            int good = agoq_step_begin(s, 5) == AGOQ_E_STATE && agoq_step_end(s, NULL) == AGOQ_E_STATE;
            good &= agoq_session_saved(s, 0, GATE_UP, &t) == AGOQ_E_STATE;
            good &= agoq_session_released(s, 0, GATE_UP, &t) == AGOQ_E_STATE;
            good &= agoq_session_microbatch(s, 0, 1) == AGOQ_E_STATE;
            good &= agoq_session_pressure(s, "x") == AGOQ_E_STATE;
            good &= agoq_session_attach(s, &comm) == AGOQ_E_STATE;
            good &= agoq_session_bits(s, 0, GATE_UP) == 4;
            agoq_session_close(&s);
            good &= s == NULL && p.destroyed == 0;
            _exit(good ? 0 : 1);
        }
        int status;
        assert_true(waitpid(child, &status, 0) == child);
        assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        s->mark.page = page;
    }
    step(s, 9); /* the parent goes on */
    agoq_session_close(&s);
    assert_int_equal(p.destroyed, 1);
}

static void a_report_for_people(void **state) {
    (void)state;
    agoq_session *s = open_daemon(0, 1);
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 5, -1);
    _Alignas(16) uint8_t data[1024];
    char text[4096], small[40];
    set_profile(s);
    prepare(s, &a);
    assert_int_equal(agoq_step_begin(s, 0), AGOQ_OK);
    agoq_packed p = packed_of(agoq_session_bits(s, 0, GATE_UP), data);
    assert_int_equal(agoq_session_saved(s, 0, GATE_UP, &p), AGOQ_OK);
    assert_int_equal(agoq_session_released(s, 0, GATE_UP, &p), AGOQ_OK);
    const agoq_usage usage = {
        .peak_bytes = 3900, .saved_peak_bytes = 208, .reserved_bytes = 5000, .oom_retries = 1};
    assert_int_equal(agoq_step_end(s, &usage), AGOQ_OK);
    const size_t wanted = agoq_session_report(s, text, sizeof text);
    assert_int_equal(wanted, strlen(text));
    static const char *const parts[] = {"plan 1.0.1 since step 0",
                                        "agoqd (connected)",
                                        "mlp_gate_up",
                                        "attn_out",
                                        "0.4",
                                        "predicted",
                                        "97.4 %",
                                        "reserved",
                                        "retried 1"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (!strstr(text, parts[i])) fail_msg("no \"%s\" in:\n%s", parts[i], text);
    }
    assert_int_equal(agoq_session_report(s, small, sizeof small), wanted);
    assert_int_equal(strlen(small), sizeof small - 1);
    assert_memory_equal(small, text, sizeof small - 1);
    assert_int_equal(agoq_session_report(s, NULL, 0), wanted);
    assert_int_equal(agoq_session_report(NULL, small, sizeof small), 0);
    agoq_ledger_entry e;
    agoq_session_ledger(s, -1, -1, &e);
    assert_true(e.live_bytes == 0 && e.peak_bytes == p.layout.bytes && e.peak_bytes16 == 512);
    prepare(s, &b); /* a peak belongs to the plan under which it was counted */
    assert_int_equal(agoq_step_begin(s, 1), AGOQ_OK);
    const agoq_usage less = {.peak_bytes = 1700};
    assert_int_equal(agoq_step_end(s, &less), AGOQ_OK);
    assert_int_equal(s->mail->usage.peak_since_switch_bytes, 1700);
    assert_true(s->mail->usage.peak_bytes >= 1700);
    agoq_session_reset_peaks(s);
    agoq_session_ledger(s, 0, GATE_UP, &e);
    assert_true(e.peak_bytes == 0);
    agoq_session_close(&s);
    slot_fini(&b);
    slot_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(floor_plan),
        cmocka_unit_test(fixed_widths),
        cmocka_unit_test(identity_and_poison),
        cmocka_unit_test(a_rank_alone_takes_a_plan_at_its_boundary),
        cmocka_unit_test(memory_guard),
        cmocka_unit_test(calls_out_of_order),
        cmocka_unit_test(opening_waits_for_nobody),
        cmocka_unit_test(a_forked_child_may_only_close),
        cmocka_unit_test(a_report_for_people),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
