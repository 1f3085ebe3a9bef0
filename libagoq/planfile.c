/* See planfile.h. The reader takes the file whole, up to a cap, and walks it once; what it accepts, the
 * writer can have written, byte for byte. */
#include "libagoq/planfile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/mem.h"
#include "common/try.h"
#include "libagoq/error.h"

#define HEAD       "agoq-plan-file 1\n"
#define HEAD_NAME  "agoq-plan-file "
#define MAX_PREFIX 64 /* STEP, ID, HASH and blanks */

/* One field up to `end` character; NULL: there is none. *p moves behind it. */
static const char *field(const char **p, const char *limit, char end, size_t *length) {
    const char *start = *p, *stop = memchr(start, end, (size_t)(limit - start));
    if (!stop) return NULL;
    *length = (size_t)(stop - start);
    *p = stop + 1;
    return start;
}

static int parse_step(const char *text, size_t length, int64_t *step) {
    int64_t value = 0;
    if (length == 0 || length > 18 || (length > 1 && text[0] == '0')) return -1;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9') return -1;
        value = value * 10 + (text[i] - '0');
    }
    *step = value;
    return 0;
}

static int parse_word(const char *text, size_t length, uint64_t *word) {
    uint8_t bytes[8];
    size_t n;
    if (length != 16 || buf_hex_decode(text, length, bytes, sizeof bytes, &n) != 0) return -1;
    uint64_t value = 0;
    for (int i = 0; i < 8; i++) value = value << 8 | bytes[i];
    *word = value;
    return 0;
}

/* One line without its line end, into *entry. scratch: PLAN_MAX_BYTES. Returns what is wrong, or NULL. */
static const char *parse_line(const char *line, size_t length, uint8_t *scratch, planfile_entry *entry,
                              agoq_status *status) {
    const char *p = line, *limit = line + length, *text;
    size_t n = 0;
    uint64_t id, hash;
    *status = AGOQ_E_FORMAT;
    if (!(text = field(&p, limit, ' ', &n)) || parse_step(text, n, &entry->step) != 0) return "bad step";
    if (!(text = field(&p, limit, ' ', &n)) || parse_word(text, n, &id) != 0) return "bad plan id";
    if (!(text = field(&p, limit, ' ', &n)) || parse_word(text, n, &hash) != 0) return "bad hash";
    memset(&entry->plan, 0, sizeof entry->plan);
    if (limit - p == 1 && *p == '-') {
        if (id != 0 || hash != 0) return "a plan id without a plan";
        *status = AGOQ_OK;
        return NULL;
    }
    if (id == 0) return "a plan without a plan id";
    if (buf_hex_decode(p, (size_t)(limit - p), scratch, PLAN_MAX_BYTES, &n) != 0)
        return "plan is not hex, or too long";
    *status = slot_make(id, hash, scratch, n, &entry->plan);
    if (*status == AGOQ_E_NOMEM) return "out of memory";
    return *status == AGOQ_OK ? NULL : "plan bytes are malformed or do not match their hash";
}

static agoq_status add_entry(planfile *f, size_t *capacity, const planfile_entry *entry) {
    while (f->n && f->entries[f->n - 1].step >= entry->step) slot_fini(&f->entries[--f->n].plan);
    if (f->n == PLANFILE_MAX_ENTRIES) return AGOQ_E_LIMIT;
    if (f->n == *capacity) {
        const size_t more = *capacity ? 2 * *capacity : 16;
        planfile_entry *grown = mem_realloc(f->entries, more, sizeof *grown);
        if (!grown) return AGOQ_E_NOMEM;
        f->entries = grown;
        *capacity = more;
    }
    f->entries[f->n++] = *entry;
    return AGOQ_OK;
}

/* A plan id stands for one content (S1), also where a resumed run took the line back. */
typedef struct seen_id {
    uint64_t id, hash;
    long line;
} seen_id;

typedef struct seen_ids {
    seen_id *list;
    size_t n, capacity;
} seen_ids;

