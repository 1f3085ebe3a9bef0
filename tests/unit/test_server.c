/* The daemon's edge to the system: socket, lock, credentials, readiness, processes, options. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>
#include <cmocka.h>

#include "agoqd/notify.h"
#include "agoqd/options.h"
#include "agoqd/proc.h"
#include "agoqd/accept.h"
#include "agoqd/server.h"

static char folder[] = "/tmp/agoq-server-XXXXXX";
static conf config;
static server *open_server;

static int make_folder(void **state) {
    (void)state;
    conf_default(&config);
    if (!mkdtemp(folder)) return -1;
    snprintf(config.socket, sizeof config.socket, "%s/s", folder);
    char error[256];
    return server_open(&config, &open_server, error, sizeof error) != AGOQ_OK;
}

static int remove_folder(void **state) {
    (void)state;
    char path[600];
    server_close(&open_server);
    server_close(&open_server); /* idempotent */
    int left = access(config.socket, F_OK) == 0;
    snprintf(path, sizeof path, "%s.lock", config.socket);
    unlink(path);
    conf_fini(&config);
    return rmdir(folder) || left;
}

static void the_mode_is_the_configured_one(void **state) {
    (void)state;
    struct stat st;
    assert_int_equal(stat(config.socket, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0660);
}

static void a_second_one_is_refused(void **state) {
    (void)state;
    server *second = NULL;
    char error[256];
    assert_int_equal(server_open(&config, &second, error, sizeof error), AGOQ_E_STATE);
    assert_null(second);
    assert_non_null(strstr(error, "another agoqd serves"));
    assert_int_equal(access(config.socket, F_OK), 0); /* and does not take the file away */
}

static void impossible_sockets_are_refused(void **state) {
    (void)state;
    server *s = NULL;
    char error[256];
    conf c = config;
    memset(c.socket, 'x', 200);
    c.socket[0] = '/';
    c.socket[200] = 0;
    assert_int_equal(server_open(&c, &s, error, sizeof error), AGOQ_E_LIMIT);
    snprintf(c.socket, sizeof c.socket, "/nonexistent/folder/s");
    assert_int_equal(server_open(&c, &s, error, sizeof error), AGOQ_E_IO);
    snprintf(c.socket, sizeof c.socket, "%s/file", folder);
    FILE *f = fopen(c.socket, "w");
    fclose(f);
    assert_int_equal(server_open(&c, &s, error, sizeof error),
                     AGOQ_E_IO); /* somebody's file is not ours to replace */
    assert_non_null(strstr(error, "not a socket"));
    unlink(c.socket);
    snprintf(error, sizeof error, "%s/file.lock", folder);
    unlink(error);
    snprintf(c.socket_group, sizeof c.socket_group, "no-such-group-here");
    assert_int_equal(server_open(&c, &s, error, sizeof error), AGOQ_E_INVAL);
    assert_null(s);
}

typedef struct seen {
    int good, bad;
    peer from;
    uint8_t data[64];
    size_t size;
    char why[64];
} seen;

static void on_message(void *user, const peer *from, const uint8_t *data, size_t size) {
    seen *s = user;
    s->good++;
    s->from = *from;
    s->size = size;
    memcpy(s->data, data, size < sizeof s->data ? size : sizeof s->data);
}
static void on_bad(void *user, const char *why) {
    seen *s = user;
    s->bad++;
    snprintf(s->why, sizeof s->why, "%s", why);
}

static void collect(seen *s, int n) {
    for (int i = 0; i < 100 && s->good + s->bad < n; i++) {
        server_wait(open_server, -1, 50);
        server_drain(open_server, 100, on_message, on_bad, s);
    }
}

static void one_frame_and_who_sent_it(void **state) {
    (void)state;
    void *context = zmq_ctx_new(), *dealer = zmq_socket(context, ZMQ_DEALER);
    char endpoint[600];
    int linger = 0;
    snprintf(endpoint, sizeof endpoint, "ipc://%s", config.socket);
    zmq_setsockopt(dealer, ZMQ_LINGER, &linger, sizeof linger);
    assert_int_equal(zmq_connect(dealer, endpoint), 0);
    seen s = {0};
    zmq_send(dealer, "hello", 5, 0);
    collect(&s, 1);
    assert_int_equal(s.good, 1);
    assert_int_equal(s.size, 5);
    assert_memory_equal(s.data, "hello", 5);
    assert_int_equal(s.from.uid, getuid());
    assert_int_equal(s.from.gid, getgid());
    assert_int_equal(s.from.pid, getpid());
    assert_int_equal(server_send(open_server, &s.from, (const uint8_t *)"back", 4), 0);
    char answer[8];
    assert_int_equal(zmq_recv(dealer, answer, sizeof answer, 0), 4);
    for (int i = 0; i < 1000; i++) zmq_send(dealer, "x", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "x", 1, 0); /* 1001 frames */
    zmq_send(dealer, "after", 5, 0);
    s = (seen){0};
    collect(&s, 2);
    assert_int_equal(s.bad, 1);
    assert_string_equal(s.why, "more than one frame");
    assert_int_equal(s.good, 1);
    assert_memory_equal(s.data, "after", 5);
    zmq_close(dealer);
    zmq_ctx_term(context);
    peer stranger = {.id_len = 5, .id = {1}};
    assert_int_equal(server_send(open_server, &stranger, (const uint8_t *)"x", 1), -1);
}

static void systemd_is_told(void **state) {
    (void)state;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/notify", folder);
    int fd = socket(AF_UNIX, SOCK_DGRAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    setenv("NOTIFY_SOCKET", address.sun_path, 1);
    setenv("WATCHDOG_USEC", "3000000", 1);
    notify n;
    notify_init(&n);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_int_equal(n.watchdog_ms, 1500);
    char text[64] = "";
    notify_send(&n, "READY=1");
    assert_int_equal(recv(fd, text, sizeof text, MSG_DONTWAIT), 7);
    assert_memory_equal(text, "READY=1", 7);
    notify_alive(&n, 1000);
    notify_alive(&n, 2000); /* too early for the next */
    notify_alive(&n, 2500);
    assert_int_equal(recv(fd, text, sizeof text, MSG_DONTWAIT), 10);
    assert_int_equal(recv(fd, text, sizeof text, MSG_DONTWAIT), 10);
    assert_int_equal(recv(fd, text, sizeof text, MSG_DONTWAIT), -1);
    close(fd);
    unlink(address.sun_path);
    setenv("WATCHDOG_USEC", "-1", 1);
    notify_init(&n);
    assert_int_equal(n.watchdog_ms, 0);
    notify_send(&n, "READY=1"); /* nobody listens: nothing happens */
}

static void a_process_is_its_pid_and_start(void **state) {
    (void)state;
    uint64_t me = (uint64_t)getpid(), start = proc_start_time(me, NULL);
    assert_true(start > 0);
    assert_int_equal(proc_alive(me, start), 1);
    assert_int_equal(proc_alive(me, 0), 1);
    assert_int_equal(proc_alive(me, start + 1), 0); /* the pid was used again */
    pid_t child = fork();
    if (child == 0) _exit(0);
    siginfo_t info;
    assert_int_equal(waitid(P_PID, (id_t)child, &info, WEXITED | WNOWAIT), 0);
    assert_int_equal(proc_alive((uint64_t)child, 0), 0); /* a zombie holds no memory */
    waitpid(child, NULL, 0);
    assert_int_equal(proc_alive((uint64_t)child, 0), 0);
    assert_int_equal(proc_alive(0, 0), 1); /* not verifiable: assumed to live */
    assert_int_equal(proc_alive(UINT64_MAX, 0), 1);
}

static int read_options(const char *a, const char *b, const char *c, options *o, conf *into) {
    char *argv[] = {(char *)"agoqd", (char *)a, (char *)b, (char *)c, NULL};
    int argc = 1 + (a != NULL) + (b != NULL) + (c != NULL);
    return options_read(argc, argv, o, into);
}

static void options_win_over_the_file(void **state) {
    (void)state;
    char file[64], flag[80];
    snprintf(file, sizeof file, "%s/c.yaml", folder);
    FILE *f = fopen(file, "w");
    fputs("socket: /tmp/from-file\nstate_dir: /tmp/state-from-file\n", f);
    fclose(f);
    options o;
    conf c;
    conf_default(&c);
    snprintf(flag, sizeof flag, "--config=%s", file);
    assert_int_equal(read_options("--socket=/tmp/from-option", flag, "--check-config", &o, &c), -1);
    assert_string_equal(c.socket, "/tmp/from-option");
    assert_string_equal(c.state_dir, "/tmp/state-from-file");
    assert_true(o.check && !o.print && !o.one_job);
    conf_fini(&c);
    conf_default(&c);
    unsetenv("AGOQ_JOB");
    assert_int_equal(read_options("--job", NULL, NULL, &o, &c), -1);
    assert_true(o.one_job && !c.job[0]);
    assert_int_equal(read_options("--job=mine", NULL, NULL, &o, &c), -1);
    assert_string_equal(c.job, "mine");
    assert_int_equal(read_options("stray", NULL, NULL, &o, &c), 2);
    assert_int_equal(read_options("--socket=", NULL, NULL, &o, &c), 2);
    assert_int_equal(read_options("--config=/nonexistent", NULL, NULL, &o, &c), OPTIONS_EXIT_CONFIG);
    f = fopen(file, "w");
    fputs("sockett: x\n", f);
    fclose(f);
    assert_int_equal(read_options(flag, NULL, NULL, &o, &c), OPTIONS_EXIT_CONFIG);
    conf_fini(&c);
    unlink(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_mode_is_the_configured_one),
        cmocka_unit_test(a_second_one_is_refused),
        cmocka_unit_test(impossible_sockets_are_refused),
        cmocka_unit_test(one_frame_and_who_sent_it),
        cmocka_unit_test(systemd_is_told),
        cmocka_unit_test(a_process_is_its_pid_and_start),
        cmocka_unit_test(options_win_over_the_file),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
