/* One stage as a knapsack: rows from its live vectors, classes and items from its classes and kinds of
 * tensors, integer costs from sensitivities. Costs are sensitivity * error scaled by a power of two so that
 * their sum stays below 2^50: answers are exact to 2^-50 of the whole harm, the same on every machine, and
 * comparable with brute force. An infinite (or NaN) sensitivity counts before all finite ones; then the
 * finite part keeps 2^-23 of its sum.
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
    knap_class *classes; /* of the knapsack: the stage's, by index; then those of kinds that are apart */
    int64_t alone_cost;  /* of kinds that have no choice left */
    int64_t best_cost;   /* if every item had its best option */
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

/* Power of two that brings total just below 2^bits. */
static double scale_for(double total, int bits) {
    int exponent;
    if (!(total > 0)) return 1;
    (void)frexp(total, &exponent);
    return ldexp(1, bits - exponent < 1000 ? bits - exponent : 1000);
}

static void choose_scales(build *b) {
    double finite = 0, infinite = 0;
    for (uint32_t i = 0; i < b->space->n_classes; i++) {
        const planner_class *c = &b->space->classes[i];
        finite += c->sum * c->worst;
        infinite += c->n_infinite * c->worst;
    }
    b->scale = scale_for(finite, infinite > 0 ? FINITE_BITS_BESIDE : FINITE_BITS);
    b->infinite_scale = scale_for(infinite, INFINITE_BITS);
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

/* Options within a set of widths: bytes above the least, increasing; cost strictly decreasing. With one row,
 * what is never alive takes its best width. 0: no width is left. */
static int list_options(const build *b, const planner_class *c, uint32_t widths, const double *cost,
                        knap_class *options, uint8_t *width) {
    const int one = b->knap.n_rows <= 1;
    const int64_t live = !one ? 1
                         : b->stage->n_live
                             ? b->stage->live[(size_t)b->space->rows[0] * b->stage->n_chunks + c->chunk]
                             : 0;
    uint32_t left = c->widths & (c->widths - 1) ? c->widths & widths : c->widths, n = 0;
    options->dim = one ? 0 : c->chunk;
    options->closest = INFINITY;
    while (left) {
        int best = -1;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (!(left >> w & 1)) continue;
            if (best < 0 || c->bytes[w] < c->bytes[best] ||
                (c->bytes[w] == c->bytes[best] && cost[w] < cost[best]))
                best = w;
        }
        left &= ~(1u << best);
        if (n && cost[best] >= options->unit[n - 1]) continue;
        if (!live) n = 0; /* free */
        if (n && options->unit[n - 1] - cost[best] < options->closest)
            options->closest = options->unit[n - 1] - cost[best];
        width[n] = (uint8_t)best;
        options->unit[n] = cost[best];
        options->weight[n] = (int64_t)(c->bytes[best] - c->bytes[width[0]]) * live;
        n++;
    }
    options->n_options = n;
    /* Uniform widths as hints, or what is better at no more bytes: whatever a rule of one width per stage
     * would do. */
    for (int w = 0; n && w < AGOQ_N_WIDTHS; w++) {
        int rule = -1;
        uint8_t *hint = &options->hint[w];
        for (int v = 0; v < AGOQ_N_WIDTHS; v++) {
            if ((c->widths >> v & 1) && (rule < 0 || v <= w)) rule = v;
        }
        *hint = 0;
        while (*hint + 1u < n && c->bytes[width[*hint + 1]] <= c->bytes[rule]) ++*hint;
    }
    return n != 0;
}

/* A class of its own for a kind whose rounded costs are not those of its class times its sensitivity, or not
 * all different. 0: no width is left. */
static int list_apart(build *b, const planner_kind *k, uint32_t widths) {
    double unit[AGOQ_N_WIDTHS];
    const planner_class *c = &b->space->classes[k->of];
    const uint32_t index = b->knap.n_classes++;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if (isfinite(k->sensitivity))
            unit[w] = floor(k->sensitivity * (c->error[w] * b->scale) + 0.5);
        else
            unit[w] = ldexp(floor(c->error[w] * b->infinite_scale + 0.5), INFINITE_SHIFT);
    }
    return list_options(b, c, widths, unit, &b->classes[index],
                        b->space->width + (size_t)index * AGOQ_N_WIDTHS);
}

static int is_apart(const knap_class *of, double sensitivity) {
    return !isfinite(sensitivity) || sensitivity * of->closest < 2;
}

