/* What the quick and the long test of the schedules share: the closed forms as published, a play of every
 * state by brute force, and one check of a schedule against both. */
#ifndef TESTS_UNIT_SCHEDULE_CASES_H
#define TESTS_UNIT_SCHEDULE_CASES_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "planner/schedule.h"

enum { CASE_ROWS = PLANNER_MAX_LIVE, CASE_COLUMNS = 16 };

static inline uint32_t case_least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Largest number of chunks held until the weight gradient, of rank r. Where the literature's figure is not
 * what the lists give, the comment says what they give.
 * - ZB-H2 is published as up to 2p - 1; schedulers with a limit of 2p reach 2p.
 * - ZB-V, V-Half, V-Min: "2p, 2 ((p + 2) / 2), 2 ((p + 4) / 3) on every rank" holds once m is at least that
 *   minus r + 1: rank r never has more than r + 1 micro-batches in both chunks, so it holds m + r + 1 before.
 * - V-Min with p % 3 = 2: rank 0 stays one below. (And one shape, p = 5, m = 3, holds one less on rank 2.)
 * - DualPipe, DualPipeV: a forward runs beside a backward, so one more than the p (2p) of the warm-up. */
static inline uint32_t case_formula(const planner_schedule *s, uint32_t r) {
    const uint32_t p = s->n_ranks, m = s->n_microbatches, v = s->n_chunks;
    const uint32_t few = case_least(2 * m, m + r + 1);
    uint32_t group = s->group ? s->group : p;
    switch (s->kind) {
    case AGOQ_SCHEDULE_GPIPE:
        return m;
    case AGOQ_SCHEDULE_1F1B:
        return case_least(m, p - r);
    case AGOQ_SCHEDULE_INTERLEAVED:
        /* A last group smaller than p would deadlock: without a group given, the next one that works. */
        for (; !s->group && v > 1 && m > p && m % group > 0 && m % group < p;) group++;
        return case_least(m * v, 2 * (p - r - 1) + (v - 1) * group + 1 + s->ahead);
    case AGOQ_SCHEDULE_ZB_H1:
        return case_least(m, p);
    case AGOQ_SCHEDULE_ZB_H2:
        return case_least(m, 2 * p - 1);
    case AGOQ_SCHEDULE_ZB_V:
        return case_least(few, 2 * p);
    case AGOQ_SCHEDULE_V_HALF:
        return case_least(few, 2 * ((p + 2) / 2));
    case AGOQ_SCHEDULE_V_MIN:
        if (p == 5 && m == 3 && r == 2) return 5;
        return case_least(few, 2 * ((p + 4) / 3) - (p % 3 == 2 && r == 0));
    case AGOQ_SCHEDULE_DUALPIPE:
        return p + 1;
    default:
        return 2 * p + 1;
    }
}

/* Every state of a rank, before and after each operation: each is covered by a row, and each row is a state.
 */
static inline void case_states(const planner_ops *ops, uint32_t rank, planner_held held, const uint32_t *rows,
                               uint32_t n_rows) {
    const uint32_t v = ops->n_chunks, width = held == PLANNER_HELD_BOTH ? 2 * v : v;
    uint32_t live[CASE_COLUMNS] = {0};
    static uint8_t met[CASE_ROWS];
    memset(met, 0, n_rows);
    for (uint32_t k = ops->start[rank]; k < ops->start[rank + 1]; k++) {
        const planner_op *op = &ops->ops[k];
        if (op->kind == PLANNER_OP_FORWARD) live[op->chunk]++, live[v + op->chunk]++;
        if (op->kind == PLANNER_OP_BACKWARD || op->kind == PLANNER_OP_WEIGHT) live[op->chunk]--;
        if (op->kind == PLANNER_OP_BACKWARD || op->kind == PLANNER_OP_INPUT) live[v + op->chunk]--;
        int covered = 0;
        for (uint32_t r = 0; r < n_rows; r++) {
            uint32_t c = 0, equal = 0;
            while (c < width && live[c] <= rows[r * width + c]) equal += live[c] == rows[r * width + c], c++;
            covered |= c == width;
            met[r] |= equal == width && c == width;
        }
        assert_true(covered);
    }
    for (uint32_t c = 0; c < 2 * v; c++) assert_int_equal(live[c], 0);
    for (uint32_t r = 0; r < n_rows; r++) assert_true(met[r]);
}

