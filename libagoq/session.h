/* The session's own state, shared by the session_*.c files and nobody else. One thread uses it, the caller's;
 * what the helper thread needs is in the mailbox. */
#ifndef LIBAGOQ_SESSION_H
#define LIBAGOQ_SESSION_H

#include <sys/types.h>

#include "agoq/agoq.h"
#include "libagoq/ledger.h"
#include "libagoq/link.h"
#include "libagoq/mailbox.h"
#include "libagoq/observe.h"
#include "libagoq/planfile.h"

typedef enum session_source { SOURCE_FLOOR, SOURCE_FIXED, SOURCE_FILE, SOURCE_DAEMON } session_source;

/* Copied from the configuration at open. */
typedef struct session_setup {
    session_source source;
    agoq_mode mode;
    uint32_t poison_roles;
    uint8_t fixed_bits[AGOQ_N_ROLES];
    uint64_t fixed_id; /* stands for fixed_bits in the vote */
    link_identity me;
} session_setup;

/* Widths in force, looked up by the caller for every tensor: rebuilt when plan, guard or profile changes.
 * Layers beyond the table (no profile yet, or not this rank's) are worked out on each call. */
typedef struct session_widths {
    uint8_t *bits;  /* n_layers rows of AGOQ_N_ROLES */
    uint8_t *least; /* smallest width that the profile's item allows; 0: no item */
    int32_t n_layers;
} session_widths;

typedef struct session_ballot {
    agoq_vote_comm comm;
    int attached, broken; /* broken: a vote failed; the plan stays until the next attach */
    uint64_t words[VOTE_WORDS];
} session_ballot;

typedef struct fork_mark {
    volatile int *page; /* 1 here, 0 in a forked child; NULL: the kernel cannot, pid is compared instead */
    pid_t pid;
} fork_mark;

struct agoq_session {
    session_setup setup;
    fork_mark mark;
    mailbox *mail;
    link_thread *link; /* NULL unless the daemon is the source */
    ledger ledger;
    observe seen;
    session_widths widths;
    session_ballot ballot;
    planfile file;
    planfile_writer record;
    slot standin;             /* id alone: the floor plan, or fixed_bits */
    const slot *current;      /* the plan in force */
    int64_t step, since_step; /* -1: before the first */
    int in_step, guarded;
    int refuted; /* a step exceeded what the plan file predicts: it was written for another job */
    uint64_t switches, disagreements;
    agoq_usage last_usage;
    uint64_t peak_since_switch;
};

/* session_config.c */
AGOQ_MUST_USE agoq_status session_setup_fill(const agoq_session_config *config, session_setup *setup);

/* session.c: E_INVAL for NULL, E_STATE in a forked child. `call` names the caller in agoq_last_error. */
AGOQ_MUST_USE agoq_status session_check(const agoq_session *s, const char *call);

/* session_widths.c */
int session_width(const agoq_session *s, int layer, int role); /* not from the table */
void session_widths_rebuild(agoq_session *s);

/* session_step.c: the plan in force is now `next`, from `step` on. Not locked. */
void session_switch(agoq_session *s, const slot *next, int64_t step);

#endif
