/* Opening and closing a session. What is opened is closed in the reverse order, by the same function that
 * cleans up after an open that failed half way. A forked child is told from its parent by a page that the
 * kernel wipes at fork: reading it costs nothing, where getpid() is a system call for every tensor. */
#include "libagoq/session.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/mem.h"
#include "common/try.h"
#include "libagoq/error.h"

#define MARK_BYTES 4096

static void mark_init(fork_mark *mark) {
    mark->pid = getpid();
    void *page = mmap(NULL, MARK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED) return;
    if (madvise(page, MARK_BYTES, MADV_WIPEONFORK) != 0) {
        munmap(page, MARK_BYTES);
        return;
    }
    mark->page = page;
    *mark->page = 1;
}

static int is_forked(const fork_mark *mark) {
    return mark->page ? !*mark->page : mark->pid != getpid();
}

agoq_status session_check(const agoq_session *s, const char *call) {
    if (!s) return error_fail(AGOQ_E_INVAL, "%s: session is NULL", call);
    if (is_forked(&s->mark))
        return error_fail(AGOQ_E_STATE, "%s: the session belongs to the parent process", call);
    return AGOQ_OK;
}

static void free_session(agoq_session *s, int in_child) {
    if (in_child)
        link_free_in_child(&s->link);
    else
        link_stop(&s->link);
    if (!in_child && s->ballot.attached && s->ballot.comm.destroy) s->ballot.comm.destroy(s->ballot.comm.ctx);
    if (s->mail && in_child)
        mailbox_free_in_child(s->mail);
    else if (s->mail)
        mailbox_release(s->mail);
    planfile_writer_close(&s->record);
    planfile_fini(&s->file);
    mem_free(s->widths.bits);
    mem_free(s->widths.least);
    ledger_fini(&s->ledger);
    if (s->mark.page) munmap((void *)(uintptr_t)s->mark.page, MARK_BYTES);
    mem_free(s);
}

static agoq_status fill_session(const agoq_session_config *config, agoq_session *s) {
    AGOQ_TRY(session_setup_fill(config, &s->setup));
    s->standin.id = s->setup.fixed_id;
    s->mail = mailbox_new();
    if (!s->mail) return error_fail(AGOQ_E_NOMEM, "session");
    s->mail->vote.applied_id = s->setup.fixed_id;
    AGOQ_TRY(observe_reset(&s->seen, OBSERVE_MAX_CHUNKS));
    if (s->setup.source == SOURCE_FILE) AGOQ_TRY(planfile_read(config->plan_file, &s->file));
    if (config->record_file) AGOQ_TRY(planfile_writer_open(config->record_file, &s->record));
    if (s->setup.source == SOURCE_DAEMON) AGOQ_TRY(link_start(&s->setup.me, s->mail, &s->link));
    return AGOQ_OK;
}

agoq_status agoq_session_open(const agoq_session_config *config, agoq_session **session) {
    if (!config || !session) return error_fail(AGOQ_E_INVAL, "session_open: config or session is NULL");
    agoq_session *s = mem_zalloc(1, sizeof *s);
    if (!s) return error_fail(AGOQ_E_NOMEM, "session");
    s->record.fd = -1;
    s->step = s->since_step = -1;
    s->current = &s->standin;
    mark_init(&s->mark);
    const agoq_status status = fill_session(config, s);
    if (status != AGOQ_OK) {
        free_session(s, 0);
        return status;
    }
    *session = s;
    return AGOQ_OK;
}

void agoq_session_close(agoq_session **session) {
    if (!session || !*session) return;
    agoq_session *s = *session;
    *session = NULL;
    free_session(s, is_forked(&s->mark));
}

agoq_mode agoq_session_mode(const agoq_session *session) {
    return session ? session->setup.mode : AGOQ_MODE_NORMAL;
}
