/* The dynamic program of knap.h. A state is a complete answer: what has not been reached yet stands at its
 * relaxed option, so cost, weights and Lagrangian bound of a state are those of a real assignment. States are
 * kept sorted by weight vector; adding an option shifts all of them alike, so the next list is a merge of at
 * most five sorted lists and dominated states fall out on the way. Members of an item are moved in bundles
 * whose sizes can make up any split over its options. The trade-off: with several dimensions only near
 * neighbours are compared, which may keep a dominated state but never loses a useful one. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/knap.h"

#define MAX_WORK   ((uint64_t)1 << 19) /* states looked at: some 20 ms */
#define NEIGHBOURS 24
#define NO_NODE    UINT32_MAX
/* Bounds at other multipliers than the best ones (these times PROBE / 8) see what the best ones cannot: that
 * a state is too far from the capacity for what is still open. The first is the best itself. */
#define PROBES 7
static const int64_t probe_eighths[PROBES] = {8, 1, 4, 7, 9, 16, 64};

/* How a state came to leave the relaxed answer; the chain of parents tells it all. */
typedef struct node {
    uint32_t parent, bundle;
    uint8_t option;
} node;

typedef struct state_list {
    int64_t *weight; /* [n * n_dims] */
    int64_t *cost;
    uint32_t *node;
    uint32_t n, capacity;
} state_list;

/* `size` members of an item that move together: what each option adds to the relaxed answer, and how much it
 * regrets. */
typedef struct bundle {
    uint32_t item, size, dim, n_options;
    uint8_t option[KNAP_OPTIONS]; /* [0]: the relaxed one */
    int64_t weight[KNAP_OPTIONS], cost[KNAP_OPTIONS];
    knap_wide regret; /* of the least regretted other option */
} bundle;

