/* See dump.h. */
#include "trainer/dump.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agoq/agoq.h"

#define PATH_BYTES 4096

static int write_rows(const char *path, ops_mat x) {
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    int bad = 0;
    for (int64_t r = 0; r < x.rows && !bad; r++)
        bad = fwrite(x.p + r * x.ld, sizeof *x.p, (size_t)x.cols, file) != (size_t)x.cols;
    const int why = errno, closed = fclose(file);
    if (bad) errno = why;
    return closed || bad ? -1 : 0;
}

/* Under its name only when it is whole. */
static int write_file(const char *path, ops_mat x) {
    char tmp[PATH_BYTES + 8];
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    if (write_rows(tmp, x) == 0 && rename(tmp, path) == 0) return 0;
    const int why = errno;
    unlink(tmp);
    errno = why;
    return -1;
}

int dump_check_folder(const char *path, char *why, size_t size) {
    DIR *folder = opendir(path);
    int bad = 0;
    if (!folder) return 0; /* it will be made, or what it is will be said */
    for (const struct dirent *e; !bad && (e = readdir(folder));) {
        bad = strstr(e->d_name, ".f32") != NULL;
        if (bad)
            snprintf(why, size, "dump: %.200s holds %.100s of another run: give an empty folder", path,
                     e->d_name);
    }
    closedir(folder);
    return bad ? -1 : 0;
}

agoq_status dump_tensor(dump *d, int layer, int role, ops_mat x) {
    char path[PATH_BYTES], why[PATH_BYTES + 104];
    if (!d || !d->dir) return AGOQ_OK;
    const int n = snprintf(path, sizeof path, "%s/%s.%d.%d.%lldx%lld.f32", d->dir, agoq_role_name(role),
                           layer, d->serial++, (long long)x.rows, (long long)x.cols);
    if (n < 0 || (size_t)n >= sizeof path) errno = ENAMETOOLONG;
    if (n >= 0 && (size_t)n < sizeof path && (mkdir(d->dir, 0777) == 0 || errno == EEXIST) &&
        write_file(path, x) == 0)
        return AGOQ_OK;
    snprintf(why, sizeof why, "dump: %.4000s: %s", path, strerror(errno));
    agoq_set_last_error(why);
    return AGOQ_E_IO;
}
