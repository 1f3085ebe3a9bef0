/* HELLO: a rank comes in, or comes back, or is turned away. Everything that can fail is done first, so that a
 * refused HELLO leaves the session of that place as it was. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/core_hello.h"
#include "agoqd/core_decide.h"
#include "agoqd/core_past.h"
#include "agoqd/core_ranks.h"
#include "common/log.h"
#include "common/mem.h"

/* The plan that a rank runs, as its HELLO brings it. 0, or a reason to refuse. */
static int take_applied_plan(core *c, const Agoq__Envelope *e, char *text, size_t size) {
    const Agoq__Hello *m = e->hello;
    if (m->applied_id == 0) return 0;
    planned *p;
    agoq_status status = plans_add(&c->plans, m->applied_id, m->applied_hash, m->applied_plan.data,
                                   m->applied_plan.len, "applied before this daemon started", &p);
    if (status == AGOQ_OK) return 0;
    if (status == AGOQ_E_STATE) core_other_bytes(c, e->rank, m->applied_id);
    snprintf(text, size, "applied plan: %s",
             status == AGOQ_E_STATE   ? "other bytes are known under the same id"
             : status == AGOQ_E_NOMEM ? "out of memory"
             : status == AGOQ_E_LIMIT ? "too many different plans are in use"
                                      : "malformed, or its hash is wrong");
    return WIRE_REFUSE_PLAN;
}

static int device_in_use(const void *user, const char *device) {
    const core *c = user;
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        if (sessions_present(s) && strcmp(s->who.device, device) == 0) return 1;
    }
    return 0;
}

static int know_device(core *c, const Agoq__Hello *m, budget **b, char *text, size_t size) {
    if (c->budgets.n >= BUDGETS_MAX && !budgets_find(&c->budgets, m->device))
        budgets_forget(&c->budgets, device_in_use, c);
    if (budgets_device(&c->budgets, c->conf, m->device, m->stage, b) == AGOQ_OK) return 0;
    snprintf(text, size, "too many devices are known");
    return WIRE_REFUSE_LIMIT;
}

static void welcome(core *c, session *s, const budget *b, uint64_t seq) {
    Agoq__Welcome m = AGOQ__WELCOME__INIT;
    m.term = c->term;
    m.budget_version = b->version;
    m.budget_bytes = b->bytes;
    m.heartbeat_ms = c->conf->heartbeat_ms;
    core_send(c, &s->peer, c->ranks.job, AGOQ__ENVELOPE__BODY_WELCOME, &m, seq, WIRE_MAX_RANK_BYTES);
}

/* A new table of ranks was started: nothing of the old job's plans counts. */
static void new_job(core *c) {
    core_act(c, cycle_ranks_changed(&c->cycle, "another job has started", 0), 0);
    plans_fini(&c->plans);
    mem_free(c->caps);
    c->caps = NULL;
    c->current_id = 0;
    c->mixed = 0;
    c->policy = (policy){0};
    core_calm(c);
    core_rank_event(c, "job %s: %d ranks, %d stages", c->ranks.job, c->ranks.world, c->ranks.n_stages);
}

void core_hello(core *c, const Agoq__Envelope *e, const peer *from, int64_t now) {
    char text[512] = "", only[WIRE_MAX_JOB + 1]; /* a copy: the table may be made anew */
    const session *before = c->ranks.ranks;
    session *s = sessions_at(&c->ranks, e->rank);
    budget *b = NULL;
    if (s) core_check_exit(c, s, now); /* makes room for its heir at once */
    snprintf(only, sizeof only, "%s", c->conf->job[0] || !c->io.one_job ? c->conf->job : c->ranks.job);
    int refusal = sessions_admit(&c->ranks, e, from, only, c->conf->max_sessions, &s, text, sizeof text);
    if (c->ranks.ranks != before) new_job(c);
    if (!refusal) refusal = know_device(c, e->hello, &b, text, sizeof text);
    if (!refusal) refusal = take_applied_plan(c, e, text, sizeof text);
    if (!refusal) refusal = core_past_hello(c, e->hello, sessions_knows(s, e), b, text, sizeof text);
    if (refusal) { /* whoever held the place before still does (S9) */
        log_write(LOG_LEVEL_WARN, "rank", "rank %d refused: %s", e->rank, text);
        core_refuse(c, from, e, refusal, text);
        return;
    }
    sessions_change change = sessions_accept(s, e, from, now);
    if (from->pid > 0) {
        uint64_t start = c->io.start_time(c->io.user, s->who.pid);
        if (start) s->who.start_time = start;
    }
    welcome(c, s, b, e->seq);
    c->unstored = 1;
    if (change == SESSIONS_SAME) {
        cycle_resend(&c->cycle, (uint32_t)s->who.rank, now);
        log_write(LOG_LEVEL_INFO, "rank", "rank %d reconnected", s->who.rank);
    } else {
        char reason[64];
        snprintf(reason, sizeof reason, "rank %d %s", s->who.rank,
                 change == SESSIONS_JOINED ? "joined" : "was replaced");
        core_act(c, cycle_ranks_changed(&c->cycle, reason, now), now);
        core_rank_event(c, "%s: stage %d, device %s, pid %" PRIu64, reason, s->who.stage, s->who.device,
                        s->who.pid);
    }
    c->dirty = 1;
}
