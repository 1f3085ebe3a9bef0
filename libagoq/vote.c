/* See vote.h. */
#include "libagoq/vote.h"

#include "planner/plan.h"

static uint64_t minimum(const uint64_t *words, int i) {
    return words[2 * i];
}

static uint64_t maximum(const uint64_t *words, int i) {
    return ~words[2 * i + 1];
}

vote_outcome vote_decide(const uint64_t reduced[VOTE_WORDS]) {
    for (int i = 0; i < 3; i++) {
        if (minimum(reduced, i) > maximum(reduced, i)) return VOTE_BROKEN;
    }
    const int same_plan =
        minimum(reduced, 0) == maximum(reduced, 0) && minimum(reduced, 1) == maximum(reduced, 1);
    if (same_plan && minimum(reduced, 0) != 0) return VOTE_SWITCH;
    return minimum(reduced, 2) == maximum(reduced, 2) ? VOTE_KEEP : VOTE_FLOOR;
}

static void forget_prepared(vote *v) {
    v->prepared_id = v->prepared_hash = v->prepared_budget = 0;
    v->drop = 0;
}

static int voted_on(const vote *v) {
    return v->running && v->voted_id != 0;
}

vote_answer vote_prepare(vote *v, uint64_t id, uint64_t hash, uint64_t budget_version) {
    if (id == v->prepared_id && hash != v->prepared_hash) return VOTE_SAME_ID;
    if (id == v->applied_id && hash != v->applied_hash) return VOTE_SAME_ID;
    if (budget_version < v->highest_budget) return VOTE_OLD_BUDGET;
    if (plan_id_term(id) < v->highest_term) return VOTE_OLD_TERM;
    vote_heard(v, budget_version, plan_id_term(id));
    if (id == v->applied_id) return VOTE_KNOWN;
    if (id == v->prepared_id) return v->drop ? VOTE_BUSY : VOTE_KNOWN;
    if (voted_on(v)) return VOTE_BUSY;
    v->prepared_id = id;
    v->prepared_hash = hash;
    v->prepared_budget = budget_version;
    v->drop = 0;
    return VOTE_STORED;
}

void vote_heard(vote *v, uint64_t budget_version, uint64_t term) {
    if (budget_version > v->highest_budget) v->highest_budget = budget_version;
    if (term > v->highest_term) v->highest_term = term;
    if (v->prepared_id == 0) return;
    if (v->prepared_budget < v->highest_budget || plan_id_term(v->prepared_id) < v->highest_term)
        vote_withdraw(v, v->prepared_id, 0);
}

void vote_withdraw(vote *v, uint64_t id, int any) {
    if (v->prepared_id == 0 || (!any && id != v->prepared_id)) return;
    if (voted_on(v))
        v->drop = 1;
    else
        forget_prepared(v);
}

void vote_start(vote *v, uint64_t words[VOTE_WORDS]) {
    v->voted_id = v->prepared_id;
    v->voted_hash = v->prepared_hash;
    v->running = 1;
    const uint64_t said[3] = {v->voted_id, v->voted_hash, v->applied_id};
    for (int i = 0; i < 3; i++) {
        words[2 * i] = said[i];
        words[2 * i + 1] = ~said[i];
    }
}

vote_outcome vote_finish(vote *v, const uint64_t reduced[VOTE_WORDS]) {
    vote_outcome outcome = reduced ? vote_decide(reduced) : VOTE_KEEP;
    /* What all ranks hold must be what this rank holds; anything else comes from a broken transport. */
    if (outcome == VOTE_SWITCH &&
        (minimum(reduced, 0) != v->voted_id || minimum(reduced, 1) != v->voted_hash))
        outcome = VOTE_BROKEN;
    if (outcome == VOTE_KEEP && reduced && minimum(reduced, 2) != v->applied_id) outcome = VOTE_BROKEN;
    v->running = 0;
    if (outcome == VOTE_SWITCH) {
        v->applied_id = v->voted_id;
        v->applied_hash = v->voted_hash;
        forget_prepared(v);
    } else if (outcome == VOTE_FLOOR) {
        v->applied_id = v->applied_hash = 0;
    }
    if (v->drop) forget_prepared(v);
    v->voted_id = v->voted_hash = 0;
    return outcome;
}

vote_outcome vote_alone(vote *v) {
    if (v->prepared_id == 0) return VOTE_KEEP;
    v->applied_id = v->prepared_id;
    v->applied_hash = v->prepared_hash;
    forget_prepared(v);
    return VOTE_SWITCH;
}
