/* See link.h. This file is the thread and its sockets; link_send.c and link_receive.c are what it says and
 * hears. Lessons of others in here: options on every socket, because the defaults queue without limit and
 * block at exit; exactly one frame per message, because MAXMSGSIZE is per frame; the monitor is stopped
 * before its PAIR is closed, because libzmq's I/O thread hangs otherwise. */
#include "libagoq/link.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/proc.h"
#include "libagoq/error.h"
#include "libagoq/link_messages.h"

#define STACK_BYTES (1u << 20) /* protobuf-c recurses over message types; 256 KiB is its own advice */
#define STOP_MS     200
#define LINGER_MS   100
#define RETRY_MS    1000 /* between attempts to make a socket at all */
/* After a protocol error (a frame that is too long, or no ZeroMQ at the other end) libzmq never reconnects,
 * and says so only by not saying that it tries again: within LOST_MS of a disconnection, or for longer than
 * its own longest pause. */
#define LOST_MS  1000
#define QUIET_MS 15000

#define EVENTS                                                                                               \
    (ZMQ_EVENT_CONNECTED | ZMQ_EVENT_CONNECT_DELAYED | ZMQ_EVENT_CONNECT_RETRIED |                           \
     ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED)

struct link_thread {
    link_identity me;
    mailbox *mail;
    pthread_t thread;
    int wake_fd;
    void *context, *socket, *monitor;
    int is_up, is_lost; /* connected; disconnected and not yet trying again */
    int64_t event_ms;   /* of the monitor's last event */
    link_state state;
};

static int set_int(void *socket, int option, int value) {
    return zmq_setsockopt(socket, option, &value, sizeof value);
}

static int set_options(void *socket) {
    static const struct {
        int option, value;
    } options[] = {{ZMQ_LINGER, LINGER_MS},   {ZMQ_IMMEDIATE, 1},        {ZMQ_SNDHWM, 64},
                   {ZMQ_RCVHWM, 64},          {ZMQ_HEARTBEAT_IVL, 1000}, {ZMQ_HEARTBEAT_TIMEOUT, 3000},
                   {ZMQ_HEARTBEAT_TTL, 3000}, {ZMQ_RECONNECT_IVL, 100},  {ZMQ_RECONNECT_IVL_MAX, 5000},
                   {ZMQ_HANDSHAKE_IVL, 5000}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (set_int(socket, options[i].option, options[i].value) != 0) return -1;
    }
    const int64_t most = WIRE_MAX_RANK_BYTES;
    return zmq_setsockopt(socket, ZMQ_MAXMSGSIZE, &most, sizeof most);
}

static void close_socket(link_thread *l) {
    if (l->socket) zmq_socket_monitor(l->socket, NULL, 0);
    if (l->monitor) zmq_close(l->monitor);
    if (l->socket) zmq_close(l->socket);
    if (l->context) {
        while (zmq_ctx_term(l->context) != 0 && errno == EINTR) {
        }
    }
    l->context = l->socket = l->monitor = NULL;
    l->is_up = l->is_lost = 0;
}

/* libzmq aborts the process when it runs out of descriptors while it makes a context: look first. Another
 * thread of the trainer may still take them in between, so there is some room to spare. */
