/* Levers that need the memory model: each is pulled on a copy of the model, the problem is built anew, and
 * what the stage then needs at its least widths is what the lever saves. So a lever that says it is enough is
 * enough. Times are estimates with the rates of internal.h. */
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/model_internal.h"

#define MOST_CHUNKS_OF_LOSS 64u
#define MOST_TIMES_RANKS    16u

typedef struct pull {
    const planner_model *model;
    planner_stage_result *result;
    uint32_t stage;
    double forward_ms; /* of the stage, one micro-batch */
} pull;

/* Peaks at least widths of a changed model, on one stage and on another. *possible: it is a model. */
static agoq_status peaks_of(const planner_model *m, uint32_t stage, uint32_t other, uint64_t *peak,
                            uint64_t *other_slack, int *possible) {
    planner_model_problem p;
    *possible = planner_model_check(m, NULL, 0) == AGOQ_OK;
    if (!*possible) return AGOQ_OK;
    const agoq_status status = planner_model_build(m, &p);
    if (status == AGOQ_E_LIMIT) *possible = 0;
    if (status != AGOQ_OK) return status == AGOQ_E_LIMIT ? AGOQ_OK : status;
    const uint64_t available = planner_available(&p.stages[stage]),
                   need = planner_least_peak(&p.stages[stage]), room = planner_available(&p.stages[other]),
                   there = planner_least_peak(&p.stages[other]);
    /* Above the budget by so much; below it, how little does not matter. */
    *peak = need > available ? need - available : 0;
    *other_slack = room > there ? room - there : 0;
    planner_model_fini(&p);
    return AGOQ_OK;
}

/* Tries a changed model; adds the lever. *done: it is enough. */
static agoq_status try_model(pull *p, const planner_model *m, planner_lever lever, int *done) {
    uint64_t over, slack;
    int possible;
    *done = 0;
    AGOQ_TRY(peaks_of(m, p->stage, p->stage, &over, &slack, &possible));
    if (!possible) return AGOQ_OK;
    const uint64_t was = p->result->overshoot_bytes;
    lever.enough = over == 0;
    lever.saves_bytes = over ? was > over ? was - over : 0 : was + slack;
    lever.role = -1;
    planner_lever_add(p->result, lever);
    *done = lever.enough;
    return AGOQ_OK;
}

static agoq_status shard(pull *p) {
    planner_model m = *p->model;
    int done;
    if (m.run.shard != PLANNER_SHARD_NONE || planner_model_dims(&m).replicas < 2) return AGOQ_OK;
    m.run.shard = PLANNER_SHARD_ZERO1;
    return try_model(p, &m, (planner_lever){.kind = PLANNER_LEVER_SHARD_OPTIMIZER, .to = -1}, &done);
}

static agoq_status chunk_loss(pull *p) {
    planner_model m = *p->model;
    int done = 0;
    for (uint32_t n = m.run.loss_chunks > 1 ? 2 * m.run.loss_chunks : 2; n <= MOST_CHUNKS_OF_LOSS && !done;
         n *= 2) {
        m.run.loss_chunks = n;
        AGOQ_TRY(try_model(
            p, &m, (planner_lever){.kind = PLANNER_LEVER_CHUNK_LOSS, .amount = (int32_t)n, .to = -1}, &done));
    }
    return AGOQ_OK;
}

/* More ranks per stage. Each layer then sends its activations four times more in forward and backward. */
static agoq_status more_ranks(pull *p, planner_lever_kind kind) {
    const planner_dims d = planner_model_dims(p->model);
    const double layers = (double)p->model->shape.layers / p->model->run.pp;
    const double cols = kind == PLANNER_LEVER_RAISE_TP ? p->model->shape.hidden : (double)(2 * d.kv);
    planner_model m = *p->model;
    uint32_t *ranks = kind == PLANNER_LEVER_RAISE_TP ? &m.run.tp : &m.run.cp;
    const uint32_t now = *ranks ? *ranks : 1;
    int done = 0;
    for (uint32_t n = 2 * now; n <= MOST_TIMES_RANKS * now && !done; n *= 2) {
        *ranks = n;
        const double ms = 8e3 * layers * 2 * (double)d.tokens * cols * (1 - 1.0 / n) / PLANNER_LEVER_LINK;
        AGOQ_TRY(try_model(
            p, &m, (planner_lever){.kind = kind, .amount = (int32_t)n, .to = -1, .cost_ms = ms}, &done));
    }
    return AGOQ_OK;
}

