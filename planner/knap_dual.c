/* Lagrange multipliers and a first answer. One row: the multiplier is the slope of the first upgrade that
 * does not fit, found by selection instead of sorting, so that the bound is that of the LP relaxation.
 * Several rows: a subgradient walk with a fixed number of steps in doubles (only + - * /, so the same
 * everywhere). Multipliers are rounded to integers over a power of two; any that are not negative give a
 * valid bound, only its tightness depends on them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/try.h"
#include "planner/knap.h"

#define WALK_LEAST    120 /* steps; more where there are more dimensions */
#define WALK_MOST     480
#define WALK_OF_DIM   30
#define WALK_PATIENT  2000
#define WALK_PATIENCE 10
#define GREEDY_EVERY  60
#define LAMBDA_BITS   50
#define MAX_SHIFT     60

typedef struct walk {
    knap_search *search;
    const knap_problem *problem;
    knap_step *steps;
    uint32_t n_steps;
    uint32_t *taken;
    double *lambda, *best_lambda, *price, *excess;
    int64_t *used; /* by row */
    double best_bound;
} walk;

knap_wide knap_value(const knap_search *s, const knap_item *item, uint32_t option) {
    return ((knap_wide)knap_cost(item, option) << s->dual.shift) +
           s->dual.price[item->of->dim] * item->of->weight[option];
}

int64_t knap_regret(const knap_search *s, const knap_item *item, uint32_t option, uint32_t base) {
    const knap_wide more = (knap_value(s, item, option) - knap_value(s, item, base)) >> s->dual.shift;
    return more < 0 ? 0 : more > INT64_MAX / 4 ? INT64_MAX / 4 : (int64_t)more;
}

static int by_gain(const void *a, const void *b) {
    const knap_step *x = a, *y = b;
    if (x->gain != y->gain) return x->gain > y->gain ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->from < y->from ? -1 : x->from > y->from;
}

/* Hull edges of one item; returns how many. Weights and costs stay below 2^56 and 2^51: products fit. */
static uint32_t hull_of(const knap_item *item, uint32_t index, knap_step *steps) {
    uint32_t n = 0;
    uint8_t at = 0;
    while (at + 1u < item->of->n_options) {
        uint8_t best = at + 1;
        for (uint8_t o = at + 2; o < item->of->n_options; o++) {
            const knap_wide gain = knap_cost(item, at) - knap_cost(item, o),
                            weight = item->of->weight[o] - item->of->weight[at];
            if (gain * (item->of->weight[best] - item->of->weight[at]) >=
                (knap_cost(item, at) - knap_cost(item, best)) * weight)
                best = o;
        }
        steps[n++] = (knap_step){(double)(knap_cost(item, at) - knap_cost(item, best)) /
                                     (double)(item->of->weight[best] - item->of->weight[at]),
                                 index, at, best};
        at = best;
    }
    return n;
}

/* Doubles to integers over a power of two, with about LAMBDA_BITS significant bits in the largest. */
void knap_set_prices(knap_search *s, const double *lambda) {
    const knap_problem *p = s->problem;
    knap_dual *d = &s->dual;
    double most = 0;
    int exponent = 0;
    for (uint32_t r = 0; r < p->n_rows; r++) most = lambda[r] > most ? lambda[r] : most;
    if (most > 0) (void)frexp(most, &exponent);
    d->shift = LAMBDA_BITS - exponent;
    if (d->shift > MAX_SHIFT) d->shift = MAX_SHIFT;
    if (d->shift < 0) d->shift = 0;
    memset(d->price, 0, sizeof d->price);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        d->lambda[r] = (int64_t)ldexp(lambda[r], d->shift);
        for (uint32_t k = 0; k < p->n_dims && d->lambda[r]; k++)
            d->price[k] += (knap_wide)d->lambda[r] * p->coef[(size_t)r * p->n_dims + k];
    }
}

