/* The session's own copy of what the caller says that this rank holds: checked once, defaults filled in, so
 * that nothing later needs to ask whether it makes sense. Whatever passes here also passes the daemon's
 * checks, because the message is encoded on trial. */
#ifndef LIBAGOQ_PROFILE_H
#define LIBAGOQ_PROFILE_H

#include "agoq/agoq.h"
#include "libagoq/observe.h"
#include "planner/plan.h"
#include "proto/wire.h"

typedef struct profile {
    agoq_profile
        said; /* items and fixed_bytes point to the copies below; widths and sensitivities are filled in */
    agoq_item *items;
    uint64_t *fixed_bytes;
    int32_t n_table_layers; /* largest layer of an item, plus 1 */
    /* observed live vectors: n_rows of said.n_chunks */
    uint32_t *live;
    uint32_t n_live_rows;
    uint64_t observed_steps;
} profile;

/* E_INVAL, E_LIMIT, E_NOMEM; agoq_last_error says what. */
AGOQ_MUST_USE agoq_status profile_copy(const agoq_profile *from, profile *out);
void profile_fini(profile *p);
/* Smallest width of a set of AGOQ_MASK_*; 16 for the empty set. */
int profile_least_width(uint32_t mask);
/* Set of widths that a role has by default. */
uint32_t profile_role_widths(int role);
/* Is every item in the plan, at a width that it allows? NULL: yes; else why not. *item is set then. */
const char *profile_refuses(const profile *p, const plan *which, const agoq_item **item);
/* Replaces the observed rows. Room for all of them was made by profile_copy. */
void profile_set_observed(profile *p, const observe *seen);
/* As a PROFILE message. *data is allocated (mem_free). */
AGOQ_MUST_USE agoq_status profile_encode(const profile *p, const wire_header *header, uint8_t **data,
                                         size_t *size);

#endif
