/* See cycle.h. */
#include "agoqd/cycle.h"

#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "proto/wire.h"

void cycle_init(cycle *c, int64_t timeout_ms) {
    *c = (cycle){.timeout_ms = timeout_ms, .silent_since_ms = -1, .backoff_ms = CYCLE_BACKOFF_MS};
}

void cycle_fini(cycle *c) {
    mem_free(c->ranks);
    *c = (cycle){0};
}

agoq_status cycle_start(cycle *c, uint64_t id, uint64_t hash, uint32_t n_ranks, int64_t now) {
    if (c->state != CYCLE_IDLE || id == 0 || n_ranks == 0) return AGOQ_E_STATE;
    cycle_rank *ranks = mem_zalloc(n_ranks, sizeof *ranks);
    if (!ranks) return AGOQ_E_NOMEM;
    for (uint32_t i = 0; i < n_ranks; i++) ranks[i].resend_ms = now;
    mem_free(c->ranks);
    c->ranks = ranks;
    c->n_ranks = n_ranks;
    c->id = id;
    c->hash = hash;
    c->state = CYCLE_PREPARING;
    c->started_ms = now;
    c->silent_since_ms = -1;
    c->reason[0] = 0;
    return AGOQ_OK;
}

static cycle_action stop(cycle *c, const char *reason, int64_t retry_ms) {
    if (c->state == CYCLE_IDLE) return CYCLE_NOTHING;
    snprintf(c->reason, sizeof c->reason, "%s", reason);
    c->state = CYCLE_IDLE;
    c->retry_ms = retry_ms;
    c->n_aborts++;
    return CYCLE_ABORT;
}

static cycle_action fail(cycle *c, const char *reason, int64_t now) {
    cycle_action action = stop(c, reason, now + c->backoff_ms);
    c->backoff_ms = 2 * c->backoff_ms > CYCLE_BACKOFF_MAX_MS ? CYCLE_BACKOFF_MAX_MS : 2 * c->backoff_ms;
    return action;
}

/* After any change of a rank's state. */
static cycle_action settle(cycle *c, int64_t now) {
    uint32_t held = 0, applied = 0;
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        held += c->ranks[i].state != CYCLE_RANK_SENT;
        applied += c->ranks[i].state == CYCLE_RANK_APPLIED;
    }
    if (applied == c->n_ranks) {
        c->state = CYCLE_IDLE;
        c->backoff_ms = CYCLE_BACKOFF_MS;
        c->retry_ms = now;
        c->n_done++;
        return CYCLE_DONE;
    }
    if (c->state == CYCLE_PREPARING && held == c->n_ranks) {
        c->state = CYCLE_ARMED;
        c->armed_ms = now;
        return CYCLE_NOW_ARMED;
    }
    if (c->state == CYCLE_ARMED && held < c->n_ranks) { /* a rank dropped it: the time-out runs afresh */
        c->state = CYCLE_PREPARING;
        c->started_ms = now;
    }
    return CYCLE_NOTHING;
}

static cycle_rank *rank_of(cycle *c, uint32_t rank, uint64_t id) {
    return c->state != CYCLE_IDLE && rank < c->n_ranks && id == c->id ? &c->ranks[rank] : NULL;
}

int cycle_due(cycle *c, int64_t now) {
    if (c->state == CYCLE_IDLE) return -1;
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        if (c->ranks[i].state == CYCLE_RANK_SENT && c->ranks[i].resend_ms <= now) {
            c->ranks[i].resend_ms = now + CYCLE_RESEND_MS;
            return (int)i;
        }
    }
    return -1;
}

cycle_action cycle_prepared(cycle *c, uint32_t rank, uint64_t id, uint64_t hash, int64_t now) {
    cycle_rank *r = rank_of(c, rank, id);
    if (!r) return CYCLE_NOTHING;
    if (hash != c->hash) return fail(c, "a rank holds other bytes under the same plan id", now);
    if (r->state == CYCLE_RANK_SENT) r->state = CYCLE_RANK_PREPARED;
    return settle(c, now);
}

