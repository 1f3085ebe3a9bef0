/* The plans this daemon has proposed or found applied, newest last, with why each was made: what history,
 * diff and the check of a rank's outstanding vote look up. A ring: old plans are forgotten, but for those in
 * use, and an unknown plan counts as too big. */
#ifndef AGOQD_PLANS_H
#define AGOQD_PLANS_H

#include "planner/plan.h"

#define PLANS_KEPT    32
#define PLANS_WHY_MAX 1024

typedef struct planned {
    uint64_t id, hash;
    plan plan;
    uint8_t *bytes;
    size_t size;
    char why[PLANS_WHY_MAX];
    int64_t applied_step, applied_ms; /* on all ranks; -1: not (yet) */
} planned;

typedef struct plans {
    planned entry[PLANS_KEPT];
    uint32_t n; /* places ever passed; the newest is entry[(n - 1) % PLANS_KEPT] */
    int (*in_use)(const void *user, uint64_t id); /* such a plan is not forgotten; NULL: none is */
    const void *user;
} plans;

void plans_fini(plans *t);
/* Decodes and copies bytes. An id that is already there with the same hash is returned as it is; with another
 * hash: E_STATE (S1). E_FORMAT: malformed, or the hash is wrong (0: not checked). E_LIMIT: every plan kept
 * is in use. */
AGOQ_MUST_USE agoq_status plans_add(plans *t, uint64_t id, uint64_t hash, const uint8_t *bytes, size_t size,
                                    const char *why, planned **out);
planned *plans_find(plans *t, uint64_t id); /* NULL: not known; id 0 is never known */
const planned *plans_look(const plans *t, uint64_t id);

#endif
