/* What a rank really holds: the live micro-batches of each chunk at every local peak, reduced to the
 * Pareto-maximal vectors. The planner uses them where they exceed the schedule's formula. Counts rise with
 * forwards and fall with backwards, so only the vector before a fall that follows a rise can be maximal: one
 * comparison per local peak. The trade-off: above OBSERVE_MAX_ROWS vectors two are merged into one that
 * dominates both, which can only overstate. */
#ifndef LIBAGOQ_OBSERVE_H
#define LIBAGOQ_OBSERVE_H

#include <stdint.h>

#include "agoq/status.h"

#define OBSERVE_MAX_CHUNKS 64
#define OBSERVE_MAX_ROWS   64

typedef struct observe {
    int32_t n_chunks;
    uint32_t live[OBSERVE_MAX_CHUNKS];
    uint32_t rows[OBSERVE_MAX_ROWS][OBSERVE_MAX_CHUNKS]; /* Pareto-maximal, since the last reset */
    uint32_t n_rows;
    int rising; /* the last event was an entry */
    int grown;  /* rows changed since observe_take */
    uint64_t steps;
} observe;

/* Forgets what was seen; live counts stay. E_STATE: a micro-batch is live in a chunk that would vanish. */
AGOQ_MUST_USE agoq_status observe_reset(observe *o, int32_t n_chunks);
/* delta +1 or -1. E_INVAL: no such chunk or delta; E_STATE: none is live; E_LIMIT: more than a profile can
 * say. */
AGOQ_MUST_USE agoq_status observe_microbatch(observe *o, int chunk, int delta);
/* End of a step. 1: there is something new to tell. */
int observe_step_end(observe *o);

#endif
