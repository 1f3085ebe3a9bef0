/* When the daemon proposes a better plan: planner/hysteresis.h with the daemon's thresholds, of which only
 * the dwell is configured. */
#ifndef AGOQD_POLICY_H
#define AGOQD_POLICY_H

#include <stdint.h>

#include "planner/hysteresis.h"

typedef enum policy_answer {
    POLICY_KEEP = PLANNER_SWITCH_KEEP,
    POLICY_LATER = PLANNER_SWITCH_LATER,
    POLICY_PROPOSE = PLANNER_SWITCH_NOW,
    POLICY_STEP = PLANNER_SWITCH_STEP
} policy_answer;

typedef planner_switch_state policy;

typedef struct policy_input {
    int same_bytes;    /* the new plan is the one that every rank runs */
    int must;          /* first plan, mixed plans, one that does not fit, or a prediction that rose */
    int asked;         /* an operator changed a budget since the plan was made */
    int shrinks;       /* the new plan predicts less than the present one on the fullest stage */
    uint32_t peak_ppm; /* of the fullest stage: predicted or observed, of what it may use */
    uint32_t
        free_ppm; /* largest part of what a stage may use that is free, by prediction and by observation */
    double objective_now, objective_new;
    int64_t steps_since_switch;
    uint32_t dwell_steps;
} policy_input;

policy_answer policy_decide(policy *p, const policy_input *in, int64_t now);

/* planner_switch_limit. */
void policy_step(const planner_problem *problem, const plan *from, plan *to);

#endif
