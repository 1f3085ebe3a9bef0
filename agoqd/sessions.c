/* See sessions.h. */
#include "agoqd/sessions.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"

void sessions_fini(sessions *t) {
    for (int32_t i = 0; i < t->world; i++) held_fini(&t->ranks[i].held);
    mem_free(t->ranks);
    *t = (sessions){0};
}

agoq_status sessions_reset(sessions *t, const char *job, int32_t world, int32_t n_stages, int32_t n_dp,
                           int32_t n_tp) {
    session *ranks = mem_zalloc((size_t)world, sizeof *ranks);
    if (!ranks) return AGOQ_E_NOMEM;
    char name[WIRE_MAX_JOB + 1]; /* job may point into *t */
    snprintf(name, sizeof name, "%s", job);
    sessions_fini(t);
    *t = (sessions){.world = world, .n_stages = n_stages, .n_dp = n_dp, .n_tp = n_tp, .ranks = ranks};
    memcpy(t->job, name, sizeof name);
    for (int32_t i = 0; i < world; i++) {
        ranks[i].who.rank = i;
        ranks[i].now.step = ranks[i].now.applied_step = -1;
    }
    return AGOQ_OK;
}

int sessions_present(const session *s) {
    return s->state == SESSION_EXPECTED || s->state == SESSION_LIVE || s->state == SESSION_SILENT;
}

sessions_counts sessions_count(const sessions *t) {
    sessions_counts n = {0};
    for (int32_t i = 0; i < t->world; i++) {
        const session *s = &t->ranks[i];
        n.none += s->state == SESSION_NONE;
        n.expected += s->state == SESSION_EXPECTED;
        n.live += s->state == SESSION_LIVE;
        n.silent += s->state == SESSION_SILENT;
        n.gone += s->state == SESSION_GONE;
        n.profiled += s->state == SESSION_LIVE && s->has_held && s->held.observed_steps > 0;
    }
    return n;
}

int64_t sessions_step(const sessions *t) {
    int64_t step = -1;
    for (int32_t i = 0; i < t->world; i++) {
        if (sessions_present(&t->ranks[i]) && t->ranks[i].now.step > step) step = t->ranks[i].now.step;
    }
    return step;
}

int64_t sessions_applied_step(const sessions *t) {
    int64_t step = -1;
    for (int32_t i = 0; i < t->world; i++) {
        if (sessions_present(&t->ranks[i]) && t->ranks[i].now.applied_step > step)
            step = t->ranks[i].now.applied_step;
    }
    return step;
}

session *sessions_at(const sessions *t, int32_t rank) {
    return rank >= 0 && rank < t->world ? &t->ranks[rank] : NULL;
}

static int any_present(const sessions *t) {
    sessions_counts n = sessions_count(t);
    return n.live + n.silent + n.expected > 0;
}

static int shape_differs(const sessions *t, const Agoq__Hello *m) {
    return t->world != m->world || t->n_stages != m->n_stages || t->n_dp != m->n_dp || t->n_tp != m->n_tp;
}

/* The job of the table, or a new one in its place once every rank of the old one is gone. 0 or a reason to
 * refuse. */
static int settle_job(sessions *t, const Agoq__Envelope *e, const char *only_job, uint32_t max_ranks,
                      char *text, size_t text_size) {
    const Agoq__Hello *m = e->hello;
    if (only_job[0] && strcmp(only_job, e->job)) {
        snprintf(text, text_size, "this daemon serves job %s only, not %s", only_job, e->job);
        return WIRE_REFUSE_JOB;
    }
    if ((uint32_t)m->world > max_ranks) {
        snprintf(text, text_size, "a world of %d ranks is above max_sessions %u", m->world, max_ranks);
        return WIRE_REFUSE_LIMIT;
    }
    int same_job = strcmp(t->job, e->job) == 0;
    if (same_job && !shape_differs(t, m)) return 0;
    if (any_present(t) && !same_job) {
        snprintf(text, text_size, "job %s is running here; %s has to wait until its ranks have exited",
                 t->job, e->job);
        return WIRE_REFUSE_JOB;
    }
    if (any_present(t)) {
        snprintf(text, text_size,
                 "job %s has world %d, stages %d, dp %d, tp %d; this rank says %d, %d, %d, %d", t->job,
                 t->world, t->n_stages, t->n_dp, t->n_tp, m->world, m->n_stages, m->n_dp, m->n_tp);
        return WIRE_REFUSE_SHAPE;
    }
    if (sessions_reset(t, e->job, m->world, m->n_stages, m->n_dp, m->n_tp) != AGOQ_OK) {
        snprintf(text, text_size, "out of memory for %d ranks", m->world);
        return WIRE_REFUSE_LIMIT;
    }
    return 0;
}

