/* See held.h. */
#include "agoqd/held.h"

#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"

#define MAX_FORMULA_VALUES 4096

static int by_layer_role(const void *a, const void *b) {
    const planner_item *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (x->role > y->role) - (x->role < y->role);
}

static agoq_status copy_items(const Agoq__Profile *m, held *out, const char **why) {
    out->items = mem_zalloc(m->n_items, sizeof *out->items);
    if (!out->items) return AGOQ_E_NOMEM;
    out->n_items = (uint32_t)m->n_items;
    for (uint32_t i = 0; i < out->n_items; i++) {
        const Agoq__Item *from = m->items[i];
        out->items[i] = (planner_item){.layer = (uint16_t)from->layer,
                                       .role = (uint8_t)from->role,
                                       .chunk = (uint8_t)from->chunk,
                                       .count = from->count,
                                       .rows = (int64_t)from->rows,
                                       .cols = (int64_t)from->cols,
                                       .widths = from->widths,
                                       .sensitivity = from->sensitivity};
    }
    qsort(out->items, out->n_items, sizeof *out->items, by_layer_role);
    for (uint32_t i = 1; i < out->n_items; i++) {
        if (by_layer_role(&out->items[i - 1], &out->items[i]) == 0) {
            *why = "profile: a (layer, role) appears twice";
            return AGOQ_E_INVAL;
        }
    }
    return AGOQ_OK;
}

/* Is `row` within some row of the formula, chunk by chunk? */
static int row_is_covered(const uint32_t *row, const uint32_t *rows, uint32_t n_rows, uint32_t n_chunks) {
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t c = 0;
        while (c < n_chunks && row[c] <= rows[r * n_chunks + c]) c++;
        if (c == n_chunks) return 1;
    }
    return 0;
}

static agoq_status choose_live(const Agoq__Profile *m, uint32_t n_stages, uint32_t stage, held *out,
                               const char **why) {
    uint32_t *formula = mem_zalloc(MAX_FORMULA_VALUES, sizeof *formula);
    if (!formula) return AGOQ_E_NOMEM;
    uint32_t n_formula = 0, n_observed = (uint32_t)m->n_live / out->n_chunks;
    agoq_status status = planner_live(out->schedule, n_stages, stage, out->n_microbatches, out->n_chunks,
                                      formula, MAX_FORMULA_VALUES / out->n_chunks, &n_formula);
    if (status == AGOQ_E_NOMEM) goto out;
    if (status != AGOQ_OK) n_formula = 0; /* a shape that the formula does not know: observation alone */
    out->formula_units = n_formula ? planner_live_units(formula, n_formula, out->n_chunks) : 0;
    for (uint32_t r = 0; r < n_observed; r++) {
        if (!row_is_covered(m->live + (size_t)r * out->n_chunks, formula, n_formula, out->n_chunks))
            out->above_schedule = n_formula > 0;
    }
    int observed_wins = n_observed > 0 && (out->above_schedule || n_formula == 0);
    const uint32_t *rows = observed_wins ? m->live : formula;
    out->n_live = observed_wins ? n_observed : n_formula;
    status = AGOQ_E_INVAL;
    *why = "profile: the schedule has no formula for this shape, and no live counts were observed yet";
    if (out->n_live == 0 && m->observed_steps > 0) goto out;
    status = AGOQ_E_NOMEM;
    size_t n_values = (size_t)out->n_live * out->n_chunks;
    if (!(out->live = mem_zalloc(n_values, sizeof *out->live))) goto out;
    memcpy(out->live, rows, n_values * sizeof *rows);
    out->live_units = out->n_live ? planner_live_units(out->live, out->n_live, out->n_chunks) : 0;
    status = AGOQ_OK;
out:
    mem_free(formula);
    return status;
}

