/* Levers that need the memory model: each is pulled on a copy of the model, the problem is built anew, and
 * what a stage then needs at its least widths is what the lever saves there. So a lever that says it is
 * enough is enough. A changed model is built once and looked at from every stage that overshoots; where
 * layers move, only the stages that it touches are. Times are estimates with the rates of internal.h. */
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/model_internal.h"

#define MOST_CHUNKS_OF_LOSS 64u
#define MOST_TIMES_RANKS    16u

typedef struct pulls {
    const planner_model *model;
    const planner_model_problem *p;
    planner_result *result;
    uint32_t n, n_left; /* stages; those that overshoot and are not done */
    uint8_t *done;      /* [n]: the lever at work is enough */
    uint64_t *least;    /* [n]: least overshoot that the lever at work has left */
} pulls;

static void start(pulls *p) {
    p->n_left = 0;
    for (uint32_t s = 0; s < p->n; s++) {
        p->least[s] = UINT64_MAX;
        p->done[s] = !p->result->stages[s].overshoot_bytes;
        p->n_left += !p->done[s];
    }
}

/* Of a stage, one micro-batch. */
static double forward_ms(const pulls *p, uint32_t s) {
    return 2e3 * (double)planner_model_dims(p->model).tokens * (double)p->p->parts[s].params /
           PLANNER_LEVER_FLOPS;
}

/* Above the budget by so much, or below it by so much. */
static void compare(const planner_stage *stage, uint64_t *over, uint64_t *slack) {
    const uint64_t available = planner_available(stage), need = planner_least_peak(stage);
    *over = need > available ? need - available : 0;
    *slack = available > need ? available - need : 0;
}

static int add_lever(planner_stage_result *r, planner_lever lever, const planner_stage *changed) {
    uint64_t over, slack;
    compare(changed, &over, &slack);
    const uint64_t was = r->overshoot_bytes;
    lever.enough = over == 0;
    lever.saves_bytes = over ? was > over ? was - over : 0 : was + slack;
    if (lever.kind != PLANNER_LEVER_LOWER_PIN) lever.role = -1;
    planner_lever_add(r, lever);
    return lever.enough;
}

/* The changed model; live vectors stay what they are unless the schedule changes. *possible: it is a model.
 */
static agoq_status build(const pulls *p, const planner_model *changed, planner_model_problem *q,
                         int *possible) {
    planner_model m = *changed;
    const int same = m.run.schedule == p->model->run.schedule && m.run.chunks == p->model->run.chunks;
    *possible = planner_model_check(&m, NULL, 0) == AGOQ_OK;
    if (!*possible) return AGOQ_OK;
    m.run.route = planner_model_route(&m);
    m.run.no_live |= same;
    const agoq_status status = planner_model_build(&m, q);
    *possible = status == AGOQ_OK;
    for (uint32_t s = 0; *possible && same && s < p->n; s++) {
        q->stages[s].live = p->p->stages[s].live;
        q->stages[s].n_live = p->p->stages[s].n_live;
    }
    return status == AGOQ_E_LIMIT ? AGOQ_OK : status;
}

/* Tries a changed model on all stages that still overshoot. forwards: of the stage's forward passes, what the
 * lever costs besides; only_better: if it leaves less than those before. */
static agoq_status try_model(pulls *p, const planner_model *m, planner_lever lever, double forwards,
                             int only_better) {
    planner_model_problem q;
    int possible;
    const double ms = lever.cost_ms;
    AGOQ_TRY(build(p, m, &q, &possible));
    if (!possible) return AGOQ_OK;
    for (uint32_t s = 0; s < p->n; s++) {
        uint64_t over, slack;
        if (p->done[s]) continue;
        compare(&q.stages[s], &over, &slack);
        if (only_better && over >= p->least[s]) continue;
        p->least[s] = over;
        lever.cost_ms = ms + forwards * forward_ms(p, s);
        p->done[s] = (uint8_t)add_lever(&p->result->stages[s], lever, &q.stages[s]);
        p->n_left -= p->done[s];
    }
    planner_model_fini(&q);
    return AGOQ_OK;
}

static void drop_pin(planner_stage_result *r, int role) {
    for (uint32_t i = 0; i < r->n_levers; i++) {
        if (r->levers[i].kind != PLANNER_LEVER_LOWER_PIN || r->levers[i].role != role) continue;
        r->levers[i] = r->levers[--r->n_levers];
        return;
    }
}

