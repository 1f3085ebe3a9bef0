/* The report that answers "I enabled it and memory did not drop": what each role costs as packed and would
 * cost at 16 bits, and what was predicted against what the caller's allocator counted. Text for people;
 * numbers for programs come from agoq_session_ledger and agoq_session_state. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/units.h"
#include "libagoq/session.h"

typedef struct writer {
    char *text;
    size_t capacity, wanted;
} writer;

static void put(writer *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put(writer *w, const char *format, ...) {
    va_list args;
    const size_t left = w->wanted < w->capacity ? w->capacity - w->wanted : 0;
    va_start(args, format);
    const int n = vsnprintf(left ? w->text + w->wanted : NULL, left, format, args);
    va_end(args);
    if (n > 0) w->wanted += (size_t)n;
}

/* Smallest and largest width now, over the layers of this rank that have the role. 0: none has. */
static void width_range(const agoq_session *s, int role, int *least, int *most) {
    *least = *most = 0;
    for (int layer = 0; layer < s->widths.n_layers; layer++) {
        if (!s->widths.least[(size_t)layer * AGOQ_N_ROLES + (size_t)role]) continue;
        const int bits = agoq_session_bits(s, layer, role);
        if (*least == 0 || bits < *least) *least = bits;
        if (bits > *most) *most = bits;
    }
}

static void put_entry(writer *w, const char *name, const char *bits, const agoq_ledger_entry *e) {
    char live[32], peak[32], peak16[32];
    units_format_bytes(e->live_bytes, live);
    units_format_bytes(e->peak_bytes, peak);
    units_format_bytes(e->peak_bytes16, peak16);
    put(w, "  %-14s %5s %12s %12s %12s", name, bits, live, peak, peak16);
    if (e->peak_bytes16)
        put(w, " %6.3f\n", (double)e->peak_bytes / (double)e->peak_bytes16);
    else
        put(w, " %6s\n", "-");
}

static void put_roles(writer *w, const agoq_session *s) {
    agoq_ledger_entry e;
    put(w, "  %-14s %5s %12s %12s %12s %6s\n", "role", "bits", "live", "peak", "at 16 bits", "ratio");
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        int least, most;
        char bits[16] = "-";
        width_range(s, role, &least, &most);
        ledger_get(&s->ledger, -1, role, &e);
        if (!least && !e.peak_bytes) continue;
        if (least && least == most) snprintf(bits, sizeof bits, "%d", least);
        if (least != most) snprintf(bits, sizeof bits, "%d-%d", least, most);
        put_entry(w, agoq_role_name(role), bits, &e);
    }
    ledger_get(&s->ledger, -1, -1, &e);
    put_entry(w, "all", "", &e);
}

static void put_memory(writer *w, const agoq_session *s, const agoq_plan_state *state) {
    char predicted[32], measured[32], saved[32];
    units_format_bytes(state->predicted_bytes, predicted);
    units_format_bytes(s->peak_since_switch, measured);
    units_format_bytes(s->last_usage.saved_peak_bytes, saved);
    put(w, "  peak since the plan's first step: %s",
        s->peak_since_switch ? measured : "not counted by the caller");
    if (!state->predicted_bytes) {
        put(w, ", the plan predicts nothing\n");
    } else if (!s->peak_since_switch) {
        put(w, ", predicted %s\n", predicted);
    } else {
        const double ratio = (double)s->peak_since_switch / (double)state->predicted_bytes;
        put(w, ", predicted %s (%.1f %%)%s\n", predicted, 100 * ratio,
            ratio > 1 ? ": more than the profile says is in use" : "");
    }
    put(w, "  saved activations in the last step: %s", saved);
    if (s->last_usage.reserved_bytes) {
        units_format_bytes(s->last_usage.reserved_bytes, saved);
        put(w, ", allocator reserved %s", saved);
    }
    put(w, ", allocations retried %" PRIu32 "\n", s->last_usage.oom_retries);
}

size_t agoq_session_report(const agoq_session *session, char *text, size_t capacity) {
    static const char *const sources[] = {[SOURCE_FLOOR] = "none",
                                          [SOURCE_FIXED] = "fixed widths",
                                          [SOURCE_FILE] = "plan file",
                                          [SOURCE_DAEMON] = "agoqd"};
    static const char *const modes[] = {
        [AGOQ_MODE_NORMAL] = "normal", [AGOQ_MODE_IDENTITY] = "identity", [AGOQ_MODE_POISON] = "poison"};
    writer w = {text, text ? capacity : 0, 0};
    if (w.capacity) text[0] = 0;
    if (!session) return 0;
    const agoq_session *s = session;
    agoq_plan_state state;
    char id[32];
    agoq_session_state(s, &state);
    if (s->setup.source == SOURCE_FIXED)
        snprintf(id, sizeof id, "fixed");
    else
        plan_id_format(state.plan_id, id);
    put(&w, "agoq: rank %d of %d, stage %d of %d, mode %s\n", s->setup.me.rank, s->setup.me.world,
        s->setup.me.stage, s->setup.me.n_stages, modes[s->setup.mode]);
    put(&w,
        "  plan %s since step %" PRId64 ", source %s%s, %" PRIu64 " switches, %" PRIu64 " disagreements\n",
        id, state.since_step < 0 ? 0 : state.since_step, sources[s->setup.source],
        s->setup.source != SOURCE_DAEMON ? ""
        : state.connected                ? " (connected)"
                                         : " (not connected: the plan stays)",
        state.switches, state.disagreements);
    if (state.guarded)
        put(&w, "  memory guard: every width is at most the floor plan's until the next switch\n");
    if (s->record.failed) put(&w, "  recording stopped: the record file could not be written\n");
    if (s->ballot.broken)
        put(&w, "  the vote of the ranks failed: the plan stays until a communicator is attached\n");
    put_roles(&w, s);
    put_memory(&w, s, &state);
    return w.wanted;
}
