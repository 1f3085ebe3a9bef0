/* From shape and run to a planner_problem: the items of every layer, what is kept and never packed, live
 * vectors, static bytes and workspace of each phase. Only assembly: tensors come from model_tensors.c, all
 * other terms from model_state.c. The trade-off: a stage's arrays are slices of one allocation each, so their
 * sizes are bounded before the first stage is filled. */
#include "planner/model.h"

#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/model_internal.h"

#define ITEMS_OF_LAYER 8u

static double sensitivity_of(int role) {
    switch (role) {
#define ROLE_SENSITIVITY(id, name, sensitivity, mask)                                                        \
    case AGOQ_ROLE_##id:                                                                                     \
        return sensitivity;
        AGOQ_ROLES(ROLE_SENSITIVITY)
#undef ROLE_SENSITIVITY
    default:
        return 1;
    }
}

uint32_t planner_model_widths(const planner_model *m, int role) {
    if ((role == AGOQ_ROLE_ATTN_QKV || role == AGOQ_ROLE_QK_NORM_IN) && m->run.qkv_bits == 8)
        return AGOQ_MASK_8 | (m->run.qkv_only8 ? 0 : AGOQ_MASK_16);
    switch (role) {
#define ROLE_MASK(id, name, sensitivity, mask)                                                               \
    case AGOQ_ROLE_##id:                                                                                     \
        return (mask) | (AGOQ_ROLE_##id == AGOQ_ROLE_ATTN_OUT && m->run.out16 ? AGOQ_MASK_16 : 0);
        AGOQ_ROLES(ROLE_MASK)
#undef ROLE_MASK
    default:
        return AGOQ_MASK_16;
    }
}

static int is_planned(const planner_model *m) {
    return m->run.accounting == PLANNER_ACCOUNT_FUSED && m->run.storage == PLANNER_STORE_PLAN;
}

typedef struct filling {
    const planner_model *m;
    planner_item *item; /* the next free ones */
    uint64_t tokens;
    uint32_t copies; /* ranks that hold a layer, each for its part of the micro-batches */
} filling;

static uint32_t copies_of(const planner_model *m) {
    return planner_model_route(m) == PLANNER_ROUTE_TWO_WAY ? 2 : 1;
}

/* Tensors of one layer, or of the end of the model: planned ones become items, the rest fixed bytes. */
static void add_tensors(filling *f, uint32_t layer, uint32_t chunk, int last, uint64_t *fixed) {
    planner_tensor tensors[PLANNER_MAX_TENSORS];
    const int bits = f->m->run.account_bits ? f->m->run.account_bits : 4;
    uint32_t n;
    planner_model_tensors(f->m, f->tokens, last, tensors, &n);
    for (uint32_t i = 0; i < n; i++) {
        const planner_tensor *t = &tensors[i];
        if (t->role < 0 || !is_planned(f->m)) {
            *fixed = planner_add(*fixed, planner_model_tensor_bytes(f->m, t, bits));
            continue;
        }
        const double share = f->copies * (last ? 1 : f->m->shape.layers);
        *f->item++ = (planner_item){.layer = (uint16_t)layer,
                                    .role = (uint8_t)t->role,
                                    .chunk = (uint8_t)chunk,
                                    .count = t->count,
                                    .rows = (int64_t)t->rows,
                                    .cols = (int64_t)t->cols,
                                    .widths = planner_model_widths(f->m, t->role),
                                    .sensitivity = sensitivity_of(t->role) / share};
    }
}

static void fill_chunks(filling *f, uint32_t rank, uint64_t *fixed) {
    const planner_model *m = f->m;
    const uint32_t end = planner_model_n_virtual(m) - 1;
    const uint64_t ids = planner_model_round(m, planner_mul(8, f->tokens));
    uint32_t recompute = planner_model_recomputed(m, rank);
    for (uint32_t c = 0; c < m->run.chunks; c++) {
        const uint32_t at = planner_model_virtual(m, rank, c), n = planner_model_layers_of(m, at),
                       from = planner_model_first_layer_of(m, at);
        for (uint32_t l = 0; l < n; l++) {
            if (recompute) {
                fixed[c] = planner_add(fixed[c], planner_model_input_bytes(m, f->tokens));
                recompute--;
            } else {
                add_tensors(f, from + l, c, 0, &fixed[c]);
            }
        }
        if (at == 0) fixed[c] = planner_add(fixed[c], ids); /* token ids */
        if (at == end) {
            fixed[c] = planner_add(fixed[c], ids);                /* targets */
            add_tensors(f, m->shape.layers - 1, c, 1, &fixed[c]); /* as ranks report it */
        }
    }
}

static agoq_status fill_phases(const planner_model *m, uint32_t rank, const planner_parts *parts,
                               planner_stage *s) {
    const uint64_t extra = m->run.stage_extras ? m->run.stage_extras[rank] : 0;
    const uint64_t own = planner_add(planner_add(parts->weight_bytes, parts->grad_bytes),
                                     planner_add(parts->optimizer_bytes, m->run.context_bytes));
    const uint64_t state = planner_add(own, extra);
    const uint64_t larger =
        parts->layer_bytes > parts->logits_bytes ? parts->layer_bytes : parts->logits_bytes;
    for (int p = 0; p < AGOQ_N_PHASES; p++) s->phase[p].static_bytes = state;
    s->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes =
        planner_add(larger, planner_add(parts->receive_bytes, parts->gather_bytes));
    s->phase[AGOQ_PHASE_EXCHANGE].workspace_bytes = parts->exchange_bytes;
    s->phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes = parts->update_bytes;
    for (int p = 0; p < AGOQ_N_PHASES; p++) {
        if (planner_add(state, s->phase[p].workspace_bytes) > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
    }
    return AGOQ_OK;
}

agoq_status planner_model_build_stage(const planner_model *m, uint32_t rank, planner_item *items,
                                      uint64_t *fixed, planner_parts *parts, planner_stage *s) {
    const uint32_t v = m->run.chunks;
    filling f = {.m = m, .item = items, .tokens = planner_model_dims(m).tokens, .copies = copies_of(m)};
    memset(fixed, 0, v * sizeof *fixed);
    fill_chunks(&f, rank, fixed);
    *s = (planner_stage){.budget_bytes =
                             m->run.stage_budgets ? m->run.stage_budgets[rank] : m->run.budget_bytes,
                         .margin_ppm = m->run.margin_ppm,
                         .alloc_round_bytes = m->run.alloc_round_bytes,
                         .n_chunks = v,
                         .n_items = (uint32_t)(f.item - items),
                         .fixed_bytes = fixed,
                         .items = items};
    planner_model_fill_parts(m, rank, parts);
    for (uint32_t c = 0; c < v; c++) parts->fixed_bytes = planner_add(parts->fixed_bytes, fixed[c]);
    AGOQ_TRY(fill_phases(m, rank, parts, s));
    return parts->fixed_bytes > PLANNER_BYTES_LIMIT ? AGOQ_E_LIMIT : AGOQ_OK;
}

size_t planner_model_most_items(const planner_model *m) {
    return (size_t)copies_of(m) * (m->shape.layers + 1) * ITEMS_OF_LAYER;
}

static agoq_status fill_live(const planner_model *m, planner_model_problem *p) {
    const planner_run *r = &m->run;
    const planner_schedule schedule = {r->schedule, r->pp, r->microbatches, r->chunks, r->group, 0};
    if (r->no_live) return AGOQ_OK;
    AGOQ_TRY(planner_schedule_live(&schedule, PLANNER_HELD_TO_WEIGHT, &p->live));
    for (uint32_t s = 0; s < r->pp; s++) {
        p->stages[s].live = p->live.rows + (size_t)p->live.start[s] * p->live.n_columns;
        p->stages[s].n_live = p->live.start[s + 1] - p->live.start[s];
        p->live_units[s] = planner_live_units(p->stages[s].live, p->stages[s].n_live, r->chunks);
    }
    return AGOQ_OK;
}

agoq_status planner_model_build(const planner_model *model, planner_model_problem *out) {
    agoq_status status = AGOQ_E_NOMEM;
    planner_model_problem p = {0};
    if (!out || planner_model_check(model, NULL, 0)) return AGOQ_E_INVAL;
    const size_t n = model->run.pp, v = model->run.chunks;
    const int two_way = copies_of(model) > 1;
    p.stages = mem_zalloc(n, sizeof *p.stages);
    p.items = mem_zalloc(planner_model_most_items(model), sizeof *p.items);
    p.fixed = mem_zalloc(n * v, sizeof *p.fixed);
    p.parts = mem_zalloc(n, sizeof *p.parts);
    p.live_units = mem_zalloc(n, sizeof *p.live_units);
    p.optimizer_bytes = mem_zalloc(n, sizeof *p.optimizer_bytes);
    if (two_way && !(p.same_as = mem_alloc(n * sizeof *p.same_as))) goto out;
    if (!p.stages || !p.items || !p.fixed || !p.parts || !p.live_units || !p.optimizer_bytes) goto out;
    planner_item *items = p.items;
    for (uint32_t s = 0; s < n; s++) {
        if (two_way) p.same_as[s] = s < n - 1 - s ? s : (uint32_t)n - 1 - s;
        AGOQ_TRY_OUT(planner_model_build_stage(model, s, items, p.fixed + s * v, &p.parts[s], &p.stages[s]));
        p.optimizer_bytes[s] = p.parts[s].optimizer_bytes;
        items += p.stages[s].n_items;
    }
    AGOQ_TRY_OUT(fill_live(model, &p));
    p.problem = (planner_problem){
        .mode = model->run.mode, .n_stages = model->run.pp, .stages = p.stages, .same_as = p.same_as};
    *out = p;
    return AGOQ_OK;
out:
    planner_model_fini(&p);
    return status;
}

void planner_model_fini(planner_model_problem *p) {
    if (!p) return;
    mem_free(p->stages);
    mem_free(p->items);
    mem_free(p->fixed);
    mem_free(p->parts);
    mem_free(p->live_units);
    mem_free(p->optimizer_bytes);
    mem_free(p->same_as);
    planner_live_set_fini(&p->live);
    *p = (planner_model_problem){0};
}
