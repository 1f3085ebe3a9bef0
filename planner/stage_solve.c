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

/* One tensor: its options, before and after it is grouped with its equals. */
typedef struct tensor {
    knap_item options;
    uint8_t bits[KNAP_OPTIONS], hint[AGOQ_N_WIDTHS];
    uint32_t index; /* in the stage */
} tensor;

typedef struct build {
    const planner_stage *stage;
    knap_problem knap;
    tensor *tensors;  /* [n_items], sorted by kind, then by (layer, role) */
    knap_item *items; /* groups of equal tensors */
    int64_t *coef, *capacity;
    uint32_t *rows;  /* indices of the live rows that matter */
    uint64_t *least; /* [n_chunks]: fixed and least bytes */
    uint8_t *hints;
    uint32_t *taken;
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
        const double error = planner_error(agoq_width_bits(w));
        if (planner_allows(item, agoq_width_bits(w)) && error > worst) worst = error;
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

/* Options of one tensor: bytes above the least, increasing; cost strictly decreasing. */
static void list_options(const build *b, uint32_t index, tensor *t) {
    const planner_item *item = &b->stage->items[index];
    knap_item *k = &t->options;
    int64_t bytes[AGOQ_N_WIDTHS], cost[AGOQ_N_WIDTHS], least = 0;
    int used[AGOQ_N_WIDTHS] = {0};
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        bytes[w] = (int64_t)planner_item_bytes(item, agoq_width_bits(w), b->stage->alloc_round_bytes);
        cost[w] = cost_of(b, item, agoq_width_bits(w));
    }
    *t = (tensor){.index = index, .options = {.count = 1, .dim = item->chunk}};
    for (;;) {
        int best = -1;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (used[w] || !planner_allows(item, agoq_width_bits(w))) continue;
            if (best < 0 || bytes[w] < bytes[best] || (bytes[w] == bytes[best] && cost[w] < cost[best]))
                best = w;
        }
        if (best < 0) break;
        used[best] = 1;
        if (!k->n_options) least = bytes[best];
        if (k->n_options && cost[best] >= k->cost[k->n_options - 1]) continue;
        t->bits[k->n_options] = (uint8_t)agoq_width_bits(best);
        k->weight[k->n_options] = bytes[best] - least;
        k->cost[k->n_options++] = cost[best];
    }
    /* Uniform widths as hints, or what is better at no more bytes: whatever a rule of one width per stage
     * would do. */
    for (uint32_t w = 0; w < AGOQ_N_WIDTHS; w++) {
        const int64_t rule = bytes[agoq_width_index(planner_nearest_bits(item, agoq_width_bits(w)))] - least;
        while (t->hint[w] + 1u < k->n_options && k->weight[t->hint[w] + 1] <= rule) t->hint[w]++;
    }
}

/* With one row all chunks weigh in one dimension, and what is never alive is free: it takes its best width.
 */
static void collapse(const build *b, tensor *t) {
    knap_item *k = &t->options;
    const int64_t n = b->knap.n_rows ? b->stage->live[(size_t)b->rows[0] * b->stage->n_chunks + k->dim] : 0;
    k->dim = 0;
    if (!n) {
        const uint32_t last = k->n_options - 1;
        *t = (tensor){.index = t->index, .bits = {t->bits[last]}, .options = {1, 1, 0, {0}, {k->cost[last]}}};
    }
    for (uint32_t o = 0; o < k->n_options; o++) k->weight[o] *= n;
}

static int same_kind(const tensor *a, const tensor *b) {
    const knap_item *x = &a->options, *y = &b->options;
    if (x->dim != y->dim) return x->dim < y->dim ? -1 : 1;
    if (x->n_options != y->n_options) return x->n_options < y->n_options ? -1 : 1;
    for (uint32_t o = 0; o < x->n_options; o++) {
        if (x->weight[o] != y->weight[o]) return x->weight[o] < y->weight[o] ? -1 : 1;
        if (x->cost[o] != y->cost[o]) return x->cost[o] < y->cost[o] ? -1 : 1;
        if (a->bits[o] != b->bits[o]) return a->bits[o] < b->bits[o] ? -1 : 1;
    }
    return 0;
}

/* Within a kind in the stage's order, which is that of layers. */
static int by_kind(const void *a, const void *b) {
    const tensor *x = a, *y = b;
    const int order = same_kind(x, y);
    return order ? order : (x->index < y->index ? -1 : x->index > y->index);
}

