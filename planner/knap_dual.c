/* Lagrange multipliers and a first answer. One row: the multiplier is the slope of the first upgrade that
 * does not fit, an exact fraction, so that the bound is that of the LP relaxation. Several rows: a
 * subgradient walk with a fixed number of steps in doubles (only + - * /, so the same everywhere), whose
 * result is rounded to integers over a power of two; any non-negative multipliers give a valid bound, only
 * its tightness depends on the walk. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "planner/knap.h"

#define WALK_STEPS    240
#define WALK_PATIENCE 8
#define GREEDY_EVERY  40

/* One edge of an item's lower convex hull. */
typedef struct step {
    double gain; /* cost saved per priced weight */
    uint32_t item;
    uint8_t from, to;
} step;

typedef struct walk {
    const knap_problem *problem;
    knap_dual *dual;
    step *steps;
    uint32_t *taken;
    double *lambda, *best_lambda, *price, *excess;
    int64_t *used; /* by row */
    double best_bound;
} walk;

static int by_gain(const void *a, const void *b) {
    const step *x = a, *y = b;
    if (x->gain != y->gain) return x->gain > y->gain ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Hull edges of one item; returns how many. Weights and costs stay below 2^56 and 2^51: products fit. */
static uint32_t hull_of(const knap_item *item, uint32_t index, step *steps) {
    uint32_t n = 0;
    uint8_t at = 0;
    while (at + 1u < item->n_options) {
        uint8_t best = 0;
        for (uint8_t o = at + 1; o < item->n_options; o++) {
            const knap_wide gain = item->cost[at] - item->cost[o],
                            weight = item->weight[o] - item->weight[at];
            if (!best || gain * (item->weight[best] - item->weight[at]) >=
                             (item->cost[at] - item->cost[best]) * weight)
                best = o;
        }
        steps[n++] = (step){0, index, at, best};
        at = best;
    }
    return n;
}

/* How many of `count` further pieces of this weight fit. */
static uint32_t fitting(const walk *w, uint32_t dim, int64_t weight, uint32_t count) {
    for (uint32_t r = 0; r < w->problem->n_rows && count; r++) {
        const int64_t each = w->problem->coef[(size_t)r * w->problem->n_dims + dim] * weight;
        const int64_t most = each ? (w->problem->capacity[r] - w->used[r]) / each : count;
        if (most < count) count = most > 0 ? (uint32_t)most : 0;
    }
    return count;
}

static void use_more(walk *w, uint32_t dim, int64_t weight) {
    for (uint32_t r = 0; r < w->problem->n_rows; r++) {
        w->used[r] += w->problem->coef[(size_t)r * w->problem->n_dims + dim] * weight;
    }
}

static void keep_if_better(walk *w) {
    const knap_problem *p = w->problem;
    int64_t cost = 0;
    for (size_t i = 0; i < (size_t)p->n_items * KNAP_OPTIONS; i++)
        cost += w->taken[i] * p->items[i / KNAP_OPTIONS].cost[i % KNAP_OPTIONS];
    if (cost >= w->dual->cost) return;
    w->dual->cost = cost;
    memcpy(w->dual->taken, w->taken, (size_t)p->n_items * KNAP_OPTIONS * sizeof *w->taken);
}

/* From all-least, takes upgrades by gain per priced weight as they fit. Returns the first that did not fit,
 * or NULL. */
static const step *greedy(walk *w, uint32_t n_steps) {
    const knap_problem *p = w->problem;
    const step *first = NULL;
    for (uint32_t i = 0; i < n_steps; i++) {
        step *s = &w->steps[i];
        const knap_item *item = &p->items[s->item];
        const double gain = (double)(item->cost[s->from] - item->cost[s->to]);
        const double weight = w->price[item->dim] * (double)(item->weight[s->to] - item->weight[s->from]);
        s->gain = weight > 0 ? gain / weight : 1e300;
    }
    if (n_steps) qsort(w->steps, n_steps, sizeof *w->steps, by_gain);
    memset(w->taken, 0, (size_t)p->n_items * KNAP_OPTIONS * sizeof *w->taken);
    memset(w->used, 0, p->n_rows * sizeof *w->used);
    for (uint32_t i = 0; i < p->n_items; i++) w->taken[(size_t)i * KNAP_OPTIONS] = p->items[i].count;
    for (uint32_t i = 0; i < n_steps; i++) {
        const step *s = &w->steps[i];
        const knap_item *item = &p->items[s->item];
        uint32_t *taken = w->taken + (size_t)s->item * KNAP_OPTIONS;
        const int64_t weight = item->weight[s->to] - item->weight[s->from];
        const uint32_t n = fitting(w, item->dim, weight, taken[s->from]);
        if (n < taken[s->from] && !first) first = s;
        use_more(w, item->dim, weight * n);
        taken[s->from] -= n;
        taken[s->to] += n;
    }
    keep_if_better(w);
    return first;
}

/* The relaxation at w->lambda: its value, and by how much each row is exceeded. Returns |excess|^2. */
static double relax(walk *w, double *bound) {
    const knap_problem *p = w->problem;
    double value = 0, norm = 0;
    memset(w->used, 0, p->n_rows * sizeof *w->used);
    for (uint32_t d = 0; d < p->n_dims; d++) {
        w->price[d] = 0;
        for (uint32_t r = 0; r < p->n_rows; r++)
            w->price[d] += w->lambda[r] * (double)p->coef[(size_t)r * p->n_dims + d];
    }
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &p->items[i];
        double least = 0;
        uint8_t best = 0;
        for (uint8_t o = 0; o < item->n_options; o++) {
            const double reduced = (double)item->cost[o] + w->price[item->dim] * (double)item->weight[o];
            if (!o || reduced < least) {
                least = reduced;
                best = o;
            }
        }
        value += least * item->count;
        use_more(w, item->dim, item->weight[best] * item->count);
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        value -= w->lambda[r] * (double)p->capacity[r];
        w->excess[r] = (double)(w->used[r] - p->capacity[r]);
        if (w->lambda[r] <= 0 && w->excess[r] < 0) w->excess[r] = 0; /* cannot go below zero anyway */
        norm += w->excess[r] * w->excess[r];
    }
    *bound = value;
    return norm;
}

