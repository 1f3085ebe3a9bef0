/* Step boundaries: reading the last vote, switching, starting the next. The order is fixed: finish the vote
 * of the boundary before, decide, switch for this step, vote with what is held now. One lock per boundary
 * without a communicator, and no I/O unless the plan changes. */
#include <inttypes.h>
#include <string.h>

#include "common/log.h"
#include "common/most.h"
#include "common/try.h"
#include "libagoq/error.h"
#include "libagoq/session.h"

void session_switch(agoq_session *s, const slot *next, int64_t step) {
    s->current = next;
    s->since_step = step;
    s->switches++;
    s->guarded = 0;
    s->peak_since_switch = 0;
    session_widths_rebuild(s);
    char name[32];
    plan_id_format(next->id, name);
    log_write(LOG_LEVEL_INFO, "session", "plan id=%s step=%" PRId64 " rank=%d", name, step, s->setup.me.rank);
}

/* Locked. The helper tells the daemon; a switch ends the guard there too. */
static void note_switch(mailbox *mail, int64_t step) {
    mail->n_switches++;
    mail->applied_step = (uint64_t)(step < 0 ? 0 : step);
    mail->usage.guarded = 0;
    mail->usage.guard_why[0] = 0;
    mail->usage.peak_since_switch_bytes = 0;
}

/* Locked. What the vote decided becomes the state of a session whose plans come from the daemon. 1: the plan
 * changed. */
static int settle(agoq_session *s, vote_outcome outcome, uint64_t had_id, int64_t step) {
    mailbox *mail = s->mail;
    int changed = 0;
    if (outcome == VOTE_SWITCH) {
        slot_fini(&mail->applied);
        mail->applied = mail->prepared;
        memset(&mail->prepared, 0, sizeof mail->prepared);
        changed = 1;
    } else if (outcome == VOTE_FLOOR && had_id != 0) {
        slot_fini(&mail->applied);
        changed = 1;
    }
    if (changed) note_switch(mail, step);
    mailbox_tidy(mail);
    return changed;
}

static void count_disagreement(agoq_session *s, int64_t step) {
    s->disagreements++;
    s->mail->usage.disagreements = s->disagreements;
    log_write(LOG_LEVEL_WARN, "session", "ranks disagree on the plan in force step=%" PRId64 " rank=%d", step,
              s->setup.me.rank);
}

/* Waits for the running vote, if there is one. NULL: it was lost, or there is none. */
static const uint64_t *await_vote(agoq_session *s, agoq_status *status) {
    session_ballot *b = &s->ballot;
    if (!b->attached || !s->mail->vote.running) return NULL;
    if (b->comm.finish(b->comm.ctx) == AGOQ_OK) return b->words;
    b->broken = 1;
    *status = AGOQ_E_COMM;
    return NULL;
}

/* Locked. Decides for a session of any source; only the daemon's plans depend on it. */
static vote_outcome decide(agoq_session *s, const uint64_t *reduced, int64_t step, agoq_status *status) {
    vote *v = &s->mail->vote;
    vote_outcome outcome = VOTE_KEEP;
    if (v->running)
        outcome = vote_finish(v, reduced);
    else if (!s->ballot.attached && !s->ballot.broken && s->setup.source == SOURCE_DAEMON)
        outcome = vote_alone(v);
    if (outcome == VOTE_BROKEN) {
        s->ballot.broken = 1;
        *status = error_fail(AGOQ_E_COMM, "the vote gave what no reduction of these words can give");
    }
    if (outcome == VOTE_FLOOR) count_disagreement(s, step);
    return outcome;
}

/* The plan of a plan file for this step. 1: another than before. The vote only compares what is applied:
 * every rank follows its file, and a rank with another file is counted as a disagreement and logged. */
static int follow_file(agoq_session *s, int64_t step, const slot **next) {
    const planfile_entry *entry = planfile_at(&s->file, step);
    *next = entry ? &entry->plan : &s->standin;
    return *next != s->current && ((*next)->id != s->current->id || (*next)->hash != s->current->hash);
}

