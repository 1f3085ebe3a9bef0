/* From what is known to a plan on its way, and what the plan cycle asks for. */
#ifndef AGOQD_CORE_DECIDE_H
#define AGOQD_CORE_DECIDE_H

#include "agoqd/core_state.h"

void core_decide(core *c, int64_t now);
void core_act(core *c, cycle_action action, int64_t now); /* what the cycle asks for */
void core_send_due(core *c, int64_t now);                 /* PREPARE to whom it is due */
void core_dirty(core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The peak that a rank reports under the current plan, of what its device allows with this margin; 0: none
 * known. */
uint32_t core_seen_ppm(const core *c, const session *s, uint32_t margin_ppm);

/* S2: would this plan keep every rank within the budget of its device, as it is now, at widths that the rank
 * has? Summed from each rank's own profile, apart from the solver. NULL: yes; else why not. */
const char *core_veto(const core *c, const plan *p);

#endif
