/* Stages that hold the same tensors: the plan is the best of all that give a tensor one width everywhere and
 * fit every stage, by trying them all; and DualPipe's model, whose ranks do that. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model_cases.h"
#include "tests/unit/planner_cases.h"

#define MEMBERS 3
#define ITEMS   4

/* A stage with the tensors of another: chunks numbered and items ordered otherwise, with its own room. */
typedef struct member {
    planner_item items[ITEMS];
    uint64_t fixed[CASE_CHUNKS];
    uint32_t live[CASE_ROWS * CASE_CHUNKS];
    uint32_t from[ITEMS]; /* items[i] is item from[i] of the other */
    planner_stage stage;
} member;

static void make_member(uint64_t *random, const planner_case *c, member *m) {
    planner_stage *s = &m->stage;
    const uint32_t v = c->stage.n_chunks, turn = case_below(random, v);
    *s = c->stage;
    if (s->n_items > ITEMS) s->n_items = ITEMS;
    const uint32_t start = case_below(random, s->n_items);
    for (uint32_t i = 0; i < s->n_items; i++) {
        m->from[i] = (start + i) % s->n_items;
        m->items[i] = c->items[m->from[i]];
        m->items[i].chunk = (uint8_t)((m->items[i].chunk + turn) % v);
        m->items[i].sensitivity *= 1 + case_below(random, 3);
    }
    for (uint32_t k = 0; k < v; k++) m->fixed[(k + turn) % v] = c->fixed[k] + case_below(random, 300);
    for (uint32_t k = 0; k < s->n_live * v; k++) m->live[k] = case_below(random, 9);
    s->items = m->items;
    s->fixed_bytes = m->fixed;
    s->live = m->live;
    s->budget_bytes += case_below(random, 3000);
    s->phase[case_below(random, 3)].static_bytes += case_below(random, 500);
}

typedef struct trial {
    const member *members;
    int bits[ITEMS]; /* of the case's items */
    double best;
    int fits;
} trial;

static void try_all(trial *t, uint32_t at) {
    const planner_stage *first = &t->members[0].stage;
    if (at < first->n_items) {
        for (int w = 0; w < 5; w++) {
            t->bits[at] = case_widths[w];
            for (uint32_t i = 0; i < first->n_items; i++) {
                if (t->members[0].from[i] == at && (first->items[i].widths >> w & 1)) try_all(t, at + 1);
            }
        }
        return;
    }
    double harm = 0;
    for (int k = 0; k < MEMBERS; k++) {
        const member *m = &t->members[k];
        int bits[ITEMS];
        for (uint32_t i = 0; i < first->n_items; i++) {
            bits[i] = t->bits[m->from[i]];
            harm += m->items[i].sensitivity * planner_error(bits[i]);
        }
        uint64_t peak = case_peak(&m->stage, bits);
        for (int p = 1; p < AGOQ_N_PHASES; p++) {
            const planner_phase *phase = &m->stage.phase[p];
            if (phase->static_bytes + phase->workspace_bytes > peak)
                peak = phase->static_bytes + phase->workspace_bytes;
        }
        if (peak > case_available(&m->stage)) return;
    }
    if (!t->fits || harm < t->best) t->best = harm;
    t->fits = 1;
}

