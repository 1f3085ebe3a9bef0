/* From what is known to a plan on its way: collect, solve, compare with what runs, propose, and what the
 * cycle asks for. core_decide is level-triggered: it may be called at any time and does nothing if nothing is
 * to be done. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/core_decide.h"
#include "agoqd/core_words.h"
#include "common/log.h"
#include "common/mem.h"

/* Ranks report a switch one after another; longer than that, they really differ. */
#define MIXED_SETTLE_MS 500

void core_dirty(core *c, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(c->why.cause, sizeof c->why.cause, format, args);
    va_end(args);
    c->dirty = 1;
}

static void send_abort(core *c, uint64_t id, const char *reason) {
    Agoq__Abort m = AGOQ__ABORT__INIT;
    char legal[WIRE_MAX_STRING + 1];
    m.id = id;
    m.reason = wire_text(legal, sizeof legal, reason);
    for (int32_t i = 0; i < c->ranks.world; i++) {
        session *s = &c->ranks.ranks[i];
        if (s->state == SESSION_LIVE)
            core_send(c, &s->peer, c->ranks.job, AGOQ__ENVELOPE__BODY_ABORT, &m, 0, WIRE_MAX_RANK_BYTES);
    }
}

/* The event of the plan in flight, if history still has it. */
static history_event *proposed_event(core *c) {
    if (c->proposed.event == 0 || c->history.n - c->proposed.event >= HISTORY_KEPT) return NULL;
    history_event *e = &c->history.event[(c->proposed.event - 1) % HISTORY_KEPT];
    return e->plan_id == c->cycle.id ? e : NULL;
}

void core_act(core *c, cycle_action action, int64_t now) {
    char name[32];
    plan_id_format(c->cycle.id, name);
    if (action == CYCLE_NOW_ARMED) log_write(LOG_LEVEL_INFO, "plan", "plan %s is held by every rank", name);
    if (action == CYCLE_ABORT) {
        send_abort(c, c->cycle.id, c->cycle.reason);
        history_add(&c->history, HISTORY_PLAN, c->io.wall_ms(c->io.user), sessions_step(&c->ranks),
                    "plan %s withdrawn: %s", name, c->cycle.reason)
            ->plan_id = c->cycle.id;
        c->dirty = 1;
    }
    if (action == CYCLE_DONE) {
        int64_t step = sessions_applied_step(&c->ranks);
        history_event *e = proposed_event(c);
        if (e) {
            int64_t from = e->step > 0 ? e->step : 0; /* no report yet: since the start */
            e->steps_to_effect = step > from ? step - from : 0;
            e->ms_to_effect = (uint64_t)(now - c->proposed.ms);
        }
        c->dirty = 1;
    }
}

void core_send_due(core *c, int64_t now) {
    for (int rank; (rank = cycle_due(&c->cycle, now)) >= 0;) {
        session *s = sessions_at(&c->ranks, rank);
        planned *p = plans_find(&c->plans, c->cycle.id);
        budget *b = s ? budgets_find(&c->budgets, s->who.device) : NULL;
        if (!s || !p || !b || s->state != SESSION_LIVE) continue;
        Agoq__Prepare m = AGOQ__PREPARE__INIT;
        char legal[WIRE_MAX_STRING + 1];
        m.id = p->id;
        m.hash = p->hash;
        m.plan.data = p->bytes;
        m.plan.len = p->size;
        m.budget_version = b->version;
        m.why = wire_text(legal, sizeof legal, p->why);
        core_send(c, &s->peer, c->ranks.job, AGOQ__ENVELOPE__BODY_PREPARE, &m, 0, WIRE_MAX_RANK_BYTES);
    }
}

const char *core_veto(const core *c, const plan *p) {
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        const budget *b = budgets_find(&c->budgets, s->who.device);
        if (!s->has_held || !b) return "a rank or its budget is not known any more";
        planner_stage stage = held_stage(&s->held);
        for (uint32_t k = 0; k < stage.n_items; k++) {
            int bits = plan_bits(p, stage.items[k].layer, stage.items[k].role),
                index = agoq_width_index(bits);
            if (index < 0 || !(stage.items[k].widths >> index & 1))
                return "a rank does not allow a width of the plan";
        }
        if (b->bytes && held_predict(&stage, p) > budgets_usable(b->bytes, c->conf->margin_ppm))
            return "it would break the budget of a device";
    }
    return NULL;
}

