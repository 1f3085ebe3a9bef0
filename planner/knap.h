/* The combinatorial part of the planner: choose one option for every member of every item at the least cost
 * under a few linear rows (a multiple-choice knapsack with multiplicities). Integers only; knows nothing of
 * stages or widths.
 *
 * Method: Lagrange multipliers give a lower bound, a first answer and, for every other option, its regret:
 * what the bound rises by when one member takes it. An answer better than the best one known can only hold
 * options whose regrets sum to less than the gap between that one and the bound, so all such combinations are
 * walked through, cheapest regret first, dominated ones dropped (the "core" idea of Pisinger's minimal
 * algorithm, 1995). With one row that is the whole search (knap_core.c); with several rows each dimension is
 * searched on its own and their short lists are combined (knap_rows.c). At a fixed amount of work it stops
 * with the best answer found and an honest lower bound. */
#ifndef PLANNER_KNAP_H
#define PLANNER_KNAP_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/status.h"

#define KNAP_OPTIONS  5
#define KNAP_MAX_DIMS 64

__extension__ typedef __int128 knap_wide; /* cost * 2^shift + price * weight */

/* What items share. Options by increasing weight; option 0 has weight 0. */
typedef struct knap_class {
    uint32_t first, n;       /* items */
    uint32_t n_options, dim; /* they weigh in this dimension alone */
    int64_t weight[KNAP_OPTIONS];
    double unit[KNAP_OPTIONS];  /* strictly decreasing; see knap_cost */
    double closest;             /* least difference between two of them */
    uint8_t hint[KNAP_OPTIONS]; /* options that are worth trying for all classes at once */
} knap_class;

/* `count` alike things. */
typedef struct knap_item {
    const knap_class *of;
    double key; /* key * closest >= 1: costs strictly decrease */
    uint32_t count;
} knap_item;

static inline int64_t knap_cost(const knap_item *item, uint32_t option) {
    return (int64_t)(item->key * item->of->unit[option] + 0.5);
}

/* For each row r: sum over dimensions coef[r * n_dims + d] * (weight chosen in d) <= capacity[r], capacity >=
 * 0. */
typedef struct knap_problem {
    uint32_t n_items, n_classes, n_dims, n_rows;
    const knap_item *items; /* class by class */
    const knap_class *classes;
    const int64_t *coef, *capacity;
    uint32_t n_hints; /* of every class */
} knap_problem;

typedef struct knap_result {
    int64_t cost, lower_bound;      /* equal: proved optimal */
    int64_t root;                   /* the bound before any search */
    uint64_t work;                  /* states looked at */
    knap_wide price[KNAP_MAX_DIMS]; /* of a unit of weight, over 2^shift: what gave the root bound */
    int shift;
} knap_result;

/* Memory that is kept between calls. Starts zeroed. */
enum {
    KNAP_STEPS,
    KNAP_TRY,
    KNAP_LAMBDA,
    KNAP_NUMBERS,
    KNAP_USED,
    KNAP_BASE,
    KNAP_MOVES,
    KNAP_NOW,
    KNAP_NEXT,
    KNAP_NODES,
    KNAP_POINTS,
    KNAP_ORDER,
    KNAP_LEVELS,
    KNAP_NEAR,
    KNAP_COUNTS,
    KNAP_ENTRIES,
    KNAP_CURVES,
    KNAP_BUFFERS
};
typedef struct knap_buffer {
    void *data;
    size_t bytes;
} knap_buffer;
typedef struct knap_space {
    knap_buffer buffer[KNAP_BUFFERS];
} knap_space;
void knap_space_fini(knap_space *space);

/* taken: [n_items * KNAP_OPTIONS], how many members of an item take an option. Deterministic, and never worse
 * than a hint that fits. Sums must stay below 2^56 (weights times coefficients) and 2^51 (costs). */
AGOQ_MUST_USE agoq_status knap_solve(const knap_problem *problem, knap_space *space, uint32_t *taken,
                                     knap_result *result);

/* ---- shared by the files of knap ---- */

/* An item's hull edge: `to` instead of `from`. */
typedef struct knap_step {
    double gain; /* cost saved per priced weight */
    uint32_t item;
    uint8_t from, to;
} knap_step;

/* Multipliers and what follows from them. */
typedef struct knap_dual {
    int64_t *lambda;                /* [n_rows], over 2^shift */
    knap_wide price[KNAP_MAX_DIMS]; /* over 2^shift */
    int shift;
    int64_t root;      /* floor of the bound */
    uint8_t *base;     /* [n_items]: the option of least reduced cost; the lower one of the critical item */
    uint32_t critical; /* one row: the item whose next step does not fit whole; n_items: none */
    uint8_t from, to;
} knap_dual;

/* A partial answer of one dimension: what has not been moved stands at base. */
typedef struct knap_state {
    int64_t weight, cost, regret;
    uint32_t node, room; /* room: members of the critical item that are still at its lower option */
} knap_state;

/* `size` members of an item that move together, to one of n options. */
typedef struct knap_move {
    int64_t weight[KNAP_OPTIONS], cost[KNAP_OPTIONS], regret[KNAP_OPTIONS], least;
    uint32_t item, size;
    uint8_t n, option[KNAP_OPTIONS];
} knap_move;

typedef struct knap_node {
    uint32_t parent, item, size;
    uint8_t option;
} knap_node;
#define KNAP_NO_NODE UINT32_MAX

typedef struct knap_search {
    const knap_problem *problem;
    knap_space *space;
    knap_dual dual;
    int64_t best; /* cost of the best answer known */
    int patient;  /* second try: a longer walk to the multipliers; best and taken stay */
    uint64_t work;
    uint32_t n_nodes;
    uint32_t *taken; /* the best answer */
} knap_search;

void *knap_reserve(knap_space *space, int which, size_t n, size_t size); /* keeps what it holds; NULL */
/* Reduced cost of an option. */
knap_wide knap_value(const knap_search *s, const knap_item *item, uint32_t option);
int64_t knap_regret(const knap_search *s, const knap_item *item, uint32_t option, uint32_t base);

/* knap_dual.c: s->dual, and a first answer in s->taken and s->best. */
AGOQ_MUST_USE agoq_status knap_multipliers(knap_search *s);
/* Prices from multipliers, rounded to integers over a power of two. */
void knap_set_prices(knap_search *s, const double *lambda);
/* knap_curve.c: one row. *done: s->taken, s->best and s->dual.root are those of the optimum; else nothing is
 * known. */
AGOQ_MUST_USE agoq_status knap_curves(knap_search *s, int *done);
/* knap_core.c: the moves of a dimension whose regret is at most `gap`, by increasing regret. */
AGOQ_MUST_USE agoq_status knap_list_moves(knap_search *s, uint32_t dim, int64_t gap, uint32_t *n_moves);
/* One row: searches to the end. */
AGOQ_MUST_USE agoq_status knap_one_row(knap_search *s, int64_t *lower_bound);
/* All undominated states of a dimension with a regret of at most gap, by increasing weight, in KNAP_NOW.
 * *complete: not stopped by the limit of work. */
AGOQ_MUST_USE agoq_status knap_frontier(knap_search *s, uint32_t dim, int64_t gap, uint32_t *n,
                                        int *complete);
void knap_take_nodes(const knap_search *s, uint32_t node, uint32_t *taken);
/* knap_rows.c */
AGOQ_MUST_USE agoq_status knap_many_rows(knap_search *s, int64_t *lower_bound);

#endif
