/* A session through the public header and the shared library alone, as a trainer uses it: open, profile,
 * steps with saved and released tensors, widths, pressure, report, close; and two ranks in threads that vote
 * over a communicator of theirs. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <cmocka.h>

#include "agoq/agoq.h"

enum { LAYERS = 4, MICROBATCHES = 3, ROWS = 16, COLS = 200 };

static void set_profile(agoq_session *s) {
    static const uint64_t fixed_bytes[1] = {0};
    agoq_item items[LAYERS] = {{0}};
    for (int i = 0; i < LAYERS; i++)
        items[i] =
            (agoq_item){.layer = i, .role = AGOQ_ROLE_MLP_NORM_IN, .count = 1, .rows = ROWS, .cols = COLS};
    const agoq_profile profile = {.size = sizeof profile,
                                  .schedule = AGOQ_SCHEDULE_GPIPE,
                                  .n_microbatches = MICROBATCHES,
                                  .n_chunks = 1,
                                  .n_layers = LAYERS,
                                  .n_items = LAYERS,
                                  .items = items,
                                  .fixed_bytes = fixed_bytes};
    assert_int_equal(agoq_session_profile(s, &profile), AGOQ_OK);
}

/* Forward of all micro-batches, then backward. Returns the bytes that were alive at once. */
static uint64_t train_step(agoq_session *s, int64_t step, int bits) {
    agoq_packed saved[MICROBATCHES][LAYERS];
    uint64_t bytes = 0;
    assert_int_equal(agoq_step_begin(s, step), AGOQ_OK);
    for (int m = 0; m < MICROBATCHES; m++) {
        assert_int_equal(agoq_session_microbatch(s, 0, 1), AGOQ_OK);
        for (int i = 0; i < LAYERS; i++) {
            agoq_packed *p = &saved[m][i];
            assert_int_equal(agoq_session_bits(s, i, AGOQ_ROLE_MLP_NORM_IN), bits);
            assert_int_equal(agoq_layout_make(bits, ROWS, COLS, &p->layout), AGOQ_OK);
            p->data = aligned_alloc(AGOQ_PLANE_ALIGN, p->layout.bytes);
            bytes += p->layout.bytes;
            assert_int_equal(agoq_session_saved(s, i, AGOQ_ROLE_MLP_NORM_IN, p), AGOQ_OK);
        }
    }
    for (int m = 0; m < MICROBATCHES; m++) {
        for (int i = LAYERS - 1; i >= 0; i--) {
            assert_int_equal(agoq_session_released(s, i, AGOQ_ROLE_MLP_NORM_IN, &saved[m][i]), AGOQ_OK);
            free(saved[m][i].data);
        }
        assert_int_equal(agoq_session_microbatch(s, 0, -1), AGOQ_OK);
    }
    const agoq_usage usage = {.peak_bytes = bytes, .saved_peak_bytes = bytes};
    assert_int_equal(agoq_step_end(s, &usage), AGOQ_OK);
    return bytes;
}

static void a_trainer_without_a_daemon(void **state) {
    (void)state;
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    agoq_session *s = NULL;
    agoq_ledger_entry e;
    config.use_fixed_bits = 1;
    config.fixed_bits[AGOQ_ROLE_MLP_NORM_IN] = 6;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_OK);
    set_profile(s);
    uint64_t peak = 0;
    for (int step = 0; step < 5; step++) peak = train_step(s, step, 6);
    agoq_session_ledger(s, -1, -1, &e);
    assert_true(e.live_bytes == 0 && e.live_tensors == 0 && e.peak_bytes == peak);
    assert_int_equal(e.peak_bytes16, (uint64_t)MICROBATCHES * LAYERS * ROWS * COLS * 2);
    agoq_session_ledger(s, 2, AGOQ_ROLE_MLP_NORM_IN, &e);
    assert_int_equal(e.peak_bytes, peak / LAYERS);
    assert_int_equal(agoq_session_pressure(s, "test"), AGOQ_OK);
    (void)train_step(s, 5, 4);
    char text[2048];
    assert_true(agoq_session_report(s, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "mlp_norm_in"));
    assert_int_equal(agoq_session_mode(s), AGOQ_MODE_NORMAL);
    agoq_session_close(&s);
    assert_null(s);
}

/* All-reduce MIN between threads. Waits in finish, as a network would. */
typedef struct meeting {
    pthread_mutex_t mutex;
    pthread_cond_t all_here;
    uint64_t words[64][6]; /* by round */
    int arrived[64];
} meeting;

typedef struct rank {
    meeting *at;
    uint64_t *buf;
    int round, destroyed, disagree;
    pthread_t thread;
    agoq_plan_state end;
} rank;

static agoq_status meet_start(void *ctx, uint64_t buf[6]) {
    rank *r = ctx;
    meeting *m = r->at;
    pthread_mutex_lock(&m->mutex);
    for (int i = 0; i < 6; i++) {
        if (buf[i] < m->words[r->round][i]) m->words[r->round][i] = buf[i];
    }
    m->arrived[r->round]++;
    pthread_cond_broadcast(&m->all_here);
    pthread_mutex_unlock(&m->mutex);
    r->buf = buf;
    return AGOQ_OK;
}

static agoq_status meet_finish(void *ctx) {
    rank *r = ctx;
    meeting *m = r->at;
    pthread_mutex_lock(&m->mutex);
    while (m->arrived[r->round] < 2) pthread_cond_wait(&m->all_here, &m->mutex);
    memcpy(r->buf, m->words[r->round], sizeof m->words[0]);
    pthread_mutex_unlock(&m->mutex);
    r->round++;
    return AGOQ_OK;
}

