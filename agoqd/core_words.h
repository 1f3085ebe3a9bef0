/* Why, in words: what an operator reads beside a plan, an alarm or a refusal. */
#ifndef AGOQD_CORE_WORDS_H
#define AGOQD_CORE_WORDS_H

#include "agoqd/core_state.h"

/* current: the plan that runs; NULL: none. */
void words_plan(const core *c, const merged *m, const plan *current, const planner_result *r, char *text,
                size_t size);
void words_infeasible(const merged *m, const planner_result *r, char *text, size_t size);
void words_lever(const planner_lever *l, uint32_t stage, char *text, size_t size);
void words_stage(const merged *m, const planner_result *r, uint32_t stage, char *text, size_t size);

#endif
