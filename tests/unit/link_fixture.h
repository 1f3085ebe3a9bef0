/* The helper thread's messages without a thread, a socket or a clock: what it sends is tapped, the daemon's
 * messages are handed in, and time is a number. */
#ifndef TESTS_UNIT_LINK_FIXTURE_H
#define TESTS_UNIT_LINK_FIXTURE_H

#include "tests/unit/session_cases.h"

#include "libagoq/link_messages.h"
#include "planner/plan.h"

#define MAX_SENT 64

typedef struct wire_tap {
    Agoq__Envelope *sent[MAX_SENT];
    int n, blocked, under_lock;
    mailbox *mail;
} wire_tap;

typedef struct fixture {
    link_identity me;
    mailbox *mail;
    link_state state;
    wire_tap tap;
    uint64_t daemon_seq;
    int64_t now;
} fixture;

static inline int tap_send(void *user, const uint8_t *data, size_t size) {
    wire_tap *tap = user;
    if (pthread_mutex_trylock(&tap->mail->mutex) == 0)
        pthread_mutex_unlock(&tap->mail->mutex);
    else
        tap->under_lock++; /* never across I/O; asserted at the end, where the lock is free */
    if (tap->blocked) return -1;
    assert_true(tap->n < MAX_SENT);
    assert_int_equal(wire_decode(data, size, WIRE_MAX_RANK_BYTES, &tap->sent[tap->n], NULL), AGOQ_OK);
    tap->n++;
    return 0;
}

static inline void forget(wire_tap *tap) {
    for (int i = 0; i < tap->n; i++) wire_free(tap->sent[i]);
    tap->n = 0;
}

static inline int set_up(void **state) {
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
    f->tap.mail = f->mail;
    f->now = 100000;
    *state = f;
    return 0;
}

static inline int tear_down(void **state) {
    fixture *f = *state;
    const int under_lock = f->tap.under_lock;
    forget(&f->tap);
    mailbox_release(f->mail);
    free(f);
    return under_lock ? -1 : 0;
}

static inline void hear(fixture *f, Agoq__Envelope__BodyCase which, void *body, uint64_t reply_to) {
    size_t size;
    uint8_t *data = case_from_daemon("job", which, body, ++f->daemon_seq, reply_to, &size);
    link_receive(&f->state, data, size, f->now);
    mem_free(data);
}

static inline void welcome(fixture *f, uint64_t term, uint64_t budget_version) {
    Agoq__Welcome m = AGOQ__WELCOME__INIT;
    m.term = term;
    m.budget_version = budget_version;
    m.heartbeat_ms = 1000;
    hear(f, AGOQ__ENVELOPE__BODY_WELCOME, &m, 0);
}

static inline void ack(fixture *f, uint64_t seq) {
    Agoq__Ack m = AGOQ__ACK__INIT;
    hear(f, AGOQ__ENVELOPE__BODY_ACK, &m, seq);
}

static inline int count(const wire_tap *tap, Agoq__Envelope__BodyCase which) {
    int n = 0;
    for (int i = 0; i < tap->n; i++) n += tap->sent[i]->body_case == which;
    return n;
}

static inline const Agoq__Envelope *last(const wire_tap *tap, Agoq__Envelope__BodyCase which) {
    const Agoq__Envelope *found = NULL;
    for (int i = 0; i < tap->n; i++) {
        if (tap->sent[i]->body_case == which) found = tap->sent[i];
    }
    assert_non_null(found);
    return found;
}

/* Runs the timers up to `until`, always at the moment that the link asked for. Returns how often it asked. */
static inline int run_to(fixture *f, int64_t until) {
    int ticks = 0;
    while (f->now < until) {
        const int64_t next = link_tick(&f->state, f->now);
        assert_true(next > f->now);
        f->now = next < until ? next : until;
        ticks++;
    }
    return ticks;
}

static inline void hold_profile(fixture *f) {
    agoq_item items[CASE_ITEMS];
    const agoq_profile said = case_profile(items);
    profile_fini(&f->mail->held);
    assert_int_equal(profile_copy(&said, &f->mail->held), AGOQ_OK);
    f->mail->has_profile = 1;
    f->mail->profile_version++;
}

#endif
