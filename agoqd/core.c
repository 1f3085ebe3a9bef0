/* The core's doors: construction, messages, ticks, sending, storing. See core.h. */
#include "agoqd/core.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/answer.h"
#include "agoqd/core_decide.h"
#include "agoqd/core_ranks.h"
#include "agoqd/core_state.h"
#include "agoqd/state.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/sha256.h"

#define TICK_MS        1000
#define STORE_EVERY_MS 1000
#define CHECK_EVERY_MS 500

agoq_status core_store(core *c, const budgets *b) {
    uint8_t *data;
    size_t size;
    agoq_status status = state_encode(c->term, b, &c->ranks, &data, &size);
    if (status != AGOQ_OK) return status;
    status = c->io.store(c->io.user, data, size);
    mem_free(data);
    return status;
}

/* The plans that something still refers to: all ranks, the cycle, or one rank. */
static int plan_in_use(const void *user, uint64_t id) {
    const core *c = user;
    if (id == c->current_id || (c->cycle.state != CYCLE_IDLE && id == c->cycle.id)) return 1;
    for (int32_t i = 0; i < c->ranks.world; i++) {
        const session *s = &c->ranks.ranks[i];
        if (sessions_present(s) &&
            (id == s->who.applied_id || id == s->now.vote_id || id == s->now.prepared_id))
            return 1;
    }
    return 0;
}

/* A new name for this life of the daemon: whoever has met an earlier one can tell. */
static void make_sender(core *c) {
    uint8_t seed[24], digest[32];
    int64_t wall = c->io.wall_ms(c->io.user);
    memcpy(seed, &c->term, 8);
    memcpy(seed + 8, &c->io.pid, 8);
    memcpy(seed + 16, &wall, 8);
    sha256(seed, sizeof seed, digest);
    memcpy(c->self, digest, sizeof c->self);
}

agoq_status core_new(const conf *config, const core_io *io, const uint8_t *stored, size_t stored_size,
                     int64_t now, core **out, const char **why) {
    core *c = mem_zalloc(1, sizeof *c);
    *why = "out of memory";
    if (!c) return AGOQ_E_NOMEM;
    c->conf = config;
    c->plans.in_use = plan_in_use;
    c->plans.user = c;
    c->io = *io;
    c->started_ms = now;
    c->current_step = -1;
    c->at.checked_ms = now - CHECK_EVERY_MS;
    cycle_init(&c->cycle, config->prepare_timeout_ms);
    agoq_status status = AGOQ_OK;
    if (stored) status = state_decode(stored, stored_size, &c->term, &c->budgets, &c->ranks);
    *why = status == AGOQ_E_VERSION ? "the state file is of another version" : "the state file is damaged";
    if (status == AGOQ_OK && c->term >= WIRE_MAX_TERM) {
        *why = "terms are used up";
        status = AGOQ_E_LIMIT;
    }
    if (status == AGOQ_OK) {
        c->term++;
        if (c->budgets.version == 0) c->budgets.version = 1;
        *why = "the state cannot be stored";
        status = core_store(c, &c->budgets);
    }
    if (status != AGOQ_OK) {
        core_free(&c);
        return status;
    }
    make_sender(c);
    c->phase = sessions_count(&c->ranks).expected ? CORE_RECOVER : CORE_COLLECT;
    c->dirty = 1;
    history_add(&c->history, HISTORY_START, io->wall_ms(io->user), -1,
                "agoqd %s started, term %" PRIu64 ", %u ranks on the roster", AGOQ_VERSION, c->term,
                sessions_count(&c->ranks).expected);
    *out = c;
    return AGOQ_OK;
}

void core_free(core **c) {
    if (!c || !*c) return;
    sessions_fini(&(*c)->ranks);
    budgets_fini(&(*c)->budgets);
    plans_fini(&(*c)->plans);
    cycle_fini(&(*c)->cycle);
    mem_free((*c)->caps);
    mem_free(*c);
    *c = NULL;
}

