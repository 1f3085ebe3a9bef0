/* The planner's knapsack of one row against dynamic programming, to the last unit of cost: items that all
 * differ, that differ by less than a rounding, that are tied, in classes whose steps get worse (which curves
 * are for) and in others (which they must leave alone). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "planner/knap.h"

#define INSTANCES 24000
#define CLASSES   4
#define ITEMS     24
#define CAPACITY  1200

typedef struct instance {
    knap_class classes[CLASSES];
    knap_item items[CLASSES * ITEMS];
    int64_t coef, capacity;
    knap_problem problem;
} instance;

static uint64_t random_state;

static uint32_t below(uint32_t n) { /* splitmix64 */
    uint64_t x = random_state += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return (uint32_t)((x ^ x >> 31) % n);
}

/* Widths 4 5 6 8 16 with fewer of them now and then; or weights and costs without any order but theirs. */
static void make_class(knap_class *c, uint32_t index, int of_widths) {
    static const int64_t weight[5] = {0, 4, 8, 16, 47};
    static const double unit[5] = {9025e-6, 2237e-6, 557e-6, 34.8e-6, 1.27e-6};
    const int64_t times = 1 + below(4) * (1 + (int64_t)index);
    const double scale = (of_widths ? 0x1p25 : 0x1p21) * (1 + below(16));
    uint32_t n = 0;
    int64_t w = 0;
    double u = 1;
    for (uint32_t o = 0; o < 5; o++) {
        w += 1 + below(30);
        u *= 0.02 + 0.97 * below(1000) / 1000;
        if (n + 2 < o && !below(4)) continue;
        if (o && of_widths && !below(5)) continue;
        c->weight[n] = of_widths ? times * (weight[o] - weight[0]) : n ? w : 0;
        c->unit[n] = scale * (of_widths ? unit[o] : u);
        n++;
    }
    c->n_options = n;
    c->dim = 0;
    c->closest = INFINITY;
    for (uint32_t o = 1; o < n; o++)
        if (c->unit[o - 1] - c->unit[o] < c->closest) c->closest = c->unit[o - 1] - c->unit[o];
    memset(c->hint, 0, sizeof c->hint);
}

static double make_key(uint32_t mode, double common) {
    switch (mode) {
    case 0:
        return common * exp(1.1 * below(1000000) / 1e6); /* all differ, 3-fold */
    case 1:
        return common * exp(3.9 * below(1000000) / 1e6);
    case 2:
        return common * exp(7.0 * below(1000000) / 1e6);
    case 3:
        return common * (1 + below(50) * 0x1p-50); /* nearly alike */
    case 4:
        return common * (1 + below(3)); /* ties */
    default:
        return common * (1 + below(1000) * 1e-6);
    }
}

static void make(uint64_t seed, instance *t) {
    random_state = seed * 77;
    const uint32_t mode = below(6), n_classes = 1 + below(CLASSES), of_widths = below(4) != 0;
    const double common = 1 + below(100);
    int64_t all = 0;
    t->problem = (knap_problem){.n_classes = n_classes,
                                .n_dims = 1,
                                .n_rows = 1,
                                .items = t->items,
                                .classes = t->classes,
                                .coef = &t->coef,
                                .capacity = &t->capacity};
    for (uint32_t c = 0; c < n_classes; c++) {
        knap_class *of = &t->classes[c];
        do make_class(of, c, (int)of_widths);
        while (of->n_options < 2 || of->closest < 2);
        of->first = t->problem.n_items;
        of->n = below(ITEMS / n_classes + 1) + (c == 0);
        for (uint32_t i = 0; i < of->n; i++) {
            const uint32_t count = below(8) ? 1 : 1 + below(4);
            t->items[t->problem.n_items++] =
                (knap_item){.of = of, .key = make_key(mode, common), .count = count};
            all += count * of->weight[of->n_options - 1];
        }
    }
    if (all >= CAPACITY) all = CAPACITY - 1;
    t->coef = 1 + below(3);
    t->capacity = t->coef * below((uint32_t)all + 2) + (t->coef > 1);
}

static int64_t by_programming(const instance *t) {
    static int64_t least[CAPACITY + 1];
    const int64_t capacity = t->capacity / t->coef;
    memset(least, 0, sizeof least);
    for (uint32_t i = 0; i < t->problem.n_items; i++) {
        const knap_item *item = &t->items[i];
        for (uint32_t m = 0; m < item->count; m++) {
            for (int64_t w = capacity; w >= 0; w--) {
                int64_t best = INT64_MAX;
                for (uint32_t o = 0; o < item->of->n_options && item->of->weight[o] <= w; o++) {
                    const int64_t cost = least[w - item->of->weight[o]] + knap_cost(item, o);
                    if (cost < best) best = cost;
                }
                least[w] = best;
            }
        }
    }
    return least[capacity];
}

