/* What ranks say, and what their silence or exit means. Every message is idempotent: copies and late ones
 * change nothing (the session keeps the number of the newest). */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/core_ranks.h"
#include "agoqd/core_budget.h"
#include "agoqd/core_decide.h"
#include "agoqd/core_hello.h"
#include "agoqd/core_past.h"
#include "common/log.h"
#include "common/mem.h"

void core_rank_event(core *c, const char *format, ...) {
    char text[256];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    history_add(&c->history, HISTORY_RANK, c->io.wall_ms(c->io.user), sessions_step(&c->ranks), "%s", text);
}

void core_refuse(core *c, const peer *to, const Agoq__Envelope *e, int reason, const char *text) {
    Agoq__Refuse m = AGOQ__REFUSE__INIT;
    char legal[WIRE_MAX_STRING + 1];
    m.reason = (uint32_t)reason;
    m.text = wire_text(legal, sizeof legal, text);
    core_send(c, to, e->job, AGOQ__ENVELOPE__BODY_REFUSE, &m, e->seq, WIRE_MAX_RANK_BYTES);
}

static void send_ack(core *c, const session *s, uint64_t seq) {
    Agoq__Ack m = AGOQ__ACK__INIT;
    core_send(c, &s->peer, c->ranks.job, AGOQ__ENVELOPE__BODY_ACK, &m, seq, WIRE_MAX_RANK_BYTES);
}

static void handle_profile(core *c, session *s, const Agoq__Envelope *e) {
    held h;
    const char *why = "";
    if (e->seq <= s->held_seq) { /* a late copy */
        send_ack(c, s, e->seq);
        return;
    }
    agoq_status status =
        held_from_wire(e->profile, (uint32_t)c->ranks.n_stages, (uint32_t)s->who.stage, &h, &why);
    if (status != AGOQ_OK) {
        log_write(LOG_LEVEL_WARN, "rank", "rank %d profile refused: %s", s->who.rank, why);
        core_refuse(c, &s->peer, e, WIRE_REFUSE_PROFILE, why);
        return;
    }
    s->held_seq = e->seq;
    int changed = !s->has_held || !held_same(&s->held, &h);
    if (changed && s->has_held && s->held.observed_steps > 0 && h.observed_steps > 0)
        core_dirty(c, "rank %d holds something else now", s->who.rank);
    held_fini(&s->held);
    s->held = h;
    s->has_held = 1;
    c->dirty |= changed;
    send_ack(c, s, e->seq);
}

/* The memory guard of a rank has struck: from now on its stage gets less than its budget, below what was
 * observed. */
static void note_guard(core *c, session *s) {
    if (!s->now.guarded) {
        s->guard_noted = 0;
        return;
    }
    if (s->guard_noted && s->guard_noted_id == s->who.applied_id) return;
    if (!s->has_held) return;
    if (!c->caps && !(c->caps = mem_zalloc((size_t)c->ranks.n_stages, sizeof *c->caps))) return;
    s->guard_noted = 1;
    s->guard_noted_id = s->who.applied_id;
    planned *p = plans_find(&c->plans, s->who.applied_id);
    planner_stage stage = held_stage(&s->held);
    uint64_t need = held_predict(&stage, p ? &p->plan : NULL), seen = s->now.peak_since_switch_bytes;
    uint64_t cap = seen && seen < need ? seen - seen / 32 : need - need / 20, *old = &c->caps[s->who.stage];
    if (*old && cap >= *old) cap = *old - *old / 32;
    *old = cap;
    core_dirty(c, "memory guard: rank %d: %.160s", s->who.rank,
               s->now.guard_why[0] ? s->now.guard_why : "pressure");
    core_alarm(c, c->why.cause);
}

void core_other_bytes(core *c, int32_t rank, uint64_t id) {
    char text[128], name[32];
    plan_id_format(id, name);
    snprintf(text, sizeof text, "rank %d holds other bytes under the id of plan %s", rank, name);
    core_alarm(c, text);
}

/* S1: an id stands for one content. */
static void check_content(core *c, const session *s, uint64_t id, uint64_t hash) {
    const planned *p = plans_find(&c->plans, id);
    if (p && p->hash != hash) core_other_bytes(c, s->who.rank, id);
}

