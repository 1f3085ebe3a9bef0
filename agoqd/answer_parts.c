/* See answer_parts.h. */
#include "agoqd/answer_parts.h"

#include <stdio.h>
#include <string.h>

#include "agoqd/core_words.h"
#include "common/mem.h"

#define MOST_SHOWN 1000 /* ranks or budgets in one reply; they must fit WIRE_MAX_CTL_BYTES */

struct answer_block {
    answer_block *next;
    max_align_t data[];
};

void *answer_alloc(answer_arena *a, size_t bytes) {
    answer_block *b = a->bad ? NULL : mem_zalloc(1, sizeof *b + bytes);
    if (!b) {
        a->bad = 1;
        return NULL;
    }
    b->next = a->blocks;
    a->blocks = b;
    return b->data;
}

void answer_free(answer_arena *a) {
    while (a->blocks) {
        answer_block *next = a->blocks->next;
        mem_free(a->blocks);
        a->blocks = next;
    }
}

char *answer_text(answer_arena *a, const char *text) {
    static char nothing[1];
    size_t room = strlen(text) + 1;
    if (room > WIRE_MAX_STRING + 1) room = WIRE_MAX_STRING + 1;
    char *to = room > 1 ? answer_alloc(a, room) : NULL;
    return to ? wire_text(to, room, text) : nothing;
}

static const char *phase_name(const core *c) {
    static const char *const names[] = {"idle", "recover", "collect", "infeasible"};
    return c->cycle.state == CYCLE_PREPARING ? "preparing"
           : c->cycle.state == CYCLE_ARMED   ? "armed"
                                             : names[c->phase];
}

void answer_status(const core *c, answer_arena *a, int64_t now, Agoq__CtlReply *reply) {
    Agoq__CtlStatus *s = answer_alloc(a, sizeof *s);
    if (!s) return;
    agoq__ctl_status__init(s);
    sessions_counts n = sessions_count(&c->ranks);
    const planned *p = plans_look(&c->plans, c->current_id);
    s->job = answer_text(a, c->ranks.job);
    s->term = c->term;
    s->state = answer_text(a, phase_name(c));
    s->ranks_live = n.live;
    s->ranks_silent = n.silent + n.expected;
    s->world = (uint32_t)c->ranks.world;
    s->plan_id = c->current_id;
    s->plan_hash = p ? p->hash : 0;
    s->step = sessions_step(&c->ranks);
    s->uptime_ms = (uint64_t)(now - c->started_ms);
    s->pid = c->io.pid;
    s->switches = c->count.switches;
    s->aborts = c->cycle.n_aborts;
    s->rejected_messages = c->count.rejected;
    const char *why = c->phase != CORE_IDLE && c->why.waiting[0] ? c->why.waiting : p ? p->why : "";
    s->why = answer_text(a, why);
    s->plan_age_ms = p && p->applied_ms >= 0 ? (uint64_t)(now - p->applied_ms) : 0;
    reply->status = s;
}

static Agoq__CtlRank *one_rank(const core *c, answer_arena *a, const session *s, int64_t now) {
    Agoq__CtlRank *r = answer_alloc(a, sizeof *r);
    if (!r) return NULL;
    agoq__ctl_rank__init(r);
    const budget *b = budgets_find(&c->budgets, s->who.device);
    const planned *p = plans_look(&c->plans, s->who.applied_id);
    r->rank = s->who.rank;
    r->stage = s->who.stage;
    r->dp = s->who.dp;
    r->device = answer_text(a, s->who.device);
    r->host = answer_text(a, s->who.host);
    r->pid = s->who.pid;
    r->state = answer_text(a, s->state == SESSION_EXPECTED ? "silent" : session_state_name(s->state));
    r->step = s->now.step;
    r->applied_id = s->who.applied_id;
    r->peak_bytes = s->now.peak_since_switch_bytes ? s->now.peak_since_switch_bytes : s->now.peak_bytes;
    r->saved_peak_bytes = s->now.saved_peak_bytes;
    r->budget_bytes = b ? b->bytes : 0;
    if (p && (uint32_t)s->who.stage < p->plan.n_stages)
        r->predicted_bytes = p->plan.stages[s->who.stage].predicted_peak_bytes;
    if (!p && s->has_held) {
        planner_stage stage = held_stage(&s->held);
        r->predicted_bytes = held_predict(&stage, NULL);
    }
    r->guarded = s->now.guarded;
    r->age_ms = (uint64_t)(now - s->heard_ms);
    r->disagreements = s->now.disagreements;
    r->reserved_bytes = s->now.reserved_bytes;
    r->oom_retries = s->oom_retries;
    return r;
}

