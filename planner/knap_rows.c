/* Several rows: every dimension is searched on its own (knap_frontier), and the short lists of its
 * undominated points are combined. An answer better than the best one known has points whose regrets sum to
 * at most the gap; the two longest lists are combined last, by one walk up the one and down the other, since
 * the more the one weighs the less the other may. First searches with a part of the gap find good answers,
 * which makes the gap of the last search, the one that proves, smaller. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/knap.h"

#define MAX_STEPS  ((uint64_t)1 << 22) /* a point held against a row, or a move along a list */
#define MAX_ROUNDS 16

/* A point of a list, for its order by regret. */
typedef struct rank {
    int64_t regret;
    uint32_t point;
} rank;

typedef struct level {
    uint32_t n, dim, first; /* its points are [first, first + n) of KNAP_POINTS and KNAP_ORDER */
    int64_t least;          /* weight */
} level;

typedef struct combine {
    knap_search *search;
    const knap_problem *problem;
    const knap_state *points;
    const rank *order;
    level level[KNAP_MAX_DIMS]; /* shortest list first */
    uint32_t n_levels, n_points;
    int64_t *left; /* [n_levels * n_rows]: capacity less what is chosen and the least of what is not */
    uint32_t chosen[KNAP_MAX_DIMS], best[KNAP_MAX_DIMS];
    int64_t gap, unseen; /* unseen: least regret of what was left out at the limit of work */
    uint64_t steps, most;
    int found, stopped;
} combine;

static int by_regret(const void *a, const void *b) {
    const rank *x = a, *y = b;
    if (x->regret != y->regret) return x->regret < y->regret ? -1 : 1;
    return x->point < y->point ? -1 : x->point > y->point;
}

static int by_length(const void *a, const void *b) {
    const level *x = a, *y = b;
    if (x->n != y->n) return x->n < y->n ? -1 : 1;
    return x->dim < y->dim ? -1 : x->dim > y->dim;
}

/* The points of every dimension, copied behind one another. */
static agoq_status list_points(combine *c, int *complete) {
    knap_search *s = c->search;
    c->n_points = 0;
    s->n_nodes = 0;
    c->n_levels = c->problem->n_dims;
    for (uint32_t d = 0; d < c->n_levels; d++) {
        uint32_t n;
        AGOQ_TRY(knap_frontier(s, d, c->gap, &n, complete));
        knap_state *points = knap_reserve(s->space, KNAP_POINTS, (size_t)c->n_points + n, sizeof *points);
        rank *order = knap_reserve(s->space, KNAP_ORDER, (size_t)c->n_points + n, sizeof *order);
        if (!points || !order) return AGOQ_E_NOMEM;
        memcpy(points + c->n_points, s->space->buffer[KNAP_NOW].data, n * sizeof *points);
        for (uint32_t i = 0; i < n; i++)
            order[c->n_points + i] = (rank){points[c->n_points + i].regret, c->n_points + i};
        qsort(order + c->n_points, n, sizeof *order, by_regret);
        c->level[d] = (level){n, d, c->n_points, points[c->n_points].weight};
        c->n_points += n;
        c->points = points;
        c->order = order;
    }
    qsort(c->level, c->n_levels, sizeof *c->level, by_length);
    return AGOQ_OK;
}

static int64_t coef_of(const combine *c, uint32_t row, uint32_t k) {
    return c->problem->coef[(size_t)row * c->problem->n_dims + c->level[k].dim];
}

static void keep(combine *c, int64_t cost) {
    c->search->best = cost;
    c->found = 1;
    memcpy(c->best, c->chosen, c->n_levels * sizeof *c->best);
    const int64_t gap = cost - 1 - c->search->dual.root;
    if (gap < c->gap) c->gap = gap;
}

