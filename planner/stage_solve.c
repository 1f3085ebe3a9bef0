/* One stage as a knapsack: rows from its live vectors, items from its tensors, integer costs from
 * sensitivities. Costs are sensitivity * error scaled by a power of two so that their sum stays below 2^50:
 * answers are exact to 2^-50 of the whole harm, the same on every machine, and comparable with brute force.
 * An infinite (or NaN) sensitivity counts before all finite ones; then the finite part keeps 2^-23 of its
 * sum.
 *
 * Ties: among answers of equal cost the search's fixed order decides; among identical tensors lower layers
 * get more. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"
#include "planner/knap.h"

#define FINITE_BITS        50
#define FINITE_BITS_BESIDE 23 /* beside infinite ones, which then start at 2^INFINITE_SHIFT */
#define INFINITE_BITS      25
#define INFINITE_SHIFT     25

typedef struct build {
    const planner_stage *stage;
    knap_problem knap;
    knap_item *items;     /* [n_items], in the stage's order */
    uint8_t *option_bits; /* [n_items * KNAP_OPTIONS] */
    int64_t *coef, *capacity;
    uint32_t *rows;  /* indices of the live rows that matter */
    uint64_t *least; /* [n_chunks]: fixed and least bytes */
    uint8_t *hints, *choice;
    double scale, infinite_scale;
} build;

static uint64_t gcd(uint64_t a, uint64_t b) {
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static double worst_error(const planner_item *item) {
    double worst = 0;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        const double error = planner_error(planner_width_bits[w]);
        if (planner_allows(item, planner_width_bits[w]) && error > worst) worst = error;
    }
    return worst;
}

/* Power of two that brings total just below 2^bits. */
static double scale_for(double total, int bits) {
    int exponent;
    if (!(total > 0)) return 1;
    (void)frexp(total, &exponent);
    return ldexp(1, bits - exponent);
}

static void choose_scales(build *b) {
    double finite = 0, infinite = 0;
    for (uint32_t i = 0; i < b->stage->n_items; i++) {
        const planner_item *item = &b->stage->items[i];
        if (isfinite(item->sensitivity))
            finite += item->sensitivity * worst_error(item);
        else
            infinite += worst_error(item);
    }
    b->scale = scale_for(finite, infinite > 0 ? FINITE_BITS_BESIDE : FINITE_BITS);
    b->infinite_scale = scale_for(infinite, INFINITE_BITS);
}

static int64_t cost_of(const build *b, const planner_item *item, int bits) {
    const double error = planner_error(bits);
    if (isfinite(item->sensitivity)) return (int64_t)(item->sensitivity * error * b->scale + 0.5);
    return (int64_t)(error * b->infinite_scale + 0.5) * ((int64_t)1 << INFINITE_SHIFT);
}

/* Keeps live rows that no other row covers. One pass over pairs: there are at most PLANNER_MAX_LIVE. */
static uint32_t choose_rows(build *b) {
    const planner_stage *s = b->stage;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_live; i++) {
        const uint32_t *row = s->live + (size_t)i * s->n_chunks;
        int covered = 0;
        for (uint32_t j = 0; j < s->n_live && !covered; j++) {
            const uint32_t *other = s->live + (size_t)j * s->n_chunks;
            int below = 1, equal = 1;
            for (uint32_t c = 0; c < s->n_chunks; c++) {
                below = below && row[c] <= other[c];
                equal = equal && row[c] == other[c];
            }
            covered = below && i != j && (!equal || j < i);
        }
        if (!covered) b->rows[n++] = i;
    }
    return n;
}

/* Options of one item: bytes above the least, increasing; cost strictly decreasing. */
static void build_item(build *b, uint32_t index) {
    const planner_item *item = &b->stage->items[index];
    knap_item *k = &b->items[index];
    uint8_t *bits = b->option_bits + (size_t)index * KNAP_OPTIONS;
    int64_t bytes[AGOQ_N_WIDTHS], cost[AGOQ_N_WIDTHS];
    int used[AGOQ_N_WIDTHS] = {0};
    const int64_t least =
        (int64_t)planner_item_bytes(item, planner_least_bits(b->stage, item), b->stage->alloc_round_bytes);
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        bytes[w] = (int64_t)planner_item_bytes(item, planner_width_bits[w], b->stage->alloc_round_bytes);
        cost[w] = cost_of(b, item, planner_width_bits[w]);
    }
    for (;;) {
        int best = -1;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (used[w] || !planner_allows(item, planner_width_bits[w])) continue;
            if (best < 0 || bytes[w] < bytes[best] || (bytes[w] == bytes[best] && cost[w] < cost[best]))
                best = w;
        }
        if (best < 0) break;
        used[best] = 1;
        if (k->n_options && cost[best] >= k->cost[k->n_options - 1]) continue;
        bits[k->n_options] = planner_width_bits[best];
        k->weight[k->n_options] = bytes[best] - least;
        k->cost[k->n_options++] = cost[best];
    }
    k->dim = item->chunk;
    /* Uniform widths as hints, or what is better at no more bytes: whatever a rule of one width per stage
     * would choose. */
    for (uint32_t w = 0; w < AGOQ_N_WIDTHS; w++) {
        const int64_t rule =
            bytes[agoq_width_index(planner_nearest_bits(item, planner_width_bits[w]))] - least;
        uint8_t *hint = &b->hints[(size_t)w * b->stage->n_items + index];
        while (*hint + 1u < k->n_options && k->weight[*hint + 1] <= rule) ++*hint;
    }
}

