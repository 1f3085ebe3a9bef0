/* One row, many different items: the search of knap.h on curves instead of items.
 *
 * A step is an item's next option in place of the one before. If steps were free of each other, those of the
 * same weight would be worth taking in the order of what they save, whatever items they belong to: one curve
 * per weight, and an answer is a number of steps on each. That problem allows all that the real one does, so
 * its optimum bounds the real one; and if in its optimum no item takes a step without the one before, it is
 * the real optimum. That is looked at, not assumed: it mostly holds where steps save less per weight from one
 * to the next (the widths' errors fall faster than their sizes grow) and may fail where items differ by so
 * much that steps of unlike kinds are near the price at once. Then *done stays 0 and knap_core.c searches.
 *
 * Curves are only made near the price of the relaxation: a step whose regret (what taking it, or not, costs
 * against the price) is more than a gap g cannot be in an answer within g of the bound. g grows until an
 * answer within it is found, which then is the best one. */
#include <math.h>
#include <string.h>

#include "common/try.h"
#include "planner/knap_curve.h"

#define MAX_LOOKS  ((uint64_t)1 << 14) /* at answers; beyond that the other search is no slower */
#define MAX_POINTS 8192u
#define MAX_GAP    ((int64_t)1 << 52)
#define ROUNDING   64.0 /* more than doubles can be off by at costs below 2^51 */

static int less_regret(const knap_entry *x, const knap_entry *y) {
    if (x->regret != y->regret) return x->regret < y->regret;
    if (x->item != y->item) return x->item < y->item;
    return x->edge < y->edge;
}

/* Sorts by regret as many entries as the gap lets take together, and one more; the others follow in any
 * order. */
static void sort_entries(const knap_lines *c, knap_entry *a, uint32_t n) {
    knap_wide sum = 0;
    uint32_t sorted = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (sum > c->gap && !less_regret(&a[i], &a[sorted - 1])) continue;
        const knap_entry one = a[i];
        a[i] = a[sorted];
        uint32_t j = sorted++;
        for (; j && less_regret(&one, &a[j - 1]); j--) a[j] = a[j - 1];
        a[j] = one;
        sum += (knap_wide)one.regret * one.count;
        while (sorted > 1 && sum - (knap_wide)a[sorted - 1].regret * a[sorted - 1].count > c->gap) {
            sorted--;
            sum -= (knap_wide)a[sorted].regret * a[sorted].count;
        }
    }
}

/* Those that are in first. */
static uint32_t part_entries(knap_entry *a, uint32_t n) {
    uint32_t in = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (!a[i].in) continue;
        const knap_entry one = a[i];
        a[i] = a[in];
        a[in++] = one;
    }
    return in;
}

/* Regrets of entries as of `old`; the steps above them are all worth their price. */
static void set_regrets(knap_lines *c, const knap_edge *e, uint32_t old, uint32_t n) {
    const knap_dual *d = &c->search->dual;
    const knap_wide worth = d->price[0] * e->weight;
    for (uint32_t i = old; i < n; i++) {
        knap_entry *one = &c->entries[i];
        const knap_wide more = ((knap_wide)one->gain << d->shift) - worth;
        one->in = more >= 0;
        one->regret = (int64_t)((more < 0 ? -more : more) >> d->shift);
        if (one->in) c->left -= e->weight * one->count;
    }
}

/* How many members of a curve's entries from `first` on regrets let step within the gap, at most. */
static size_t most_points(const knap_lines *c, uint32_t first, uint32_t n) {
    size_t points = 0;
    int64_t sum = 0;
    for (uint32_t i = first; i < first + n; i++) {
        const knap_entry *one = &c->entries[i];
        const int64_t fit = one->regret ? (c->gap - sum) / one->regret : one->count;
        const uint32_t taken = fit < one->count ? (uint32_t)fit : one->count;
        points += taken;
        sum += one->regret * taken;
        if (taken < one->count) break;
    }
    return points;
}

