/* Budgets: an operator's request, and when a cut one is effective (S8, S11). The order is the point: judged,
 * stored, in memory, CANCEL to the ranks (which from then on refuse older plans), a new plan; all of it
 * within one event. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/core_budget.h"
#include "agoqd/core_decide.h"
#include "agoqd/core_words.h"
#include "common/log.h"
#include "common/units.h"

int core_budget_named(const core *c, const core_budget_request *r, const budget *b) {
    if (r->device[0]) return strcmp(b->device, r->device) == 0;
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        if (sessions_present(s) && s->who.stage == r->stage && strcmp(s->who.device, b->device) == 0)
            return 1;
    }
    return 0;
}

/* Does what the rank runs, and whatever it may still switch to, fit `bytes`? Unknown plans do not. */
static int rank_fits(core *c, const session *s, uint64_t bytes) {
    if (!s->has_held || s->state == SESSION_EXPECTED) return 0;
    const uint64_t ids[3] = {s->who.applied_id, s->now.vote_id, s->now.prepared_id};
    planner_stage stage = held_stage(&s->held);
    uint64_t usable = budgets_usable(bytes, c->conf->margin_ppm);
    for (int i = 0; i < 3; i++) {
        if (i > 0 && ids[i] == 0) continue; /* no vote, nothing prepared; applied 0 is the floor plan */
        planned *p = plans_find(&c->plans, ids[i]);
        if (ids[i] && !p) return 0;
        if (held_predict(&stage, p ? &p->plan : NULL) > usable) return 0;
    }
    return 1;
}

static int device_fits(core *c, const budget *b, uint64_t bytes, uint64_t seen_version) {
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        if (!sessions_present(s) || strcmp(s->who.device, b->device)) continue;
        if (s->now.budget_version < seen_version || !rank_fits(c, s, bytes)) return 0;
    }
    return 1;
}

static int version_is_pending(const core *c, uint64_t version) {
    for (uint32_t i = 0; i < c->budgets.n; i++) {
        if (c->budgets.list[i].version == version && c->budgets.list[i].pending) return 1;
    }
    return 0;
}

static void note_effective(core *c, const budget *b, int64_t now) {
    char bytes[32];
    units_format_bytes(b->bytes, bytes);
    log_write(LOG_LEVEL_INFO, "budget", "budget %s of %s is effective version=%" PRIu64 " step=%" PRId64,
              bytes, b->device, b->version, b->step_effective);
    history_event *e = history_budget(&c->history, b->version);
    if (!e || version_is_pending(c, b->version)) return;
    e->steps_to_effect = b->step_effective > e->step ? b->step_effective - e->step : 0;
    e->ms_to_effect = b->requested_ms >= 0 ? (uint64_t)(now - b->requested_ms) : 0;
}

void core_budget_settle(core *c, int64_t now) {
    for (uint32_t i = 0; i < c->budgets.n; i++) {
        budget *b = &c->budgets.list[i];
        if (!b->pending || !device_fits(c, b, b->bytes, b->version)) continue;
        int64_t step = -1; /* where the ranks of the device switched */
        for (int32_t k = 0; k < c->ranks.world; k++) {
            const session *s = &c->ranks.ranks[k];
            if (strcmp(s->who.device, b->device)) continue;
            int64_t at = s->now.applied_step >= b->step_requested ? s->now.applied_step : s->now.step;
            if (at > step) step = at;
        }
        budgets_effective(b, step);
        c->unstored = 1;
        note_effective(c, b, now);
    }
}

/* After a cut: from now on the ranks refuse plans of the old budget, and drop one they only hold. */
static void send_cancel(core *c, uint64_t version) {
    for (int32_t i = 0; i < c->ranks.world; i++) {
        session *s = &c->ranks.ranks[i];
        const budget *b = s->state == SESSION_LIVE ? budgets_find(&c->budgets, s->who.device) : NULL;
        if (!b || b->version != version) continue;
        Agoq__Cancel m = AGOQ__CANCEL__INIT;
        m.budget_version = b->version;
        m.all = 1;
        core_send(c, &s->peer, c->ranks.job, AGOQ__ENVELOPE__BODY_CANCEL, &m, 0, WIRE_MAX_RANK_BYTES);
    }
}

/* Applies the request to a copy. 0, or an exit code. */
static int change_copy(core *c, const core_budget_request *r, budgets *copy, int64_t now, uint32_t *n_named,
                       char *text, size_t size) {
    uint64_t version = budgets_next_version(copy);
    int64_t step = sessions_step(&c->ranks);
    *n_named = 0;
    for (uint32_t i = 0; i < copy->n; i++) {
        budget *b = &copy->list[i];
        if (!core_budget_named(c, r, b)) continue;
        if (r->has_if_version && b->version != r->if_version) {
            snprintf(text, size,
                     "the budget of %s has version %" PRIu64 ", not %" PRIu64
                     ": read it again (agoqctl budget get)",
                     b->device, b->version, r->if_version);
            return 7;
        }
        uint64_t bytes = r->reset ? b->configured_bytes : r->bytes;
        if (bytes == 0) {
            snprintf(text, size, "%s: %s", b->device,
                     r->reset ? "no budget is configured to go back to" : "0 bytes is no budget");
            return 1;
        }
        budgets_set(b, bytes, version, device_fits(c, b, bytes, version), step, now);
        (*n_named)++;
    }
    if (*n_named) return 0;
    if (r->device[0]) {
        snprintf(text, size, "device %.127s is not known here: see agoqctl budget get", r->device);
    } else {
        snprintf(text, size, "no rank of stage %d is connected", r->stage);
    }
    return 1;
}

