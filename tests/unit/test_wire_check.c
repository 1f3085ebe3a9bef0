/* Every rule on a field: a legal message of each kind, then one field at a time pushed over its edge. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "proto/wire.h"

static uint8_t sender[16], plan_bytes[4];

static const char *check(Agoq__Envelope__BodyCase which, void *body) {
    Agoq__Envelope e = AGOQ__ENVELOPE__INIT;
    e.job = (char *)"j";
    e.sender.data = sender;
    e.sender.len = 16;
    e.rank = 1;
    e.seq = 1;
    e.body_case = which;
    e.hello = body;
    return wire_check(&e);
}

/* MAKE is a function that returns a legal message; FIELD = VALUE makes it illegal, and the text must name
 * TEXT. */
#define BREAKS(which, make, field, value, text)                                                              \
    do {                                                                                                     \
        m = make();                                                                                          \
        m->field = value;                                                                                    \
        const char *bad = check(which, m);                                                                   \
        assert_non_null(bad);                                                                                \
        assert_non_null(strstr(bad, text));                                                                  \
    } while (0)

static Agoq__Hello hello;
static Agoq__Hello *make_hello(void) {
    Agoq__Hello m = AGOQ__HELLO__INIT;
    hello = m;
    hello.world = 8;
    hello.stage = 1;
    hello.n_stages = 4;
    hello.n_dp = 2;
    hello.n_tp = 1;
    hello.device = (char *)"cpu:host:1";
    hello.host = (char *)"host";
    hello.pid = 77;
    return &hello;
}

static void hello_rules(void **state) {
    (void)state;
    const Agoq__Envelope__BodyCase H = AGOQ__ENVELOPE__BODY_HELLO;
    Agoq__Hello *m = make_hello();
    assert_null(check(H, m));
    BREAKS(H, make_hello, world, 1, "rank outside");
    BREAKS(H, make_hello, world, 0, "world");
    BREAKS(H, make_hello, n_stages, 0, "number of stages");
    BREAKS(H, make_hello, n_stages, 1025, "number of stages");
    BREAKS(H, make_hello, stage, 4, "stage");
    BREAKS(H, make_hello, stage, -1, "stage");
    BREAKS(H, make_hello, dp, 2, "dp");
    BREAKS(H, make_hello, n_tp, 0, "tp");
    BREAKS(H, make_hello, device, (char *)"", "device");
    BREAKS(H, make_hello, device, (char *)"a\nb", "device");
    BREAKS(H, make_hello, host, (char *)"\xff", "host");
    BREAKS(H, make_hello, pid, 0, "pid");
    BREAKS(H, make_hello, applied_id, 9, "applied plan");
    m = make_hello();
    m->applied_plan.data = plan_bytes;
    m->applied_plan.len = sizeof plan_bytes;
    assert_non_null(check(H, m));
    m->applied_id = 9;
    assert_null(check(H, m));
    BREAKS(H, make_hello, vote_period, 1000001, "vote");
    BREAKS(H, make_hello, highest_term, 0x1000000, "term");
    BREAKS(H, make_hello, budget_version, WIRE_MAX_BUDGET_VERSION + 1, "budget version");
    m = make_hello();
    m->highest_term = 0xffffff;
    m->budget_version = WIRE_MAX_BUDGET_VERSION;
    assert_null(check(H, m));
}

static Agoq__Profile profile;
static Agoq__Item item, *items[2];
static uint64_t fixed_bytes[2], sizes[4];
static uint32_t live[4];
static Agoq__Profile *make_profile(void) {
    Agoq__Profile m = AGOQ__PROFILE__INIT;
    Agoq__Item i = AGOQ__ITEM__INIT;
    item = i;
    item.count = 2;
    item.rows = item.cols = 8;
    item.widths = 1;
    items[0] = &item;
    profile = m;
    profile.n_microbatches = 1;
    profile.n_chunks = 2;
    profile.n_layers = 1;
    profile.items = items;
    profile.n_items = 1;
    profile.fixed_bytes = fixed_bytes;
    profile.n_fixed_bytes = 2;
    profile.static_bytes = profile.workspace_bytes = sizes;
    profile.n_static_bytes = profile.n_workspace_bytes = 3;
    profile.live = live;
    profile.n_live = 4;
    memset(sizes, 0, sizeof sizes);
    memset(live, 0, sizeof live);
    memset(fixed_bytes, 0, sizeof fixed_bytes);
    return &profile;
}
static Agoq__Item *make_item(void) {
    make_profile();
    return &item;
}