/* The last two levels: points of the one by increasing weight against the heaviest of the other that fits. */
static void walk_pair(combine *c, uint32_t k, int64_t cost, int64_t regret) {
    const uint32_t rows = c->problem->n_rows;
    const level *a = &c->level[k], *b = &c->level[k + 1];
    const int64_t *left = c->left + (size_t)k * rows;
    const knap_state *at = c->points + a->first, *other = c->points + b->first;
    uint32_t j = b->n;
    for (uint32_t i = 0; i < a->n && j; i++) {
        c->steps++;
        if (regret + at[i].regret > c->gap) continue;
        /* The heaviest that may still fit is the cheapest. */
        if (cost + at[i].cost + other[j - 1].cost >= c->search->best) continue;
        for (uint32_t r = 0; r < rows; r++) {
            const int64_t mine = coef_of(c, r, k) * (at[i].weight - a->least), each = coef_of(c, r, k + 1);
            c->steps++;
            while (j && mine + each * (other[j - 1].weight - b->least) > left[r]) {
                j--;
                c->steps++;
            }
        }
        if (!j) break;
        const int64_t sum = cost + at[i].cost + other[j - 1].cost;
        if (sum >= c->search->best) continue;
        c->chosen[k] = a->first + i;
        c->chosen[k + 1] = b->first + j - 1;
        keep(c, sum);
    }
}

static void descend(combine *c, uint32_t k, int64_t cost, int64_t regret) {
    const uint32_t rows = c->problem->n_rows;
    if (k + 2 == c->n_levels) {
        walk_pair(c, k, cost, regret);
        return;
    }
    const level *l = &c->level[k];
    const int64_t *left = c->left + (size_t)k * rows;
    int64_t *next = c->left + (size_t)(k + 1) * rows;
    for (uint32_t i = 0; i < l->n; i++) {
        const rank *o = &c->order[l->first + i];
        const knap_state *at = &c->points[o->point];
        if (regret + o->regret > c->gap) break;
        if (c->stopped || c->steps > c->most) {
            c->stopped = 1;
            if (regret + o->regret < c->unseen) c->unseen = regret + o->regret;
            break;
        }
        int fits = 1;
        for (uint32_t r = 0; r < rows && fits; r++) {
            next[r] = left[r] - coef_of(c, r, k) * (at->weight - l->least);
            fits = next[r] >= 0;
            c->steps++;
        }
        if (!fits) continue;
        c->chosen[k] = o->point;
        descend(c, k + 1, cost + at->cost, regret + o->regret);
        if (c->stopped && regret + o->regret < c->unseen) c->unseen = regret + o->regret;
    }
}

static agoq_status prepare(combine *c) {
    const knap_problem *p = c->problem;
    c->left = knap_reserve(c->search->space, KNAP_LEVELS, (size_t)c->n_levels * p->n_rows, sizeof *c->left);
    if (!c->left) return AGOQ_E_NOMEM;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        c->left[r] = p->capacity[r];
        for (uint32_t k = 0; k < c->n_levels; k++) c->left[r] -= coef_of(c, r, k) * c->level[k].least;
    }
    return AGOQ_OK;
}

static int has_room(const combine *c) {
    for (uint32_t r = 0; r < c->problem->n_rows; r++) {
        if (c->left[r] < 0) return 0;
    }
    return 1;
}

static void walk_one(combine *c) {
    const level *l = &c->level[0];
    for (uint32_t j = l->n; j-- > 0;) {
        const knap_state *at = &c->points[l->first + j];
        int fits = at->cost < c->search->best;
        for (uint32_t r = 0; fits && r < c->problem->n_rows; r++)
            fits = coef_of(c, r, 0) * (at->weight - l->least) <= c->left[r];
        if (!fits) continue;
        c->chosen[0] = l->first + j;
        keep(c, at->cost);
    }
}

/* Of two lists, the cheapest pair of points within `left`; no cheaper than *cost: nothing changes. */
static int best_pair(combine *c, uint32_t a, uint32_t b, const int64_t *left, int64_t *cost) {
    const level *la = &c->level[a], *lb = &c->level[b];
    const knap_state *at = c->points + la->first, *other = c->points + lb->first;
    uint32_t j = lb->n;
    int better = 0;
    for (uint32_t i = 0; i < la->n && j; i++) {
        if (at[i].cost + other[j - 1].cost >= *cost) continue;
        for (uint32_t r = 0; r < c->problem->n_rows; r++) {
            const int64_t mine = coef_of(c, r, a) * (at[i].weight - la->least), each = coef_of(c, r, b);
            c->steps++;
            while (j && mine + each * (other[j - 1].weight - lb->least) > left[r]) j--;
        }
        if (!j || at[i].cost + other[j - 1].cost >= *cost) continue;
        *cost = at[i].cost + other[j - 1].cost;
        c->chosen[a] = la->first + i;
        c->chosen[b] = lb->first + j - 1;
        better = 1;
    }
    return better;
}

