/* Budgets: an operator's request, and when a cut one is effective. */
#ifndef AGOQD_CORE_BUDGET_H
#define AGOQD_CORE_BUDGET_H

#include "agoqd/core_state.h"

typedef struct core_budget_request {
    const char *device; /* "": by stage */
    int32_t stage;
    uint64_t bytes, if_version;
    int reset, has_if_version, dry_run;
    const char *why;
    int64_t uid;
} core_budget_request;
/* What a request did, or would do: for the answer. */
typedef struct core_budget_result {
    budgets after;         /* all budgets, as changed */
    merged problem;        /* where the ranks are known: the problem and its solution at the new budgets, */
    planner_result solved; /* else zero */
} core_budget_result;
/* Exit code of agoqctl, with text on failure. *result must be zero before; core_budget_result_fini
 * afterwards. */
int core_budget_set(core *c, const core_budget_request *r, int64_t now, core_budget_result *result,
                    char *text, size_t text_size);
void core_budget_result_fini(core_budget_result *result);
void core_budget_settle(core *c, int64_t now);
int core_budget_named(const core *c, const core_budget_request *r,
                      const budget *b); /* does the request mean b? */

#endif
