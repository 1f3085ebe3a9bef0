/* What ranks say, and what their silence or exit means. */
#ifndef AGOQD_CORE_RANKS_H
#define AGOQD_CORE_RANKS_H

#include "agoqd/core_state.h"

void core_rank_message(core *c, const Agoq__Envelope *e, const peer *from, int64_t now);
void core_check_ranks(core *c, int64_t now);            /* silent, gone */
void core_check_exit(core *c, session *s, int64_t now); /* gone, if its process has verifiably exited */
void core_settle(core *c, int64_t now); /* which plan do all ranks run? which budgets became effective? */

void core_rank_event(core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
void core_other_bytes(core *c, int32_t rank, uint64_t id); /* the alarm of S1 */
void core_refuse(core *c, const peer *to, const Agoq__Envelope *e, int reason, const char *text);

#endif