static void handle_report(core *c, session *s, const Agoq__Envelope *e, int64_t now) {
    const Agoq__Report *m = e->report;
    uint64_t applied = s->who.applied_id;
    const uint32_t before = core_seen_ppm(c, s, c->conf->margin_ppm);
    if (!session_report(s, e->seq, m)) {
        c->count.duplicates++;
        return;
    }
    core_past_version(c, s, m->budget_version);
    planned *p = plans_find(&c->plans, s->who.applied_id);
    if (p) s->now.applied_hash = p->hash;
    if (applied != s->who.applied_id) c->unstored = 1;
    const uint32_t seen = core_seen_ppm(c, s, c->conf->margin_ppm), full = planner_switch_defaults.full_ppm;
    if (before <= full && seen > full)
        core_dirty(c, "rank %d was seen at %u %% of what it may use", s->who.rank, seen / 10000);
    core_act(c, cycle_holds(&c->cycle, (uint32_t)s->who.rank, m->applied_id, m->prepared_id, m->vote_id, now),
             now);
    note_guard(c, s);
}

/* A rank that takes a plan has seen the budget version that came with it, and no vote on another plan is
 * open. */
static void handle_prepared(core *c, session *s, const Agoq__Envelope *e, int64_t now) {
    const Agoq__Prepared *m = e->prepared;
    const budget *b = budgets_find(&c->budgets, s->who.device);
    check_content(c, s, m->id, m->hash);
    if (c->cycle.state != CYCLE_IDLE && m->id == c->cycle.id && m->hash == c->cycle.hash && b)
        session_prepared(s, e->seq, m->id, b->version);
    core_act(c, cycle_prepared(&c->cycle, (uint32_t)s->who.rank, m->id, m->hash, now), now);
}

static void handle_nack(core *c, session *s, const Agoq__Envelope *e, int64_t now) {
    const Agoq__Nack *m = e->nack;
    core_past_nack(c, s, m);
    if (m->reason == AGOQ__NACK_REASON__NACK_SAME_ID) core_other_bytes(c, s->who.rank, m->id);
    cycle_action action = cycle_nack(&c->cycle, (uint32_t)s->who.rank, m->id, m->reason, m->text, now);
    core_act(c, action, now);
    if (action == CYCLE_ABORT) c->dirty = 1;
}

/* The first rank to see a cut tells at which step it came: from there its delay is counted. */
static void handle_cancelled(core *c, session *s, const Agoq__Envelope *e, int64_t now) {
    if (!session_cancelled(s, e->seq, e->cancelled)) return;
    core_past_version(c, s, e->cancelled->budget_version);
    budget *b = budgets_find(&c->budgets, s->who.device);
    history_event *event = b ? history_budget(&c->history, b->version) : NULL;
    if (event && s->now.budget_version >= b->version && !event->step_confirmed) {
        event->step_confirmed = 1;
        if (e->cancelled->step > event->step) event->step = b->step_requested = e->cancelled->step;
    }
    planned *p = plans_find(&c->plans, s->who.applied_id);
    if (p) s->now.applied_hash = p->hash;
    core_act(c,
             cycle_holds(&c->cycle, (uint32_t)s->who.rank, s->who.applied_id, s->now.prepared_id,
                         s->now.vote_id, now),
             now);
}

static void handle_applied(core *c, session *s, const Agoq__Envelope *e, int64_t now) {
    send_ack(c, s, e->seq);
    if (!session_applied(s, e->seq, e->applied)) return;
    check_content(c, s, e->applied->id, e->applied->hash);
    c->unstored = 1;
    s->guard_noted = 0;
    s->now.guarded = 0; /* the guard ends at a switch */
    core_act(c, cycle_applied(&c->cycle, (uint32_t)s->who.rank, e->applied->id, now), now);
}

static void handle_bye(core *c, session *s, const Agoq__Envelope *e, int64_t now) {
    char reason[300];
    snprintf(reason, sizeof reason, "rank %d said goodbye%s%.200s", s->who.rank,
             e->bye->reason[0] ? ": " : "", e->bye->reason);
    sessions_gone(s, now);
    c->unstored = c->dirty = 1;
    core_rank_event(c, "%s", reason);
    core_act(c, cycle_ranks_changed(&c->cycle, reason, now), now);
}