/* Sums along one side of a curve, away from the middle. */
static void fill_points(const knap_lines *c, knap_curve *v, uint32_t first, int32_t to) {
    const int32_t way = to < 0 ? -1 : 1;
    uint32_t used = 0;
    for (int32_t k = 0; k != to; k += way) {
        while (used == c->entries[first].count) {
            used = 0;
            first++;
        }
        v->cost[k + way] = v->cost[k] - way * c->entries[first].gain;
        v->regret[k + way] = v->regret[k] + c->entries[first].regret;
        used++;
    }
}

/* What so much weight is worth, rounded down. */
static int64_t worth_of(const knap_lines *c, int64_t weight) {
    return (int64_t)((c->search->dual.price[0] * weight) >> c->search->dual.shift);
}

/* Keys of the steps whose regret is at most `gap`, and perhaps a few more. */
static void window(const knap_lines *c, const knap_edge *e, int64_t gap, int32_t *from, int32_t *to) {
    const double worth = c->price * (double)e->weight, reach = (double)gap + ROUNDING;
    const int32_t least = knap_near((worth - reach) / e->unit);
    *from = least ? least - 1 : 0;
    *to = knap_near((worth + reach) / e->unit) + 1;
}

/* Greatest common divisor of the weights of all steps whose regret is at most `gap`. */
static int64_t unit_within(const knap_lines *c, int64_t gap) {
    int64_t unit = 0;
    for (uint32_t k = 0; k < c->n_edges; k++) {
        const knap_edge *e = &c->edges[k];
        int32_t from, to;
        if (unit && e->weight % unit == 0) continue;
        window(c, e, gap, &from, &to);
        if (from > e->most || to < e->least) continue;
        if (knap_members(c, e, from) == knap_members(c, e, to + 1)) continue;
        for (int64_t a = e->weight, rest; a; a = rest) {
            rest = unit % a;
            unit = a;
        }
    }
    return unit;
}

/* What is left, less what no steps within the gap can use. Steps beyond a wider gap may use it, but cost more
 * than it is worth. */
static int64_t usable(const knap_lines *c) {
    int64_t unit = unit_within(c, c->gap), rest = 0;
    for (int i = 0; i < 2 && unit; i++) {
        rest = c->left % unit;
        if (rest < 0) rest += unit;
        if (!i) unit = unit_within(c, c->gap + worth_of(c, rest) + 1);
    }
    return c->left - rest;
}

/* Curves of the entries near the price. *done: 0 if they are too long. */
static agoq_status make_curves(knap_lines *c, int *done) {
    uint32_t n = 0;
    size_t total = 0;
    c->left = c->capacity;
    for (uint32_t g = 0; g < c->n_curves; g++) {
        knap_curve *v = &c->curve[g];
        v->first = n;
        for (uint32_t k = 0; k < c->n_edges; k++) {
            const knap_edge *e = &c->edges[k];
            if (e->curve != g) continue;
            const uint32_t old = n;
            int32_t from, to;
            window(c, e, c->gap, &from, &to);
            AGOQ_TRY(knap_gather(c, k, from, to, &n));
            c->left -= e->weight * knap_members(c, e, to + 1);
            set_regrets(c, e, old, n);
        }
        v->n = n - v->first;
        knap_entry *entries = c->entries + v->first;
        v->n_in = part_entries(entries, v->n);
        sort_entries(c, entries, v->n_in);
        sort_entries(c, entries + v->n_in, v->n - v->n_in);
        v->low = -(int32_t)most_points(c, v->first, v->n_in);
        v->high = (int32_t)most_points(c, v->first + v->n_in, v->n - v->n_in);
        total += (size_t)(v->high - v->low) + 1;
        c->order[g] = g;
    }
    *done = total <= MAX_POINTS;
    if (!*done) return AGOQ_OK;
    int64_t *points = knap_reserve(c->search->space, KNAP_CURVES, 2 * total, sizeof *points);
    if (!points) return AGOQ_E_NOMEM;
    for (uint32_t g = 0; g < c->n_curves; g++) {
        knap_curve *v = &c->curve[g];
        v->cost = points - v->low;
        v->regret = v->cost + (v->high - v->low + 1);
        points += 2 * (v->high - v->low + 1);
        v->cost[0] = v->regret[0] = 0;
        fill_points(c, v, v->first, v->low);
        fill_points(c, v, v->first + v->n_in, v->high);
    }
    for (uint32_t i = 1; i < c->n_curves; i++) {
        const uint32_t one = c->order[i];
        const int32_t length = c->curve[one].high - c->curve[one].low;
        uint32_t j = i;
        for (; j && c->curve[c->order[j - 1]].high - c->curve[c->order[j - 1]].low > length; j--)
            c->order[j] = c->order[j - 1];
        c->order[j] = one;
    }
    c->whole = usable(c);
    return AGOQ_OK;
}