/* One setting of the model is for both roles, and what backward unpacks follows it. */
static agoq_status lower_pin(pulls *p) {
    planner_model m = *p->model;
    for (uint32_t s = 0; s < p->n; s++) {
        drop_pin(&p->result->stages[s], AGOQ_ROLE_ATTN_QKV);
        drop_pin(&p->result->stages[s], AGOQ_ROLE_QK_NORM_IN);
    }
    if (m.run.qkv_bits == 8) return AGOQ_OK;
    m.run.qkv_bits = 8;
    start(p);
    return try_model(
        p, &m,
        (planner_lever){.kind = PLANNER_LEVER_LOWER_PIN, .amount = 8, .to = -1, .role = AGOQ_ROLE_ATTN_QKV},
        0, 0);
}

static agoq_status shard(pulls *p) {
    planner_model m = *p->model;
    if (m.run.shard != PLANNER_SHARD_NONE || planner_model_dims(&m).replicas < 2) return AGOQ_OK;
    m.run.shard = PLANNER_SHARD_ZERO1;
    start(p);
    return try_model(p, &m, (planner_lever){.kind = PLANNER_LEVER_SHARD_OPTIMIZER, .to = -1}, 0, 0);
}

static agoq_status chunk_loss(pulls *p) {
    planner_model m = *p->model;
    start(p);
    for (uint32_t n = m.run.loss_chunks > 1 ? 2 * m.run.loss_chunks : 2;
         n <= MOST_CHUNKS_OF_LOSS && p->n_left; n *= 2) {
        m.run.loss_chunks = n;
        AGOQ_TRY(try_model(
            p, &m, (planner_lever){.kind = PLANNER_LEVER_CHUNK_LOSS, .amount = (int32_t)n, .to = -1}, 0, 0));
    }
    return AGOQ_OK;
}

/* More ranks per stage. Each layer then sends its activations four times more in forward and backward. */
static agoq_status more_ranks(pulls *p, planner_lever_kind kind) {
    const planner_dims d = planner_model_dims(p->model);
    const double layers = (double)p->model->shape.layers / p->model->run.pp;
    const double cols = kind == PLANNER_LEVER_RAISE_TP ? p->model->shape.hidden : (double)(2 * d.kv);
    planner_model m = *p->model;
    uint32_t *ranks = kind == PLANNER_LEVER_RAISE_TP ? &m.run.tp : &m.run.cp;
    const uint32_t now = *ranks ? *ranks : 1;
    start(p);
    for (uint32_t n = 2 * now; n <= MOST_TIMES_RANKS * now && p->n_left; n *= 2) {
        *ranks = n;
        const double ms = 8e3 * layers * 2 * (double)d.tokens * cols * (1 - 1.0 / n) / PLANNER_LEVER_LINK;
        AGOQ_TRY(try_model(
            p, &m, (planner_lever){.kind = kind, .amount = (int32_t)n, .to = -1, .cost_ms = ms}, 0, 0));
    }
    return AGOQ_OK;
}

/* More chunks cost traffic between stages, V-Min a longer bubble; the first that is enough, by time. */
static agoq_status other_schedule(pulls *p) {
    const planner_run *run = &p->model->run;
    const double send =
        2e3 * 2 * (double)planner_model_dims(p->model).tokens * p->model->shape.hidden / PLANNER_LEVER_LINK;
    const double bubble = 3.0 * run->pp / (2.0 * run->microbatches); /* forward passes */
    const struct {
        agoq_schedule schedule;
        uint32_t chunks;
        double ms, forwards;
    } others[] = {{AGOQ_SCHEDULE_1F1B, 1, 0, 0},
                  {AGOQ_SCHEDULE_INTERLEAVED, 2 * run->chunks, send * 2 * run->chunks, 0},
                  {AGOQ_SCHEDULE_INTERLEAVED, 4 * run->chunks, send * 4 * run->chunks, 0},
                  {AGOQ_SCHEDULE_V_HALF, 2, send * 2, 0},
                  {AGOQ_SCHEDULE_V_MIN, 2, send * 2, bubble}};
    if (run->no_live || run->layout) return AGOQ_OK;
    start(p);
    for (size_t i = 0; i < sizeof others / sizeof *others && p->n_left; i++) {
        planner_model m = *p->model;
        if (others[i].schedule == run->schedule && others[i].chunks == run->chunks) continue;
        m.run.schedule = others[i].schedule;
        m.run.chunks = others[i].chunks;
        m.run.group = 0;
        const planner_lever lever = {.kind = PLANNER_LEVER_OTHER_SCHEDULE,
                                     .amount = (int32_t)others[i].schedule,
                                     .to = (int32_t)others[i].chunks,
                                     .cost_ms = others[i].ms};
        AGOQ_TRY(try_model(p, &m, lever, others[i].forwards, 1));
    }
    return AGOQ_OK;
}

