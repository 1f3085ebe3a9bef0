/* The search of knap.h in one dimension. A state is a complete answer: what has not been moved stands at its
 * base option, so cost, weight and regret of a state are those of a real assignment. States are kept sorted
 * by weight; a move shifts all of them alike, so the next list is a merge of at most five sorted lists and
 * dominated states fall out on the way. With one row the critical item, whose next step has no regret, is not
 * searched but used to fill what a state leaves. Members of an item are moved in bundles whose sizes can make
 * up any split over its options. */
#include <stdlib.h>
#include <string.h>

#include "common/try.h"
#include "planner/knap.h"

#define MAX_WORK   ((uint64_t)1 << 19) /* states looked at: some milliseconds */
#define MAX_POINTS 4096u               /* of one dimension */

static int by_regret(const void *a, const void *b) {
    const knap_move *x = a, *y = b;
    if (x->least != y->least) return x->least < y->least ? -1 : 1;
    if (x->item != y->item) return x->item < y->item ? -1 : 1;
    return x->size > y->size ? -1 : x->size < y->size;
}

/* Bundles of one item: each at most the n-th part of what is left (n: its options and staying), so that the
 * largest first always finds a share that can take it. No more members than the gap has room for. */
static agoq_status add_moves(knap_search *s, uint32_t index, int64_t gap, uint32_t *n_moves) {
    const knap_item *item = &s->problem->items[index];
    const uint8_t base = s->dual.base[index];
    const int critical = index == s->dual.critical;
    knap_move one = {.item = index, .least = INT64_MAX};
    for (uint8_t o = 0; o < item->of->n_options; o++) {
        if (o == base || (critical && o == s->dual.to)) continue;
        const int64_t regret = knap_regret(s, item, o, base);
        if (regret > gap) continue;
        if (regret < one.least) one.least = regret;
        one.weight[one.n] = item->of->weight[o] - item->of->weight[base];
        one.cost[one.n] = knap_cost(item, o) - knap_cost(item, base);
        one.regret[one.n] = regret;
        one.option[one.n++] = o;
    }
    if (!one.n) return AGOQ_OK;
    uint32_t left = item->count;
    if (one.least > 0 && gap / one.least < left) left = (uint32_t)(gap / one.least);
    while (left) {
        knap_move *moves = knap_reserve(s->space, KNAP_MOVES, *n_moves + 1, sizeof *moves);
        if (!moves) return AGOQ_E_NOMEM;
        knap_move *m = &moves[(*n_moves)++];
        *m = one;
        m->size = (left + one.n) / (one.n + 1u);
        left -= m->size;
        m->least *= m->size;
        for (uint32_t o = 0; o < m->n; o++) {
            m->weight[o] *= m->size;
            m->cost[o] *= m->size;
            m->regret[o] *= m->size;
        }
    }
    return AGOQ_OK;
}

agoq_status knap_list_moves(knap_search *s, uint32_t dim, int64_t gap, uint32_t *n_moves) {
    *n_moves = 0;
    if (gap < 0) return AGOQ_OK;
    for (uint32_t i = 0; i < s->problem->n_items; i++) {
        if (s->problem->items[i].of->dim == dim && s->problem->items[i].of->n_options > 1)
            AGOQ_TRY(add_moves(s, i, gap, n_moves));
    }
    if (*n_moves > 1) qsort(s->space->buffer[KNAP_MOVES].data, *n_moves, sizeof(knap_move), by_regret);
    return AGOQ_OK;
}

static agoq_status push_node(knap_search *s, uint32_t parent, const knap_move *m, uint32_t o,
                             uint32_t *node) {
    knap_node *nodes = knap_reserve(s->space, KNAP_NODES, s->n_nodes + 1u, sizeof *nodes);
    if (!nodes) return AGOQ_E_NOMEM;
    *node = s->n_nodes++;
    nodes[*node] = (knap_node){parent, m->item, m->size, m->option[o]};
    return AGOQ_OK;
}

