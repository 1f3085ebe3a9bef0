/* What knap_curve.c and knap_price.c share: one row seen as steps (knap_curve.c says why). */
#ifndef PLANNER_KNAP_CURVE_H
#define PLANNER_KNAP_CURVE_H

#include "planner/knap.h"

#define KNAP_EDGES 64u
#define KNAP_LINES 16u

/* The same step of all items of a class: option from + 1 instead of from. */
typedef struct knap_edge {
    int64_t weight;
    double unit;       /* cost saved by an item with key 1 */
    uint32_t first, n; /* items */
    uint32_t members;  /* of them */
    uint32_t curve;
    int32_t least, most; /* of their `near` */
    uint8_t from;
} knap_edge;

/* Step of an item near the price. */
typedef struct knap_entry {
    int64_t gain, regret; /* of one member */
    uint32_t item, count, edge;
    uint8_t in; /* worth its price */
} knap_entry;

/* Steps of one weight. Taking k more than those that are worth their price, or -k less, costs cost[k] more.
 */
typedef struct knap_curve {
    int64_t weight, *cost, *regret; /* [low .. high] */
    int32_t low, high;
    uint32_t first, n_in, n; /* entries: n_in that are in, then those that are not */
} knap_curve;

typedef struct knap_lines {
    knap_search *search;
    const knap_problem *problem;
    knap_edge edges[KNAP_EDGES];
    knap_curve curve[KNAP_LINES];
    uint32_t order[KNAP_LINES]; /* of the search: the longest last */
    uint32_t n_edges, n_curves;
    const int32_t *near;   /* keys of items, as bits of a float: for counting */
    const uint32_t *count; /* of items; NULL: 1 each */
    knap_entry *entries;
    double price;           /* of a unit of weight */
    int64_t capacity, left; /* left: what the steps that are worth their price leave of it */
    int64_t whole;          /* left, less what no steps that matter can use */
    int64_t gap, best;      /* best: cost of the best answer against the steps worth their price */
    int32_t chosen[KNAP_LINES], answer[KNAP_LINES];
    uint64_t looks;
} knap_lines;

int32_t knap_near(double key);
/* *possible: 0 if there are too many different steps, or those of a class get better. */
AGOQ_MUST_USE agoq_status knap_list_edges(knap_lines *c, int *possible);
/* Members of an edge's items that are at least `from`. */
uint32_t knap_members(const knap_lines *c, const knap_edge *e, int32_t from);
/* The steps of an edge with keys in [from, to], behind the n entries there are. */
AGOQ_MUST_USE agoq_status knap_gather(knap_lines *c, uint32_t k, int32_t from, int32_t to, uint32_t *n);
/* Not everything fits: the price, exactly that of the relaxation, here and in c->search->dual. */
AGOQ_MUST_USE agoq_status knap_find_price(knap_lines *c);

#endif
