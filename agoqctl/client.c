/* See client.h. Answers are matched by sequence number, so a late answer to an earlier question is dropped.
 */
#include "agoqctl/client.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>

#include "agoqctl/ctl.h"
#include "common/clock.h"
#include "common/mem.h"

struct ctl_client {
    void *context, *socket;
    char *path;
    wire_header header;
};

static int explain(const char *path, int cause, char *error, size_t error_size) {
    switch (cause) {
    case ENOENT:
        snprintf(error, error_size,
                 "no agoqd at %s: there is no such socket. Start it (systemctl start agoqd, or agoqd "
                 "--config FILE), or "
                 "name its socket with --socket PATH or AGOQ_SOCKET",
                 path);
        return CTL_UNREACHABLE;
    case ECONNREFUSED:
        snprintf(error, error_size,
                 "no agoqd at %s: the socket is there but nobody listens; the daemon ended without cleaning "
                 "up. Start it "
                 "again (systemctl restart agoqd) and see its log (journalctl -u agoqd)",
                 path);
        return CTL_UNREACHABLE;
    case EACCES:
    case EPERM:
        snprintf(error, error_size,
                 "not permitted to use %s: write access to the socket and access to its folder are needed. "
                 "See its owner "
                 "and mode (ls -l %s); join its group, or set socket_group in agoqd.yaml",
                 path, path);
        return CTL_PERMISSION;
    default:
        snprintf(error, error_size, "cannot connect to %s: %s. Name the daemon's socket with --socket PATH",
                 path, strerror(cause));
        return CTL_UNREACHABLE;
    }
}

static int probe(const char *path, char *error, size_t error_size) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof address.sun_path) {
        snprintf(error, error_size,
                 "the socket path %s is longer than the %zu bytes that Unix allows. Use a shorter one", path,
                 sizeof address.sun_path - 1);
        return CTL_UNREACHABLE;
    }
    memcpy(address.sun_path, path, strlen(path) + 1);
    struct stat st;
    if (!stat(path, &st) && !S_ISSOCK(st.st_mode)) return explain(path, ENOTSOCK, error, error_size);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return explain(path, errno, error, error_size);
    int cause = connect(fd, (struct sockaddr *)&address, sizeof address) ? errno : 0;
    close(fd);
    /* EAGAIN: the backlog is full, so somebody does listen. */
    return cause && cause != EAGAIN ? explain(path, cause, error, error_size) : CTL_OK;
}

static int set_options(void *socket) {
    /* IMMEDIATE: nothing is queued for a daemon that is not there. */
    static const struct {
        int option, value;
    } options[] = {{ZMQ_LINGER, 0},
                   {ZMQ_IMMEDIATE, 1},
                   {ZMQ_SNDHWM, 16},
                   {ZMQ_RCVHWM, 64},
                   {ZMQ_HANDSHAKE_IVL, 2000},
                   {ZMQ_RECONNECT_IVL, 100},
                   {ZMQ_RECONNECT_IVL_MAX, 1000}};
    int64_t most = WIRE_MAX_CTL_BYTES;
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (zmq_setsockopt(socket, options[i].option, &options[i].value, sizeof options[i].value)) return -1;
    }
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
}

int client_open(const char *path, ctl_client **client, char *error, size_t error_size) {
    int code = probe(path, error, error_size);
    if (code != CTL_OK) return code;
    char endpoint[160];
    ctl_client *c = mem_zalloc(1, sizeof *c);
    if (!c || !(c->path = mem_strdup(path))) {
        client_close(&c);
        snprintf(error, error_size, "out of memory");
        return CTL_FAILED;
    }
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    snprintf(c->header.job, sizeof c->header.job, "agoqctl");
    c->header.rank = -1;
    c->context = zmq_ctx_new();
    c->socket = c->context ? zmq_socket(c->context, ZMQ_DEALER) : NULL;
    if (getrandom(c->header.sender, sizeof c->header.sender, 0) != sizeof c->header.sender || !c->socket ||
        set_options(c->socket) || zmq_connect(c->socket, endpoint)) {
        snprintf(error, error_size, "cannot connect to %s: %s", path, zmq_strerror(zmq_errno()));
        client_close(&c);
        return CTL_FAILED;
    }
    *client = c;
    return CTL_OK;
}

void client_close(ctl_client **client) {
    ctl_client *c = client ? *client : NULL;
    if (!c) return;
    if (c->socket) zmq_close(c->socket);
    if (c->context) zmq_ctx_term(c->context);
    mem_free(c->path);
    mem_free(c);
    *client = NULL;
}

static int no_answer(const ctl_client *c, uint64_t timeout_ms, char *error, size_t error_size) {
    snprintf(error, error_size,
             "agoqd at %s did not answer within %llu ms. Is it stopped or overloaded? See its log "
             "(journalctl -u agoqd), "
             "or wait longer with --timeout",
             c->path, (unsigned long long)timeout_ms);
    return CTL_UNREACHABLE;
}

