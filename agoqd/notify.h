/* Readiness and watchdog for systemd, without libsystemd: one datagram per state. Everywhere else it does
 * nothing. */
#ifndef AGOQD_NOTIFY_H
#define AGOQD_NOTIFY_H

#include <stdint.h>

typedef struct notify {
    char path[108];      /* "": nobody listens */
    int64_t watchdog_ms; /* a sign of life is due this often; 0: none wanted */
    int64_t next_ms;
} notify;

/* Reads NOTIFY_SOCKET and WATCHDOG_USEC and removes them from the environment, so that no child speaks for
 * us. */
void notify_init(notify *n);
void notify_send(const notify *n, const char *text);
void notify_alive(notify *n, int64_t now); /* WATCHDOG=1 at half the time allowed */

#endif