int core_send(core *c, const peer *to, const char *job, Agoq__Envelope__BodyCase which, void *body,
              uint64_t reply_to, size_t max_bytes) {
    wire_header h = {.node = c->conf->node_index, .rank = -1, .seq = ++c->out_seq, .reply_to = reply_to};
    snprintf(h.job, sizeof h.job, "%s", job[0] ? job : "-");
    memcpy(h.sender, c->self, sizeof h.sender);
    uint8_t *data;
    size_t size;
    agoq_status status = wire_encode(&h, which, body, max_bytes, &data, &size);
    if (status != AGOQ_OK) {
        log_write(LOG_LEVEL_ERROR, "core", "a message cannot be encoded kind=%d status=%d", (int)which,
                  (int)status);
        c->count.drops++;
        return -1;
    }
    int sent = c->io.send(c->io.user, to, data, size);
    if (sent) c->count.drops++;
    mem_free(data);
    return sent;
}

void core_alarm(core *c, const char *text) {
    if (strcmp(c->why.alarm, text) == 0) return;
    snprintf(c->why.alarm, sizeof c->why.alarm, "%s", text);
    history_add(&c->history, HISTORY_ALARM, c->io.wall_ms(c->io.user), sessions_step(&c->ranks), "%s", text);
}

void core_calm(core *c) {
    c->why.alarm[0] = 0;
}

void core_rejected(core *c, const char *why, int64_t now) {
    c->count.rejected++;
    if (c->count.rejected > 1 && now - c->count.rejected_log_ms < 1000) {
        c->count.rejected_unlogged++;
        return;
    }
    log_write(LOG_LEVEL_WARN, "wire", "message rejected: %s suppressed=%" PRIu64, why,
              c->count.rejected_unlogged);
    c->count.rejected_log_ms = now;
    c->count.rejected_unlogged = 0;
}

static void work(core *c, int64_t now) {
    core_settle(c, now);
    core_decide(c, now);
    core_send_due(c, now);
}

void core_receive(core *c, const peer *from, const uint8_t *data, size_t size, int64_t now) {
    Agoq__Envelope *e = NULL;
    const char *why = NULL;
    agoq_status status = wire_decode(data, size, WIRE_MAX_RANK_BYTES, &e, &why);
    if (status != AGOQ_OK) {
        core_rejected(c, why, now);
        return;
    }
    switch (e->body_case) {
    case AGOQ__ENVELOPE__BODY_CTL_REQUEST:
        answer_request(c, e, from, now);
        break;
    case AGOQ__ENVELOPE__BODY_HELLO:
    case AGOQ__ENVELOPE__BODY_PROFILE:
    case AGOQ__ENVELOPE__BODY_REPORT:
    case AGOQ__ENVELOPE__BODY_PREPARED:
    case AGOQ__ENVELOPE__BODY_NACK:
    case AGOQ__ENVELOPE__BODY_CANCELLED:
    case AGOQ__ENVELOPE__BODY_APPLIED:
    case AGOQ__ENVELOPE__BODY_ACK:
    case AGOQ__ENVELOPE__BODY_BYE:
        core_rank_message(c, e, from, now);
        break;
    default:
        core_rejected(c, "a message that only daemons send", now);
    }
    wire_free(e);
    work(c, now);
}

void core_tick(core *c, int64_t now) {
    if (c->again) c->dirty = 1;
    if (now - c->at.checked_ms >= CHECK_EVERY_MS) { /* asks the kernel once per rank */
        c->at.checked_ms = now;
        core_check_ranks(c, now);
    }
    core_act(c, cycle_tick(&c->cycle, sessions_count(&c->ranks).silent > 0, now), now);
    work(c, now);
    if (c->unstored && now - c->at.stored_ms >= STORE_EVERY_MS) {
        c->at.stored_ms = now;
        if (core_store(c, &c->budgets) == AGOQ_OK) {
            c->unstored = 0;
        } else {
            core_alarm(c, "the roster cannot be stored: is the disk of state_dir full?");
        }
    }
}

int64_t core_deadline(const core *c, int64_t now) {
    int64_t due = cycle_deadline(&c->cycle);
    if (c->cycle.state == CYCLE_IDLE && !c->dirty) due = INT64_MAX;
    if (due > now + TICK_MS) due = now + TICK_MS;
    return due < now ? now : due;
}