void answer_ranks(const core *c, answer_arena *a, int64_t now, Agoq__CtlReply *reply) {
    reply->ranks = answer_alloc(a, (size_t)c->ranks.world * sizeof *reply->ranks + 1);
    for (int32_t i = 0; i < c->ranks.world && !a->bad; i++) {
        if (c->ranks.ranks[i].state == SESSION_NONE) continue;
        if (reply->n_ranks >= MOST_SHOWN) {
            reply->code = 8;
            reply->text = answer_text(a, "only the first 1000 ranks are shown");
            return;
        }
        reply->ranks[reply->n_ranks] = one_rank(c, a, &c->ranks.ranks[i], now);
        reply->n_ranks += !a->bad;
    }
}

void answer_plan(const core *c, answer_arena *a, uint64_t id, Agoq__CtlReply *reply) {
    uint64_t wanted = id ? id : c->current_id;
    const planned *p = plans_look(&c->plans, wanted);
    if (!p && id) {
        reply->code = 1;
        reply->text = answer_text(a, "this plan is not known (any more): see agoqctl plan history");
        return;
    }
    Agoq__CtlPlan *m = answer_alloc(a, sizeof *m);
    if (!m) return;
    agoq__ctl_plan__init(m);
    m->applied_step = -1;
    if (p) {
        m->id = p->id;
        m->hash = p->hash;
        m->bytes.data = p->bytes;
        m->bytes.len = p->size;
        m->applied_step = p->applied_step >= 0     ? p->applied_step
                          : p->id == c->current_id ? c->current_step
                                                   : -1;
    }
    m->why = answer_text(a, p ? p->why : c->why.waiting);
    reply->plan = m;
}

void answer_events(const core *c, answer_arena *a, Agoq__CtlReply *reply) {
    reply->events = answer_alloc(a, HISTORY_KEPT * sizeof *reply->events);
    const history_event *e;
    for (uint32_t i = 0; !a->bad && (e = history_at(&c->history, i)) != NULL; i++) {
        Agoq__CtlEvent *m = answer_alloc(a, sizeof *m);
        if (!m) return;
        agoq__ctl_event__init(m);
        m->wall_ms = (uint64_t)e->wall_ms;
        m->step = e->step;
        m->what = answer_text(a, history_what_name(e->what));
        m->why = answer_text(a, e->why);
        m->plan_id = e->plan_id;
        m->steps_to_effect = e->steps_to_effect;
        m->ms_to_effect = e->ms_to_effect;
        reply->events[reply->n_events++] = m;
    }
}

static int is_meant(const core *c, const answer_which *which, const budget *b) {
    if (which->changed) return core_budget_named(c, which->changed, b);
    return (!which->device[0] || !strcmp(which->device, b->device)) &&
           (which->stage < 0 || which->stage == b->stage) && b->version >= which->since;
}

static Agoq__CtlBudget *one_budget(answer_arena *a, const budget *b) {
    Agoq__CtlBudget *m = answer_alloc(a, sizeof *m);
    if (!m) return NULL;
    agoq__ctl_budget__init(m);
    m->device = answer_text(a, b->device);
    m->stage = b->stage;
    m->bytes = b->bytes;
    m->version = b->version;
    m->state = answer_text(a, b->pending ? "pending" : "effective");
    m->configured_bytes = b->configured_bytes;
    m->effective_bytes = b->effective_bytes;
    m->step_requested = b->step_requested;
    m->step_effective = b->step_effective;
    return m;
}

void answer_budgets(const core *c, answer_arena *a, const budgets *list, const answer_which *which,
                    Agoq__CtlReply *reply) {
    reply->budgets = answer_alloc(a, MOST_SHOWN * sizeof *reply->budgets);
    for (int pass = !which->pending_first; pass < 2; pass++) {
        for (uint32_t i = 0; i < list->n && !a->bad; i++) {
            const budget *b = &list->list[i];
            if ((which->pending_first && b->pending == pass) || !is_meant(c, which, b)) continue;
            if (reply->n_budgets >= MOST_SHOWN) {
                if (reply->code) return;
                reply->code = 8;
                reply->text =
                    answer_text(a, "only the first 1000 budgets are shown: name a device or a stage");
                return;
            }
            reply->budgets[reply->n_budgets] = one_budget(a, b);
            reply->n_budgets += !a->bad;
        }
    }
}

static void add_levers(answer_arena *a, const planner_stage_result *r, uint32_t stage,
                       Agoq__CtlStageInfo *m) {
    char text[256];
    m->levers = answer_alloc(a, PLANNER_MAX_LEVERS * sizeof *m->levers);
    for (uint32_t i = 0; i < r->n_levers && !a->bad; i++) {
        Agoq__CtlLever *l = answer_alloc(a, sizeof *l);
        if (!l) return;
        agoq__ctl_lever__init(l);
        words_lever(&r->levers[i], stage, text, sizeof text);
        l->text = answer_text(a, text);
        l->saves_bytes = r->levers[i].saves_bytes;
        l->enough = r->levers[i].enough;
        m->levers[m->n_levers++] = l;
    }
}