static void profile_rules(void **state) {
    (void)state;
    const Agoq__Envelope__BodyCase P = AGOQ__ENVELOPE__BODY_PROFILE;
    Agoq__Profile *m = make_profile();
    assert_null(check(P, m));
    BREAKS(P, make_profile, schedule, AGOQ_N_SCHEDULES, "schedule");
    BREAKS(P, make_profile, n_microbatches, 0, "micro-batches");
    BREAKS(P, make_profile, n_chunks, 0, "chunks");
    BREAKS(P, make_profile, n_chunks, 65, "chunks");
    BREAKS(P, make_profile, n_layers, 0, "layers");
    BREAKS(P, make_profile, n_fixed_bytes, 1, "fixed bytes");
    BREAKS(P, make_profile, n_static_bytes, 2, "static");
    BREAKS(P, make_profile, n_workspace_bytes, 4, "workspace");
    BREAKS(P, make_profile, n_live, 3, "live vectors");
    BREAKS(P, make_profile, alloc_round_bytes, (1u << 30) + 1, "rounding");
    m = make_profile();
    live[1] = (1u << 16) + 1;
    assert_non_null(check(P, m));
    m = make_profile();
    sizes[2] = UINT64_MAX;
    assert_non_null(check(P, m));
    m = make_profile();
    fixed_bytes[0] = fixed_bytes[1] = (uint64_t)1 << 43;
    assert_non_null(check(P, m)); /* each alone is legal, with the item their sum is not */
}

#define ITEM_BREAKS(member, value, text)                                                                     \
    do {                                                                                                     \
        Agoq__Item *broken = make_item();                                                                    \
        broken->member = value;                                                                              \
        const char *bad = check(AGOQ__ENVELOPE__BODY_PROFILE, &profile);                                     \
        assert_non_null(bad);                                                                                \
        assert_non_null(strstr(bad, text));                                                                  \
    } while (0)

static void item_rules(void **state) {
    (void)state;
    ITEM_BREAKS(layer, 65535, "layer");
    ITEM_BREAKS(role, AGOQ_N_ROLES, "role");
    ITEM_BREAKS(chunk, 2, "chunk");
    ITEM_BREAKS(count, 0, "count");
    ITEM_BREAKS(count, 65536, "count");
    ITEM_BREAKS(widths, 0, "widths");
    ITEM_BREAKS(widths, 32, "widths");
    ITEM_BREAKS(rows, UINT64_MAX, "shape");
    ITEM_BREAKS(rows, INT64_MAX, "shape");
    ITEM_BREAKS(cols, (uint64_t)1 << 44, "shape");
    ITEM_BREAKS(sensitivity, NAN, "sensitivity");
    ITEM_BREAKS(sensitivity, INFINITY, "sensitivity");
    ITEM_BREAKS(sensitivity, -1, "sensitivity");
}

static Agoq__Prepare prepare;
static Agoq__Prepare *make_prepare(void) {
    Agoq__Prepare m = AGOQ__PREPARE__INIT;
    prepare = m;
    prepare.id = prepare.hash = 1;
    prepare.plan.data = plan_bytes;
    prepare.plan.len = sizeof plan_bytes;
    return &prepare;
}

