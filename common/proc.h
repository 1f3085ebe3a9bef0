/* When a process started, which tells a pid from a later process with the same pid. Read from /proc by both
 * sides, the process itself and whoever later asks whether it is still there, so that they cannot differ. */
#ifndef COMMON_PROC_H
#define COMMON_PROC_H

#include <stdint.h>

/* Field 22 of /proc/PID/stat; 0: cannot be read. *state (may be NULL): its state letter. */
uint64_t proc_start_time(uint64_t pid, char *state);

#endif
