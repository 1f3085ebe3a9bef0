/* Messages of the helper thread: what goes out and when, what comes in and what it changes. No socket, thread
 * or clock in here: `now` is given and bytes leave through `send`, so that tests drive it without a daemon.
 */
#ifndef LIBAGOQ_LINK_MESSAGES_H
#define LIBAGOQ_LINK_MESSAGES_H

#include "libagoq/link.h"

#define LINK_SEQS 8

/* Sequence numbers under which one thing was sent, newest last: an ACK of any of them will do, since an
 * answer may take longer than the repeat interval. */
typedef struct link_seqs {
    uint64_t seq[LINK_SEQS];
    int n;
    uint64_t version; /* of what was sent */
} link_seqs;

typedef struct link_state {
    const link_identity *me;
    mailbox *mail;
    /* 0: queued; -1: not now (no connection, or its queue is full): try again later. Takes a copy. */
    int (*send)(void *user, const uint8_t *data, size_t size);
    void *user;
    uint64_t seq;
    int welcomed;
    uint8_t daemon[16]; /* its incarnation */
    int64_t hello_ms, heard_ms, report_ms, profile_ms,
        applied_ms; /* of the last time; INT64_MIN / 2: never */
    int64_t report_every_ms;
    link_seqs profile_seqs, applied_seqs;
    uint64_t start_time; /* of this process, field 22 of /proc/PID/stat; 0: unknown */
    uint32_t rejected, refused;
} link_state;

void link_state_init(link_state *s, const link_identity *me, mailbox *mail, uint64_t start_time);
void link_connected(link_state *s);    /* a new connection: HELLO is due at once */
void link_disconnected(link_state *s); /* nothing but HELLO is sent until WELCOME */
/* Sends what is due. Returns when to call again at the latest (clock_ms). */
int64_t link_tick(link_state *s, int64_t now);
void link_receive(link_state *s, const uint8_t *data, size_t size, int64_t now);
void link_bye(link_state *s);

/* Between link_send.c and link_receive.c. 0: queued. */
int link_say(link_state *s, Agoq__Envelope__BodyCase which, void *body, uint64_t reply_to);
int link_say_cancelled(link_state *s, uint64_t reply_to);

#endif