static void group(build *b) {
    const uint32_t n = b->stage->n_items;
    uint32_t groups = 0;
    if (n) qsort(b->tensors, n, sizeof *b->tensors, by_kind);
    for (uint32_t i = 0; i < n; i++) {
        if (i && same_kind(&b->tensors[i - 1], &b->tensors[i]) == 0) {
            b->items[groups - 1].count++;
            continue;
        }
        for (uint32_t w = 0; w < AGOQ_N_WIDTHS; w++)
            b->hints[(size_t)groups * AGOQ_N_WIDTHS + w] = b->tensors[i].hint[w];
        b->items[groups++] = b->tensors[i].options;
    }
    b->knap.n_items = groups;
}

/* Equal tensors share what their group takes so that lower layers have the larger widths. */
static void ungroup(const build *b, uint8_t *bits) {
    const tensor *t = b->tensors;
    for (uint32_t i = 0; i < b->knap.n_items; i++) {
        for (uint32_t o = b->items[i].n_options; o-- > 0;) {
            for (uint32_t k = b->taken[(size_t)i * KNAP_OPTIONS + o]; k; k--, t++)
                bits[t->index] = t->bits[o];
        }
    }
}

/* Weights in units of their greatest common divisor: capacity beyond a whole unit is of no use, which
 * sharpens bounds. */
static void to_units(build *b, uint64_t room) {
    const planner_stage *s = b->stage;
    knap_problem *p = &b->knap;
    const int one = p->n_rows == 1; /* live counts are in the weights already */
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

static agoq_status allocate(build *b) {
    const planner_stage *s = b->stage;
    const size_t rows = s->n_live ? s->n_live : 1, dims = s->n_chunks ? s->n_chunks : 1;
    b->tensors = mem_zalloc(s->n_items, sizeof *b->tensors);
    b->items = mem_zalloc(s->n_items, sizeof *b->items);
    b->coef = mem_zalloc(rows * dims, sizeof *b->coef);
    b->capacity = mem_zalloc(rows, sizeof *b->capacity);
    b->rows = mem_zalloc(rows, sizeof *b->rows);
    b->least = mem_zalloc(dims, sizeof *b->least);
    b->hints = mem_zalloc(s->n_items, AGOQ_N_WIDTHS);
    b->taken = mem_zalloc(s->n_items, KNAP_OPTIONS * sizeof *b->taken);
    const int all =
        b->tensors && b->items && b->coef && b->capacity && b->rows && b->least && b->hints && b->taken;
    return all ? AGOQ_OK : AGOQ_E_NOMEM;
}

static void release(build *b) {
    mem_free(b->taken);
    mem_free(b->hints);
    mem_free(b->least);
    mem_free(b->rows);
    mem_free(b->capacity);
    mem_free(b->coef);
    mem_free(b->items);
    mem_free(b->tensors);
}

agoq_status planner_stage_solve(const planner_stage *stage, uint64_t room_bytes, uint8_t *bits,
                                planner_bound *bound) {
    agoq_status status;
    build b = {.stage = stage};
    knap_result result = {0};
    AGOQ_TRY_OUT(allocate(&b));
    choose_scales(&b);
    planner_least(stage, bits);
    planner_chunk_bytes(stage, bits, b.least);
    b.knap = (knap_problem){.n_dims = stage->n_chunks,
                            .n_rows = choose_rows(&b),
                            .items = b.items,
                            .coef = b.coef,
                            .capacity = b.capacity,
                            .n_hints = AGOQ_N_WIDTHS,
                            .hints = b.hints};
    const int one_row = b.knap.n_rows <= 1;
    for (uint32_t i = 0; i < stage->n_items; i++) {
        list_options(&b, i, &b.tensors[i]);
        if (one_row) collapse(&b, &b.tensors[i]);
    }
    if (one_row) b.knap.n_dims = b.knap.n_rows = 1;
    group(&b);
    to_units(&b, room_bytes);
    AGOQ_TRY_OUT(knap_solve(&b.knap, b.taken, &result));
    ungroup(&b, bits);
    int64_t best = 0;
    for (uint32_t i = 0; i < b.knap.n_items; i++)
        best += b.items[i].count * b.items[i].cost[b.items[i].n_options - 1];
    bound->proved = result.cost == result.lower_bound;
    bound->best_possible = result.cost == best;
    /* Each cost was rounded by at most a half. */
    bound->lower_bound = ((double)result.lower_bound - (double)stage->n_items) / b.scale;
    bound->work = result.work;
out:
    release(&b);
    return status;
}
