/* See sim_answer.h. Everything here goes through the planner's own functions on problems that the memory
 * model built; nothing is estimated beside them. The trade-off of --max: it builds the model again
 * for every value it tries, some thirty times, instead of trusting that bytes grow linearly. */
#include "agoqctl/sim_answer.h"

#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/mem.h"
#include "common/try.h"

/* Rows of a list, or with what was seen: the rows of the schedule, raised to the observed count. */
static agoq_status set_live(const sim_input *in, const planner_model *m, planner_model_problem *p) {
    const uint32_t v = m->run.chunks;
    if (m->run.no_live) {
        AGOQ_TRY(planner_ops_live_all(&in->ops, PLANNER_HELD_TO_WEIGHT, &p->live));
        for (uint32_t s = 0; s < m->run.pp; s++) {
            p->stages[s].live = p->live.rows + (size_t)p->live.start[s] * p->live.n_columns;
            p->stages[s].n_live = p->live.start[s + 1] - p->live.start[s];
            p->live_units[s] = planner_live_units(p->stages[s].live, p->stages[s].n_live, v);
        }
    }
    for (uint32_t s = 0; s < in->observed.n; s++) {
        const uint32_t was = p->live_units[s], seen = in->observed.value[s];
        if (seen <= was || !was) continue;
        for (uint32_t k = p->live.start[s] * v; k < p->live.start[s + 1] * v; k++) {
            const uint64_t scaled = ((uint64_t)p->live.rows[k] * seen + was - 1) / was;
            if (scaled > UINT32_MAX) return AGOQ_E_LIMIT;
            p->live.rows[k] = (uint32_t)scaled;
        }
        p->live_units[s] = planner_live_units(p->stages[s].live, p->stages[s].n_live, v);
    }
    return AGOQ_OK;
}

agoq_status sim_build(const sim_input *in, const planner_model *m, planner_model_problem *p) {
    AGOQ_TRY(planner_model_build(m, p));
    agoq_status status = set_live(in, m, p);
    if (status == AGOQ_OK && in->trainer) status = sim_trainer_bytes(m, m->run.no_live ? &in->ops : NULL, p);
    p->problem.objective = in->objective;
    if (status != AGOQ_OK) planner_model_fini(p);
    return status;
}

static double now_ms(void) {
    return (double)clock_us() / 1000.0;
}

/* What the schedule alone says of a rank. */
static agoq_status scheduled_units(const sim_input *in, uint32_t rank, uint32_t *units) {
    const planner_run *r = &in->model.run;
    const planner_schedule formula = {r->schedule, r->pp, r->microbatches, r->chunks, r->group, 0};
    uint32_t n = 0;
    if (!r->no_live) {
        *units = planner_schedule_units(&formula, rank);
        return AGOQ_OK;
    }
    uint32_t *rows = mem_alloc((size_t)PLANNER_MAX_LIVE * r->chunks * sizeof *rows);
    if (!rows) return AGOQ_E_NOMEM;
    const agoq_status status =
        planner_ops_live(&in->ops, rank, PLANNER_HELD_TO_WEIGHT, rows, PLANNER_MAX_LIVE, &n);
    *units = planner_live_units(rows, n, r->chunks);
    mem_free(rows);
    return status;
}

/* The CPU trainer's bytes are not the model's, so there the problem's own levers stand, less those that it
 * has no code for. Observed counts are of this schedule: no other one is tried. */
static agoq_status pull_levers(const sim_input *in, sim_answer *a) {
    planner_model m = in->model;
    if (!in->trainer) {
        m.run.route = planner_model_route(&m);
        m.run.no_live |= in->observed.n != 0;
        return planner_model_levers(&m, &a->p, &a->result);
    }
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        planner_stage_result *r = &a->result.stages[s];
        uint32_t n = 0;
        for (uint32_t k = 0; k < r->n_levers; k++) {
            const planner_lever_kind kind = r->levers[k].kind;
            if (kind != PLANNER_LEVER_RECOMPUTE_LAYERS && kind != PLANNER_LEVER_RECOMPUTE_GATE_UP &&
                kind != PLANNER_LEVER_OFFLOAD_LAYERS)
                r->levers[n++] = r->levers[k];
        }
        r->n_levers = n;
    }
    return AGOQ_OK;
}

