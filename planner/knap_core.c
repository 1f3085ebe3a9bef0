/* The dynamic program of knap.h. A state is a complete answer: items not reached yet stand at their relaxed
 * choice, so its cost, weights and Lagrangian bound are those of a real assignment, and the bound holds for
 * everything that can still be made of it. States are kept sorted by weight vector; adding an option shifts
 * all of them alike, so the next list is a merge of at most five sorted lists and dominated states fall out
 * on the way. The trade-off: with several dimensions only near neighbours are compared, which may keep a
 * dominated state but never loses a useful one. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/knap.h"

#define MAX_WORK   ((uint64_t)1 << 21) /* states looked at: some 50 ms */
#define MAX_NODES  ((uint32_t)1 << 18)
#define NEIGHBOURS 24
#define NO_NODE    UINT32_MAX

/* How a state came to leave a relaxed choice; the chain of parents is the answer. */
typedef struct node {
    uint32_t parent, item;
    uint8_t option;
} node;

typedef struct state_list {
    int64_t *weight; /* [n * n_dims] */
    int64_t *cost;
    uint32_t *node;
    uint32_t n, capacity;
} state_list;

typedef struct core_item {
    uint32_t item;
    uint8_t base;
    knap_wide regret[KNAP_OPTIONS], least_regret; /* of leaving base */
} core_item;

typedef struct search {
    const knap_problem *problem;
    const knap_dual *dual;
    knap_wide *price, constant; /* by dimension; what the rows' capacities are worth */
    core_item *core;
    uint32_t n_core;
    state_list now, next;
    node *nodes;
    uint32_t n_nodes, max_nodes;
    int64_t *scratch; /* [n_dims] */
    int64_t best_cost;
    uint32_t best_node;
    int found; /* best_node describes the best answer (else dual->choice does) */
    uint64_t work;
} search;

static agoq_status list_reserve(state_list *list, uint32_t n, uint32_t n_dims) {
    if (n <= list->capacity) return AGOQ_OK;
    uint32_t capacity = list->capacity ? list->capacity : 256;
    while (capacity < n) capacity *= 2;
    int64_t *weight = mem_realloc(list->weight, (size_t)capacity * n_dims, sizeof *weight);
    if (!weight) return AGOQ_E_NOMEM;
    list->weight = weight;
    int64_t *cost = mem_realloc(list->cost, capacity, sizeof *cost);
    if (!cost) return AGOQ_E_NOMEM;
    list->cost = cost;
    uint32_t *nodes = mem_realloc(list->node, capacity, sizeof *nodes);
    if (!nodes) return AGOQ_E_NOMEM;
    list->node = nodes;
    list->capacity = capacity;
    return AGOQ_OK;
}

static void list_free(state_list *list) {
    mem_free(list->weight);
    mem_free(list->cost);
    mem_free(list->node);
}

static knap_wide bound_of(const search *s, int64_t cost, const int64_t *weight) {
    knap_wide bound = (knap_wide)cost * s->dual->denominator - s->constant;
    for (uint32_t d = 0; d < s->problem->n_dims; d++) bound += s->price[d] * weight[d];
    return bound;
}

/* Costs are integers, so a better answer costs at most best - 1. */
static int can_improve(const search *s, knap_wide bound) {
    return bound <= (knap_wide)(s->best_cost - 1) * s->dual->denominator;
}

static int fits(const search *s, const int64_t *weight) {
    const knap_problem *p = s->problem;
    for (uint32_t r = 0; r < p->n_rows; r++) {
        int64_t used = 0;
        for (uint32_t d = 0; d < p->n_dims; d++) used += p->coef[(size_t)r * p->n_dims + d] * weight[d];
        if (used > p->capacity[r]) return 0;
    }
    return 1;
}

static int by_regret(const void *a, const void *b) {
    const core_item *x = a, *y = b;
    if (x->least_regret != y->least_regret) return x->least_regret < y->least_regret ? -1 : 1;
    return x->item < y->item ? -1 : x->item > y->item;
}

