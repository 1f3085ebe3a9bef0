/* The answer of `simulate`, as text and as JSON. */
#ifndef AGOQCTL_SIM_SHOW_H
#define AGOQCTL_SIM_SHOW_H

#include <stdio.h>

#include "agoqctl/sim_answer.h"

/* 0, or -1: not all of it could be written. */
int sim_show_text(const sim_input *in, const sim_answer *a, FILE *out);
int sim_show_json(const sim_input *in, const sim_answer *a, FILE *out);

/* What an operator should know besides: one call per sentence. */
typedef void (*sim_warning_fn)(void *user, const char *text);
void sim_warnings(const sim_input *in, const sim_answer *a, sim_warning_fn say, void *user);

/* The stage whose widths a rank runs: where two ranks hold the same layers, the plan names the first. */
uint32_t sim_plan_stage(const sim_answer *a, uint32_t rank);

/* Reason codes of a stage, from the first: NULL behind the last. word: for scripts; text: for people. */
typedef struct sim_reason {
    uint32_t bit;
    const char *word, *text;
} sim_reason;
extern const sim_reason sim_reasons[]; /* ends with bit 0 */
/* By AGOQ_PHASE_*: in JSON and tables, and in sentences. */
typedef struct sim_phase {
    const char *word, *text;
} sim_phase;
extern const sim_phase sim_phases[AGOQ_N_PHASES];
/* The phase that makes the predicted peak; the first if several do. */
uint32_t sim_peak_phase(const planner_stage *stage, const planner_stage_result *result);

const char *sim_max_name(int max); /* "seq" */

#endif
