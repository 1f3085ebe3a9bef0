/* What the caller tells a session between step boundaries: what it holds, what it saves, when memory is
 * short. Nothing in here takes a lock per tensor; the helper thread learns of it at the step's end, of a
 * shortage at once. */
#include <inttypes.h>
#include <string.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/try.h"
#include "libagoq/error.h"
#include "libagoq/session.h"

/* A plan for another shape of the job can have a width for all that is held here; its predictions are then
 * about something else. */
static agoq_status check_place(const agoq_session *s, const session_widths *widths,
                               const planfile_entry *from) {
    const plan *which = &from->plan.decoded;
    const int32_t stage = s->setup.me.stage, n_stages = s->setup.me.n_stages;
    if (which->n_stages != (uint32_t)n_stages)
        return error_fail(AGOQ_E_FORMAT,
                          "plan file, step %" PRId64 ": the plan is for %u pipeline stages, and there are %d",
                          from->step, which->n_stages, n_stages);
    for (uint32_t i = 0; i < which->n_entries; i++) {
        const plan_entry *e = &which->entries[i];
        const int held =
            e->layer < widths->n_layers && widths->least[(size_t)e->layer * AGOQ_N_ROLES + e->role];
        if (held && e->stage != stage)
            return error_fail(AGOQ_E_FORMAT,
                              "plan file, step %" PRId64 ": layer %u is on stage %u in the plan, here on %d",
                              from->step, e->layer, e->stage, stage);
        if (!held && e->stage == stage)
            return error_fail(AGOQ_E_FORMAT,
                              "plan file, step %" PRId64
                              ": stage %d has layer %u role %s in the plan, not here",
                              from->step, stage, e->layer, agoq_role_name(e->role));
    }
    return AGOQ_OK;
}

/* Plans that are known beforehand must fit what is held, or replaying them would mean something else. */
static agoq_status check_source(const agoq_session *s, const profile *p, const session_widths *widths) {
    const agoq_item *item;
    if (s->setup.source == SOURCE_FIXED) {
        for (int i = 0; i < p->said.n_items; i++) {
            item = &p->items[i];
            const int bits = s->setup.fixed_bits[item->role];
            if (bits && !(item->widths & (1u << agoq_width_index(bits))))
                return error_fail(AGOQ_E_INVAL, "fixed_bits: layer %d role %s does not allow width %d",
                                  item->layer, agoq_role_name(item->role), bits);
        }
    }
    for (size_t i = 0; i < s->file.n; i++) {
        if (s->file.entries[i].plan.id == 0) continue;
        AGOQ_TRY(check_place(s, widths, &s->file.entries[i]));
        const char *bad = profile_refuses(p, &s->file.entries[i].plan.decoded, &item);
        if (bad)
            return error_fail(AGOQ_E_FORMAT, "plan file, step %" PRId64 ": %s: layer %d role %s",
                              s->file.entries[i].step, bad, item->layer, agoq_role_name(item->role));
    }
    return AGOQ_OK;
}

static int same_shape(const agoq_profile *a, const agoq_profile *b) {
    return a->schedule == b->schedule && a->n_microbatches == b->n_microbatches && a->n_chunks == b->n_chunks;
}

/* Smallest allowed width by (layer, role); 0: no item. */
static void fill_least(uint8_t *least, const profile *p) {
    for (int i = 0; i < p->said.n_items; i++) {
        const agoq_item *item = &p->items[i];
        least[(size_t)item->layer * AGOQ_N_ROLES + (size_t)item->role] =
            (uint8_t)profile_least_width(item->widths);
    }
}

/* Everything that can fail; *p becomes ready to be put in place. */
static agoq_status prepare_profile(agoq_session *s, const agoq_profile *from, profile *p,
                                   session_widths *widths) {
    AGOQ_TRY(profile_copy(from, p));
    widths->n_layers = p->n_table_layers;
    widths->bits = mem_zalloc((size_t)widths->n_layers, AGOQ_N_ROLES);
    widths->least = mem_zalloc((size_t)widths->n_layers, AGOQ_N_ROLES);
    if (!widths->bits || !widths->least) return error_fail(AGOQ_E_NOMEM, "session_profile");
    fill_least(widths->least, p);
    AGOQ_TRY(check_source(s, p, widths));
    if (ledger_reserve(&s->ledger, p->n_table_layers) != AGOQ_OK)
        return error_fail(AGOQ_E_NOMEM, "session_profile");
    if (s->mail->has_profile && same_shape(&s->mail->held.said, &p->said)) {
        profile_set_observed(p, &s->seen);
        return AGOQ_OK;
    }
    if (observe_reset(&s->seen, p->said.n_chunks) != AGOQ_OK)
        return error_fail(AGOQ_E_STATE, "session_profile: a micro-batch of a chunk that goes away is live");
    return AGOQ_OK;
}

