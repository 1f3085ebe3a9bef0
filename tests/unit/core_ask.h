/* The operator's side of core_world.h: questions to the core, as agoqctl asks them. */
#ifndef TESTS_CORE_ASK_H
#define TESTS_CORE_ASK_H

#include "core_world.h"

/* The operator asks as uid and gid; the reply is in w->reply. */
static inline const Agoq__CtlReply *world_ask_as(world *w, Agoq__CtlRequest *request, int64_t uid,
                                                 int64_t gid) {
    wire_header h = {.job = "-", .rank = -1, .seq = ++w->ctl_seq};
    uint8_t *data;
    size_t size;
    memset(h.sender, 0xcc, sizeof h.sender);
    assert_int_equal(
        wire_encode(&h, AGOQ__ENVELOPE__BODY_CTL_REQUEST, request, WIRE_MAX_CTL_BYTES, &data, &size),
        AGOQ_OK);
    peer from = {.id_len = 1, .uid = uid, .gid = gid, .pid = 9};
    core_receive(w->core, &from, data, size, w->now);
    mem_free(data);
    assert_non_null(w->reply);
    assert_int_equal(w->reply->reply_to, w->ctl_seq);
    return w->reply->ctl_reply;
}

static inline const Agoq__CtlReply *world_ask(world *w, Agoq__CtlRequest *request, int64_t uid) {
    return world_ask_as(w, request, uid, 9);
}

static inline const Agoq__CtlReply *world_ask_plain(world *w, Agoq__CtlRequest__VerbCase verb) {
    static Agoq__CtlEmpty empty;
    agoq__ctl_empty__init(&empty);
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    q.verb_case = verb;
    q.status = &empty;
    return world_ask(w, &q, 5);
}

static inline const Agoq__CtlReply *world_budgets(world *w, const char *device, int stage) {
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetGet get = AGOQ__CTL_BUDGET_GET__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_GET;
    q.budget_get = &get;
    get.device = (char *)device;
    get.by_stage = stage >= 0;
    get.stage = stage >= 0 ? stage : 0;
    return world_ask(w, &q, 5);
}

static inline const Agoq__CtlReply *world_budget(world *w, int stage, const char *device, uint64_t bytes) {
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetSet set = AGOQ__CTL_BUDGET_SET__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_SET;
    q.budget_set = &set;
    set.device = (char *)device;
    set.stage = stage;
    set.bytes = bytes;
    return world_ask(w, &q, 1000);
}

/* The daemon dies and comes back with its disk; ranks run on. */
static inline void world_restart(world *w) {
    core_free(&w->core);
    w->now += 1000;
    for (int i = 0; i < w->n; i++) w->rank[i].connected = w->rank[i].welcomed = 0;
    world_start_daemon(w);
}

static inline int world_prepares(const world *w) {
    int n = 0;
    for (int i = 0; i < w->n; i++) n += w->rank[i].n_prepare;
    return n;
}

#endif
