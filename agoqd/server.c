/* See server.h. */
#include "agoqd/server.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "agoqd/accept.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/try.h"
#include "proto/wire.h"

#define OWN_FILES 32 /* sockets, locks, libzmq's own */

struct server {
    void *context, *socket;
    int lock;
    int bound; /* the file at path is ours to remove */
    int64_t gid;
    char path[CONF_MAX_PATH];
};

/* As many connections as the system lets us have; beyond that accept.c ends them. */
static void raise_file_limit(uint32_t max_sessions) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit)) return;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit)) getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur < (rlim_t)max_sessions + OWN_FILES + (rlim_t)accept_is_guarded())
        log_write(LOG_LEVEL_WARN, "server",
                  "only %" PRIu64 " open files are allowed for max_sessions %u: raise LimitNOFILE",
                  (uint64_t)limit.rlim_cur, max_sessions);
}

static agoq_status fail(char *error, size_t size, agoq_status status, const char *format, const char *what,
                        const char *why) {
    snprintf(error, size, format, what, why);
    return status;
}

static agoq_status take_lock(server *s, char *error, size_t size) {
    char path[CONF_MAX_PATH + 8];
    snprintf(path, sizeof path, "%s.lock", s->path);
    s->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (s->lock < 0)
        return fail(error, size, AGOQ_E_IO, "cannot open %s: %s (choose the socket with --socket PATH)", path,
                    strerror(errno));
    if (flock(s->lock, LOCK_EX | LOCK_NB))
        return fail(error, size, AGOQ_E_STATE,
                    "another agoqd serves %s (%s.lock is locked); stop it, or use another --socket", s->path,
                    s->path);
    return AGOQ_OK;
}

static int set_options(void *socket) {
    static const struct {
        int option, value;
    } options[] = {
        {ZMQ_ROUTER_MANDATORY, 1}, /* sending to a peer that is gone is an error, not a silent drop */
        {ZMQ_LINGER, 100},         {ZMQ_SNDHWM, 256},         {ZMQ_RCVHWM, 1024},
        {ZMQ_HANDSHAKE_IVL, 3000}, {ZMQ_HEARTBEAT_IVL, 1000}, {ZMQ_HEARTBEAT_TIMEOUT, 3000},
        {ZMQ_BACKLOG, 1024},
    };
    int64_t max_bytes = WIRE_MAX_RANK_BYTES;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (zmq_setsockopt(socket, options[i].option, &options[i].value, sizeof options[i].value)) return -1;
    }
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &max_bytes, sizeof max_bytes);
}

/* libzmq unlinks whatever stands at the path before it binds, also a socket that somebody serves. */
static agoq_status check_path(const char *path, char *error, size_t size) {
    struct stat st;
    if (lstat(path, &st)) return AGOQ_OK;
    if (!S_ISSOCK(st.st_mode))
        return fail(error, size, AGOQ_E_IO, "%s exists and is not a socket%s", path, "");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, path, strlen(path)); /* its length was checked by server_open */
    int probe = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (probe < 0) return fail(error, size, AGOQ_E_IO, "cannot look at %s: %s", path, strerror(errno));
    int refused = connect(probe, (struct sockaddr *)&address, sizeof address) && errno == ECONNREFUSED;
    close(probe);
    if (refused) return AGOQ_OK; /* left behind by a daemon that was killed */
    return fail(error, size, AGOQ_E_IO, "another program listens on %s; use another --socket%s", path, "");
}

static agoq_status bind_socket(server *s, const conf *c, char *error, size_t size) {
    char endpoint[CONF_MAX_PATH + 8];
    snprintf(endpoint, sizeof endpoint, "ipc://%s", s->path);
    s->context = zmq_ctx_new();
    s->socket = s->context ? zmq_socket(s->context, ZMQ_ROUTER) : NULL;
    if (!s->socket || set_options(s->socket))
        return fail(error, size, AGOQ_E_IO, "cannot make a socket for %s: %s", s->path, zmq_strerror(errno));
    AGOQ_TRY(check_path(s->path, error, size));
    mode_t before = umask(0177); /* nobody may connect before the mode is set */
    int bad = zmq_bind(s->socket, endpoint);
    int why = errno;
    umask(before);
    s->bound = !bad;
    if (bad) return fail(error, size, AGOQ_E_IO, "cannot bind %s: %s", s->path, zmq_strerror(why));
    if (s->gid >= 0 && chown(s->path, (uid_t)-1, (gid_t)s->gid))
        return fail(error, size, AGOQ_E_IO, "cannot give %s to its group: %s", s->path, strerror(errno));
    if (chmod(s->path, (mode_t)c->socket_mode))
        return fail(error, size, AGOQ_E_IO, "cannot set the mode of %s: %s", s->path, strerror(errno));
    return AGOQ_OK;
}