/* Waits until the socket may be read or written. 0: ready; -1: the time is over. */
static int wait_socket(void *socket, short events, int64_t deadline_ms) {
    for (;;) {
        int64_t left = deadline_ms - clock_ms();
        zmq_pollitem_t item = {.socket = socket, .events = events};
        int n = zmq_poll(&item, 1, left > 0 ? (long)left : 0);
        if (n > 0) return 0;
        if ((n == 0 && left <= 0) || (n < 0 && zmq_errno() != EINTR)) return -1;
    }
}

static int send_request(ctl_client *c, Agoq__CtlRequest *request, int64_t deadline_ms, uint64_t timeout_ms,
                        char *error, size_t error_size) {
    uint8_t *data = NULL;
    size_t size = 0;
    c->header.seq++;
    agoq_status status =
        wire_encode(&c->header, AGOQ__ENVELOPE__BODY_CTL_REQUEST, request, WIRE_MAX_CTL_BYTES, &data, &size);
    if (status == AGOQ_E_NOMEM) {
        snprintf(error, error_size, "out of memory");
        return CTL_FAILED;
    }
    if (status != AGOQ_OK) {
        snprintf(error, error_size,
                 "the request is not valid: a text in it is empty, too long or not UTF-8, or a number is too "
                 "large");
        return CTL_USAGE;
    }
    int code = CTL_OK;
    if (wait_socket(c->socket, ZMQ_POLLOUT, deadline_ms))
        code = no_answer(c, timeout_ms, error, error_size);
    else if (zmq_send(c->socket, data, size, ZMQ_DONTWAIT) < 0)
        code = no_answer(c, timeout_ms, error, error_size);
    mem_free(data);
    return code;
}

/* Takes one message of exactly one frame; others are drained and give NULL. */
static Agoq__Envelope *receive(ctl_client *c, const char **why, agoq_status *status) {
    Agoq__Envelope *envelope = NULL;
    int frames = 0, more = 1;
    zmq_msg_t frame;
    *status = AGOQ_E_FORMAT;
    *why = "more than one frame";
    while (more) {
        zmq_msg_init(&frame);
        if (zmq_msg_recv(&frame, c->socket, ZMQ_DONTWAIT) < 0) {
            zmq_msg_close(&frame);
            break;
        }
        more = zmq_msg_more(&frame);
        if (++frames == 1 && !more)
            *status =
                wire_decode(zmq_msg_data(&frame), zmq_msg_size(&frame), WIRE_MAX_CTL_BYTES, &envelope, why);
        zmq_msg_close(&frame);
    }
    return *status == AGOQ_OK ? envelope : NULL;
}

/* Exit code of an answer; error is set unless it is CTL_OK. */
static int judge(const Agoq__Envelope *envelope, char *error, size_t error_size) {
    if (envelope->body_case == AGOQ__ENVELOPE__BODY_REFUSE) {
        snprintf(error, error_size, "agoqd refused: %s", envelope->refuse->text);
        return CTL_FAILED;
    }
    if (envelope->body_case != AGOQ__ENVELOPE__BODY_CTL_REPLY) {
        snprintf(error, error_size,
                 "agoqd answered with another kind of message. Do the versions match? (agoqctl version)");
        return CTL_FAILED;
    }
    const Agoq__CtlReply *reply = envelope->ctl_reply;
    if (reply->code == CTL_OK) return CTL_OK;
    snprintf(error, error_size, "%s", reply->text[0] ? reply->text : "agoqd refused and did not say why");
    switch (reply->code) {
    case CTL_PERMISSION:
    case CTL_INFEASIBLE:
    case CTL_VERSION_CONFLICT:
    case CTL_PARTIAL:
        return (int)reply->code;
    default:
        return CTL_FAILED;
    }
}

int client_ask_plain(ctl_client *c, Agoq__CtlRequest__VerbCase verb, uint64_t timeout_ms,
                     Agoq__Envelope **reply, char *error, size_t error_size) {
    Agoq__CtlEmpty empty = AGOQ__CTL_EMPTY__INIT;
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    request.verb_case = verb;
    request.status = &empty; /* one union for all */
    return client_ask(c, &request, timeout_ms, reply, error, error_size);
}

int client_ask(ctl_client *c, Agoq__CtlRequest *request, uint64_t timeout_ms, Agoq__Envelope **reply,
               char *error, size_t error_size) {
    int64_t deadline = clock_ms() + (int64_t)timeout_ms;
    *reply = NULL;
    int code = send_request(c, request, deadline, timeout_ms, error, error_size);
    if (code != CTL_OK) return code;
    for (;;) {
        const char *why = "";
        agoq_status status;
        if (wait_socket(c->socket, ZMQ_POLLIN, deadline)) return no_answer(c, timeout_ms, error, error_size);
        Agoq__Envelope *envelope = receive(c, &why, &status);
        if (!envelope) {
            snprintf(error, error_size,
                     "agoqd at %s sent an answer that cannot be read (%s). Do the versions match?", c->path,
                     why);
            return CTL_FAILED;
        }
        if (envelope->reply_to == c->header.seq) {
            *reply = envelope;
            return judge(envelope, error, error_size);
        }
        wire_free(envelope);
    }
}