static const session *owner_of_device(const sessions *t, const char *device, int32_t not_rank) {
    for (int32_t i = 0; i < t->world; i++) {
        if (i != not_rank && sessions_present(&t->ranks[i]) && strcmp(t->ranks[i].who.device, device) == 0)
            return &t->ranks[i];
    }
    return NULL;
}

/* As the kernel names the process. 0: it lives in a pid namespace that this daemon does not see; the pid that
 * it knows itself by is another process here, or none. */
static uint64_t pid_of(const peer *from) {
    return from->pid > 0 ? (uint64_t)from->pid : 0;
}

static void copy_who(session_who *who, const Agoq__Envelope *e, const peer *from) {
    const Agoq__Hello *m = e->hello;
    *who = (session_who){.rank = e->rank,
                         .stage = m->stage,
                         .dp = m->dp,
                         .tp = m->tp,
                         .pid = pid_of(from),
                         .start_time = pid_of(from) == m->pid ? m->start_time : 0,
                         .applied_id = m->applied_id};
    snprintf(who->device, sizeof who->device, "%s", m->device);
    snprintf(who->host, sizeof who->host, "%s", m->host);
}

static int same_sender(const session *s, const Agoq__Envelope *e) {
    return memcmp(s->incarnation, e->sender.data, 16) == 0;
}

int sessions_knows(const session *s, const Agoq__Envelope *e) {
    return (s->state == SESSION_LIVE || s->state == SESSION_SILENT) && same_sender(s, e);
}

/* Does another process hold the place? One that has verifiably exited is gone already; while it may be alive,
 * it keeps its memory and so its place (S9). The same process may come as another sender: it has closed its
 * session and opened a new one. The senders of a stored roster are not known: there the pid alone tells (0,
 * not visible from here, is then taken for the same). */
static int is_taken(const session *s, const Agoq__Envelope *e, const peer *from) {
    uint64_t pid = pid_of(from);
    if (!sessions_present(s)) return 0;
    if (s->state == SESSION_EXPECTED) return s->who.pid != pid;
    return !same_sender(s, e) && (pid == 0 || s->who.pid != pid);
}

int sessions_admit(sessions *t, const Agoq__Envelope *e, const peer *from, const char *only_job,
                   uint32_t max_ranks, session **out, char *text, size_t text_size) {
    const Agoq__Hello *m = e->hello;
    if (m->vote_period != 1 || m->roster_hash != 0) {
        snprintf(text, text_size,
                 "ranks vote at every step, on one node: vote period %u and roster %016" PRIx64
                 " are unknown here",
                 m->vote_period, m->roster_hash);
        return WIRE_REFUSE_SHAPE;
    }
    int refusal = settle_job(t, e, only_job, max_ranks, text, text_size);
    if (refusal) return refusal;
    const session *owner = owner_of_device(t, m->device, e->rank);
    if (owner) {
        snprintf(text, text_size, "device %s belongs to rank %d: each rank needs a budget of its own",
                 m->device, owner->who.rank);
        return WIRE_REFUSE_DEVICE;
    }
    session *s = &t->ranks[e->rank];
    static const uint8_t nobody[16];
    if (memcmp(s->replaced, e->sender.data, 16) == 0 && memcmp(s->replaced, nobody, 16)) {
        snprintf(text, text_size, "a newer process took the place of rank %d", e->rank);
        return WIRE_REFUSE_REPLACED;
    }
    if (is_taken(s, e, from)) {
        snprintf(text, text_size,
                 "process %" PRIu64 " holds the place of rank %d until it says goodbye or exits%s",
                 s->who.pid, e->rank,
                 s->who.pid ? "" : " (pid 0: of a pid namespace that is not visible from here)");
        return WIRE_REFUSE_TAKEN;
    }
    *out = s;
    return 0;
}

