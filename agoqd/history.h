/* What happened and why, the newest few hundred: for `agoqctl events`, `plan history` and the demo's report.
 * An event about a budget is completed when the budget becomes effective. */
#ifndef AGOQD_HISTORY_H
#define AGOQD_HISTORY_H

#include <stdint.h>

#define HISTORY_KEPT    256
#define HISTORY_WHY_MAX 512

typedef enum history_what {
    HISTORY_START,
    HISTORY_RANK,
    HISTORY_PLAN,
    HISTORY_BUDGET,
    HISTORY_ALARM
} history_what;

typedef struct history_event {
    history_what what;
    int64_t wall_ms, step;
    uint64_t plan_id;
    uint64_t budget_version; /* HISTORY_BUDGET; else 0 */
    int step_confirmed;      /* a rank has said at which step it heard of it */
    int64_t steps_to_effect; /* -1: not (yet) */
    uint64_t ms_to_effect;
    char why[HISTORY_WHY_MAX];
} history_event;

typedef struct history {
    history_event event[HISTORY_KEPT];
    uint64_t n; /* ever added */
} history;

/* Adds and logs it, at info (alarms: warn). */
history_event *history_add(history *h, history_what what, int64_t wall_ms, int64_t step, const char *format,
                           ...) __attribute__((format(printf, 5, 6)));
/* The i-th oldest still kept; NULL past the end. */
const history_event *history_at(const history *h, uint32_t i);
/* The events of a budget version: NULL, or the newest. */
history_event *history_budget(history *h, uint64_t version);
const char *history_what_name(history_what what);

#endif
