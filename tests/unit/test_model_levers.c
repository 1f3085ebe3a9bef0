/* Levers that need the memory model, pulled for real; and the solver on the model's odd shapes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model_cases.h"

#define GIB ((uint64_t)1 << 30)

static planner_result solve(const planner_problem *problem) {
    planner_result result = {0};
    assert_int_equal(planner_solve(problem, &result), AGOQ_OK);
    return result;
}

/* The model with a lever of stage s pulled. 0: that lever is pulled in test_levers. */
static int pull(const planner_lever *l, uint32_t s, uint32_t layout[4], uint32_t recompute[4],
                planner_run *run) {
    switch (l->kind) {
    case PLANNER_LEVER_SHARD_OPTIMIZER:
        run->shard = PLANNER_SHARD_ZERO1;
        return 1;
    case PLANNER_LEVER_CHUNK_LOSS:
        run->loss_chunks = (uint32_t)l->amount;
        return 1;
    case PLANNER_LEVER_RAISE_TP:
        run->tp = (uint32_t)l->amount;
        return 1;
    case PLANNER_LEVER_RAISE_CP:
        run->cp = (uint32_t)l->amount;
        return 1;
    case PLANNER_LEVER_EXPANDABLE_SEGMENTS:
        run->margin_ppm = (uint32_t)l->amount;
        return 1;
    case PLANNER_LEVER_OTHER_SCHEDULE:
        run->schedule = (agoq_schedule)l->amount;
        run->chunks = (uint32_t)l->to;
        return 1;
    case PLANNER_LEVER_RECOMPUTE_LAYERS:
        recompute[s] = (uint32_t)l->amount;
        if (run->schedule == AGOQ_SCHEDULE_DUALPIPE) {
            assert_true(l->amount == 16 && l->to == PLANNER_LEVER_ALL); /* there all or none */
            recompute[3 - s] = 16;
        }
        run->recompute = recompute;
        return 1;
    case PLANNER_LEVER_RECOMPUTE_GATE_UP:
        run->recompute_modules |= PLANNER_RECOMPUTE_GATE_UP;
        return 1;
    case PLANNER_LEVER_MOVE_LAYERS:
        layout[s] -= (uint32_t)l->amount;
        layout[l->to] += (uint32_t)l->amount;
        run->layout = layout;
        return 1;
    case PLANNER_LEVER_LOWER_PIN:
        run->qkv_bits = 8;
        return 1;
    default:
        return 0;
    }
}

static void check_levers(const planner_model *m, uint32_t s, const planner_stage_result *r, int *pulled) {
    for (uint32_t k = 0; k < r->n_levers; k++) {
        const planner_lever *l = &r->levers[k];
        uint32_t layout[4] = {8, 8, 8, 8}, recompute[4] = {0};
        planner_model with = *m;
        planner_model_problem q;
        planner_result after;
        char text[160];
        planner_lever_text(l, s, text, sizeof text);
        assert_true(strlen(text) > 8 && planner_lever_name(l->kind));
        assert_int_equal(l->enough, l->saves_bytes >= r->overshoot_bytes);
        if (k && r->levers[k - 1].enough == l->enough) assert_true(r->levers[k - 1].cost_ms <= l->cost_ms);
        if (!pull(l, s, layout, recompute, &with.run)) continue;
        assert_int_equal(planner_model_build(&with, &q), AGOQ_OK);
        assert_int_equal(planner_solve(&q.problem, &after), AGOQ_OK);
        const uint64_t left = after.stages[s].overshoot_bytes;
        if (l->enough != (left == 0))
            fail_msg("%s: enough %d, still %llu over", text, l->enough, (unsigned long long)left);
        if (left) assert_int_equal(l->saves_bytes, r->overshoot_bytes - left);
        if (l->enough && l->kind == PLANNER_LEVER_MOVE_LAYERS) {
            const uint32_t to = (uint32_t)l->to, other = q.problem.same_as ? 3 - to : to;
            assert_true(!after.stages[to].overshoot_bytes && !after.stages[other].overshoot_bytes);
        }
        pulled[l->kind]++;
        planner_result_fini(&after);
        planner_model_fini(&q);
    }
}

static planner_model llama3_8b(void) {
    planner_model m = model_llama3_8b(4, 4);
    m.run.seq = 8192;
    m.run.margin_ppm = 200000;
    return m;
}

/* A lever says that it is enough if and only if the stage fits when the model is changed so. */
static void model_levers_are_true(void **state) {
    (void)state;
    static const int needed[] = {PLANNER_LEVER_RECOMPUTE_LAYERS, PLANNER_LEVER_MOVE_LAYERS,
                                 PLANNER_LEVER_LOWER_PIN,        PLANNER_LEVER_SHARD_OPTIMIZER,
                                 PLANNER_LEVER_RAISE_TP,         PLANNER_LEVER_RAISE_CP,
                                 PLANNER_LEVER_OTHER_SCHEDULE,   PLANNER_LEVER_EXPANDABLE_SEGMENTS,
                                 PLANNER_LEVER_CHUNK_LOSS};
    planner_model m = llama3_8b();
    int pulled[PLANNER_N_LEVERS] = {0};
    for (uint64_t gib = 24; gib <= 80; gib += 2) {
        planner_model_problem p;
        planner_result r;
        m.run.budget_bytes = gib * GIB;
        assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
        assert_int_equal(planner_solve(&p.problem, &r), AGOQ_OK);
        assert_int_equal(planner_model_levers(&m, &p, &r), AGOQ_OK);
        for (uint32_t s = 0; s < 4; s++) check_levers(&m, s, &r.stages[s], pulled);
        planner_result_fini(&r);
        planner_model_fini(&p);
    }
    for (size_t i = 0; i < sizeof needed / sizeof *needed; i++) {
        if (!pulled[needed[i]])
            fail_msg("never enough: %s", planner_lever_name((planner_lever_kind)needed[i]));
    }
}

