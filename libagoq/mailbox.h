/* All that the session's thread and the helper thread share, behind one mutex that is held for a copy or two
 * and never across I/O, so that a step boundary costs one uncontended lock. Exists without a helper thread as
 * well: then nobody contends. Two owners at most: whoever releases last frees, so that a helper that is slow
 * to end can be left behind.
 *
 * Who writes what: the session writes `held`, `applied` and the counters at step boundaries; the helper
 * writes `prepared` and `heard_ms` when messages arrive. The session alone turns a prepared plan into the
 * applied one. */
#ifndef LIBAGOQ_MAILBOX_H
#define LIBAGOQ_MAILBOX_H

#include <pthread.h>
#include <stdint.h>

#include "libagoq/profile.h"
#include "libagoq/slot.h"
#include "libagoq/vote.h"

#define MAILBOX_WHY_BYTES 128
#define CONNECTED_MS      3000

/* What REPORT says. Peaks are maxima since the last report. */
typedef struct mailbox_usage {
    int64_t step; /* -1: before the first */
    uint64_t peak_bytes, saved_peak_bytes, reserved_bytes, peak_since_switch_bytes;
    uint32_t oom_retries;
    uint64_t disagreements;
    int guarded;
    char guard_why[MAILBOX_WHY_BYTES];
} mailbox_usage;

typedef struct mailbox {
    pthread_mutex_t mutex;
    pthread_cond_t ended_cond;
    int owners;
    int stop, ended, left_behind; /* the helper shall end; it has; nobody waits for it any more */

    vote vote;
    slot prepared; /* of vote.prepared_id, or stale when that is another */
    slot applied;  /* of vote.applied_id when the source of plans is the daemon */
    uint64_t n_switches, applied_step;
    uint64_t switches_acked;

    profile held;
    int has_profile;
    uint64_t profile_version, profile_acked; /* 0: nothing to tell yet */

    mailbox_usage usage;
    int usage_news;     /* something in usage changed since the last report */
    int urgent;         /* the guard: REPORT is sent at once */
    int owes_cancelled; /* CANCELLED named a running vote: tell again when it was read */
    int64_t heard_ms;   /* clock_ms of the last message of the daemon; 0: never */
} mailbox;

/* NULL: out of memory. One owner. */
mailbox *mailbox_new(void);
void mailbox_release(mailbox *m);
/* In a forked child. If a thread that does not exist there held the mutex, the contents may be half changed
 * and are left alone. */
void mailbox_free_in_child(mailbox *m);
/* Frees the bytes of a prepared plan that the vote has forgotten. Locked. */
void mailbox_tidy(mailbox *m);

#endif
