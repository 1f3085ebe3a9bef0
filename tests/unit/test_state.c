/* What survives a restart: round trip, every damage refused, a full disk leaves the old file whole; and the
 * plans kept. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoqd/history.h"
#include "agoqd/plans.h"
#include "agoqd/state.h"
#include "common/mem.h"
#include "common/sha256.h"

static void make(budgets *b, sessions *t) {
    conf c;
    budget *one;
    conf_default(&c);
    c.default_budget_bytes = 1000;
    *b = (budgets){0};
    *t = (sessions){0};
    assert_int_equal(budgets_device(b, &c, "GPU-0", 0, &one), AGOQ_OK);
    assert_int_equal(budgets_device(b, &c, "GPU-1", 1, &one), AGOQ_OK);
    budgets_set(one, 700, budgets_next_version(b), 0, 41, 5);
    assert_int_equal(sessions_reset(t, "job", 3, 2, 1, 1), AGOQ_OK);
    for (int i = 0; i < 2; i++) {
        t->ranks[i].state = SESSION_LIVE;
        t->ranks[i].who = (session_who){.rank = i, .stage = i, .pid = 100, .start_time = 7, .applied_id = 99};
        snprintf(t->ranks[i].who.device, sizeof t->ranks[i].who.device, "GPU-%d", i);
    }
    t->ranks[1].state = SESSION_GONE; /* exited: not expected back */
    conf_fini(&c);
}

static void round_trip(void **state) {
    (void)state;
    budgets b, b2 = {0};
    sessions t, t2 = {0};
    uint8_t *data;
    size_t size;
    uint64_t term = 0;
    make(&b, &t);
    assert_int_equal(state_encode(12, &b, &t, &data, &size), AGOQ_OK);
    assert_int_equal(state_decode(data, size, &term, &b2, &t2), AGOQ_OK);
    assert_int_equal(term, 12);
    assert_int_equal(b2.version, 2);
    assert_int_equal(b2.n, 2);
    const budget *cut = budgets_find(&b2, "GPU-1");
    assert_true(cut->pending && cut->bytes == 700 && cut->effective_bytes == 1000 &&
                cut->step_requested == 41);
    assert_string_equal(t2.job, "job");
    assert_int_equal(t2.world, 3);
    assert_int_equal(t2.ranks[0].state, SESSION_EXPECTED);
    assert_int_equal(t2.ranks[0].who.applied_id, 99);
    assert_int_equal(t2.ranks[1].state, SESSION_NONE);
    mem_free(data);
    budgets_fini(&b);
    budgets_fini(&b2);
    sessions_fini(&t);
    sessions_fini(&t2);
}

static void every_damage_is_refused(void **state) {
    (void)state;
    budgets b, b2 = {0};
    sessions t, t2 = {0};
    uint8_t *data;
    size_t size;
    uint64_t term = 5;
    make(&b, &t);
    assert_int_equal(state_encode(12, &b, &t, &data, &size), AGOQ_OK);
    for (size_t i = 0; i < size; i++) {
        data[i] ^= 1;
        assert_int_equal(state_decode(data, size, &term, &b2, &t2), AGOQ_E_FORMAT);
        data[i] ^= 1;
        assert_int_not_equal(state_decode(data, i, &term, &b2, &t2), AGOQ_OK);
    }
    /* Well signed, yet wrong inside: the checksum is not the only guard. */
    for (size_t i = 0; i + 32 < size; i++) {
        uint8_t was = data[i];
        data[i] = 0xff;
        sha256(data, size - 32, data + size - 32);
        if (state_decode(data, size, &term, &b2, &t2) == AGOQ_OK) {
            budgets_fini(&b2);
            sessions_fini(&t2);
        }
        assert_null(b2.list);
        assert_null(t2.ranks);
        data[i] = was;
    }
    data[4] = 2; /* another version */
    sha256(data, size - 32, data + size - 32);
    term = 5;
    assert_int_equal(state_decode(data, size, &term, &b2, &t2), AGOQ_E_VERSION);
    assert_int_equal(term, 5);
    data[4] = 1;
    sha256(data, size - 32, data + size - 32);
    for (long n = 1; n <= 2; n++) {
        mem_fail_after(n);
        assert_int_equal(state_decode(data, size, &term, &b2, &t2), AGOQ_E_NOMEM);
        mem_fail_after(0);
        assert_null(b2.list);
    }
    mem_free(data);
    budgets_fini(&b);
    sessions_fini(&t);
}