/* The bound at these prices. In *least the option of least reduced cost of every item, if not NULL. */
static void set_root(knap_search *s, uint8_t *least) {
    const knap_problem *p = s->problem;
    knap_wide sum = 0;
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &p->items[i];
        knap_wide best = knap_value(s, item, 0);
        uint8_t option = 0;
        for (uint8_t o = 1; o < item->of->n_options; o++) {
            const knap_wide value = knap_value(s, item, o);
            if (value >= best) continue;
            best = value;
            option = o;
        }
        sum += best * item->count;
        if (least) least[i] = option;
    }
    for (uint32_t r = 0; r < p->n_rows; r++) sum -= (knap_wide)s->dual.lambda[r] * p->capacity[r];
    s->dual.root = (int64_t)(sum >> s->dual.shift);
}

static int64_t step_weight(const knap_problem *p, const knap_step *s) {
    const knap_item *item = &p->items[s->item];
    return (item->of->weight[s->to] - item->of->weight[s->from]) * item->count;
}

static void take_step(knap_search *s, const knap_step *step) {
    if (step->to > s->dual.base[step->item]) s->dual.base[step->item] = step->to;
}

static double middle_gain(const knap_step *a, uint32_t low, uint32_t high) {
    const double x = a[low].gain, y = a[low + (high - low) / 2].gain, z = a[high - 1].gain;
    const double least = x < y ? x : y, most = x < y ? y : x;
    return z < least ? least : z > most ? most : z;
}

/* Puts the steps of [low, high) with more gain than pivot first, then those with as much. */
static void partition(knap_step *a, uint32_t low, uint32_t high, double pivot, uint32_t *more,
                      uint32_t *same) {
    uint32_t m = low, e = low;
    for (uint32_t i = low; i < high; i++) {
        if (a[i].gain < pivot) continue;
        const knap_step one = a[i];
        a[i] = a[e];
        if (one.gain > pivot) {
            a[e] = a[m];
            a[m++] = one;
        } else {
            a[e] = one;
        }
        e++;
    }
    *more = m;
    *same = e;
}

/* Takes steps by decreasing gain while they fit whole. The first that does not is critical. */
static const knap_step *select_steps(knap_search *s, knap_step *a, uint32_t n, int64_t capacity) {
    const knap_problem *p = s->problem;
    uint32_t low = 0, high = n;
    while (low < high) {
        uint32_t more, same;
        int64_t weight = 0;
        partition(a, low, high, middle_gain(a, low, high), &more, &same);
        for (uint32_t i = low; i < more; i++) weight += step_weight(p, &a[i]);
        if (weight > capacity) {
            high = more;
            continue;
        }
        for (uint32_t i = low; i < more; i++) take_step(s, &a[i]);
        capacity -= weight;
        if (same - more > 1) qsort(a + more, same - more, sizeof *a, by_gain);
        for (uint32_t i = more; i < same; i++) {
            weight = step_weight(p, &a[i]);
            if (weight > capacity) return &a[i];
            capacity -= weight;
            take_step(s, &a[i]);
        }
        low = same;
    }
    return NULL;
}

static void one_row(knap_search *s, knap_step *steps, uint32_t n_steps) {
    const knap_problem *p = s->problem;
    memset(s->dual.base, 0, p->n_items);
    const knap_step *first = select_steps(s, steps, n_steps, p->capacity[0] / p->coef[0]);
    double lambda = 0;
    s->dual.critical = p->n_items;
    if (first) {
        s->dual.critical = first->item;
        s->dual.from = first->from;
        s->dual.to = first->to;
        s->dual.base[first->item] = first->from;
        lambda = first->gain / (double)p->coef[0];
    }
    knap_set_prices(s, &lambda);
    set_root(s, NULL);
    s->best = INT64_MAX;
}

