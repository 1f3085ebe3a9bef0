/* The trainer's schedules: every micro-batch of every chunk goes forward once and then back once, in order;
 * all stages together finish; and live micro-batches are what the planner's formulas say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "planner/schedule.h"
#include "trainer/model.h"
#include "trainer/options.h"
#include "trainer/schedule.h"

enum { MOST = 64 };

static int live_peak(const schedule *s, int stage) {
    schedule_op ops[2 * MOST * 4];
    int forward[4][MOST] = {{0}}, backward[4][MOST] = {{0}}, next[2][4] = {{0}}, live = 0, peak = 0;
    schedule_list(s, stage, ops);
    for (int i = 0; i < 2 * s->microbatches * s->chunks; i++) {
        const schedule_op *op = &ops[i];
        assert_in_range(op->chunk, 0, s->chunks - 1);
        assert_in_range(op->microbatch, 0, s->microbatches - 1);
        assert_int_equal(op->microbatch,
                         next[op->what][op->chunk]++); /* in order within a chunk: one order of sums */
        if (op->what == SCHEDULE_FORWARD) {
            assert_int_equal(forward[op->chunk][op->microbatch]++, 0);
            live++;
        } else {
            assert_int_equal(forward[op->chunk][op->microbatch], 1);
            assert_int_equal(backward[op->chunk][op->microbatch]++, 0);
            live--;
        }
        if (live > peak) peak = live;
    }
    assert_int_equal(live, 0);
    for (int c = 0; c < s->chunks; c++) assert_int_equal(next[SCHEDULE_BACKWARD][c], s->microbatches);
    return peak;
}

static int least(int a, int b) {
    return a < b ? a : b;
}

static void one_chunk(void **state) {
    (void)state;
    for (int pp = 1; pp <= 9; pp++) {
        for (int m = 1; m <= 20; m++) {
            const schedule gpipe = {OPTIONS_GPIPE, pp, m, 1}, f1b1 = {OPTIONS_1F1B, pp, m, 1};
            for (int r = 0; r < pp; r++) {
                assert_int_equal(live_peak(&gpipe, r), m);
                assert_int_equal(live_peak(&f1b1, r), least(m, pp - r));
            }
            assert_true(schedule_completes(&gpipe, schedule_slots(&gpipe)));
            assert_true(schedule_completes(&f1b1, schedule_slots(&f1b1)));
        }
    }
}

static void interleaved(void **state) {
    (void)state;
    const schedule paper = {OPTIONS_INTERLEAVED, 4, 8, 2};
    const int want[] = {11, 9, 7, 5};
    for (int r = 0; r < 4; r++) assert_int_equal(live_peak(&paper, r), want[r]);
    for (int pp = 2; pp <= 8; pp++) {
        for (int m = pp; m <= 4 * pp && m <= MOST; m += pp) {
            for (int v = 2; v <= 4; v++) {
                const schedule s = {OPTIONS_INTERLEAVED, pp, m, v};
                for (int r = 0; r < pp; r++)
                    assert_int_equal(live_peak(&s, r), least(m * v, 2 * (pp - r - 1) + (v - 1) * pp + 1));
                const int slots = schedule_slots(&s);
                assert_true(schedule_completes(&s, slots));
                assert_true(slots == 1 || !schedule_completes(&s, slots - 1));
                assert_true(slots <= m * v);
            }
        }
    }
}

/* 1F1B with unbuffered sends: two neighbours would send to each other. The play must see that. */
static void play_finds_deadlock(void **state) {
    (void)state;
    const schedule s = {OPTIONS_1F1B, 4, 8, 1};
    assert_false(schedule_completes(&s, 0));
    assert_true(schedule_completes(&s, schedule_slots(&s)));
}

static void layers_are_spread(void **state) {
    (void)state;
    for (int n = 1; n <= 12; n++) {
        for (int layers = n; layers <= 40; layers++) {
            int next = 0;
            for (int at = 0; at < n; at++) {
                int first, count;
                model_spread(layers, n, at, &first, &count);
                assert_int_equal(first, next);
                assert_int_equal(count, layers / n + (at < layers % n));
                next += count;
            }
            assert_int_equal(next, layers);
        }
    }
}

/* What the planner plays is what the trainer does, operation by operation. */
static void the_planner_plays_these_lists(void **state) {
    (void)state;
    static const struct {
        int mine;
        agoq_schedule planners;
    } kinds[] = {{OPTIONS_GPIPE, AGOQ_SCHEDULE_GPIPE},
                 {OPTIONS_1F1B, AGOQ_SCHEDULE_1F1B},
                 {OPTIONS_INTERLEAVED, AGOQ_SCHEDULE_INTERLEAVED}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        for (int pp = 1; pp <= 6; pp++) {
            for (int m = pp; m <= 4 * pp; m += pp) {
                const int v = kinds[k].mine == OPTIONS_INTERLEAVED ? 1 + m % 4 : 1;
                const schedule s = {kinds[k].mine, pp, m, v};
                const planner_schedule asked = {
                    kinds[k].planners, (uint32_t)pp, (uint32_t)m, (uint32_t)v, 0, 0};
                planner_ops ops;
                assert_int_equal(planner_ops_make(&asked, &ops), AGOQ_OK);
                for (int r = 0; r < pp; r++) {
                    schedule_op mine[2 * MOST * 4];
                    schedule_list(&s, r, mine);
                    assert_int_equal(ops.start[r + 1] - ops.start[r], 2 * m * v);
                    for (int i = 0; i < 2 * m * v; i++) {
                        const planner_op *op = &ops.ops[ops.start[r] + (uint32_t)i];
                        assert_int_equal(op->kind, mine[i].what == SCHEDULE_FORWARD ? PLANNER_OP_FORWARD
                                                                                    : PLANNER_OP_BACKWARD);
                        assert_int_equal(op->microbatch, mine[i].microbatch);
                        assert_int_equal(op->chunk, mine[i].chunk);
                    }
                }
                planner_ops_fini(&ops);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_planner_plays_these_lists),
        cmocka_unit_test(one_chunk),
        cmocka_unit_test(interleaved),
        cmocka_unit_test(play_finds_deadlock),
        cmocka_unit_test(layers_are_spread),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