/* The last curve takes all that fits. */
static void close_answer(knap_lines *c, uint32_t depth, int64_t left, int64_t cost) {
    const knap_curve *v = &c->curve[c->order[depth]];
    int64_t k = left / v->weight - (left % v->weight < 0);
    c->looks++;
    if (k < v->low) return;
    if (k > v->high) k = v->high;
    cost += v->cost[k];
    if (cost >= c->best) return;
    c->best = cost;
    c->chosen[depth] = (int32_t)k;
    memcpy(c->answer, c->chosen, sizeof c->answer);
    const int64_t gap = cost - 1 + worth_of(c, c->whole);
    if (gap < c->gap) c->gap = gap;
}

/* All numbers of steps whose regrets sum to at most the gap, least regret first. */
static void descend(knap_lines *c, uint32_t depth, int64_t left, int64_t cost, int64_t regret) {
    if (depth + 1 == c->n_curves) {
        close_answer(c, depth, left, cost);
        return;
    }
    const knap_curve *v = &c->curve[c->order[depth]];
    int32_t up = 0, down = -1;
    while ((up <= v->high || down >= v->low) && c->looks < MAX_LOOKS) {
        const int upward = down < v->low || (up <= v->high && v->regret[up] <= v->regret[down]);
        const int32_t k = upward ? up++ : down--;
        if (regret + v->regret[k] > c->gap) break;
        c->chosen[depth] = k;
        descend(c, depth + 1, left - k * v->weight, cost + v->cost[k], regret + v->regret[k]);
    }
}

/* Grows the gap until the best answer within it is known. *done: 0 if that takes too long. */
static agoq_status search(knap_lines *c, int *done) {
    int64_t gap = 0;
    for (uint32_t g = 0; g < c->n_curves; g++) {
        const int64_t worth = worth_of(c, c->curve[g].weight) / 8;
        gap = g && gap < worth ? gap : worth;
    }
    for (;;) {
        c->gap = gap;
        c->best = INT64_MAX;
        AGOQ_TRY(make_curves(c, done));
        if (!*done) return AGOQ_OK;
        const int64_t whole = worth_of(c, c->whole);
        descend(c, 0, c->left, 0, 0);
        *done = c->looks < MAX_LOOKS && (gap < MAX_GAP || c->best < INT64_MAX);
        /* Whatever was not looked at costs more than gap - whole against the steps worth their price. */
        if (!*done || c->best <= gap - whole - 1) return AGOQ_OK;
        gap = gap < MAX_GAP / 4 ? 4 * gap + 1 : MAX_GAP;
        if (c->best < INT64_MAX && c->best + whole + 1 < gap) gap = c->best + whole + 1;
    }
}

/* Every item at the option that its key is worth. Returns the cost. */
static int64_t write_base(const knap_lines *c, const double *at) {
    int64_t cost = 0;
    for (uint32_t k = 0, end; k < c->n_edges; k = end) {
        const knap_edge *e = &c->edges[k];
        uint32_t all = 0; /* have these; of some, later ones as well */
        for (end = k + 1; end < c->n_edges && c->edges[end].from;) end++;
        while (k + all < end && knap_near(at[k + all]) < e->least) all++;
        uint32_t last = end;
        while (last > k + all && knap_near(at[last - 1]) > e->most) last--;
        for (uint32_t i = e->first; i < e->first + e->n; i++) {
            const knap_item *item = &c->problem->items[i];
            uint32_t *taken = c->search->taken + (size_t)i * KNAP_OPTIONS, o = all;
            for (uint32_t j = k + all; j < last; j++) o += item->key >= at[j];
            for (uint32_t w = 0; w < KNAP_OPTIONS; w++) taken[w] = 0;
            taken[o] = item->count;
            cost += item->count * knap_cost(item, o);
        }
    }
    return cost;
}