static void record_plan(agoq_session *s, int64_t step, int is_first) {
    planfile_writer *w = &s->record;
    if (w->fd < 0 || w->failed) return;
    /* A continued file may already say what comes after this step: a line of ours ends that. */
    const int rewinds = is_first && w->last_step >= step;
    if (w->last_id == s->current->id && !rewinds) return;
    if (planfile_append(w, step, s->current) != AGOQ_OK)
        log_write(LOG_LEVEL_WARN, "session",
                  "recording stopped: the record file cannot be written step=%" PRId64, step);
}

static agoq_status start_vote(agoq_session *s) {
    session_ballot *b = &s->ballot;
    if (b->comm.start(b->comm.ctx, b->words) == AGOQ_OK) return AGOQ_OK;
    pthread_mutex_lock(&s->mail->mutex);
    (void)vote_finish(&s->mail->vote, NULL);
    pthread_mutex_unlock(&s->mail->mutex);
    b->broken = 1;
    return AGOQ_E_COMM;
}

static agoq_status check_step(const agoq_session *s, int64_t step) {
    AGOQ_TRY(session_check(s, "step_begin"));
    if (s->in_step) return error_fail(AGOQ_E_STATE, "step_begin: step %" PRId64 " has not ended", s->step);
    if (step < 0 || step < s->step)
        return error_fail(AGOQ_E_INVAL, "step_begin: step %" PRId64 " after %" PRId64, step, s->step);
    if (ledger_live_tensors(&s->ledger))
        return error_fail(AGOQ_E_STATE, "step_begin: %" PRIu64 " saved tensors are still live",
                          ledger_live_tensors(&s->ledger));
    return AGOQ_OK;
}

agoq_status agoq_step_begin(agoq_session *session, int64_t step) {
    agoq_session *s = session;
    AGOQ_TRY(check_step(s, step));
    mailbox *mail = s->mail;
    session_ballot *b = &s->ballot;
    agoq_status status =
        b->broken ? error_fail(AGOQ_E_COMM, "a vote failed: attach a communicator again") : AGOQ_OK;
    const int is_first = s->step < 0;
    const uint64_t *reduced = await_vote(s, &status);
    const slot *next = s->current;

    pthread_mutex_lock(&mail->mutex);
    const uint64_t had_id = mail->vote.applied_id;
    const vote_outcome outcome = decide(s, reduced, step, &status);
    int changed = 0;
    if (s->setup.source == SOURCE_DAEMON) {
        changed = settle(s, outcome, had_id, step);
        next = &mail->applied;
    } else {
        if (s->setup.source == SOURCE_FILE) changed = follow_file(s, step, &next);
        if (changed) note_switch(mail, step);
        mail->vote.applied_id = next->id;
        mail->vote.applied_hash = next->hash;
    }
    const int votes = b->attached && !b->broken;
    if (votes) vote_start(&mail->vote, b->words);
    mail->usage.step = step;
    mail->usage_news = 1;
    const int wake = changed || (mail->owes_cancelled && !(mail->vote.running && mail->vote.voted_id));
    pthread_mutex_unlock(&mail->mutex);

    s->step = step;
    s->in_step = 1;
    if (changed) session_switch(s, next, step);
    if (wake) link_wake(s->link);
    record_plan(s, step, is_first);
    if (votes && start_vote(s) != AGOQ_OK) status = AGOQ_E_COMM;
    return status;
}

/* The daemon learns from a peak above its prediction; a file cannot, so its predictions count no more. */
static void judge_file(agoq_session *s, const agoq_usage *used) {
    agoq_plan_state state;
    if (s->setup.source != SOURCE_FILE) return;
    agoq_session_state(s, &state);
    if (!state.predicted_bytes || used->peak_bytes <= state.predicted_bytes) return;
    s->refuted = 1;
    log_write(LOG_LEVEL_WARN, "session",
              "the plan file was written for another job: more bytes are used than it predicts rank=%d "
              "step=%" PRId64 " measured=%" PRIu64 " predicted=%" PRIu64,
              s->setup.me.rank, s->step, used->peak_bytes, state.predicted_bytes);
}

