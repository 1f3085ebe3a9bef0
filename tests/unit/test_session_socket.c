/* The helper thread on a real socket: a daemon of the test's own that greets, acknowledges, proposes, talks
 * nonsense, dies and comes back, while a session steps. What it may never do is stop the steps or change a
 * plan between boundaries. */
#include "tests/unit/session_fixture.h"

#include <pthread.h>
#include <time.h>
#include <zmq.h>

#define LIMIT_MS 20000 /* generous: a limit for a hang, not a speed */

typedef struct fake_daemon {
    void *context, *router;
    uint8_t peer[64];
    size_t peer_size;
    uint64_t seq;
    int count[64]; /* messages by kind */
    uint64_t prepared_id, applied_id, hello_applied;
    int64_t applied_step;
    char guard_why[64];
} fake_daemon;

static void daemon_open(fake_daemon *d) {
    char endpoint[128];
    const int no_linger = 0;
    memset(d, 0, sizeof *d);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", socket_path);
    d->context = zmq_ctx_new();
    d->router = zmq_socket(d->context, ZMQ_ROUTER);
    assert_int_equal(zmq_setsockopt(d->router, ZMQ_LINGER, &no_linger, sizeof no_linger), 0);
    assert_int_equal(zmq_bind(d->router, endpoint), 0);
}

static void daemon_close(fake_daemon *d) {
    zmq_close(d->router);
    zmq_ctx_term(d->context);
    unlink(socket_path);
}

static void daemon_send_raw(fake_daemon *d, const void *data, size_t size, int more) {
    assert_true(zmq_send(d->router, d->peer, d->peer_size, ZMQ_SNDMORE) >= 0);
    assert_true(zmq_send(d->router, data, size, more ? ZMQ_SNDMORE : 0) >= 0);
    if (more) assert_true(zmq_send(d->router, "second frame", 12, 0) >= 0);
}

static void daemon_send(fake_daemon *d, Agoq__Envelope__BodyCase which, void *body, uint64_t reply_to) {
    size_t size;
    uint8_t *data = case_from_daemon("default", which, body, ++d->seq, reply_to, &size);
    daemon_send_raw(d, data, size, 0);
    mem_free(data);
}

static void daemon_answer(fake_daemon *d, const Agoq__Envelope *e) {
    Agoq__Welcome hi = AGOQ__WELCOME__INIT;
    Agoq__Ack ack = AGOQ__ACK__INIT;
    hi.term = 1;
    hi.budget_version = 1;
    hi.heartbeat_ms = 1000;
    d->count[e->body_case]++;
    if (e->body_case == AGOQ__ENVELOPE__BODY_HELLO) {
        d->hello_applied = e->hello->applied_id;
        daemon_send(d, AGOQ__ENVELOPE__BODY_WELCOME, &hi, e->seq);
    }
    if (e->body_case == AGOQ__ENVELOPE__BODY_PROFILE) daemon_send(d, AGOQ__ENVELOPE__BODY_ACK, &ack, e->seq);
    if (e->body_case == AGOQ__ENVELOPE__BODY_PREPARED) d->prepared_id = e->prepared->id;
    if (e->body_case == AGOQ__ENVELOPE__BODY_REPORT && e->report->guarded)
        snprintf(d->guard_why, sizeof d->guard_why, "%s", e->report->guard_why);
    if (e->body_case == AGOQ__ENVELOPE__BODY_APPLIED) {
        d->applied_id = e->applied->id;
        d->applied_step = e->applied->step;
        daemon_send(d, AGOQ__ENVELOPE__BODY_ACK, &ack, e->seq);
    }
}

static void daemon_serve(fake_daemon *d) {
    for (;;) {
        uint8_t data[WIRE_MAX_RANK_BYTES];
        const int n = zmq_recv(d->router, d->peer, sizeof d->peer, ZMQ_DONTWAIT);
        if (n < 0) return;
        d->peer_size = (size_t)n;
        const int size = zmq_recv(d->router, data, sizeof data, 0);
        assert_in_range(size, 1, sizeof data);
        Agoq__Envelope *e;
        assert_int_equal(wire_decode(data, (size_t)size, WIRE_MAX_RANK_BYTES, &e, NULL), AGOQ_OK);
        daemon_answer(d, e);
        wire_free(e);
    }
}

/* Steps the session and serves the daemon until `*what` is as wanted. Returns the next step. */
static int64_t step_until(agoq_session *s, fake_daemon *d, int64_t number, const uint64_t *what,
                          uint64_t wanted) {
    const int64_t until = clock_ms() + LIMIT_MS;
    const struct timespec pause = {0, 1000000};
    while (*what != wanted) {
        if (clock_ms() > until) fail_msg("nothing came within %d ms", LIMIT_MS);
        assert_int_equal(agoq_step_begin(s, number), AGOQ_OK);
        const int bits = agoq_session_bits(s, 0, GATE_UP);
        if (d) daemon_serve(d);
        nanosleep(&pause, NULL);
        assert_int_equal(agoq_session_bits(s, 0, GATE_UP), bits); /* nothing changes inside of a step */
        assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
        number++;
    }
    return number;
}

