/* The combinatorial core of the planner: choose one option for every member of every item at the least cost
 * under a few linear rows (a multiple-choice knapsack with multiplicities). Integers only; knows nothing of
 * stages or widths.
 *
 * Method: Lagrange multipliers give a lower bound, a starting answer and the regret of every other option; a
 * greedy fill gives an upper bound; a dynamic program then leaves the starting answer bundle by bundle, least
 * regret first, and drops every partial answer whose bound cannot beat the best one known (the "core" idea of
 * Pisinger's minimal algorithm, 1995). Usually a few dozen bundles are touched before the bounds meet. At a
 * fixed amount of work it stops with the best answer found and an honest lower bound. */
#ifndef PLANNER_KNAP_H
#define PLANNER_KNAP_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/status.h"

#define KNAP_OPTIONS 5

__extension__ typedef __int128 knap_wide; /* reduced costs: cost * denominator + price * weight */

/* `count` alike things. Options by increasing weight and strictly decreasing cost; option 0 has weight 0. */
typedef struct knap_item {
    uint32_t count, n_options, dim; /* they weigh in this dimension alone */
    int64_t weight[KNAP_OPTIONS], cost[KNAP_OPTIONS];
} knap_item;

/* For each row r: sum over dimensions coef[r * n_dims + d] * (weight chosen in d) <= capacity[r], capacity >=
 * 0. */
typedef struct knap_problem {
    uint32_t n_items, n_dims, n_rows;
    const knap_item *items;
    const int64_t *coef, *capacity;
    uint32_t n_hints; /* answers worth trying, one option per item: [n_items * n_hints] */
    const uint8_t *hints;
} knap_problem;

typedef struct knap_result {
    int64_t cost, lower_bound; /* equal: proved optimal */
    uint64_t work;             /* states looked at */
} knap_result;

/* taken: [n_items * KNAP_OPTIONS], how many members of an item take an option. Deterministic, and never worse
 * than a hint that fits. Sums must stay below 2^56 (weights times coefficients) and 2^51 (costs). */
AGOQ_MUST_USE agoq_status knap_solve(const knap_problem *problem, uint32_t *taken, knap_result *result);

/* Multipliers of the rows as integers over a common denominator, all >= 0, and a first answer. */
typedef struct knap_dual {
    int64_t *lambda; /* [n_rows] */
    int64_t denominator;
    uint32_t *taken; /* feasible */
    int64_t cost;
} knap_dual;

/* knap_dual.c. The arrays of *dual are the caller's. */
AGOQ_MUST_USE agoq_status knap_dual_solve(const knap_problem *problem, knap_dual *dual);
/* knap_core.c. Improves dual->taken and dual->cost. */
AGOQ_MUST_USE agoq_status knap_core_solve(const knap_problem *problem, knap_dual *dual, knap_result *result);

#endif
