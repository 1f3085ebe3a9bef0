/* Levers: each is pulled by rebuilding the problem, and the bytes it promised must be what the rebuilt
 * problem saves at its least widths, to the byte; it says "enough" exactly if the rebuilt problem fits; and
 * its amount is the least. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model_cases.h"

#define GIB    ((uint64_t)1 << 30)
#define STAGES 4

typedef struct bench {
    planner_model model;
    planner_model_problem p;
    uint64_t least[STAGES]; /* predicted peak at least widths */
} bench;

static void least_peaks(const planner_problem *problem, uint64_t *peak) {
    static const uint8_t least[STAGES] = {4, 4, 4, 4};
    planner_stage_result r[STAGES];
    assert_int_equal(planner_evaluate(problem, least, r), AGOQ_OK);
    for (int s = 0; s < STAGES; s++) peak[s] = r[s].predicted_peak_bytes;
}

static bench make_bench(void) {
    bench b = {.model = model_llama3_8b(STAGES, 1)};
    b.model.run.microbatch = 2;
    assert_int_equal(planner_model_build(&b.model, &b.p), AGOQ_OK);
    least_peaks(&b.p.problem, b.least);
    return b;
}

static planner_stage_result overshoot(bench *b, uint64_t bytes) {
    planner_result r;
    b->p.stages[0].budget_bytes = b->least[0] - bytes;
    assert_int_equal(planner_solve(&b->p.problem, &r), AGOQ_OK);
    const planner_stage_result stage = r.stages[0];
    assert_false(r.feasible);
    assert_int_equal(stage.overshoot_bytes, bytes);
    for (uint32_t k = 1; k < stage.n_levers; k++)
        assert_true(stage.levers[k - 1].enough >= stage.levers[k].enough);
    planner_result_fini(&r);
    return stage;
}

static const planner_lever *find(const planner_stage_result *r, planner_lever_kind kind) {
    for (uint32_t k = 0; k < r->n_levers; k++) {
        if (r->levers[k].kind == kind) return &r->levers[k];
    }
    return NULL;
}

static uint64_t layer_bytes(const bench *b) {
    uint64_t sum = 0;
    for (int i = 0; i < 5; i++) {
        const planner_item *item = &b->p.items[i];
        sum += planner_item_bytes(item, item->widths & 1 ? 4 : item->widths & 8 ? 8 : 16, 0);
    }
    return sum;
}

static uint64_t gate_up_bytes(const bench *b) {
    for (int i = 0; i < 5; i++) {
        if (b->p.items[i].role == AGOQ_ROLE_MLP_GATE_UP) return planner_item_bytes(&b->p.items[i], 4, 0);
    }
    return 0;
}

/* Peaks at least widths after stage 0 has `amount` of a lever. */
static void pull(const bench *b, planner_lever_kind kind, int amount, int to, uint64_t peak[STAGES]) {
    planner_model_problem p;
    assert_int_equal(planner_model_build(&b->model, &p), AGOQ_OK);
    planner_stage *s = &p.stages[0];
    uint32_t live = s->live[0] - (uint32_t)amount;
    for (uint32_t i = 0; i < s->n_items; i++) {
        planner_item *item = &p.items[i];
        if (kind == PLANNER_LEVER_LOWER_PIN) {
            if (item->role == AGOQ_ROLE_ATTN_QKV) item->widths |= AGOQ_MASK_8;
        } else if (kind == PLANNER_LEVER_RECOMPUTE_GATE_UP) {
            if (item->role == AGOQ_ROLE_MLP_GATE_UP && item->layer < (uint32_t)amount) item->count = 0;
        } else if (kind != PLANNER_LEVER_FEWER_LIVE && item->layer < (uint32_t)amount) {
            const int input = kind == PLANNER_LEVER_RECOMPUTE_LAYERS && item->role == AGOQ_ROLE_ATTN_NORM_IN;
            if (input)
                item->widths = AGOQ_MASK_16;
            else
                item->count = 0;
        }
    }
    if (kind == PLANNER_LEVER_RECOMPUTE_LAYERS && amount) s->phase[0].workspace_bytes += layer_bytes(b);
    if (kind == PLANNER_LEVER_OFFLOAD_LAYERS && amount) s->phase[0].workspace_bytes += 2 * layer_bytes(b);
    if (kind == PLANNER_LEVER_RECOMPUTE_GATE_UP && amount) s->phase[0].workspace_bytes += gate_up_bytes(b);
    if (kind == PLANNER_LEVER_FEWER_LIVE) s->live = &live;
    least_peaks(&p.problem, peak);
    if (kind ==
        PLANNER_LEVER_MOVE_LAYERS) /* what arrives there, weights as an equal share of all that stage 0 has */
        peak[to] += (uint64_t)amount * (layer_bytes(b) * p.stages[to].live[0] + s->phase[0].static_bytes / 8);
    planner_model_fini(&p);
}

static void check_lever(const bench *b, const planner_stage_result *r, planner_lever_kind kind) {
    const planner_lever *l = find(r, kind);
    uint64_t peak[STAGES];
    assert_non_null(l);
    pull(b, kind, l->amount, l->to, peak);
    assert_int_equal(b->least[0] - peak[0], l->saves_bytes);
    assert_int_equal(l->enough, peak[0] <= b->p.stages[0].budget_bytes);
    if (kind == PLANNER_LEVER_LOWER_PIN) {
        assert_true(l->role == AGOQ_ROLE_ATTN_QKV && l->amount == 8);
        return;
    }
    if (l->amount > 1) { /* no smaller amount would do */
        pull(b, kind, l->amount - 1, l->to, peak);
        assert_true(peak[0] > b->p.stages[0].budget_bytes);
    }
}

