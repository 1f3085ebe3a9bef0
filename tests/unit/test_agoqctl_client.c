/* agoqctl against a daemon played by a thread: every verb's exit code, text and JSON, and every way in which
 * a daemon can fail to answer. The real daemon is met in the system tests; here it can be made to misbehave.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>
#include <zmq.h>
#include <cmocka.h>

#include "agoqctl/args.h"
#include "agoqctl/client.h"
#include "common/mem.h"
#include "tests/unit/ctl_answers.h"

enum { NORMAL, SILENT, GARBAGE, TWO_FRAMES, STALE_FIRST, REFUSES, WRONG_MAJOR, PARTIAL };

static char folder[] = "/tmp/agoq-ctl-XXXXXX", path[64], out[65536], err[8192];
static atomic_int behaviour, stop_daemon;
static void *context, *router;

/* ---- the daemon ---- */

static void send_reply(zmq_msg_t *peer, const Agoq__Envelope *question, uint64_t reply_to, int second_frame) {
    wire_header h = {.job = "default", .rank = -1, .seq = 1, .reply_to = reply_to};
    Agoq__CtlReply reply = AGOQ__CTL_REPLY__INIT;
    Agoq__Refuse refuse = AGOQ__REFUSE__INIT;
    uint8_t *data = NULL;
    size_t size = 0;
    int refuses = behaviour == REFUSES;
    refuse.text = "not now";
    if (!refuses && reply_to == question->seq)
        answer(question->ctl_request, &reply); /* a stale one is empty */
    if (behaviour == PARTIAL && reply.n_ranks + reply.n_budgets > 0) {
        reply.code = CTL_PARTIAL;
        reply.text = "only the first 1000 are shown";
    }
    assert_int_equal(wire_encode(&h, refuses ? AGOQ__ENVELOPE__BODY_REFUSE : AGOQ__ENVELOPE__BODY_CTL_REPLY,
                                 refuses ? (void *)&refuse : (void *)&reply, WIRE_MAX_CTL_BYTES, &data,
                                 &size),
                     AGOQ_OK);
    if (behaviour == GARBAGE) memset(data, 0xee, size);
    if (behaviour == WRONG_MAJOR) {
        Agoq__Envelope *e = agoq__envelope__unpack(NULL, size, data);
        e->major = WIRE_MAJOR + 1;
        size = agoq__envelope__pack(e, data);
        agoq__envelope__free_unpacked(e, NULL);
    }
    zmq_send(router, zmq_msg_data(peer), zmq_msg_size(peer), ZMQ_SNDMORE);
    zmq_send(router, data, size, second_frame ? ZMQ_SNDMORE : 0);
    if (second_frame) zmq_send(router, "x", 1, 0);
    mem_free(data);
}

static void *daemon_thread(void *unused) {
    while (!stop_daemon) {
        zmq_pollitem_t item = {.socket = router, .events = ZMQ_POLLIN};
        if (zmq_poll(&item, 1, 20) <= 0) continue;
        zmq_msg_t peer, body;
        Agoq__Envelope *e = NULL;
        zmq_msg_init(&peer);
        zmq_msg_init(&body);
        zmq_msg_recv(&peer, router, 0);
        zmq_msg_recv(&body, router, 0);
        if (wire_decode(zmq_msg_data(&body), zmq_msg_size(&body), WIRE_MAX_CTL_BYTES, &e, NULL) == AGOQ_OK &&
            behaviour != SILENT) {
            if (behaviour == STALE_FIRST) send_reply(&peer, e, e->seq + 77, 0);
            send_reply(&peer, e, e->seq, behaviour == TWO_FRAMES);
        }
        wire_free(e);
        zmq_msg_close(&peer);
        zmq_msg_close(&body);
    }
    return unused;
}

static pthread_t thread;

static int start(void **state) {
    (void)state;
    char endpoint[80];
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/s", folder);
    snprintf(endpoint, sizeof endpoint, "ipc://%s", path);
    make_plan_bytes();
    context = zmq_ctx_new();
    router = zmq_socket(context, ZMQ_ROUTER);
    int linger = 0;
    zmq_setsockopt(router, ZMQ_LINGER, &linger, sizeof linger);
    if (zmq_bind(router, endpoint)) return -1;
    return pthread_create(&thread, NULL, daemon_thread, NULL);
}

static int finish(void **state) {
    (void)state;
    stop_daemon = 1;
    pthread_join(thread, NULL);
    zmq_close(router);
    zmq_ctx_term(context);
    unlink(path);
    return rmdir(folder);
}

/* ---- running verbs with their output caught ---- */

static void slurp(FILE *f, char *text, size_t size) {
    rewind(f);
    size_t n = fread(text, 1, size - 1, f);
    text[n] = '\0';
    fclose(f);
}

