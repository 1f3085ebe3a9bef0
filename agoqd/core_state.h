/* What the files core*.c and answer*.c share: the daemon's state, and the steps that one of them takes for
 * another. Order of reading: core.c (messages in), core_hello.c and core_past.c (who comes in), core_ranks.c
 * (ranks), core_decide.c (plans), core_budget.c (budgets), answer.c (operator). */
#ifndef AGOQD_CORE_STATE_H
#define AGOQD_CORE_STATE_H

#include "agoqd/budgets.h"
#include "agoqd/core.h"
#include "agoqd/cycle.h"
#include "agoqd/history.h"
#include "agoqd/merge.h"
#include "agoqd/plans.h"
#include "agoqd/policy.h"
#include "agoqd/sessions.h"

typedef enum core_phase { CORE_IDLE, CORE_RECOVER, CORE_COLLECT, CORE_INFEASIBLE } core_phase;

/* Why the planner runs next, and what it last could not do. */
typedef struct core_reasons {
    char cause[256];   /* opens the next plan's why; "" : nothing in particular */
    char waiting[512]; /* what is missing, while there is no plan to make */
    char alarm[512];   /* the last alarm, so that it is raised once */
} core_reasons;

typedef struct core_counters {
    uint64_t rejected, duplicates, drops, switches;
    int64_t rejected_log_ms;
    uint64_t rejected_unlogged;
} core_counters;

/* When things last happened. */
typedef struct core_times {
    int64_t mixed_ms, stored_ms, checked_ms;
} core_times;

/* The plan in flight. */
typedef struct core_proposed {
    uint64_t event; /* history.n when it was proposed */
    int64_t ms;
} core_proposed;

struct core {
    const conf *conf;
    core_io io;
    uint8_t self[16];
    uint64_t out_seq, term;
    uint32_t plan_seq;
    sessions ranks;
    budgets budgets;
    plans plans;
    cycle cycle;
    history history;
    policy policy;
    core_phase phase;
    core_reasons why;
    core_counters count;
    uint64_t current_id; /* the plan that every rank runs; 0: floor, or none */
    int mixed;           /* ranks run different plans */
    int64_t current_step, started_ms;
    core_times at;
    core_proposed proposed;
    uint64_t *caps; /* [ranks.n_stages]: memory guard; NULL: none */
    int dirty;      /* an input of the planner changed */
    int again;      /* look once more at the next tick: growth that has to wait, mixed plans */
    int unstored;   /* the roster on disk is behind */
};

/* core.c, for the others */
int core_send(core *c, const peer *to, const char *job, Agoq__Envelope__BodyCase which, void *body,
              uint64_t reply_to, size_t max_bytes);
void core_alarm(core *c, const char *text); /* once per text, until core_calm */
void core_calm(core *c);
AGOQ_MUST_USE agoq_status core_store(core *c,
                                     const budgets *b); /* term, these budgets, roster; durable on OK */

#endif
