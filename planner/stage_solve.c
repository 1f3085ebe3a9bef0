/* One stage as a knapsack: rows from its live vectors, items from its kinds of tensors, integer costs from
 * sensitivities. Costs are sensitivity * error scaled by a power of two so that their sum stays below 2^50:
 * answers are exact to 2^-50 of the whole harm, the same on every machine, and comparable with brute force.
 * An infinite (or NaN) sensitivity counts before all finite ones; then the finite part keeps 2^-23 of its
 * sum.
 *
 * Ties: fewer distinct widths win. Whether a width can be done without at no cost is seen from the bound;
 * only where it cannot be excluded are smaller sets of widths solved as well. Then the search's fixed order
 * decides. */
#include <math.h>
#include <string.h>

#include "common/try.h"
#include "planner/internal.h"
#include "planner/knap.h"

#define FINITE_BITS        50
#define FINITE_BITS_BESIDE 23 /* beside infinite ones, which then start at 2^INFINITE_SHIFT */
#define INFINITE_BITS      25
#define INFINITE_SHIFT     25
#define ALL_WIDTHS         ((1u << AGOQ_N_WIDTHS) - 1)

typedef struct build {
    planner_space *space;
    const planner_stage *stage;
    uint64_t room;
    knap_problem knap;
    int64_t base_cost; /* of kinds that have no choice left */
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

static double worst_error(const planner_kind *k) {
    double worst = 0;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if ((k->widths >> w & 1) && k->error[w] > worst) worst = k->error[w];
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
    for (uint32_t i = 0; i < b->space->n_kinds; i++) {
        const planner_kind *k = &b->space->kinds[i];
        if (isfinite(k->sensitivity))
            finite += k->n * (k->sensitivity * worst_error(k));
        else
            infinite += k->n * worst_error(k);
    }
    b->scale = scale_for(finite, infinite > 0 ? FINITE_BITS_BESIDE : FINITE_BITS);
    b->infinite_scale = scale_for(infinite, INFINITE_BITS);
}

static int64_t cost_of(const build *b, const planner_kind *k, int w) {
    if (isfinite(k->sensitivity)) return (int64_t)(k->sensitivity * k->error[w] * b->scale + 0.5);
    return (int64_t)(k->error[w] * b->infinite_scale + 0.5) * ((int64_t)1 << INFINITE_SHIFT);
}

/* Keeps live rows that no other row covers. One pass over pairs: there are at most PLANNER_MAX_LIVE. */
static uint32_t choose_rows(const build *b) {
    const planner_stage *s = b->stage;
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->n_live; i++) {
        const uint32_t *row = s->live + (size_t)i * s->n_chunks;
        int covered = 0;
        for (uint32_t j = 0; j < s->n_live && !covered; j++) {
            const uint32_t *other = s->live + (size_t)j * s->n_chunks;
            int below = i != j, equal = 1;
            for (uint32_t c = 0; c < s->n_chunks && below; c++) {
                below = row[c] <= other[c];
                equal = equal && row[c] == other[c];
            }
            covered = below && (!equal || j < i);
        }
        if (!covered) b->space->rows[n++] = i;
    }
    return n;
}

/* Options of a kind within a set of widths: bytes above the least, increasing; cost strictly decreasing. With
 * one row, what is never alive takes its best width. 0: no width is left. */
static int list_options(build *b, planner_kind *k, uint32_t widths, knap_item *item) {
    const int one = b->knap.n_rows <= 1;
    const int64_t live = !one ? 1
                         : b->stage->n_live
                             ? b->stage->live[(size_t)b->space->rows[0] * b->stage->n_chunks + k->chunk]
                             : 0;
    int64_t cost[AGOQ_N_WIDTHS];
    uint32_t left = k->widths & widths;
    k->n_options = 0;
    if (!left) return 0;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) cost[w] = left >> w & 1 ? cost_of(b, k, w) : 0;
    *item = (knap_item){.count = k->n, .dim = one ? 0 : k->chunk};
    while (left) {
        int best = -1;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (!(left >> w & 1)) continue;
            if (best < 0 || k->bytes[w] < k->bytes[best] ||
                (k->bytes[w] == k->bytes[best] && cost[w] < cost[best]))
                best = w;
        }
        left &= ~(1u << best);
        if (k->n_options && cost[best] >= item->cost[k->n_options - 1]) continue;
        if (!live) k->n_options = 0; /* free */
        k->width[k->n_options] = (uint8_t)best;
        item->cost[k->n_options] = cost[best];
        item->weight[k->n_options] = (int64_t)(k->bytes[best] - k->bytes[k->width[0]]) * live;
        k->n_options++;
    }
    item->n_options = k->n_options;
    return 1;
}

