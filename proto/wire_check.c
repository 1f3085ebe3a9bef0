/* The rules of docs/PROTOCOL.md that protobuf cannot state: counts, ranges, enums, strings, finite numbers.
 * One function per message; each returns NULL or a static sentence. Handlers rely on them and never check
 * again, so a rule lives here and nowhere else, except those that need state (who is who in a job, which plan
 * is known). */
#include <math.h>
#include <string.h>

#include "agoq/agoq.h"
#include "proto/wire.h"

#define MAX_WORLD            (1 << 20)
#define MAX_LIVE_VALUES      4096
#define MAX_LIVE             (1u << 16)
#define MAX_MICROBATCH_BYTES ((uint64_t)1 << 44) /* x MAX_LIVE: the planner's sums stay below 2^61 */
#define MAX_RANKS            4096
#define MAX_EVENTS           4096
#define MAX_LEVERS           16

#define REQUIRE(condition, text)                                                                             \
    do {                                                                                                     \
        if (!(condition)) return text;                                                                       \
    } while (0)

/* Legal UTF-8 without control characters, at most `most` bytes. Free text may hold line breaks. */
static int good_text(const char *s, size_t least, size_t most, int line_breaks) {
    size_t n = 0;
    if (!s) return 0;
    while (s[n]) {
        int length = wire_utf8_length(s + n);
        if (length == 0) return 0;
        if (length == 1 && ((unsigned char)s[n] < 0x20 || s[n] == 0x7f) && !(line_breaks && s[n] == '\n'))
            return 0;
        n += (size_t)length;
        if (n > most) return 0;
    }
    return n >= least;
}

static int good_name(const char *s) {
    return good_text(s, 1, WIRE_MAX_DEVICE, 0);
}

static int good_string(const char *s) {
    return good_text(s, 0, WIRE_MAX_STRING, 0);
}

static const char *check_hello(const Agoq__Hello *m, int32_t rank) {
    REQUIRE(m->world >= 1 && m->world <= MAX_WORLD, "hello: world");
    REQUIRE(rank >= 0 && rank < m->world, "hello: rank outside the world");
    REQUIRE(m->n_stages >= 1 && m->n_stages <= WIRE_MAX_STAGES, "hello: number of stages");
    REQUIRE(m->stage >= 0 && m->stage < m->n_stages, "hello: stage");
    REQUIRE(m->n_dp >= 1 && m->n_dp <= MAX_WORLD && m->dp >= 0 && m->dp < m->n_dp, "hello: dp");
    REQUIRE(m->n_tp >= 1 && m->n_tp <= MAX_WORLD && m->tp >= 0 && m->tp < m->n_tp, "hello: tp");
    REQUIRE(good_name(m->device), "hello: device");
    REQUIRE(good_name(m->host), "hello: host");
    REQUIRE(m->pid >= 1 && m->pid <= INT32_MAX, "hello: pid");
    REQUIRE((m->applied_id == 0) == (m->applied_plan.len == 0),
            "hello: applied plan without id, or id without plan");
    REQUIRE(m->applied_plan.len <= WIRE_MAX_PLAN, "hello: applied plan too long");
    REQUIRE(m->vote_period <= 1000000, "hello: vote period");
    REQUIRE(m->highest_term <= WIRE_MAX_TERM, "hello: term");
    REQUIRE(m->budget_version <= WIRE_MAX_BUDGET_VERSION, "hello: budget version");
    return NULL;
}

/* The most that one micro-batch of the item can take, at any width; 0: the shape is illegal. */
static uint64_t item_most_bytes(const Agoq__Item *m, uint64_t round) {
    uint64_t most = 0;
    if (m->rows > INT64_MAX || m->cols > INT64_MAX) return 0;
    for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
        agoq_layout layout;
        if (agoq_layout_make(agoq_width_bits(i), (int64_t)m->rows, (int64_t)m->cols, &layout)) return 0;
        if (layout.bytes > most) most = layout.bytes;
    }
    return most + round < MAX_MICROBATCH_BYTES / m->count ? (most + round + 1) * m->count : 0;
}