static uint64_t next_plan_id(core *c) {
    if (c->plan_seq >= 0xffffff) { /* sixteen million plans: go on in the next term */
        uint64_t before = c->term;
        c->term++;
        if (c->term > WIRE_MAX_TERM || core_store(c, &c->budgets) != AGOQ_OK) {
            c->term = before;
            return 0;
        }
        c->plan_seq = 0;
    }
    return plan_id_make((uint32_t)c->term, c->conf->node_index, ++c->plan_seq);
}

static void propose(core *c, const plan *p, const char *why, int64_t now) {
    uint8_t bytes[PLAN_MAX_BYTES];
    size_t size = 0;
    planned *made = NULL;
    const char *no = core_veto(c, p);
    uint64_t id = no ? 0 : next_plan_id(c);
    agoq_status status = id ? plan_encode(p, bytes, sizeof bytes, &size) : AGOQ_E_STATE;
    if (status == AGOQ_OK) status = plans_add(&c->plans, id, 0, bytes, size, why, &made);
    if (status == AGOQ_OK) status = cycle_start(&c->cycle, id, made->hash, (uint32_t)c->ranks.world, now);
    if (status != AGOQ_OK) {
        char text[256];
        snprintf(text, sizeof text, "a plan was made and not proposed: %s",
                 no                       ? no
                 : status == AGOQ_E_LIMIT ? "too many entries, or too many plans in use"
                                          : "out of memory or ids");
        core_alarm(c, text);
        return;
    }
    char name[32];
    plan_id_format(id, name);
    history_event *e = history_add(&c->history, HISTORY_PLAN, c->io.wall_ms(c->io.user),
                                   sessions_step(&c->ranks), "plan %s: %.450s", name, why);
    e->plan_id = id;
    c->proposed.event = c->history.n;
    c->proposed.ms = now;
    c->why.cause[0] = 0;
}

static uint32_t part_ppm(uint64_t bytes, uint64_t usable) {
    const double part = usable ? (double)bytes / (double)usable * 1e6 : 4e9;
    return part < 4e9 ? (uint32_t)part : 4000000000u;
}

uint32_t core_seen_ppm(const core *c, const session *s, uint32_t margin_ppm) {
    const budget *b = budgets_find(&c->budgets, s->who.device);
    const int known = b && b->bytes && s->who.applied_id == c->current_id;
    return known ? part_ppm(s->now.peak_since_switch_bytes, budgets_usable(b->bytes, margin_ppm)) : 0;
}

/* How full a stage is: what its plan needs, or the most that a rank was seen to use of its own device. */
static uint32_t full_ppm(const core *c, const planner_stage *stage, uint32_t no, uint64_t need) {
    uint32_t full = part_ppm(need, budgets_usable(stage->budget_bytes, stage->margin_ppm));
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        const uint32_t seen = (uint32_t)s->who.stage == no ? core_seen_ppm(c, s, stage->margin_ppm) : 0;
        if (seen > full) full = seen;
    }
    return full;
}

/* The plan that runs, measured against today's problem and what ranks report. */
static void measure_current(const core *c, const merged *m, const plan *now_plan, policy_input *in,
                            const plan *next) {
    for (uint32_t s = 0; s < m->problem.n_stages; s++) {
        const planner_stage *stage = &m->stages[s];
        uint64_t usable = budgets_usable(stage->budget_bytes, stage->margin_ppm),
                 need = held_predict(stage, now_plan);
        if (need > usable) in->must = 1;
        const uint32_t full = full_ppm(c, stage, s, need), free_ppm = full < 1000000 ? 1000000 - full : 0;
        if (free_ppm > in->free_ppm) in->free_ppm = free_ppm;
        if (full > in->peak_ppm) {
            in->peak_ppm = full;
            in->shrinks = next->stages[s].predicted_peak_bytes < need;
        }
        if (s < now_plan->n_stages) {
            const plan_stage *was = &now_plan->stages[s];
            if (was->budget_version != next->stages[s].budget_version ||
                was->budget_bytes != next->stages[s].budget_bytes)
                in->asked = 1;
            if (need > was->predicted_peak_bytes) in->must = 1; /* it promises less than it needs */
        }
        for (uint32_t i = 0; i < stage->n_items; i++) {
            int bits = plan_bits(now_plan, stage->items[i].layer, stage->items[i].role),
                index = agoq_width_index(bits);
            if (index < 0 || !(stage->items[i].widths >> index & 1)) in->must = 1;
            in->objective_now += stage->items[i].sensitivity * planner_error(bits);
        }
    }
}

/* Growth by one width per tensor: predictions are made anew. 0: that does not fit after all. */
static int limit_growth(const merged *m, const plan *from, plan *to) {
    policy_step(&m->problem, from, to);
    for (uint32_t s = 0; s < to->n_stages; s++) {
        uint64_t need = held_predict(&m->stages[s], to);
        if (need > budgets_usable(m->stages[s].budget_bytes, m->stages[s].margin_ppm)) return 0;
        to->stages[s].predicted_peak_bytes = need;
    }
    return 1;
}