agoq_status server_open(const conf *c, server **out, char *error, size_t size) {
    struct sockaddr_un address;
    if (strlen(c->socket) >= sizeof address.sun_path)
        return fail(error, size, AGOQ_E_LIMIT, "socket path is too long (at most 107 bytes): %s%s", c->socket,
                    "");
    server *s = mem_zalloc(1, sizeof *s);
    if (!s) return fail(error, size, AGOQ_E_NOMEM, "out of memory%s%s", "", "");
    s->lock = -1;
    s->gid = -1;
    snprintf(s->path, sizeof s->path, "%s", c->socket);
    raise_file_limit(c->max_sessions);
    agoq_status status = AGOQ_OK;
    struct group *group = c->socket_group[0] ? getgrnam(c->socket_group) : NULL;
    if (c->socket_group[0] && !group) {
        status = fail(error, size, AGOQ_E_INVAL, "socket_group %s does not exist%s", c->socket_group, "");
    } else if (group) {
        s->gid = group->gr_gid;
    }
    if (status == AGOQ_OK) status = take_lock(s, error, size);
    if (status == AGOQ_OK) status = bind_socket(s, c, error, size);
    if (status != AGOQ_OK) {
        server_close(&s);
        return status;
    }
    *out = s;
    return AGOQ_OK;
}

void server_close(server **out) {
    server *s = *out;
    if (!s) return;
    if (s->socket) zmq_close(s->socket);
    if (s->context) zmq_ctx_term(s->context);
    if (s->bound) unlink(s->path);
    if (s->lock >= 0) close(s->lock);
    mem_free(s);
    *out = NULL;
}

int64_t server_gid(const server *s) {
    return s->gid;
}

int server_wait(server *s, int fd, int64_t timeout_ms) {
    zmq_pollitem_t items[2] = {{s->socket, 0, ZMQ_POLLIN, 0}, {NULL, fd, ZMQ_POLLIN, 0}};
    if (zmq_poll(items, fd >= 0 ? 2 : 1, (long)timeout_ms) < 0) return 0;
    return fd >= 0 && (items[1].revents & ZMQ_POLLIN);
}

/* "host:uid:gid:pid" from SO_PEERCRED, as the kernel saw them at connect. */
static void read_credentials(zmq_msg_t *frame, peer *from) {
    int64_t values[3] = {-1, -1, -1};
    const char *text = zmq_msg_gets(frame, "Peer-Address");
    for (int i = 2; text && i >= 0; i--) {
        const char *last = text; /* the (i+1)-th ':' from the end is the start of value 2-i */
        int seen = 0;
        for (const char *p = text + strlen(text); p > text && seen < 3 - i; p--) {
            if (p[-1] == ':') {
                last = p;
                seen++;
            }
        }
        char *end = NULL;
        long long value = seen == 3 - i ? strtoll(last, &end, 10) : -1;
        if (end && end > last && (*end == ':' || *end == 0)) values[i] = value;
    }
    from->uid = values[0];
    from->gid = values[1];
    from->pid = values[2];
}

/* One message: id, one frame. What has more is read to its end and thrown away. */
static int receive_one(server *s, server_message on_message, server_bad on_bad, void *user) {
    zmq_msg_t id, body, rest;
    zmq_msg_init(&id);
    if (zmq_msg_recv(&id, s->socket, ZMQ_DONTWAIT) < 0) {
        zmq_msg_close(&id);
        return 0;
    }
    zmq_msg_init(&body);
    int parts = 1;
    if (zmq_msg_more(&id) && zmq_msg_recv(&body, s->socket, ZMQ_DONTWAIT) >= 0) parts = 2;
    int more = parts == 2 && zmq_msg_more(&body);
    while (more) {
        zmq_msg_init(&rest);
        more = zmq_msg_recv(&rest, s->socket, ZMQ_DONTWAIT) >= 0 && zmq_msg_more(&rest);
        zmq_msg_close(&rest);
        parts = 3;
    }
    peer from = {.id_len = (uint32_t)zmq_msg_size(&id)};
    if (parts != 2) {
        on_bad(user, parts < 2 ? "no frame" : "more than one frame");
    } else if (from.id_len > PEER_MAX_ID) {
        on_bad(user, "routing id too long");
    } else {
        memcpy(from.id, zmq_msg_data(&id), from.id_len);
        read_credentials(&body, &from);
        on_message(user, &from, zmq_msg_data(&body), zmq_msg_size(&body));
    }
    zmq_msg_close(&body);
    zmq_msg_close(&id);
    return 1;
}

int server_drain(server *s, int most, server_message on_message, server_bad on_bad, void *user) {
    int n = 0;
    while (n < most && receive_one(s, on_message, on_bad, user)) n++;
    return n;
}

int server_send(server *s, const peer *to, const uint8_t *data, size_t size) {
    if (zmq_send(s->socket, to->id, to->id_len, ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0) return -1;
    return zmq_send(s->socket, data, size, ZMQ_DONTWAIT) < 0 ? -1 : 0;
}
