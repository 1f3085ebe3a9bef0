/* What the helper thread hears (docs/PROTOCOL.md, "Rank"; S1 and S3 there). A message that decodes has passed
 * every check that needs no state; what is left is whether it is meant for this rank and fits what the rank
 * holds. Nothing is ever applied here. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "libagoq/link_messages.h"

static void say_prepared(link_state *s, uint64_t id, uint64_t hash, uint64_t reply_to) {
    Agoq__Prepared m = AGOQ__PREPARED__INIT;
    m.id = id;
    m.hash = hash;
    (void)link_say(s, AGOQ__ENVELOPE__BODY_PREPARED, &m, reply_to);
}

static void say_nack(link_state *s, uint64_t id, Agoq__NackReason reason, const char *text,
                     uint64_t reply_to) {
    Agoq__Nack m = AGOQ__NACK__INIT;
    char copy[256];
    m.id = id;
    m.reason = (uint32_t)reason;
    m.text = wire_text(copy, sizeof copy, text);
    (void)link_say(s, AGOQ__ENVELOPE__BODY_NACK, &m, reply_to);
    log_write(LOG_LEVEL_INFO, "link", "refused plan id=%016" PRIx64 " reason=%d text=\"%s\"", id, (int)reason,
              copy);
}

/* Reason and sentence for each vote_answer that is not a yes. */
static const struct {
    Agoq__NackReason reason;
    const char *text;
} refusals[] = {
    [VOTE_BUSY] = {AGOQ__NACK_REASON__NACK_BUSY, "a vote on another plan is not read yet"},
    [VOTE_OLD_BUDGET] = {AGOQ__NACK_REASON__NACK_OLD_BUDGET,
                         "made under an older budget than this rank knows"},
    [VOTE_OLD_TERM] = {AGOQ__NACK_REASON__NACK_OLD_TERM, "of an older term than this rank knows"},
    [VOTE_SAME_ID] = {AGOQ__NACK_REASON__NACK_SAME_ID, "this id is known with another hash"},
};

/* Locked. Takes the slot if it becomes the prepared plan. */
static vote_answer store(mailbox *mail, slot *arrived, uint64_t budget_version) {
    const vote_answer answer = vote_prepare(&mail->vote, arrived->id, arrived->hash, budget_version);
    if (answer == VOTE_STORED) {
        slot_fini(&mail->prepared);
        mail->prepared = *arrived;
        memset(arrived, 0, sizeof *arrived);
    }
    mailbox_tidy(mail);
    return answer;
}

static void on_prepare(link_state *s, const Agoq__Prepare *m, uint64_t seq) {
    slot arrived = {0};
    const agoq_status status = slot_make(m->id, m->hash, m->plan.data, m->plan.len, &arrived);
    if (status == AGOQ_E_NOMEM) {
        say_nack(s, m->id, AGOQ__NACK_REASON__NACK_UNKNOWN, "out of memory", seq);
        return;
    }
    if (status != AGOQ_OK) {
        const int bad_hash = plan_hash(m->plan.data, m->plan.len) != m->hash;
        say_nack(s, m->id, bad_hash ? AGOQ__NACK_REASON__NACK_BAD_HASH : AGOQ__NACK_REASON__NACK_BAD_PLAN,
                 bad_hash ? "the plan bytes do not have this hash" : "the plan bytes are malformed", seq);
        return;
    }
    mailbox *mail = s->mail;
    char detail[160] = "this rank has said nothing about itself yet";
    int fits = 0;
    vote_answer answer = VOTE_BUSY;
    pthread_mutex_lock(&mail->mutex);
    if (mail->has_profile) {
        const agoq_item *item;
        const char *bad = profile_refuses(&mail->held, &arrived.decoded, &item);
        fits = !bad;
        if (bad)
            snprintf(detail, sizeof detail, "%s: layer %d role %s", bad, item->layer,
                     agoq_role_name(item->role));
    }
    if (fits) answer = store(mail, &arrived, m->budget_version);
    pthread_mutex_unlock(&mail->mutex);
    slot_fini(&arrived);
    if (!fits)
        say_nack(s, m->id, AGOQ__NACK_REASON__NACK_BAD_PLAN, detail, seq);
    else if (answer == VOTE_STORED || answer == VOTE_KNOWN)
        say_prepared(s, m->id, m->hash, seq);
    else
        say_nack(s, m->id, refusals[answer].reason, refusals[answer].text, seq);
}

static void on_cancel(link_state *s, const Agoq__Cancel *m, uint64_t seq) {
    mailbox *mail = s->mail;
    pthread_mutex_lock(&mail->mutex);
    vote_heard(&mail->vote, m->budget_version, 0);
    if (m->all || m->id) vote_withdraw(&mail->vote, m->id, m->all);
    mailbox_tidy(mail);
    pthread_mutex_unlock(&mail->mutex);
    (void)link_say_cancelled(s, seq);
}

static void on_abort(link_state *s, const Agoq__Abort *m, uint64_t seq) {
    mailbox *mail = s->mail;
    pthread_mutex_lock(&mail->mutex);
    vote_withdraw(&mail->vote, m->id, 0);
    mailbox_tidy(mail);
    pthread_mutex_unlock(&mail->mutex);
    Agoq__Ack ack = AGOQ__ACK__INIT;
    (void)link_say(s, AGOQ__ENVELOPE__BODY_ACK, &ack, seq);
}