static void compare_and_propose(core *c, const merged *m, planner_result *r, int64_t now) {
    uint8_t bytes[PLAN_MAX_BYTES];
    size_t size = 0;
    policy_input in = {.dwell_steps = c->conf->dwell_steps};
    planned *current = plans_find(&c->plans, c->current_id);
    if (plan_encode(&r->plan, bytes, sizeof bytes, &size) != AGOQ_OK) {
        core_alarm(c, "the plan is too large to be sent");
        return;
    }
    c->again = 0;
    if (c->mixed && now - c->at.mixed_ms < MIXED_SETTLE_MS) {
        c->again = 1;
        return;
    }
    in.same_bytes = current && !c->mixed && plan_hash(bytes, size) == current->hash;
    if (!current || c->mixed || c->current_id == 0) {
        in.must = 1;
    } else if (!in.same_bytes) {
        measure_current(c, m, &current->plan, &in, &r->plan);
        for (uint32_t s = 0; s < m->problem.n_stages; s++) in.objective_new += r->stages[s].objective;
        in.steps_since_switch = sessions_step(&c->ranks) - c->current_step;
    }
    policy_answer answer = policy_decide(&c->policy, &in, now);
    c->phase = CORE_IDLE;
    c->again = answer == POLICY_LATER;
    if (answer == POLICY_KEEP) c->why.cause[0] = 0;
    if (answer == POLICY_STEP && !limit_growth(m, &current->plan, &r->plan)) answer = POLICY_PROPOSE;
    if (answer != POLICY_PROPOSE && answer != POLICY_STEP) return;
    char why[PLANS_WHY_MAX];
    words_plan(c, m, current ? &current->plan : NULL, r, why, sizeof why);
    propose(c, &r->plan, why, now);
}

/* A problem that the guard's caps alone make infeasible is solved at the least widths there: r->plan has
 * them. */
static int feasible_without_caps(core *c, planner_result *r) {
    merged plain;
    planner_result result = {0};
    char text[256];
    if (!c->caps || merge_build(&c->ranks, &c->budgets, c->conf, NULL, MERGE_TO_PLAN, &plain, text,
                                sizeof text) != MERGE_OK)
        return 0;
    int feasible = planner_solve(&plain.problem, &result) == AGOQ_OK && result.feasible;
    planner_result_fini(&result);
    for (uint32_t s = 0; feasible && s < plain.problem.n_stages; s++)
        r->plan.stages[s].predicted_peak_bytes = held_predict(&plain.stages[s], &r->plan);
    merge_fini(&plain);
    return feasible;
}

static void solve(core *c, const merged *m, int64_t now) {
    planner_result r = {0};
    char text[512];
    agoq_status status = planner_solve(&m->problem, &r);
    if (status != AGOQ_OK) {
        snprintf(text, sizeof text, "the planner refuses the problem (status %d)", (int)status);
        c->phase = CORE_COLLECT;
        core_alarm(c, text);
        snprintf(c->why.waiting, sizeof c->why.waiting, "%s", text);
        return;
    }
    if (!r.feasible && !feasible_without_caps(c, &r)) {
        c->phase = CORE_INFEASIBLE;
        words_infeasible(m, &r, text, sizeof text);
        snprintf(c->why.waiting, sizeof c->why.waiting, "%s", text);
        core_alarm(c, text);
    } else {
        if (c->phase == CORE_INFEASIBLE) core_calm(c);
        compare_and_propose(c, m, &r, now);
    }
    planner_result_fini(&r);
}

void core_decide(core *c, int64_t now) {
    if (!c->dirty || !cycle_ready(&c->cycle, now)) return;
    c->dirty = 0;
    if (sessions_count(&c->ranks).expected > 0) {
        c->phase = CORE_RECOVER;
        snprintf(c->why.waiting, sizeof c->why.waiting,
                 "%u ranks of the stored roster have not said HELLO again",
                 sessions_count(&c->ranks).expected);
        return;
    }
    merged m;
    merge_status status = merge_build(&c->ranks, &c->budgets, c->conf, c->caps, MERGE_TO_PLAN, &m,
                                      c->why.waiting, sizeof c->why.waiting);
    if (status != MERGE_OK) {
        c->phase = CORE_COLLECT;
        if (status != MERGE_WAIT) core_alarm(c, c->why.waiting);
        return;
    }
    c->why.waiting[0] = 0;
    solve(c, &m, now);
    merge_fini(&m);
}
