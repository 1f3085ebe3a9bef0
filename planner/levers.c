/* What would make an overshooting stage fit, and by how much each lever would help. Sizes are of the model
 * that the planner knows: activations are counted exactly; weights that move with a layer are not attributed
 * to layers in the problem, so they are left out of what the source saves and charged to the destination as
 * an equal share of the source's static bytes. Both err on the safe side. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

typedef struct layer_bytes {
    uint32_t layer, chunk;
    uint64_t bytes;  /* all items at least width, one micro-batch */
    uint64_t input;  /* the layer's input at 16 bits: what recomputation keeps; 0 if no item is the input */
    uint64_t weight; /* saving by recomputing it, in the binding row */
} layer_bytes;

typedef struct lever_case {
    const planner_problem *problem;
    const planner_stage *stage;
    uint32_t index;
    uint64_t chunk[PLANNER_MAX_CHUNKS]; /* at least widths */
    uint64_t peak, available;
    layer_bytes *layers;
    uint32_t n_layers;
    planner_stage_result *result;
} lever_case;

static uint64_t least_bytes(const planner_stage *stage, const planner_item *item) {
    return planner_item_bytes(item, planner_least_bits(stage, item), stage->alloc_round_bytes);
}

static void add_lever(lever_case *c, planner_lever_kind kind, int32_t amount, int32_t to, int32_t role,
                      uint64_t peak) {
    if (peak >= c->peak || c->result->n_levers == PLANNER_MAX_LEVERS) return;
    c->result->levers[c->result->n_levers++] =
        (planner_lever){kind, amount, to, role, c->peak - peak, peak <= c->available};
}

static uint64_t peak_with(const lever_case *c, const uint64_t *chunk, uint64_t transient) {
    return planner_total_peak(c->stage, planner_rows_peak(c->stage, chunk, NULL) + transient);
}

static int by_weight(const void *a, const void *b) {
    const layer_bytes *x = a, *y = b;
    if (x->weight != y->weight) return x->weight > y->weight ? -1 : 1;
    return x->layer > y->layer ? -1 : x->layer < y->layer;
}

static int by_layer(const void *a, const void *b) {
    const layer_bytes *x = a, *y = b;
    return x->layer < y->layer ? -1 : x->layer > y->layer;
}

/* Decoder layers of the stage, in the order in which recomputing them pays. */
static agoq_status find_layers(lever_case *c) {
    const planner_stage *s = c->stage;
    uint32_t n = 0, binding = 0;
    c->layers = mem_zalloc(s->n_items, sizeof *c->layers);
    if (!c->layers) return AGOQ_E_NOMEM;
    for (uint32_t i = 0; i < s->n_items; i++) {
        const planner_item *item = &s->items[i];
        const int is_input = item->role == AGOQ_ROLE_ATTN_NORM_IN;
        c->layers[i] = (layer_bytes){item->layer, item->chunk, least_bytes(s, item),
                                     is_input ? planner_item_bytes(item, 16, s->alloc_round_bytes) : 0, 0};
    }
    if (s->n_items) qsort(c->layers, s->n_items, sizeof *c->layers, by_layer);
    for (uint32_t i = 0; i < s->n_items; i++) {
        if (n && c->layers[n - 1].layer == c->layers[i].layer) {
            c->layers[n - 1].bytes += c->layers[i].bytes;
            c->layers[n - 1].input += c->layers[i].input;
        } else {
            c->layers[n++] = c->layers[i];
        }
    }
    (void)planner_rows_peak(s, c->chunk, &binding);
    for (uint32_t i = 0; i < n; i++) {
        layer_bytes *l = &c->layers[i];
        if (!l->input || l->bytes <= l->input || !s->n_live) continue;
        l->weight = (l->bytes - l->input) * s->live[(size_t)binding * s->n_chunks + l->chunk];
        c->layers[c->n_layers++] = *l;
    }
    if (c->n_layers) qsort(c->layers, c->n_layers, sizeof *c->layers, by_weight);
    return AGOQ_OK;
}

/* k layers keep only their input, in 16 bits; one of them at a time is whole again in backward. */
static void recompute(lever_case *c) {
    uint64_t chunk[PLANNER_MAX_CHUNKS], transient = 0, best = c->peak;
    int32_t amount = 0;
    memcpy(chunk, c->chunk, sizeof chunk);
    for (uint32_t k = 0; k < c->n_layers; k++) {
        const layer_bytes *l = &c->layers[k];
        chunk[l->chunk] -= l->bytes - l->input;
        if (l->bytes > transient) transient = l->bytes;
        const uint64_t peak = peak_with(c, chunk, transient);
        if (peak < best) {
            best = peak;
            amount = (int32_t)k + 1;
        }
        if (peak <= c->available) break;
    }
    add_lever(c, PLANNER_LEVER_RECOMPUTE_LAYERS, amount, -1, -1, best);
}

static uint64_t room_of(const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    for (uint32_t k = 0; k < stage->n_chunks; k++) chunk[k] = stage->fixed_bytes[k];
    for (uint32_t i = 0; i < stage->n_items; i++)
        chunk[stage->items[i].chunk] += least_bytes(stage, &stage->items[i]);
    const uint64_t peak = planner_total_peak(stage, planner_rows_peak(stage, chunk, NULL));
    const uint64_t available = planner_available(stage);
    return peak < available ? available - peak : 0;
}

static uint64_t most_live(const planner_stage *stage) {
    uint64_t most = 0;
    for (size_t i = 0; i < (size_t)stage->n_live * stage->n_chunks; i++)
        most = stage->live[i] > most ? stage->live[i] : most;
    return most;
}