agoq_status agoq_session_profile(agoq_session *session, const agoq_profile *profile_in) {
    agoq_session *s = session;
    AGOQ_TRY(session_check(s, "session_profile"));
    if (!profile_in) return error_fail(AGOQ_E_INVAL, "session_profile: profile is NULL");
    profile fresh = {0};
    session_widths widths = {0};
    const agoq_status status = prepare_profile(s, profile_in, &fresh, &widths);
    if (status != AGOQ_OK) {
        profile_fini(&fresh);
        mem_free(widths.bits);
        mem_free(widths.least);
        return status;
    }
    mailbox *mail = s->mail;
    const agoq_item *item;
    pthread_mutex_lock(&mail->mutex);
    profile old = mail->held;
    mail->held = fresh;
    mail->has_profile = 1;
    mail->profile_version++;
    if (mail->prepared.id && profile_refuses(&mail->held, &mail->prepared.decoded, &item))
        vote_withdraw(&mail->vote, mail->prepared.id, 0);
    mailbox_tidy(mail);
    pthread_mutex_unlock(&mail->mutex);
    profile_fini(&old);
    mem_free(s->widths.bits);
    mem_free(s->widths.least);
    s->widths = widths;
    session_widths_rebuild(s);
    s->seen.grown = 0;
    link_wake(s->link);
    return AGOQ_OK;
}

agoq_status agoq_session_microbatch(agoq_session *session, int chunk, int delta) {
    AGOQ_TRY(session_check(session, "session_microbatch"));
    const agoq_status status = observe_microbatch(&session->seen, chunk, delta);
    if (status != AGOQ_OK) return error_fail(status, "session_microbatch: chunk %d, %+d", chunk, delta);
    return AGOQ_OK;
}

/* All bits set is a NaN in bf16, as a scale and as a value. */
static void poison(agoq_packed *packed) {
    const agoq_layout *l = &packed->layout;
    const size_t from = l->bits == 16 ? 0 : l->scale_offset;
    memset((uint8_t *)packed->data + from, 0xff, l->bytes - from);
}

agoq_status agoq_session_saved(agoq_session *session, int layer, int role, agoq_packed *packed) {
    AGOQ_TRY(session_check(session, "session_saved"));
    if (!packed || (!packed->data && packed->layout.bytes))
        return error_fail(AGOQ_E_INVAL, "session_saved: packed or its data is NULL");
    const agoq_status status = ledger_add(&session->ledger, layer, role, &packed->layout);
    if (status != AGOQ_OK) return error_fail(status, "session_saved: layer %d role %d", layer, role);
    const session_setup *setup = &session->setup;
    if (setup->mode == AGOQ_MODE_POISON && setup->poison_roles >> role & 1 && packed->layout.bytes)
        poison(packed);
    return AGOQ_OK;
}

agoq_status agoq_session_released(agoq_session *session, int layer, int role, const agoq_packed *packed) {
    AGOQ_TRY(session_check(session, "session_released"));
    if (!packed) return error_fail(AGOQ_E_INVAL, "session_released: packed is NULL");
    const agoq_status status = ledger_remove(&session->ledger, layer, role, &packed->layout);
    if (status != AGOQ_OK) return error_fail(status, "session_released: layer %d role %d", layer, role);
    return AGOQ_OK;
}

agoq_status agoq_session_pressure(agoq_session *session, const char *why) {
    agoq_session *s = session;
    AGOQ_TRY(session_check(s, "session_pressure"));
    if (!why) return error_fail(AGOQ_E_INVAL, "session_pressure: why is NULL");
    mailbox *mail = s->mail;
    s->guarded = 1;
    session_widths_rebuild(s);
    pthread_mutex_lock(&mail->mutex);
    mail->usage.guarded = 1;
    wire_text(mail->usage.guard_why, sizeof mail->usage.guard_why, why);
    mail->urgent = 1;
    pthread_mutex_unlock(&mail->mutex);
    log_write(LOG_LEVEL_WARN, "session", "memory guard rank=%d why=\"%s\"", s->setup.me.rank,
              mail->usage.guard_why);
    link_wake(s->link);
    return AGOQ_OK;
}

void agoq_session_state(const agoq_session *session, agoq_plan_state *state) {
    if (!state) return;
    memset(state, 0, sizeof *state);
    if (!session) return;
    const agoq_session *s = session;
    const plan *p = &s->current->decoded;
    const uint32_t stage = (uint32_t)s->setup.me.stage;
    state->plan_id = s->current->id;
    state->plan_hash = s->current->hash;
    state->since_step = s->since_step;
    state->guarded = s->guarded;
    state->predicted_bytes = stage < p->n_stages && !s->refuted ? p->stages[stage].predicted_peak_bytes : 0;
    state->switches = s->switches;
    state->disagreements = s->disagreements;
    if (!s->link || session_check(s, "session_state") != AGOQ_OK)
        return; /* the child has no link to speak of */
    pthread_mutex_lock(&s->mail->mutex);
    const int64_t heard = s->mail->heard_ms;
    pthread_mutex_unlock(&s->mail->mutex);
    state->connected = heard != 0 && clock_ms() - heard <= CONNECTED_MS;
}

void agoq_session_ledger(const agoq_session *session, int layer, int role, agoq_ledger_entry *entry) {
    if (!entry) return;
    memset(entry, 0, sizeof *entry);
    if (session) ledger_get(&session->ledger, layer, role, entry);
}

void agoq_session_reset_peaks(agoq_session *session) {
    if (session) ledger_reset_peaks(&session->ledger);
}
