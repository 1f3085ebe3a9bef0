/* Reading and sampling the text. Links of a folder that lead to another of its files are skipped (licence
 * folders are full of them), so that no text counts twice. The whole text is held in host memory: fine for
 * texts, not for corpora. */
#include "trainer/data.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "trainer/ops.h"

static int read_all(data *d, int fd, const char *path, char *error, size_t size) {
    for (;;) {
        uint8_t chunk[65536];
        const ssize_t n = read(fd, chunk, sizeof chunk);
        if (n == 0) return 0;
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            snprintf(error, size, "data: %s: %s", path, strerror(errno));
            return -1;
        }
        uint8_t *more = (uint64_t)n > DATA_MAX_BYTES - d->n ? NULL : realloc(d->bytes, d->n + (size_t)n);
        if (!more) {
            snprintf(error, size, "data: %s: out of memory, or it grew past %u MiB", path,
                     DATA_MAX_BYTES >> 20);
            return -1;
        }
        d->bytes = more;
        memcpy(d->bytes + d->n, chunk, (size_t)n);
        d->n += (size_t)n;
    }
}

/* Not blocking: a FIFO without a writer would hold the job up before it could be refused. */
static int append_file(data *d, const char *path, char *error, size_t size) {
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat st;
    int failed = -1;
    if (fd < 0 || fstat(fd, &st))
        snprintf(error, size, "data: %s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        snprintf(error, size, "data: %s is neither a regular file nor a folder", path);
    else if ((uint64_t)st.st_size > DATA_MAX_BYTES - d->n)
        snprintf(error, size, "data: %s: more than %u MiB of text; it is held in memory as a whole", path,
                 DATA_MAX_BYTES >> 20);
    else
        failed = read_all(d, fd, path, error, size);
    if (fd >= 0) close(fd);
    return failed;
}

static int link_inside(const char *folder, const char *path) {
    char target[PATH_MAX], root[PATH_MAX];
    struct stat st;
    if (lstat(path, &st) || !S_ISLNK(st.st_mode)) return 0;
    if (!realpath(path, target) || !realpath(folder, root)) return 1; /* leads nowhere */
    const size_t n = strlen(root);
    return strncmp(target, root, n) == 0 && target[n] == '/';
}

static int append_folder(data *d, const char *folder, char *error, size_t size) {
    struct dirent **names = NULL;
    const int n = scandir(folder, &names, NULL, alphasort);
    int failed = n < 0;
    if (failed) snprintf(error, size, "data: %s: %s", folder, strerror(errno));
    for (int i = 0; i < n; i++) {
        char path[PATH_MAX];
        struct stat st;
        const int len = snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
        if (!failed && len > 0 && (size_t)len < sizeof path && !link_inside(folder, path) &&
            stat(path, &st) == 0 && S_ISREG(st.st_mode))
            failed = append_file(d, path, error, size);
        free(names[i]);
    }
    free(names);
    return failed ? -1 : 0;
}

int data_open(data *d, const char *path, int seq, int held_out_too, char *error, size_t size) {
    struct stat st;
    *d = (data){0};
    if (stat(path, &st)) {
        snprintf(error, size, "data: %s: %s", path, strerror(errno));
        return -1;
    }
    if (S_ISDIR(st.st_mode) ? append_folder(d, path, error, size) : append_file(d, path, error, size)) {
        data_close(d);
        return -1;
    }
    d->n_train = d->n - d->n / 20;
    const size_t need = (size_t)seq + 1;
    if (d->n == 0) {
        snprintf(error, size, "data: %s holds no text", path);
    } else if (d->n_train < need) {
        snprintf(error, size,
                 "data: %s holds %zu bytes to train on (5 %% are held out); one sequence needs %zu", path,
                 d->n_train, need);
    } else if (held_out_too && d->n - d->n_train < need) {
        snprintf(error, size, "data: %s: the held-out tail has %zu bytes; --eval needs %zu", path,
                 d->n - d->n_train, need);
    } else {
        return 0;
    }
    data_close(d);
    return -1;
}

void data_close(data *d) {
    free(d->bytes);
    *d = (data){0};
}

static void copy_sequence(const uint8_t *from, int seq, uint8_t *ids, uint8_t *targets) {
    memcpy(ids, from, (size_t)seq);
    memcpy(targets, from + 1, (size_t)seq);
}

void data_microbatch(const data *d, uint64_t seed, int64_t step, int microbatch, int replica, int n_seqs,
                     int seq, uint8_t *ids, uint8_t *targets) {
    const uint64_t starts = d->n_train - (uint64_t)seq;
    for (int i = 0; i < n_seqs; i++) {
        const uint64_t stream = (uint64_t)step << 32 | (uint64_t)(uint32_t)microbatch;
        const uint64_t at =
            ops_hash(seed ^ 0x64617461u, stream, (uint64_t)replica << 32 | (uint32_t)i) % starts;
        copy_sequence(d->bytes + at, seq, ids + (size_t)i * (size_t)seq, targets + (size_t)i * (size_t)seq);
    }
}

void data_held_out(const data *d, int64_t microbatch, int n_seqs, int seq, uint8_t *ids, uint8_t *targets) {
    const uint64_t starts = d->n - d->n_train - (uint64_t)seq;
    for (int i = 0; i < n_seqs; i++) {
        const uint64_t at = d->n_train + ops_hash(1, (uint64_t)microbatch, (uint64_t)i) % starts;
        copy_sequence(d->bytes + at, seq, ids + (size_t)i * (size_t)seq, targets + (size_t)i * (size_t)seq);
    }
}
