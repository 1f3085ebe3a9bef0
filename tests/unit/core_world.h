/* A world of simulated ranks around a real core: virtual time, an in-memory disk, processes that can hang,
 * die and come back. A rank here follows docs/PROTOCOL.md in the simplest way (vote at each boundary, read
 * one boundary later); it is written apart from libagoq, so that a misreading of the protocol shows. */
#ifndef TESTS_CORE_WORLD_H
#define TESTS_CORE_WORLD_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "agoqd/core.h"
#include "agoqd/core_state.h"
#include "common/mem.h"

#define WORLD_MAX   16
#define WORLD_QUEUE 512

typedef struct world_rank {
    int32_t rank, stage;
    uint8_t incarnation;
    uint64_t seq, pid, applied_id, applied_hash, prepared_id, prepared_hash, vote_id, budget_version;
    uint64_t highest_term;
    uint8_t plan[PLAN_MAX_BYTES], next[PLAN_MAX_BYTES];
    size_t plan_size, next_size;
    int connected, hung, dead, guarded, busy_always;
    int hidden; /* in a pid namespace that the daemon does not see */
    uint32_t live, rows;
    uint64_t static_bytes, observed_steps, peak;
    int n_prepare, n_cancel, n_abort, n_refuse, last_refuse, welcomed, order_bad;
} world_rank;

typedef struct world_message {
    int32_t rank;
    uint8_t *data;
    size_t size;
} world_message;

typedef struct world {
    conf conf;
    core *core;
    core_io io;
    int64_t now, step;
    int n, n_stages, disk_full, n_stored, lost; /* lost: nothing that the daemon sends arrives */
    uint8_t *disk;
    size_t disk_size;
    world_rank rank[WORLD_MAX];
    world_message queue[WORLD_QUEUE];
    int n_queue;
    Agoq__Envelope *reply; /* the last answer to the operator */
    uint64_t ctl_seq;
    uint64_t others[2]; /* pids of living processes that are no rank of ours (any more) */
} world;

static inline peer world_peer(int32_t rank, uint8_t incarnation, uint64_t pid) {
    peer p = {.id_len = 5, .uid = 1000, .gid = 1000, .pid = (int64_t)pid};
    p.id[1] = (uint8_t)rank;
    p.id[2] = incarnation;
    return p;
}

/* Puts a message of a rank into the queue; world_pump delivers it. */
static inline void world_say(world *w, world_rank *r, Agoq__Envelope__BodyCase which, void *body) {
    wire_header h = {.job = "job", .rank = r->rank, .seq = ++r->seq};
    memset(h.sender, r->incarnation, sizeof h.sender);
    h.sender[0] = (uint8_t)(r->rank + 1);
    world_message *m = &w->queue[w->n_queue];
    assert_in_range(w->n_queue, 0, WORLD_QUEUE - 1);
    assert_int_equal(wire_encode(&h, which, body, WIRE_MAX_RANK_BYTES, &m->data, &m->size), AGOQ_OK);
    m->rank = r->rank;
    w->n_queue++;
}

static inline void world_profile(world *w, world_rank *r) {
    Agoq__Profile p = AGOQ__PROFILE__INIT;
    Agoq__Item items[4], *pointers[4];
    uint64_t fixed[1] = {64}, sizes[3] = {r->static_bytes, r->static_bytes, r->static_bytes},
             none[3] = {0, 0, 0};
    for (int i = 0; i < 4; i++) {
        agoq__item__init(&items[i]);
        items[i].layer = (uint32_t)(r->stage * 2 + i / 2);
        items[i].role = i % 2 ? AGOQ_ROLE_MLP_GATE_UP : AGOQ_ROLE_ATTN_NORM_IN;
        items[i].count = i % 2 ? 2 : 1;
        items[i].rows = r->rows;
        items[i].cols = 256;
        items[i].widths = 31;
        items[i].sensitivity = i % 2 ? 0.1 : 0.01;
        pointers[i] = &items[i];
    }
    p.schedule = AGOQ_SCHEDULE_1F1B;
    p.n_microbatches = 8;
    p.n_chunks = 1;
    p.n_layers = (uint32_t)w->n_stages * 2;
    p.items = pointers;
    p.n_items = 4;
    p.fixed_bytes = fixed;
    p.n_fixed_bytes = 1;
    p.static_bytes = sizes;
    p.workspace_bytes = none;
    p.n_static_bytes = p.n_workspace_bytes = 3;
    p.live = &r->live;
    p.n_live = r->observed_steps ? 1 : 0;
    p.observed_steps = r->observed_steps;
    world_say(w, r, AGOQ__ENVELOPE__BODY_PROFILE, &p);
}