/* The relaxed answer becomes the first state; items that could leave it with profit become the core. */
static agoq_status start(search *s) {
    const knap_problem *p = s->problem;
    int64_t cost = 0;
    AGOQ_TRY(list_reserve(&s->now, 1, p->n_dims));
    memset(s->now.weight, 0, p->n_dims * sizeof *s->now.weight);
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &p->items[i];
        core_item c = {.item = i};
        for (uint8_t o = 0; o < item->n_options; o++) {
            c.regret[o] =
                (knap_wide)item->cost[o] * s->dual->denominator + s->price[item->dim] * item->weight[o];
            if (c.regret[o] < c.regret[c.base]) c.base = o;
        }
        const knap_wide least = c.regret[c.base];
        int others = 0;
        for (uint8_t o = 0; o < item->n_options; o++) {
            c.regret[o] -= least;
            if (o == c.base || (others && c.regret[o] >= c.least_regret)) continue;
            c.least_regret = c.regret[o];
            others = 1;
        }
        s->now.weight[item->dim] += item->weight[c.base];
        cost += item->cost[c.base];
        if (others) s->core[s->n_core++] = c;
    }
    s->now.cost[0] = cost;
    s->now.node[0] = NO_NODE;
    s->now.n = 1;
    if (cost < s->best_cost && fits(s, s->now.weight)) {
        s->best_cost = cost;
        s->best_node = NO_NODE;
        s->found = 1;
    }
    if (s->n_core) qsort(s->core, s->n_core, sizeof *s->core, by_regret);
    return AGOQ_OK;
}

/* Order of (state a shifted by x in dim) and (state b shifted by y), by weight vector. */
static int compare(const search *s, uint32_t dim, uint32_t a, int64_t x, uint32_t b, int64_t y) {
    const uint32_t n = s->problem->n_dims;
    const int64_t *u = s->now.weight + (size_t)a * n, *v = s->now.weight + (size_t)b * n;
    for (uint32_t d = 0; d < n; d++) {
        const int64_t p = u[d] + (d == dim ? x : 0), q = v[d] + (d == dim ? y : 0);
        if (p != q) return p < q ? -1 : 1;
    }
    return 0;
}

/* Whether a kept state is no worse in weights and cost than the candidate in s->scratch. */
static int is_dominated(const search *s, int64_t cost) {
    const uint32_t n = s->problem->n_dims, look = n == 1 ? 1 : NEIGHBOURS;
    for (uint32_t back = 1; back <= look && back <= s->next.n; back++) {
        const uint32_t at = s->next.n - back;
        uint32_t d = 0;
        if (s->next.cost[at] > cost) continue;
        while (d < n && s->next.weight[(size_t)at * n + d] <= s->scratch[d]) d++;
        if (d == n) return 1;
    }
    return 0;
}

static agoq_status push_node(search *s, uint32_t parent, uint32_t item, uint8_t option) {
    if (s->n_nodes == s->max_nodes) {
        const uint32_t more = s->max_nodes ? s->max_nodes * 2 : 1024;
        node *nodes = mem_realloc(s->nodes, more, sizeof *nodes);
        if (!nodes) return AGOQ_E_NOMEM;
        s->nodes = nodes;
        s->max_nodes = more;
    }
    s->nodes[s->n_nodes++] = (node){parent, item, option};
    return AGOQ_OK;
}

/* The state `from` with the core item at `option`: kept in s->next if it can still lead to a better answer.
 */
static agoq_status consider(search *s, const core_item *c, uint32_t from, uint8_t option) {
    const knap_item *item = &s->problem->items[c->item];
    const uint32_t n = s->problem->n_dims;
    const int64_t cost = s->now.cost[from] + item->cost[option] - item->cost[c->base];
    memcpy(s->scratch, s->now.weight + (size_t)from * n, n * sizeof *s->scratch);
    s->scratch[item->dim] += item->weight[option] - item->weight[c->base];
    s->work++;
    if (!can_improve(s, bound_of(s, cost, s->scratch)) || is_dominated(s, cost)) return AGOQ_OK;
    uint32_t at = s->now.node[from];
    if (option != c->base) {
        AGOQ_TRY(push_node(s, at, c->item, option));
        at = s->n_nodes - 1;
        if (cost < s->best_cost && fits(s, s->scratch)) {
            s->best_cost = cost;
            s->best_node = at;
            s->found = 1;
        }
    }
    AGOQ_TRY(list_reserve(&s->next, s->next.n + 1, n));
    memcpy(s->next.weight + (size_t)s->next.n * n, s->scratch, n * sizeof *s->scratch);
    s->next.cost[s->next.n] = cost;
    s->next.node[s->next.n++] = at;
    return AGOQ_OK;
}

static agoq_status expand(search *s, const core_item *c) {
    const knap_item *item = &s->problem->items[c->item];
    uint32_t head[KNAP_OPTIONS] = {0};
    s->next.n = 0;
    for (;;) {
        int best = -1;
        for (int o = 0; o < (int)item->n_options; o++) {
            if (head[o] == s->now.n) continue;
            if (best < 0) {
                best = o;
                continue;
            }
            const int order = compare(s, item->dim, head[o], item->weight[o], head[best], item->weight[best]);
            const int64_t difference =
                s->now.cost[head[o]] + item->cost[o] - s->now.cost[head[best]] - item->cost[best];
            if (order < 0 || (order == 0 && difference < 0)) best = o;
        }
        if (best < 0) break;
        AGOQ_TRY(consider(s, c, head[best]++, (uint8_t)best));
    }
    const state_list was = s->now;
    s->now = s->next;
    s->next = was;
    return AGOQ_OK;
}

