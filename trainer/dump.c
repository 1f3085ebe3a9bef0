/* See dump.h. */
#include "trainer/dump.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "agoq/agoq.h"

static const char *const roles[] = {
#define ROLE_NAME(id, name, sensitivity, mask) name,
    AGOQ_ROLES(ROLE_NAME)
#undef ROLE_NAME
};

static int write_rows(const char *path, ops_mat x) {
    FILE *file = fopen(path, "wb");
    if (!file) return -1;
    int bad = 0;
    for (int64_t r = 0; r < x.rows && !bad; r++)
        bad = fwrite(x.p + r * x.ld, sizeof *x.p, (size_t)x.cols, file) != (size_t)x.cols;
    return fclose(file) || bad ? -1 : 0;
}

agoq_status dump_tensor(dump *d, int layer, int role, ops_mat x) {
    char path[4096], why[4200];
    if (!d || !d->dir) return AGOQ_OK;
    const int n = snprintf(path, sizeof path, "%s/%s.%d.%d.%lldx%lld.f32", d->dir, roles[role], layer,
                           d->serial++, (long long)x.rows, (long long)x.cols);
    if (n < 0 || (size_t)n >= sizeof path) errno = ENAMETOOLONG;
    if (n >= 0 && (size_t)n < sizeof path && (mkdir(d->dir, 0777) == 0 || errno == EEXIST) &&
        write_rows(path, x) == 0)
        return AGOQ_OK;
    snprintf(why, sizeof why, "dump: %.4000s: %s", path, strerror(errno));
    agoq_set_last_error(why);
    return AGOQ_E_IO;
}