/* Uniform widths as hints, or what is better at no more bytes: whatever a rule of one width per stage would
 * do. */
static void add_hints(const planner_kind *k, uint8_t *hints) {
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        int rule = -1;
        for (int v = 0; v < AGOQ_N_WIDTHS; v++) {
            if ((k->widths >> v & 1) && (rule < 0 || v <= w)) rule = v;
        }
        hints[w] = 0;
        while (hints[w] + 1u < k->n_options && k->bytes[k->width[hints[w] + 1]] <= k->bytes[rule]) hints[w]++;
    }
}

/* Weights in units of their greatest common divisor: capacity beyond a whole unit is of no use, which
 * sharpens bounds. 0: even the least widths of these sets do not fit. */
static int to_units(build *b, const uint64_t *least) {
    const planner_stage *s = b->stage;
    knap_problem *p = &b->knap;
    const int one = p->n_rows <= 1; /* live counts are in the weights already */
    uint64_t unit[PLANNER_MAX_CHUNKS] = {0};
    for (uint32_t i = 0; i < p->n_items; i++) {
        const knap_item *item = &b->space->knap_items[i];
        for (uint32_t o = 1; o < item->n_options; o++) {
            if (!unit[item->dim] || item->weight[o] % (int64_t)unit[item->dim])
                unit[item->dim] = gcd(unit[item->dim], (uint64_t)item->weight[o]);
        }
    }
    for (uint32_t i = 0; i < p->n_items; i++) {
        knap_item *item = &b->space->knap_items[i];
        for (uint32_t o = 1; o < item->n_options; o++) item->weight[o] /= (int64_t)unit[item->dim];
    }
    if (!p->n_rows) p->n_rows = 1; /* nothing is ever alive */
    for (uint32_t r = 0; r < p->n_rows; r++) {
        const uint32_t *live = s->n_live ? s->live + (size_t)b->space->rows[r] * s->n_chunks : NULL;
        uint64_t used = 0, step = 0;
        for (uint32_t c = 0; live && c < s->n_chunks; c++) used += live[c] * least[c];
        for (uint32_t d = 0; d < p->n_dims; d++) {
            const uint64_t coef = (one ? 1 : live[d]) * (unit[d] ? unit[d] : 1);
            b->space->coef[(size_t)r * p->n_dims + d] = (int64_t)coef;
            step = gcd(step, coef);
        }
        if (used > b->room) return 0;
        uint64_t capacity = b->room - used;
        if (capacity > PLANNER_BYTES_LIMIT) capacity = PLANNER_BYTES_LIMIT; /* no sum of weights is larger */
        b->space->capacity[r] = (int64_t)(step ? capacity / step * step : capacity);
    }
    return 1;
}

/* The knapsack of the stage with every kind held to a set of widths. *possible: 0 if that cannot be. */
static agoq_status solve_within(build *b, uint32_t widths, knap_result *result, int *possible) {
    planner_space *s = b->space;
    uint64_t least[PLANNER_MAX_CHUNKS];
    *possible = 0;
    for (uint32_t c = 0; c < b->stage->n_chunks; c++) least[c] = b->stage->fixed_bytes[c];
    b->knap = (knap_problem){.n_rows = choose_rows(b),
                             .items = s->knap_items,
                             .coef = s->coef,
                             .capacity = s->capacity,
                             .n_hints = AGOQ_N_WIDTHS,
                             .hints = s->hints};
    b->knap.n_dims = b->knap.n_rows <= 1 ? 1 : b->stage->n_chunks;
    b->base_cost = 0;
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        planner_kind *k = &s->kinds[i];
        knap_item *item = &s->knap_items[b->knap.n_items];
        /* Kinds without a choice keep their width whatever the set. */
        if (!list_options(b, k, k->widths & (k->widths - 1) ? widths : k->widths, item)) return AGOQ_OK;
        least[k->chunk] += k->bytes[k->width[0]] * k->n;
        if (k->n_options == 1) {
            b->base_cost += item->cost[0] * k->n;
            continue;
        }
        add_hints(k, s->hints + (size_t)b->knap.n_items * AGOQ_N_WIDTHS);
        s->group[b->knap.n_items++] = i;
    }
    if (!to_units(b, least)) return AGOQ_OK;
    *possible = 1;
    return knap_solve(&b->knap, &s->knap, s->taken, result);
}

