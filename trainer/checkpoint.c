/* Checkpoint files: see checkpoint.h. Format, little endian as in memory: "AGOQCKPT", u64 version, the
 * configuration as CHECKPOINT_FIELDS int64, then per parameter id, count of weights, count of
 * state bytes, weights, state; last an FNV-1a hash of all before it. Everything is checked before it is
 * believed, sizes first. */
#include "trainer/checkpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/checkpoint_config.h"

enum { VERSION = 3 };
static const char magic[8] = {'A', 'G', 'O', 'Q', 'C', 'K', 'P', 'T'};

typedef struct stream {
    FILE *f;
    uint64_t hash;
    int failed;
} stream;

static int fail(char *error, size_t size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, size, format, args);
    va_end(args);
    return -1;
}

static void hash_bytes(stream *s, const void *data, size_t n) {
    const unsigned char *p = data;
    for (size_t i = 0; i < n; i++) s->hash = (s->hash ^ p[i]) * 0x100000001b3u;
}

static void put(stream *s, const void *data, size_t n) {
    hash_bytes(s, data, n);
    if (n && fwrite(data, 1, n, s->f) != n) s->failed = 1;
}

static void get(stream *s, void *data, size_t n) {
    if (n && fread(data, 1, n, s->f) != n) {
        s->failed = 1;
        memset(data, 0, n);
    }
    hash_bytes(s, data, n);
}

/* The arrays of one optimizer state, in file order. */
typedef struct part {
    void *data;
    size_t bytes;
} part;

static size_t state_parts(const optim_state *s, part parts[4]) {
    const size_t n = (size_t)s->n, absmax = s->m ? 0 : (size_t)agoq_adam8_blocks(s->n) * sizeof(float);
    const part fp32[4] = {{s->m, n * 4}, {s->v, n * 4}, {NULL, 0}, {NULL, 0}};
    const part eight[4] = {{s->a8.m, n}, {s->a8.v, n}, {s->a8.m_absmax, absmax}, {s->a8.v_absmax, absmax}};
    memcpy(parts, s->m ? fp32 : eight, sizeof fp32);
    size_t sum = 0;
    for (int i = 0; i < 4; i++) sum += parts[i].bytes;
    return sum;
}

static int path_of(char path[PATH_MAX], const char *dir, int64_t step, const char *name, char *error,
                   size_t size) {
    const int n = snprintf(path, PATH_MAX, "%s/step-%" PRId64 "%s%s", dir, step, *name ? "/" : "", name);
    return n > 0 && n < PATH_MAX - 8 ? 0 : fail(error, size, "checkpoint: %s: the path is too long", dir);
}

/* A name is on the disk only when its folder is. */
static int sync_folder(const char *path) {
    char folder[PATH_MAX];
    snprintf(folder, sizeof folder, "%s", path);
    char *end = strrchr(folder, '/');
    if (!end) return -1; /* path_of and its like always put one */
    end[end == folder] = 0;
    const int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int rc = fd < 0 ? -1 : fsync(fd), why = errno;
    if (fd >= 0) close(fd);
    errno = why;
    return rc;
}

/* Closes a file written at PATH.tmp and moves it into place. */
static int commit(FILE *f, const char *path, int failed, char *error, size_t size) {
    char tmp[PATH_MAX + 8];
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (fflush(f) || fsync(fileno(f))) failed = 1;
    if (fclose(f)) failed = 1;
    if (!failed && rename(tmp, path) == 0 && sync_folder(path) == 0) return 0;
    const int why = errno;
    unlink(tmp); /* gone already if only the folder could not be synced */
    return fail(error, size, "checkpoint: %s: cannot be written: %s", path, strerror(why));
}

static FILE *create(const char *path, char *error, size_t size) {
    char tmp[PATH_MAX + 8];
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    FILE *f = fopen(tmp, "wb");
    if (!f) fail(error, size, "checkpoint: %s: %s", tmp, strerror(errno));
    return f;
}

int checkpoint_folder(const char *dir) {
    return mkdir(dir, 0777) == 0 || errno == EEXIST ? 0 : -1;
}

static int make_folder(const char *path, char *error, size_t size) {
    if (checkpoint_folder(path) == 0) return 0;
    return fail(error, size, "checkpoint: %s: %s", path, strerror(errno));
}

static int copy_plan(const checkpoint *c, int64_t step, const char *record, char *error, size_t size) {
    char path[PATH_MAX], chunk[4096];
    if (path_of(path, c->dir, step, "plan", error, size)) return -1;
    FILE *from = fopen(record, "rb");
    if (!from && errno == ENOENT) return 0; /* no plan was ever switched to: nothing but the floor plan */
    if (!from) return fail(error, size, "checkpoint: %s: %s", record, strerror(errno));
    FILE *to = create(path, error, size);
    size_t n;
    int failed = 0;
    while (to && (n = fread(chunk, 1, sizeof chunk, from)) > 0) failed |= fwrite(chunk, 1, n, to) != n;
    failed |= ferror(from);
    fclose(from);
    return to ? commit(to, path, failed, error, size) : -1;
}