void knap_take_nodes(const knap_search *s, uint32_t node, uint32_t *taken) {
    const knap_node *nodes = s->space->buffer[KNAP_NODES].data;
    for (; node != KNAP_NO_NODE; node = nodes[node].parent) {
        uint32_t *of = taken + (size_t)nodes[node].item * KNAP_OPTIONS;
        of[s->dual.base[nodes[node].item]] -= nodes[node].size;
        of[nodes[node].option] += nodes[node].size;
    }
}

/* Lists during a search; all in the space. */
typedef struct lists {
    knap_state *now, *next;
    uint32_t n, n_next;
    int64_t gap; /* of regrets */
} lists;

/* Merges what the states become when they stay or take one option of the move. Dominated ones are left out.
 */
static agoq_status expand(knap_search *s, lists *l, const knap_move *m) {
    uint32_t head[KNAP_OPTIONS] = {0}, stay = 0;
    const uint32_t n = l->n;
    l->n_next = 0;
    l->next = knap_reserve(s->space, KNAP_NEXT, (size_t)n * (m->n + 1u), sizeof *l->next);
    if (!l->next) return AGOQ_E_NOMEM;
    for (;;) {
        int best = -2;
        int64_t weight = 0, cost = 0;
        if (stay < n) {
            best = -1;
            weight = l->now[stay].weight;
            cost = l->now[stay].cost;
        }
        for (int o = 0; o < m->n; o++) {
            while (head[o] < n && (l->now[head[o]].regret + m->regret[o] > l->gap ||
                                   (m->item == s->dual.critical && l->now[head[o]].room < m->size)))
                head[o]++;
            if (head[o] == n) continue;
            const int64_t w = l->now[head[o]].weight + m->weight[o], c = l->now[head[o]].cost + m->cost[o];
            if (best == -2 || w < weight || (w == weight && c < cost)) {
                best = o;
                weight = w;
                cost = c;
            }
        }
        if (best == -2) break;
        knap_state made = l->now[best < 0 ? stay++ : head[best]++];
        s->work++;
        if (best >= 0 && m->item == s->dual.critical) made.room -= m->size;
        const knap_state *last = l->n_next ? &l->next[l->n_next - 1] : NULL;
        if (last && last->cost <= cost && last->room >= made.room) continue;
        if (best >= 0) {
            made.weight = weight;
            made.cost = cost;
            made.regret += m->regret[best];
            AGOQ_TRY(push_node(s, made.node, m, (uint32_t)best, &made.node));
        }
        l->next[l->n_next++] = made;
    }
    return AGOQ_OK;
}

static void swap_lists(knap_search *s, lists *l) {
    const knap_buffer was = s->space->buffer[KNAP_NOW];
    s->space->buffer[KNAP_NOW] = s->space->buffer[KNAP_NEXT];
    s->space->buffer[KNAP_NEXT] = was;
    l->now = s->space->buffer[KNAP_NOW].data;
    l->n = l->n_next;
}

/* The state in which everything of a dimension stands at its base. */
static agoq_status start(knap_search *s, uint32_t dim, lists *l) {
    l->now = knap_reserve(s->space, KNAP_NOW, 1, sizeof *l->now);
    if (!l->now) return AGOQ_E_NOMEM;
    l->n = 1;
    l->now[0] = (knap_state){.node = KNAP_NO_NODE};
    for (uint32_t i = 0; i < s->problem->n_items; i++) {
        const knap_item *item = &s->problem->items[i];
        if (item->of->dim != dim) continue;
        l->now[0].weight += item->of->weight[s->dual.base[i]] * item->count;
        l->now[0].cost += knap_cost(item, s->dual.base[i]) * item->count;
    }
    if (s->dual.critical < s->problem->n_items) l->now[0].room = s->problem->items[s->dual.critical].count;
    return AGOQ_OK;
}