static void plan_message_rules(void **state) {
    (void)state;
    const Agoq__Envelope__BodyCase P = AGOQ__ENVELOPE__BODY_PREPARE;
    Agoq__Prepare *m = make_prepare();
    assert_null(check(P, m));
    BREAKS(P, make_prepare, id, 0, "id");
    BREAKS(P, make_prepare, hash, 0, "hash");
    BREAKS(P, make_prepare, plan.len, 0, "size");
    BREAKS(P, make_prepare, plan.len, 60 * 1024 + 1, "size");
    BREAKS(P, make_prepare, why, (char *)"\x01", "text");
    BREAKS(P, make_prepare, budget_version, UINT64_MAX, "budget version");
    Agoq__Nack nack = AGOQ__NACK__INIT;
    assert_null(check(AGOQ__ENVELOPE__BODY_NACK, &nack));
    nack.reason = 7;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_NACK, &nack));
    Agoq__Prepared prepared = AGOQ__PREPARED__INIT;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_PREPARED, &prepared));
    Agoq__Applied applied = AGOQ__APPLIED__INIT; /* the floor plan at step 0 */
    assert_null(check(AGOQ__ENVELOPE__BODY_APPLIED, &applied));
    applied.step = -1;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_APPLIED, &applied));
    Agoq__Report report = AGOQ__REPORT__INIT;
    report.step = -1;
    assert_null(check(AGOQ__ENVELOPE__BODY_REPORT, &report));
    report.step = -2;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_REPORT, &report));
    report.step = 0;
    report.peak_bytes = UINT64_MAX;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_REPORT, &report));
    Agoq__Welcome welcome = AGOQ__WELCOME__INIT;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_WELCOME, &welcome)); /* heartbeat 0 */
    welcome.heartbeat_ms = 1000;
    assert_null(check(AGOQ__ENVELOPE__BODY_WELCOME, &welcome));
    welcome.budget_version = UINT64_MAX;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_WELCOME, &welcome));
    welcome.budget_version = 0;
    welcome.term = 0x1000000;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_WELCOME, &welcome));
    report.peak_bytes = 0;
    report.budget_version = UINT64_MAX;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_REPORT, &report));
    Agoq__Cancel cancel = AGOQ__CANCEL__INIT;
    assert_null(check(AGOQ__ENVELOPE__BODY_CANCEL, &cancel));
    cancel.budget_version = UINT64_MAX;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_CANCEL, &cancel));
    Agoq__Cancelled cancelled = AGOQ__CANCELLED__INIT;
    assert_null(check(AGOQ__ENVELOPE__BODY_CANCELLED, &cancelled));
    cancelled.budget_version = UINT64_MAX;
    assert_non_null(check(AGOQ__ENVELOPE__BODY_CANCELLED, &cancelled));
    Agoq__Refuse refuse = AGOQ__REFUSE__INIT;
    refuse.text = (char *)"\xc0\x80"; /* an over-long NUL */
    assert_non_null(check(AGOQ__ENVELOPE__BODY_REFUSE, &refuse));
}

static void operator_message_rules(void **state) {
    (void)state;
    const Agoq__Envelope__BodyCase Q = AGOQ__ENVELOPE__BODY_CTL_REQUEST, R = AGOQ__ENVELOPE__BODY_CTL_REPLY;
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetSet set = AGOQ__CTL_BUDGET_SET__INIT;
    assert_non_null(check(Q, &request));
    request.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_SET;
    request.budget_set = &set;
    set.stage = 0;
    set.bytes = 5;
    assert_null(check(Q, &request));
    set.stage = -1;
    assert_non_null(check(Q, &request)); /* neither device nor stage */
    set.device = (char *)"GPU-1";
    assert_null(check(Q, &request));
    set.bytes = UINT64_MAX;
    assert_non_null(check(Q, &request));

    Agoq__CtlBudgetGet get = AGOQ__CTL_BUDGET_GET__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_GET;
    request.budget_get = &get;
    assert_null(check(Q, &request));
    get.stage = WIRE_MAX_STAGES;
    assert_non_null(check(Q, &request));
    Agoq__CtlBudgetWait wait = AGOQ__CTL_BUDGET_WAIT__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_WAIT;
    request.budget_wait = &wait;
    wait.stage = WIRE_MAX_STAGES - 1;
    assert_null(check(Q, &request));
    wait.device = (char *)"a\nb";
    assert_non_null(check(Q, &request));

    Agoq__CtlReply reply = AGOQ__CTL_REPLY__INIT;
    reply.text = (char *)"two\nlines"; /* free text may */
    assert_null(check(R, &reply));
    reply.code = 9;
    assert_non_null(check(R, &reply));
    reply.code = 0;
    Agoq__CtlStageInfo stage = AGOQ__CTL_STAGE_INFO__INIT, *stages[1] = {&stage};
    reply.stages = stages;
    reply.n_stages = 1;
    assert_null(check(R, &reply));
    stage.objective = NAN;
    assert_non_null(check(R, &reply));
    stage.objective = 0;
    stage.n_live = 4;
    stage.live = live;
    assert_non_null(check(R, &reply)); /* live counts, but no chunks */
    stage.n_chunks = 2;
    assert_null(check(R, &reply));
    Agoq__CtlEvent event = AGOQ__CTL_EVENT__INIT, *events[1] = {&event};
    reply.events = events;
    reply.n_events = 1;
    event.why = (char *)"a\tb";
    assert_non_null(check(R, &reply));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hello_rules),
        cmocka_unit_test(profile_rules),
        cmocka_unit_test(item_rules),
        cmocka_unit_test(plan_message_rules),
        cmocka_unit_test(operator_message_rules),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