static void a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    char folder[] = "/tmp/agoq-state-XXXXXX", path[64];
    assert_non_null(mkdtemp(folder));
    uint8_t *data = NULL, big[8192] = {1};
    size_t size = 0;
    assert_int_equal(state_load(folder, &data, &size), AGOQ_OK);
    assert_null(data);
    assert_int_equal(state_store(folder, (const uint8_t *)"old", 3), AGOQ_OK);
    struct rlimit before, small = {1000, RLIM_INFINITY};
    getrlimit(RLIMIT_FSIZE, &before);
    small.rlim_max = before.rlim_max;
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &small);
    assert_int_equal(state_store(folder, big, sizeof big), AGOQ_E_IO);
    assert_int_equal(errno, EFBIG);
    setrlimit(RLIMIT_FSIZE, &before);
    assert_int_equal(state_load(folder, &data, &size), AGOQ_OK);
    assert_int_equal(size, 3);
    assert_memory_equal(data, "old", 3);
    mem_free(data);
    snprintf(path, sizeof path, "%s/state.new", folder);
    assert_int_not_equal(access(path, F_OK), 0); /* nothing is left behind */
    assert_int_equal(state_store("/nonexistent", big, 1), AGOQ_E_IO);
    snprintf(path, sizeof path, "%s/state", folder);
    unlink(path);
    mkdir(path, 0700); /* not a file at all */
    assert_int_not_equal(state_load(folder, &data, &size), AGOQ_OK);
    rmdir(path);
    rmdir(folder);
}

static size_t encode_plan(uint8_t bits, uint8_t *bytes) {
    plan p;
    size_t size;
    assert_int_equal(plan_init(&p, 1, 1), AGOQ_OK);
    p.entries[0].bits = bits;
    assert_int_equal(plan_encode(&p, bytes, 256, &size), AGOQ_OK);
    plan_fini(&p);
    return size;
}

static void plans_know_ids_and_forget_the_oldest(void **state) {
    (void)state;
    static plans t;
    planned *p;
    uint8_t a[256], b[256];
    size_t size = encode_plan(4, a);
    encode_plan(8, b);
    assert_int_equal(plans_add(&t, 1, 0, a, size, "first", &p), AGOQ_OK);
    assert_int_equal(plans_add(&t, 1, p->hash, a, size, "again", &p), AGOQ_OK);
    assert_string_equal(p->why, "first");
    assert_int_equal(plans_add(&t, 1, 0, b, size, "other", &p), AGOQ_E_STATE); /* S1 */
    assert_int_equal(plans_add(&t, 2, p->hash, b, size, "wrong hash", &p), AGOQ_E_FORMAT);
    assert_int_equal(plans_add(&t, 2, 0, a, size - 1, "cut short", &p), AGOQ_E_FORMAT);
    assert_int_equal(plans_add(&t, 0, 0, a, size, "the floor plan has no bytes", &p), AGOQ_E_INVAL);
    assert_null(plans_find(&t, 0));
    for (uint64_t id = 2; id < 2 + PLANS_KEPT; id++)
        assert_int_equal(plans_add(&t, id, 0, b, size, "", &p), AGOQ_OK);
    assert_null(plans_find(&t, 1));
    assert_non_null(plans_find(&t, 2));
    for (long n = 1; n <= 3; n++) {
        mem_fail_after(n);
        assert_int_equal(plans_add(&t, 900, 0, b, size, "", &p), AGOQ_E_NOMEM);
        mem_fail_after(0);
    }
    assert_non_null(plans_find(&t, 2)); /* a failure forgets nothing */
    plans_fini(&t);
}

static void history_is_a_ring(void **state) {
    (void)state;
    static history h;
    assert_null(history_at(&h, 0));
    for (int i = 0; i < HISTORY_KEPT + 10; i++) {
        history_event *e = history_add(&h, i % 2 ? HISTORY_BUDGET : HISTORY_RANK, i, i, "event %d", i);
        e->budget_version = i % 2 ? (uint64_t)i : 0;
    }
    assert_string_equal(history_at(&h, 0)->why, "event 10");
    assert_string_equal(history_at(&h, HISTORY_KEPT - 1)->why, "event 265");
    assert_null(history_at(&h, HISTORY_KEPT));
    assert_null(history_budget(&h, 9)); /* forgotten */
    assert_int_equal(history_budget(&h, 11)->step, 11);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(every_damage_is_refused),
        cmocka_unit_test(a_full_disk_leaves_the_old_file),
        cmocka_unit_test(plans_know_ids_and_forget_the_oldest),
        cmocka_unit_test(history_is_a_ring),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