/* With one row all chunks weigh in one dimension; only there do options of a chunk that is never alive fall
 * together. */
static void collapse(build *b) {
    const uint32_t *live = b->knap.n_rows ? b->stage->live + (size_t)b->rows[0] * b->stage->n_chunks : NULL;
    for (uint32_t i = 0; i < b->stage->n_items; i++) {
        knap_item *k = &b->items[i];
        const int64_t n = live ? live[k->dim] : 0;
        k->dim = 0;
        if (!n) { /* free: take the best width */
            b->option_bits[(size_t)i * KNAP_OPTIONS] =
                b->option_bits[(size_t)i * KNAP_OPTIONS + k->n_options - 1];
            k->cost[0] = k->cost[k->n_options - 1];
            k->n_options = 1;
            for (uint32_t w = 0; w < AGOQ_N_WIDTHS; w++) b->hints[(size_t)w * b->stage->n_items + i] = 0;
        }
        for (uint32_t o = 0; o < k->n_options; o++) k->weight[o] *= n;
    }
    b->knap.n_dims = 1;
}

/* Weights in units of their greatest common divisor: capacity beyond a whole unit is of no use, which
 * sharpens bounds. */
static void to_units(build *b, uint64_t room) {
    const planner_stage *s = b->stage;
    knap_problem *p = &b->knap;
    const int one = p->n_dims == 1;
    for (uint32_t d = 0; d < p->n_dims; d++) {
        uint64_t unit = 0;
        for (uint32_t i = 0; i < p->n_items; i++) {
            if (b->items[i].dim != d) continue;
            for (uint32_t o = 1; o < b->items[i].n_options; o++)
                unit = gcd(unit, (uint64_t)b->items[i].weight[o]);
        }
        if (!unit) unit = 1;
        for (uint32_t i = 0; i < p->n_items; i++) {
            for (uint32_t o = 0; b->items[i].dim == d && o < b->items[i].n_options; o++)
                b->items[i].weight[o] /= (int64_t)unit;
        }
        for (uint32_t r = 0; r < p->n_rows; r++) {
            const uint32_t n = one ? 1 : s->live[(size_t)b->rows[r] * s->n_chunks + d];
            b->coef[(size_t)r * p->n_dims + d] = (int64_t)(n * unit);
        }
    }
    for (uint32_t r = 0; r < p->n_rows; r++) {
        uint64_t least = 0, unit = 0;
        for (uint32_t c = 0; c < s->n_chunks && s->n_live; c++)
            least += s->live[(size_t)b->rows[r] * s->n_chunks + c] * b->least[c];
        for (uint32_t d = 0; d < p->n_dims; d++)
            unit = gcd(unit, (uint64_t)b->coef[(size_t)r * p->n_dims + d]);
        uint64_t capacity = room - least;
        if (capacity > PLANNER_BYTES_LIMIT) capacity = PLANNER_BYTES_LIMIT; /* no sum of weights is larger */
        b->capacity[r] = (int64_t)(unit ? capacity / unit * unit : capacity);
    }
}

typedef struct twin {
    const knap_item *item;
    const uint8_t *bits;
    uint32_t index, layer;
    uint8_t choice, role;
} twin;

static int same_kind(const twin *x, const twin *y) {
    int order = x->item->dim != y->item->dim ? (x->item->dim < y->item->dim ? -1 : 1) : 0;
    if (!order) order = (int)x->item->n_options - (int)y->item->n_options;
    for (uint32_t o = 0; !order && o < x->item->n_options; o++) {
        if (x->item->weight[o] != y->item->weight[o])
            order = x->item->weight[o] < y->item->weight[o] ? -1 : 1;
        else if (x->item->cost[o] != y->item->cost[o])
            order = x->item->cost[o] < y->item->cost[o] ? -1 : 1;
        else
            order = (int)x->bits[o] - (int)y->bits[o];
    }
    return order;
}