int checkpoint_write(const checkpoint *c, int64_t step, const char *plan_record, char *error, size_t size) {
    char path[PATH_MAX], name[32];
    if (make_folder(c->dir, error, size) || path_of(path, c->dir, step, "", error, size) ||
        make_folder(path, error, size))
        return -1;
    snprintf(name, sizeof name, "rank-%d.bin", c->rank);
    if (path_of(path, c->dir, step, name, error, size)) return -1;
    stream s = {create(path, error, size), 0xcbf29ce484222325u, 0};
    if (!s.f) return -1;
    const uint64_t version = VERSION;
    int64_t config[CHECKPOINT_FIELDS];
    checkpoint_config_fill(c->o, c->rank, step, config);
    put(&s, magic, sizeof magic);
    put(&s, &version, sizeof version);
    put(&s, config, sizeof config);
    for (int i = 0; i < c->params->n; i++) {
        const param *t = &c->params->list[i];
        part parts[4];
        const uint64_t head[3] = {t->id, (uint64_t)t->n, state_parts(&c->optim->list[i], parts)};
        put(&s, head, sizeof head);
        put(&s, t->w, (size_t)t->n * sizeof(float));
        for (int k = 0; k < 4; k++) put(&s, parts[k].data, parts[k].bytes);
    }
    const uint64_t hash = s.hash;
    put(&s, &hash, sizeof hash);
    if (commit(s.f, path, s.failed, error, size)) return -1;
    return c->rank == 0 && plan_record ? copy_plan(c, step, plan_record, error, size) : 0;
}

int checkpoint_publish(const checkpoint *c, int64_t step, char *error, size_t size) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/latest", c->dir) >= PATH_MAX - 8)
        return fail(error, size, "checkpoint: path too long");
    FILE *f = create(path, error, size);
    if (!f) return -1;
    const int failed = fprintf(f, "%" PRId64 "\n", step) < 0;
    return commit(f, path, failed, error, size);
}

int64_t checkpoint_latest(const char *dir, char *error, size_t size) {
    char path[PATH_MAX], text[32] = "";
    if (snprintf(path, sizeof path, "%s/latest", dir) >= (int)sizeof path)
        return fail(error, size, "checkpoint: the path of the folder is too long");
    FILE *f = fopen(path, "r");
    if (!f) return fail(error, size, "checkpoint: %s: %s", path, strerror(errno));
    const int got = fgets(text, sizeof text, f) != NULL;
    fclose(f);
    char *end = text;
    errno = 0;
    const long long step = strtoll(text, &end, 10);
    if (!got || errno || end == text || (*end != '\n' && *end) || step < 0)
        return fail(error, size, "checkpoint: %s does not name a step", path);
    return step;
}

static int check_header(const checkpoint *c, int64_t step, stream *s, const char *path, char *error,
                        size_t size) {
    char head[sizeof magic];
    uint64_t version;
    int64_t found[CHECKPOINT_FIELDS], want[CHECKPOINT_FIELDS];
    checkpoint_config_fill(c->o, c->rank, step, want);
    get(s, head, sizeof head);
    get(s, &version, sizeof version);
    get(s, found, sizeof found);
    if (s->failed) return fail(error, size, "checkpoint: %s is truncated", path);
    if (memcmp(head, magic, sizeof magic) != 0)
        return fail(error, size, "checkpoint: %s is not a checkpoint", path);
    if (version != VERSION)
        return fail(error, size, "checkpoint: %s has version %" PRIu64 ", not %d", path, version, VERSION);
    char difference[128];
    if (checkpoint_config_differs(found, want, difference, sizeof difference))
        return fail(error, size, "checkpoint: %s %s", path, difference);
    return 0;
}

static int read_file(const checkpoint *c, int64_t step, stream *s, const char *path, char *error,
                     size_t size) {
    if (check_header(c, step, s, path, error, size)) return -1;
    for (int i = 0; i < c->params->n; i++) {
        const param *t = &c->params->list[i];
        part parts[4];
        const uint64_t bytes = state_parts(&c->optim->list[i], parts);
        uint64_t head[3];
        get(s, head, sizeof head);
        if (s->failed) return fail(error, size, "checkpoint: %s is truncated", path);
        if (head[0] != t->id || head[1] != (uint64_t)t->n || head[2] != bytes)
            return fail(error, size, "checkpoint: %s: parameter %d has another shape", path, i);
        get(s, t->w, (size_t)t->n * sizeof(float));
        for (int k = 0; k < 4; k++) get(s, parts[k].data, parts[k].bytes);
    }
    const uint64_t hash = s->hash;
    uint64_t found;
    get(s, &found, sizeof found);
    if (s->failed) return fail(error, size, "checkpoint: %s is truncated", path);
    if (found != hash || fgetc(s->f) != EOF) return fail(error, size, "checkpoint: %s is damaged", path);
    return 0;
}

int checkpoint_read(const checkpoint *c, int64_t step, char *error, size_t size) {
    char path[PATH_MAX], name[32];
    snprintf(name, sizeof name, "rank-%d.bin", c->rank);
    if (path_of(path, c->dir, step, name, error, size)) return -1;
    stream s = {fopen(path, "rb"), 0xcbf29ce484222325u, 0};
    if (!s.f) return fail(error, size, "checkpoint: %s: %s", path, strerror(errno));
    const int failed = read_file(c, step, &s, path, error, size);
    fclose(s.f);
    return failed;
}

int checkpoint_plan(const char *dir, int64_t step, char *path, size_t size) {
    const int n = snprintf(path, size, "%s/step-%" PRId64 "/plan", dir, step);
    return n > 0 && (size_t)n < size && access(path, R_OK) == 0;
}
