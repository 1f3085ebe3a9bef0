/* What agoqctl asks, answered at once from what is known. Reading is for everybody who can open the socket;
 * changing a budget is for root, the daemon's own user and the configured group, as the kernel names the
 * process at the other end. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/answer.h"
#include "agoqd/answer_parts.h"
#include "agoqd/groups.h"
#include "common/log.h"

static void fail(answer_arena *a, Agoq__CtlReply *reply, uint32_t code, const char *text) {
    reply->code = code;
    reply->text = answer_text(a, text);
}

static void explain(core *c, answer_arena *a, int32_t stage, Agoq__CtlReply *reply) {
    merged m;
    planner_result r = {0};
    char text[512];
    if (stage >= c->ranks.n_stages && c->ranks.world > 0) {
        snprintf(text, sizeof text, "there is no stage %d: the job has %d", stage, c->ranks.n_stages);
        fail(a, reply, 1, text);
        return;
    }
    if (merge_build(&c->ranks, &c->budgets, c->conf, c->caps, MERGE_TO_JUDGE, &m, text, sizeof text) !=
        MERGE_OK) {
        fail(a, reply, 1, text);
        return;
    }
    if (planner_solve(&m.problem, &r) == AGOQ_OK) {
        answer_stages(c, a, &m, &r, stage, 1, reply);
        answer_plan(c, a, 0, reply);
    } else {
        fail(a, reply, 1, "the planner refuses the problem");
    }
    planner_result_fini(&r);
    merge_fini(&m);
}

static int may_change(const core *c, const peer *from) {
    return from->uid == 0 || (from->uid >= 0 && from->uid == c->io.uid) ||
           (c->io.gid >= 0 && (from->gid == c->io.gid || groups_has_member(c->io.gid, from->uid)));
}

static void send_reply(core *c, answer_arena *a, Agoq__CtlReply *reply, const Agoq__Envelope *e,
                       const peer *from) {
    Agoq__CtlReply error = AGOQ__CTL_REPLY__INIT;
    reply->daemon_version = (char *)AGOQ_VERSION;
    if (a->bad) {
        error.code = 1;
        error.text = (char *)"the daemon is out of memory";
        reply = &error;
    }
    if (core_send(c, from, e->job, AGOQ__ENVELOPE__BODY_CTL_REPLY, reply, e->seq, WIRE_MAX_CTL_BYTES) == 0)
        return;
    error.code = 1;
    error.text = (char *)"the answer is too long to be sent";
    core_send(c, from, e->job, AGOQ__ENVELOPE__BODY_CTL_REPLY, &error, e->seq, WIRE_MAX_CTL_BYTES);
}

static void budget_set(core *c, const Agoq__Envelope *e, const peer *from, int64_t now) {
    const Agoq__CtlBudgetSet *m = e->ctl_request->budget_set;
    answer_arena a = {0};
    Agoq__CtlReply reply = AGOQ__CTL_REPLY__INIT;
    core_budget_request r = {.device = m->device,
                             .stage = m->stage,
                             .bytes = m->bytes,
                             .if_version = m->if_version,
                             .reset = m->reset,
                             .has_if_version = m->has_if_version,
                             .dry_run = m->dry_run,
                             .why = m->why,
                             .uid = from->uid};
    core_budget_result result = {0};
    char text[WIRE_MAX_STRING + 1] = "";
    if (!r.dry_run && !may_change(c, from)) {
        snprintf(text, sizeof text,
                 "uid %" PRId64 " may not change budgets: root, uid %" PRId64 " and socket_group may",
                 from->uid, c->io.uid);
        log_write(LOG_LEVEL_WARN, "budget", "%s", text);
        fail(&a, &reply, 4, text);
    } else {
        int code = core_budget_set(c, &r, now, &result, text, sizeof text);
        if (code) {
            fail(&a, &reply, (uint32_t)code, text);
            log_write(LOG_LEVEL_INFO, "budget", "request refused code=%d uid=%" PRId64 ": %s", code,
                      from->uid, text);
        }
        /* What was asked for if it holds; what is still true if it does not. */
        const answer_which which = {.changed = &r};
        answer_budgets(c, &a, code ? &c->budgets : &result.after, &which, &reply);
        if (result.solved.stages) answer_stages(c, &a, &result.problem, &result.solved, -1, 0, &reply);
    }
    send_reply(c, &a, &reply, e, from);
    core_budget_result_fini(&result);
    answer_free(&a);
}

void answer_request(core *c, const Agoq__Envelope *e, const peer *from, int64_t now) {
    const Agoq__CtlRequest *q = e->ctl_request;
    if (q->verb_case == AGOQ__CTL_REQUEST__VERB_BUDGET_SET) {
        budget_set(c, e, from, now);
        return;
    }
    answer_arena a = {0};
    answer_which which = {0};
    Agoq__CtlReply reply = AGOQ__CTL_REPLY__INIT;
    switch (q->verb_case) {
    case AGOQ__CTL_REQUEST__VERB_STATUS:
        answer_status(c, &a, now, &reply);
        break;
    case AGOQ__CTL_REQUEST__VERB_RANKS:
        answer_status(c, &a, now, &reply);
        answer_ranks(c, &a, now, &reply);
        break;
    case AGOQ__CTL_REQUEST__VERB_PLAN_GET:
        answer_plan(c, &a, q->plan_get->id, &reply);
        break;
    case AGOQ__CTL_REQUEST__VERB_HISTORY:
        answer_events(c, &a, &reply);
        break;
    case AGOQ__CTL_REQUEST__VERB_BUDGET_GET:
        which.device = q->budget_get->device;
        which.stage = q->budget_get->by_stage ? q->budget_get->stage : -1;
        answer_budgets(c, &a, &c->budgets, &which, &reply);
        break;
    case AGOQ__CTL_REQUEST__VERB_BUDGET_WAIT:
        which = (answer_which){.device = q->budget_wait->device,
                               .stage = q->budget_wait->by_stage ? q->budget_wait->stage : -1,
                               .since = q->budget_wait->version,
                               .pending_first = 1};
        answer_budgets(c, &a, &c->budgets, &which, &reply);
        break;
    case AGOQ__CTL_REQUEST__VERB_EXPLAIN:
        explain(c, &a, q->explain->stage, &reply);
        break;
    default:
        break; /* version: in every reply */
    }
    send_reply(c, &a, &reply, e, from);
    answer_free(&a);
}