static void meet_destroy(void *ctx) {
    ((rank *)ctx)->destroyed++;
}

static void *run_rank(void *argument) {
    rank *r = argument;
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    agoq_session *s = NULL;
    const agoq_vote_comm comm = {r, meet_start, meet_finish, meet_destroy};
    config.use_fixed_bits = 1;
    config.fixed_bits[AGOQ_ROLE_MLP_NORM_IN] = r->disagree ? 5 : 8;
    if (agoq_session_open(&config, &s) != AGOQ_OK || agoq_session_attach(s, &comm) != AGOQ_OK) return NULL;
    for (int step = 0; step < 20; step++) {
        if (agoq_step_begin(s, step) != AGOQ_OK || agoq_step_end(s, NULL) != AGOQ_OK) return NULL;
    }
    agoq_session_state(s, &r->end);
    agoq_session_close(&s);
    return r;
}

static void two_ranks_vote(void **state) {
    (void)state;
    for (int disagree = 0; disagree < 2; disagree++) {
        meeting m = {.mutex = PTHREAD_MUTEX_INITIALIZER, .all_here = PTHREAD_COND_INITIALIZER};
        memset(m.words, 0xff, sizeof m.words);
        rank ranks[2] = {{.at = &m}, {.at = &m, .disagree = disagree}};
        for (int i = 0; i < 2; i++)
            assert_int_equal(pthread_create(&ranks[i].thread, NULL, run_rank, &ranks[i]), 0);
        for (int i = 0; i < 2; i++) {
            void *done;
            assert_int_equal(pthread_join(ranks[i].thread, &done), 0);
            assert_non_null(done);
            assert_int_equal(ranks[i].destroyed, 1);
            /* One vote at attach, one read at every boundary but the first. */
            assert_int_equal(ranks[i].end.disagreements, disagree ? 20 : 0);
        }
    }
}

static void a_plan_file_by_hand(void **state) {
    (void)state;
    char path[] = "/tmp/agoq-api-plan-XXXXXX";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    static const char text[] = "agoq-plan-file 1\n3 0000000000000000 0000000000000000 -\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    agoq_session *s = NULL;
    config.plan_file = path;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_OK);
    set_profile(s);
    (void)train_step(s, 0, 4);
    (void)train_step(s, 7, 4);
    agoq_session_close(&s);
    assert_int_equal(write(fd, "junk\n", 5), 5);
    close(fd);
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_E_FORMAT);
    assert_non_null(strstr(agoq_last_error(), ":3: "));
    assert_null(s);
    unlink(path);
}

/* libzmq aborts a process whose descriptors run out while it makes a context; a session must not let it come
 * to that. */
static void few_descriptors_never_end_the_trainer(void **state) {
    (void)state;
    for (int leave = 0; leave <= 20; leave += 1 + leave / 8) {
        pid_t pid = fork();
        if (pid == 0) {
            struct rlimit limit = {64, 64};
            int fd[64], n = 0;
            setrlimit(RLIMIT_NOFILE, &limit);
            while (n < 64 && (fd[n] = open("/dev/null", O_RDONLY)) >= 0) n++;
            for (int i = 0; i < leave && n > 0; i++) close(fd[--n]);
            agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
            config.socket = "/nowhere/agoqd.sock";
            config.world = config.n_stages = config.n_dp = config.n_tp = 1;
            agoq_session *session = NULL;
            if (agoq_session_open(&config, &session) == AGOQ_OK) usleep(100000);
            agoq_session_close(&session);
            _exit(0);
        }
        int status = -1;
        assert_int_equal(waitpid(pid, &status, 0), pid);
        assert_int_equal(status, 0);
    }
}

typedef struct log_seen {
    int n;
    agoq_log_level level;
    char module[32], text[256];
} log_seen;

static void take_log(void *user, agoq_log_level level, const char *module, const char *text) {
    log_seen *seen = user;
    seen->n++;
    seen->level = level;
    snprintf(seen->module, sizeof seen->module, "%s", module);
    snprintf(seen->text, sizeof seen->text, "%s", text);
}

/* The caller's sink gets the library's messages, with level and module, until it is removed. */
static void messages_go_to_the_sink(void **state) {
    (void)state;
    agoq_session_config config = AGOQ_SESSION_CONFIG_INIT;
    agoq_session *s = NULL;
    log_seen seen = {0};
    config.world = config.n_stages = config.n_dp = config.n_tp = 1;
    assert_int_equal(agoq_session_open(&config, &s), AGOQ_OK);
    set_profile(s);
    agoq_set_log(take_log, &seen);
    assert_int_equal(agoq_session_pressure(s, "too little"), AGOQ_OK);
    assert_true(seen.n == 1 && seen.level == AGOQ_LOG_WARN);
    assert_string_equal(seen.module, "session");
    assert_non_null(strstr(seen.text, "too little"));
    agoq_set_log(NULL, NULL);
    assert_int_equal(agoq_session_pressure(s, "again"), AGOQ_OK);
    assert_int_equal(seen.n, 1);
    agoq_session_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trainer_without_a_daemon),
        cmocka_unit_test(two_ranks_vote),
        cmocka_unit_test(a_plan_file_by_hand),
        cmocka_unit_test(messages_go_to_the_sink),
        cmocka_unit_test(few_descriptors_never_end_the_trainer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
