/* From what was asked to what is answered: the problem, its plan, AGoQ's rule and other ways beside it, and
 * the largest that fits. */
#ifndef AGOQCTL_SIM_ANSWER_H
#define AGOQCTL_SIM_ANSWER_H

#include "agoqctl/sim_input.h"

/* What a whole plan needs: its fullest stage and its error. */
typedef struct sim_summary {
    const char *name;
    int known, fits;
    uint32_t stage;      /* the fullest: least slack, or most overshoot */
    uint64_t peak_bytes; /* of that stage */
    uint64_t most_bytes; /* largest peak of any stage */
    uint64_t over_bytes; /* 0: it fits */
    double error;        /* sensitivity x squared relative error, summed; NaN: not a plan */
    double bits_mean;
} sim_summary;

#define SIM_N_COMPARED 7
enum { SIM_AT_16, SIM_RECOMPUTED, SIM_RULE, SIM_N_OTHERS };

typedef struct sim_answer {
    planner_model_problem p;
    planner_result result;
    uint8_t *rule_bits;         /* AGoQ's own rule, [pp] */
    planner_stage_result *rule; /* what it would take and cost */
    double solve_ms;
    int planned; /* there is something to plan */
    sim_summary other[SIM_N_OTHERS], compared[SIM_N_COMPARED];
    uint64_t largest;          /* with --max; 0: not even the smallest fits */
    uint32_t unit, next_stage; /* steps of largest; the stage that stops the next one */
    const char *limit;         /* why there is no next one, if it is not memory; else NULL */
} sim_answer;

/* The problem of a model as asked: live vectors of a list, observed counts, the CPU trainer's bytes. */
AGOQ_MUST_USE agoq_status sim_build(const sim_input *in, const planner_model *model,
                                    planner_model_problem *p);
/* Static and workspace bytes as this project's CPU trainer has them (sim_trainer.c). */
AGOQ_MUST_USE agoq_status sim_trainer_bytes(const planner_model *model, const planner_ops *list,
                                            planner_model_problem *p);
/* NULL, or why the CPU trainer does not run this. */
const char *sim_trainer_refused(const planner_model *model);

/* With --max, in->model becomes the largest that fits. Always followed by fini. */
AGOQ_MUST_USE agoq_status sim_answer_make(sim_input *in, sim_answer *answer);
/* The plan alone. */
AGOQ_MUST_USE agoq_status sim_answer_plan(const sim_input *in, sim_answer *answer);
void sim_answer_fini(sim_answer *answer);

#endif
