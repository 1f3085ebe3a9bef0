/* A plan as a session holds it: id, hash, canonical bytes (to record and to tell a new daemon) and the
 * decoded form (to look widths up). Bytes and decoded form are kept side by side, so that switching plans
 * moves pointers and cannot fail. */
#ifndef LIBAGOQ_SLOT_H
#define LIBAGOQ_SLOT_H

#include <stddef.h>
#include <stdint.h>

#include "planner/plan.h"

typedef struct slot {
    uint64_t id, hash; /* id 0: the floor plan (or nothing); no bytes then */
    uint8_t *bytes;
    size_t size;
    plan decoded;
} slot;

/* Copies, verifies the hash, decodes. E_FORMAT: hash or bytes are wrong; E_NOMEM. *out as it was on failure.
 */
AGOQ_MUST_USE agoq_status slot_make(uint64_t id, uint64_t hash, const uint8_t *bytes, size_t size, slot *out);
void slot_fini(slot *s);

#endif
