/* See mailbox.h. */
#include "libagoq/mailbox.h"

#include "common/mem.h"

mailbox *mailbox_new(void) {
    mailbox *m = mem_zalloc(1, sizeof *m);
    if (!m) return NULL;
    pthread_condattr_t attr;
    pthread_condattr_init(&attr); /* none of these can fail on Linux with default attributes */
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_mutex_init(&m->mutex, NULL);
    pthread_cond_init(&m->ended_cond, &attr);
    pthread_condattr_destroy(&attr);
    m->owners = 1;
    m->usage.step = -1;
    return m;
}

static void free_contents(mailbox *m) {
    slot_fini(&m->prepared);
    slot_fini(&m->applied);
    profile_fini(&m->held);
    mem_free(m);
}

void mailbox_release(mailbox *m) {
    pthread_mutex_lock(&m->mutex);
    const int left = --m->owners;
    pthread_mutex_unlock(&m->mutex);
    if (left) return;
    pthread_cond_destroy(&m->ended_cond);
    pthread_mutex_destroy(&m->mutex);
    free_contents(m);
}

void mailbox_free_in_child(mailbox *m) {
    if (pthread_mutex_trylock(&m->mutex) != 0) return;
    pthread_mutex_unlock(&m->mutex);
    free_contents(m);
}

void mailbox_tidy(mailbox *m) {
    if (m->prepared.id && m->prepared.id != m->vote.prepared_id) slot_fini(&m->prepared);
}