/* A stage of a changed layout, with the live vectors that it has. */
typedef struct one_stage {
    planner_item *items;
    uint64_t *fixed;
    planner_parts parts;
    planner_stage stage;
} one_stage;

static agoq_status build_one(const pulls *p, const planner_model *m, uint32_t s, one_stage *one) {
    AGOQ_TRY(planner_model_build_stage(m, s, one->items, one->fixed, &one->parts, &one->stage));
    one->stage.live = p->p->stages[s].live;
    one->stage.n_live = p->p->stages[s].n_live;
    return AGOQ_OK;
}

/* Is there room for what has moved there, on every rank that holds it? */
static agoq_status has_room(const pulls *p, const planner_model *m, uint32_t to, one_stage *one, int *room) {
    const int two_way = planner_model_route(m) == PLANNER_ROUTE_TWO_WAY;
    const uint32_t ranks[2] = {to, m->run.pp - 1 - to};
    *room = 1;
    for (int i = 0; i <= two_way && *room; i++) {
        uint64_t over, slack;
        AGOQ_TRY(build_one(p, m, ranks[i], one));
        compare(&one->stage, &over, &slack);
        *room = slack > 0;
    }
    return AGOQ_OK;
}

/* What the problem alone said of a kind of lever, taken out of the list. */
static planner_lever take(planner_stage_result *r, planner_lever_kind kind) {
    planner_lever lever = {.to = -1};
    for (uint32_t i = 0; i < r->n_levers; i++) {
        if (r->levers[i].kind != kind) continue;
        lever = r->levers[i];
        r->levers[i] = r->levers[--r->n_levers];
        break;
    }
    return lever;
}

/* Layers moved to the stage that the problem's own lever found, now with their weights: exact. layout: of the
 * model, changed while this works. */
static agoq_status move_layers(const pulls *p, uint32_t s, uint32_t *layout, one_stage *one) {
    planner_model m = *p->model;
    planner_lever lever = take(&p->result->stages[s], PLANNER_LEVER_MOVE_LAYERS);
    if (lever.to < 0) return AGOQ_OK;
    const double each = lever.cost_ms / lever.amount;
    const uint32_t from = planner_model_virtual(p->model, s, 0),
                   to = planner_model_virtual(p->model, (uint32_t)lever.to, 0), had = layout[from],
                   had_there = layout[to];
    agoq_status status = AGOQ_OK;
    int enough = 0;
    m.run.layout = layout;
    for (int32_t k = 1; layout[from] > 1 && !enough && status == AGOQ_OK; k++) {
        int room = 0;
        layout[from]--;
        layout[to]++;
        if (planner_model_check(&m, NULL, 0) != AGOQ_OK) break;
        status = has_room(p, &m, (uint32_t)lever.to, one, &room);
        if (status == AGOQ_OK && room) status = build_one(p, &m, s, one);
        if (status != AGOQ_OK || !room) break; /* the other stage is full */
        lever.amount = k;
        lever.cost_ms = each * k;
        enough = add_lever(&p->result->stages[s], lever, &one->stage);
    }
    layout[from] = had;
    layout[to] = had_there;
    return status == AGOQ_E_LIMIT ? AGOQ_OK : status;
}

static agoq_status least_recomputing(const pulls *p, uint32_t s, uint32_t layers, one_stage *one,
                                     uint64_t *peak) {
    planner_model m = *p->model;
    m.run.recompute = NULL;
    m.run.recompute_layers = layers;
    AGOQ_TRY(build_one(p, &m, s, one));
    *peak = planner_least_peak(&one->stage);
    return AGOQ_OK;
}

/* The fewest layers that are enough, or that save as much as all do: layers are alike, so each one more
 * takes as much away as the one before, or nothing. Two ways: all of them, or the ranks would differ. */
static agoq_status recompute_layers(const pulls *p, uint32_t s, one_stage *one) {
    planner_stage_result *r = &p->result->stages[s];
    const uint32_t has = planner_model_rank_layers(p->model, s), had = planner_model_recomputed(p->model, s);
    uint32_t low = had + 1, high = has;
    uint64_t peak, goal;
    (void)take(r, PLANNER_LEVER_RECOMPUTE_LAYERS);
    if (had == has) return AGOQ_OK;
    AGOQ_TRY(least_recomputing(p, s, has, one, &goal));
    if (planner_available(&one->stage) > goal) goal = planner_available(&one->stage);
    if (planner_model_route(p->model) == PLANNER_ROUTE_TWO_WAY) low = has;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        AGOQ_TRY(least_recomputing(p, s, middle, one, &peak));
        if (peak <= goal)
            high = middle;
        else
            low = middle + 1;
    }
    AGOQ_TRY(least_recomputing(p, s, low, one, &peak));
    const double ms = 2e3 * (double)planner_model_dims(p->model).tokens *
                      (double)planner_model_layer_params(p->model) / PLANNER_LEVER_FLOPS;
    (void)add_lever(r,
                    (planner_lever){.kind = PLANNER_LEVER_RECOMPUTE_LAYERS,
                                    .amount = (int32_t)low,
                                    .to = low == has ? PLANNER_LEVER_ALL : -1,
                                    .cost_ms = ms * (low - had)},
                    &one->stage);
    return AGOQ_OK;
}

