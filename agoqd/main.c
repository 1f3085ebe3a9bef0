/* agoqd, the node daemon: options, configuration, start-up chain, loop, and the same chain backwards. Read
 * this first; what a message does starts in core_receive (core.c). One thread owns everything. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "agoqd/conf.h"
#include "agoqd/core.h"
#include "agoqd/notify.h"
#include "agoqd/options.h"
#include "agoqd/proc.h"
#include "agoqd/server.h"
#include "agoqd/state.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/mem.h"

#define MOST_AT_ONCE 256 /* messages between two looks at timers and signals */

typedef struct daemon_io {
    server *server;
    core *core;
    const char *state_dir;
    int one_job;
} daemon_io;

/* The state folder: made if missing, and ours alone while we run. -1 or the lock's descriptor. */
static int open_state(const char *folder) {
    char path[CONF_MAX_PATH + 8];
    if (mkdir(folder, 0700) && errno != EEXIST) {
        log_write(LOG_LEVEL_ERROR, "state", "cannot make %s: %s (choose the folder with --state-dir DIR)",
                  folder, strerror(errno));
        return -1;
    }
    snprintf(path, sizeof path, "%s/lock", folder);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB)) {
        log_write(LOG_LEVEL_ERROR, "state", "%s: %s", path,
                  fd >= 0 && errno == EWOULDBLOCK ? "another agoqd uses this state folder" : strerror(errno));
        if (fd >= 0) close(fd);
        return -1;
    }
    return fd;
}

static int io_send(void *user, const peer *to, const uint8_t *data, size_t size) {
    return server_send(((daemon_io *)user)->server, to, data, size);
}
static agoq_status io_store(void *user, const uint8_t *data, size_t size) {
    const char *folder = ((daemon_io *)user)->state_dir;
    agoq_status status = state_store(folder, data, size);
    if (status != AGOQ_OK)
        log_write(LOG_LEVEL_ERROR, "state", "cannot store under %s: %s", folder, strerror(errno));
    return status;
}
static int io_alive(void *user, uint64_t pid, uint64_t start_time) {
    (void)user;
    return proc_alive(pid, start_time);
}
static uint64_t io_start_time(void *user, uint64_t pid) {
    (void)user;
    return proc_start_time(pid, NULL);
}
static int64_t io_wall(void *user) {
    (void)user;
    return clock_wall_ms();
}
static void on_message(void *user, const peer *from, const uint8_t *data, size_t size) {
    core_receive(((daemon_io *)user)->core, from, data, size, clock_ms());
}
static void on_bad(void *user, const char *why) {
    core_rejected(((daemon_io *)user)->core, why, clock_ms());
}

/* SIGTERM and SIGINT end the loop; SIGHUP (from log rotation, say) must not. */
static int stop_requested(int signals) {
    struct signalfd_siginfo info;
    while (read(signals, &info, sizeof info) == (ssize_t)sizeof info) {
        if (info.ssi_signo != SIGHUP) return 1;
        log_write(LOG_LEVEL_INFO, "main",
                  "SIGHUP: the configuration is read at start only; nothing was changed");
    }
    return 0;
}

static void loop(daemon_io *io, notify *n, int signals) {
    for (;;) {
        int64_t now = clock_ms(), wait = core_deadline(io->core, now) - now;
        if (n->watchdog_ms && n->watchdog_ms < wait) wait = n->watchdog_ms;
        if (server_wait(io->server, signals, wait) && stop_requested(signals)) return;
        server_drain(io->server, MOST_AT_ONCE, on_message, on_bad, io);
        now = clock_ms();
        core_tick(io->core, now);
        notify_alive(n, now);
    }
}

static int start_core(const conf *c, daemon_io *io) {
    uint8_t *stored = NULL;
    size_t size = 0;
    const char *why = "the state file cannot be read";
    core_io links = {.user = io,
                     .send = io_send,
                     .store = io_store,
                     .alive = io_alive,
                     .start_time = io_start_time,
                     .wall_ms = io_wall,
                     .uid = getuid(),
                     .gid = server_gid(io->server),
                     .pid = (uint64_t)getpid(),
                     .one_job = io->one_job};
    agoq_status status = state_load(c->state_dir, &stored, &size);
    if (status == AGOQ_OK) status = core_new(c, &links, stored, size, clock_ms(), &io->core, &why);
    mem_free(stored);
    if (status != AGOQ_OK) log_write(LOG_LEVEL_ERROR, "state", "%s (%s/state)", why, c->state_dir);
    return status == AGOQ_OK ? 0 : -1;
}

static int serve(const conf *c, int one_job) {
    daemon_io io = {.state_dir = c->state_dir, .one_job = one_job};
    notify note;
    char error[1024];
    int code = EXIT_FAILURE, signals = -1, state = -1;
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL); /* before libzmq starts its threads */
    signal(SIGXFSZ, SIG_IGN);           /* a full quota is an error of one write, not our end */
    signal(SIGPIPE, SIG_IGN);
    notify_init(&note);
    if ((signals = signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC)) < 0) {
        log_write(LOG_LEVEL_ERROR, "main", "cannot watch for signals: signalfd: %s", strerror(errno));
        goto out;
    }
    if ((state = open_state(c->state_dir)) < 0) goto out;
    if (server_open(c, &io.server, error, sizeof error) != AGOQ_OK) {
        log_write(LOG_LEVEL_ERROR, "server", "%s", error);
        goto out;
    }
    if (start_core(c, &io)) goto out;
    log_write(LOG_LEVEL_INFO, "main", "ready socket=%s state=%s", c->socket, c->state_dir);
    notify_send(&note, "READY=1");
    loop(&io, &note, signals);
    notify_send(&note, "STOPPING=1");
    log_write(LOG_LEVEL_INFO, "main", "stopping; ranks keep their plans");
    code = EXIT_SUCCESS;
out:
    core_free(&io.core);
    server_close(&io.server);
    if (state >= 0) close(state);
    if (signals >= 0) close(signals);
    return code;
}

int main(int argc, char **argv) {
    options o;
    conf c;
    int journal = getenv("JOURNAL_STREAM") != NULL;
    log_set_sink(log_to_stderr, &journal);
    conf_default(&c);
    int code = options_read(argc, argv, &o, &c);
    if (code < 0 && o.print) conf_print(&c, stdout);
    if (code < 0 && o.check) printf("%s: ok\n", o.config ? o.config : "defaults");
    if (code < 0) {
        log_set_level(c.level);
        code = o.print || o.check ? EXIT_SUCCESS : serve(&c, o.one_job);
    }
    conf_fini(&c);
    log_set_sink(NULL, NULL);
    return code;
}