static const char *check_item(const Agoq__Item *m, const Agoq__Profile *p, uint64_t *sum) {
    REQUIRE(m->layer < UINT16_MAX && m->role < AGOQ_N_ROLES && m->chunk < p->n_chunks,
            "profile: layer, role or chunk");
    REQUIRE(m->count >= 1 && m->count <= UINT16_MAX, "profile: count of tensors");
    uint64_t most = item_most_bytes(m, p->alloc_round_bytes);
    REQUIRE(most != 0 && most <= MAX_MICROBATCH_BYTES - *sum, "profile: shape");
    *sum += most;
    REQUIRE(m->widths != 0 && m->widths < (1u << AGOQ_N_WIDTHS), "profile: set of widths");
    REQUIRE(isfinite(m->sensitivity) && m->sensitivity >= 0, "profile: sensitivity");
    return NULL;
}

static int good_sizes(const uint64_t *values, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (values[i] > WIRE_MAX_AMOUNT) return 0;
    }
    return 1;
}

static const char *check_profile(const Agoq__Profile *m) {
    REQUIRE(m->schedule < AGOQ_N_SCHEDULES, "profile: schedule");
    REQUIRE(m->n_microbatches >= 1 && m->n_microbatches <= MAX_LIVE, "profile: micro-batches");
    REQUIRE(m->n_chunks >= 1 && m->n_chunks <= WIRE_MAX_CHUNKS, "profile: chunks");
    REQUIRE(m->n_layers >= 1 && m->n_layers < UINT16_MAX, "profile: layers");
    REQUIRE(m->n_items <= WIRE_MAX_ITEMS, "profile: too many items");
    REQUIRE(m->n_fixed_bytes == m->n_chunks, "profile: fixed bytes");
    REQUIRE(m->n_static_bytes == AGOQ_N_PHASES && good_sizes(m->static_bytes, AGOQ_N_PHASES),
            "profile: static bytes");
    REQUIRE(m->n_workspace_bytes == AGOQ_N_PHASES && good_sizes(m->workspace_bytes, AGOQ_N_PHASES),
            "profile: workspace bytes");
    REQUIRE(m->alloc_round_bytes <= (1u << 30), "profile: rounding of allocations");
    REQUIRE(m->n_live <= MAX_LIVE_VALUES && m->n_live % m->n_chunks == 0, "profile: live vectors");
    for (size_t i = 0; i < m->n_live; i++) REQUIRE(m->live[i] <= MAX_LIVE, "profile: live count");
    uint64_t sum = 0;
    for (size_t i = 0; i < m->n_fixed_bytes; i++) {
        REQUIRE(m->fixed_bytes[i] <= MAX_MICROBATCH_BYTES - sum, "profile: fixed bytes");
        sum += m->fixed_bytes[i];
    }
    for (size_t i = 0; i < m->n_items; i++) {
        const char *bad = check_item(m->items[i], m, &sum);
        if (bad) return bad;
    }
    return NULL;
}

static const char *check_report(const Agoq__Report *m) {
    REQUIRE(m->step >= -1, "report: step");
    REQUIRE(m->budget_version <= WIRE_MAX_BUDGET_VERSION, "report: budget version");
    REQUIRE(m->peak_bytes <= WIRE_MAX_AMOUNT && m->saved_peak_bytes <= WIRE_MAX_AMOUNT &&
                m->reserved_bytes <= WIRE_MAX_AMOUNT && m->peak_since_switch_bytes <= WIRE_MAX_AMOUNT,
            "report: bytes");
    REQUIRE(good_string(m->guard_why), "report: text");
    return NULL;
}

static const char *check_named(const char *device, int32_t stage) {
    REQUIRE(good_text(device, 0, WIRE_MAX_DEVICE, 0), "budget: device");
    REQUIRE(stage >= 0 && stage < WIRE_MAX_STAGES, "budget: stage");
    return NULL;
}

