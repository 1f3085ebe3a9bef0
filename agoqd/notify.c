/* See notify.h. */
#include "agoqd/notify.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "common/units.h"

void notify_init(notify *n) {
    *n = (notify){0};
    const char *path = getenv("NOTIFY_SOCKET"), *usec = getenv("WATCHDOG_USEC"),
               *pid = getenv("WATCHDOG_PID");
    uint64_t value = 0, owner = 0;
    if (path && (path[0] == '/' || path[0] == '@') && strlen(path) < sizeof n->path)
        snprintf(n->path, sizeof n->path, "%s", path);
    int ours = !pid || (units_parse_uint(pid, &owner) == 0 && owner == (uint64_t)getpid());
    if (usec && ours && units_parse_uint(usec, &value) == 0 && value < INT64_MAX)
        n->watchdog_ms = (int64_t)value / 2000;
    unsetenv("NOTIFY_SOCKET");
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
}

void notify_send(const notify *n, const char *text) {
    if (!n->path[0]) return;
    struct sockaddr_un to = {.sun_family = AF_UNIX};
    size_t length = strlen(n->path);
    memcpy(to.sun_path, n->path, length);
    if (to.sun_path[0] == '@') to.sun_path[0] = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    (void)!sendto(fd, text, strlen(text), MSG_NOSIGNAL | MSG_DONTWAIT, (struct sockaddr *)&to, size);
    close(fd);
}

void notify_alive(notify *n, int64_t now) {
    if (!n->watchdog_ms || now < n->next_ms) return;
    n->next_ms = now + n->watchdog_ms;
    notify_send(n, "WATCHDOG=1");
}