/* Kinds of a class some of which are apart; `item` is their class in the knapsack. */
static int part_class(build *b, uint32_t index, uint32_t widths, uint64_t *least) {
    planner_space *s = b->space;
    const planner_class *c = &s->classes[index];
    const uint64_t bytes = c->bytes[s->width[(size_t)index * AGOQ_N_WIDTHS]];
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        planner_kind *k = &s->kinds[i];
        if (k->of != index) continue;
        k->item = index;
        if (!is_apart(&b->classes[index], k->sensitivity)) continue;
        k->item = b->knap.n_classes;
        if (!list_apart(b, k, widths)) return 0;
        least[c->chunk] += (c->bytes[s->width[(size_t)k->item * AGOQ_N_WIDTHS]] - bytes) * k->n;
        b->classes[k->item].n = 1;
        b->classes[index].n--;
    }
    return 1;
}

/* Classes of the knapsack from those of the stage, and from kinds that are apart. Adds the bytes of chunks
 * when all have their first option. 0: there is no width within the set. */
static int list_classes(build *b, uint32_t widths, uint64_t *least) {
    planner_space *s = b->space;
    b->knap.n_classes = s->n_classes;
    for (uint32_t i = 0; i < s->n_classes; i++) {
        double unit[AGOQ_N_WIDTHS];
        planner_class *c = &s->classes[i];
        uint8_t *width = s->width + (size_t)i * AGOQ_N_WIDTHS;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) unit[w] = c->error[w] * b->scale;
        if (!list_options(b, c, widths, unit, &b->classes[i], width)) return 0;
        least[c->chunk] += c->bytes[width[0]] * c->n;
        b->classes[i].n = c->n_kinds;
        c->parted = c->n_infinite || is_apart(&b->classes[i], c->least_sensitivity);
    }
    for (uint32_t i = 0; i < s->n_classes; i++) {
        if (s->classes[i].parted && !part_class(b, i, widths, least)) return 0;
    }
    return 1;
}

/* Items from the kinds that have a choice. */
static void list_items(build *b) {
    planner_space *s = b->space;
    for (uint32_t i = 0; i < b->knap.n_classes; i++) {
        knap_class *of = &b->classes[i];
        of->first = b->knap.n_items;
        b->knap.n_items += of->n_options > 1 ? of->n : 0;
        of->n = 0;
    }
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        planner_kind *k = &s->kinds[i];
        const uint32_t index = s->classes[k->of].parted ? k->item : k->of;
        knap_class *of = &b->classes[index];
        const knap_item item = {of, index == k->of ? k->sensitivity : 1, k->n};
        const int64_t best = knap_cost(&item, of->n_options - 1) * k->n;
        k->alone = 0;
        if (of->n_options == 1) {
            k->alone = 1 + s->width[(size_t)index * AGOQ_N_WIDTHS];
            b->alone_cost += best;
            continue;
        }
        b->best_cost += best;
        k->item = of->first + of->n++;
        s->knap_items[k->item] = item;
    }
}

/* Weights in units of their greatest common divisor: capacity beyond a whole unit is of no use, which
 * sharpens bounds. 0: even the least widths of these sets do not fit. */
static int to_units(build *b, const uint64_t *least) {
    const planner_stage *s = b->stage;
    knap_problem *p = &b->knap;
    const int one = p->n_rows <= 1; /* live counts are in the weights already */
    uint64_t unit[PLANNER_MAX_CHUNKS] = {0};
    for (uint32_t i = 0; i < p->n_classes; i++) {
        const knap_class *c = &b->classes[i];
        for (uint32_t o = 1; o < c->n_options; o++) {
            if (!unit[c->dim] || c->weight[o] % (int64_t)unit[c->dim])
                unit[c->dim] = gcd(unit[c->dim], (uint64_t)c->weight[o]);
        }
    }
    for (uint32_t i = 0; i < p->n_classes; i++) {
        knap_class *c = &b->classes[i];
        for (uint32_t o = 1; o < c->n_options; o++) c->weight[o] /= (int64_t)unit[c->dim];
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
                             .classes = b->classes,
                             .coef = s->coef,
                             .capacity = s->capacity,
                             .n_hints = AGOQ_N_WIDTHS};
    b->knap.n_dims = b->knap.n_rows <= 1 ? 1 : b->stage->n_chunks;
    b->alone_cost = b->best_cost = 0;
    if (!list_classes(b, widths, least) || !to_units(b, least)) return AGOQ_OK;
    list_items(b);
    *possible = 1;
    return knap_solve(&b->knap, &s->knap, s->taken, result);
}

