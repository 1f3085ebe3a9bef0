/* The price of a unit of weight in the relaxation of knap_curve.c: saving per weight of the first step that
 * does not fit when steps are taken by saving per weight. Steps are only counted, pass by pass over 32-bit
 * keys that vector instructions compare four and more at a time, until few are left between two guesses;
 * these are sorted. Faster than sorting or selecting among all, and as exact. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/try.h"
#include "planner/knap_curve.h"

#define MAX_PASSES 40
#define FEW_STEPS  6u

int32_t knap_near(double key) {
    const float f = !(key > 0) ? 0 : key < 3e38 ? (float)key : 3e38f;
    int32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

static int list_class(knap_lines *c, const knap_class *of) {
    double last = 0;
    for (uint8_t o = 0; o + 1u < of->n_options; o++) {
        if (c->n_edges == KNAP_EDGES) return 0;
        knap_edge *e = &c->edges[c->n_edges++];
        *e = (knap_edge){.weight = of->weight[o + 1] - of->weight[o],
                         .unit = of->unit[o] - of->unit[o + 1],
                         .first = of->first,
                         .n = of->n,
                         .least = INT32_MAX,
                         .from = o};
        const double slope = e->unit / (double)e->weight;
        if (o && slope >= last) return 0;
        last = slope;
        while (e->curve < c->n_curves && c->curve[e->curve].weight != e->weight) e->curve++;
        if (e->curve == KNAP_LINES) return 0;
        if (e->curve == c->n_curves) c->curve[c->n_curves++].weight = e->weight;
    }
    return 1;
}

agoq_status knap_list_edges(knap_lines *c, int *possible) {
    const knap_problem *p = c->problem;
    const uint32_t n = p->n_items;
    int32_t *near = knap_reserve(c->search->space, KNAP_NEAR, n, sizeof *near);
    uint32_t *count = knap_reserve(c->search->space, KNAP_COUNTS, n, sizeof *count);
    if (!near || !count) return AGOQ_E_NOMEM;
    for (uint32_t i = 0; i < p->n_classes; i++) {
        *possible = !p->classes[i].n || list_class(c, &p->classes[i]);
        if (!*possible) return AGOQ_OK;
    }
    *possible = n != 0;
    c->near = near;
    c->count = NULL;
    for (uint32_t k = 0; k < c->n_edges; k++) {
        knap_edge *e = &c->edges[k];
        for (uint32_t i = e->first; i < e->first + e->n && !e->from; i++) {
            near[i] = knap_near(p->items[i].key);
            count[i] = p->items[i].count;
            e->least = near[i] < e->least ? near[i] : e->least;
            e->most = near[i] > e->most ? near[i] : e->most;
            e->members += count[i];
        }
        if (e->members > e->n) c->count = count;
        if (!e->from) continue;
        e->least = e[-1].least;
        e->most = e[-1].most;
        e->members = e[-1].members;
    }
    return AGOQ_OK;
}

/* Members that are at least `from`; adds their items to *items. */
static uint32_t count_from(const knap_lines *c, const knap_edge *e, int32_t from, uint32_t *items) {
    const int32_t *near = c->near + e->first;
    uint32_t n = 0, n_items = 0;
    if (from > e->most) return 0;
    if (from <= e->least) {
        *items += e->n;
        return e->members;
    }
    if (!c->count) {
        for (uint32_t i = 0; i < e->n; i++) n += near[i] >= from;
        *items += n;
        return n;
    }
    const uint32_t *count = c->count + e->first;
    for (uint32_t i = 0; i < e->n; i++) {
        const uint32_t mask = (uint32_t) - (near[i] >= from);
        n += count[i] & mask;
        n_items -= mask;
    }
    *items += n_items;
    return n;
}

uint32_t knap_members(const knap_lines *c, const knap_edge *e, int32_t from) {
    uint32_t items = 0;
    return count_from(c, e, from, &items);
}

/* Weight of the steps that save as much as lambda for each unit of it, about. */
static int64_t weigh(const knap_lines *c, double lambda, int32_t *from, uint32_t *steps) {
    int64_t weight = 0;
    *steps = 0;
    for (uint32_t k = 0; k < c->n_edges; k++) {
        const knap_edge *e = &c->edges[k];
        from[k] = isfinite(lambda) ? knap_near(lambda * (double)e->weight / e->unit) : INT32_MAX;
        weight += e->weight * count_from(c, e, from[k], steps);
    }
    return weight;
}