/* How many of `count` further pieces of this weight fit. */
static uint32_t fitting(const walk *w, uint32_t dim, int64_t weight, uint32_t count) {
    for (uint32_t r = 0; r < w->problem->n_rows && count; r++) {
        const int64_t each = w->problem->coef[(size_t)r * w->problem->n_dims + dim] * weight,
                      left = w->problem->capacity[r] - w->used[r];
        if (each * count <= left) continue;
        count = left > 0 ? (uint32_t)(left / each) : 0;
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
    for (size_t i = 0; i < (size_t)p->n_items * KNAP_OPTIONS; i++) {
        if (w->taken[i]) cost += w->taken[i] * knap_cost(&p->items[i / KNAP_OPTIONS], i % KNAP_OPTIONS);
    }
    if (cost >= w->search->best) return;
    w->search->best = cost;
    memcpy(w->search->taken, w->taken, (size_t)p->n_items * KNAP_OPTIONS * sizeof *w->taken);
}

/* From all-least, takes upgrades by gain per priced weight as they fit. */
static void greedy(walk *w) {
    const knap_problem *p = w->problem;
    for (uint32_t i = 0; i < w->n_steps; i++) {
        knap_step *s = &w->steps[i];
        const knap_item *item = &p->items[s->item];
        const double gain = (double)(knap_cost(item, s->from) - knap_cost(item, s->to));
        const double weight =
            w->price[item->of->dim] * (double)(item->of->weight[s->to] - item->of->weight[s->from]);
        s->gain = weight > 0 ? gain / weight : 1e300;
    }
    if (w->n_steps) qsort(w->steps, w->n_steps, sizeof *w->steps, by_gain);
    memset(w->taken, 0, (size_t)p->n_items * KNAP_OPTIONS * sizeof *w->taken);
    memset(w->used, 0, p->n_rows * sizeof *w->used);
    for (uint32_t i = 0; i < p->n_items; i++) w->taken[(size_t)i * KNAP_OPTIONS] = p->items[i].count;
    for (uint32_t i = 0; i < w->n_steps; i++) {
        const knap_step *s = &w->steps[i];
        const knap_item *item = &p->items[s->item];
        uint32_t *taken = w->taken + (size_t)s->item * KNAP_OPTIONS;
        const int64_t weight = item->of->weight[s->to] - item->of->weight[s->from];
        const uint32_t n = fitting(w, item->of->dim, weight, taken[s->from]);
        use_more(w, item->of->dim, weight * n);
        taken[s->from] -= n;
        taken[s->to] += n;
    }
    keep_if_better(w);
}

/* The relaxation at w->lambda: its value, and by how much each row is exceeded. Returns |excess|^2. */
static double relax(walk *w, double *bound) {
    const knap_problem *p = w->problem;
    double value = 0, norm = 0;
    int64_t weight[KNAP_MAX_DIMS] = {0};
    memset(w->price, 0, p->n_dims * sizeof *w->price);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        if (w->lambda[r] <= 0) continue;
        for (uint32_t d = 0; d < p->n_dims; d++)
            w->price[d] += w->lambda[r] * (double)p->coef[(size_t)r * p->n_dims + d];
    }
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &p->items[i];
        double least = item->key * item->of->unit[0];
        uint8_t best = 0;
        for (uint8_t o = 1; o < item->of->n_options; o++) {
            const double reduced =
                item->key * item->of->unit[o] + w->price[item->of->dim] * (double)item->of->weight[o];
            if (reduced >= least) continue;
            least = reduced;
            best = o;
        }
        value += least * item->count;
        weight[item->of->dim] += item->of->weight[best] * item->count;
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        int64_t used = -p->capacity[r];
        for (uint32_t d = 0; d < p->n_dims; d++) used += p->coef[(size_t)r * p->n_dims + d] * weight[d];
        value -= w->lambda[r] * (double)p->capacity[r];
        w->excess[r] = (double)used;
        if (w->lambda[r] <= 0 && w->excess[r] < 0) w->excess[r] = 0; /* cannot go below zero anyway */
        norm += w->excess[r] * w->excess[r];
    }
    *bound = value;
    return norm;
}