/* Gate and up of every layer that is not recomputed as a whole. */
static agoq_status recompute_gate_up(const pulls *p, uint32_t s, one_stage *one) {
    planner_stage_result *r = &p->result->stages[s];
    const planner_dims d = planner_model_dims(p->model);
    const uint32_t layers = planner_model_rank_layers(p->model, s) - planner_model_recomputed(p->model, s);
    planner_model m = *p->model;
    (void)take(r, PLANNER_LEVER_RECOMPUTE_GATE_UP);
    m.run.recompute_modules |= PLANNER_RECOMPUTE_GATE_UP;
    if (!layers || planner_model_check(&m, NULL, 0) != AGOQ_OK) return AGOQ_OK;
    AGOQ_TRY(build_one(p, &m, s, one));
    const double products = (double)m.shape.hidden * (double)d.ffn * (m.shape.no_gate ? 1 : 2);
    (void)add_lever(
        r,
        (planner_lever){.kind = PLANNER_LEVER_RECOMPUTE_GATE_UP,
                        .amount = (int32_t)layers,
                        .to = -1,
                        .cost_ms = 2e3 * (double)d.tokens * products * layers / PLANNER_LEVER_FLOPS},
        &one->stage);
    return AGOQ_OK;
}

/* Levers that change what one stage keeps, each stage apart. */
static agoq_status pull_apart(const pulls *p) {
    const uint32_t pieces = planner_model_n_virtual(p->model);
    agoq_status status = AGOQ_E_NOMEM;
    one_stage one = {.items = mem_alloc(planner_model_most_items(p->model) * sizeof *one.items),
                     .fixed = mem_alloc(p->model->run.chunks * sizeof *one.fixed)};
    uint32_t *layout = mem_alloc(pieces * sizeof *layout);
    if (!layout || !one.items || !one.fixed) goto out;
    for (uint32_t i = 0; i < pieces; i++) layout[i] = planner_model_layers_of(p->model, i);
    status = AGOQ_OK;
    for (uint32_t s = 0; s < p->n && status == AGOQ_OK; s++) {
        if (!p->result->stages[s].overshoot_bytes) continue;
        status = move_layers(p, s, layout, &one);
        if (status == AGOQ_OK) status = recompute_layers(p, s, &one);
        if (status == AGOQ_OK) status = recompute_gate_up(p, s, &one);
    }
out:
    mem_free(layout);
    mem_free(one.items);
    mem_free(one.fixed);
    return status;
}

static agoq_status pull_all(pulls *p) {
    AGOQ_TRY(pull_apart(p));
    AGOQ_TRY(lower_pin(p));
    AGOQ_TRY(shard(p));
    AGOQ_TRY(chunk_loss(p));
    AGOQ_TRY(more_ranks(p, PLANNER_LEVER_RAISE_TP));
    AGOQ_TRY(more_ranks(p, PLANNER_LEVER_RAISE_CP));
    return other_schedule(p);
}

agoq_status planner_model_levers(const planner_model *model, const planner_model_problem *p,
                                 planner_result *result) {
    agoq_status status = AGOQ_E_NOMEM;
    const uint32_t n = p->problem.n_stages;
    planner_model m = *model;
    uint64_t *budgets = mem_alloc(n * sizeof *budgets);
    pulls all = {.model = &m,
                 .p = p,
                 .result = result,
                 .n = n,
                 .done = mem_alloc(n),
                 .least = mem_alloc(n * sizeof *all.least)};
    if (!budgets || !all.done || !all.least) goto out;
    for (uint32_t s = 0; s < n; s++) budgets[s] = p->stages[s].budget_bytes;
    m.run.stage_budgets = budgets; /* callers may have set others than the model's */
    status = AGOQ_OK;
    start(&all);
    if (all.n_left) status = pull_all(&all);
    for (uint32_t s = 0; s < n; s++) planner_levers_sort(&result->stages[s]);
out:
    mem_free(budgets);
    mem_free(all.done);
    mem_free(all.least);
    return status;
}