static void promises_are_kept(void **state) {
    (void)state;
    bench b = make_bench();
    static const uint64_t eighths[] = {1, 4, 12, 20, 32, 44, 60};
    int enough = 0, not_enough = 0;
    for (size_t i = 0; i < sizeof eighths / sizeof *eighths; i++) {
        const planner_stage_result r = overshoot(&b, eighths[i] * GIB / 8);
        static const planner_lever_kind kinds[] = {
            PLANNER_LEVER_RECOMPUTE_LAYERS, PLANNER_LEVER_MOVE_LAYERS,       PLANNER_LEVER_FEWER_LIVE,
            PLANNER_LEVER_LOWER_PIN,        PLANNER_LEVER_RECOMPUTE_GATE_UP, PLANNER_LEVER_OFFLOAD_LAYERS};
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
            check_lever(&b, &r, kinds[k]);
            enough += find(&r, kinds[k])->enough;
            not_enough += !find(&r, kinds[k])->enough;
        }
    }
    assert_true(enough > 8 && not_enough > 4);
    planner_model_fini(&b.p);
}

/* Layers go where there is most room, and only as many as fit there. */
static void destination_has_room(void **state) {
    (void)state;
    bench b = make_bench();
    const uint64_t share = b.p.stages[0].phase[0].static_bytes / 8,
                   room[STAGES] = {0, 1 * GIB, 9 * GIB, 14 * GIB};
    for (int s = 1; s < STAGES; s++) b.p.stages[s].budget_bytes = b.least[s] + room[s];
    const planner_stage_result r = overshoot(&b, 8 * GIB);
    const planner_lever *l = find(&r, PLANNER_LEVER_MOVE_LAYERS);
    assert_non_null(l);
    const uint64_t each = layer_bytes(&b) * 1 + share; /* one live micro-batch on the last stage */
    assert_int_equal(l->to, 3);
    assert_int_equal(l->amount, (int)(room[3] / each));
    assert_false(l->enough);
    uint64_t peak[STAGES];
    pull(&b, PLANNER_LEVER_MOVE_LAYERS, l->amount, 3, peak);
    assert_true(peak[3] <= b.p.stages[3].budget_bytes);
    /* No room anywhere: no such lever. */
    for (int s = 1; s < STAGES; s++) b.p.stages[s].budget_bytes = b.least[s];
    const planner_stage_result full = overshoot(&b, GIB);
    assert_null(find(&full, PLANNER_LEVER_MOVE_LAYERS));
    planner_model_fini(&b.p);
}

/* Where the problem says what a layer's weights take, they leave with the layer and count where it arrives.
 */
static void weights_move_along(void **state) {
    (void)state;
    bench b = make_bench();
    for (int s = 0; s < STAGES; s++) b.p.stages[s].layer_static_bytes = GIB / 2;
    const planner_stage_result r = overshoot(&b, GIB / 4);
    const planner_lever *l = find(&r, PLANNER_LEVER_MOVE_LAYERS);
    assert_non_null(l);
    assert_true(l->amount == 1 && l->enough);
    assert_int_equal(l->saves_bytes, GIB / 2 + layer_bytes(&b) * b.p.stages[0].live[0]);
    /* Room there for the tensors alone is not enough. */
    for (int s = 1; s < STAGES; s++)
        b.p.stages[s].budget_bytes = b.least[s] + layer_bytes(&b) * b.p.stages[s].live[0] + GIB / 2 - 1;
    const planner_stage_result full = overshoot(&b, GIB / 4);
    assert_null(find(&full, PLANNER_LEVER_MOVE_LAYERS));
    planner_model_fini(&b.p);
}

/* The end of the model has the number of the last layer, and goes nowhere with it. */
static void the_end_stays(void **state) {
    (void)state;
    bench b = make_bench();
    planner_stage *last = &b.p.stages[STAGES - 1];
    planner_result r;
    last->budget_bytes = b.least[STAGES - 1] - 1000;
    assert_int_equal(planner_solve(&b.p.problem, &r), AGOQ_OK);
    const planner_stage_result *stage = &r.stages[STAGES - 1];
    const uint64_t input = 2ull * 4096 * 8192;
    assert_int_equal(find(stage, PLANNER_LEVER_MOVE_LAYERS)->saves_bytes, layer_bytes(&b));
    assert_int_equal(find(stage, PLANNER_LEVER_RECOMPUTE_LAYERS)->amount,
                     2); /* one of them is back at once */
    assert_int_equal(find(stage, PLANNER_LEVER_RECOMPUTE_LAYERS)->saves_bytes, layer_bytes(&b) - 2 * input);
    planner_result_fini(&r);
    planner_model_fini(&b.p);
}

/* What no width can help has no lever that pretends to. */
static void static_overshoot_is_not_promised_away(void **state) {
    (void)state;
    bench b = make_bench();
    planner_stage *s = &b.p.stages[0];
    s->phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes = 200 * GIB;
    least_peaks(&b.p.problem, b.least);
    const planner_stage_result r = overshoot(&b, GIB);
    assert_true(r.why & PLANNER_WHY_STATIC_ALONE);
    assert_int_equal(r.n_levers, 0);
    planner_model_fini(&b.p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(promises_are_kept),
        cmocka_unit_test(destination_has_room),
        cmocka_unit_test(weights_move_along),
        cmocka_unit_test(the_end_stays),
        cmocka_unit_test(static_overshoot_is_not_promised_away),
    };
    return cmocka_run_group_tests_name("levers", tests, NULL, NULL);
}
