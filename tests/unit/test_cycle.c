/* The plan cycle alone, on virtual time, and a walk of random events that must keep its promises. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoqd/cycle.h"
#include "common/mem.h"
#include "proto/wire.h"

static cycle started(uint32_t n) {
    cycle c;
    cycle_init(&c, 10000);
    assert_int_equal(cycle_start(&c, 7, 70, n, 1000), AGOQ_OK);
    for (uint32_t i = 0; i < n; i++) assert_int_equal(cycle_due(&c, 1000), (int)i);
    assert_int_equal(cycle_due(&c, 1000), -1);
    return c;
}

static void armed_then_done(void **state) {
    (void)state;
    cycle c = started(2);
    assert_int_equal(cycle_start(&c, 8, 80, 2, 1000), AGOQ_E_STATE); /* one in flight */
    assert_int_equal(cycle_prepared(&c, 0, 7, 70, 1001), CYCLE_NOTHING);
    assert_int_equal(cycle_prepared(&c, 0, 7, 70, 1001), CYCLE_NOTHING); /* a copy */
    assert_int_equal(cycle_prepared(&c, 1, 6, 60, 1001), CYCLE_NOTHING); /* of an older plan */
    assert_int_equal(cycle_prepared(&c, 9, 7, 70, 1001), CYCLE_NOTHING); /* no such rank */
    assert_int_equal(cycle_prepared(&c, 1, 7, 70, 1002), CYCLE_NOW_ARMED);
    assert_int_equal(cycle_tick(&c, 0, 500000), CYCLE_NOTHING); /* a long step */
    assert_int_equal(cycle_applied(&c, 1, 7, 500001), CYCLE_NOTHING);
    assert_int_equal(cycle_applied(&c, 0, 7, 500002), CYCLE_DONE);
    assert_true(cycle_ready(&c, 500002));
    assert_int_equal(c.n_done, 1);
    cycle_fini(&c);
}

static void applied_may_come_before_prepared(void **state) {
    (void)state;
    cycle c = started(2);
    assert_int_equal(cycle_applied(&c, 0, 7, 1001), CYCLE_NOTHING);
    assert_int_equal(cycle_prepared(&c, 0, 7, 70, 1001), CYCLE_NOTHING); /* late: does not undo it */
    assert_int_equal(cycle_applied(&c, 1, 7, 1001), CYCLE_DONE);
    cycle_fini(&c);
}

static void time_out_backs_off_and_doubles(void **state) {
    (void)state;
    cycle c;
    cycle_init(&c, 10000);
    int64_t now = 0, wait = 1000;
    for (int i = 0; i < 8; i++) {
        assert_int_equal(cycle_start(&c, 7 + (uint64_t)i, 70, 2, now), AGOQ_OK);
        assert_int_equal(cycle_tick(&c, 0, now + 9999), CYCLE_NOTHING);
        assert_int_equal(cycle_deadline(&c) <= now + 10000, 1);
        now += 10000;
        assert_int_equal(cycle_tick(&c, 0, now), CYCLE_ABORT);
        assert_false(cycle_ready(&c, now + wait - 1));
        assert_true(cycle_ready(&c, now + wait));
        now += wait;
        wait = wait * 2 > CYCLE_BACKOFF_MAX_MS ? CYCLE_BACKOFF_MAX_MS : wait * 2;
    }
    assert_int_equal(wait, CYCLE_BACKOFF_MAX_MS);
    cycle_hurry(&c);
    assert_true(cycle_ready(&c, now));
    cycle_fini(&c);
}

static void a_silent_rank_ends_even_an_armed_cycle(void **state) {
    (void)state;
    cycle c = started(1);
    assert_int_equal(cycle_prepared(&c, 0, 7, 70, 1001), CYCLE_NOW_ARMED);
    assert_int_equal(cycle_tick(&c, 1, 5000), CYCLE_NOTHING);
    assert_int_equal(cycle_tick(&c, 0, 14000), CYCLE_NOTHING); /* it came back */
    assert_int_equal(cycle_tick(&c, 1, 20000), CYCLE_NOTHING);
    assert_int_equal(cycle_tick(&c, 1, 29999), CYCLE_NOTHING);
    assert_int_equal(cycle_tick(&c, 1, 30000), CYCLE_ABORT);
    cycle_fini(&c);
}

static void refusals(void **state) {
    (void)state;
    cycle c = started(2);
    assert_int_equal(cycle_nack(&c, 0, 7, AGOQ__NACK_REASON__NACK_BUSY, "", 1500), CYCLE_NOTHING);
    assert_int_equal(cycle_deadline(&c), 1500 + CYCLE_BUSY_RETRY_MS);
    assert_int_equal(cycle_due(&c, 1500 + CYCLE_BUSY_RETRY_MS - 1), -1);
    assert_int_equal(cycle_due(&c, 1500 + CYCLE_BUSY_RETRY_MS), 0);
    assert_int_equal(cycle_deadline(&c), 1000 + CYCLE_RESEND_MS); /* rank 1 has not answered: sent again */
    assert_int_equal(cycle_nack(&c, 1, 6, AGOQ__NACK_REASON__NACK_BAD_PLAN, "", 2060),
                     CYCLE_NOTHING); /* older */
    assert_int_equal(cycle_nack(&c, 1, 7, AGOQ__NACK_REASON__NACK_BAD_PLAN, "no", 2060), CYCLE_ABORT);
    assert_non_null(strstr(c.reason, "rank 1 refused the plan (reason 5): no"));
    cycle_fini(&c);
    c = started(1);
    assert_int_equal(cycle_prepared(&c, 0, 7, 71, 2000), CYCLE_ABORT); /* S1: same id, other bytes */
    cycle_fini(&c);
}