static void on_welcome(link_state *s, const Agoq__Envelope *e) {
    mailbox *mail = s->mail;
    const Agoq__Welcome *m = e->welcome;
    const int other_daemon = memcmp(s->daemon, e->sender.data, sizeof s->daemon) != 0;
    const int again = s->welcomed && !other_daemon;
    memcpy(s->daemon, e->sender.data, sizeof s->daemon);
    pthread_mutex_lock(&mail->mutex);
    vote_heard(&mail->vote, m->budget_version, m->term);
    mailbox_tidy(mail);
    if (!again) mail->profile_acked = 0; /* a new connection: it may have forgotten what this rank holds */
    pthread_mutex_unlock(&mail->mutex);
    if (!again) {
        s->profile_seqs.n = s->applied_seqs.n = 0;
        s->profile_seqs.version = s->applied_seqs.version = 0;
        log_write(LOG_LEVEL_INFO, "link", "connected term=%" PRIu64 " budget_version=%" PRIu64, m->term,
                  m->budget_version);
    }
    s->welcomed = 1;
    s->refused = 0;
    s->report_ms = INT64_MIN / 2; /* what HELLO does not say follows at once */
    s->report_every_ms = m->heartbeat_ms < 500    ? 500
                         : m->heartbeat_ms > 1000 ? 1000
                                                  : (int64_t)m->heartbeat_ms;
}

static void on_refuse(link_state *s, const Agoq__Refuse *m) {
    if (m->reason == WIRE_REFUSE_HELLO_FIRST) { /* it has restarted on the same path */
        if (s->welcomed) link_connected(s);
        return;
    }
    if (s->refused != m->reason)
        log_write(LOG_LEVEL_WARN, "link", "the daemon refuses this rank reason=%u text=\"%s\"", m->reason,
                  m->text);
    /* A profile or device that it does not like is told again when it changes: HELLO keeps asking. */
    s->refused = m->reason;
    s->welcomed = 0;
}

static int holds(const link_seqs *seqs, uint64_t version, uint64_t seq) {
    if (seqs->version != version) return 0;
    for (int i = 0; i < seqs->n; i++) {
        if (seqs->seq[i] == seq) return 1;
    }
    return 0;
}

static void on_ack(link_state *s, uint64_t seq) {
    mailbox *mail = s->mail;
    pthread_mutex_lock(&mail->mutex);
    if (holds(&s->profile_seqs, mail->profile_version, seq)) mail->profile_acked = mail->profile_version;
    if (holds(&s->applied_seqs, mail->n_switches, seq)) mail->switches_acked = mail->n_switches;
    pthread_mutex_unlock(&mail->mutex);
}

static void dispatch(link_state *s, const Agoq__Envelope *e) {
    switch (e->body_case) {
    case AGOQ__ENVELOPE__BODY_WELCOME:
        on_welcome(s, e);
        break;
    case AGOQ__ENVELOPE__BODY_REFUSE:
        on_refuse(s, e->refuse);
        break;
    case AGOQ__ENVELOPE__BODY_PREPARE:
        on_prepare(s, e->prepare, e->seq);
        break;
    case AGOQ__ENVELOPE__BODY_CANCEL:
        on_cancel(s, e->cancel, e->seq);
        break;
    case AGOQ__ENVELOPE__BODY_ABORT:
        on_abort(s, e->abort, e->seq);
        break;
    case AGOQ__ENVELOPE__BODY_ACK:
        on_ack(s, e->reply_to);
        break;
    case AGOQ__ENVELOPE__BODY_BYE: /* plans do not expire: the session keeps what it has */
        s->welcomed = 0;
        break;
    default:
        s->rejected++;
    }
}

void link_receive(link_state *s, const uint8_t *data, size_t size, int64_t now) {
    Agoq__Envelope *e;
    const char *why = NULL;
    if (wire_decode(data, size, WIRE_MAX_RANK_BYTES, &e, &why) != AGOQ_OK) {
        if (s->rejected++ == 0) log_write(LOG_LEVEL_WARN, "link", "message refused why=\"%s\"", why);
        return;
    }
    /* Only WELCOME and REFUSE may come from a daemon that has not welcomed this incarnation yet. */
    const int greeting =
        e->body_case == AGOQ__ENVELOPE__BODY_WELCOME || e->body_case == AGOQ__ENVELOPE__BODY_REFUSE;
    const int known = s->welcomed && memcmp(e->sender.data, s->daemon, sizeof s->daemon) == 0;
    const int refusal = e->body_case == AGOQ__ENVELOPE__BODY_REFUSE; /* perhaps because the job is another */
    if ((strcmp(e->job, s->me->job) != 0 && !refusal) || e->rank >= 0 || (!greeting && !known)) {
        s->rejected++;
    } else {
        s->heard_ms = now;
        pthread_mutex_lock(&s->mail->mutex);
        s->mail->heard_ms = now;
        pthread_mutex_unlock(&s->mail->mutex);
        dispatch(s, e);
    }
    wire_free(e);
}