static inline void world_report(world *w, world_rank *r) {
    Agoq__Report m = AGOQ__REPORT__INIT;
    m.step = w->step;
    m.applied_id = r->applied_id;
    m.prepared_id = r->prepared_id;
    m.vote_id = r->vote_id;
    m.budget_version = r->budget_version;
    m.guarded = r->guarded;
    m.guard_why = r->guarded ? (char *)"allocation failed" : m.guard_why;
    m.peak_since_switch_bytes = r->peak;
    world_say(w, r, AGOQ__ENVELOPE__BODY_REPORT, &m);
}

static inline void world_hello(world *w, world_rank *r) {
    Agoq__Hello m = AGOQ__HELLO__INIT;
    char device[32];
    snprintf(device, sizeof device, "GPU-%d", r->rank);
    m.world = w->n;
    m.stage = r->stage;
    m.n_stages = w->n_stages;
    m.n_dp = w->n / w->n_stages;
    m.dp = r->rank % m.n_dp;
    m.n_tp = 1;
    m.device = device;
    m.host = (char *)"host";
    m.pid = r->pid;
    m.applied_id = r->applied_id;
    m.applied_hash = r->applied_hash;
    m.applied_plan.data = r->plan;
    m.applied_plan.len = r->applied_id ? r->plan_size : 0;
    m.budget_version = r->budget_version;
    m.prepared_id = r->prepared_id;
    m.vote_id = r->vote_id;
    m.vote_period = 1;
    m.highest_term = r->highest_term;
    r->connected = 1;
    r->welcomed = 0;
    world_say(w, r, AGOQ__ENVELOPE__BODY_HELLO, &m);
}

static inline void world_prepare(world *w, world_rank *r, const Agoq__Prepare *m) {
    r->n_prepare++;
    Agoq__Nack nack = AGOQ__NACK__INIT;
    nack.id = m->id;
    if (r->vote_id || r->busy_always) nack.reason = AGOQ__NACK_REASON__NACK_BUSY;
    if (m->budget_version < r->budget_version) nack.reason = AGOQ__NACK_REASON__NACK_OLD_BUDGET;
    if (plan_id_term(m->id) < r->highest_term) nack.reason = AGOQ__NACK_REASON__NACK_OLD_TERM;
    if (nack.reason) {
        world_say(w, r, AGOQ__ENVELOPE__BODY_NACK, &nack);
        return;
    }
    assert_true(plan_hash(m->plan.data, m->plan.len) == m->hash);
    r->budget_version = m->budget_version;
    r->prepared_id = m->id;
    r->prepared_hash = m->hash;
    memcpy(r->next, m->plan.data, m->plan.len);
    r->next_size = m->plan.len;
    Agoq__Prepared answer = AGOQ__PREPARED__INIT;
    answer.id = m->id;
    answer.hash = m->hash;
    world_say(w, r, AGOQ__ENVELOPE__BODY_PREPARED, &answer);
}

static inline void world_cancel(world *w, world_rank *r, const Agoq__Cancel *m) {
    r->n_cancel++;
    if (m->budget_version > r->budget_version) r->budget_version = m->budget_version;
    if (m->all && !r->vote_id) r->prepared_id = 0;
    Agoq__Cancelled answer = AGOQ__CANCELLED__INIT;
    answer.applied_id = r->applied_id;
    answer.vote_id = r->vote_id;
    answer.budget_version = r->budget_version;
    answer.step = w->step;
    world_say(w, r, AGOQ__ENVELOPE__BODY_CANCELLED, &answer);
}