agoq_status held_from_wire(const Agoq__Profile *m, uint32_t n_stages, uint32_t stage, held *out,
                           const char **why) {
    held p = {.schedule = (agoq_schedule)m->schedule,
              .n_microbatches = m->n_microbatches,
              .n_chunks = m->n_chunks,
              .n_layers = m->n_layers,
              .alloc_round_bytes = m->alloc_round_bytes,
              .observed_steps = m->observed_steps};
    for (int i = 0; i < AGOQ_N_PHASES; i++)
        p.phase[i] = (planner_phase){m->static_bytes[i], m->workspace_bytes[i]};
    agoq_status status = AGOQ_E_NOMEM;
    p.fixed_bytes = mem_zalloc(p.n_chunks, sizeof *p.fixed_bytes);
    if (!p.fixed_bytes) goto out;
    memcpy(p.fixed_bytes, m->fixed_bytes, p.n_chunks * sizeof *p.fixed_bytes);
    AGOQ_TRY_OUT(copy_items(m, &p, why));
    AGOQ_TRY_OUT(choose_live(m, n_stages, stage, &p, why));
    *out = p;
    return AGOQ_OK;
out:
    held_fini(&p);
    if (status == AGOQ_E_NOMEM) *why = "out of memory";
    return status;
}

void held_fini(held *p) {
    mem_free(p->items);
    mem_free(p->fixed_bytes);
    mem_free(p->live);
    *p = (held){0};
}

static int item_same(const planner_item *a, const planner_item *b) {
    return a->layer == b->layer && a->role == b->role && a->chunk == b->chunk && a->count == b->count &&
           a->rows == b->rows && a->cols == b->cols && a->widths == b->widths &&
           a->sensitivity == b->sensitivity;
}

int held_same(const held *a, const held *b) {
    if (a->schedule != b->schedule || a->n_microbatches != b->n_microbatches || a->n_chunks != b->n_chunks ||
        a->n_layers != b->n_layers || a->n_items != b->n_items || a->n_live != b->n_live ||
        a->alloc_round_bytes != b->alloc_round_bytes || (a->observed_steps > 0) != (b->observed_steps > 0))
        return 0;
    for (uint32_t i = 0; i < a->n_items; i++) {
        if (!item_same(&a->items[i], &b->items[i])) return 0;
    }
    for (int i = 0; i < AGOQ_N_PHASES; i++) {
        if (a->phase[i].static_bytes != b->phase[i].static_bytes ||
            a->phase[i].workspace_bytes != b->phase[i].workspace_bytes)
            return 0;
    }
    return memcmp(a->fixed_bytes, b->fixed_bytes, a->n_chunks * sizeof *a->fixed_bytes) == 0 &&
           memcmp(a->live, b->live, (size_t)a->n_live * a->n_chunks * sizeof *a->live) == 0;
}

planner_stage held_stage(const held *p) {
    planner_stage stage = {.alloc_round_bytes = p->alloc_round_bytes,
                           .n_chunks = p->n_chunks,
                           .n_items = p->n_items,
                           .n_live = p->n_live,
                           .fixed_bytes = p->fixed_bytes,
                           .items = p->items,
                           .live = p->live};
    memcpy(stage.phase, p->phase, sizeof stage.phase);
    return stage;
}

static int floor_bits(uint32_t widths) {
    for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
        if (widths >> i & 1) return agoq_width_bits(i);
    }
    return 16;
}

uint64_t held_predict(const planner_stage *stage, const plan *p) {
    uint64_t chunk_bytes[WIRE_MAX_CHUNKS];
    memcpy(chunk_bytes, stage->fixed_bytes, stage->n_chunks * sizeof *chunk_bytes);
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        int bits = p ? plan_bits(p, item->layer, item->role) : floor_bits(item->widths);
        chunk_bytes[item->chunk] += planner_item_bytes(item, bits ? bits : 16, stage->alloc_round_bytes);
    }
    uint64_t live_bytes = 0, most = 0;
    for (uint32_t r = 0; r < stage->n_live; r++) {
        uint64_t sum = 0;
        for (uint32_t c = 0; c < stage->n_chunks; c++)
            sum += stage->live[r * stage->n_chunks + c] * chunk_bytes[c];
        if (sum > live_bytes) live_bytes = sum;
    }
    for (int i = 0; i < AGOQ_N_PHASES; i++) {
        uint64_t sum = stage->phase[i].static_bytes + stage->phase[i].workspace_bytes +
                       (i == AGOQ_PHASE_FWD_BWD ? live_bytes : 0);
        if (sum > most) most = sum;
    }
    return most;
}