/* Rows descend and none covers another. */
static inline void case_order(const uint32_t *rows, uint32_t n_rows, uint32_t width) {
    for (uint32_t a = 0; a < n_rows; a++) {
        for (uint32_t b = 0; b < n_rows; b++) {
            uint32_t c = 0, first = 0;
            while (c < width && rows[a * width + c] <= rows[b * width + c]) c++;
            while (first < width && rows[a * width + first] == rows[b * width + first]) first++;
            if (a != b) assert_true(c < width);
            if (a < b) assert_true(rows[a * width + first] > rows[b * width + first]);
        }
    }
}

static inline void case_same_sets(const planner_live_set *a, const planner_live_set *b) {
    assert_int_equal(a->n_columns, b->n_columns);
    assert_int_equal(a->n_ranks, b->n_ranks);
    assert_memory_equal(a->start, b->start, (a->n_ranks + 1) * sizeof *a->start);
    assert_memory_equal(a->rows, b->rows, (size_t)a->start[a->n_ranks] * a->n_columns * sizeof *a->rows);
}

static inline void case_formula_holds(const planner_schedule *s, const planner_ops *ops) {
    static uint32_t rows[CASE_ROWS * CASE_COLUMNS];
    uint32_t n;
    for (uint32_t r = 0; r < s->n_ranks; r++) {
        assert_int_equal(planner_ops_live(ops, r, PLANNER_HELD_TO_WEIGHT, rows, CASE_ROWS, &n), AGOQ_OK);
        const uint32_t units = planner_live_units(rows, n, s->n_chunks), formula = case_formula(s, r);
        if (units != formula)
            fail_msg("%s p %u m %u v %u group %u rank %u: %u live, formula %u",
                     planner_schedule_name(s->kind), s->n_ranks, s->n_microbatches, s->n_chunks, s->group, r,
                     units, formula);
        assert_in_range(planner_schedule_units(s, r), units, units + (s->kind == AGOQ_SCHEDULE_V_MIN));
    }
}

/* The list plays, the formula is what it says, leaving micro-batches out changes no row; with states: rows
 * are exactly the maxima of all states. */
static inline void case_check(const planner_schedule *s, int states) {
    planner_ops ops;
    planner_ops_fault fault = {.what = ""};
    assert_int_equal(planner_ops_make(s, &ops), AGOQ_OK);
    if (planner_ops_check(&ops, &fault) != AGOQ_OK)
        fail_msg("%s p %u m %u v %u group %u: rank %u operation %u: %s", planner_schedule_name(s->kind),
                 s->n_ranks, s->n_microbatches, s->n_chunks, s->group, fault.rank, fault.at, fault.what);
    case_formula_holds(s, &ops);
    for (int held = PLANNER_HELD_TO_WEIGHT; held <= PLANNER_HELD_BOTH; held++) {
        planner_live_set all, some;
        assert_int_equal(planner_ops_live_all(&ops, (planner_held)held, &all), AGOQ_OK);
        assert_int_equal(planner_schedule_live(s, (planner_held)held, &some), AGOQ_OK);
        case_same_sets(&all, &some);
        for (uint32_t r = 0; states && r < s->n_ranks; r++) {
            const uint32_t *rows = all.rows + (size_t)all.start[r] * all.n_columns;
            const uint32_t n = all.start[r + 1] - all.start[r];
            case_states(&ops, r, (planner_held)held, rows, n);
            case_order(rows, n, all.n_columns);
        }
        planner_live_set_fini(&all);
        planner_live_set_fini(&some);
    }
    planner_ops_fini(&ops);
}

/* Every kind and shape up to these sizes that exists; the number of them. Groups: as chosen, p + 1 and p + 4,
 * and one forward ahead. */
static inline uint32_t case_sweep(uint32_t most_p, uint32_t most_m, uint32_t most_v, int states) {
    uint32_t n = 0;
    for (uint32_t p = 1; p <= most_p; p++) {
        for (uint32_t m = 1; m <= most_m; m++) {
            for (int kind = 0; kind < AGOQ_N_SCHEDULES; kind++) {
                const int any = kind == AGOQ_SCHEDULE_INTERLEAVED;
                for (uint32_t v = 1; v <= most_v; v++) {
                    for (uint32_t k = 0; k < (any ? 4 : 1); k++) {
                        const planner_schedule s = {.kind = (agoq_schedule)kind,
                                                    .n_ranks = p,
                                                    .n_microbatches = m,
                                                    .n_chunks = v,
                                                    .group = k == 1   ? p + 1
                                                             : k == 2 ? p + 4
                                                                      : 0,
                                                    .ahead = k == 3};
                        if (planner_schedule_refused(&s)) continue;
                        case_check(&s, states);
                        n++;
                    }
                }
            }
        }
    }
    return n;
}

#endif