agoq_status knap_gather(knap_lines *c, uint32_t k, int32_t from, int32_t to, uint32_t *n) {
    const knap_edge *e = &c->edges[k];
    knap_entry *entries =
        knap_reserve(c->search->space, KNAP_ENTRIES, (size_t)*n + e->n + 1, sizeof *entries);
    if (!entries) return AGOQ_E_NOMEM;
    c->entries = entries;
    if (from > e->most || to < e->least || from > to) return AGOQ_OK;
    const uint32_t old = *n, range = (uint32_t)to - (uint32_t)from;
    uint32_t at = old;
    for (uint32_t i = e->first; i < e->first + e->n; i++) {
        entries[at].item = i;
        at += (uint32_t)c->near[i] - (uint32_t)from <= range;
    }
    *n = at;
    for (uint32_t i = old; i < at; i++) {
        knap_entry *one = &entries[i];
        const knap_item *item = &c->problem->items[one->item];
        one->edge = k;
        one->count = item->count;
        one->gain = knap_cost(item, e->from) - knap_cost(item, e->from + 1);
    }
    return AGOQ_OK;
}

static int by_slope(const void *a, const void *b) {
    const knap_entry *x = a, *y = b;
    const knap_wide left = (knap_wide)x->gain * y->regret, right = (knap_wide)y->gain * x->regret;
    if (left != right) return left > right ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->edge < y->edge ? -1 : x->edge > y->edge;
}

/* Bits of doubles grow about as logarithms do. */
static double between(double a, double b, double part) {
    int64_t x, y;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    part = part < 0.02 ? 0.02 : part > 0.98 ? 0.98 : part;
    x += (int64_t)((double)(y - x) * part);
    memcpy(&a, &x, sizeof a);
    return a;
}

agoq_status knap_find_price(knap_lines *c) {
    int32_t from[3][KNAP_EDGES], *low = from[0], *high = from[1], *middle = from[2];
    double least = INFINITY, most = 0;
    uint32_t steps, low_steps, high_steps;
    for (uint32_t k = 0; k < c->n_edges; k++) {
        const knap_edge *e = &c->edges[k];
        const double one = c->problem->items[e->first].key * e->unit / (double)e->weight;
        least = one < least ? one : least;
        most = one > most ? one : most;
    }
    while (weigh(c, least, low, &low_steps) <= c->capacity) least /= 16;
    while (weigh(c, most, high, &high_steps) > c->capacity) most *= 16;
    double above = (double)(weigh(c, least, low, &low_steps) - c->capacity);
    double below = (double)(c->capacity - weigh(c, most, high, &high_steps));
    int side = 0;
    for (int pass = 0; pass < MAX_PASSES && low_steps - high_steps > FEW_STEPS; pass++) {
        const double lambda = between(least, most, (above + 1) / (above + below + 2));
        if (lambda <= least || lambda >= most) break;
        const int64_t weight = weigh(c, lambda, middle, &steps) - c->capacity;
        int32_t *swap = middle;
        if (weight > 0) {
            middle = low;
            low = swap;
            low_steps = steps;
            least = lambda;
            above = (double)weight;
            if (side > 0) below /= 2;
            side = 1;
        } else {
            middle = high;
            high = swap;
            high_steps = steps;
            most = lambda;
            below = -(double)weight;
            if (side < 0) above /= 2;
            side = -1;
        }
    }
    int64_t left = c->capacity;
    uint32_t n = 0;
    for (uint32_t k = 0; k < c->n_edges; k++) {
        const uint32_t old = n;
        left -= c->edges[k].weight * knap_members(c, &c->edges[k], high[k]);
        AGOQ_TRY(knap_gather(c, k, low[k], high[k] - 1, &n));
        for (uint32_t i = old; i < n; i++) c->entries[i].regret = c->edges[k].weight;
    }
    qsort(c->entries, n, sizeof *c->entries, by_slope);
    double price = 0;
    for (uint32_t i = 0; i < n && left >= 0; i++) {
        left -= c->entries[i].regret * c->entries[i].count;
        price = (double)c->entries[i].gain / (double)c->entries[i].regret;
    }
    price /= (double)c->problem->coef[0];
    knap_set_prices(c->search, &price);
    c->price = ldexp((double)c->search->dual.price[0], -c->search->dual.shift);
    return AGOQ_OK;
}
