/* Schedules: the lists play, closed forms and rows are what the lists give (a part of the shapes; all of them
 * in tests/full), the published vectors, the player's refusals against a second, slow player. */
#include <stdlib.h>

#include "common/mem.h"
#include "schedule_cases.h"

static void shapes(void **state) {
    (void)state;
    assert_true(case_sweep(6, 20, 4, 1) > 2000);
    for (uint32_t p = 7; p <= 16; p += 3) {
        for (uint32_t m = p - 1; m <= 64; m += 19) {
            for (int kind = 0; kind < AGOQ_N_SCHEDULES; kind++) {
                const uint32_t v = planner_schedule_chunks((agoq_schedule)kind);
                const planner_schedule s = {(agoq_schedule)kind, p, m, v ? v : 4, 0, 0};
                if (!planner_schedule_refused(&s)) case_check(&s, 1);
            }
        }
    }
}

static void letters(const planner_schedule *s, uint32_t rank, char *text, size_t size) {
    planner_ops ops;
    size_t used = 0;
    assert_int_equal(planner_ops_make(s, &ops), AGOQ_OK);
    for (uint32_t k = ops.start[rank]; k < ops.start[rank + 1]; k++) {
        const planner_op *op = &ops.ops[k];
        used += (size_t)snprintf(text + used, size - used, "%s%c%u%s", k == ops.start[rank] ? "" : " ",
                                 (op->chunk ? "fbiw" : "FBIW")[op->kind], op->microbatch,
                                 op->chunk > 1 ? "+" : "");
    }
    planner_ops_fini(&ops);
}

