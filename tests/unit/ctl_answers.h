/* What the daemon of test_agoqctl_client.c says: one job, one rank, one device whose budget was set to half
 * at most. Included once; apart only to keep the test readable. */
#ifndef TESTS_CTL_ANSWERS_H
#define TESTS_CTL_ANSWERS_H

#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "planner/plan.h"
#include "planner/planner.h"
#include "proto/wire.h"

static atomic_int asked_waits;
static uint8_t plan_bytes[256];
static size_t plan_size;

static void make_plan_bytes(void) {
    plan p;
    assert_int_equal(plan_init(&p, 1, 1), AGOQ_OK);
    p.stages[0] = (plan_stage){1 << 20, 2, 1 << 19};
    p.entries[0] = (plan_entry){0, 0, AGOQ_ROLE_MLP_GATE_UP, 5};
    assert_int_equal(plan_encode(&p, plan_bytes, sizeof plan_bytes, &plan_size), AGOQ_OK);
    plan_fini(&p);
}

static Agoq__CtlBudget budget = AGOQ__CTL_BUDGET__INIT, *all_budgets[] = {&budget};
static Agoq__CtlLever lever = AGOQ__CTL_LEVER__INIT, *levers[] = {&lever};
static Agoq__CtlStageInfo stage = AGOQ__CTL_STAGE_INFO__INIT, *stages[] = {&stage};
static int set_to_half;

/* Pending on the first questions, effective later. */
static void give_budget(Agoq__CtlReply *r, uint64_t bytes) {
    budget.device = "cpu:h:0";
    budget.bytes = bytes;
    budget.configured_bytes = budget.effective_bytes = 1 << 30;
    budget.version = bytes == 1 << 30 ? 4 : 5;
    budget.state = bytes == 1 << 30 || asked_waits > 3 ? "effective" : "pending";
    r->budgets = all_budgets;
    r->n_budgets = 1;
}

static void give_stage(Agoq__CtlReply *r) {
    static uint32_t live[] = {3, 2};
    stage.overshoot_bytes = 5 << 20;
    stage.why = PLANNER_WHY_INFEASIBLE;
    stage.why_text = "the budget binds";
    stage.live = live;
    stage.n_live = stage.n_chunks = 2;
    stage.levers = levers;
    stage.n_levers = 1;
    lever.text = "recompute 1 layer";
    lever.saves_bytes = 6 << 20;
    lever.enough = 1;
    r->stages = stages;
    r->n_stages = 1;
}

static void refuse_with(Agoq__CtlReply *r, uint32_t code, char *text) {
    r->code = code;
    r->text = text;
}

static void set_budget(const Agoq__CtlBudgetSet *set, Agoq__CtlReply *r) {
    if (set->has_if_version && set->if_version != 4) {
        refuse_with(r, CTL_VERSION_CONFLICT, "cpu:h:0 has version 4, not the one given");
    } else if (!set->reset && set->bytes < 1 << 20) {
        refuse_with(r, CTL_INFEASIBLE, "stage 0 does not fit");
        give_stage(r);
    } else if (!strcmp(set->why, "not allowed")) {
        refuse_with(r, CTL_PERMISSION, "only root may");
    } else {
        set_to_half = !set->dry_run && !set->reset;
        give_budget(r, set->reset ? 1 << 30 : 1 << 29);
    }
}

/* 1.0.1 was the floor, 9.9.9 never was, 6.6.6 is damaged. */
static void give_plan(uint64_t id, Agoq__CtlReply *r) {
    static Agoq__CtlPlan found;
    agoq__ctl_plan__init(&found);
    if (id == plan_id_make(9, 9, 9)) {
        refuse_with(r, CTL_FAILED, "no plan 9.9.9 is known; see agoqctl plan history");
        return;
    }
    r->plan = &found;
    if (id == plan_id_make(1, 0, 1)) return;
    found.id = plan_id_make(1, 0, 2);
    found.bytes = (ProtobufCBinaryData){plan_size, plan_bytes};
    found.hash = plan_hash(plan_bytes, plan_size) + (id == plan_id_make(6, 6, 6));
    found.why = "first plan";
}

static void answer(const Agoq__CtlRequest *q, Agoq__CtlReply *r) {
    static Agoq__CtlStatus status = AGOQ__CTL_STATUS__INIT;
    static Agoq__CtlRank rank = AGOQ__CTL_RANK__INIT, *ranks[] = {&rank};
    static Agoq__CtlEvent event = AGOQ__CTL_EVENT__INIT, *events[] = {&event};
    switch (q->verb_case) {
    case AGOQ__CTL_REQUEST__VERB_STATUS:
        status.job = "j1";
        status.state = "idle";
        status.ranks_live = 1;
        status.plan_id = plan_id_make(1, 0, 2);
        status.why = "first plan";
        r->status = &status;
        break;
    case AGOQ__CTL_REQUEST__VERB_RANKS:
        rank.device = "cpu:h:0";
        rank.host = "h";
        rank.state = "live";
        rank.peak_bytes = 1 << 20;
        rank.reserved_bytes = 1 << 21;
        rank.oom_retries = 3;
        r->ranks = ranks;
        r->n_ranks = 1;
        break;
    case AGOQ__CTL_REQUEST__VERB_HISTORY:
        event.what = "plan";
        event.why = "first plan";
        event.wall_ms = 1700000000123;
        event.steps_to_effect = 2;
        r->events = events;
        r->n_events = 1;
        break;
    case AGOQ__CTL_REQUEST__VERB_BUDGET_GET:
        if (!q->budget_get->device[0] || !strcmp(q->budget_get->device, "cpu:h:0"))
            give_budget(r, set_to_half ? 1 << 29 : 1 << 30);
        break;
    case AGOQ__CTL_REQUEST__VERB_BUDGET_WAIT:
        asked_waits++;
        if (q->budget_wait->version <= 5) give_budget(r, 1 << 29);
        break;
    case AGOQ__CTL_REQUEST__VERB_PLAN_GET:
        give_plan(q->plan_get->id, r);
        break;
    case AGOQ__CTL_REQUEST__VERB_BUDGET_SET:
        set_budget(q->budget_set, r);
        break;
    case AGOQ__CTL_REQUEST__VERB_EXPLAIN:
        give_stage(r);
        break;
    default:
        r->daemon_version = "9.8.7";
        break;
    }
}

#endif
