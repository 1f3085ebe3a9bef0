/* Bounded encode and decode of envelopes: the only way in and out of the wire. A decoded envelope has passed
 * every rule of docs/PROTOCOL.md (length and allocation caps, magic, versions, counts, enums, strings, finite
 * numbers), so handlers never validate again. The trade-off: one more pass over each message; messages are
 * few and small. */
#ifndef PROTO_WIRE_H
#define PROTO_WIRE_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/status.h"
#include "agoq.pb-c.h"

#define WIRE_MAGIC 0x51474f41u
#define WIRE_MAJOR 1
#define WIRE_MINOR 0

#define WIRE_MAX_RANK_BYTES (64 * 1024)   /* rank <-> daemon */
#define WIRE_MAX_CTL_BYTES  (256 * 1024)  /* agoqctl <-> daemon */
#define WIRE_MAX_NODE_BYTES (1024 * 1024) /* daemon <-> daemon */

#define WIRE_MAX_ITEMS          4096
#define WIRE_MAX_CHUNKS         64
#define WIRE_MAX_STRING         1023
#define WIRE_MAX_JOB            63
#define WIRE_MAX_DEVICE         127
#define WIRE_MAX_STAGES         1024
#define WIRE_MAX_PLAN           (60 * 1024)         /* canonical bytes of a plan */
#define WIRE_MAX_AMOUNT         ((uint64_t)1 << 56) /* of bytes: budgets, peaks */
#define WIRE_MAX_TERM           0xffffff
#define WIRE_MAX_BUDGET_VERSION ((uint64_t)1 << 62)

/* Refuse.reason. HELLO_FIRST: the daemon does not know this (rank, sender), for instance because it has
 * restarted: say HELLO again, on the same socket. The others stay as they are until the rank changes
 * something. */
enum {
    WIRE_REFUSE_HELLO_FIRST = 1,
    WIRE_REFUSE_JOB = 2,      /* another job is running here */
    WIRE_REFUSE_SHAPE = 3,    /* world, stages, dp or tp differ from the job's other ranks */
    WIRE_REFUSE_LIMIT = 4,    /* more ranks than the daemon is configured for */
    WIRE_REFUSE_DEVICE = 5,   /* the device belongs to another rank */
    WIRE_REFUSE_PROFILE = 6,  /* the profile contradicts itself or the stage's other ranks */
    WIRE_REFUSE_PLAN = 7,     /* the applied plan in HELLO is malformed or does not have its hash */
    WIRE_REFUSE_REPLACED = 8, /* a newer process holds this rank's place */
    WIRE_REFUSE_TAKEN = 9,    /* an older process holds this rank's place and may be alive */
    WIRE_REFUSE_PAST = 10     /* it has heard a term or a budget version that no daemon can have reached */
};

/* What the sender puts in front of every message. */
typedef struct wire_header {
    char job[WIRE_MAX_JOB + 1];
    uint8_t sender[16];
    uint32_t node;
    int32_t rank;
    uint64_t seq, reply_to;
} wire_header;

/* Packs header + body: `body` is a message struct of the case that `which` names (AGOQ__ENVELOPE__BODY_...).
 * *data is allocated (mem_free). E_INVAL: breaks a rule that wire_decode would refuse it for; E_LIMIT: longer
 * than max_bytes. */
AGOQ_MUST_USE agoq_status wire_encode(const wire_header *header, Agoq__Envelope__BodyCase which, void *body,
                                      size_t max_bytes, uint8_t **data, size_t *size);
/* *why (may be NULL) is set on failure to a static string, for logs and counters. E_FORMAT, E_VERSION (other
 * major), E_LIMIT (too long or amplifies), E_NOMEM. Free with wire_free. */
AGOQ_MUST_USE agoq_status wire_decode(const uint8_t *data, size_t size, size_t max_bytes,
                                      Agoq__Envelope **envelope, const char **why);
void wire_free(Agoq__Envelope *envelope); /* NULL-safe */

/* Makes any bytes a legal string of the wire: control characters and broken UTF-8 become '?', and it is cut,
 * between characters, to WIRE_MAX_STRING bytes and to what fits `to`. src NULL: "". Returns `to`. */
char *wire_text(char *to, size_t capacity, const char *src);

/* The rules that protobuf cannot state (proto/wire_check.c). NULL: legal; else why not, a static string. */
const char *wire_check(const Agoq__Envelope *envelope);
/* Length of the UTF-8 character at s (1..4), 0 if it is none. */
int wire_utf8_length(const char *s);

#endif
