/* See proc.h. */
#include "agoqd/proc.h"

#include <errno.h>
#include <signal.h>

int proc_alive(uint64_t pid, uint64_t start_time) {
    if (pid == 0 || pid > INT32_MAX) return 1; /* not a pid of this machine: nothing can be verified */
    if (kill((pid_t)pid, 0) && errno == ESRCH) return 0;
    char state = 0;
    uint64_t started =
        proc_start_time(pid, &state); /* 0 where /proc hides others: then the signal's answer stands */
    if (started && (state == 'Z' || state == 'X')) return 0;
    return !(started && start_time && started != start_time);
}
