/* What the helper thread says, and when (docs/PROTOCOL.md, "Rank"). Everything repeats until it is
 * acknowledged or out of date, so a lost message costs a second and nothing else. */
#include <string.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/most.h"
#include "libagoq/link_messages.h"

#define NEVER            (INT64_MIN / 2)
#define HELLO_EVERY_MS   1000 /* while it is not answered */
#define SILENCE_MS       3000 /* HELLO again: the daemon may have forgotten it */
#define REFUSED_EVERY_MS 5000 /* while the daemon refuses this rank */
#define REPEAT_MS        1000 /* PROFILE and APPLIED, until acknowledged */
#define REPORT_LEAST_MS  500
#define REPORT_MOST_MS   1000
/* Of silence: PROFILE again, since its ACK says that the daemon still knows this rank. */
#define ASK_MS 2000

void link_state_init(link_state *s, const link_identity *me, mailbox *mail, uint64_t start_time) {
    memset(s, 0, sizeof *s);
    s->me = me;
    s->mail = mail;
    s->hello_ms = s->heard_ms = s->report_ms = s->profile_ms = s->applied_ms = NEVER;
    s->report_every_ms = REPORT_MOST_MS;
    s->start_time = start_time;
}

void link_connected(link_state *s) {
    s->welcomed = 0;
    s->refused = 0;
    s->hello_ms = NEVER;
}

void link_disconnected(link_state *s) {
    s->welcomed = 0;
}

/* A thing of `version` is about to be sent: from now on it repeats at intervals, whether or not it leaves. */
static void turn_to(link_seqs *seqs, uint64_t version) {
    if (seqs->version != version) seqs->n = 0;
    seqs->version = version;
}

static void remember(link_seqs *seqs, uint64_t seq) {
    if (seqs->n == LINK_SEQS) memmove(seqs->seq, seqs->seq + 1, (LINK_SEQS - 1) * sizeof *seqs->seq);
    if (seqs->n < LINK_SEQS) seqs->n++;
    seqs->seq[seqs->n - 1] = seq;
}

static wire_header header(const link_state *s, uint64_t reply_to) {
    wire_header h = {.rank = s->me->rank, .seq = s->seq + 1, .reply_to = reply_to};
    memcpy(h.job, s->me->job, sizeof h.job);
    memcpy(h.sender, s->me->sender, sizeof h.sender);
    return h;
}

/* Sends and frees what was encoded under the next sequence number. */
static int send_encoded(link_state *s, uint8_t *data, size_t size) {
    const int rc = s->send(s->user, data, size);
    mem_free(data);
    if (rc == 0) s->seq++;
    return rc;
}

int link_say(link_state *s, Agoq__Envelope__BodyCase which, void *body, uint64_t reply_to) {
    const wire_header h = header(s, reply_to);
    uint8_t *data;
    size_t size;
    if (wire_encode(&h, which, body, WIRE_MAX_RANK_BYTES, &data, &size) != AGOQ_OK) return -1;
    return send_encoded(s, data, size);
}

static int say_hello(link_state *s) {
    const link_identity *me = s->me;
    link_identity copy = *me; /* protobuf-c wants non-const strings */
    Agoq__Hello m = AGOQ__HELLO__INIT;
    m.world = me->world;
    m.stage = me->stage;
    m.n_stages = me->n_stages;
    m.dp = me->dp;
    m.n_dp = me->n_dp;
    m.tp = me->tp;
    m.n_tp = me->n_tp;
    m.device = copy.device;
    m.host = copy.host;
    m.pid = (uint64_t)getpid();
    m.start_time = s->start_time;
    m.vote_period = 1;
    const wire_header h = header(s, 0);
    uint8_t *data = NULL;
    size_t size = 0;
    mailbox *mail = s->mail;
    pthread_mutex_lock(&mail->mutex);
    m.applied_id = mail->vote.applied_id;
    m.applied_hash = mail->vote.applied_hash;
    m.applied_plan.data = mail->applied.bytes;
    m.applied_plan.len = mail->applied.size;
    m.budget_version = mail->vote.highest_budget;
    m.highest_term = mail->vote.highest_term;
    m.prepared_id = mail->vote.prepared_id;
    m.vote_id = mail->vote.running ? mail->vote.voted_id : 0;
    /* Encoded under the lock, because it points into the applied plan. */
    const agoq_status status =
        wire_encode(&h, AGOQ__ENVELOPE__BODY_HELLO, &m, WIRE_MAX_RANK_BYTES, &data, &size);
    pthread_mutex_unlock(&mail->mutex);
    return status == AGOQ_OK ? send_encoded(s, data, size) : -1;
}