static int enough_descriptors(void) {
    enum { NEEDED = 16 };
    int fd[NEEDED], n = 0;
    while (n < NEEDED && (fd[n] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0) n++;
    for (int i = 0; i < n; i++) close(fd[i]);
    return n == NEEDED;
}

static int open_socket(link_thread *l) {
    if (!enough_descriptors()) {
        log_write(LOG_LEVEL_WARN, "link", "no socket path=%s error=\"too few file descriptors\"",
                  l->me.socket);
        return -1;
    }
    static const char monitor_at[] = "inproc://agoq-link-events"; /* inproc names belong to the context */
    char endpoint[sizeof l->me.socket + 8];
    snprintf(endpoint, sizeof endpoint, "ipc://%s", l->me.socket);
    l->context = zmq_ctx_new();
    if (l->context) l->socket = zmq_socket(l->context, ZMQ_DEALER);
    if (l->context) l->monitor = zmq_socket(l->context, ZMQ_PAIR);
    if (l->socket && l->monitor && set_options(l->socket) == 0 && set_int(l->monitor, ZMQ_LINGER, 0) == 0 &&
        zmq_socket_monitor(l->socket, monitor_at, EVENTS) == 0 && zmq_connect(l->monitor, monitor_at) == 0 &&
        zmq_connect(l->socket, endpoint) == 0) {
        l->event_ms = clock_ms();
        return 0;
    }
    log_write(LOG_LEVEL_WARN, "link", "no socket path=%s error=\"%s\"", l->me.socket,
              zmq_strerror(zmq_errno()));
    close_socket(l);
    return -1;
}

static int send_bytes(void *user, const uint8_t *data, size_t size) {
    link_thread *l = user;
    return zmq_send(l->socket, data, size, ZMQ_DONTWAIT) >= 0 ? 0 : -1;
}

/* One message: the payload of its only frame, or nothing if it has more. -1: none is waiting. */
static int read_message(void *socket, zmq_msg_t *first, int *n_frames) {
    zmq_msg_t rest;
    if (zmq_msg_recv(first, socket, ZMQ_DONTWAIT) < 0) return -1;
    *n_frames = 1;
    for (int more = zmq_msg_more(first); more; (*n_frames)++) {
        zmq_msg_init(&rest);
        if (zmq_msg_recv(&rest, socket, ZMQ_DONTWAIT) < 0) break;
        more = zmq_msg_more(&rest);
        zmq_msg_close(&rest);
    }
    return 0;
}

static void read_socket(link_thread *l) {
    zmq_msg_t message;
    int n_frames;
    for (int i = 0; i < 64; i++) { /* a flood must not keep the thread from its timers */
        zmq_msg_init(&message);
        const int got = read_message(l->socket, &message, &n_frames);
        if (got == 0 && n_frames == 1)
            link_receive(&l->state, zmq_msg_data(&message), zmq_msg_size(&message), clock_ms());
        zmq_msg_close(&message);
        if (got != 0) break;
    }
}

static void read_monitor(link_thread *l) {
    zmq_msg_t message;
    int n_frames;
    for (;;) {
        zmq_msg_init(&message);
        const int got = read_message(l->monitor, &message, &n_frames);
        uint16_t event = 0;
        if (got == 0 && zmq_msg_size(&message) >= sizeof event)
            memcpy(&event, zmq_msg_data(&message), sizeof event);
        zmq_msg_close(&message);
        if (got != 0) break;
        l->event_ms = clock_ms();
        if (event == ZMQ_EVENT_CONNECT_RETRIED || event == ZMQ_EVENT_CONNECTED) l->is_lost = 0;
        if (event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
            l->is_up = 1;
            link_connected(&l->state);
        }
        if (event == ZMQ_EVENT_DISCONNECTED) {
            l->is_up = 0;
            l->is_lost = 1;
            link_disconnected(&l->state);
        }
    }
}

static int must_stop(link_thread *l) {
    pthread_mutex_lock(&l->mail->mutex);
    const int stop = l->mail->stop;
    pthread_mutex_unlock(&l->mail->mutex);
    return stop;
}

static void serve_once(link_thread *l) {
    uint64_t wakes;
    if (!l->socket && open_socket(l) != 0) {
        struct pollfd wait = {.fd = l->wake_fd, .events = POLLIN};
        if (poll(&wait, 1, RETRY_MS) > 0 && read(l->wake_fd, &wakes, sizeof wakes) < 0) return;
        return;
    }
    const int64_t now = clock_ms(), next = link_tick(&l->state, now);
    if (!l->is_up && now - l->event_ms >= (l->is_lost ? LOST_MS : QUIET_MS)) {
        close_socket(l);
        return;
    }
    zmq_pollitem_t items[] = {{.socket = l->socket, .events = ZMQ_POLLIN},
                              {.socket = l->monitor, .events = ZMQ_POLLIN},
                              {.fd = l->wake_fd, .events = ZMQ_POLLIN}};
    if (zmq_poll(items, 3, next > now ? (long)(next - now) : 0) <= 0) return;
    if (items[2].revents && read(l->wake_fd, &wakes, sizeof wakes) < 0) return;
    if (items[1].revents) read_monitor(l);
    if (items[0].revents) read_socket(l);
}

static void free_link(link_thread *l) {
    close(l->wake_fd);
    mem_free(l);
}

static void *run(void *argument) {
    link_thread *l = argument;
    mailbox *mail = l->mail;
    while (!must_stop(l)) serve_once(l);
    if (l->socket) link_bye(&l->state);
    close_socket(l);
    pthread_mutex_lock(&mail->mutex);
    mail->ended = 1;
    pthread_cond_signal(&mail->ended_cond);
    const int left_behind = mail->left_behind;
    pthread_mutex_unlock(&mail->mutex);
    if (left_behind) free_link(l);
    mailbox_release(mail);
    return NULL;
}

/* Signals are the program's business: the helper and libzmq's threads, which it starts, take none. */
static int start_thread(link_thread *l) {
    sigset_t all, before;
    pthread_attr_t attr;
    sigfillset(&all);
    if (pthread_attr_init(&attr) != 0) return -1;
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = pthread_create(&l->thread, &attr, run, l);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return rc;
}

agoq_status link_start(const link_identity *identity, mailbox *mail, link_thread **out) {
    link_thread *l = mem_zalloc(1, sizeof *l);
    if (!l) return error_fail(AGOQ_E_NOMEM, "helper thread");
    l->me = *identity;
    l->mail = mail;
    l->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (l->wake_fd < 0) {
        mem_free(l);
        return error_fail(AGOQ_E_IO, "eventfd: %s", strerror(errno));
    }
    link_state_init(&l->state, &l->me, mail, proc_start_time((uint64_t)getpid(), NULL));
    l->state.send = send_bytes;
    l->state.user = l;
    mail->owners = 2;
    if (start_thread(l) != 0) {
        mail->owners = 1;
        free_link(l);
        return error_fail(AGOQ_E_IO, "the helper thread cannot be started");
    }
    *out = l;
    return AGOQ_OK;
}

void link_wake(const link_thread *l) {
    const uint64_t one = 1;
    /* Fails only when 2^64 - 2 wakes are pending, and then it is awake. */
    if (l && write(l->wake_fd, &one, sizeof one) < 0) return;
}

void link_stop(link_thread **link) {
    link_thread *l = *link;
    if (!l) return;
    *link = NULL;
    mailbox *mail = l->mail;
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += STOP_MS * 1000000L;
    until.tv_sec += until.tv_nsec / 1000000000L;
    until.tv_nsec %= 1000000000L;
    pthread_mutex_lock(&mail->mutex);
    mail->stop = 1;
    link_wake(l);
    int rc = 0;
    while (!mail->ended && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&mail->ended_cond, &mail->mutex, &until);
    const int ended = mail->ended;
    mail->left_behind = !ended;
    const pthread_t thread = l->thread; /* l may be gone once the lock is */
    pthread_mutex_unlock(&mail->mutex);
    if (!ended) {
        pthread_detach(thread);
        return;
    }
    pthread_join(thread, NULL);
    free_link(l);
}

void link_free_in_child(link_thread **link) {
    if (*link) free_link(*link);
    *link = NULL;
}