/* What the kinds take, from the knapsack's answer. Returns the set of widths that are used. */
static uint32_t read_taken(const build *b) {
    planner_space *s = b->space;
    uint32_t used = 0;
    for (uint32_t i = 0; i < s->n_kinds; i++) {
        planner_kind *k = &s->kinds[i];
        uint32_t whole = k->alone;
        if (!whole) {
            const knap_class *of = s->knap_items[k->item].of;
            const uint32_t *taken = s->taken + (size_t)k->item * KNAP_OPTIONS;
            const uint8_t *width = s->width + (size_t)(of - b->classes) * AGOQ_N_WIDTHS;
            uint32_t option = 0, o = 0;
            for (; o < KNAP_OPTIONS; o++) option |= (uint32_t) - (taken[o] == k->n) & (o + 1);
            if (option) {
                whole = 1u + width[option - 1];
            } else {
                memset(k->taken, 0, sizeof k->taken);
                for (o = 0; o < of->n_options; o++) {
                    k->taken[width[o]] = taken[o];
                    used |= (uint32_t)(taken[o] != 0) << width[o];
                }
            }
        }
        k->whole = (uint8_t)whole;
        used |= 1u << whole >> 1;
    }
    return used;
}

/* The bound without a width must not exceed the cost that was reached with it. Items that do not have it are
 * left out, which makes the bound no better. */
static int may_do_without(const build *b, const knap_result *r, int width) {
    int64_t more = 0;
    for (uint32_t c = 0; c < b->knap.n_classes; c++) {
        const knap_class *of = &b->classes[c];
        uint32_t out = 0;
        while (out < of->n_options && b->space->width[(size_t)c * AGOQ_N_WIDTHS + out] != width) out++;
        if (out == of->n_options || of->n_options < 2) continue;
        for (uint32_t i = of->first; i < of->first + of->n; i++) {
            if (!b->space->taken[(size_t)i * KNAP_OPTIONS + out]) continue;
            const knap_item *item = &b->knap.items[i];
            knap_wide best = 0, other = 0;
            for (uint32_t o = 0; o < of->n_options; o++) {
                const knap_wide value =
                    ((knap_wide)knap_cost(item, o) << r->shift) + r->price[of->dim] * of->weight[o];
                if (!o || value < best) best = value;
                if (o != out && (o == (out == 0) || value < other)) other = value;
            }
            const knap_wide each = (other - best) >> r->shift;
            if (each > (r->cost - r->root - more) / (int64_t)item->count) return 0;
            more += (int64_t)each * item->count;
        }
    }
    return 1;
}

static int count_widths(uint32_t widths) {
    int n = 0;
    for (; widths; widths &= widths - 1) n++;
    return n;
}

/* An answer as good with fewer distinct widths, if there is one. */
static agoq_status prefer_fewer(build *b, const knap_result *found, uint32_t used) {
    const int64_t cost = found->cost + b->alone_cost;
    uint32_t fixed = 0, keep = 0;
    for (uint32_t i = 0; i < b->space->n_classes; i++) {
        const planner_class *c = &b->space->classes[i];
        if (!(c->widths & (c->widths - 1))) fixed |= c->widths;
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
            if (!possible || r.cost + b->alone_cost != cost) continue;
            (void)read_taken(b);
            return AGOQ_OK;
        }
    }
    return AGOQ_OK;
}

agoq_status planner_stage_solve(planner_space *space, const planner_stage *stage, uint64_t room_bytes,
                                planner_bound *bound) {
    build b = {.space = space, .stage = stage, .room = room_bytes, .classes = space->options};
    knap_result result;
    int possible;
    choose_scales(&b);
    AGOQ_TRY(solve_within(&b, ALL_WIDTHS, &result, &possible));
    if (!possible) return AGOQ_E_INVAL;
    const uint32_t used = read_taken(&b);
    bound->proved = result.cost == result.lower_bound;
    bound->best_possible = result.cost == b.best_cost;
    /* Each cost was rounded by at most a half. */
    bound->lower_bound = ((double)(result.lower_bound + b.alone_cost) - (double)stage->n_items) / b.scale;
    bound->relaxed = ((double)(result.root + b.alone_cost) - (double)stage->n_items) / b.scale;
    bound->work = result.work;
    return bound->proved ? prefer_fewer(&b, &result, used) : AGOQ_OK;
}
