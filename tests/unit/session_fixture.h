/* A session in a test: its folder, the daemon that hands messages to its mailbox, and the other ranks as one
 * partner whose votes a test sets. */
#ifndef TESTS_UNIT_SESSION_FIXTURE_H
#define TESTS_UNIT_SESSION_FIXTURE_H

#include "tests/unit/session_cases.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "libagoq/link_messages.h"
#include "libagoq/session.h"

#define GATE_UP AGOQ_ROLE_MLP_GATE_UP
#define OUT     AGOQ_ROLE_ATTN_OUT

static char folder[64], plan_path[96], record_path[96], socket_path[96];

static inline int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/agoq-session-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(plan_path, sizeof plan_path, "%s/plan", folder);
    snprintf(record_path, sizeof record_path, "%s/record", folder);
    snprintf(socket_path, sizeof socket_path, "%s/nobody.sock", folder);
    return 0;
}

static inline int remove_folder(void **state) {
    (void)state;
    unlink(plan_path);
    unlink(record_path);
    return rmdir(folder);
}

static inline agoq_session *open_session(const agoq_session_config *config) {
    agoq_session *s = NULL;
    assert_int_equal(agoq_session_open(config, &s), AGOQ_OK);
    assert_non_null(s);
    return s;
}

static inline agoq_session *open_floor(void) {
    const agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    return open_session(&config);
}

/* A session whose plans come from a daemon that is not there. */
static inline agoq_session *open_daemon(int rank, int world) {
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    config.socket = socket_path;
    config.rank = rank;
    config.world = world;
    return open_session(&config);
}

static inline void set_profile(agoq_session *s) {
    agoq_item items[CASE_ITEMS];
    const agoq_profile said = case_profile(items);
    assert_int_equal(agoq_session_profile(s, &said), AGOQ_OK);
}

/* PREPARE arrives, as the helper thread would store it. */
static inline int nowhere(void *user, const uint8_t *data, size_t size) {
    (void)user;
    (void)data;
    (void)size;
    return 0;
}

static inline void daemon_says(agoq_session *s, Agoq__Envelope__BodyCase which, void *body) {
    link_state link;
    link_identity me = s->setup.me;
    size_t size;
    link_state_init(&link, &me, s->mail, 0);
    link.send = nowhere;
    link.welcomed = 1;
    memset(link.daemon, CASE_DAEMON_ID, sizeof link.daemon);
    uint8_t *data = case_from_daemon("default", which, body, 1, 0, &size);
    link_receive(&link, data, size, clock_ms());
    mem_free(data);
}

static inline void prepare(agoq_session *s, const slot *p) {
    Agoq__Prepare m = case_prepare(p, 1);
    daemon_says(s, AGOQ__ENVELOPE__BODY_PREPARE, &m);
}

static inline uint64_t applied(const agoq_session *s) {
    agoq_plan_state state;
    agoq_session_state(s, &state);
    return state.plan_id;
}

static inline void step(agoq_session *s, int64_t number) {
    assert_int_equal(agoq_step_begin(s, number), AGOQ_OK);
    assert_int_equal(agoq_step_end(s, NULL), AGOQ_OK);
}

/* The other ranks, as one partner whose words a test sets. */
typedef struct partner {
    uint64_t words[VOTE_WORDS], *buf;
    agoq_status start_status, finish_status;
    int started, finished, destroyed;
    int garbage; /* what comes back is no reduction at all */
} partner;

static inline agoq_status partner_start(void *ctx, uint64_t buf[6]) {
    partner *p = ctx;
    p->started++;
    p->buf = buf;
    return p->start_status;
}

static inline agoq_status partner_finish(void *ctx) {
    partner *p = ctx;
    p->finished++;
    for (int i = 0; p->finish_status == AGOQ_OK && i < VOTE_WORDS; i++) {
        if (p->words[i] < p->buf[i]) p->buf[i] = p->words[i];
    }
    if (p->garbage) memset(p->buf, 0xff, VOTE_WORDS * sizeof *p->buf);
    return p->finish_status;
}

static inline void partner_destroy(void *ctx) {
    ((partner *)ctx)->destroyed++;
}

static inline void partner_holds(partner *p, uint64_t prepared, uint64_t hash, uint64_t applied_id) {
    const uint64_t words[VOTE_WORDS] = {prepared, ~prepared, hash, ~hash, applied_id, ~applied_id};
    memcpy(p->words, words, sizeof words);
}

static inline agoq_vote_comm comm_of(partner *p) {
    return (agoq_vote_comm){p, partner_start, partner_finish, partner_destroy};
}

static inline agoq_packed packed_of(int bits, void *data) {
    agoq_packed p = {.data = data};
    assert_int_equal(agoq_layout_make(bits, 4, 64, &p.layout), AGOQ_OK);
    return p;
}

#endif
