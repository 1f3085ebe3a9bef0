/* See file.h. A pipe or a device is refused, for it could block for ever; a file that shrinks while it is
 * read gives what was there. */
#include "common/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/mem.h"

static agoq_status failed(agoq_status status, const char *what, const char **why) {
    *why = what;
    return status;
}

static agoq_status read_open(int fd, size_t most, char **text, size_t *size, const char **why) {
    struct stat st;
    size_t used = 0;
    if (fstat(fd, &st)) return failed(AGOQ_E_IO, strerror(errno), why);
    if (!S_ISREG(st.st_mode)) return failed(AGOQ_E_IO, "is not a regular file", why);
    if ((uint64_t)st.st_size > most) return failed(AGOQ_E_LIMIT, "is too large", why);
    char *data = mem_alloc((size_t)st.st_size + 1);
    if (!data) return failed(AGOQ_E_NOMEM, "out of memory", why);
    while (used < (size_t)st.st_size) {
        const ssize_t got = read(fd, data + used, (size_t)st.st_size - used);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) {
            const int error = errno;
            mem_free(data);
            return failed(AGOQ_E_IO, strerror(error), why);
        }
        if (!got) break;
        used += (size_t)got;
    }
    data[used] = 0;
    *text = data;
    *size = used;
    return AGOQ_OK;
}

agoq_status file_read(const char *path, size_t most, char **text, size_t *size, const char **why) {
    /* O_NONBLOCK: a pipe without a writer must not hang. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return failed(AGOQ_E_IO, strerror(errno), why);
    const agoq_status status = read_open(fd, most, text, size, why);
    close(fd);
    return status;
}
