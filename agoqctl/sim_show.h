/* The answer of `simulate`, as text and as JSON. */
#ifndef AGOQCTL_SIM_SHOW_H
#define AGOQCTL_SIM_SHOW_H

#include <stdio.h>

#include "agoqctl/sim_input.h"

typedef struct sim_answer {
    planner_result result;
    uint8_t *rule_bits;         /* AGoQ's own rule, [pp] */
    planner_stage_result *rule; /* what it would take and cost */
} sim_answer;

/* 0, or -1: not all of it could be written. */
int sim_show_text(const sim_input *in, const planner_model_problem *p, const sim_answer *answer, FILE *out);
int sim_show_json(const sim_input *in, const planner_model_problem *p, const sim_answer *answer, FILE *out);

#endif
