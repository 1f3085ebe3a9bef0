/* The plan cycle as a pure state machine: from a plan that was made to a plan that every rank runs, one at a
 * time (S14). IDLE -> PREPARING (PREPARE sent) -> ARMED (all ranks hold it) -> IDLE (all applied it) a
 * time-out, a refusal or a change of ranks: ABORT -> IDLE, next try after a back-off that doubles The caller
 * tells it what happened and does what it returns. PREPARING is bounded by a time-out. ARMED is not, as a
 * step may take minutes, except while a rank is silent. */
#ifndef AGOQD_CYCLE_H
#define AGOQD_CYCLE_H

#include <stdint.h>

#include "agoq/status.h"

#define CYCLE_BUSY_RETRY_MS  50   /* after NACK "busy": the vote is read at the rank's next step boundary */
#define CYCLE_RESEND_MS      1000 /* a PREPARE that nobody answered is sent again */
#define CYCLE_BACKOFF_MS     1000 /* first back-off after an abort; doubles up to the next line */
#define CYCLE_BACKOFF_MAX_MS 30000

typedef enum cycle_state { CYCLE_IDLE, CYCLE_PREPARING, CYCLE_ARMED } cycle_state;

typedef enum cycle_rank_state {
    CYCLE_RANK_SENT, /* PREPARE is out, or due at resend_ms */
    CYCLE_RANK_PREPARED,
    CYCLE_RANK_APPLIED
} cycle_rank_state;

typedef struct cycle_rank {
    cycle_rank_state state;
    int64_t resend_ms;
} cycle_rank;

typedef enum cycle_action {
    CYCLE_NOTHING,
    CYCLE_NOW_ARMED, /* every rank holds the plan */
    CYCLE_DONE,      /* every rank runs it; the cycle is idle again */
    CYCLE_ABORT      /* send ABORT to all; the cycle is idle again, `reason` says why */
} cycle_action;

typedef struct cycle {
    cycle_state state;
    uint64_t id, hash;
    uint32_t n_ranks;
    cycle_rank *ranks;                      /* [n_ranks] */
    int64_t started_ms, armed_ms, retry_ms; /* retry_ms: not before, after an abort */
    int64_t timeout_ms, silent_since_ms;    /* -1: no rank is silent */
    int64_t backoff_ms;
    uint64_t n_done, n_aborts;
    char reason[256];
} cycle;

void cycle_init(cycle *c, int64_t timeout_ms);
void cycle_fini(cycle *c);
/* From IDLE only (E_STATE). The caller has sent, or will send, PREPARE to every rank: see cycle_due. */
AGOQ_MUST_USE agoq_status cycle_start(cycle *c, uint64_t id, uint64_t hash, uint32_t n_ranks, int64_t now);
/* Ranks whose PREPARE is due now, one per call, and marks it sent; -1: none (left). */
int cycle_due(cycle *c, int64_t now);

cycle_action cycle_prepared(cycle *c, uint32_t rank, uint64_t id, uint64_t hash, int64_t now);
cycle_action cycle_applied(cycle *c, uint32_t rank, uint64_t id, int64_t now);
/* reason: NackReason of the wire. */
cycle_action cycle_nack(cycle *c, uint32_t rank, uint64_t id, uint32_t reason, const char *text, int64_t now);
/* A report: what the rank holds, newest knowledge; a plan it no longer holds is sent again. */
cycle_action cycle_holds(cycle *c, uint32_t rank, uint64_t applied, uint64_t prepared, uint64_t voted,
                         int64_t now);
/* The rank has reconnected: send PREPARE again. */
void cycle_resend(cycle *c, uint32_t rank, int64_t now);
/* A rank joined, was replaced or is gone. */
cycle_action cycle_ranks_changed(cycle *c, const char *reason, int64_t now);
/* Something better is known (a cut budget): stop at once, without back-off. */
cycle_action cycle_supersede(cycle *c, const char *reason, int64_t now);
cycle_action cycle_tick(cycle *c, int any_silent, int64_t now);

/* 1: a plan may be proposed now. */
int cycle_ready(const cycle *c, int64_t now);
/* An operator asked, or ranks have changed: forget the back-off. */
void cycle_hurry(cycle *c);
int64_t cycle_deadline(const cycle *c); /* INT64_MAX: nothing due */

#endif
