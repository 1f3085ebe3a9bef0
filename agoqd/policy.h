/* When a better plan is worth a switch. What must change (the first plan, one that no longer fits, ranks on
 * different plans) and what an operator asked for changes at once. Growth that nobody asked for waits: enough
 * room in three windows in a row, a real gain, twenty steps since the last switch, and then one width step
 * per tensor. Pure, on given time. */
#ifndef AGOQD_POLICY_H
#define AGOQD_POLICY_H

#include <stdint.h>

#include "planner/planner.h"

#define POLICY_WINDOWS   3
#define POLICY_WINDOW_MS 1000
#define POLICY_FREE_PPM  100000 /* of what a plan may use */
#define POLICY_GAIN_PPM  50000  /* of the objective */

typedef enum policy_answer {
    POLICY_KEEP,    /* nothing to gain, now or later */
    POLICY_LATER,   /* a gain, but not yet: ask again */
    POLICY_PROPOSE, /* the whole new plan */
    POLICY_STEP     /* the new plan, limited by policy_step */
} policy_answer;

typedef struct policy {
    uint32_t windows;  /* in a row with enough room */
    int64_t window_ms; /* when the last one was counted */
} policy;

typedef struct policy_input {
    int same_bytes;    /* the new plan is the one that every rank runs */
    int must;          /* first plan, mixed plans, one that does not fit, or a prediction that rose */
    int asked;         /* an operator changed a budget since the plan was made */
    uint32_t free_ppm; /* largest part of what a stage may use that its plan leaves free */
    double objective_now, objective_new;
    int64_t steps_since_switch;
    uint32_t dwell_steps;
} policy_input;

policy_answer policy_decide(policy *p, const policy_input *in, int64_t now);

/* Limits growth: an entry that is wider in `to` than in `from` gets only the next width of the item's set
 * above what it has. Both plans have the same entries in the same order, else `to` is left as it is.
 * Predictions are the caller's to recompute. */
void policy_step(const planner_problem *problem, const plan *from, plan *to);

#endif