static const char *check_ctl_request(const Agoq__CtlRequest *m) {
    REQUIRE(m->verb_case != AGOQ__CTL_REQUEST__VERB__NOT_SET, "request: no known verb");
    if (m->verb_case == AGOQ__CTL_REQUEST__VERB_BUDGET_SET) {
        const Agoq__CtlBudgetSet *set = m->budget_set;
        REQUIRE(good_text(set->device, 0, WIRE_MAX_DEVICE, 0), "budget: device");
        REQUIRE(set->stage >= -1 && set->stage < WIRE_MAX_STAGES, "budget: stage");
        REQUIRE(set->device[0] || set->stage >= 0, "budget: neither device nor stage");
        REQUIRE(set->bytes <= WIRE_MAX_AMOUNT, "budget: bytes");
        REQUIRE(good_string(set->why), "budget: text");
    }
    if (m->verb_case == AGOQ__CTL_REQUEST__VERB_BUDGET_GET)
        return check_named(m->budget_get->device, m->budget_get->stage);
    if (m->verb_case == AGOQ__CTL_REQUEST__VERB_BUDGET_WAIT)
        return check_named(m->budget_wait->device, m->budget_wait->stage);
    if (m->verb_case == AGOQ__CTL_REQUEST__VERB_EXPLAIN) {
        REQUIRE(m->explain->stage >= -1 && m->explain->stage < WIRE_MAX_STAGES, "explain: stage");
    }
    return NULL;
}

static const char *check_ctl_stage(const Agoq__CtlStageInfo *m) {
    REQUIRE(m->stage < WIRE_MAX_STAGES && m->n_chunks <= WIRE_MAX_CHUNKS, "reply: stage");
    REQUIRE(m->n_live <= MAX_LIVE_VALUES && (m->n_chunks ? m->n_live % m->n_chunks == 0 : m->n_live == 0),
            "reply: live vectors");
    REQUIRE(isfinite(m->bits_mean) && isfinite(m->objective) && isfinite(m->lower_bound), "reply: number");
    REQUIRE(good_text(m->why_text, 0, WIRE_MAX_STRING, 1), "reply: text");
    REQUIRE(m->n_levers <= MAX_LEVERS, "reply: levers");
    for (size_t i = 0; i < m->n_levers; i++) REQUIRE(good_string(m->levers[i]->text), "reply: text");
    return NULL;
}

static const char *check_ctl_reply(const Agoq__CtlReply *m) {
    REQUIRE(m->code <= 8, "reply: code");
    REQUIRE(good_text(m->text, 0, WIRE_MAX_STRING, 1) && good_string(m->daemon_version), "reply: text");
    if (m->status) {
        REQUIRE(good_text(m->status->job, 0, WIRE_MAX_JOB, 0) && good_string(m->status->state) &&
                    good_string(m->status->why),
                "reply: text");
    }
    REQUIRE(m->n_ranks <= MAX_RANKS && m->n_events <= MAX_EVENTS && m->n_budgets <= MAX_RANKS &&
                m->n_stages <= WIRE_MAX_STAGES,
            "reply: too many entries");
    for (size_t i = 0; i < m->n_ranks; i++) {
        const Agoq__CtlRank *r = m->ranks[i];
        REQUIRE(r->rank >= 0 && r->stage >= 0 && good_string(r->device) && good_string(r->host) &&
                    good_string(r->state),
                "reply: rank");
    }
    if (m->plan) {
        REQUIRE(m->plan->bytes.len <= WIRE_MAX_PLAN && good_string(m->plan->why), "reply: plan");
    }
    for (size_t i = 0; i < m->n_events; i++) {
        REQUIRE(good_string(m->events[i]->what) && good_string(m->events[i]->why), "reply: event");
    }
    for (size_t i = 0; i < m->n_budgets; i++) {
        REQUIRE(good_string(m->budgets[i]->device) && good_string(m->budgets[i]->state), "reply: budget");
    }
    for (size_t i = 0; i < m->n_stages; i++) {
        const char *bad = check_ctl_stage(m->stages[i]);
        if (bad) return bad;
    }
    return NULL;
}