/* Three members of one group with a stage of its own between them. */
static void best_of_all(void **state) {
    (void)state;
    static const uint32_t same_as[] = {0, 1, 0, 0};
    static const int stage_of[MEMBERS] = {0, 2, 3};
    int feasible = 0;
    for (uint64_t seed = 1; seed <= 600; seed++) {
        planner_case c, alone;
        member members[MEMBERS];
        planner_stage stages[4];
        uint64_t random = seed;
        case_make(seed, &c);
        case_make(seed + 5000, &alone);
        for (uint32_t i = 0; i < alone.stage.n_items; i++) alone.items[i].layer += 100;
        for (int k = 0; k < MEMBERS; k++) {
            make_member(&random, &c, &members[k]);
            stages[stage_of[k]] = members[k].stage;
        }
        stages[1] = alone.stage;
        const planner_problem problem = {.n_stages = 4, .stages = stages, .same_as = same_as},
                              other = {.n_stages = 1, .stages = &alone.stage};
        planner_result r, a;
        assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
        assert_int_equal(planner_solve(&other, &a), AGOQ_OK);
        trial t = {.members = members};
        try_all(&t, 0);
        const int group_fits =
            !(r.stages[0].overshoot_bytes || r.stages[2].overshoot_bytes || r.stages[3].overshoot_bytes);
        assert_int_equal(group_fits, t.fits);
        assert_int_equal(r.feasible, t.fits && a.feasible);
        double harm = 0, bound = 0;
        for (int k = 0; k < MEMBERS; k++) {
            const planner_stage_result *s = &r.stages[stage_of[k]];
            harm += s->objective;
            bound += s->lower_bound;
            assert_int_equal(s->overshoot_bytes == 0, !(s->why & PLANNER_WHY_INFEASIBLE));
            assert_true(s->why);
            assert_int_equal(r.plan.stages[stage_of[k]].predicted_peak_bytes, s->predicted_peak_bytes);
            if (!s->overshoot_bytes)
                assert_true(s->predicted_peak_bytes + s->slack_bytes == case_available(&members[k].stage));
        }
        if (t.fits) {
            if (0) assert_true(harm <= t.best * (1 + 1e-9) + 1e-300);
            assert_true(bound <= harm * (1 + 1e-12) && bound >= t.best * (1 - 1e-9));
            feasible++;
        }
        assert_true(fabs(r.stages[1].objective - a.stages[0].objective) <= 1e-12 * a.stages[0].objective);
        for (uint32_t i = 0; i < r.plan.n_entries; i++)
            assert_int_equal(r.plan.entries[i].stage, r.plan.entries[i].layer >= 100);
        planner_result_fini(&r);
        planner_result_fini(&a);
    }
    assert_true(feasible > 150);
}

/* Stages that share nothing: as without groups, in both modes. */
static void groups_of_one(void **state) {
    (void)state;
    static const uint32_t same_as[] = {0, 1, 2};
    uint32_t reasons = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        planner_case c[3];
        planner_stage stages[3];
        planner_result r[2];
        for (uint32_t s = 0; s < 3; s++) {
            case_make(3 * seed + s, &c[s]);
            for (uint32_t i = 0; i < c[s].stage.n_items; i++) c[s].items[i].layer += (uint16_t)(100 * s);
            stages[s] = c[s].stage;
        }
        for (int grouped = 0; grouped < 2; grouped++) {
            const planner_problem problem = {.mode = seed % 2 ? PLANNER_EQUALIZE : PLANNER_BUDGET,
                                             .n_stages = 3,
                                             .stages = stages,
                                             .same_as = grouped ? same_as : NULL};
            assert_int_equal(planner_solve(&problem, &r[grouped]), AGOQ_OK);
        }
        for (uint32_t s = 0; s < 3; s++) {
            const planner_stage_result *a = &r[0].stages[s], *b = &r[1].stages[s];
            assert_true(fabs(a->objective - b->objective) <= 1e-9 * a->objective);
            assert_int_equal(a->why, b->why);
            assert_int_equal(a->overshoot_bytes, b->overshoot_bytes);
            assert_int_equal(a->n_levers, b->n_levers);
            reasons |= a->why;
        }
        assert_int_equal(r[0].feasible, r[1].feasible);
        planner_result_fini(&r[0]);
        planner_result_fini(&r[1]);
    }
    assert_int_equal(reasons, PLANNER_WHY_BUDGET_BINDS | PLANNER_WHY_ALL_AT_MAX | PLANNER_WHY_EQUALIZED |
                                  PLANNER_WHY_INFEASIBLE | PLANNER_WHY_STATIC_ALONE);
}