agoq_status sim_answer_plan(const sim_input *in, sim_answer *a) {
    const double started = now_ms();
    AGOQ_TRY(sim_build(in, &in->model, &a->p));
    for (uint32_t s = 0; s < in->model.run.pp; s++) a->planned |= a->p.stages[s].n_items != 0;
    AGOQ_TRY(planner_solve(&a->p.problem, &a->result));
    a->solve_ms = now_ms() - started;
    for (uint32_t s = 0; s < in->observed.n; s++) {
        uint32_t units = 0;
        AGOQ_TRY(scheduled_units(in, s, &units));
        if (in->observed.value[s] > units) a->result.stages[s].why |= PLANNER_WHY_LIVE_ABOVE_SCHEDULE;
    }
    return pull_levers(in, a);
}

static sim_summary summary_of(const char *name, const planner_model_problem *p,
                              const planner_stage_result *stages, int is_plan) {
    sim_summary sum = {.name = name, .known = 1, .fits = 1, .error = is_plan ? 0 : NAN};
    double bits = 0;
    uint32_t with_bits = 0;
    for (uint32_t s = 0; s < p->problem.n_stages; s++) {
        const planner_stage_result *r = &stages[s], *worst = &stages[sum.stage];
        if (is_plan) sum.error += r->objective;
        if (r->bits_mean > 0) {
            bits += r->bits_mean;
            with_bits++;
        }
        if (r->overshoot_bytes) sum.fits = 0;
        if (r->predicted_peak_bytes > sum.most_bytes) sum.most_bytes = r->predicted_peak_bytes;
        if (r->overshoot_bytes != worst->overshoot_bytes ? r->overshoot_bytes > worst->overshoot_bytes
                                                         : r->slack_bytes < worst->slack_bytes)
            sum.stage = s;
    }
    sum.bits_mean = with_bits ? bits / with_bits : 0;
    sum.peak_bytes = stages[sum.stage].predicted_peak_bytes;
    sum.over_bytes = stages[sum.stage].overshoot_bytes;
    return sum;
}

/* The same job stored another way: what a framework alone would need. */
static agoq_status measure_other(const sim_input *in, const char *name, int recomputed, sim_summary *out) {
    planner_model m = in->model;
    planner_model_problem p = {0};
    *out = (sim_summary){.name = name};
    if (in->trainer || m.run.accounting > PLANNER_ACCOUNT_FUSED_14) return AGOQ_OK;
    m.run.storage = PLANNER_STORE_16;
    m.run.mode = PLANNER_BUDGET;
    if (recomputed) {
        m.run.recompute_layers = PLANNER_ALL_LAYERS;
        m.run.recompute = NULL;
        m.run.recompute_modules = 0;
    }
    agoq_status status = sim_build(in, &m, &p);
    planner_stage_result *stages = status == AGOQ_OK ? mem_zalloc(m.run.pp, sizeof *stages) : NULL;
    if (status == AGOQ_OK && !stages) status = AGOQ_E_NOMEM;
    if (status == AGOQ_OK) status = planner_measure_plan(&p.problem, NULL, stages);
    if (status == AGOQ_OK) *out = summary_of(name, &p, stages, 0);
    mem_free(stages);
    planner_model_fini(&p);
    return status;
}

/* The rule needs a live micro-batch on every stage. */
static agoq_status with_rule(sim_answer *a) {
    const uint32_t n = a->p.problem.n_stages;
    a->rule_bits = mem_zalloc(n, sizeof *a->rule_bits);
    a->rule = mem_zalloc(n, sizeof *a->rule);
    if (!a->rule_bits || !a->rule) return AGOQ_E_NOMEM;
    a->other[SIM_RULE] = (sim_summary){.name = "AGoQ's rule"};
    if (!a->planned) return AGOQ_OK;
    AGOQ_TRY(planner_paper_rule(a->p.live_units, n, a->rule_bits));
    AGOQ_TRY(planner_evaluate(&a->p.problem, a->rule_bits, a->rule));
    a->other[SIM_RULE] = summary_of("AGoQ's rule", &a->p, a->rule, 1);
    return AGOQ_OK;
}