static inline int world_send(void *user, const peer *to, const uint8_t *data, size_t size) {
    world *w = user;
    Agoq__Envelope *e = NULL;
    if (w->lost && to->id_len > 1) return 0;
    assert_int_equal(wire_decode(data, size, WIRE_MAX_CTL_BYTES, &e, NULL),
                     AGOQ_OK); /* all we send is legal */
    if (e->body_case == AGOQ__ENVELOPE__BODY_CTL_REPLY) {
        wire_free(w->reply);
        w->reply = e;
        return 0;
    }
    world_rank *r = &w->rank[to->id[1]];
    if (r->dead || r->incarnation != to->id[2] || !r->connected) {
        wire_free(e);
        return -1;
    }
    if (!r->hung) {
        switch (e->body_case) {
        case AGOQ__ENVELOPE__BODY_WELCOME:
            r->welcomed = 1;
            if (e->welcome->term > r->highest_term) r->highest_term = e->welcome->term;
            if (e->welcome->budget_version > r->budget_version)
                r->budget_version = e->welcome->budget_version;
            world_profile(w, r);
            break;
        case AGOQ__ENVELOPE__BODY_PREPARE:
            world_prepare(w, r, e->prepare);
            break;
        case AGOQ__ENVELOPE__BODY_CANCEL:
            world_cancel(w, r, e->cancel);
            break;
        case AGOQ__ENVELOPE__BODY_ABORT:
            r->n_abort++;
            if (r->prepared_id == e->abort->id && r->vote_id != e->abort->id) r->prepared_id = 0;
            break;
        case AGOQ__ENVELOPE__BODY_REFUSE:
            r->n_refuse++;
            r->last_refuse = (int)e->refuse->reason;
            break;
        default:
            break;
        }
    }
    wire_free(e);
    return 0;
}

static inline agoq_status world_store(void *user, const uint8_t *data, size_t size) {
    world *w = user;
    if (w->disk_full) return AGOQ_E_IO;
    mem_free(w->disk);
    w->disk = mem_alloc(size);
    memcpy(w->disk, data, size);
    w->disk_size = size;
    w->n_stored++;
    return AGOQ_OK;
}

static inline int world_alive(void *user, uint64_t pid, uint64_t start_time) {
    world *w = user;
    (void)start_time;
    if (pid == 0 || pid == w->others[0] || pid == w->others[1]) return 1; /* 0: cannot be verified */
    for (int i = 0; i < w->n; i++) {
        if (w->rank[i].pid == pid && !w->rank[i].hidden) return !w->rank[i].dead;
    }
    return 0;
}

static inline uint64_t world_start_time(void *user, uint64_t pid) {
    (void)user;
    return pid * 10;
}

static inline int64_t world_wall(void *user) {
    return ((world *)user)->now + 1000000;
}

/* Delivers what ranks have said, and what they say to the answers, until all is quiet. No time passes. */
static inline void world_pump(world *w) {
    for (int i = 0; i < w->n_queue; i++) {
        world_message m = w->queue[i];
        world_rank *r = &w->rank[m.rank];
        peer from = world_peer(m.rank, r->incarnation, r->hidden ? 0 : r->pid);
        if (!r->dead && w->core) core_receive(w->core, &from, m.data, m.size, w->now);
        mem_free(m.data);
    }
    w->n_queue = 0;
}

/* What ranks have said and nobody has read is lost. */
static inline void world_lose(world *w) {
    while (w->n_queue > 0) mem_free(w->queue[--w->n_queue].data);
}

static inline void world_start_daemon(world *w) {
    const char *why = NULL;
    w->io = (core_io){.user = w,
                      .send = world_send,
                      .store = world_store,
                      .alive = world_alive,
                      .start_time = world_start_time,
                      .wall_ms = world_wall,
                      .uid = 1000,
                      .gid = -1,
                      .pid = 1};
    assert_int_equal(core_new(&w->conf, &w->io, w->disk, w->disk_size, w->now, &w->core, &why), AGOQ_OK);
}