sessions_change sessions_accept(session *s, const Agoq__Envelope *e, const peer *from, int64_t now) {
    const Agoq__Hello *m = e->hello;
    int same = sessions_knows(s, e);
    if (same && e->seq <= s->now.seq) return SESSIONS_SAME; /* a late copy */
    sessions_change change = same || s->state == SESSION_EXPECTED ? SESSIONS_SAME
                             : sessions_present(s)                ? SESSIONS_REPLACED
                                                                  : SESSIONS_JOINED;
    if (!same) {
        held_fini(&s->held);
        s->has_held = 0;
        s->held_seq = 0;
        s->oom_retries = 0;
        memcpy(s->replaced, s->incarnation, 16);
    }
    s->now = (session_now){.seq = e->seq,
                           .applied_step = -1,
                           .step = same ? s->now.step : -1,
                           .prepared_id = m->prepared_id, /* it may follow 3 s of silence, in mid-vote */
                           .vote_id = m->vote_id,
                           .budget_version = m->budget_version};
    s->now.applied_hash = m->applied_id ? m->applied_hash : 0;
    copy_who(&s->who, e, from);
    memcpy(s->incarnation, e->sender.data, 16);
    s->peer = *from;
    s->heard_ms = now;
    s->state = SESSION_LIVE;
    return change;
}

session *sessions_heard(sessions *t, const Agoq__Envelope *e, const peer *from, int64_t now, int *woke) {
    session *s = sessions_at(t, e->rank);
    *woke = 0;
    if (!s || (s->state != SESSION_LIVE && s->state != SESSION_SILENT) || strcmp(t->job, e->job) ||
        memcmp(s->incarnation, e->sender.data, 16))
        return NULL;
    *woke = s->state == SESSION_SILENT;
    s->state = SESSION_LIVE;
    s->heard_ms = now;
    s->peer = *from;
    return s;
}

void sessions_gone(session *s, int64_t now) {
    s->state = SESSION_GONE;
    s->gone_ms = now;
    s->has_held = 0;
    held_fini(&s->held);
}

int session_report(session *s, uint64_t seq, const Agoq__Report *m) {
    if (seq <= s->now.seq) return 0;
    session_now *n = &s->now;
    n->seq = seq;
    n->step = m->step;
    if (s->who.applied_id != m->applied_id) n->applied_hash = 0; /* the caller knows the plans */
    s->who.applied_id = m->applied_id;
    n->prepared_id = m->prepared_id;
    n->vote_id = m->vote_id;
    if (m->budget_version > n->budget_version) n->budget_version = m->budget_version;
    n->peak_bytes = m->peak_bytes;
    n->saved_peak_bytes = m->saved_peak_bytes;
    n->reserved_bytes = m->reserved_bytes;
    s->oom_retries += m->oom_retries;
    n->peak_since_switch_bytes = m->peak_since_switch_bytes;
    n->disagreements = m->disagreements;
    n->guarded = m->guarded != 0;
    wire_text(n->guard_why, sizeof n->guard_why, m->guard_why);
    return 1;
}

int session_cancelled(session *s, uint64_t seq, const Agoq__Cancelled *m) {
    if (seq <= s->now.seq) return 0;
    s->now.seq = seq;
    if (s->who.applied_id != m->applied_id) s->now.applied_hash = 0;
    s->who.applied_id = m->applied_id;
    s->now.vote_id = m->vote_id;
    s->now.prepared_id = m->vote_id; /* what is voted on stays, all else was dropped */
    if (m->step > s->now.step) s->now.step = m->step;
    if (m->budget_version > s->now.budget_version) s->now.budget_version = m->budget_version;
    return 1;
}

int session_prepared(session *s, uint64_t seq, uint64_t id, uint64_t budget_version) {
    if (seq <= s->now.seq) return 0;
    s->now.seq = seq;
    s->now.prepared_id = id;
    if (s->now.vote_id != id) s->now.vote_id = 0;
    if (budget_version > s->now.budget_version) s->now.budget_version = budget_version;
    return 1;
}

int session_applied(session *s, uint64_t seq, const Agoq__Applied *m) {
    if (seq <= s->now.seq) return 0;
    s->now.seq = seq;
    s->who.applied_id = m->id;
    s->now.applied_hash = m->id ? m->hash : 0;
    s->now.applied_step = m->step;
    s->now.peak_since_switch_bytes = m->measured_peak_bytes; /* until a REPORT: not the old plan's */
    if (m->step > s->now.step) s->now.step = m->step;
    s->now.vote_id = 0;
    s->now.prepared_id = 0;
    return 1;
}

const char *session_state_name(session_state state) {
    static const char *const names[] = {"none", "expected", "live", "silent", "gone"};
    return names[state];
}
