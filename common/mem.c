/* See mem.h. */
#include "common/mem.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static atomic_long fail_countdown; /* 0: off; n > 0: n-1 more succeed; -1: failing */

void mem_fail_after(long n) {
    atomic_store(&fail_countdown, n);
}

static int must_fail(void) {
    long n = atomic_load(&fail_countdown);
    if (n == 0) return 0;
    if (n < 0) return 1;
    if (n == 1) {
        atomic_store(&fail_countdown, -1);
        return 1;
    }
    atomic_fetch_sub(&fail_countdown, 1);
    return 0;
}

void *mem_alloc(size_t bytes) {
    return must_fail() ? NULL : malloc(bytes ? bytes : 1);
}

void *mem_zalloc(size_t count, size_t bytes) {
    if (must_fail()) return NULL;
    return calloc(count ? count : 1, bytes ? bytes : 1);
}

void *mem_realloc(void *p, size_t count, size_t bytes) {
    if (bytes && count > SIZE_MAX / bytes) return NULL;
    size_t total = count * bytes;
    return must_fail() ? NULL : realloc(p, total ? total : 1);
}

char *mem_strdup(const char *s) {
    if (!s) return NULL;
    size_t n = strlen(s) + 1;
    char *copy = mem_alloc(n);
    if (copy) memcpy(copy, s, n);
    return copy;
}

void mem_free(void *p) {
    free(p);
}
