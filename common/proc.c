/* See proc.h. */
#include "common/proc.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

uint64_t proc_start_time(uint64_t pid, char *state) {
    char path[64], text[1024];
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    char *at = strrchr(text, ')'); /* the name in front may hold anything */
    if (!at || at[1] != ' ') return 0;
    if (state) *state = at[2];
    for (int field = 2; field < 22 && at; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}