static void check_answer(uint64_t seed, const instance *t, const uint32_t *taken, int64_t cost) {
    int64_t weight = 0, sum = 0;
    for (uint32_t i = 0; i < t->problem.n_items; i++) {
        uint32_t members = 0;
        for (uint32_t o = 0; o < t->items[i].of->n_options; o++) {
            const uint32_t n = taken[i * KNAP_OPTIONS + o];
            members += n;
            weight += n * t->items[i].of->weight[o];
            sum += n * knap_cost(&t->items[i], o);
        }
        if (members != t->items[i].count) fail_msg("seed %llu: members", (unsigned long long)seed);
    }
    if (weight * t->coef > t->capacity || sum != cost)
        fail_msg("seed %llu: weight %lld, cost %lld or %lld", (unsigned long long)seed, (long long)weight,
                 (long long)sum, (long long)cost);
}

static void equals_dynamic_programming(void **state) {
    (void)state;
    static instance t;
    static uint32_t taken[CLASSES * ITEMS * KNAP_OPTIONS];
    knap_space space = {0};
    int by_curves = 0;
    for (uint64_t seed = 1; seed <= INSTANCES; seed++) {
        knap_result r;
        int done;
        make(seed, &t);
        const int64_t best = by_programming(&t);
        assert_int_equal(knap_solve(&t.problem, &space, taken, &r), AGOQ_OK);
        check_answer(seed, &t, taken, r.cost);
        if (r.cost != best || r.lower_bound != best || r.root > best)
            fail_msg("seed %llu: %lld instead of %lld, root %lld", (unsigned long long)seed,
                     (long long)r.cost, (long long)best, (long long)r.root);
        knap_search s = {.problem = &t.problem, .space = &space, .taken = taken};
        assert_int_equal(knap_curves(&s, &done), AGOQ_OK);
        if (done && (s.best != best || s.dual.root > best))
            fail_msg("seed %llu: curves give %lld", (unsigned long long)seed, (long long)s.best);
        if (done) check_answer(seed, &t, taken, s.best);
        by_curves += done;
    }
    print_message("%d of %d by curves\n", by_curves, INSTANCES);
    assert_true(by_curves > INSTANCES / 2 && by_curves < INSTANCES);
    knap_space_fini(&space);
}

/* What planner.h promises of stages with hundreds of layers that all differ: curves do prove them. */
static void long_stages_are_proved_by_curves(void **state) {
    (void)state;
    enum { N = 640 };
    static knap_item items[N];
    static uint32_t taken[N * KNAP_OPTIONS];
    static const int64_t weight[5] = {0, 8, 16, 32, 94};
    static const double unit[5] = {9025e20, 2237e20, 557e20, 34.8e20, 1.27e20};
    knap_class classes[2] = {{.n_options = 5, .n = N / 2}, {.first = N / 2, .n_options = 5, .n = N / 2}};
    knap_space space = {0};
    for (uint32_t c = 0; c < 2; c++) {
        for (int o = 0; o < 5; o++) {
            classes[c].weight[o] = weight[o] * (c ? 7 : 1);
            classes[c].unit[o] = unit[o] * 1e-18 * (c ? 9 : 1);
        }
    }
    for (uint64_t seed = 1; seed <= 200; seed++) {
        random_state = seed;
        for (uint32_t i = 0; i < N; i++)
            items[i] = (knap_item){&classes[i >= N / 2], make_key(seed % 2, 1000), 1};
        const int64_t coef = 1, capacity = (int64_t)(N / 2 * 94 * 8) / 100 * below(100) + below(90);
        const knap_problem problem = {N, 2, 1, 1, items, classes, &coef, &capacity, 0};
        knap_search s = {.problem = &problem, .space = &space, .taken = taken};
        int done;
        assert_int_equal(knap_curves(&s, &done), AGOQ_OK);
        assert_true(done);
        assert_true(s.dual.root <= s.best);
    }
    knap_space_fini(&space);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_dynamic_programming),
        cmocka_unit_test(long_stages_are_proved_by_curves),
    };
    return cmocka_run_group_tests_name("knap", tests, NULL, NULL);
}