static void say_profile(link_state *s, int64_t now) {
    mailbox *mail = s->mail;
    const wire_header h = header(s, 0);
    uint8_t *data = NULL;
    size_t size = 0;
    pthread_mutex_lock(&mail->mutex);
    const uint64_t version = mail->profile_version;
    const agoq_status status = profile_encode(&mail->held, &h, &data, &size);
    pthread_mutex_unlock(&mail->mutex);
    s->profile_ms = now;
    turn_to(&s->profile_seqs, version);
    if (status != AGOQ_OK) return; /* out of memory: again in a second */
    if (send_encoded(s, data, size) == 0) remember(&s->profile_seqs, s->seq);
}

static void say_applied(link_state *s, int64_t now) {
    mailbox *mail = s->mail;
    Agoq__Applied m = AGOQ__APPLIED__INIT;
    pthread_mutex_lock(&mail->mutex);
    const uint64_t version = mail->n_switches;
    m.id = mail->vote.applied_id;
    m.hash = mail->vote.applied_hash;
    m.step = (int64_t)mail->applied_step;
    m.measured_peak_bytes = mail->usage.peak_since_switch_bytes;
    pthread_mutex_unlock(&mail->mutex);
    s->applied_ms = now;
    turn_to(&s->applied_seqs, version);
    if (link_say(s, AGOQ__ENVELOPE__BODY_APPLIED, &m, 0) == 0) remember(&s->applied_seqs, s->seq);
}

/* Maxima go back into the mailbox if the report did not leave, so that no peak is lost. */
static void return_usage(mailbox *mail, const mailbox_usage *taken) {
    mailbox_usage *u = &mail->usage;
    u->peak_bytes = most_u64(u->peak_bytes, taken->peak_bytes);
    u->saved_peak_bytes = most_u64(u->saved_peak_bytes, taken->saved_peak_bytes);
    u->reserved_bytes = most_u64(u->reserved_bytes, taken->reserved_bytes);
    u->oom_retries += taken->oom_retries;
    mail->usage_news = 1;
}

static void say_report(link_state *s, int64_t now) {
    mailbox *mail = s->mail;
    Agoq__Report m = AGOQ__REPORT__INIT;
    pthread_mutex_lock(&mail->mutex);
    mailbox_usage taken = mail->usage;
    mail->usage.peak_bytes = mail->usage.saved_peak_bytes = mail->usage.reserved_bytes = 0;
    mail->usage.oom_retries = 0;
    mail->usage_news = mail->urgent = 0;
    m.applied_id = mail->vote.applied_id;
    m.prepared_id = mail->vote.prepared_id;
    m.vote_id = mail->vote.running ? mail->vote.voted_id : 0;
    m.budget_version = mail->vote.highest_budget;
    pthread_mutex_unlock(&mail->mutex);
    m.step = taken.step;
    m.peak_bytes = taken.peak_bytes;
    m.saved_peak_bytes = taken.saved_peak_bytes;
    m.reserved_bytes = taken.reserved_bytes;
    m.oom_retries = taken.oom_retries;
    m.guarded = taken.guarded;
    m.guard_why = taken.guard_why;
    m.disagreements = taken.disagreements;
    m.peak_since_switch_bytes = taken.peak_since_switch_bytes;
    s->report_ms = now;
    if (link_say(s, AGOQ__ENVELOPE__BODY_REPORT, &m, 0) == 0) return;
    pthread_mutex_lock(&mail->mutex);
    return_usage(mail, &taken);
    pthread_mutex_unlock(&mail->mutex);
}