/* More chunks cost traffic between stages, V-Min a longer bubble; the first that is enough, by time. */
static agoq_status other_schedule(pull *p) {
    const planner_run *run = &p->model->run;
    const double send =
        2e3 * 2 * (double)planner_model_dims(p->model).tokens * p->model->shape.hidden / PLANNER_LEVER_LINK;
    const double bubble = 3 * p->forward_ms * run->pp / (2.0 * run->microbatches);
    const struct {
        agoq_schedule schedule;
        uint32_t chunks;
        double ms;
    } others[] = {{AGOQ_SCHEDULE_1F1B, 1, 0},
                  {AGOQ_SCHEDULE_INTERLEAVED, 2 * run->chunks, send * 2 * run->chunks},
                  {AGOQ_SCHEDULE_INTERLEAVED, 4 * run->chunks, send * 4 * run->chunks},
                  {AGOQ_SCHEDULE_V_HALF, 2, send * 2},
                  {AGOQ_SCHEDULE_V_MIN, 2, send * 2 + bubble}};
    uint64_t least = UINT64_MAX;
    if (run->no_live || run->layout) return AGOQ_OK;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        planner_model m = *p->model;
        uint64_t over, slack;
        int possible, done;
        if (others[i].schedule == run->schedule && others[i].chunks == run->chunks) continue;
        m.run.schedule = others[i].schedule;
        m.run.chunks = others[i].chunks;
        m.run.group = 0;
        AGOQ_TRY(peaks_of(&m, p->stage, p->stage, &over, &slack, &possible));
        if (!possible || over >= least) continue;
        least = over;
        const planner_lever lever = {.kind = PLANNER_LEVER_OTHER_SCHEDULE,
                                     .amount = (int32_t)others[i].schedule,
                                     .to = (int32_t)others[i].chunks,
                                     .cost_ms = others[i].ms};
        AGOQ_TRY(try_model(p, &m, lever, &done));
        if (done) break;
    }
    return AGOQ_OK;
}

/* Layers moved to the stage that the problem's own lever found, now with their weights: exact. */
static agoq_status move_layers(pull *p) {
    const planner_model *model = p->model;
    const uint32_t pieces = planner_model_n_virtual(model);
    planner_model m = *model;
    planner_lever lever = {.to = -1};
    for (uint32_t i = 0; i < p->result->n_levers; i++) {
        if (p->result->levers[i].kind == PLANNER_LEVER_MOVE_LAYERS) lever = p->result->levers[i];
    }
    if (lever.to < 0 || planner_model_route(model) == PLANNER_ROUTE_TWO_WAY) return AGOQ_OK;
    const double each = lever.cost_ms / lever.amount;
    uint32_t *layout = mem_alloc(pieces * sizeof *layout);
    if (!layout) return AGOQ_E_NOMEM;
    const uint32_t from = planner_model_virtual(model, p->stage, 0),
                   to = planner_model_virtual(model, (uint32_t)lever.to, 0);
    agoq_status status = AGOQ_OK;
    int done = 0;
    for (uint32_t i = 0; i < pieces; i++) layout[i] = planner_model_layers_of(model, i);
    m.run.layout = layout;
    for (int32_t k = 1; layout[from] > 1 && !done && status == AGOQ_OK; k++) {
        uint64_t over, slack;
        int possible;
        layout[from]--;
        layout[to]++;
        status = peaks_of(&m, p->stage, (uint32_t)lever.to, &over, &slack, &possible);
        if (status != AGOQ_OK || !possible || !slack) break; /* the other stage is full */
        lever.amount = k;
        lever.cost_ms = each * k;
        const int32_t where = lever.to;
        status = try_model(p, &m, lever, &done);
        lever.to = where;
    }
    mem_free(layout);
    return status;
}

static agoq_status pull_all(pull *p) {
    AGOQ_TRY(move_layers(p));
    AGOQ_TRY(shard(p));
    AGOQ_TRY(chunk_loss(p));
    AGOQ_TRY(more_ranks(p, PLANNER_LEVER_RAISE_TP));
    AGOQ_TRY(more_ranks(p, PLANNER_LEVER_RAISE_CP));
    return other_schedule(p);
}

agoq_status planner_model_levers(const planner_model *model, const planner_model_problem *p,
                                 planner_result *result) {
    agoq_status status = AGOQ_OK;
    planner_model m = *model;
    uint64_t *budgets = mem_alloc(p->problem.n_stages * sizeof *budgets);
    if (!budgets) return AGOQ_E_NOMEM;
    for (uint32_t s = 0; s < p->problem.n_stages; s++) budgets[s] = p->stages[s].budget_bytes;
    m.run.stage_budgets = budgets; /* callers may have set others than the model's */
    for (uint32_t s = 0; s < p->problem.n_stages && status == AGOQ_OK; s++) {
        planner_stage_result *r = &result->stages[s];
        if (!r->overshoot_bytes) continue;
        pull one = {.model = &m,
                    .result = r,
                    .stage = s,
                    .forward_ms = 2e3 * (double)planner_model_dims(model).tokens *
                                  (double)p->parts[s].params / PLANNER_LEVER_FLOPS};
        status = pull_all(&one);
        planner_levers_sort(r);
    }
    mem_free(budgets);
    return status;
}