static void write_base(const knap_search *s) {
    memset(s->taken, 0, (size_t)s->problem->n_items * KNAP_OPTIONS * sizeof *s->taken);
    for (uint32_t i = 0; i < s->problem->n_items; i++)
        s->taken[(size_t)i * KNAP_OPTIONS + s->dual.base[i]] = s->problem->items[i].count;
}

/* A state filled up with steps of the critical item is an answer. */
static void try_state(knap_search *s, const knap_state *state) {
    const knap_problem *p = s->problem;
    const int64_t left = p->capacity[0] / (p->coef[0] ? p->coef[0] : 1) - state->weight;
    int64_t fill = 0, cost = state->cost;
    if (p->coef[0] && left < 0) return;
    if (s->dual.critical < p->n_items) {
        const knap_item *item = &p->items[s->dual.critical];
        const int64_t gain = knap_cost(item, s->dual.from) - knap_cost(item, s->dual.to);
        fill = left / (item->of->weight[s->dual.to] - item->of->weight[s->dual.from]);
        if (fill > state->room) fill = state->room;
        cost -= fill * gain;
    }
    if (cost >= s->best) return;
    s->best = cost;
    write_base(s);
    knap_take_nodes(s, state->node, s->taken);
    if (!fill) return;
    uint32_t *of = s->taken + (size_t)s->dual.critical * KNAP_OPTIONS;
    of[s->dual.from] -= (uint32_t)fill;
    of[s->dual.to] += (uint32_t)fill;
}

/* States that cannot take the move, nor any later one, have been tried and are done. */
static void drop_finished(lists *l, int64_t least) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < l->n; i++) {
        if (l->now[i].regret + least <= l->gap) l->now[kept++] = l->now[i];
    }
    l->n = kept;
}

agoq_status knap_one_row(knap_search *s, int64_t *lower_bound) {
    lists l = {0};
    uint32_t n_moves;
    AGOQ_TRY(start(s, 0, &l));
    try_state(s, &l.now[0]);
    AGOQ_TRY(knap_list_moves(s, 0, s->best - 1 - s->dual.root, &n_moves));
    for (uint32_t k = 0; k < n_moves; k++) {
        const knap_move *m = (const knap_move *)s->space->buffer[KNAP_MOVES].data + k;
        l.gap = s->best - 1 - s->dual.root;
        drop_finished(&l, m->least);
        if (!l.n) break;
        if (s->work > MAX_WORK) {
            int64_t least = INT64_MAX;
            for (uint32_t i = 0; i < l.n; i++) least = l.now[i].regret < least ? l.now[i].regret : least;
            *lower_bound = s->dual.root + least + m->least;
            return AGOQ_OK;
        }
        const uint32_t old = s->n_nodes;
        AGOQ_TRY(expand(s, &l, m));
        swap_lists(s, &l);
        for (uint32_t i = 0; i < l.n; i++) {
            if (l.now[i].node != KNAP_NO_NODE && l.now[i].node >= old) try_state(s, &l.now[i]);
        }
    }
    *lower_bound = s->best;
    return AGOQ_OK;
}

agoq_status knap_frontier(knap_search *s, uint32_t dim, int64_t gap, uint32_t *n, int *complete) {
    lists l = {.gap = gap};
    uint32_t n_moves;
    AGOQ_TRY(start(s, dim, &l));
    AGOQ_TRY(knap_list_moves(s, dim, gap, &n_moves));
    for (uint32_t k = 0; k < n_moves; k++) {
        if (s->work > MAX_WORK || l.n > MAX_POINTS) {
            *complete = 0;
            break;
        }
        AGOQ_TRY(expand(s, &l, (const knap_move *)s->space->buffer[KNAP_MOVES].data + k));
        swap_lists(s, &l);
    }
    *n = l.n;
    return AGOQ_OK;
}
