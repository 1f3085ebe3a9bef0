/* What the tests of sessions share: a small model, plans for it, and the daemon's side of the wire. */
#ifndef TESTS_UNIT_SESSION_CASES_H
#define TESTS_UNIT_SESSION_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "common/mem.h"
#include "libagoq/slot.h"
#include "proto/wire.h"

#define CASE_LAYERS 3
#define CASE_ITEMS  (2 * CASE_LAYERS)

/* Layers 0 to 2: mlp_gate_up (all widths) and attn_out (8 only), in one chunk. */
static inline agoq_profile case_profile(agoq_item items[CASE_ITEMS]) {
    static const uint64_t fixed_bytes[1] = {64};
    for (int i = 0; i < CASE_LAYERS; i++) {
        items[2 * i] =
            (agoq_item){.layer = i, .role = AGOQ_ROLE_MLP_GATE_UP, .count = 2, .rows = 32, .cols = 128};
        items[2 * i + 1] =
            (agoq_item){.layer = i, .role = AGOQ_ROLE_ATTN_OUT, .count = 1, .rows = 32, .cols = 96};
    }
    return (agoq_profile){.size = sizeof(agoq_profile),
                          .schedule = AGOQ_SCHEDULE_1F1B,
                          .n_microbatches = 4,
                          .n_chunks = 1,
                          .n_layers = CASE_LAYERS,
                          .n_items = CASE_ITEMS,
                          .items = items,
                          .fixed_bytes = fixed_bytes};
}

/* A plan for that profile: gate_up at `bits`, attn_out at 8. skip_layer: left out; -1: none. */
static inline slot case_plan(uint64_t id, int bits, int skip_layer) {
    plan p;
    slot s;
    uint8_t bytes[512];
    size_t size;
    uint32_t n = 0;
    assert_int_equal(plan_init(&p, 2, CASE_ITEMS), AGOQ_OK);
    p.stages[0] = (plan_stage){5000, 1, 4000 + (uint64_t)bits};
    for (int i = 0; i < CASE_LAYERS; i++) {
        if (i == skip_layer) continue;
        p.entries[n++] = (plan_entry){0, (uint16_t)i, AGOQ_ROLE_MLP_GATE_UP, (uint8_t)bits};
        p.entries[n++] = (plan_entry){0, (uint16_t)i, AGOQ_ROLE_ATTN_OUT, 8};
    }
    p.n_entries = n;
    assert_int_equal(plan_encode(&p, bytes, sizeof bytes, &size), AGOQ_OK);
    plan_fini(&p);
    assert_int_equal(slot_make(id, plan_hash(bytes, size), bytes, size, &s), AGOQ_OK);
    return s;
}

#define CASE_DAEMON_ID 0xdd

/* An envelope from the daemon. Free with mem_free. */
static inline uint8_t *case_from_daemon(const char *job, Agoq__Envelope__BodyCase which, void *body,
                                        uint64_t seq, uint64_t reply_to, size_t *size) {
    wire_header h = {.rank = -1, .seq = seq, .reply_to = reply_to};
    uint8_t *data;
    snprintf(h.job, sizeof h.job, "%s", job);
    memset(h.sender, CASE_DAEMON_ID, sizeof h.sender);
    assert_int_equal(wire_encode(&h, which, body, WIRE_MAX_RANK_BYTES, &data, size), AGOQ_OK);
    return data;
}

static inline Agoq__Prepare case_prepare(const slot *s, uint64_t budget_version) {
    static char why[] = "test";
    Agoq__Prepare m = AGOQ__PREPARE__INIT;
    m.id = s->id;
    m.hash = s->hash;
    m.plan.data = s->bytes;
    m.plan.len = s->size;
    m.budget_version = budget_version;
    m.why = why;
    return m;
}

#endif