static knap_wide least_bound(const search *s) {
    knap_wide least = 0;
    for (uint32_t i = 0; i < s->now.n; i++) {
        const knap_wide bound = bound_of(s, s->now.cost[i], s->now.weight + (size_t)i * s->problem->n_dims);
        if (!i || bound < least) least = bound;
    }
    return least;
}

/* Runs until no state can improve, or the work limit. *lower_bound: of every answer. */
static agoq_status run(search *s, int64_t *lower_bound) {
    for (uint32_t k = 0; k < s->n_core && s->now.n; k++) {
        const core_item *c = &s->core[k];
        const knap_wide least = least_bound(s);
        /* Every later item regrets at least as much, and the states themselves have been tried. */
        if (!can_improve(s, least + c->least_regret)) break;
        if (s->work + (uint64_t)s->now.n * KNAP_OPTIONS > MAX_WORK || s->n_nodes > MAX_NODES) {
            const knap_wide denominator = s->dual->denominator;
            const int64_t bound =
                (int64_t)(least >= 0 ? (least + denominator - 1) / denominator : least / denominator);
            *lower_bound = bound < s->best_cost ? bound : s->best_cost;
            return AGOQ_OK;
        }
        AGOQ_TRY(expand(s, c));
    }
    *lower_bound = s->best_cost;
    return AGOQ_OK;
}

static void write_choice(const search *s, uint8_t *choice) {
    const knap_problem *p = s->problem;
    if (!s->found) return;
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &p->items[i];
        knap_wide least = 0;
        for (uint8_t o = 0; o < item->n_options; o++) {
            const knap_wide reduced =
                (knap_wide)item->cost[o] * s->dual->denominator + s->price[item->dim] * item->weight[o];
            if (o && reduced >= least) continue;
            least = reduced;
            choice[i] = o;
        }
    }
    for (uint32_t at = s->best_node; at != NO_NODE; at = s->nodes[at].parent)
        choice[s->nodes[at].item] = s->nodes[at].option;
}

agoq_status knap_core_solve(const knap_problem *problem, knap_dual *dual, int64_t *lower_bound,
                            uint64_t *work) {
    agoq_status status = AGOQ_E_NOMEM;
    search s = {.problem = problem, .dual = dual, .best_cost = dual->cost, .best_node = NO_NODE};
    s.price = mem_zalloc(problem->n_dims, sizeof *s.price);
    s.scratch = mem_zalloc(problem->n_dims, sizeof *s.scratch);
    s.core = mem_zalloc(problem->n_items, sizeof *s.core);
    if (!s.price || !s.scratch || !s.core) goto out;
    for (uint32_t r = 0; r < problem->n_rows; r++) {
        s.constant += (knap_wide)dual->lambda[r] * problem->capacity[r];
        for (uint32_t d = 0; d < problem->n_dims; d++)
            s.price[d] += (knap_wide)dual->lambda[r] * problem->coef[(size_t)r * problem->n_dims + d];
    }
    AGOQ_TRY_OUT(start(&s));
    AGOQ_TRY_OUT(run(&s, lower_bound));
    *work = s.work;
    write_choice(&s, dual->choice);
    dual->cost = s.best_cost;
    status = AGOQ_OK;
out:
    mem_free(s.nodes);
    list_free(&s.now);
    list_free(&s.next);
    mem_free(s.core);
    mem_free(s.scratch);
    mem_free(s.price);
    return status;
}

agoq_status knap_solve(const knap_problem *problem, uint8_t *choice, knap_result *result) {
    if (!problem || !choice || !result || !problem->n_rows || !problem->n_dims) return AGOQ_E_INVAL;
    agoq_status status = AGOQ_E_NOMEM;
    knap_result r = {0};
    knap_dual dual = {.lambda = mem_zalloc(problem->n_rows, sizeof *dual.lambda),
                      .choice = mem_zalloc(problem->n_items, 1)};
    if (!dual.lambda || !dual.choice) goto out;
    AGOQ_TRY_OUT(knap_dual_solve(problem, &dual));
    AGOQ_TRY_OUT(knap_core_solve(problem, &dual, &r.lower_bound, &r.work));
    r.cost = dual.cost;
    if (problem->n_items) memcpy(choice, dual.choice, problem->n_items);
    *result = r;
    status = AGOQ_OK;
out:
    mem_free(dual.choice);
    mem_free(dual.lambda);
    return status;
}