typedef struct search {
    const knap_problem *problem;
    knap_wide denominator;
    knap_wide *price;           /* [PROBES * n_dims]: reduced cost = cost * denominator + price * weight */
    knap_wide constant[PROBES]; /* what the rows' capacities are worth */
    knap_wide *open; /* [(n_bundles + 1) * PROBES]: what bundles from here on can still gain, <= 0 */
    uint8_t *base;   /* [n_items]: the relaxed option */
    bundle *bundles;
    uint32_t n_bundles, max_bundles;
    state_list now, next;
    node *nodes;
    uint32_t n_nodes, max_nodes;
    int64_t *scratch; /* [n_dims] */
    int64_t best_cost;
    uint32_t best_node;
    int found; /* best_node describes the best answer (else dual->taken does) */
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

static knap_wide reduced_cost(const search *s, int probe, int64_t cost, const int64_t *weight) {
    const uint32_t n = s->problem->n_dims;
    knap_wide bound = cost * s->denominator - s->constant[probe];
    for (uint32_t d = 0; d < n; d++) bound += s->price[(size_t)probe * n + d] * weight[d];
    return bound;
}

/* Costs are integers, so a better answer costs at most best - 1. */
static int can_improve(const search *s, knap_wide bound) {
    return bound <= (s->best_cost - 1) * s->denominator;
}

/* Whether a state may become better than the best answer by moving bundles from `next` on. */
static int is_promising(const search *s, int64_t cost, const int64_t *weight, uint32_t next) {
    for (int m = 0; m < PROBES; m++) {
        if (!can_improve(s, reduced_cost(s, m, cost, weight) + s->open[(size_t)next * PROBES + (size_t)m]))
            return 0;
    }
    return 1;
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
    const bundle *x = a, *y = b;
    if (x->regret != y->regret) return x->regret < y->regret ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->size > y->size ? -1 : x->size < y->size;
}

static knap_wide option_value(const search *s, const knap_item *item, uint32_t option) {
    return item->cost[option] * s->denominator + s->price[item->dim] * item->weight[option];
}

/* Bundles of one item: each at most the n_options-th part of what is left, so that the largest first always
 * finds a share that can take it. Options whose regret alone rules them out are not even listed. */
static agoq_status add_bundles(search *s, uint32_t index, knap_wide bound) {
    const knap_item *item = &s->problem->items[index];
    const uint8_t base = s->base[index];
    const knap_wide least = option_value(s, item, base);
    bundle one = {.item = index, .dim = item->dim, .n_options = 1, .option = {base}};
    for (uint8_t o = 0; o < item->n_options; o++) {
        const knap_wide regret = option_value(s, item, o) - least;
        if (o == base || !can_improve(s, bound + regret)) continue;
        if (one.n_options == 1 || regret < one.regret) one.regret = regret;
        one.weight[one.n_options] = item->weight[o] - item->weight[base];
        one.cost[one.n_options] = item->cost[o] - item->cost[base];
        one.option[one.n_options++] = o;
    }
    for (uint32_t left = item->count; left && one.n_options > 1;) {
        bundle b = one;
        b.size = (left + one.n_options - 1) / one.n_options;
        left -= b.size;
        b.regret *= b.size;
        for (uint32_t o = 1; o < b.n_options; o++) {
            b.weight[o] *= b.size;
            b.cost[o] *= b.size;
        }
        if (s->n_bundles == s->max_bundles) {
            const uint32_t more = s->max_bundles ? 2 * s->max_bundles : 64;
            bundle *bundles = mem_realloc(s->bundles, more, sizeof *bundles);
            if (!bundles) return AGOQ_E_NOMEM;
            s->bundles = bundles;
            s->max_bundles = more;
        }
        s->bundles[s->n_bundles++] = b;
    }
    return AGOQ_OK;
}

/* open[k]: the most that bundles k, k+1, ... can lower the reduced cost at each probe. */
static agoq_status sum_open(search *s) {
    const uint32_t n = s->problem->n_dims;
    s->open = mem_zalloc((size_t)(s->n_bundles + 1) * PROBES, sizeof *s->open);
    if (!s->open) return AGOQ_E_NOMEM;
    for (uint32_t k = s->n_bundles; k-- > 0;) {
        const bundle *b = &s->bundles[k];
        for (int m = 0; m < PROBES; m++) {
            knap_wide least = 0;
            for (uint32_t o = 1; o < b->n_options; o++) {
                const knap_wide more =
                    b->cost[o] * s->denominator + s->price[(size_t)m * n + b->dim] * b->weight[o];
                if (more < least) least = more;
            }
            s->open[(size_t)k * PROBES + (size_t)m] = s->open[(size_t)(k + 1) * PROBES + (size_t)m] + least;
        }
    }
    return AGOQ_OK;
}

/* The relaxed answer becomes the first state; what could leave it with profit becomes the bundles. */
static agoq_status start(search *s) {
    const knap_problem *p = s->problem;
    int64_t cost = 0;
    AGOQ_TRY(list_reserve(&s->now, 1, p->n_dims));
    memset(s->now.weight, 0, p->n_dims * sizeof *s->now.weight);
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &p->items[i];
        for (uint8_t o = 1; o < item->n_options; o++) {
            if (option_value(s, item, o) < option_value(s, item, s->base[i])) s->base[i] = o;
        }
        s->now.weight[item->dim] += item->weight[s->base[i]] * item->count;
        cost += item->cost[s->base[i]] * item->count;
    }
    s->now.cost[0] = cost;
    s->now.node[0] = NO_NODE;
    s->now.n = 1;
    if (cost < s->best_cost && fits(s, s->now.weight)) {
        s->best_cost = cost;
        s->found = 1;
    }
    const knap_wide bound = reduced_cost(s, 0, cost, s->now.weight);
    for (uint32_t i = 0; i < p->n_items; i++) AGOQ_TRY(add_bundles(s, i, bound));
    if (s->n_bundles) qsort(s->bundles, s->n_bundles, sizeof *s->bundles, by_regret);
    return sum_open(s);
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

static agoq_status push_node(search *s, uint32_t parent, uint32_t index, uint8_t option) {
    if (s->n_nodes == s->max_nodes) {
        const uint32_t more = s->max_nodes ? s->max_nodes * 2 : 1024;
        node *nodes = mem_realloc(s->nodes, more, sizeof *nodes);
        if (!nodes) return AGOQ_E_NOMEM;
        s->nodes = nodes;
        s->max_nodes = more;
    }
    s->nodes[s->n_nodes++] = (node){parent, index, option};
    return AGOQ_OK;
}

/* The state `from` with bundle k at its option o: kept in s->next if it can still lead to a better answer. */
static agoq_status consider(search *s, uint32_t k, uint32_t from, uint32_t o) {
    const bundle *b = &s->bundles[k];
    const uint32_t n = s->problem->n_dims;
    const int64_t cost = s->now.cost[from] + b->cost[o];
    memcpy(s->scratch, s->now.weight + (size_t)from * n, n * sizeof *s->scratch);
    s->scratch[b->dim] += b->weight[o];
    s->work++;
    if (is_dominated(s, cost) || !is_promising(s, cost, s->scratch, k + 1)) return AGOQ_OK;
    uint32_t at = s->now.node[from];
    if (o) {
        AGOQ_TRY(push_node(s, at, k, b->option[o]));
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

static agoq_status expand(search *s, uint32_t k) {
    const bundle *b = &s->bundles[k];
    uint32_t head[KNAP_OPTIONS] = {0};
    s->next.n = 0;
    for (;;) {
        uint32_t best = KNAP_OPTIONS;
        for (uint32_t o = 0; o < b->n_options; o++) {
            if (head[o] == s->now.n) continue;
            if (best == KNAP_OPTIONS) {
                best = o;
                continue;
            }
            const int order = compare(s, b->dim, head[o], b->weight[o], head[best], b->weight[best]);
            if (order > 0) continue;
            if (order < 0 || s->now.cost[head[o]] + b->cost[o] < s->now.cost[head[best]] + b->cost[best])
                best = o;
        }
        if (best == KNAP_OPTIONS) break;
        AGOQ_TRY(consider(s, k, head[best]++, best));
    }
    const state_list was = s->now;
    s->now = s->next;
    s->next = was;
    return AGOQ_OK;
}

static knap_wide least_bound(const search *s) {
    knap_wide least = 0;
    for (uint32_t i = 0; i < s->now.n; i++) {
        const knap_wide bound =
            reduced_cost(s, 0, s->now.cost[i], s->now.weight + (size_t)i * s->problem->n_dims);
        if (!i || bound < least) least = bound;
    }
    return least;
}

/* Runs until no state can improve, or the work limit. *lower_bound: of every answer. */
static agoq_status run(search *s, int64_t *lower_bound) {
    for (uint32_t k = 0; k < s->n_bundles && s->now.n; k++) {
        const knap_wide least = least_bound(s);
        /* Every later bundle regrets at least as much, and the states themselves have been tried. */
        if (!can_improve(s, least + s->bundles[k].regret)) break;
        if (s->work + (uint64_t)s->now.n * s->bundles[k].n_options > MAX_WORK) {
            const knap_wide up = least >= 0 ? s->denominator - 1 : 0;
            const int64_t bound = (int64_t)((least + up) / s->denominator);
            *lower_bound = bound < s->best_cost ? bound : s->best_cost;
            return AGOQ_OK;
        }
        AGOQ_TRY(expand(s, k));
    }
    *lower_bound = s->best_cost;
    return AGOQ_OK;
}

static void write_taken(const search *s, uint32_t *taken) {
    const knap_problem *p = s->problem;
    if (!s->found) return;
    memset(taken, 0, (size_t)p->n_items * KNAP_OPTIONS * sizeof *taken);
    for (uint32_t i = 0; i < p->n_items; i++)
        taken[(size_t)i * KNAP_OPTIONS + s->base[i]] = p->items[i].count;
    for (uint32_t at = s->best_node; at != NO_NODE; at = s->nodes[at].parent) {
        const bundle *b = &s->bundles[s->nodes[at].bundle];
        taken[(size_t)b->item * KNAP_OPTIONS + b->option[0]] -= b->size;
        taken[(size_t)b->item * KNAP_OPTIONS + s->nodes[at].option] += b->size;
    }
}

agoq_status knap_core_solve(const knap_problem *problem, knap_dual *dual, knap_result *result) {
    agoq_status status = AGOQ_E_NOMEM;
    search s = {.problem = problem, .best_cost = dual->cost, .best_node = NO_NODE};
    const uint32_t n = problem->n_dims;
    s.denominator = (knap_wide)dual->denominator * probe_eighths[0];
    s.price = mem_zalloc((size_t)n * PROBES, sizeof *s.price);
    s.scratch = mem_zalloc(n, sizeof *s.scratch);
    s.base = mem_zalloc(problem->n_items, 1);
    if (!s.price || !s.scratch || !s.base) goto out;
    for (int m = 0; m < PROBES; m++) {
        for (uint32_t r = 0; r < problem->n_rows; r++) {
            const knap_wide lambda = (knap_wide)dual->lambda[r] * probe_eighths[m];
            s.constant[m] += lambda * problem->capacity[r];
            for (uint32_t d = 0; d < n; d++)
                s.price[(size_t)m * n + d] += lambda * problem->coef[(size_t)r * n + d];
        }
    }
    AGOQ_TRY_OUT(start(&s));
    AGOQ_TRY_OUT(run(&s, &result->lower_bound));
    result->work = s.work;
    result->cost = dual->cost = s.best_cost;
    write_taken(&s, dual->taken);
    status = AGOQ_OK;
out:
    mem_free(s.nodes);
    list_free(&s.now);
    list_free(&s.next);
    mem_free(s.open);
    mem_free(s.bundles);
    mem_free(s.base);
    mem_free(s.scratch);
    mem_free(s.price);
    return status;
}

agoq_status knap_solve(const knap_problem *problem, uint32_t *taken, knap_result *result) {
    if (!problem || !taken || !result || !problem->n_rows || !problem->n_dims) return AGOQ_E_INVAL;
    agoq_status status = AGOQ_E_NOMEM;
    knap_result r = {0};
    const size_t n = (size_t)problem->n_items * KNAP_OPTIONS;
    knap_dual dual = {.lambda = mem_zalloc(problem->n_rows, sizeof *dual.lambda),
                      .taken = mem_zalloc(n, sizeof *dual.taken)};
    if (!dual.lambda || !dual.taken) goto out;
    AGOQ_TRY_OUT(knap_dual_solve(problem, &dual));
    AGOQ_TRY_OUT(knap_core_solve(problem, &dual, &r));
    if (n) memcpy(taken, dual.taken, n * sizeof *taken);
    *result = r;
    status = AGOQ_OK;
out:
    mem_free(dual.taken);
    mem_free(dual.lambda);
    return status;
}