static void add_measured(const core *c, uint32_t stage, Agoq__CtlStageInfo *m) {
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        if ((uint32_t)s->who.stage == stage && sessions_present(s) &&
            s->now.peak_since_switch_bytes > m->measured_peak_bytes)
            m->measured_peak_bytes = s->now.peak_since_switch_bytes;
    }
}

/* Do the ranks of a stage run what a plan made now would give them? */
static int same_widths(const planner_stage *stage, const plan *running, const plan *fresh) {
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        int index = 0;
        while (!(item->widths >> index & 1)) index++;
        int bits = running ? plan_bits(running, item->layer, item->role) : agoq_width_bits(index);
        if (bits != plan_bits(fresh, item->layer, item->role)) return 0;
    }
    return 1;
}

/* Every figure is of one plan: `shown`. What r adds is true of every plan: the bound, the least overshoot and
 * its levers, and why a plan made now would be what it is. */
static Agoq__CtlStageInfo *one_stage(const core *c, answer_arena *a, const merged *m, const planner_result *r,
                                     uint32_t s, const planner_stage_result *shown, int same) {
    Agoq__CtlStageInfo *out = answer_alloc(a, sizeof *out);
    if (!out) return NULL;
    agoq__ctl_stage_info__init(out);
    const planner_stage *stage = &m->stages[s];
    const planner_stage_result *fresh = &r->stages[s];
    const int infeasible = (fresh->why & PLANNER_WHY_INFEASIBLE) != 0;
    out->stage = s;
    out->n_chunks = stage->n_chunks;
    out->n_live = (size_t)stage->n_live * stage->n_chunks;
    out->live = answer_alloc(a, out->n_live * sizeof *out->live + 1);
    if (out->live && out->n_live) memcpy(out->live, m->made[s].live, out->n_live * sizeof *out->live);
    out->budget_bytes = stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes;
    out->predicted_bytes = shown->predicted_peak_bytes;
    out->activation_bytes = shown->activation_peak_bytes;
    out->activation_bytes16 = shown->activation_peak_bytes16;
    out->overshoot_bytes = infeasible ? fresh->overshoot_bytes : shown->overshoot_bytes;
    if (out->budget_bytes) out->slack_bytes = shown->slack_bytes;
    out->why = same || infeasible ? fresh->why : shown->why;
    if (m->made[s].above_schedule) out->why |= PLANNER_WHY_LIVE_ABOVE_SCHEDULE;
    out->bits_mean = shown->bits_mean;
    out->objective = shown->objective;
    out->lower_bound = fresh->lower_bound;
    char text[WIRE_MAX_STRING + 1] = "";
    size_t used = 0;
    if (!same && !infeasible)
        used = (size_t)snprintf(text, sizeof text,
                                "not what a plan made now would be: that has mean width %.2f bits, ",
                                fresh->bits_mean);
    words_stage(m, r, s, text + used, sizeof text - used);
    out->why_text = answer_text(a, text);
    add_levers(a, fresh, s, out);
    add_measured(c, s, out);
    return out;
}

/* What all ranks run, measured; NULL: they run different plans, one that is forgotten, or it is the fresh one
 * that is asked for. */
static const planner_stage_result *measure_running(const core *c, answer_arena *a, const merged *m,
                                                   const plan **running) {
    const planned *p = plans_look(&c->plans, c->current_id);
    if (c->mixed || (c->current_id && !p)) return NULL;
    *running = p ? &p->plan : NULL;
    planner_stage_result *shown = answer_alloc(a, m->problem.n_stages * sizeof *shown);
    return shown && planner_measure_plan(&m->problem, *running, shown) == AGOQ_OK ? shown : NULL;
}

void answer_stages(const core *c, answer_arena *a, const merged *m, const planner_result *r, int32_t stage,
                   int current, Agoq__CtlReply *reply) {
    uint32_t n = m->problem.n_stages;
    const plan *running = NULL;
    const planner_stage_result *shown = current ? measure_running(c, a, m, &running) : NULL;
    uint32_t *units = answer_alloc(a, n * sizeof *units);
    uint8_t *paper = answer_alloc(a, n);
    reply->stages = answer_alloc(a, n * sizeof *reply->stages);
    for (uint32_t s = 0; s < n && !a->bad; s++) units[s] = m->made[s].live_units;
    int has_paper = !a->bad && planner_paper_rule(units, n, paper) == AGOQ_OK;
    for (uint32_t s = 0; s < n && !a->bad; s++) {
        if (stage >= 0 && (uint32_t)stage != s) continue;
        int same = !shown || same_widths(&m->stages[s], running, &r->plan);
        Agoq__CtlStageInfo *info = one_stage(c, a, m, r, s, shown ? &shown[s] : &r->stages[s], same);
        if (!info) return;
        info->paper_bits = has_paper ? paper[s] : 0;
        reply->stages[reply->n_stages++] = info;
    }
}
