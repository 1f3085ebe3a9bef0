/* The ranks of the job: who they are, what they said last, whether they still live. One job at a time; its
 * shape is that of its first rank. Pure: `now` and whether a process exists are given. A rank that is silent
 * is still there (S9): only BYE or a verified exit frees its place. A restarted daemon starts with the stored
 * roster, and a rank of it that has not said HELLO again is `expected`: nothing is proposed until it has, or
 * is gone (S13). */
#ifndef AGOQD_SESSIONS_H
#define AGOQD_SESSIONS_H

#include "agoqd/peer.h"
#include "agoqd/held.h"
#include "proto/wire.h"

typedef enum session_state {
    SESSION_NONE, /* never heard of */
    SESSION_EXPECTED,
    SESSION_LIVE,
    SESSION_SILENT,
    SESSION_GONE
} session_state;

/* Who a rank is; also what is stored of it. */
typedef struct session_who {
    int32_t rank, stage, dp, tp;
    char device[WIRE_MAX_DEVICE + 1], host[WIRE_MAX_DEVICE + 1];
    uint64_t pid, start_time; /* as this machine sees the process */
    uint64_t applied_id;
} session_who;

/* What a rank said last. */
typedef struct session_now {
    uint64_t seq;               /* of the newest message that carried any of this */
    int64_t step, applied_step; /* applied_step: the first step under the applied plan; -1: not said */
    uint64_t applied_hash, prepared_id, vote_id, budget_version;
    uint64_t peak_bytes, saved_peak_bytes, reserved_bytes, peak_since_switch_bytes, disagreements;
    int guarded;
    char guard_why[256];
} session_now;

typedef struct session {
    session_state state;
    session_who who;
    session_now now;
    uint8_t incarnation[16], replaced[16]; /* this process, and the one before it */
    uint64_t held_seq;
    peer peer;
    uint64_t oom_retries; /* of this process: the sum over its REPORTs */
    int64_t heard_ms, gone_ms;
    int guard_noted; /* the daemon has answered this guard, raised under the plan guard_noted_id */
    uint64_t guard_noted_id;
    int has_held;
    held held;
} session;

typedef struct sessions {
    char job[WIRE_MAX_JOB + 1]; /* "": none yet */
    int32_t world, n_stages, n_dp, n_tp;
    session *ranks; /* [world] */
} sessions;

void sessions_fini(sessions *t);
/* Places for `world` ranks, all SESSION_NONE; what was there is freed. E_NOMEM leaves it as it was. */
AGOQ_MUST_USE agoq_status sessions_reset(sessions *t, const char *job, int32_t world, int32_t n_stages,
                                         int32_t n_dp, int32_t n_tp);

typedef enum sessions_change {
    SESSIONS_SAME,    /* same incarnation again: a reconnect */
    SESSIONS_JOINED,  /* first, or a new process in the place of a gone one */
    SESSIONS_REPLACED /* the same process under a new incarnation, without a goodbye in between */
} sessions_change;
/* HELLO, first half: may it come in? 0: *s is its place; else a WIRE_REFUSE_* code, with the reason in text.
 * only_job "": any. Changes nothing but, for a new job, the whole table. Processes that have exited must be
 * known as gone (sessions_gone) before: a place is kept while its process may be alive. */
int sessions_admit(sessions *t, const Agoq__Envelope *e, const peer *from, const char *only_job,
                   uint32_t max_ranks, session **s, char *text, size_t text_size);
int sessions_knows(const session *s, const Agoq__Envelope *e); /* a reconnect, within this daemon's life? */
/* Second half: s, which sessions_admit gave, is now what e says. */
sessions_change sessions_accept(session *s, const Agoq__Envelope *e, const peer *from, int64_t now);

/* The session that sent e (rank and incarnation match), marked as heard; NULL: unknown.
 * *woke: it was silent. */
session *sessions_heard(sessions *t, const Agoq__Envelope *e, const peer *from, int64_t now, int *woke);
session *sessions_at(const sessions *t, int32_t rank); /* NULL: no such place */
void sessions_gone(session *s, int64_t now);

/* State that a message carries; older than what is known: ignored, returns 0. */
int session_report(session *s, uint64_t seq, const Agoq__Report *m);
int session_cancelled(session *s, uint64_t seq, const Agoq__Cancelled *m);
int session_prepared(session *s, uint64_t seq, uint64_t id, uint64_t budget_version);
int session_applied(session *s, uint64_t seq, const Agoq__Applied *m);

typedef struct sessions_counts {
    uint32_t live, silent, gone, expected, none,
        profiled; /* profiled: live, with at least one observed step */
} sessions_counts;
sessions_counts sessions_count(const sessions *t);
int sessions_present(const session *s);   /* holds memory as far as we know: expected, live or silent */
int64_t sessions_step(const sessions *t); /* largest known step of a present rank; -1 */
int64_t
sessions_applied_step(const sessions *t); /* largest first step under its plan, of a present rank; -1 */

const char *session_state_name(session_state state);

#endif