static agoq_status add_id(seen_ids *s, const slot *which, long line) {
    if (which->id == 0) return AGOQ_OK;
    if (s->n == s->capacity) {
        const size_t more = s->capacity ? 2 * s->capacity : 16;
        seen_id *grown = mem_realloc(s->list, more, sizeof *grown);
        if (!grown) return AGOQ_E_NOMEM;
        s->list = grown;
        s->capacity = more;
    }
    s->list[s->n++] = (seen_id){which->id, which->hash, line};
    return AGOQ_OK;
}

static int by_id_and_line(const void *left, const void *right) {
    const seen_id *a = left, *b = right;
    if (a->id != b->id) return a->id < b->id ? -1 : 1;
    return a->line < b->line ? -1 : a->line > b->line;
}

static agoq_status check_ids(const char *path, seen_ids *s) {
    if (s->n) qsort(s->list, s->n, sizeof *s->list, by_id_and_line);
    for (size_t i = 1; i < s->n; i++) {
        const seen_id *a = &s->list[i - 1], *b = &s->list[i];
        if (a->id == b->id && a->hash != b->hash)
            return error_fail(AGOQ_E_FORMAT, "%s:%ld: a plan id that stands for other contents in line %ld",
                              path, b->line, a->line);
    }
    return AGOQ_OK;
}

static agoq_status parse(const char *path, const char *text, size_t size, uint8_t *scratch, planfile *f,
                         seen_ids *ids) {
    const size_t head = strlen(HEAD);
    if (size < head || memcmp(text, HEAD, head) != 0) {
        if (size >= strlen(HEAD_NAME) && memcmp(text, HEAD_NAME, strlen(HEAD_NAME)) == 0)
            return error_fail(AGOQ_E_VERSION, "%s:1: another version of plan files", path);
        return error_fail(AGOQ_E_FORMAT, "%s:1: not a plan file", path);
    }
    const char *p = text + head, *limit = text + size;
    size_t capacity = 0;
    for (long line = 2; p < limit; line++) {
        size_t length = 0;
        const char *start = field(&p, limit, '\n', &length);
        if (!start) return error_fail(AGOQ_E_FORMAT, "%s:%ld: the last line is cut short", path, line);
        planfile_entry entry;
        agoq_status status;
        const char *bad = parse_line(start, length, scratch, &entry, &status);
        if (bad) return error_fail(status, "%s:%ld: %s", path, line, bad);
        status = add_id(ids, &entry.plan, line);
        if (status == AGOQ_OK) status = add_entry(f, &capacity, &entry);
        if (status != AGOQ_OK) {
            slot_fini(&entry.plan);
            return error_fail(status, "%s:%ld: too many entries, or out of memory", path, line);
        }
    }
    return check_ids(path, ids);
}

/* The whole file. *text is allocated. A FIFO or a device is refused: it could block for ever. */
static agoq_status read_all(const char *path, char **text, size_t *size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return error_fail(AGOQ_E_IO, "plan file %s: %s", path, strerror(errno));
    agoq_status status = AGOQ_OK;
    struct stat st;
    char *data = NULL;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        status = error_fail(AGOQ_E_IO, "plan file %s: not a regular file", path);
    } else if (st.st_size > (off_t)PLANFILE_MAX_BYTES) {
        status = error_fail(AGOQ_E_LIMIT, "plan file %s: longer than %u bytes", path, PLANFILE_MAX_BYTES);
    } else if (!(data = mem_alloc((size_t)st.st_size))) {
        status = error_fail(AGOQ_E_NOMEM, "plan file %s: out of memory", path);
    }
    size_t used = 0;
    while (status == AGOQ_OK && used < (size_t)st.st_size) {
        const ssize_t n = read(fd, data + used, (size_t)st.st_size - used);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status = error_fail(AGOQ_E_IO, "plan file %s: %s", path, strerror(errno));
        if (n <= 0) break; /* 0: it shrank meanwhile */
        used += (size_t)n;
    }
    close(fd);
    if (status != AGOQ_OK) {
        mem_free(data);
        return status;
    }
    *text = data;
    *size = used;
    return AGOQ_OK;
}

