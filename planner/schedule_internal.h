/* What the files of the schedules share. */
#ifndef PLANNER_SCHEDULE_INTERNAL_H
#define PLANNER_SCHEDULE_INTERNAL_H

#include "planner/schedule.h"

/* Allocates lists for so many operations of each rank. E_LIMIT, E_NOMEM. */
AGOQ_MUST_USE agoq_status schedule_ops_alloc(planner_ops *ops, const uint32_t *n_of_rank);
/* Place of (rank, chunk) on the path of a micro-batch, or UINT32_MAX when it does not pass there. */
uint32_t schedule_place(const planner_ops *ops, uint32_t rank, uint32_t chunk, uint32_t microbatch);
uint32_t schedule_places(const planner_ops *ops); /* length of the path */

/* One rank's list, written to ops; the number of operations, which never passes schedule_rank_most. Not for
 * v-half and v-min. */
uint32_t schedule_rank_ops(const planner_schedule *s, uint32_t rank, planner_op *ops);
uint64_t schedule_rank_most(const planner_schedule *s);
/* v-half and v-min: all ranks, as each depends on the others. */
AGOQ_MUST_USE agoq_status schedule_vee_ops(const planner_schedule *s, planner_ops *out);

/* Rows of one list. */
AGOQ_MUST_USE agoq_status schedule_list_live(const planner_op *ops, uint32_t n, uint32_t n_chunks,
                                             planner_held held, uint32_t *rows, uint32_t max_rows,
                                             uint32_t *n_rows);

#endif