static int by_kind_and_layer(const void *a, const void *b) {
    const twin *x = a, *y = b;
    const int order = same_kind(x, y);
    if (order) return order;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->role - (int)y->role;
}

static int larger_first(const void *a, const void *b) {
    return (int)*(const uint8_t *)b - (int)*(const uint8_t *)a;
}

/* Identical tensors trade places so that lower layers have the larger widths. */
static agoq_status settle_ties(build *b) {
    const uint32_t n = b->stage->n_items;
    twin *twins = mem_zalloc(n, sizeof *twins);
    uint8_t *choices = mem_zalloc(n, 1);
    if (!twins || !choices) {
        mem_free(twins);
        mem_free(choices);
        return AGOQ_E_NOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        const planner_item *item = &b->stage->items[i];
        twins[i] =
            (twin){&b->items[i], b->option_bits + (size_t)i * KNAP_OPTIONS, i, item->layer, b->choice[i],
                   item->role};
    }
    if (n) qsort(twins, n, sizeof *twins, by_kind_and_layer);
    for (uint32_t from = 0, to; from < n; from = to) {
        for (to = from; to < n && same_kind(&twins[from], &twins[to]) == 0; to++)
            choices[to] = twins[to].choice;
        qsort(choices + from, to - from, 1, larger_first);
    }
    for (uint32_t i = 0; i < n; i++) b->choice[twins[i].index] = choices[i];
    mem_free(choices);
    mem_free(twins);
    return AGOQ_OK;
}

static agoq_status allocate(build *b) {
    const planner_stage *s = b->stage;
    const size_t rows = s->n_live ? s->n_live : 1, dims = s->n_chunks ? s->n_chunks : 1;
    b->items = mem_zalloc(s->n_items, sizeof *b->items);
    b->option_bits = mem_zalloc(s->n_items, KNAP_OPTIONS);
    b->coef = mem_zalloc(rows * dims, sizeof *b->coef);
    b->capacity = mem_zalloc(rows, sizeof *b->capacity);
    b->rows = mem_zalloc(rows, sizeof *b->rows);
    b->least = mem_zalloc(dims, sizeof *b->least);
    b->hints = mem_zalloc(s->n_items, AGOQ_N_WIDTHS);
    b->choice = mem_zalloc(s->n_items, 1);
    return b->items && b->option_bits && b->coef && b->capacity && b->rows && b->least && b->hints &&
                   b->choice
               ? AGOQ_OK
               : AGOQ_E_NOMEM;
}

static void release(build *b) {
    mem_free(b->choice);
    mem_free(b->hints);
    mem_free(b->least);
    mem_free(b->rows);
    mem_free(b->capacity);
    mem_free(b->coef);
    mem_free(b->option_bits);
    mem_free(b->items);
}

agoq_status planner_stage_solve(const planner_stage *stage, uint64_t room_bytes, uint8_t *bits,
                                planner_bound *bound) {
    agoq_status status;
    build b = {.stage = stage};
    knap_result result = {0};
    AGOQ_TRY_OUT(allocate(&b));
    choose_scales(&b);
    planner_least(stage, b.choice);
    planner_chunk_bytes(stage, b.choice, b.least);
    for (uint32_t i = 0; i < stage->n_items; i++) build_item(&b, i);
    b.knap = (knap_problem){.n_items = stage->n_items,
                            .n_dims = stage->n_chunks,
                            .n_rows = choose_rows(&b),
                            .items = b.items,
                            .coef = b.coef,
                            .capacity = b.capacity,
                            .n_hints = AGOQ_N_WIDTHS,
                            .hints = b.hints};
    if (b.knap.n_rows <= 1) collapse(&b);
    if (!b.knap.n_rows) b.knap.n_rows = 1;
    to_units(&b, room_bytes);
    AGOQ_TRY_OUT(knap_solve(&b.knap, b.choice, &result));
    AGOQ_TRY_OUT(settle_ties(&b));
    int64_t best = 0;
    for (uint32_t i = 0; i < stage->n_items; i++) {
        bits[i] = b.option_bits[(size_t)i * KNAP_OPTIONS + b.choice[i]];
        best += b.items[i].cost[b.items[i].n_options - 1];
    }
    bound->proved = result.cost == result.lower_bound;
    bound->best_possible = result.cost == best;
    /* Each cost was rounded by at most a half. */
    bound->lower_bound = ((double)result.lower_bound - (double)stage->n_items) / b.scale;
    bound->work = result.work;
out:
    release(&b);
    return status;
}
