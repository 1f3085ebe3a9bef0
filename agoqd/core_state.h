/* What the files core*.c and answer*.c share: the daemon's state, and the steps that one of them takes for
 * another. Order of reading: core.c (messages in), core_ranks.c (ranks), core_decide.c (plans), core_budget.c
 * (budgets), answer.c (operator). */
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
    int64_t mixed_ms, current_step, started_ms, stored_ms, checked_ms;
    uint64_t *caps;          /* [ranks.n_stages]: memory guard; NULL: none */
    int dirty;               /* an input of the planner changed */
    int again;               /* look once more at the next tick: growth that has to wait, mixed plans */
    int unstored;            /* the roster on disk is behind */
    uint64_t proposed_event; /* history.n when the plan in flight was proposed */
    int64_t proposed_ms;
};

/* core.c */
int core_send(core *c, const peer *to, const char *job, Agoq__Envelope__BodyCase which, void *body,
              uint64_t reply_to, size_t max_bytes);
void core_alarm(core *c, const char *text); /* once per text, until core_calm */
void core_calm(core *c);
AGOQ_MUST_USE agoq_status core_store(core *c,
                                     const budgets *b); /* term, these budgets, roster; durable on OK */

/* core_ranks.c */
void core_rank_message(core *c, const Agoq__Envelope *e, const peer *from, int64_t now);
void core_check_ranks(core *c, int64_t now); /* silent, gone */
void core_settle(core *c, int64_t now); /* which plan do all ranks run? which budgets became effective? */

/* core_decide.c */
void core_decide(core *c, int64_t now);
void core_act(core *c, cycle_action action, int64_t now); /* what the cycle asks for */
void core_send_due(core *c, int64_t now);                 /* PREPARE to whom it is due */
void core_dirty(core *c, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* core_budget.c */
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

/* core_words.c */
void words_plan(const core *c, const merged *m, const planner_result *r, char *text, size_t size);
void words_infeasible(const merged *m, const planner_result *r, char *text, size_t size);
void words_lever(const planner_lever *l, uint32_t stage, char *text, size_t size);
void words_stage(const merged *m, const planner_result *r, uint32_t stage, char *text, size_t size);

/* answer.c */
void answer_request(core *c, const Agoq__Envelope *e, const peer *from, int64_t now);

#endif
