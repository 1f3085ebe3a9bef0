/* Sends bad messages to a running agoqd, as no client of ours would: garbage, cut short, another major
 * version, too long, too many parts, raw bytes without any ZeroMQ. usage: wiretool SOCKET KIND [COUNT]. Exit
 * 0 when all was sent. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "common/mem.h"
#include "proto/wire.h"

static int make_hello(uint8_t **data, size_t *size) {
    wire_header h = {.job = "wiretool", .rank = 0, .seq = 1};
    Agoq__Hello m = AGOQ__HELLO__INIT;
    memset(h.sender, 7, sizeof h.sender);
    m.world = m.n_stages = m.n_dp = m.n_tp = 1;
    m.device = (char *)"GPU-tool";
    m.host = (char *)"host";
    m.pid = (uint64_t)getpid();
    m.vote_period = 1;
    return wire_encode(&h, AGOQ__ENVELOPE__BODY_HELLO, &m, WIRE_MAX_RANK_BYTES, data, size) != AGOQ_OK;
}

/* Fills `to` with the i-th bad message of a kind; 0: no such kind. */
static size_t make_bad(const char *kind, int i, uint8_t *to, size_t room) {
    uint8_t *good;
    size_t size = 0;
    if (make_hello(&good, &size)) return 0;
    memcpy(to, good, size);
    mem_free(good);
    if (!strcmp(kind, "garbage")) {
        size = 1 + (size_t)(rand() % 400);
        for (size_t k = 0; k < size; k++) to[k] = (uint8_t)rand();
        return size;
    }
    if (!strcmp(kind, "truncated")) return 1 + (size_t)i % (size - 1);
    if (!strcmp(kind, "version")) { /* magic is 5 bytes, then the tag of major and its value */
        to[6] = 9;
        return size;
    }
    if (!strcmp(kind, "oversize")) {
        memset(to, 0x2a, room);
        return room;
    }
    return 0;
}

static int raw(const char *path, int count) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    for (int i = 0; i < count; i++) {
        int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address)) return 1;
        uint8_t bytes[256];
        for (size_t k = 0; k < sizeof bytes; k++) bytes[k] = (uint8_t)rand();
        (void)!send(fd, bytes, sizeof bytes, MSG_NOSIGNAL); /* the daemon may hang up first */
        close(fd);
    }
    return 0;
}

static int many_parts(void *socket, int count) {
    for (int i = 0; i < count; i++) {
        for (int k = 0; k < 1000; k++) {
            if (zmq_send(socket, "x", 1, ZMQ_SNDMORE) < 0) return 1;
        }
        if (zmq_send(socket, "x", 1, 0) < 0) return 1;
    }
    return 0;
}

static int bad_messages(void *socket, const char *kind, int count) {
    static uint8_t bytes[300 * 1024];
    for (int i = 0; i < count; i++) {
        size_t size = make_bad(kind, i, bytes, sizeof bytes);
        if (size == 0 || zmq_send(socket, bytes, size, 0) < 0) return 1;
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 3) {
        fputs("usage: wiretool SOCKET garbage|truncated|version|oversize|parts|raw [COUNT]\n", stderr);
        return 2;
    }
    int count = argc > 3 ? atoi(argv[3]) : 1, linger = 2000;
    srand(20240);
    if (!strcmp(argv[2], "raw")) return raw(argv[1], count);
    char endpoint[256];
    snprintf(endpoint, sizeof endpoint, "ipc://%s", argv[1]);
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    int timeout = 5000;
    zmq_setsockopt(dealer, ZMQ_SNDTIMEO, &timeout, sizeof timeout);
    int bad = zmq_connect(dealer, endpoint) != 0;
    if (!bad)
        bad = !strcmp(argv[2], "parts") ? many_parts(dealer, count) : bad_messages(dealer, argv[2], count);
    zmq_close(dealer);
    zmq_ctx_term(context);
    return bad;
}