static int is_connected(const agoq_session *s) {
    agoq_plan_state now;
    agoq_session_state(s, &now);
    return now.connected;
}

static void a_daemon_comes_proposes_dies_and_comes_back(void **state) {
    (void)state;
    fake_daemon d;
    slot a = case_plan(plan_id_make(1, 0, 1), 6, -1), b = case_plan(plan_id_make(1, 0, 2), 5, -1);
    Agoq__Prepare prepare_a = case_prepare(&a, 1), prepare_b = case_prepare(&b, 1);
    Agoq__Cancel cancel = AGOQ__CANCEL__INIT;
    cancel.id = plan_id_make(9, 9, 9);
    agoq_session *s = open_daemon(0, 1); /* before there is a daemon */
    set_profile(s);
    daemon_open(&d);
    uint64_t profiles = 0;
    int64_t n = 0;
    for (const int64_t until = clock_ms() + LIMIT_MS; !profiles && clock_ms() < until;) {
        n = step_until(s, &d, n, &d.applied_id, 0);
        daemon_serve(&d);
        profiles = (uint64_t)d.count[AGOQ__ENVELOPE__BODY_PROFILE];
    }
    assert_true(profiles && d.count[AGOQ__ENVELOPE__BODY_HELLO]);
    daemon_send(&d, AGOQ__ENVELOPE__BODY_PREPARE, &prepare_a, 0);
    n = step_until(s, &d, n, &d.prepared_id, a.id);
    n = step_until(s, &d, n, &d.applied_id, a.id);
    assert_true(applied(s) == a.id && is_connected(s) && d.applied_step < n);

    /* Nonsense: garbage, two frames (the first a good message), and a frame that is too long, which costs the
     * connection and nothing else. */
    size_t size;
    uint8_t *good = case_from_daemon("default", AGOQ__ENVELOPE__BODY_PREPARE, &prepare_b, ++d.seq, 0, &size);
    static uint8_t oversize[WIRE_MAX_RANK_BYTES + 1];
    daemon_send_raw(&d, "garbage", 7, 0);
    daemon_send_raw(&d, good, size, 1);
    daemon_send(&d, AGOQ__ENVELOPE__BODY_CANCEL, &cancel, 0); /* answered after all of these were read */
    for (const int64_t until = clock_ms() + LIMIT_MS; !d.count[AGOQ__ENVELOPE__BODY_CANCELLED];) {
        assert_true(clock_ms() < until);
        step(s, n++);
        daemon_serve(&d);
    }
    assert_true(d.prepared_id == a.id && applied(s) == a.id);
    mem_free(good);
    const int hellos = d.count[AGOQ__ENVELOPE__BODY_HELLO];
    daemon_send_raw(&d, oversize, sizeof oversize, 0);
    for (const int64_t until = clock_ms() + LIMIT_MS; d.count[AGOQ__ENVELOPE__BODY_HELLO] == hellos;) {
        assert_true(clock_ms() < until);
        step(s, n++);
        daemon_serve(&d);
    }
    assert_true(d.hello_applied == a.id);

    /* The daemon is gone: the plan stays; the guard works; then another one hears of both. */
    daemon_close(&d);
    const uint64_t never = 0;
    n = step_until(s, NULL, n, &never, 0);
    assert_int_equal(agoq_session_pressure(s, "short of memory"), AGOQ_OK);
    for (int i = 0; i < 100; i++) step(s, n++);
    assert_true(applied(s) == a.id && agoq_session_bits(s, 0, GATE_UP) == 4);
    daemon_open(&d);
    for (const int64_t until = clock_ms() + LIMIT_MS; !d.guard_why[0];) {
        assert_true(clock_ms() < until);
        step(s, n++);
        daemon_serve(&d);
    }
    assert_string_equal(d.guard_why, "short of memory");
    assert_true(d.hello_applied == a.id && d.count[AGOQ__ENVELOPE__BODY_PROFILE] > 0);
    daemon_send(&d, AGOQ__ENVELOPE__BODY_PREPARE, &prepare_b, 0);
    n = step_until(s, &d, n, &d.applied_id, b.id);
    assert_int_equal(agoq_session_bits(s, 0, GATE_UP), 5);
    agoq_session_close(&s);
    for (const int64_t until = clock_ms() + LIMIT_MS; !d.count[AGOQ__ENVELOPE__BODY_BYE];) {
        assert_true(clock_ms() < until);
        daemon_serve(&d);
    }
    daemon_close(&d);
    slot_fini(&a);
    slot_fini(&b);
}

/* A daemon that accepts and never reads must not hold up open, steps or close. */
static void a_daemon_that_hangs(void **state) {
    (void)state;
    fake_daemon d;
    const int64_t before = clock_ms();
    daemon_open(&d);
    for (int i = 0; i < 5; i++) {
        agoq_session *s = open_daemon(0, 1);
        set_profile(s);
        for (int k = 0; k < 200; k++) step(s, k);
        assert_int_equal(agoq_session_pressure(s, "x"), AGOQ_OK);
        agoq_session_close(&s);
    }
    assert_true(clock_ms() - before < LIMIT_MS);
    daemon_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_daemon_comes_proposes_dies_and_comes_back),
        cmocka_unit_test(a_daemon_that_hangs),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