int link_say_cancelled(link_state *s, uint64_t reply_to) {
    Agoq__Cancelled m = AGOQ__CANCELLED__INIT;
    mailbox *mail = s->mail;
    pthread_mutex_lock(&mail->mutex);
    m.applied_id = mail->vote.applied_id;
    m.vote_id = mail->vote.running ? mail->vote.voted_id : 0;
    m.budget_version = mail->vote.highest_budget;
    m.step = mail->usage.step;
    mail->owes_cancelled = m.vote_id != 0;
    pthread_mutex_unlock(&mail->mutex);
    return link_say(s, AGOQ__ENVELOPE__BODY_CANCELLED, &m, reply_to);
}

static int64_t hello_due(const link_state *s, int has_profile) {
    if (s->refused) return s->hello_ms + REFUSED_EVERY_MS;
    const int64_t again = s->hello_ms + HELLO_EVERY_MS;
    const int64_t silence = s->heard_ms + (has_profile ? SILENCE_MS : ASK_MS);
    return !s->welcomed || again > silence ? again : silence;
}

/* What of the mailbox is worth a message now. */
typedef struct news {
    int has_profile, profile_owed, profile_new, applied_owed, applied_new, usage, urgent, cancelled;
} news;

static news look(const link_state *s) {
    mailbox *mail = s->mail;
    news n;
    pthread_mutex_lock(&mail->mutex);
    n.has_profile = mail->has_profile;
    n.profile_owed = mail->profile_version != mail->profile_acked;
    n.profile_new = mail->profile_version != s->profile_seqs.version;
    /* APPLIED also says "no vote, nothing prepared": while that is not so, REPORT says what is applied. */
    n.applied_owed = mail->n_switches != mail->switches_acked && mail->vote.prepared_id == 0;
    n.applied_new = mail->n_switches != s->applied_seqs.version;
    n.usage = mail->usage_news;
    n.urgent = mail->urgent;
    n.cancelled = mail->owes_cancelled && !(mail->vote.running && mail->vote.voted_id);
    pthread_mutex_unlock(&mail->mutex);
    return n;
}

static int64_t profile_due(const link_state *s, const news *n, int64_t now) {
    if (!n->has_profile) return INT64_MAX;
    if (n->profile_owed) return n->profile_new ? now : s->profile_ms + REPEAT_MS;
    return most_i64(s->heard_ms + ASK_MS, s->profile_ms + REPEAT_MS);
}

static int64_t applied_due(const link_state *s, const news *n, int64_t now) {
    if (!n->applied_owed) return INT64_MAX;
    return n->applied_new ? now : s->applied_ms + REPEAT_MS;
}

int64_t link_tick(link_state *s, int64_t now) {
    news n = look(s);
    if (now >= hello_due(s, n.has_profile)) {
        /* Also when it could not be sent: without a connection the monitor says when there is one. */
        s->hello_ms = now;
        (void)say_hello(s);
    }
    int64_t next = hello_due(s, n.has_profile);
    if (!s->welcomed) return next;
    if (now >= applied_due(s, &n, now)) say_applied(s, now);
    if (n.cancelled) (void)link_say_cancelled(s, 0);
    if (now >= profile_due(s, &n, now)) say_profile(s, now);
    /* One that does not leave is an ordinary report from then on: say_report clears `urgent`. */
    const int64_t pause = n.usage ? REPORT_LEAST_MS : s->report_every_ms;
    if (n.urgent || now >= s->report_ms + pause) say_report(s, now);

    n = look(s);
    next = least_i64(next, profile_due(s, &n, now));
    next = least_i64(next, applied_due(s, &n, now));
    /* Steps do not wake this thread: it looks when the next report could be due, and then when it must be. */
    const int64_t may = s->report_ms + REPORT_LEAST_MS, must = s->report_ms + s->report_every_ms;
    next = least_i64(next, may > now ? may : must);
    return next > now ? next : now + 1;
}

void link_bye(link_state *s) {
    Agoq__Bye m = AGOQ__BYE__INIT;
    char reason[] = "session closed";
    m.reason = reason;
    if (s->welcomed) (void)link_say(s, AGOQ__ENVELOPE__BODY_BYE, &m, 0);
}