/* S11: would any plan fit the stages that the request is about? 5 with overshoot and levers if none. While
 * ranks hold memory that nobody has described yet (after a restart, at a job's start) the answer is "not
 * now": what is stored unjudged could never be met. Without any rank there is nothing to judge. */
static int check_feasible(core *c, const core_budget_request *r, const budgets *copy, planner_result *result,
                          merged *m, char *text, size_t size) {
    char waiting[512];
    merge_status state =
        merge_build(&c->ranks, copy, c->conf, NULL, MERGE_TO_JUDGE, m, waiting, sizeof waiting);
    if (state != MERGE_OK) {
        sessions_counts n = sessions_count(&c->ranks);
        if (n.expected + n.live + n.silent == 0) return 0;
        snprintf(text, size,
                 "nothing was stored: whether a plan fits cannot be judged yet (%s); try again when "
                 "agoqctl status shows every rank live",
                 waiting);
        return 1;
    }
    agoq_status status = planner_solve(&m->problem, result);
    if (status != AGOQ_OK) {
        snprintf(text, size, "the planner refuses the problem (status %d)", (int)status);
        return 1;
    }
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        const budget *b = budgets_find(copy, s->who.device);
        if (!b || !core_budget_named(c, r, b) || !(result->stages[s->who.stage].why & PLANNER_WHY_INFEASIBLE))
            continue;
        words_infeasible(m, result, text, size);
        return 5;
    }
    return 0;
}

static void note_request(core *c, const core_budget_request *r, const budgets *before, const budgets *after) {
    char from[32] = "none", to[32] = "", what[160];
    const budget *named = NULL;
    for (uint32_t i = 0; i < after->n; i++) {
        if (!core_budget_named(c, r, &after->list[i])) continue;
        named = &after->list[i];
        if (before->list[i].bytes) units_format_bytes(before->list[i].bytes, from);
        units_format_bytes(named->bytes, to);
        break;
    }
    if (!named) return;
    if (r->device[0]) {
        snprintf(what, sizeof what, "%.127s", r->device);
    } else {
        snprintf(what, sizeof what, "stage %d", r->stage);
    }
    core_dirty(c, "operator: %s budget %s -> %s", what, from, to);
    history_event *e =
        history_add(&c->history, HISTORY_BUDGET, c->io.wall_ms(c->io.user), sessions_step(&c->ranks),
                    "%s (version %" PRIu64 ", uid %" PRId64 ")%s%.200s", c->why.cause, named->version, r->uid,
                    r->why[0] ? ": " : "", r->why);
    e->budget_version = named->version;
    if (!version_is_pending(c, named->version)) e->steps_to_effect = 0;
}

void core_budget_result_fini(core_budget_result *result) {
    budgets_fini(&result->after);
    planner_result_fini(&result->solved);
    merge_fini(&result->problem);
}

/* What is decided becomes true: in memory, then on the wire. */
static void take_effect(core *c, const core_budget_request *r, budgets *copy, int64_t now) {
    budgets before = c->budgets;
    c->budgets = *copy;
    note_request(c, r, &before, &c->budgets);
    budgets_fini(&before);
    /* The operator knows better than an old guard. */
    for (int32_t i = 0; c->caps && i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        const budget *b = budgets_find(&c->budgets, s->who.device);
        if (b && b->version == c->budgets.version) c->caps[s->who.stage] = 0;
    }
    core_calm(c);
    core_act(c, cycle_supersede(&c->cycle, "a budget was changed", now), now);
    send_cancel(c, c->budgets.version);
}

int core_budget_set(core *c, const core_budget_request *r, int64_t now, core_budget_result *result,
                    char *text, size_t text_size) {
    uint32_t n = 0;
    budgets copy = {0};
    if (budgets_copy(&result->after, &c->budgets) != AGOQ_OK) {
        snprintf(text, text_size, "out of memory");
        return 1;
    }
    int code = change_copy(c, r, &result->after, now, &n, text, text_size);
    if (!code)
        code = check_feasible(c, r, &result->after, &result->solved, &result->problem, text, text_size);
    if (code || r->dry_run) return code;
    if (budgets_copy(&copy, &result->after) != AGOQ_OK) {
        snprintf(text, text_size, "out of memory");
        return 1;
    }
    if (core_store(c, &copy) != AGOQ_OK) {
        budgets_fini(&copy);
        snprintf(text, text_size,
                 "the budget cannot be stored under state_dir (disk full?): nothing was changed");
        core_alarm(c, text);
        return 1;
    }
    take_effect(c, r, &copy, now);
    return 0;
}