cycle_action cycle_applied(cycle *c, uint32_t rank, uint64_t id, int64_t now) {
    cycle_rank *r = rank_of(c, rank, id);
    if (!r) return CYCLE_NOTHING;
    r->state = CYCLE_RANK_APPLIED;
    return settle(c, now);
}

cycle_action cycle_nack(cycle *c, uint32_t rank, uint64_t id, uint32_t reason, const char *text,
                        int64_t now) {
    cycle_rank *r = rank_of(c, rank, id);
    if (!r || r->state == CYCLE_RANK_APPLIED) return CYCLE_NOTHING;
    if (reason == AGOQ__NACK_REASON__NACK_BUSY) {
        r->state = CYCLE_RANK_SENT;
        r->resend_ms = now + CYCLE_BUSY_RETRY_MS;
        return settle(c, now);
    }
    char why[256];
    snprintf(why, sizeof why, "rank %u refused the plan (reason %u): %s", rank, reason, text);
    return fail(c, why, now);
}

cycle_action cycle_holds(cycle *c, uint32_t rank, uint64_t applied, uint64_t prepared, uint64_t voted,
                         int64_t now) {
    cycle_rank *r = rank_of(c, rank, c->id);
    if (!r) return CYCLE_NOTHING;
    if (applied == c->id) {
        r->state = CYCLE_RANK_APPLIED;
    } else if (prepared == c->id || voted == c->id) {
        r->state = CYCLE_RANK_PREPARED;
    } else if (r->state != CYCLE_RANK_SENT) {
        r->state = CYCLE_RANK_SENT;
        r->resend_ms = now;
    }
    return settle(c, now);
}

void cycle_resend(cycle *c, uint32_t rank, int64_t now) {
    cycle_rank *r = rank_of(c, rank, c->id);
    if (r && r->state != CYCLE_RANK_APPLIED) {
        r->state = CYCLE_RANK_SENT;
        r->resend_ms = now;
        settle(c, now);
    }
}

cycle_action cycle_ranks_changed(cycle *c, const char *reason, int64_t now) {
    cycle_hurry(c);
    return stop(c, reason, now);
}

cycle_action cycle_supersede(cycle *c, const char *reason, int64_t now) {
    cycle_hurry(c);
    return stop(c, reason, now);
}

cycle_action cycle_tick(cycle *c, int any_silent, int64_t now) {
    if (c->state == CYCLE_IDLE) return CYCLE_NOTHING;
    if (!any_silent) c->silent_since_ms = -1;
    if (any_silent && c->silent_since_ms < 0) c->silent_since_ms = now;
    if (c->state == CYCLE_PREPARING && now - c->started_ms >= c->timeout_ms)
        return fail(c, "not every rank answered PREPARE in time", now);
    if (any_silent && now - c->silent_since_ms >= c->timeout_ms)
        return fail(c, "a rank fell silent before it applied the plan", now);
    return CYCLE_NOTHING;
}

int cycle_ready(const cycle *c, int64_t now) {
    return c->state == CYCLE_IDLE && now >= c->retry_ms;
}

void cycle_hurry(cycle *c) {
    c->backoff_ms = CYCLE_BACKOFF_MS;
    c->retry_ms = 0;
}

int64_t cycle_deadline(const cycle *c) {
    if (c->state == CYCLE_IDLE) return c->retry_ms > 0 ? c->retry_ms : INT64_MAX;
    int64_t due = c->state == CYCLE_PREPARING ? c->started_ms + c->timeout_ms : INT64_MAX;
    if (c->silent_since_ms >= 0 && c->silent_since_ms + c->timeout_ms < due)
        due = c->silent_since_ms + c->timeout_ms;
    for (uint32_t i = 0; i < c->n_ranks; i++) {
        if (c->ranks[i].state == CYCLE_RANK_SENT && c->ranks[i].resend_ms < due) due = c->ranks[i].resend_ms;
    }
    return due;
}
