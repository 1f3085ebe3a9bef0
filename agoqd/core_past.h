/* What ranks have heard from daemons of which this one knows nothing. */
#ifndef AGOQD_CORE_PAST_H
#define AGOQD_CORE_PAST_H

#include "agoqd/core_state.h"

/* HELLO of a rank on device b. known: this life of the daemon knows the sender, so that what it has heard, it
 * has heard from us. 0: terms and versions of today are above what it has heard, durably; else a
 * WIRE_REFUSE_* code. */
int core_past_hello(core *c, const Agoq__Hello *m, int known, budget *b, char *text, size_t size);
/* A rank has said that `version` is the highest it has seen: if it is above its device's, go above it and
 * tell the rank. */
void core_past_version(core *c, const session *s, uint64_t version);
/* A rank has refused the plan in flight, as older than what it has heard; what that was it did not say. */
void core_past_nack(core *c, const session *s, const Agoq__Nack *m);

#endif
