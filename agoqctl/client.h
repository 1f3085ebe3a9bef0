/* One question, one answer, over the daemon's Unix socket. ZeroMQ connects lazily and retries in silence, so
 * a plain connect(2) goes first: it tells "no such socket", "nobody listens" and "not permitted" apart at
 * once. */
#ifndef AGOQCTL_CLIENT_H
#define AGOQCTL_CLIENT_H

#include <stddef.h>
#include <stdint.h>

#include "proto/wire.h"

typedef struct ctl_client ctl_client;

/* An exit code; on failure error says which socket was tried, why it failed and what to try next. socket is
 * copied. */
int client_open(const char *socket, ctl_client **client, char *error, size_t error_size);
void client_close(ctl_client **client); /* NULL-safe, sets NULL */
/* Sends request, waits for its answer. *reply is the whole envelope (wire_free), its body a CtlReply with
 * code 0. A reply with another code is a failure with that exit code; *reply is then set too, for the levers
 * it may hold, or all but what had no room (CTL_PARTIAL). */
int client_ask(ctl_client *client, Agoq__CtlRequest *request, uint64_t timeout_ms, Agoq__Envelope **reply,
               char *error, size_t error_size);
/* A question without parameters: one of the verbs that are CtlEmpty in proto/agoq.proto. */
int client_ask_plain(ctl_client *client, Agoq__CtlRequest__VerbCase verb, uint64_t timeout_ms,
                     Agoq__Envelope **reply, char *error, size_t error_size);

#endif