static agoq_status compare(sim_answer *a) {
    static const char *const names[] = {"uniform 4", "uniform 5", "uniform 6", "uniform 8"};
    static const uint8_t widths[] = {4, 5, 6, 8};
    const uint32_t n = a->p.problem.n_stages;
    agoq_status status = AGOQ_OK;
    uint8_t *bits = mem_alloc(n);
    planner_stage_result *stages = mem_zalloc(n, sizeof *stages);
    if (!bits || !stages) status = AGOQ_E_NOMEM;
    a->compared[0] = a->other[SIM_RULE];
    for (int i = 0; status == AGOQ_OK && i < 4; i++) {
        memset(bits, widths[i], n);
        status = planner_evaluate(&a->p.problem, bits, stages);
        if (status == AGOQ_OK) a->compared[i + 1] = summary_of(names[i], &a->p, stages, 1);
    }
    for (int mode = 0; status == AGOQ_OK && mode < 2; mode++) {
        planner_problem problem = a->p.problem;
        planner_result result = {0};
        problem.mode = mode ? PLANNER_BUDGET : PLANNER_EQUALIZE;
        status = planner_solve(&problem, &result);
        if (status == AGOQ_OK)
            a->compared[5 + mode] = summary_of(mode ? "budget" : "equalize", &a->p, result.stages, 1);
        planner_result_fini(&result);
    }
    mem_free(bits);
    mem_free(stages);
    return status;
}

static void set_dimension(planner_model *m, int what, uint32_t value) {
    if (what == SIM_MAX_SEQ) m->run.seq = value;
    if (what == SIM_MAX_MBS) m->run.microbatch = value;
    if (what == SIM_MAX_LAYERS) m->shape.layers = value;
}

/* *fits 0 also where there is no such model; *possible says which. What fits at all fits at the least
 * widths: nothing is solved. */
static agoq_status try_value(const sim_input *in, uint64_t value, int *fits, int *possible, uint32_t *stage) {
    planner_model m = in->model;
    planner_model_problem p = {0};
    *fits = *possible = 0;
    if (value > UINT32_MAX) return AGOQ_OK;
    set_dimension(&m, in->max, (uint32_t)value);
    m.run.mode = PLANNER_BUDGET;
    if (planner_model_check(&m, NULL, 0) != AGOQ_OK) return AGOQ_OK;
    planner_stage_result *stages = mem_zalloc(m.run.pp, sizeof *stages);
    agoq_status status = stages ? sim_build(in, &m, &p) : AGOQ_E_NOMEM;
    if (status == AGOQ_OK) status = planner_measure_plan(&p.problem, NULL, stages);
    if (status == AGOQ_OK) {
        const sim_summary sum = summary_of("", &p, stages, 1);
        *possible = 1;
        *fits = sum.fits;
        *stage = sum.stage;
    }
    mem_free(stages);
    planner_model_fini(&p);
    return status == AGOQ_E_LIMIT ? AGOQ_OK : status;
}

/* Largest multiple of the unit that fits; more never takes less. */
static agoq_status find_largest(sim_input *in, sim_answer *a) {
    const planner_run *r = &in->model.run;
    uint64_t low = 0, high = 1;
    int fits = 1, possible = 1;
    a->unit = 1;
    if (in->max == SIM_MAX_SEQ) a->unit = 128 * r->cp * (r->sequence_parallel ? r->tp : 1);
    if (in->max == SIM_MAX_LAYERS && r->chunks > 1) a->unit = planner_model_n_virtual(&in->model);
    if (in->max == SIM_MAX_LAYERS && a->unit == 1) high = r->pp;
    for (; fits; high *= 2) {
        AGOQ_TRY(try_value(in, high * a->unit, &fits, &possible, &a->next_stage));
        if (!fits) break;
        low = high;
    }
    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        uint32_t stage = 0;
        AGOQ_TRY(try_value(in, middle * a->unit, &fits, &possible, &stage));
        if (fits) {
            low = middle;
        } else {
            high = middle;
            a->next_stage = stage;
        }
    }
    AGOQ_TRY(try_value(in, high * a->unit, &fits, &possible, &a->next_stage));
    if (!possible && low) a->limit = "no more is possible with these settings";
    a->largest = low * a->unit;
    set_dimension(&in->model, in->max, (uint32_t)(low ? a->largest : high * a->unit));
    return AGOQ_OK;
}

agoq_status sim_answer_make(sim_input *in, sim_answer *a) {
    if (in->max) AGOQ_TRY(find_largest(in, a));
    AGOQ_TRY(sim_answer_plan(in, a));
    AGOQ_TRY(with_rule(a));
    AGOQ_TRY(measure_other(in, "16 bits", 0, &a->other[SIM_AT_16]));
    AGOQ_TRY(measure_other(in, "full recomputation", 1, &a->other[SIM_RECOMPUTED]));
    return in->compare && a->planned ? compare(a) : AGOQ_OK;
}

void sim_answer_fini(sim_answer *a) {
    mem_free(a->rule);
    mem_free(a->rule_bits);
    planner_result_fini(&a->result);
    planner_model_fini(&a->p);
    *a = (sim_answer){0};
}
