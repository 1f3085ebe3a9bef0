/* The helper thread: it alone owns the ZeroMQ socket to agoqd and shares nothing but the mailbox. It says
 * HELLO, keeps PROFILE and APPLIED repeating until they are acknowledged, reports at most twice a second (the
 * memory guard at once), stores plans that PREPARE brings (after checking every byte of them) and answers. It
 * never applies a plan and never blocks the trainer: no daemon, a dead one or a hostile one only mean that no
 * new plan comes. */
#ifndef LIBAGOQ_LINK_H
#define LIBAGOQ_LINK_H

#include <stdint.h>

#include "libagoq/mailbox.h"

/* Who this rank is, in every HELLO. */
typedef struct link_identity {
    char socket[108]; /* as in sockaddr_un */
    char job[WIRE_MAX_JOB + 1], device[WIRE_MAX_DEVICE + 1], host[WIRE_MAX_DEVICE + 1];
    uint8_t sender[16];
    int32_t rank, world, stage, n_stages, dp, n_dp, tp, n_tp;
} link_identity;

typedef struct link_thread link_thread;

/* Starts the thread; the mailbox gets a second owner. E_NOMEM, E_IO. */
AGOQ_MUST_USE agoq_status link_start(const link_identity *identity, mailbox *mail, link_thread **out);
/* Something in the mailbox is worth telling now. Any thread, also without the lock. */
void link_wake(const link_thread *l);
/* Says BYE and waits at most 200 ms; a thread that is slower is left to end alone. NULL-safe, sets NULL. */
void link_stop(link_thread **l);
/* In a forked child: frees memory, leaves the parent's socket alone. */
void link_free_in_child(link_thread **l);

#endif