static inline world *world_new(int n, int n_stages) {
    world *w = mem_zalloc(1, sizeof *w);
    conf_default(&w->conf);
    w->conf.default_budget_bytes = 4000000;
    w->now = 1000000;
    w->n = n;
    w->n_stages = n_stages;
    for (int i = 0; i < n; i++) {
        int stage = i * n_stages / n;
        w->rank[i] = (world_rank){.rank = i,
                                  .stage = stage,
                                  .incarnation = 1,
                                  .pid = (uint64_t)(100 + i),
                                  .live = (uint32_t)(n_stages - stage),
                                  .rows = 1024,
                                  .static_bytes = 100000};
    }
    world_start_daemon(w);
    return w;
}

static inline void world_free(world *w) {
    world_lose(w);
    core_free(&w->core);
    conf_fini(&w->conf);
    wire_free(w->reply);
    mem_free(w->disk);
    mem_free(w);
}

/* Time passes: the daemon ticks when it asks to, ranks report each second. */
static inline void world_run(world *w, int64_t ms) {
    for (int64_t end = w->now + ms; w->now < end;) {
        int64_t due = core_deadline(w->core, w->now), report = (w->now / 1000 + 1) * 1000;
        int64_t next = due < report ? due : report;
        if (next <= w->now) next = w->now + 1;
        w->now = next < end ? next : end;
        for (int i = 0; i < w->n && w->now % 1000 == 0; i++) {
            if (w->rank[i].connected && w->rank[i].welcomed && !w->rank[i].hung && !w->rank[i].dead)
                world_report(w, &w->rank[i]);
        }
        world_pump(w);
        core_tick(w->core, w->now);
        world_pump(w);
    }
}

/* A step boundary of all ranks: the last vote is read (all the same: switch), the next one begins. */
static inline void world_boundary(world *w) {
    uint64_t vote = w->rank[0].vote_id, applied = w->rank[0].applied_id;
    int agree = vote != 0, same = 1;
    for (int i = 0; i < w->n; i++) {
        agree &= w->rank[i].vote_id == vote;
        same &= w->rank[i].applied_id == applied;
        if (w->rank[i].hung) return; /* a collective waits */
    }
    w->step++;
    for (int i = 0; i < w->n; i++) {
        world_rank *r = &w->rank[i];
        uint64_t before = r->applied_id;
        if (agree) {
            r->applied_id = r->prepared_id;
            r->applied_hash = r->prepared_hash;
            memcpy(r->plan, r->next, r->next_size);
            r->plan_size = r->next_size;
            r->prepared_id = 0;
            r->guarded = 0;
        } else if (!same) {
            r->applied_id = r->applied_hash = 0;
        }
        r->vote_id = r->prepared_id;
        if (r->observed_steps++ == 0 && r->welcomed) world_profile(w, r);
        if (r->applied_id == before || !r->connected) continue;
        Agoq__Applied m = AGOQ__APPLIED__INIT;
        m.id = r->applied_id;
        m.hash = r->applied_hash;
        m.step = w->step;
        world_say(w, r, AGOQ__ENVELOPE__BODY_APPLIED, &m);
    }
    world_pump(w);
}

/* All connect and run one step: then the first plan may be made. */
static inline void world_join(world *w) {
    for (int i = 0; i < w->n; i++) world_hello(w, &w->rank[i]);
    world_pump(w);
    world_boundary(w);
}

/* Boundaries, with time between, until all ranks run the same plan other than `not_id`, at most `most`. */
static inline int world_switch(world *w, uint64_t not_id, int most) {
    for (int n = 1; n <= most; n++) {
        world_run(w, 100);
        world_boundary(w);
        int all = 1;
        for (int i = 0; i < w->n; i++)
            all &= w->rank[i].applied_id == w->rank[0].applied_id && w->rank[i].applied_id != not_id;
        if (all) return n;
    }
    return -1;
}

#endif