/* What the kinds take, from the knapsack's answer. */
static void read_taken(const build *b) {
    planner_space *s = b->space;
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        planner_kind *k = &s->kinds[i];
        memset(k->taken, 0, sizeof k->taken);
        if (k->n_options == 1) k->taken[k->width[0]] = k->n;
    }
    for (uint32_t i = 0; i < b->knap.n_items; i++) {
        planner_kind *k = &s->kinds[s->group[i]];
        for (uint32_t o = 0; o < k->n_options; o++)
            k->taken[k->width[o]] = s->taken[(size_t)i * KNAP_OPTIONS + o];
    }
}

static uint32_t used_widths(const build *b) {
    uint32_t used = 0;
    for (uint32_t i = 0; i < b->space->n_kinds; i++) {
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) used |= (b->space->kinds[i].taken[w] != 0) << w;
    }
    return used;
}

/* The bound without a width must not exceed the cost that was reached with it. */
static int may_do_without(const build *b, const knap_result *r, int width) {
    int64_t more = 0;
    for (uint32_t i = 0; i < b->knap.n_items; i++) {
        const planner_kind *k = &b->space->kinds[b->space->group[i]];
        const knap_item *item = &b->knap.items[i];
        knap_wide best = 0, other = 0;
        int any = 0, out = 0;
        for (uint32_t o = 0; o < k->n_options; o++) {
            const knap_wide value =
                ((knap_wide)item->cost[o] << r->shift) + r->price[item->dim] * item->weight[o];
            if (!o || value < best) best = value;
            if (k->width[o] == width) {
                out = 1;
                continue;
            }
            if (!any || value < other) other = value;
            any = 1;
        }
        if (!out || !any) continue;
        const knap_wide each = (other - best) >> r->shift;
        if (each > (r->cost - r->root - more) / (int64_t)k->n) return 0;
        more += (int64_t)each * k->n;
    }
    return 1;
}

static int count_widths(uint32_t widths) {
    int n = 0;
    for (; widths; widths &= widths - 1) n++;
    return n;
}

/* An answer as good with fewer distinct widths, if there is one. */
static agoq_status prefer_fewer(build *b, const knap_result *found) {
    const uint32_t used = used_widths(b);
    const int64_t cost = found->cost + b->base_cost;
    uint32_t fixed = 0, keep = 0;
    for (uint32_t i = 0; i < b->space->n_kinds; i++) {
        const planner_kind *k = &b->space->kinds[i];
        if (!(k->widths & (k->widths - 1))) fixed |= k->widths;
    }
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if ((used >> w & 1) && ((fixed >> w & 1) || !may_do_without(b, found, w))) keep |= 1u << w;
    }
    if (keep == used) return AGOQ_OK;
    for (int n = count_widths(keep); n < count_widths(used); n++) {
        for (uint32_t set = 1; set <= ALL_WIDTHS; set++) {
            knap_result r;
            int possible;
            if (count_widths(set) != n || (set & keep) != keep) continue;
            AGOQ_TRY(solve_within(b, set, &r, &possible));
            if (!possible || r.cost + b->base_cost != cost) continue;
            read_taken(b);
            return AGOQ_OK;
        }
    }
    return AGOQ_OK;
}

agoq_status planner_stage_solve(planner_space *space, const planner_stage *stage, uint64_t room_bytes,
                                planner_bound *bound) {
    build b = {.space = space, .stage = stage, .room = room_bytes};
    knap_result result;
    int possible;
    choose_scales(&b);
    AGOQ_TRY(solve_within(&b, ALL_WIDTHS, &result, &possible));
    if (!possible) return AGOQ_E_INVAL;
    read_taken(&b);
    int64_t best = 0;
    for (uint32_t i = 0; i < b.knap.n_items; i++)
        best += b.knap.items[i].count * b.knap.items[i].cost[b.knap.items[i].n_options - 1];
    bound->proved = result.cost == result.lower_bound;
    bound->best_possible = result.cost == best;
    /* Each cost was rounded by at most a half. */
    bound->lower_bound = ((double)(result.lower_bound + b.base_cost) - (double)stage->n_items) / b.scale;
    bound->relaxed = ((double)(result.root + b.base_cost) - (double)stage->n_items) / b.scale;
    bound->work = result.work;
    return bound->proved ? prefer_fewer(&b, &result) : AGOQ_OK;
}