agoq_status agoq_step_end(agoq_session *session, const agoq_usage *usage) {
    agoq_session *s = session;
    AGOQ_TRY(session_check(s, "step_end"));
    if (!s->in_step) return error_fail(AGOQ_E_STATE, "step_end: no step has begun");
    agoq_usage used = {0};
    if (usage)
        used = *usage;
    else
        used.saved_peak_bytes = s->ledger.totals[AGOQ_N_ROLES].peak_bytes;
    s->in_step = 0;
    s->last_usage = used;
    s->peak_since_switch = most_u64(s->peak_since_switch, used.peak_bytes);
    judge_file(s, &used);
    const int seen_more = observe_step_end(&s->seen);

    mailbox *mail = s->mail;
    pthread_mutex_lock(&mail->mutex);
    mailbox_usage *u = &mail->usage;
    u->peak_bytes = most_u64(u->peak_bytes, used.peak_bytes);
    u->saved_peak_bytes = most_u64(u->saved_peak_bytes, used.saved_peak_bytes);
    u->reserved_bytes = most_u64(u->reserved_bytes, used.reserved_bytes);
    u->oom_retries += used.oom_retries;
    u->peak_since_switch_bytes = s->peak_since_switch;
    mail->usage_news = 1;
    const int tell = seen_more && mail->has_profile;
    if (tell) {
        profile_set_observed(&mail->held, &s->seen);
        mail->profile_version++;
    }
    pthread_mutex_unlock(&mail->mutex);
    if (tell) {
        s->seen.grown = 0;
        link_wake(s->link);
    }
    return AGOQ_OK;
}

/* One vote that is waited for (S15). */
static agoq_status vote_now(agoq_session *s, const agoq_vote_comm *comm) {
    mailbox *mail = s->mail;
    uint64_t *words = s->ballot.words;
    pthread_mutex_lock(&mail->mutex);
    if (mail->vote.running) (void)vote_finish(&mail->vote, NULL); /* of the communicator that is replaced */
    vote_start(&mail->vote, words);
    pthread_mutex_unlock(&mail->mutex);
    agoq_status status = comm->start(comm->ctx, words);
    if (status == AGOQ_OK) status = comm->finish(comm->ctx);

    pthread_mutex_lock(&mail->mutex);
    const uint64_t had_id = mail->vote.applied_id;
    const int64_t step = s->step < 0 ? 0 : s->step;
    int changed = 0;
    const vote_outcome outcome = vote_finish(&mail->vote, status == AGOQ_OK ? words : NULL);
    if (outcome == VOTE_FLOOR) count_disagreement(s, step);
    if (s->setup.source == SOURCE_DAEMON) {
        changed = settle(s, outcome, had_id, step);
    } else {
        mail->vote.applied_id = s->current->id;
        mail->vote.applied_hash = s->current->hash;
    }
    pthread_mutex_unlock(&mail->mutex);
    if (changed) session_switch(s, &mail->applied, step);
    link_wake(s->link);
    return status == AGOQ_OK && outcome != VOTE_BROKEN ? AGOQ_OK : AGOQ_E_COMM;
}

agoq_status agoq_session_attach(agoq_session *session, const agoq_vote_comm *comm) {
    agoq_session *s = session;
    AGOQ_TRY(session_check(s, "session_attach"));
    if (!comm || !comm->start || !comm->finish)
        return error_fail(AGOQ_E_INVAL, "session_attach: comm, start or finish is NULL");
    if (s->in_step || ledger_live_tensors(&s->ledger))
        return error_fail(AGOQ_E_STATE, "session_attach: inside of a step");
    session_ballot *b = &s->ballot;
    if (b->attached && b->comm.destroy) b->comm.destroy(b->comm.ctx);
    b->attached = 0;
    b->broken = 1; /* until the vote is through: switching alone could leave the other ranks behind */
    if (vote_now(s, comm) != AGOQ_OK) return AGOQ_E_COMM;
    b->comm = *comm;
    b->attached = 1;
    b->broken = 0;
    return AGOQ_OK;
}
