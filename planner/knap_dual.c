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
    uint8_t *choice;
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

static int fits_more(const walk *w, uint32_t dim, int64_t more) {
    for (uint32_t r = 0; r < w->problem->n_rows; r++) {
        if (w->used[r] + w->problem->coef[(size_t)r * w->problem->n_dims + dim] * more >
            w->problem->capacity[r])
            return 0;
    }
    return 1;
}

static void use_more(walk *w, uint32_t dim, int64_t more) {
    for (uint32_t r = 0; r < w->problem->n_rows; r++) {
        w->used[r] += w->problem->coef[(size_t)r * w->problem->n_dims + dim] * more;
    }
}

/* From all-least, takes upgrades by gain per priced weight as they fit. Returns the first that did not fit,
 * or NULL. */
static const step *greedy(walk *w, uint32_t n_steps) {
    const knap_problem *p = w->problem;
    const step *first = NULL;
    int64_t cost = 0;
    for (uint32_t i = 0; i < n_steps; i++) {
        step *s = &w->steps[i];
        const knap_item *item = &p->items[s->item];
        const double gain = (double)(item->cost[s->from] - item->cost[s->to]);
        const double weight = w->price[item->dim] * (double)(item->weight[s->to] - item->weight[s->from]);
        s->gain = weight > 0 ? gain / weight : 1e300;
    }
    qsort(w->steps, n_steps, sizeof *w->steps, by_gain);
    memset(w->choice, 0, p->n_items);
    memset(w->used, 0, p->n_rows * sizeof *w->used);
    for (uint32_t i = 0; i < n_steps; i++) {
        const step *s = &w->steps[i];
        const knap_item *item = &p->items[s->item];
        const int64_t more = item->weight[s->to] - item->weight[s->from];
        if (w->choice[s->item] != s->from) continue;
        if (fits_more(w, item->dim, more)) {
            use_more(w, item->dim, more);
            w->choice[s->item] = s->to;
        } else if (!first) {
            first = s;
        }
    }
    for (uint32_t i = 0; i < p->n_items; i++) cost += p->items[i].cost[w->choice[i]];
    if (cost < w->dual->cost) {
        w->dual->cost = cost;
        memcpy(w->dual->choice, w->choice, p->n_items);
    }
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
        value += least;
        use_more(w, item->dim, item->weight[best]);
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
    for (uint32_t h = 0; h <= p->n_hints; h++) {
        int64_t cost = 0;
        int fits = 1;
        memset(w->used, 0, p->n_rows * sizeof *w->used);
        for (uint32_t i = 0; i < p->n_items; i++) {
            const knap_item *item = &p->items[i];
            w->choice[i] = h ? p->hints[(size_t)(h - 1) * p->n_items + i] : 0;
            cost += item->cost[w->choice[i]];
            use_more(w, item->dim, item->weight[w->choice[i]]);
        }
        for (uint32_t r = 0; r < p->n_rows; r++) fits = fits && w->used[r] <= p->capacity[r];
        if (!fits || (h && cost >= w->dual->cost)) continue;
        w->dual->cost = cost;
        memcpy(w->dual->choice, w->choice, p->n_items);
    }
}

agoq_status knap_dual_solve(const knap_problem *problem, knap_dual *dual) {
    agoq_status status = AGOQ_E_NOMEM;
    walk w = {.problem = problem, .dual = dual};
    const uint32_t rows = problem->n_rows, dims = problem->n_dims;
    double *numbers = mem_zalloc(3 * (size_t)rows + dims, sizeof *numbers);
    w.used = mem_zalloc(rows, sizeof *w.used);
    w.choice = mem_zalloc(problem->n_items, 1);
    w.steps = mem_zalloc((size_t)problem->n_items * (KNAP_OPTIONS - 1), sizeof *w.steps);
    if (!numbers || !w.used || !w.choice || !w.steps) goto out;
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
    mem_free(w.choice);
    mem_free(w.used);
    mem_free(numbers);
    return status;
}