agoq_status planfile_read(const char *path, planfile *out) {
    char *text = NULL;
    uint8_t *scratch = NULL;
    size_t size = 0;
    planfile f = {0};
    seen_ids ids = {0};
    agoq_status status;
    AGOQ_TRY(read_all(path, &text, &size));
    scratch = mem_alloc(PLAN_MAX_BYTES);
    status = scratch ? parse(path, text, size, scratch, &f, &ids)
                     : error_fail(AGOQ_E_NOMEM, "plan file %s: out of memory", path);
    mem_free(text);
    mem_free(scratch);
    mem_free(ids.list);
    if (status == AGOQ_OK)
        *out = f;
    else
        planfile_fini(&f);
    return status;
}

void planfile_fini(planfile *f) {
    for (size_t i = 0; i < f->n; i++) slot_fini(&f->entries[i].plan);
    mem_free(f->entries);
    memset(f, 0, sizeof *f);
}

const planfile_entry *planfile_at(const planfile *f, int64_t step) {
    size_t low = 0, high = f->n; /* entries below low apply, from high on they do not */
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (f->entries[middle].step <= step)
            low = middle + 1;
        else
            high = middle;
    }
    return low ? &f->entries[low - 1] : NULL;
}

static agoq_status write_all(int fd, const char *text, size_t size) {
    while (size) {
        const ssize_t n = write(fd, text, size);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return AGOQ_E_IO;
        text += n;
        size -= (size_t)n;
    }
    return AGOQ_OK;
}

agoq_status planfile_writer_open(const char *path, planfile_writer *w) {
    planfile_writer opened = {.fd = -1, .last_step = -1};
    struct stat st;
    const int exists = stat(path, &st) == 0 && (!S_ISREG(st.st_mode) || st.st_size > 0);
    if (exists) {
        planfile f = {0};
        AGOQ_TRY(planfile_read(path, &f));
        if (f.n) {
            opened.last_step = f.entries[f.n - 1].step;
            opened.last_id = f.entries[f.n - 1].plan.id;
        }
        planfile_fini(&f);
    }
    opened.fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (opened.fd < 0) return error_fail(AGOQ_E_IO, "record file %s: %s", path, strerror(errno));
    if (!exists && write_all(opened.fd, HEAD, strlen(HEAD)) != AGOQ_OK) {
        const int saved = errno;
        close(opened.fd);
        return error_fail(AGOQ_E_IO, "record file %s: %s", path, strerror(saved));
    }
    *w = opened;
    return AGOQ_OK;
}

agoq_status planfile_append(planfile_writer *w, int64_t step, const slot *which) {
    const off_t end = lseek(w->fd, 0, SEEK_END);
    char *line = mem_alloc(MAX_PREFIX + 2 * which->size + 2);
    agoq_status status = AGOQ_E_NOMEM;
    if (line) {
        size_t n = (size_t)snprintf(line, MAX_PREFIX, "%" PRId64 " %016" PRIx64 " %016" PRIx64 " ", step,
                                    which->id, which->hash);
        if (which->id) {
            buf_hex_encode(which->bytes, which->size, line + n);
            n += 2 * which->size;
        } else {
            line[n++] = '-';
        }
        line[n++] = '\n';
        status = write_all(w->fd, line, n);
        mem_free(line);
    }
    if (status == AGOQ_OK) {
        w->last_step = step;
        w->last_id = which->id;
    } else {
        /* Half a line (full disk) would make the whole file unreadable. */
        if (end >= 0 && ftruncate(w->fd, end) != 0) error_set("record file: cannot take half a line back");
        w->failed = 1;
    }
    return status;
}

void planfile_writer_close(planfile_writer *w) {
    if (w->fd >= 0) close(w->fd);
    w->fd = -1;
}
