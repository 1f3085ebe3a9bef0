/* Does a process still exist? By pid and start time, so that a reused pid does not count; a zombie has given
 * its memory back and does not count either. */
#ifndef AGOQD_PROC_H
#define AGOQD_PROC_H

#include "common/proc.h" /* proc_start_time */

/* 0 only when it has verifiably exited; start_time 0: not known, the pid alone counts. */
int proc_alive(uint64_t pid, uint64_t start_time);

#endif