/* The answer, from the base and what entries take instead. Returns the cost; *proper: no item takes a step
 * without the one before. */
static int64_t write_answer(const knap_lines *c, int *proper) {
    knap_search *s = c->search;
    double at[KNAP_EDGES];
    for (uint32_t k = 0; k < c->n_edges; k++)
        at[k] = c->price * (double)c->edges[k].weight / c->edges[k].unit;
    int64_t cost = write_base(c, at);
    for (uint32_t g = 0; g < c->n_curves; g++) {
        const knap_curve *v = &c->curve[g];
        int32_t k = 0;
        for (uint32_t d = 0; d < c->n_curves; d++) k = c->order[d] == g ? c->answer[d] : k;
        uint32_t fewer = k < 0 ? (uint32_t)-k : 0, more = k > 0 ? (uint32_t)k : 0;
        for (uint32_t i = v->first; i < v->first + v->n; i++) {
            const knap_entry *one = &c->entries[i];
            uint32_t *moved = one->in ? &fewer : &more;
            const uint32_t move = *moved < one->count ? *moved : one->count;
            const uint32_t want = one->in ? one->count - move : move,
                           have = c->problem->items[one->item].key >= at[one->edge] ? one->count : 0;
            uint32_t *of = s->taken + (size_t)one->item * KNAP_OPTIONS + c->edges[one->edge].from;
            *moved -= move;
            of[0] += have - want;
            of[1] += want - have;
            cost += one->gain * ((int64_t)have - (int64_t)want);
        }
    }
    *proper = 1;
    for (uint32_t i = 0; i < c->curve[c->n_curves - 1].first + c->curve[c->n_curves - 1].n; i++) {
        const knap_entry *one = &c->entries[i];
        const uint32_t *of = s->taken + (size_t)one->item * KNAP_OPTIONS;
        for (int o = 0; o < KNAP_OPTIONS; o++) *proper &= of[o] <= one->count;
    }
    return cost;
}

/* Everything fits at its best. */
static void take_all(knap_lines *c) {
    knap_search *s = c->search;
    memset(s->taken, 0, (size_t)c->problem->n_items * KNAP_OPTIONS * sizeof *s->taken);
    s->best = 0;
    for (uint32_t i = 0; i < c->problem->n_items; i++) {
        const knap_item *item = &c->problem->items[i];
        s->taken[(size_t)i * KNAP_OPTIONS + item->of->n_options - 1] = item->count;
        s->best += item->count * knap_cost(item, item->of->n_options - 1);
    }
    s->dual.root = s->best;
}

agoq_status knap_curves(knap_search *s, int *done) {
    knap_lines c;
    int64_t all = 0;
    *done = 0;
    c.search = s;
    c.problem = s->problem;
    c.n_edges = c.n_curves = 0;
    c.looks = 0;
    s->dual.lambda = knap_reserve(s->space, KNAP_LAMBDA, 1, sizeof *s->dual.lambda);
    if (!s->dual.lambda) return AGOQ_E_NOMEM;
    if (s->problem->coef[0] <= 0) return AGOQ_OK;
    c.capacity = s->problem->capacity[0] / s->problem->coef[0];
    AGOQ_TRY(knap_list_edges(&c, done));
    if (!*done) return AGOQ_OK;
    for (uint32_t k = 0; k < c.n_edges; k++) all += c.edges[k].weight * c.edges[k].members;
    if (all <= c.capacity) {
        take_all(&c);
        return AGOQ_OK;
    }
    AGOQ_TRY(knap_find_price(&c));
    AGOQ_TRY(search(&c, done));
    s->work += c.looks;
    if (!*done) return AGOQ_OK;
    s->best = write_answer(&c, done);
    const knap_wide base = (knap_wide)(s->best - c.best) << s->dual.shift;
    s->dual.root = (int64_t)((base - s->dual.price[0] * c.left) >> s->dual.shift);
    return AGOQ_OK;
}