static void move_layers(lever_case *c) {
    uint64_t chunk[PLANNER_MAX_CHUNKS], most = 0, room = 0, load = 0, best = c->peak, share = 0;
    int32_t to = -1, amount = 0;
    for (uint32_t t = 0; t < c->problem->n_stages; t++) {
        const uint64_t here = t == c->index ? 0 : room_of(&c->problem->stages[t]);
        if (here <= room) continue;
        room = here;
        to = (int32_t)t;
    }
    if (to < 0 || c->n_layers < 2) return;
    for (int p = 0; p < AGOQ_N_PHASES; p++)
        share = c->stage->phase[p].static_bytes > share ? c->stage->phase[p].static_bytes : share;
    share /= c->n_layers;
    most = most_live(&c->problem->stages[to]);
    memcpy(chunk, c->chunk, sizeof chunk);
    for (uint32_t k = 0; k + 1 < c->n_layers; k++) {
        const layer_bytes *l = &c->layers[k];
        load += l->bytes * most + share;
        if (load > room) break;
        chunk[l->chunk] -= l->bytes;
        best = peak_with(c, chunk, 0);
        amount = (int32_t)k + 1;
        if (best <= c->available) break;
    }
    add_lever(c, PLANNER_LEVER_MOVE_LAYERS, amount, to, -1, best);
}

/* Takes `fewer` micro-batches out of every row, from the chunks where that helps least. */
static uint64_t peak_with_fewer(const lever_case *c, uint32_t fewer) {
    const planner_stage *s = c->stage;
    uint64_t peak = 0;
    for (uint32_t r = 0; r < s->n_live; r++) {
        uint32_t live[PLANNER_MAX_CHUNKS], left = fewer;
        uint64_t sum = 0;
        memcpy(live, s->live + (size_t)r * s->n_chunks, s->n_chunks * sizeof *live);
        while (left) {
            uint32_t least = s->n_chunks;
            for (uint32_t k = 0; k < s->n_chunks; k++) {
                if (live[k] && (least == s->n_chunks || c->chunk[k] < c->chunk[least])) least = k;
            }
            if (least == s->n_chunks) break;
            const uint32_t taken = live[least] < left ? live[least] : left;
            live[least] -= taken;
            left -= taken;
        }
        for (uint32_t k = 0; k < s->n_chunks; k++) sum += live[k] * c->chunk[k];
        if (sum > peak) peak = sum;
    }
    return planner_total_peak(s, peak);
}

static void fewer_live(lever_case *c) {
    const uint32_t units = planner_live_units(c->stage->live, c->stage->n_live, c->stage->n_chunks);
    if (units < 2) return;
    uint32_t low = 1, high = units - 1; /* at least one stays; the peak falls with every one less */
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        if (peak_with_fewer(c, middle) <= c->available)
            high = middle;
        else
            low = middle + 1;
    }
    add_lever(c, PLANNER_LEVER_FEWER_LIVE, (int32_t)low, -1, -1, peak_with_fewer(c, low));
}

/* Pins that DESIGN allows to be lower: Q, K, V at 8; planned roles at 4. */
static int lower_width(int role) {
    switch (role) {
    case AGOQ_ROLE_ATTN_QKV:
    case AGOQ_ROLE_QK_NORM_IN:
    case AGOQ_ROLE_ATTN_OUT:
    case AGOQ_ROLE_FINAL_NORM_IN:
    case AGOQ_ROLE_LINEAR_IN:
        return 8;
    case AGOQ_ROLE_ATTN_NORM_IN:
    case AGOQ_ROLE_MLP_NORM_IN:
    case AGOQ_ROLE_MLP_GATE_UP:
        return 4;
    default:
        return 16;
    }
}

static void lower_pin(lever_case *c) {
    const planner_stage *s = c->stage;
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        uint64_t chunk[PLANNER_MAX_CHUNKS];
        const int width = lower_width(role);
        memcpy(chunk, c->chunk, sizeof chunk);
        for (uint32_t i = 0; i < s->n_items; i++) {
            const planner_item *item = &s->items[i];
            if (item->role != role || planner_least_bits(s, item) <= width) continue;
            const uint64_t now = least_bytes(s, item),
                           lower = planner_item_bytes(item, width, s->alloc_round_bytes);
            if (lower < now) chunk[item->chunk] -= now - lower;
        }
        add_lever(c, PLANNER_LEVER_LOWER_PIN, width, -1, role, peak_with(c, chunk, 0));
    }
}

static int enough_first(const void *a, const void *b) {
    const planner_lever *x = a, *y = b;
    if (x->enough != y->enough) return x->enough ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return x->role - y->role;
}

agoq_status planner_levers(const planner_problem *problem, uint32_t index, planner_stage_result *result) {
    lever_case c = {.problem = problem, .stage = &problem->stages[index], .index = index, .result = result};
    result->n_levers = 0;
    for (uint32_t k = 0; k < c.stage->n_chunks; k++) c.chunk[k] = c.stage->fixed_bytes[k];
    for (uint32_t i = 0; i < c.stage->n_items; i++)
        c.chunk[c.stage->items[i].chunk] += least_bytes(c.stage, &c.stage->items[i]);
    c.peak = peak_with(&c, c.chunk, 0);
    c.available = planner_available(c.stage);
    AGOQ_TRY(find_layers(&c));
    recompute(&c);
    move_layers(&c);
    fewer_live(&c);
    lower_pin(&c);
    mem_free(c.layers);
    if (result->n_levers) qsort(result->levers, result->n_levers, sizeof *result->levers, enough_first);
    return AGOQ_OK;
}
