/* libFuzzer: canonical plan bytes, and plan files. The first byte chooses. What decodes must encode to the
 * same bytes; a plan file that is read must be found again entry by entry. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/mem.h"
#include "libagoq/planfile.h"
#include "planner/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void one_plan(const uint8_t *data, size_t size) {
    plan p = {0};
    if (plan_decode(data, size, &p) != AGOQ_OK) return;
    uint8_t *again = mem_alloc(size);
    size_t used = 0;
    assert(again && plan_encode(&p, again, size, &used) == AGOQ_OK);
    assert(used == size && memcmp(data, again, size) == 0);
    mem_free(again);
    plan_fini(&p);
}

static void one_file(const uint8_t *data, size_t size) {
    static int fd = -1;
    static char path[64];
    if (fd < 0) {
        fd = memfd_create("plan", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    }
    assert(fd >= 0 && ftruncate(fd, 0) == 0 && pwrite(fd, data, size, 0) == (ssize_t)size);
    planfile f = {0};
    if (planfile_read(path, &f) != AGOQ_OK) return;
    for (size_t i = 0; i < f.n; i++) assert(planfile_at(&f, f.entries[i].step) == &f.entries[i]);
    planfile_fini(&f);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!size) return 0;
    if (data[0] & 1)
        one_file(data + 1, size - 1);
    else
        one_plan(data + 1, size - 1);
    return 0;
}