static int run_on(const char *socket, const char *line) {
    static char copy[512];
    char *argv[16], *save = NULL;
    int argc = 0;
    snprintf(copy, sizeof copy, "agoqctl|%s", line);
    for (char *word = strtok_r(copy, "|", &save); word && argc < 15; word = strtok_r(NULL, "|", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    FILE *o = tmpfile(), *e = tmpfile();
    fflush(stdout);
    fflush(stderr);
    int old_out = dup(1), old_err = dup(2);
    dup2(fileno(o), 1);
    dup2(fileno(e), 2);
    ctl_args args;
    char error[600];
    int code = args_parse(argc, argv, socket, &args, error, sizeof error);
    if (code == CTL_OK) code = args.verb->run(&args);
    fflush(stdout);
    fflush(stderr);
    dup2(old_out, 1);
    dup2(old_err, 2);
    close(old_out);
    close(old_err);
    slurp(o, out, sizeof out);
    slurp(e, err, sizeof err);
    return code;
}

static int run(const char *line) {
    return run_on(path, line);
}

static void expect(const char *line, int code, const char *in_out, const char *in_err) {
    int got = run(line);
    if (got != code || (in_out && !strstr(out, in_out)) || (in_err && !strstr(err, in_err))) {
        print_error("%s: code %d, not %d\nstdout: %s\nstderr: %s\n", line, got, code, out, err);
        fail();
    }
}

/* ---- tests ---- */

static void every_verb_answers(void **state) {
    (void)state;
    behaviour = NORMAL;
    expect("status", CTL_OK, "plan     1.0.2: first plan", NULL);
    expect("status|--json", CTL_OK, "\"why\": \"first plan\"", NULL);
    expect("ranks", CTL_OK, "1.00 MiB", NULL);
    expect("ranks|--json", CTL_OK, "\"peak_bytes\": 1048576,", NULL);
    expect("ranks|--json", CTL_OK, "\"reserved_bytes\": 2097152,\n      \"oom_retries\": 3\n", NULL);
    expect("top", CTL_OK, "RANK", NULL);
    expect("top|--once|--json", CTL_OK, "\"ranks\": [", NULL);
    expect("plan|show", CTL_OK, "mlp_gate_up    5 (layer 0)", NULL);
    expect("plan|show|1.0.2|--json", CTL_OK, "\"id\": \"1.0.2\"", NULL);
    expect("plan|show|1.0.1", CTL_OK, "the floor plan", NULL);
    expect("plan|show|9.9.9", CTL_FAILED, NULL, "no plan 9.9.9 is known");
    expect("plan|show|6.6.6", CTL_FAILED, NULL, "its bytes do not match its hash");
    expect("plan|show|6.6", CTL_USAGE, NULL, "is not a plan id");
    expect("plan|diff|1.0.1|current", CTL_OK, "- -> 5 (layer 0)", NULL);
    expect("plan|diff|1.0.1|current|--json", CTL_OK, "\"from\": null,", NULL);
    expect("plan|history", CTL_OK, "2023-11-14T22:13:20.123Z", NULL);
    expect("plan|history|--json", CTL_OK, "\"steps_to_effect\": 2", NULL);
    expect("plan|explain|--stage|0", CTL_OK, "recompute 1 layer: 6.00 MiB, enough alone", NULL);
    expect("plan|explain|--json", CTL_OK, "\"saves_bytes\": 6291456", NULL);
    expect("version", CTL_OK, "agoqd   9.8.7", NULL);
    expect("version|--json", CTL_OK, "\"agoqd\": \"9.8.7\"", NULL);
}

static void budgets(void **state) {
    (void)state;
    behaviour = NORMAL;
    asked_waits = 0;
    expect("budget|get", CTL_OK, "1.00 GiB", NULL);
    expect("budget|get|cpu:x:9", CTL_FAILED, NULL, "no such device");
    expect("budget|set|cpu:h:0|512MiB|--dry-run", CTL_OK,
           "cpu:h:0 (stage 0): 1.00 GiB -> 512.00 MiB, version 5, not stored", NULL);
    expect("budget|set|cpu:h:0|512MiB|--if-version|3", CTL_VERSION_CONFLICT, NULL, "has version 4");
    expect("budget|set|cpu:h:0|1KiB", CTL_INFEASIBLE, NULL, "recompute 1 layer: 6.00 MiB, enough alone");
    expect("budget|set|cpu:h:0|1KiB|--json", CTL_INFEASIBLE, "\"overshoot_bytes\": 5242880", NULL);
    expect("budget|set|cpu:h:0|512MiB|--reason|not allowed", CTL_PERMISSION, NULL, "only root may");
    asked_waits = 0;
    expect("budget|set|cpu:h:0|512MiB|--if-version|4", CTL_OK, "1.00 GiB -> 512.00 MiB, version 5, pending",
           NULL);
    asked_waits = -1000000;
    expect("budget|set|--stage|0|512MiB|--wait|--timeout|250ms", CTL_TIMED_OUT, NULL,
           "still pending after 250 ms");
    asked_waits = 0;
    expect("budget|set|--stage|0|512MiB|--wait", CTL_OK, "version 5, effective", NULL);
    expect("budget|watch|--once|--json", CTL_OK, "\"state\": \"effective\"", NULL);
    expect("budget|watch|--timeout|100ms", CTL_OK, "cpu:h:0", NULL);
    expect("budget|reset|--stage|0", CTL_OK, "512.00 MiB -> 1.00 GiB", NULL);
    expect("budget|reset|cpu:h:0|--stage|0", CTL_USAGE, NULL, "usage");
    expect("budget|set|cpu:h:0|0B", CTL_USAGE, NULL, "'0B' is not a size");
    expect("budget|set|cpu:h:0", CTL_USAGE, NULL, "usage: agoqctl budget set DEVICE SIZE");
    expect("budget|set|x|9999999TiB", CTL_USAGE, NULL, "the request is not valid");
    expect("budget|set|x\xff|1GiB", CTL_USAGE, NULL, "the request is not valid");
}

static void misbehaviour(void **state) {
    (void)state;
    static const struct {
        int behaviour, code;
        const char *message;
    } cases[] = {
        {SILENT, CTL_UNREACHABLE, "did not answer within 200 ms"},
        {GARBAGE, CTL_FAILED, "sent an answer that cannot be read"},
        {WRONG_MAJOR, CTL_FAILED, "sent an answer that cannot be read"},
        {TWO_FRAMES, CTL_FAILED, "(more than one frame)"},
        {REFUSES, CTL_FAILED, "agoqd refused: not now"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        behaviour = cases[i].behaviour;
        expect("ranks|--timeout|200ms", cases[i].code, NULL, cases[i].message);
    }
    behaviour = STALE_FIRST;
    expect("ranks", CTL_OK, "cpu:h:0", NULL);
    behaviour = PARTIAL; /* what is there is shown, and the exit code says that it is not all */
    expect("ranks", CTL_PARTIAL, "cpu:h:0", "only the first 1000");
    expect("budget|get|--json", CTL_PARTIAL, "cpu:h:0", "only the first 1000");
    expect("top|--once", CTL_OK, "cpu:h:0", NULL);
    behaviour = NORMAL;
    expect("ranks", CTL_OK, "cpu:h:0", NULL);
}

static void nobody_there(void **state) {
    (void)state;
    char other[120], long_path[200];
    snprintf(other, sizeof other, "%s/none", folder);
    assert_int_equal(run_on(other, "status"), CTL_UNREACHABLE);
    assert_non_null(strstr(err, other));
    assert_non_null(strstr(err, "there is no such socket"));
    assert_int_equal(run_on(other, "top"), CTL_UNREACHABLE);
    assert_int_equal(run_on(other, "version"), CTL_OK);
    assert_non_null(strstr(out, "not reached"));
    assert_int_equal(run_on(folder, "status"), CTL_UNREACHABLE);
    assert_non_null(strstr(err, "non-socket"));
    memset(long_path, 'a', sizeof long_path - 1);
    long_path[sizeof long_path - 1] = '\0';
    assert_int_equal(run_on(long_path, "status"), CTL_UNREACHABLE);
    assert_non_null(strstr(err, "longer than the 107 bytes"));
    /* A socket file that its daemon left behind. */
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/dead", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    assert_int_equal(run_on(address.sun_path, "status|--json"), CTL_UNREACHABLE);
    assert_non_null(strstr(err, "the socket is there but nobody listens"));
    assert_non_null(strstr(out, "\"name\": \"unreachable\""));
    unlink(address.sun_path);
}

static void not_permitted(void **state) {
    (void)state;
    if (geteuid() == 0) { /* root may connect to anything: be someone else for a moment */
        assert_int_equal(chmod(folder, 0755), 0);
        assert_int_equal(chmod(path, 0600), 0);
        assert_int_equal(seteuid(65534), 0);
    } else {
        assert_int_equal(chmod(path, 0), 0);
    }
    int code = run("status");
    if (geteuid() == 65534) assert_int_equal(seteuid(0), 0);
    assert_int_equal(chmod(path, 0700), 0);
    assert_int_equal(code, CTL_PERMISSION);
    assert_non_null(strstr(err, "not permitted to use"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_verb_answers), cmocka_unit_test(budgets),       cmocka_unit_test(misbehaviour),
        cmocka_unit_test(nobody_there),       cmocka_unit_test(not_permitted),
    };
    return cmocka_run_group_tests(tests, start, finish);
}
