/* Random stages for the planner's tests, and the best answer by trying all of them. Small enough to be
 * exhaustive, odd enough to leave every easy case: several weight classes, chunks, live vectors, sparse sets
 * of widths, rounding allocators, sensitivities over ten decades. Deterministic in the seed. */
#ifndef TESTS_PLANNER_CASES_H
#define TESTS_PLANNER_CASES_H

#include "planner/planner.h"

#define CASE_ITEMS  7
#define CASE_CHUNKS 3
#define CASE_ROWS   4

typedef struct planner_case {
    planner_item items[CASE_ITEMS];
    uint64_t fixed[CASE_CHUNKS];
    uint32_t live[CASE_ROWS * CASE_CHUNKS];
    planner_stage stage;
} planner_case;

static inline uint64_t case_random(uint64_t *seed) { /* splitmix64 */
    uint64_t x = *seed += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

static inline uint32_t case_below(uint64_t *seed, uint32_t n) {
    return (uint32_t)(case_random(seed) % n);
}

static inline double case_sensitivity(uint64_t *seed, double common) {
    switch (case_below(seed, 6)) {
    case 0:
        return 0;
    case 1:
        return 1e-5 * (double)(1 + case_below(seed, 1000000));
    case 2:
        return (double)(1 + case_below(seed, 3));
    case 3:
        return 1e4 * (double)(1 + case_below(seed, 100));
    default:
        return common;
    }
}

/* Bytes of a row at given widths; brute force keeps its own sums so as not to lean on the code under test. */
static inline uint64_t case_row_bytes(const planner_stage *s, uint32_t row, const uint64_t *chunk) {
    uint64_t sum = 0;
    for (uint32_t c = 0; c < s->n_chunks; c++) sum += s->live[row * s->n_chunks + c] * chunk[c];
    return sum;
}

static inline uint64_t case_peak(const planner_stage *s, const int *bits) {
    uint64_t chunk[CASE_CHUNKS] = {0}, peak = 0;
    for (uint32_t c = 0; c < s->n_chunks; c++) chunk[c] = s->fixed_bytes[c];
    for (uint32_t i = 0; i < s->n_items; i++)
        chunk[s->items[i].chunk] += planner_item_bytes(&s->items[i], bits[i], s->alloc_round_bytes);
    for (uint32_t r = 0; r < s->n_live; r++) {
        const uint64_t sum = case_row_bytes(s, r, chunk);
        peak = sum > peak ? sum : peak;
    }
    return peak + s->phase[0].static_bytes + s->phase[0].workspace_bytes;
}

static const int case_widths[5] = {4, 5, 6, 8, 16};

/* Fills *c. Its budget lies between what the least and the largest widths need (now and then a little below).
 */
static inline void case_make(uint64_t seed, planner_case *c) {
    static const int64_t cols[6] = {64, 96, 256, 704, 40, 130};
    uint64_t s = seed, low = 0, high = 0;
    *c = (planner_case){0};
    planner_stage *stage = &c->stage;
    const uint32_t n_classes = 1 + case_below(&s, 3), first_class = case_below(&s, 6);
    const double common = 0.01 * (double)(1 + case_below(&s, 500));
    static const uint64_t rounding[5] = {0, 1, 512, 2048, 1000};
    stage->alloc_round_bytes = rounding[case_below(&s, 5)];
    stage->n_chunks = 1 + case_below(&s, CASE_CHUNKS);
    stage->n_items = 1 + case_below(&s, CASE_ITEMS);
    stage->n_live = 1 + case_below(&s, CASE_ROWS);
    stage->margin_ppm = case_below(&s, 3) ? 0 : case_below(&s, 200000);
    for (uint32_t i = 0; i < stage->n_chunks; i++) c->fixed[i] = case_below(&s, 2) ? case_below(&s, 5000) : 0;
    for (uint32_t i = 0; i < stage->n_live * stage->n_chunks; i++) c->live[i] = case_below(&s, 9);
    for (uint32_t i = 0; i < stage->n_items; i++) {
        planner_item *item = &c->items[i];
        item->layer = (uint16_t)(i / 2);
        item->role = (uint8_t)(i % 2);
        item->chunk = (uint8_t)case_below(&s, stage->n_chunks);
        item->count = 1 + case_below(&s, 2);
        item->rows = 8;
        item->cols = cols[(first_class + case_below(&s, n_classes)) % 6];
        item->widths = case_below(&s, 3) ? 31 : 1 + case_below(&s, 31);
        item->sensitivity = case_sensitivity(&s, common);
    }
    stage->items = c->items;
    stage->fixed_bytes = c->fixed;
    stage->live = c->live;
    for (int p = 0; p < AGOQ_N_PHASES; p++)
        stage->phase[p] = (planner_phase){case_below(&s, 4000), case_below(&s, 1000)};
    for (int largest = 0; largest < 2; largest++) {
        int bits[CASE_ITEMS];
        for (uint32_t i = 0; i < stage->n_items; i++) {
            uint64_t chosen = 0;
            for (int w = 0; w < 5; w++) {
                const uint64_t bytes =
                    planner_item_bytes(&c->items[i], case_widths[w], stage->alloc_round_bytes);
                if (!(c->items[i].widths >> w & 1) ||
                    (chosen && (largest ? bytes <= chosen : bytes >= chosen)))
                    continue;
                chosen = bytes;
                bits[i] = case_widths[w];
            }
        }
        *(largest ? &high : &low) = case_peak(stage, bits);
    }
    const uint64_t other = stage->phase[1].static_bytes + stage->phase[1].workspace_bytes +
                           stage->phase[2].static_bytes + stage->phase[2].workspace_bytes;
    if (case_below(&s, 12)) low = low > other ? low : other;
    stage->budget_bytes = low + case_random(&s) % (high > low ? high - low + 1 : 1);
    if (case_below(&s, 12))
        stage->budget_bytes = (stage->budget_bytes + 1) * 1000000 / (1000000 - stage->margin_ppm) + 1;
    if (!case_below(&s, 15)) stage->budget_bytes = low - low / (1 + case_below(&s, 20));
}

typedef struct case_best {
    int found;
    double objective;
    uint64_t least_peak;
} case_best;

static inline uint64_t case_available(const planner_stage *s) {
    const uint64_t margin = (s->budget_bytes * s->margin_ppm + 999999) / 1000000;
    return s->budget_bytes - margin;
}

static inline void case_try(const planner_stage *s, uint32_t at, uint64_t *chunk, double objective,
                            case_best *best) {
    if (at == s->n_items) {
        uint64_t peak = 0;
        for (uint32_t r = 0; r < s->n_live; r++) {
            const uint64_t sum = case_row_bytes(s, r, chunk);
            peak = sum > peak ? sum : peak;
        }
        peak += s->phase[0].static_bytes + s->phase[0].workspace_bytes;
        for (int p = 1; p < AGOQ_N_PHASES; p++) {
            const uint64_t sum = s->phase[p].static_bytes + s->phase[p].workspace_bytes;
            peak = sum > peak ? sum : peak;
        }
        if (peak < best->least_peak) best->least_peak = peak;
        if (peak <= case_available(s) && (!best->found || objective < best->objective)) {
            best->found = 1;
            best->objective = objective;
        }
        return;
    }
    const planner_item *item = &s->items[at];
    for (int w = 0; w < 5; w++) {
        if (!(item->widths >> w & 1)) continue;
        const uint64_t bytes = planner_item_bytes(item, case_widths[w], s->alloc_round_bytes);
        chunk[item->chunk] += bytes;
        case_try(s, at + 1, chunk, objective + item->sensitivity * planner_error(case_widths[w]), best);
        chunk[item->chunk] -= bytes;
    }
}

static inline case_best case_brute_force(const planner_stage *s) {
    uint64_t chunk[CASE_CHUNKS] = {0};
    case_best best = {0, 0, UINT64_MAX};
    for (uint32_t c = 0; c < s->n_chunks; c++) chunk[c] = s->fixed_bytes[c];
    case_try(s, 0, chunk, 0, &best);
    return best;
}

#endif