static void walk_rows(walk *w, uint32_t n_steps) {
    const knap_problem *p = w->problem;
    double pace = 1;
    int stale = 0;
    for (int k = 0; k < WALK_STEPS; k++) {
        double bound;
        const double norm = relax(w, &bound);
        if (!k || bound > w->best_bound) {
            w->best_bound = bound;
            memcpy(w->best_lambda, w->lambda, p->n_rows * sizeof *w->lambda);
            stale = 0;
        } else if (++stale == WALK_PATIENCE) {
            pace /= 2;
            stale = 0;
            memcpy(w->lambda, w->best_lambda, p->n_rows * sizeof *w->lambda);
        }
        if (k % GREEDY_EVERY == GREEDY_EVERY - 1) greedy(w, n_steps);
        const double gap = (double)w->dual->cost - bound;
        if (norm <= 0 || gap <= 0) break;
        for (uint32_t r = 0; r < p->n_rows; r++) {
            w->lambda[r] += pace * gap / norm * w->excess[r];
            if (w->lambda[r] < 0) w->lambda[r] = 0;
        }
    }
    memcpy(w->lambda, w->best_lambda, p->n_rows * sizeof *w->lambda);
    double bound;
    (void)relax(w, &bound);
    greedy(w, n_steps);
}

/* Doubles to integers over a power of two, with about 40 significant bits in the largest. */
static void round_lambda(const walk *w) {
    double most = 0, scale = 1;
    for (uint32_t r = 0; r < w->problem->n_rows; r++) most = w->lambda[r] > most ? w->lambda[r] : most;
    while (most > 0 && most * scale < 1099511627776.0 && scale < 1152921504606846976.0) scale *= 2;
    w->dual->denominator = (int64_t)scale;
    for (uint32_t r = 0; r < w->problem->n_rows; r++) w->dual->lambda[r] = (int64_t)(w->lambda[r] * scale);
}

static void one_row(walk *w, uint32_t n_steps) {
    for (uint32_t d = 0; d < w->problem->n_dims; d++) w->price[d] = (double)w->problem->coef[d];
    const step *first = greedy(w, n_steps);
    w->dual->denominator = 1;
    w->dual->lambda[0] = 0;
    if (!first) return; /* everything fits */
    const knap_item *item = &w->problem->items[first->item];
    w->dual->lambda[0] = item->cost[first->from] - item->cost[first->to];
    w->dual->denominator =
        w->problem->coef[item->dim] * (item->weight[first->to] - item->weight[first->from]);
}

/* All-least, and what the caller suggests. */
static void try_hints(walk *w) {
    const knap_problem *p = w->problem;
    w->dual->cost = INT64_MAX;
    for (uint32_t h = 0; h <= p->n_hints; h++) {
        int fits = 1;
        memset(w->used, 0, p->n_rows * sizeof *w->used);
        memset(w->taken, 0, (size_t)p->n_items * KNAP_OPTIONS * sizeof *w->taken);
        for (uint32_t i = 0; i < p->n_items; i++) {
            const knap_item *item = &p->items[i];
            const uint8_t option = h ? p->hints[(size_t)i * p->n_hints + h - 1] : 0;
            w->taken[(size_t)i * KNAP_OPTIONS + option] = item->count;
            use_more(w, item->dim, item->weight[option] * item->count);
        }
        for (uint32_t r = 0; r < p->n_rows; r++) fits = fits && w->used[r] <= p->capacity[r];
        if (fits) keep_if_better(w);
    }
}

agoq_status knap_dual_solve(const knap_problem *problem, knap_dual *dual) {
    agoq_status status = AGOQ_E_NOMEM;
    walk w = {.problem = problem, .dual = dual};
    const uint32_t rows = problem->n_rows, dims = problem->n_dims;
    double *numbers = mem_zalloc(3 * (size_t)rows + dims, sizeof *numbers);
    w.used = mem_zalloc(rows, sizeof *w.used);
    w.taken = mem_zalloc((size_t)problem->n_items * KNAP_OPTIONS, sizeof *w.taken);
    w.steps = mem_zalloc((size_t)problem->n_items * (KNAP_OPTIONS - 1), sizeof *w.steps);
    if (!numbers || !w.used || !w.taken || !w.steps) goto out;
    w.lambda = numbers;
    w.best_lambda = numbers + rows;
    w.excess = numbers + 2 * (size_t)rows;
    w.price = numbers + 3 * (size_t)rows;
    uint32_t n_steps = 0;
    for (uint32_t i = 0; i < problem->n_items; i++)
        n_steps += hull_of(&problem->items[i], i, w.steps + n_steps);
    try_hints(&w);
    if (rows == 1) {
        one_row(&w, n_steps);
    } else {
        walk_rows(&w, n_steps);
        round_lambda(&w);
    }
    status = AGOQ_OK;
out:
    mem_free(w.steps);
    mem_free(w.taken);
    mem_free(w.used);
    mem_free(numbers);
    return status;
}