static void a_rank_that_dropped_the_plan_gets_it_again(void **state) {
    (void)state;
    cycle c = started(2);
    cycle_prepared(&c, 0, 7, 70, 1001);
    assert_int_equal(cycle_prepared(&c, 1, 7, 70, 1001), CYCLE_NOW_ARMED);
    assert_int_equal(cycle_holds(&c, 1, 3, 0, 7, 1100), CYCLE_NOTHING); /* voted on: still held */
    assert_int_equal(c.state, CYCLE_ARMED);
    assert_int_equal(cycle_holds(&c, 1, 0, 0, 0, 1200), CYCLE_NOTHING); /* gone after a disagreement */
    assert_int_equal(c.state, CYCLE_PREPARING);
    assert_int_equal(cycle_due(&c, 1200), 1);
    assert_int_equal(cycle_due(&c, 1200), -1);
    assert_int_equal(cycle_prepared(&c, 1, 7, 70, 1300), CYCLE_NOW_ARMED);
    cycle_resend(&c, 0, 1400);
    assert_int_equal(c.state, CYCLE_PREPARING);
    cycle_fini(&c);
}

static void superseded_at_once(void **state) {
    (void)state;
    cycle c = started(2);
    assert_int_equal(cycle_supersede(&c, "a budget was changed", 1001), CYCLE_ABORT);
    assert_true(cycle_ready(&c, 1001));
    assert_int_equal(cycle_supersede(&c, "again", 1001), CYCLE_NOTHING); /* nothing in flight */
    assert_int_equal(cycle_ranks_changed(&c, "rank 1 left", 1001), CYCLE_NOTHING);
    mem_fail_after(1);
    assert_int_equal(cycle_start(&c, 9, 90, 2, 1002), AGOQ_E_NOMEM);
    mem_fail_after(0);
    assert_true(cycle_ready(&c, 1002));
    cycle_fini(&c);
}

/* DONE only after every rank applied that very plan; nothing after DONE or ABORT; an open cycle always has a
 * deadline or waits for a step. */
static void random_walk(void **state) {
    (void)state;
    srand(12345);
    int n_done = 0, n_abort = 0;
    cycle c;
    cycle_init(&c, 10000);
    int64_t now = 0;
    uint64_t id = 0;
    int applied[3] = {0};
    for (int i = 0; i < 300000; i++) {
        now += rand() % 400;
        uint32_t rank = (uint32_t)(rand() % 3);
        uint64_t about = id - (uint64_t)(rand() % 8 == 0);
        cycle_action a = CYCLE_NOTHING;
        cycle_state before = c.state;
        switch (rand() % 10) {
        case 0:
            if (cycle_ready(&c, now)) {
                id++;
                assert_int_equal(cycle_start(&c, id, id * 10, 3, now), AGOQ_OK);
                memset(applied, 0, sizeof applied);
            }
            break;
        case 1:
        case 2:
            a = cycle_prepared(&c, rank, about, about * 10, now);
            break;
        case 3:
        case 4:
            if (about == id) applied[rank] = 1;
            a = cycle_applied(&c, rank, about, now);
            break;
        case 5:
            a = cycle_nack(&c, rank, about, (uint32_t)(rand() % 40 == 0 ? 5 : 1), "", now);
            break;
        case 6:
            if (applied[rank]) break;
            a = cycle_holds(&c, rank, 0, rand() % 2 ? about : 0, 0, now);
            break;
        case 7:
            a = cycle_tick(&c, rand() % 2, now);
            break;
        case 8:
            while (cycle_due(&c, now) >= 0) assert_int_not_equal(c.state, CYCLE_IDLE);
            break;
        default:
            if (rand() % 50 == 0) a = cycle_supersede(&c, "x", now);
            break;
        }
        if (a == CYCLE_DONE) {
            assert_true(applied[0] && applied[1] && applied[2]);
            n_done++;
        }
        if (a == CYCLE_ABORT) n_abort++;
        if (a == CYCLE_DONE || a == CYCLE_ABORT) assert_int_not_equal(before, CYCLE_IDLE);
        if (a == CYCLE_DONE || a == CYCLE_ABORT) assert_int_equal(c.state, CYCLE_IDLE);
        if (c.state == CYCLE_PREPARING) assert_true(cycle_deadline(&c) <= c.started_ms + 10000);
    }
    assert_in_range(n_done, 100, 300000);
    assert_in_range(n_abort, 100, 300000);
    cycle_fini(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(armed_then_done),
        cmocka_unit_test(applied_may_come_before_prepared),
        cmocka_unit_test(time_out_backs_off_and_doubles),
        cmocka_unit_test(a_silent_rank_ends_even_an_armed_cycle),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_rank_that_dropped_the_plan_gets_it_again),
        cmocka_unit_test(superseded_at_once),
        cmocka_unit_test(random_walk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