/* What helps one stage does not depend on which others overshoot as well. */
static void stages_are_apart(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    planner_model_problem p;
    planner_result all, one;
    m.run.budget_bytes = 24 * GIB;
    m.run.shard = PLANNER_SHARD_ZERO1;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    assert_int_equal(planner_solve(&p.problem, &all), AGOQ_OK);
    assert_int_equal(planner_model_levers(&m, &p, &all), AGOQ_OK);
    int over = 0, moves = 0;
    for (uint32_t s = 0; s < 4; s++) {
        assert_int_equal(planner_solve(&p.problem, &one), AGOQ_OK);
        for (uint32_t other = 0; other < 4; other++) {
            if (other != s) one.stages[other].overshoot_bytes = 0;
        }
        over += one.stages[s].overshoot_bytes != 0;
        assert_int_equal(planner_model_levers(&m, &p, &one), AGOQ_OK);
        assert_int_equal(one.stages[s].n_levers, all.stages[s].n_levers);
        for (uint32_t k = 0; k < one.stages[s].n_levers; k++) {
            const planner_lever *a = &one.stages[s].levers[k], *b = &all.stages[s].levers[k];
            assert_true(a->kind == b->kind && a->amount == b->amount && a->to == b->to &&
                        a->enough == b->enough);
            assert_true(a->saves_bytes == b->saves_bytes && a->cost_ms == b->cost_ms);
            moves += a->kind == PLANNER_LEVER_MOVE_LAYERS;
        }
        planner_result_fini(&one);
    }
    assert_true(over >= 2 && moves >= 2);
    planner_result_fini(&all);
    planner_model_fini(&p);
}

/* Two ranks hold each layer: what moves, moves for both, and both ranks where it goes have room. */
static void levers_of_two_ways(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    int pulled[PLANNER_N_LEVERS] = {0};
    m.run.schedule = AGOQ_SCHEDULE_DUALPIPE;
    m.run.chunks = 2;
    for (uint64_t gib = 40; gib <= 130; gib += 2) {
        const uint64_t budgets[4] = {gib * GIB, (gib + 30) * GIB, (gib + 5) * GIB, (gib + 1) * GIB};
        planner_model_problem p;
        planner_result r;
        m.run.stage_budgets = budgets;
        assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
        assert_int_equal(planner_solve(&p.problem, &r), AGOQ_OK);
        assert_int_equal(planner_model_levers(&m, &p, &r), AGOQ_OK);
        for (uint32_t s = 0; s < 4; s++) {
            check_levers(&m, s, &r.stages[s], pulled);
            for (uint32_t k = 0; k < r.stages[s].n_levers; k++) {
                const planner_lever *l = &r.stages[s].levers[k];
                if (l->kind == PLANNER_LEVER_MOVE_LAYERS) assert_true(l->to != (int)s && l->to != 3 - (int)s);
            }
        }
        planner_result_fini(&r);
        planner_model_fini(&p);
    }
    assert_true(pulled[PLANNER_LEVER_MOVE_LAYERS] && pulled[PLANNER_LEVER_SHARD_OPTIMIZER] &&
                pulled[PLANNER_LEVER_OTHER_SCHEDULE] && pulled[PLANNER_LEVER_LOWER_PIN]);
}

/* One stage: one live micro-batch, everything at its largest width that fits. Fewer micro-batches than
 * stages: no stage holds more than there are, and early stages hold the same. */
static void few_stages_and_few_microbatches(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    planner_model_problem p;
    m.run.budget_bytes = 400 * GIB;
    m.run.pp = 1;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    assert_int_equal(p.live_units[0], 1);
    planner_result r = solve(&p.problem);
    assert_true(r.feasible && r.stages[0].why == PLANNER_WHY_ALL_AT_MAX && r.stages[0].bits_mean == 16);
    planner_result_fini(&r);
    planner_model_fini(&p);
    m.run.pp = 8;
    m.run.microbatches = 3;
    m.run.budget_bytes = 60 * GIB;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    static const uint32_t live[8] = {3, 3, 3, 3, 3, 3, 2, 1};
    assert_memory_equal(p.live_units, live, sizeof live);
    r = solve(&p.problem);
    assert_true(r.feasible && r.gap == 0);
    planner_result_fini(&r);
    planner_model_fini(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(model_levers_are_true),
        cmocka_unit_test(stages_are_apart),
        cmocka_unit_test(levers_of_two_ways),
        cmocka_unit_test(few_stages_and_few_microbatches),
    };
    return cmocka_run_group_tests_name("model_levers", tests, NULL, NULL);
}