void core_rank_message(core *c, const Agoq__Envelope *e, const peer *from, int64_t now) {
    if (e->body_case == AGOQ__ENVELOPE__BODY_HELLO) {
        core_hello(c, e, from, now);
        return;
    }
    int woke = 0;
    session *s = sessions_heard(&c->ranks, e, from, now, &woke);
    if (!s) {
        if (e->body_case != AGOQ__ENVELOPE__BODY_BYE && e->body_case != AGOQ__ENVELOPE__BODY_ACK)
            core_refuse(c, from, e, WIRE_REFUSE_HELLO_FIRST,
                        "this daemon does not know you: say HELLO first");
        return;
    }
    if (woke) {
        c->dirty = 1;
        core_rank_event(c, "rank %d is back", s->who.rank);
    }
    switch (e->body_case) {
    case AGOQ__ENVELOPE__BODY_PROFILE:
        handle_profile(c, s, e);
        break;
    case AGOQ__ENVELOPE__BODY_REPORT:
        handle_report(c, s, e, now);
        break;
    case AGOQ__ENVELOPE__BODY_PREPARED:
        handle_prepared(c, s, e, now);
        break;
    case AGOQ__ENVELOPE__BODY_NACK:
        handle_nack(c, s, e, now);
        break;
    case AGOQ__ENVELOPE__BODY_CANCELLED:
        handle_cancelled(c, s, e, now);
        break;
    case AGOQ__ENVELOPE__BODY_APPLIED:
        handle_applied(c, s, e, now);
        break;
    case AGOQ__ENVELOPE__BODY_BYE:
        handle_bye(c, s, e, now);
        break;
    default:
        break; /* ACK: a sign of life */
    }
}

void core_check_exit(core *c, session *s, int64_t now) {
    if (!sessions_present(s) || c->io.alive(c->io.user, s->who.pid, s->who.start_time)) return;
    char reason[64];
    snprintf(reason, sizeof reason, "rank %d (pid %" PRIu64 ") has exited", s->who.rank, s->who.pid);
    sessions_gone(s, now);
    c->unstored = c->dirty = 1;
    core_rank_event(c, "%s", reason);
    core_act(c, cycle_ranks_changed(&c->cycle, reason, now), now);
}

void core_check_ranks(core *c, int64_t now) {
    sessions_counts before = sessions_count(&c->ranks);
    for (int32_t i = 0; i < c->ranks.world; i++) {
        session *s = &c->ranks.ranks[i];
        if (s->state == SESSION_LIVE && now - s->heard_ms >= c->conf->silent_ms) {
            s->state = SESSION_SILENT;
            core_rank_event(c, "rank %d has been silent for %" PRId64 " ms; its memory stays its own", i,
                            now - s->heard_ms);
        }
        core_check_exit(c, s, now);
    }
    sessions_counts after = sessions_count(&c->ranks);
    if (before.live + before.silent + before.expected > 0 && after.live + after.silent + after.expected == 0)
        core_rank_event(c, "job %s: all ranks are gone", c->ranks.job);
}

/* The plan that every rank of the world runs. */
void core_settle(core *c, int64_t now) {
    uint64_t id = c->ranks.world > 0 ? c->ranks.ranks[0].who.applied_id : 0;
    int all = c->ranks.world > 0, mixed = 0;
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        all &= s->state == SESSION_LIVE || s->state == SESSION_SILENT;
        mixed |= sessions_present(s) && s->who.applied_id != id;
    }
    if (mixed != c->mixed) {
        c->mixed = mixed;
        c->at.mixed_ms = now;
        c->again = 1;
    }
    if (all && !mixed && id != c->current_id) {
        c->current_id = id;
        c->current_step = sessions_applied_step(&c->ranks);
        if (c->current_step < 0) c->current_step = sessions_step(&c->ranks);
        c->dirty = 1;
        planned *p = plans_find(&c->plans, id);
        if (p && p->applied_step < 0) {
            p->applied_step = c->current_step;
            p->applied_ms = now;
        }
        if (id && plan_id_term(id) == c->term) c->count.switches++; /* one of ours, not one found at HELLO */
        char name[32];
        plan_id_format(id, name);
        log_write(LOG_LEVEL_INFO, "plan", "every rank runs plan %s step=%" PRId64, name, c->current_step);
    }
    if (c->current_step < 0)
        c->current_step = sessions_step(&c->ranks); /* applied in an earlier life of the daemon */
    core_budget_settle(c, now);
}
