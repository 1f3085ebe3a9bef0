/* When a better plan is worth a switch: a pure function of its state, its input and the given time. What must
 * change and what was asked for changes at once, as does a plan that comes too near its budget and could be
 * smaller. Growth that nobody asked for waits: enough room in several windows in a row, a real gain, some
 * steps since the last switch, and then one width step per tensor. The trade-off: a gain may come a few
 * windows late, so that noise in what ranks report never makes plans flap. */
#ifndef PLANNER_HYSTERESIS_H
#define PLANNER_HYSTERESIS_H

#include <stdint.h>

#include "planner/planner.h"

typedef enum planner_switch {
    PLANNER_SWITCH_KEEP,  /* nothing to gain, now or later */
    PLANNER_SWITCH_LATER, /* a gain, but not yet: ask again */
    PLANNER_SWITCH_NOW,   /* the whole new plan */
    PLANNER_SWITCH_STEP   /* the new plan, limited by planner_switch_limit */
} planner_switch;

typedef struct planner_switch_rules {
    uint32_t windows; /* in a row with enough room before growth */
    int64_t window_ms;
    uint32_t free_ppm; /* enough room: of what a plan may use */
    uint32_t gain_ppm; /* a real gain: of the objective */
    uint32_t full_ppm; /* too near: of what a plan may use */
    uint32_t dwell_steps;
} planner_switch_rules;

/* 3 windows of a second, 10 % free, 5 % gain, 97 % full, 20 steps. */
extern const planner_switch_rules planner_switch_defaults;

typedef struct planner_switch_state {
    uint32_t windows;  /* in a row with enough room */
    int64_t window_ms; /* when the last one was counted */
} planner_switch_state;

typedef struct planner_switch_input {
    int same_bytes;    /* the new plan is the one that every rank runs */
    int must;          /* first plan, mixed plans, one that does not fit, or a prediction that rose */
    int asked;         /* an operator changed a budget since the plan was made */
    int shrinks;       /* the new plan predicts less than the present one */
    uint32_t peak_ppm; /* predicted or observed peak of the fullest stage, of what it may use */
    uint32_t free_ppm; /* largest part of what a stage may use that its plan leaves free */
    double objective_now, objective_new;
    int64_t steps_since_switch;
} planner_switch_input;

planner_switch planner_switch_decide(planner_switch_state *state, const planner_switch_rules *rules,
                                     const planner_switch_input *in, int64_t now_ms);

/* Limits growth: an entry that is wider in `to` than in `from` gets only the next width of the item's set
 * above what it has. Both plans have the same entries in the same order, else `to` is left as it is.
 * Predictions are the caller's to recompute. */
void planner_switch_limit(const planner_problem *problem, const plan *from, plan *to);

#endif
