/* See state.h. */
#include "agoqd/state.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/mem.h"
#include "common/sha256.h"

#define FILE_NAME "state"

static void put_text(buf_writer *w, const char *s) {
    buf_put(w, strlen(s), 2);
    buf_put_bytes(w, s, strlen(s));
}

static void get_text(buf_reader *r, char *to, size_t capacity) {
    size_t n = (size_t)buf_get(r, 2);
    if (n >= capacity || n > r->size - r->at) {
        r->bad = 1;
        n = 0;
    }
    buf_get_bytes(r, to, n);
    to[n] = 0;
}

static void put_all(buf_writer *w, uint64_t term, const budgets *b, const sessions *t) {
    buf_put_bytes(w, "AGQS", 4);
    buf_put(w, STATE_VERSION, 2);
    buf_put(w, term, 8);
    buf_put(w, b->version, 8);
    put_text(w, t->job);
    const int32_t shape[4] = {t->world, t->n_stages, t->n_dp, t->n_tp};
    for (int i = 0; i < 4; i++) buf_put(w, (uint32_t)shape[i], 4);
    buf_put(w, b->n, 4);
    for (uint32_t i = 0; i < b->n; i++) {
        const budget *e = &b->list[i];
        put_text(w, e->device);
        buf_put(w, (uint32_t)e->stage, 4);
        buf_put(w, e->bytes, 8);
        buf_put(w, e->configured_bytes, 8);
        buf_put(w, e->effective_bytes, 8);
        buf_put(w, e->version, 8);
        buf_put(w, e->pending != 0, 1);
        buf_put(w, (uint64_t)e->step_requested, 8);
        buf_put(w, (uint64_t)e->step_effective, 8);
    }
    uint32_t n = 0;
    for (int32_t i = 0; i < t->world; i++) n += sessions_present(&t->ranks[i]) != 0;
    buf_put(w, n, 4);
    for (int32_t i = 0; i < t->world; i++) {
        const session_who *who = &t->ranks[i].who;
        if (!sessions_present(&t->ranks[i])) continue;
        const int32_t place[4] = {who->rank, who->stage, who->dp, who->tp};
        for (int k = 0; k < 4; k++) buf_put(w, (uint32_t)place[k], 4);
        put_text(w, who->device);
        put_text(w, who->host);
        buf_put(w, who->pid, 8);
        buf_put(w, who->start_time, 8);
        buf_put(w, who->applied_id, 8);
    }
}

agoq_status state_encode(uint64_t term, const budgets *b, const sessions *t, uint8_t **data, size_t *size) {
    buf_writer w = {0};
    put_all(&w, term, b, t);
    size_t body = w.used, total = body + 32;
    if (total > STATE_MAX_BYTES) return AGOQ_E_LIMIT;
    uint8_t *bytes = mem_alloc(total);
    if (!bytes) return AGOQ_E_NOMEM;
    w = (buf_writer){.data = bytes, .capacity = body};
    put_all(&w, term, b, t);
    sha256(bytes, body, bytes + body);
    *data = bytes;
    *size = total;
    return AGOQ_OK;
}

static agoq_status get_budgets(buf_reader *r, budgets *b) {
    uint32_t n = (uint32_t)buf_get(r, 4);
    if (r->bad || n > BUDGETS_MAX) return AGOQ_E_FORMAT;
    b->list = mem_zalloc(n, sizeof *b->list);
    if (!b->list) return AGOQ_E_NOMEM;
    b->n = n;
    for (uint32_t i = 0; i < n; i++) {
        budget *e = &b->list[i];
        get_text(r, e->device, sizeof e->device);
        e->stage = (int32_t)buf_get(r, 4);
        e->bytes = buf_get(r, 8);
        e->configured_bytes = buf_get(r, 8);
        e->effective_bytes = buf_get(r, 8);
        e->version = buf_get(r, 8);
        e->pending = (int)buf_get(r, 1);
        e->step_requested = (int64_t)buf_get(r, 8);
        e->step_effective = (int64_t)buf_get(r, 8);
        e->requested_ms = -1;
    }
    return r->bad ? AGOQ_E_FORMAT : AGOQ_OK;
}