/* From c->chosen, which fits: two dimensions at a time are chosen anew until no pair can do better. */
static void improve_by_pairs(combine *c) {
    const uint32_t rows = c->problem->n_rows;
    int64_t *left = c->left + rows; /* levels below the first are not in use yet */
    int64_t total = 0;
    int better = 1;
    for (int round = 0; better && round < MAX_ROUNDS; round++) {
        better = 0;
        for (uint32_t a = 0; a < c->n_levels; a++) {
            for (uint32_t b = a + 1; b < c->n_levels; b++) {
                int64_t cost = c->points[c->chosen[a]].cost + c->points[c->chosen[b]].cost;
                for (uint32_t r = 0; r < rows; r++) {
                    left[r] = c->left[r];
                    for (uint32_t k = 0; k < c->n_levels; k++) {
                        if (k != a && k != b)
                            left[r] -=
                                coef_of(c, r, k) * (c->points[c->chosen[k]].weight - c->level[k].least);
                    }
                }
                better |= best_pair(c, a, b, left, &cost);
            }
        }
    }
    for (uint32_t k = 0; k < c->n_levels; k++) total += c->points[c->chosen[k]].cost;
    if (total < c->search->best) keep(c, total);
}

/* Good answers before the search: from the lightest points, and from those of least regret as far as they
 * fit. */
static void find_good(combine *c) {
    const uint32_t rows = c->problem->n_rows;
    for (uint32_t k = 0; k < c->n_levels; k++) c->chosen[k] = c->level[k].first;
    improve_by_pairs(c);
    int64_t *left = c->left + rows;
    memcpy(left, c->left, rows * sizeof *left);
    for (uint32_t k = 0; k < c->n_levels; k++) {
        const level *l = &c->level[k];
        c->chosen[k] = l->first;
        for (uint32_t i = 0; i < l->n; i++) {
            const uint32_t point = c->order[l->first + i].point;
            int fits = 1;
            for (uint32_t r = 0; r < rows && fits; r++)
                fits = coef_of(c, r, k) * (c->points[point].weight - l->least) <= left[r];
            if (!fits) continue;
            for (uint32_t r = 0; r < rows; r++)
                left[r] -= coef_of(c, r, k) * (c->points[point].weight - l->least);
            c->chosen[k] = point;
            break;
        }
    }
    improve_by_pairs(c);
}

static void write_best(const combine *c) {
    const knap_search *s = c->search;
    memset(s->taken, 0, (size_t)c->problem->n_items * KNAP_OPTIONS * sizeof *s->taken);
    for (uint32_t i = 0; i < c->problem->n_items; i++)
        s->taken[(size_t)i * KNAP_OPTIONS + s->dual.base[i]] = c->problem->items[i].count;
    for (uint32_t k = 0; k < c->n_levels; k++) knap_take_nodes(s, c->points[c->best[k]].node, s->taken);
}

agoq_status knap_many_rows(knap_search *s, int64_t *lower_bound) {
    static const int64_t parts[] = {256, 32, 4, 1};
    *lower_bound = s->dual.root;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        combine c = {.search = s, .problem = s->problem, .unseen = INT64_MAX};
        int complete = 1;
        c.gap = s->best - 1 - s->dual.root;
        if (c.gap < 0) break;
        c.gap /= parts[i];
        s->work = 0;
        AGOQ_TRY(list_points(&c, &complete));
        AGOQ_TRY(prepare(&c));
        const int64_t gap = c.gap;
        if (has_room(&c)) {
            if (c.n_levels == 1)
                walk_one(&c);
            else {
                if (c.n_levels > 2) find_good(&c);
                c.most = i + 1 < sizeof parts / sizeof *parts ? MAX_STEPS / 8 : MAX_STEPS;
                c.steps = 0;
                descend(&c, 0, 0, 0);
            }
        }
        s->work += c.steps;
        if (c.found) write_best(&c);
        if (!complete) return AGOQ_OK;
        /* Whatever is better than the best now has a regret that was looked at, or was left out. */
        const int64_t seen = gap < c.unseen - 1 ? gap : c.unseen - 1;
        const int64_t bound = s->dual.root + seen + 1;
        if (bound > *lower_bound) *lower_bound = bound < s->best ? bound : s->best;
        if (s->best - 1 - s->dual.root <= seen) break;
    }
    if (s->best <= s->dual.root) *lower_bound = s->best;
    return AGOQ_OK;
}