static const char *check_body(const Agoq__Envelope *e) {
    switch (e->body_case) {
    case AGOQ__ENVELOPE__BODY_HELLO:
        return check_hello(e->hello, e->rank);
    case AGOQ__ENVELOPE__BODY_WELCOME:
        REQUIRE(e->welcome->heartbeat_ms >= 1 && e->welcome->heartbeat_ms <= 3600000, "welcome: heartbeat");
        REQUIRE(e->welcome->term <= WIRE_MAX_TERM, "welcome: term");
        REQUIRE(e->welcome->budget_version <= WIRE_MAX_BUDGET_VERSION, "welcome: budget version");
        REQUIRE(e->welcome->budget_bytes <= WIRE_MAX_AMOUNT, "welcome: budget");
        return NULL;
    case AGOQ__ENVELOPE__BODY_REFUSE:
        REQUIRE(e->refuse->reason <= UINT8_MAX && good_string(e->refuse->text), "refuse: reason or text");
        return NULL;
    case AGOQ__ENVELOPE__BODY_PROFILE:
        return check_profile(e->profile);
    case AGOQ__ENVELOPE__BODY_REPORT:
        return check_report(e->report);
    case AGOQ__ENVELOPE__BODY_PREPARE:
        REQUIRE(e->prepare->id != 0 && e->prepare->hash != 0, "prepare: id or hash");
        REQUIRE(e->prepare->plan.len >= 1 && e->prepare->plan.len <= WIRE_MAX_PLAN, "prepare: plan size");
        REQUIRE(e->prepare->budget_version <= WIRE_MAX_BUDGET_VERSION, "prepare: budget version");
        REQUIRE(good_string(e->prepare->why), "prepare: text");
        return NULL;
    case AGOQ__ENVELOPE__BODY_PREPARED:
        REQUIRE(e->prepared->id != 0 && e->prepared->hash != 0, "prepared: id or hash");
        return NULL;
    case AGOQ__ENVELOPE__BODY_NACK:
        REQUIRE(e->nack->reason <= AGOQ__NACK_REASON__NACK_SAME_ID && good_string(e->nack->text),
                "nack: reason or text");
        return NULL;
    case AGOQ__ENVELOPE__BODY_APPLIED:
        REQUIRE(e->applied->step >= 0 && e->applied->measured_peak_bytes <= WIRE_MAX_AMOUNT,
                "applied: step or bytes");
        return NULL;
    case AGOQ__ENVELOPE__BODY_ABORT:
        REQUIRE(good_string(e->abort->reason), "abort: text");
        return NULL;
    case AGOQ__ENVELOPE__BODY_BYE:
        REQUIRE(good_string(e->bye->reason), "bye: text");
        return NULL;
    case AGOQ__ENVELOPE__BODY_CANCELLED:
        REQUIRE(e->cancelled->step >= -1, "cancelled: step");
        REQUIRE(e->cancelled->budget_version <= WIRE_MAX_BUDGET_VERSION, "cancelled: budget version");
        return NULL;
    case AGOQ__ENVELOPE__BODY_CANCEL:
        REQUIRE(e->cancel->budget_version <= WIRE_MAX_BUDGET_VERSION, "cancel: budget version");
        return NULL;
    case AGOQ__ENVELOPE__BODY_ACK:
        return NULL;
    case AGOQ__ENVELOPE__BODY_CTL_REQUEST:
        return check_ctl_request(e->ctl_request);
    case AGOQ__ENVELOPE__BODY_CTL_REPLY:
        return check_ctl_reply(e->ctl_reply);
    default:
        return "no known body";
    }
}

const char *wire_check(const Agoq__Envelope *e) {
    REQUIRE(good_text(e->job, 1, WIRE_MAX_JOB, 0), "job name");
    REQUIRE(e->sender.len == 16, "sender is not 16 bytes");
    REQUIRE(e->node <= UINT16_MAX, "node index");
    REQUIRE(e->rank >= -1 && e->rank < MAX_WORLD, "rank");
    REQUIRE(e->seq >= 1, "sequence number");
    return check_body(e);
}
