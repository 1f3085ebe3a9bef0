/* accept4 and accept as libzmq finds them in this program. libzmq 4.3 aborts the process when accept() on a
 * Unix socket fails with EMFILE, so anybody who may open the socket could end the daemon with enough
 * connections. These end a connection that would take one of the last descriptors and report it as one that
 * its peer has given up, which libzmq takes well; the last descriptors stay free for state and /proc. The
 * trade-off: it rests on the dynamic linker preferring the program's symbols;
 * tests/system/20-daemon-faults.sh tells if that should ever change. */
#include <errno.h>
#include <stddef.h>
#include <sys/resource.h>
/* glibc declares them with a type of its own for addresses, which no definition in ISO C can match. */
#define accept4 accept4_of_header
#define accept  accept_of_header
#include <sys/socket.h>
#undef accept4
#undef accept
#include <sys/syscall.h>
#include <unistd.h>

#include "agoqd/accept.h"

#define SEEN_BY_LIBZMQ __attribute__((visibility("default")))

SEEN_BY_LIBZMQ int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags);
SEEN_BY_LIBZMQ int accept(int listener, struct sockaddr *address, socklen_t *length);

static int guarded(int listener, struct sockaddr *address, socklen_t *length, int flags) {
    struct rlimit limit;
    int fd = (int)syscall(SYS_accept4, listener, address, length, flags);
    if (fd < 0) {
        if (errno == EMFILE) errno = ECONNABORTED;
        return -1;
    }
    /* The lowest free number was given: all below it are in use. */
    if (getrlimit(RLIMIT_NOFILE, &limit) || (rlim_t)fd + ACCEPT_KEPT_FREE < limit.rlim_cur) return fd;
    close(fd);
    errno = ECONNABORTED;
    return -1;
}

int accept4(int listener, struct sockaddr *address, socklen_t *length, int flags) {
    return guarded(listener, address, length, flags);
}

int accept(int listener, struct sockaddr *address, socklen_t *length) {
    return guarded(listener, address, length, 0);
}

int accept_is_guarded(void) {
    return ACCEPT_KEPT_FREE;
}