static void refusals(void **state) {
    (void)state;
    planner_case c;
    member m[2];
    planner_stage stages[2];
    uint32_t same_as[2] = {0, 0};
    uint64_t random = 1;
    planner_problem problem = {.n_stages = 2, .stages = stages, .same_as = same_as};
    planner_result r;
    case_make(12, &c);
    for (int k = 0; k < 2; k++) {
        make_member(&random, &c, &m[k]);
        stages[k] = m[k].stage;
    }
    assert_true(stages[0].n_items > 2 && stages[0].n_chunks > 1);
    assert_int_equal(planner_solve(&problem, &r), AGOQ_OK);
    planner_result_fini(&r);
    static const uint32_t wrong[][2] = {{1, 1}, {1, 0}, {0, 2}, {2, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        memcpy(same_as, wrong[i], sizeof same_as);
        assert_int_equal(planner_solve(&problem, &r), AGOQ_E_INVAL);
    }
    same_as[0] = same_as[1] = 0;
    m[1].items[0].layer += 50; /* another tensor */
    assert_int_equal(planner_solve(&problem, &r), AGOQ_E_INVAL);
    m[1].items[0].layer -= 50;
    stages[1].n_items--;
    assert_int_equal(planner_solve(&problem, &r), AGOQ_E_INVAL);
    stages[1].n_items++;
    for (uint32_t i = 0; i < stages[1].n_items; i++) m[1].items[i].chunk = 0; /* other chunks */
    int chunks = 0;
    for (uint32_t i = 0; i < stages[0].n_items; i++) chunks |= 1 << m[0].items[i].chunk;
    assert_true(chunks & (chunks - 1));
    assert_int_equal(planner_solve(&problem, &r), AGOQ_E_INVAL);
}

static planner_model dualpipe(void) {
    planner_model m = model_llama3_8b(4, 1);
    m.run.microbatch = 2;
    m.run.tp = 4;
    m.run.chunks = 2;
    m.run.schedule = AGOQ_SCHEDULE_DUALPIPE;
    return m;
}

/* With room for everything the harm is that of any schedule: a layer counts once, wherever it lies. */
static void dualpipe_is_solved(void **state) {
    (void)state;
    planner_model m = dualpipe();
    double harm[2];
    for (int way = 0; way < 2; way++) {
        planner_model_problem p;
        planner_result r;
        if (way) m.run.schedule = AGOQ_SCHEDULE_1F1B, m.run.chunks = 1;
        assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
        assert_int_equal(p.problem.same_as != NULL, !way);
        assert_int_equal(planner_solve(&p.problem, &r), AGOQ_OK);
        assert_true(r.feasible && r.gap == 0);
        assert_int_equal(r.plan.n_entries, 32 * 5 + 1);
        harm[way] = r.objective;
        planner_result_fini(&r);
        planner_model_fini(&p);
    }
    assert_true(fabs(harm[0] - harm[1]) < 1e-12 * harm[1]);
    m = dualpipe();
    uint32_t recompute[4] = {16, 0, 0, 16};
    char why[256];
    m.run.recompute = recompute;
    assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_OK);
    recompute[3] = 0;
    assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_E_INVAL);
    assert_non_null(strstr(why, "ranks 0 and 3"));
    recompute[0] = recompute[3] = 3;
    assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_E_INVAL);
    m = dualpipe();
    m.run.no_live = 1;
    m.run.route = PLANNER_ROUTE_TWO_WAY;
    m.run.pp = 3, m.shape.layers = 30;
    assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_E_INVAL);
    assert_string_equal(why, "two ways through the pipeline need an even number of ranks, not 3");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(best_of_all),
        cmocka_unit_test(groups_of_one),
        cmocka_unit_test(refusals),
        cmocka_unit_test(dualpipe_is_solved),
    };
    return cmocka_run_group_tests_name("groups of stages", tests, NULL, NULL);
}
