/* The daemon without its sockets, clock and disk: messages and ticks come in with `now`, messages go out
 * through core_io. That is all a test needs to run thousands of ranks on virtual time. After every event the
 * core compares what should be with what is (core_decide) and acts at once: nothing waits for the next tick
 * but retries and time-outs. The trade-off: the planner runs again after each event that touched its inputs;
 * it takes well under a millisecond. */
#ifndef AGOQD_CORE_H
#define AGOQD_CORE_H

#include <stddef.h>
#include <stdint.h>

#include "agoqd/conf.h"
#include "agoqd/peer.h"

typedef struct core core;

/* The outside world. Every function may fail; the core goes on. */
typedef struct core_io {
    void *user;
    /* 0 sent (or queued), -1 the peer is gone or its queue is full. `data` is copied. */
    int (*send)(void *user, const peer *to, const uint8_t *data, size_t size);
    /* Durable on return (AGOQ_OK), else untouched. */
    agoq_status (*store)(void *user, const uint8_t *data, size_t size);
    /* 1: the process still exists, 0: it has verifiably exited. */
    int (*alive)(void *user, uint64_t pid, uint64_t start_time);
    uint64_t (*start_time)(void *user, uint64_t pid); /* 0: cannot tell */
    int64_t (*wall_ms)(void *user);                   /* for history only */
    int64_t uid, gid; /* besides root, who may change budgets; gid -1: no group */
    uint64_t pid;     /* shown in status */
    int one_job;      /* the first job that connects is the only one */
} core_io;

/* stored: what the last life left (NULL: first start). Raises the term and stores it before anything else: a
 * failing disk is E_IO. E_FORMAT: the stored state is damaged; why says how. conf is borrowed until
 * core_free. */
AGOQ_MUST_USE agoq_status core_new(const conf *config, const core_io *io, const uint8_t *stored,
                                   size_t stored_size, int64_t now, core **out, const char **why);
void core_free(core **c);

void core_receive(core *c, const peer *from, const uint8_t *data, size_t size, int64_t now);
void core_rejected(core *c, const char *why,
                   int64_t now); /* a message that the transport itself threw away */
void core_tick(core *c, int64_t now);
int64_t core_deadline(const core *c, int64_t now); /* when core_tick is due at the latest */

#endif