static agoq_status get_roster(buf_reader *r, sessions *t) {
    uint32_t n = (uint32_t)buf_get(r, 4);
    if (r->bad || n > (uint32_t)t->world) return AGOQ_E_FORMAT;
    for (uint32_t i = 0; i < n; i++) {
        session_who who = {0};
        int32_t place[4];
        for (int k = 0; k < 4; k++) place[k] = (int32_t)buf_get(r, 4);
        who.rank = place[0];
        who.stage = place[1];
        who.dp = place[2];
        who.tp = place[3];
        get_text(r, who.device, sizeof who.device);
        get_text(r, who.host, sizeof who.host);
        who.pid = buf_get(r, 8);
        who.start_time = buf_get(r, 8);
        who.applied_id = buf_get(r, 8);
        session *s = sessions_at(t, who.rank);
        if (r->bad || !s || s->state != SESSION_NONE || who.stage < 0 || who.stage >= t->n_stages)
            return AGOQ_E_FORMAT;
        s->who = who;
        s->state = SESSION_EXPECTED;
    }
    return AGOQ_OK;
}

agoq_status state_decode(const uint8_t *data, size_t size, uint64_t *term, budgets *b, sessions *t) {
    uint8_t digest[32], magic[4] = {0};
    if (size < 32 + 6 || size > STATE_MAX_BYTES) return AGOQ_E_FORMAT;
    sha256(data, size - 32, digest);
    if (memcmp(digest, data + size - 32, 32)) return AGOQ_E_FORMAT;
    buf_reader r = {.data = data, .size = size - 32};
    buf_get_bytes(&r, magic, 4);
    if (memcmp(magic, "AGQS", 4)) return AGOQ_E_FORMAT;
    if (buf_get(&r, 2) != STATE_VERSION) return AGOQ_E_VERSION;
    uint64_t stored_term = buf_get(&r, 8), version = buf_get(&r, 8);
    char job[WIRE_MAX_JOB + 1];
    get_text(&r, job, sizeof job);
    int32_t shape[4];
    for (int i = 0; i < 4; i++) shape[i] = (int32_t)buf_get(&r, 4);
    budgets read_b = {0};
    sessions read_t = {0};
    agoq_status status = r.bad || shape[0] < 0 || shape[0] > (1 << 20) ? AGOQ_E_FORMAT : AGOQ_OK;
    if (status == AGOQ_OK) status = get_budgets(&r, &read_b);
    if (status == AGOQ_OK && shape[0] > 0)
        status = sessions_reset(&read_t, job, shape[0], shape[1], shape[2], shape[3]);
    if (status == AGOQ_OK) status = get_roster(&r, &read_t);
    if (status == AGOQ_OK && r.at != r.size) status = AGOQ_E_FORMAT;
    if (status != AGOQ_OK) {
        budgets_fini(&read_b);
        sessions_fini(&read_t);
        return status;
    }
    read_b.version = version;
    *term = stored_term;
    *b = read_b;
    *t = read_t;
    return AGOQ_OK;
}

static int write_all(int fd, const uint8_t *data, size_t size) {
    while (size > 0) {
        ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return -1;
        data += n;
        size -= (size_t)n;
    }
    return 0;
}

agoq_status state_store(const char *folder, const uint8_t *data, size_t size) {
    int dir = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0) return AGOQ_E_IO;
    agoq_status status = AGOQ_E_IO;
    int fd = openat(dir, FILE_NAME ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) goto out;
    int bad = write_all(fd, data, size) || fsync(fd);
    bad |= close(fd) != 0;
    if (bad || renameat(dir, FILE_NAME ".new", dir, FILE_NAME) || fsync(dir)) {
        int why = errno;
        unlinkat(dir, FILE_NAME ".new", 0);
        errno = why;
        goto out;
    }
    status = AGOQ_OK;
out:;
    int why = errno;
    close(dir);
    errno = why;
    return status;
}

agoq_status state_load(const char *folder, uint8_t **data, size_t *size) {
    char path[1024];
    *data = NULL;
    if ((size_t)snprintf(path, sizeof path, "%s/%s", folder, FILE_NAME) >= sizeof path) return AGOQ_E_LIMIT;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return errno == ENOENT ? AGOQ_OK : AGOQ_E_IO;
    struct stat st;
    uint8_t *bytes = NULL;
    agoq_status status = AGOQ_E_IO;
    if (fstat(fd, &st)) goto out;
    status = AGOQ_E_FORMAT;
    if (!S_ISREG(st.st_mode) || st.st_size > (off_t)STATE_MAX_BYTES) goto out;
    status = AGOQ_E_NOMEM;
    if (!(bytes = mem_alloc((size_t)st.st_size))) goto out;
    status = AGOQ_E_IO;
    for (size_t at = 0; at < (size_t)st.st_size;) {
        ssize_t n = read(fd, bytes + at, (size_t)st.st_size - at);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) goto out;
        at += (size_t)n;
    }
    *data = bytes;
    *size = (size_t)st.st_size;
    bytes = NULL;
    status = AGOQ_OK;
out:
    mem_free(bytes);
    close(fd);
    return status;
}