static void walk_rows(walk *w) {
    const knap_problem *p = w->problem;
    double pace = 1, bound;
    int stale = 0, steps = WALK_OF_DIM * (int)p->n_dims;
    steps = steps < WALK_LEAST ? WALK_LEAST : steps > WALK_MOST ? WALK_MOST : steps;
    if (w->search->patient) steps = WALK_PATIENT;
    for (int k = 0; k < steps; k++) {
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
        if (k % GREEDY_EVERY == GREEDY_EVERY - 1) greedy(w);
        const double gap = (double)w->search->best - bound;
        if (norm <= 0 || gap <= 0 || pace < 1e-9) break;
        for (uint32_t r = 0; r < p->n_rows; r++) {
            w->lambda[r] += pace * gap / norm * w->excess[r];
            if (w->lambda[r] < 0) w->lambda[r] = 0;
        }
    }
    memcpy(w->lambda, w->best_lambda, p->n_rows * sizeof *w->lambda);
    (void)relax(w, &bound);
    greedy(w);
}

/* All-least, and what the caller suggests. */
static void try_hints(walk *w) {
    const knap_problem *p = w->problem;
    for (uint32_t h = 0; h <= p->n_hints; h++) {
        int fits = 1;
        memset(w->used, 0, p->n_rows * sizeof *w->used);
        memset(w->taken, 0, (size_t)p->n_items * KNAP_OPTIONS * sizeof *w->taken);
        for (uint32_t i = 0; i < p->n_items; i++) {
            const knap_item *item = &p->items[i];
            const uint8_t option = h ? item->of->hint[h - 1] : 0;
            w->taken[(size_t)i * KNAP_OPTIONS + option] = item->count;
            use_more(w, item->of->dim, item->of->weight[option] * item->count);
        }
        for (uint32_t r = 0; r < p->n_rows; r++) fits = fits && w->used[r] <= p->capacity[r];
        if (fits) keep_if_better(w);
    }
}

agoq_status knap_multipliers(knap_search *s) {
    const knap_problem *p = s->problem;
    knap_space *space = s->space;
    const uint32_t rows = p->n_rows, dims = p->n_dims;
    s->dual.lambda = knap_reserve(space, KNAP_LAMBDA, rows, sizeof *s->dual.lambda);
    s->dual.base = knap_reserve(space, KNAP_BASE, p->n_items, 1);
    knap_step *steps =
        knap_reserve(space, KNAP_STEPS, (size_t)p->n_items * (KNAP_OPTIONS - 1), sizeof *steps);
    if (!s->dual.lambda || !s->dual.base || !steps) return AGOQ_E_NOMEM;
    uint32_t n_steps = 0;
    for (uint32_t i = 0; i < p->n_items; i++) n_steps += hull_of(&p->items[i], i, steps + n_steps);
    if (!s->patient) s->best = INT64_MAX;
    if (rows == 1) {
        one_row(s, steps, n_steps);
        return AGOQ_OK;
    }
    walk w = {.search = s, .problem = p, .steps = steps, .n_steps = n_steps};
    w.taken = knap_reserve(space, KNAP_TRY, (size_t)p->n_items * KNAP_OPTIONS, sizeof *w.taken);
    w.used = knap_reserve(space, KNAP_USED, rows, sizeof *w.used);
    w.lambda = knap_reserve(space, KNAP_NUMBERS, 3 * (size_t)rows + dims, sizeof *w.lambda);
    if (!w.taken || !w.used || !w.lambda) return AGOQ_E_NOMEM;
    memset(w.lambda, 0, (3 * (size_t)rows + dims) * sizeof *w.lambda);
    w.best_lambda = w.lambda + rows;
    w.excess = w.lambda + 2 * (size_t)rows;
    w.price = w.lambda + 3 * (size_t)rows;
    try_hints(&w);
    walk_rows(&w);
    knap_set_prices(s, w.lambda);
    s->dual.critical = p->n_items;
    set_root(s, s->dual.base);
    return AGOQ_OK;
}
