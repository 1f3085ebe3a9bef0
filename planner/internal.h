/* What the files of planner/ share: bytes and peaks of a stage under given widths. Items are always in the
 * caller's order here; bits[i] is the width of items[i]. */
#ifndef PLANNER_INTERNAL_H
#define PLANNER_INTERNAL_H

#include "planner/planner.h"

#define PLANNER_BYTES_LIMIT ((uint64_t)1 << 56) /* no sum below may pass this: 64 PiB on one GPU */

/* E_INVAL: inconsistent; E_LIMIT: sizes that could overflow. */
AGOQ_MUST_USE agoq_status planner_stage_check(const planner_stage *stage);

/* Budget less margin; PLANNER_BYTES_LIMIT * 16 without a budget. */
uint64_t planner_available(const planner_stage *stage);
/* Width with the least bytes. */
uint8_t planner_least_bits(const planner_stage *stage, const planner_item *item);
void planner_least(const planner_stage *stage, uint8_t *bits);
int planner_allows(const planner_item *item, int bits);
/* The allowed width nearest to bits from below, else the least allowed one. */
uint8_t planner_nearest_bits(const planner_item *item, int bits);
int planner_has_choice(const planner_item *item); /* more than one width */

/* Per chunk: fixed bytes and items. */
void planner_chunk_bytes(const planner_stage *stage, const uint8_t *bits, uint64_t chunk[PLANNER_MAX_CHUNKS]);
/* Largest of the live rows, and which one binds (may be NULL). */
uint64_t planner_rows_peak(const planner_stage *stage, const uint64_t *chunk, uint32_t *binding);
uint64_t planner_activation_peak(const planner_stage *stage, const uint8_t *bits, uint32_t *binding);
/* Over all phases, with this much activation memory in the forward/backward phase. */
uint64_t planner_total_peak(const planner_stage *stage, uint64_t activation_bytes);
/* Peaks, slack or overshoot, objective, mean width; lower_bound is set to the objective. Zeroes the rest. */
void planner_measure(const planner_stage *stage, const uint8_t *bits, planner_stage_result *result);

typedef struct planner_bound {
    int proved;         /* the answer is optimal */
    int best_possible;  /* no width could be better, whatever the budget */
    double lower_bound; /* of the objective; of its finite part where a sensitivity is infinite */
    uint64_t work;
} planner_bound;

/* Widths of least harm whose activations take at most room_bytes, which the least widths do not exceed. */
AGOQ_MUST_USE agoq_status planner_stage_solve(const planner_stage *stage, uint64_t room_bytes, uint8_t *bits,
                                              planner_bound *bound);

/* Levers of stage `index`, which does not fit even at its least widths. */
AGOQ_MUST_USE agoq_status planner_levers(const planner_problem *problem, uint32_t index,
                                         planner_stage_result *result);

#endif
