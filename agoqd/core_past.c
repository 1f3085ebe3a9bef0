/* Terms and budget versions only rise, and what is refused as old rests on that. After the state was removed
 * or put back, ranks may have heard more than this daemon has said: then it goes above them, durably, before
 * it says anything (S1, S3, S8). How far one message may carry it is bounded, because a number that is used
 * up is so for good. */
#include <inttypes.h>
#include <stdio.h>

#include "agoqd/core_past.h"
#include "common/log.h"

#define MOST_TERMS_AHEAD    65536               /* starts of the daemon */
#define MOST_VERSIONS_AHEAD ((uint64_t)1 << 32) /* requests of operators */

/* Raises the term, the version of b (unless NULL), or both. 0, or -1: nothing was changed. */
static int go_above(core *c, uint64_t term, budget *b, uint64_t version) {
    uint64_t old_term = c->term, old_next = c->budgets.version, old_version = b ? b->version : 0;
    if (term >= c->term) c->term = term + 1;
    if (b) {
        if (version > c->budgets.version) c->budgets.version = version;
        b->version = budgets_next_version(&c->budgets);
    }
    if (c->term <= WIRE_MAX_TERM && core_store(c, &c->budgets) == AGOQ_OK) {
        log_write(LOG_LEVEL_INFO, "core",
                  "a rank had heard more: term=%" PRIu64 " (was %" PRIu64 ") budget_version=%" PRIu64
                  " (was %" PRIu64 ")",
                  c->term, old_term, b ? b->version : c->budgets.version, b ? old_version : old_next);
        return 0;
    }
    c->term = old_term;
    c->budgets.version = old_next;
    if (b) b->version = old_version;
    core_alarm(c, "a rank has heard a later term or budget version, and one above it cannot be stored");
    return -1;
}

static uint64_t later_term(uint64_t term, uint64_t id) {
    return plan_id_term(id) > term ? plan_id_term(id) : term;
}

int core_past_hello(core *c, const Agoq__Hello *m, int known, budget *b, char *text, size_t size) {
    const uint64_t ids[3] = {m->applied_id, m->prepared_id, m->vote_id};
    uint64_t term = m->highest_term;
    for (int i = 0; i < 3; i++) term = later_term(term, ids[i]);
    if (term > c->term + MOST_TERMS_AHEAD || m->budget_version > c->budgets.version + MOST_VERSIONS_AHEAD) {
        snprintf(text, size,
                 "it says it has heard term %" PRIu64 " and budget version %" PRIu64 ", far above %" PRIu64
                 " and %" PRIu64 " of this daemon",
                 term, m->budget_version, c->term, c->budgets.version);
        return WIRE_REFUSE_PAST;
    }
    int new_term = term > c->term || (term == c->term && !known),
        new_version = m->budget_version > b->version;
    if (!new_term && !new_version) return 0;
    if (go_above(c, new_term ? term : c->term - 1, new_version ? b : NULL, m->budget_version) == 0) return 0;
    snprintf(text, size, "it has heard a later term or budget version, and one above it cannot be stored");
    return WIRE_REFUSE_LIMIT;
}

/* A CANCEL that withdraws nothing but what was made under an older version. */
static void tell(core *c, const session *s, const budget *b) {
    Agoq__Cancel m = AGOQ__CANCEL__INIT;
    m.budget_version = b->version;
    core_send(c, &s->peer, c->ranks.job, AGOQ__ENVELOPE__BODY_CANCEL, &m, 0, WIRE_MAX_RANK_BYTES);
}

void core_past_version(core *c, const session *s, uint64_t version) {
    budget *b = budgets_find(&c->budgets, s->who.device);
    if (!b || version <= b->version) return;
    if (version > c->budgets.version + MOST_VERSIONS_AHEAD) {
        char text[160];
        snprintf(text, sizeof text, "rank %d says it has seen budget version %" PRIu64 ", far above %" PRIu64,
                 s->who.rank, version, c->budgets.version);
        core_alarm(c, text);
        return;
    }
    if (go_above(c, 0, b, version) == 0) tell(c, s, b);
}

void core_past_nack(core *c, const session *s, const Agoq__Nack *m) {
    budget *b = budgets_find(&c->budgets, s->who.device);
    if (c->cycle.state == CYCLE_IDLE || m->id != c->cycle.id) return; /* late: it was dealt with */
    if (m->reason == AGOQ__NACK_REASON__NACK_OLD_TERM && plan_id_term(m->id) == c->term)
        (void)go_above(c, c->term, NULL, 0);
    if (m->reason == AGOQ__NACK_REASON__NACK_OLD_BUDGET && b && go_above(c, 0, b, b->version) == 0)
        tell(c, s, b);
}
