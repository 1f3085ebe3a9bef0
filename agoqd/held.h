/* What one rank holds, in the planner's terms, owned. Live vectors come from the schedule's formula unless
 * the rank has seen more: then what it has seen wins, and that is remembered as a reason. */
#ifndef AGOQD_HELD_H
#define AGOQD_HELD_H

#include "planner/planner.h"
#include "proto/wire.h"

typedef struct held {
    agoq_schedule schedule;
    uint32_t n_microbatches, n_chunks, n_layers, n_items, n_live;
    planner_item *items; /* sorted by (layer, role), each pair once */
    uint64_t *fixed_bytes;
    uint64_t alloc_round_bytes, observed_steps;
    planner_phase phase[AGOQ_N_PHASES];
    uint32_t *live; /* n_live rows of n_chunks */
    uint32_t live_units,
        formula_units;  /* largest row sums: used, and what the formula says (0: no formula) */
    int above_schedule; /* observed counts won */
} held;

/* E_INVAL with *why (static): a pair twice, or neither a formula nor an observation. E_NOMEM. held_fini is
 * NULL-safe on a zeroed struct. */
AGOQ_MUST_USE agoq_status held_from_wire(const Agoq__Profile *m, uint32_t n_stages, uint32_t stage, held *out,
                                         const char **why);
void held_fini(held *p);
/* 1: nothing the planner looks at differs. */
int held_same(const held *a, const held *b);
/* A view of the profile as a planner stage; no budget. */
planner_stage held_stage(const held *p);

/* Peak bytes of a stage under a plan (NULL: the floor plan, every item at its least width), over all phases
 * and live vectors: the daemon's own sum, apart from the solver's. The veto before a plan goes
 * out (S2) rests on it. */
uint64_t held_predict(const planner_stage *stage, const plan *p);

#endif