/* Lists short enough to follow by hand; small letters: chunk 1. */
static void lists_by_hand(void **state) {
    (void)state;
    static const struct {
        planner_schedule s;
        uint32_t rank;
        const char *list;
    } cases[] = {
        {{AGOQ_SCHEDULE_GPIPE, 2, 3, 1, 0, 0}, 0, "F0 F1 F2 B0 B1 B2"},
        {{AGOQ_SCHEDULE_1F1B, 2, 3, 1, 0, 0}, 0, "F0 F1 B0 F2 B1 B2"},
        {{AGOQ_SCHEDULE_1F1B, 2, 3, 1, 0, 0}, 1, "F0 B0 F1 B1 F2 B2"},
        {{AGOQ_SCHEDULE_INTERLEAVED, 2, 2, 2, 0, 0}, 1, "F0 F1 f0 b0 f1 b1 B0 B1"},
        {{AGOQ_SCHEDULE_INTERLEAVED, 2, 2, 2, 0, 1}, 1, "F0 F1 f0 f1 b0 b1 B0 B1"},
        {{AGOQ_SCHEDULE_INTERLEAVED, 2, 5, 2, 3, 0},
         1,
         "F0 F1 F2 f0 b0 f1 b1 f2 b2 F3 B0 F4 B1 f3 B2 f4 b3 b4 B3 B4"},
        {{AGOQ_SCHEDULE_ZB_H1, 3, 4, 1, 0, 0}, 1, "F0 F1 I0 F2 I1 W0 F3 I2 W1 I3 W2 W3"},
        {{AGOQ_SCHEDULE_ZB_H2, 3, 4, 1, 0, 0}, 1, "F0 F1 F2 I0 F3 I1 I2 W0 I3 W1 W2 W3"},
        {{AGOQ_SCHEDULE_ZB_V, 2, 3, 2, 0, 0}, 0, "F0 F1 F2 f0 i0 w0 f1 i1 w1 I0 W0 f2 i2 w2 I1 W1 I2 W2"},
        {{AGOQ_SCHEDULE_V_MIN, 1, 2, 2, 0, 0}, 0, "F0 f0 i0 I0 w0 W0 F1 f1 i1 I1 w1 W1"},
        {{AGOQ_SCHEDULE_DUALPIPE, 2, 4, 2, 0, 0}, 0, "F0 f2 F1 b2 f3 B0 b3 I1 W1"},
        {{AGOQ_SCHEDULE_DUALPIPEV, 1, 2, 2, 0, 0}, 0, "F0 f0 F1 b0 f1 B0 b1 I1 W1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[256];
        letters(&cases[i].s, cases[i].rank, text, sizeof text);
        assert_string_equal(text, cases[i].list);
    }
}

static planner_live_set rows_of(agoq_schedule kind, uint32_t p, uint32_t m, uint32_t v, planner_held held) {
    const planner_schedule s = {kind, p, m, v, 0, 0};
    planner_live_set set;
    assert_int_equal(planner_schedule_live(&s, held, &set), AGOQ_OK);
    return set;
}

static void published_vectors(void **state) {
    (void)state;
    planner_live_set set = rows_of(AGOQ_SCHEDULE_INTERLEAVED, 4, 8, 2, PLANNER_HELD_TO_WEIGHT);
    static const uint32_t rows[] = {8, 3, 7, 4, 8, 1, 7, 2, 6, 3, 5, 4, 7, 0, 6, 1, 5, 2, 4, 3, 5, 0, 4, 1};
    static const uint32_t start[] = {0, 2, 6, 10, 12};
    assert_memory_equal(set.start, start, sizeof start);
    assert_memory_equal(set.rows, rows, sizeof rows);
    planner_live_set_fini(&set);
    /* p = 8, v = 4: 10 to 16 vectors a rank; rank 0 by its chunks' maxima 48 for 39. */
    set = rows_of(AGOQ_SCHEDULE_INTERLEAVED, 8, 64, 4, PLANNER_HELD_TO_WEIGHT);
    for (uint32_t r = 0; r < 8; r++) assert_in_range(set.start[r + 1] - set.start[r], 10, 16);
    uint32_t most[4] = {0};
    for (uint32_t k = 0; k < 4 * set.start[1]; k++) {
        if (set.rows[k] > most[k % 4]) most[k % 4] = set.rows[k];
    }
    assert_int_equal(most[0] + most[1] + most[2] + most[3], 48);
    assert_int_equal(planner_live_units(set.rows, set.start[1], 4), 39);
    planner_live_set_fini(&set);
    /* A 70B model of 80 layers on p = 4: layers alive with 5 and with 10 chunks. */
    static const uint32_t five[] = {92, 84, 76, 68}, ten[] = {86, 82, 78, 74};
    for (uint32_t r = 0; r < 4; r++) {
        const planner_schedule s5 = {AGOQ_SCHEDULE_INTERLEAVED, 4, 64, 5, 0, 0},
                               s10 = {AGOQ_SCHEDULE_INTERLEAVED, 4, 64, 10, 0, 0};
        assert_int_equal(planner_schedule_units(&s5, r) * 4, five[r]);
        assert_int_equal(planner_schedule_units(&s10, r) * 2, ten[r]);
    }
}

/* Split backwards: (p - r) in full and r of what the input half leaves (ZB-H1); 2 (p - r) - 1 and 2 r
 * (ZB-H2). The second column counts the full ones. */
static void split_backward(void **state) {
    (void)state;
    for (uint32_t p = 1; p <= 12; p++) {
        for (uint32_t m = 1; m <= 40; m++) {
            planner_live_set h1 = rows_of(AGOQ_SCHEDULE_ZB_H1, p, m, 1, PLANNER_HELD_BOTH),
                             h2 = rows_of(AGOQ_SCHEDULE_ZB_H2, p, m, 1, PLANNER_HELD_BOTH);
            assert_int_equal(h1.start[p], p); /* one row a rank */
            assert_int_equal(h2.start[p], p);
            for (uint32_t r = 0; r < p; r++) {
                assert_int_equal(h1.rows[2 * r], case_least(m, p));
                assert_int_equal(h1.rows[2 * r + 1], case_least(m, p - r));
                assert_int_equal(h2.rows[2 * r], case_least(m, 2 * p - 1));
                assert_int_equal(h2.rows[2 * r + 1], case_least(m, 2 * (p - r) - 1));
            }
            planner_live_set_fini(&h1);
            planner_live_set_fini(&h2);
        }
    }
}

static void names_and_refusals(void **state) {
    (void)state;
    agoq_schedule kind = AGOQ_SCHEDULE_GPIPE;
    for (int i = 0; i < AGOQ_N_SCHEDULES; i++) {
        assert_int_equal(planner_schedule_find(planner_schedule_name((agoq_schedule)i), &kind), 0);
        assert_int_equal(kind, i);
        assert_string_equal(planner_schedule_names()[i], planner_schedule_name(kind));
    }
    assert_null(planner_schedule_names()[AGOQ_N_SCHEDULES]);
    assert_null(planner_schedule_name(AGOQ_N_SCHEDULES));
    assert_int_equal(planner_schedule_find("zbv", &kind), -1);
    /* The numbers are the wire's. */
    assert_int_equal(AGOQ_SCHEDULE_INTERLEAVED, 2);
    assert_int_equal(AGOQ_SCHEDULE_DUALPIPEV, 9);
    static const struct {
        planner_schedule s;
        const char *why;
    } bad[] = {
        {{AGOQ_N_SCHEDULES, 4, 8, 1, 0, 0}, "no such schedule"},
        {{AGOQ_SCHEDULE_1F1B, 0, 8, 1, 0, 0}, "ranks"},
        {{AGOQ_SCHEDULE_1F1B, 1025, 8, 1, 0, 0}, "ranks"},
        {{AGOQ_SCHEDULE_1F1B, 4, 0, 1, 0, 0}, "micro-batches"},
        {{AGOQ_SCHEDULE_1F1B, 4, 65537, 1, 0, 0}, "micro-batches"},
        {{AGOQ_SCHEDULE_1F1B, 4, 8, 0, 0, 0}, "chunks"},
        {{AGOQ_SCHEDULE_INTERLEAVED, 4, 8, 65, 0, 0}, "chunks"},
        {{AGOQ_SCHEDULE_1F1B, 4, 8, 2, 0, 0}, "one chunk"},
        {{AGOQ_SCHEDULE_V_HALF, 4, 8, 1, 0, 0}, "two chunks"},
        {{AGOQ_SCHEDULE_INTERLEAVED, 4, 8, 2, 3, 0}, "group"},
        {{AGOQ_SCHEDULE_INTERLEAVED, 4, 9, 3, 4, 0}, "last group"},
        {{AGOQ_SCHEDULE_1F1B, 4, 8, 1, 4, 0}, "only the interleaved"},
        {{AGOQ_SCHEDULE_DUALPIPE, 3, 8, 2, 0, 0}, "even"},
        {{AGOQ_SCHEDULE_DUALPIPE, 4, 9, 2, 0, 0}, "even"},
        {{AGOQ_SCHEDULE_DUALPIPE, 4, 6, 2, 0, 0}, "twice"},
        {{AGOQ_SCHEDULE_DUALPIPEV, 4, 7, 2, 0, 0}, "twice"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        planner_ops ops;
        planner_live_set set;
        const char *why = planner_schedule_refused(&bad[i].s);
        assert_non_null(why);
        assert_non_null(strstr(why, bad[i].why));
        assert_int_equal(planner_ops_make(&bad[i].s, &ops), AGOQ_E_INVAL);
        assert_int_equal(planner_schedule_live(&bad[i].s, PLANNER_HELD_BOTH, &set), AGOQ_E_INVAL);
    }
}

/* Every piece of the model is held by one rank, by two in DualPipe, and consecutive pieces follow the path.
 */
static void pieces(void **state) {
    (void)state;
    for (int kind = 0; kind < AGOQ_N_SCHEDULES; kind++) {
        for (uint32_t p = 2; p <= 8; p += 2) {
            const uint32_t v = planner_schedule_chunks((agoq_schedule)kind);
            const planner_schedule s = {(agoq_schedule)kind, p, 2 * p, v ? v : 3, 0, 0};
            uint32_t held[64] = {0};
            for (uint32_t r = 0; r < p; r++) {
                for (uint32_t c = 0; c < s.n_chunks; c++) held[planner_schedule_piece(&s, r, c)]++;
            }
            const uint32_t n = planner_schedule_pieces(&s), copies = kind == AGOQ_SCHEDULE_DUALPIPE ? 2 : 1;
            assert_int_equal(n * copies, p * s.n_chunks);
            for (uint32_t k = 0; k < n; k++) assert_int_equal(held[k], copies);
            if (planner_schedule_route(s.kind) == PLANNER_ROUTE_VEE)
                assert_int_equal(planner_schedule_piece(&s, 0, 1), n - 1);
        }
    }
}

/* The order that the lists came from, played without a queue: one operation of any rank at a time. */
static int plays(const planner_ops *o) {
    static uint8_t done[4][8][64]; /* kind, microbatch, place */
    uint32_t at[8] = {0}, total = 0;
    int moved = 1;
    memset(done, 0, sizeof done);
    const uint32_t places = o->n_ranks * (o->route == PLANNER_ROUTE_TWO_WAY ? 1 : o->n_chunks);
    while (moved) {
        moved = 0;
        for (uint32_t r = 0; r < o->n_ranks; r++) {
            if (o->start[r] + at[r] == o->start[r + 1]) continue;
            const planner_op *op = &o->ops[o->start[r] + at[r]];
            const uint32_t p = o->n_ranks, c = op->chunk, b = op->microbatch;
            const int down = o->route == PLANNER_ROUTE_TWO_WAY && b >= o->n_microbatches / 2;
            if (o->route == PLANNER_ROUTE_TWO_WAY && (uint32_t)down != c) return 0;
            const uint32_t place = o->route == PLANNER_ROUTE_LOOP  ? c * p + r
                                   : o->route == PLANNER_ROUTE_VEE ? (c ? 2 * p - 1 - r : r)
                                                                   : (c ? p - 1 - r : r);
            const int whole = op->kind == PLANNER_OP_BACKWARD;
            int ready = 1;
            if (op->kind == PLANNER_OP_FORWARD) ready = !place || done[0][b][place - 1];
            if (op->kind == PLANNER_OP_FORWARD && done[0][b][place]) return 0;
            if (whole || op->kind == PLANNER_OP_INPUT) {
                if (!done[0][b][place] || done[2][b][place]) return 0;
                ready = place + 1 == places || done[2][b][place + 1];
            }
            if (op->kind == PLANNER_OP_WEIGHT && (!done[2][b][place] || done[3][b][place])) return 0;
            if (!ready) continue;
            if (whole) done[2][b][place] = 1, total++;
            done[whole ? PLANNER_OP_WEIGHT : op->kind][b][place] = 1;
            total++;
            at[r]++;
            moved = 1;
        }
    }
    for (uint32_t r = 0; r < o->n_ranks; r++) {
        if (o->start[r] + at[r] != o->start[r + 1]) return 0;
    }
    return total == 3 * o->n_microbatches * places;
}

/* Random damage to good lists; the player and the slow one agree on every one. */
static void damaged_lists(void **state) {
    (void)state;
    uint32_t good = 0, bad = 0, seed = 1;
    for (int round = 0; round < 20000; round++) {
        const int kind = round % AGOQ_N_SCHEDULES;
        const uint32_t v = planner_schedule_chunks((agoq_schedule)kind);
        const planner_schedule s = {
            (agoq_schedule)kind, 2 + 2 * (uint32_t)(round / 10 % 2), 8, v ? v : 3, 0, 0};
        planner_ops ops;
        planner_ops_fault fault = {0};
        assert_int_equal(planner_ops_make(&s, &ops), AGOQ_OK);
        for (int k = round / 20 % 4; k >= 0; k--) {
            seed = seed * 1664525u + 1013904223u;
            const uint32_t rank = (seed >> 8) % s.n_ranks, n = ops.start[rank + 1] - ops.start[rank];
            seed = seed * 1664525u + 1013904223u;
            const uint32_t a = ops.start[rank] + (seed >> 8) % n;
            const uint32_t b = a + 1 < ops.start[rank + 1] ? a + 1 : ops.start[rank];
            const planner_op kept = ops.ops[a];
            ops.ops[a] = ops.ops[b];
            if (seed >> 28) ops.ops[b] = kept; /* sometimes one is lost and another doubled */
        }
        const agoq_status status = planner_ops_check(&ops, &fault);
        assert_int_equal(status == AGOQ_OK, plays(&ops));
        if (status == AGOQ_OK) {
            good++;
        } else {
            bad++;
            assert_int_equal(status, AGOQ_E_INVAL);
            assert_true(fault.rank < s.n_ranks);
            assert_true(fault.at <= ops.start[fault.rank + 1] - ops.start[fault.rank]);
        }
        planner_ops_fini(&ops);
    }
    assert_true(good > 1000 && bad > 1000);
}

static void limits_and_memory(void **state) {
    (void)state;
    static uint32_t rows[CASE_ROWS * 64];
    uint32_t n;
    planner_ops ops;
    planner_live_set set;
    const planner_schedule huge = {AGOQ_SCHEDULE_1F1B, 1024, 65536, 1, 0, 0};
    assert_int_equal(planner_ops_make(&huge, &ops), AGOQ_E_LIMIT);
    assert_int_equal(planner_schedule_live(&huge, PLANNER_HELD_BOTH, &set), AGOQ_OK);
    for (uint32_t r = 0; r < 1024; r++) assert_int_equal(set.rows[2 * r], 1024 - r);
    planner_live_set_fini(&set);
    assert_int_equal(planner_live(AGOQ_SCHEDULE_GPIPE, 1024, 5, 65536, 1, rows, 1, &n), AGOQ_OK);
    assert_int_equal(rows[0], 65536);
    const planner_schedule wide = {AGOQ_SCHEDULE_V_MIN, 1024, 65536, 2, 0, 0};
    assert_int_equal(planner_schedule_live(&wide, PLANNER_HELD_BOTH, &set), AGOQ_E_LIMIT);
    const planner_schedule most = {AGOQ_SCHEDULE_INTERLEAVED, 64, 65536, 8, 0, 0};
    assert_int_equal(planner_schedule_live(&most, PLANNER_HELD_TO_WEIGHT, &set), AGOQ_OK);
    planner_live_set_fini(&set);
    static const agoq_schedule kinds[] = {AGOQ_SCHEDULE_V_HALF, AGOQ_SCHEDULE_DUALPIPE};
    for (int k = 0; k < 2; k++) {
        const planner_schedule s = {kinds[k], 4, 8, 2, 0, 0};
        agoq_status status = AGOQ_E_NOMEM;
        for (long at = 1; status != AGOQ_OK; at++) {
            mem_fail_after(at);
            status = planner_schedule_live(&s, PLANNER_HELD_BOTH, &set);
            mem_fail_after(0);
            if (status != AGOQ_OK) assert_int_equal(status, AGOQ_E_NOMEM);
            assert_true(at < 50);
        }
        planner_live_set_fini(&set);
        status = AGOQ_E_NOMEM;
        for (long at = 1; status != AGOQ_OK; at++) {
            planner_ops_fault fault;
            mem_fail_after(at);
            status = planner_ops_make(&s, &ops);
            if (status == AGOQ_OK) {
                status = planner_ops_check(&ops, &fault);
                planner_ops_fini(&ops);
            }
            mem_fail_after(0);
            if (status != AGOQ_OK) assert_int_equal(status, AGOQ_E_NOMEM);
            assert_true(at < 50);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shapes),
        cmocka_unit_test(lists_by_hand),
        cmocka_unit_test(published_vectors),
        cmocka_unit_test(split_backward),
        cmocka_unit_test(names_and_refusals),
        cmocka_unit_test(pieces),
        cmocka_unit_test(damaged_lists),
        cmocka_unit_test(limits_and_memory),
    };
    return cmocka_run_group_tests_name("schedule", tests, NULL, NULL);
}
