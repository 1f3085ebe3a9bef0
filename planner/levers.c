/* What would make an overshooting stage fit, by how much each lever would help, and what it would cost in
 * time. Sizes are of the model that the planner knows: activations are counted exactly; what the weights of a
 * layer take is known only where the problem says so (layer_static_bytes), else they are left out of what the
 * source saves and charged to the destination as an equal share of its static bytes. Both err on the safe
 * side. Times are estimates for ranking, per micro-batch, with the rates of internal.h: a recomputed layer
 * costs its forward pass, an offloaded one its way out and back as if nothing hid it, a moved one its forward
 * and backward (twice as long) on what is then the slower stage; holding fewer micro-batches leaves the stage
 * idle in proportion. */
#include <stdlib.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

#define MARGIN_WITH_SEGMENTS 100000u /* ppm; without expandable segments twice that is common */

typedef struct layer_bytes {
    uint32_t layer, chunk;
    uint64_t bytes;   /* all items at least width, one micro-batch */
    uint64_t input;   /* the layer's input at 16 bits: what recomputation keeps; 0 if no item is the input */
    uint64_t gate_up; /* of bytes */
    uint64_t drop, transient,
        weight; /* of the lever at work: dropped, held by one layer at a time; drop in the binding row */
    double forward_ms, ffn1_ms;
} layer_bytes;

typedef struct lever_case {
    const planner_problem *problem;
    const uint64_t *rooms; /* [n_stages]: what each leaves free at its least widths */
    const planner_stage *stage;
    uint32_t binding;
    uint64_t chunk[PLANNER_MAX_CHUNKS]; /* at least widths */
    uint64_t peak, available;
    layer_bytes *layers;
    uint32_t n_layers;
    planner_stage_result *result;
} lever_case;

static uint64_t least_bytes(const planner_stage *stage, const planner_item *item) {
    return planner_item_bytes(item, planner_least_bits(stage, item), stage->alloc_round_bytes);
}

void planner_lever_add(planner_stage_result *result, planner_lever lever) {
    uint32_t at = 0;
    while (at < result->n_levers &&
           (result->levers[at].kind != lever.kind || result->levers[at].role != lever.role))
        at++;
    if (!lever.saves_bytes || at == PLANNER_MAX_LEVERS) return;
    result->levers[at] = lever;
    if (at == result->n_levers) result->n_levers++;
}

static int by_use(const void *a, const void *b) {
    const planner_lever *x = a, *y = b;
    if (x->enough != y->enough) return x->enough ? -1 : 1;
    if (x->cost_ms != y->cost_ms) return x->cost_ms < y->cost_ms ? -1 : 1;
    if (x->kind != y->kind) return x->kind < y->kind ? -1 : 1;
    return x->role - y->role;
}

void planner_levers_sort(planner_stage_result *result) {
    if (result->n_levers) qsort(result->levers, result->n_levers, sizeof *result->levers, by_use);
}

static void add_lever(lever_case *c, planner_lever_kind kind, int32_t amount, int32_t to, int32_t role,
                      uint64_t peak, double cost_ms) {
    if (peak >= c->peak) return;
    planner_lever_add(c->result, (planner_lever){.kind = kind,
                                                 .amount = amount,
                                                 .to = to,
                                                 .role = role,
                                                 .saves_bytes = c->peak - peak,
                                                 .enough = peak <= c->available,
                                                 .cost_ms = cost_ms});
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
    const planner_item *x = a, *y = b;
    if (x->layer != y->layer) return x->layer < y->layer ? -1 : 1;
    return (int)x->role - (int)y->role;
}

static double product_ms(double rows, double a, double b) {
    return 2e3 * rows * a * b / PLANNER_LEVER_FLOPS;
}

/* One layer from its items; those without an input are no decoder layers. */
static void read_layer(const planner_stage *s, const planner_item *items, uint32_t n, layer_bytes *l) {
    double hidden = 0, rows = 0, ffn = 0, gate_up = 0, out = 0, qkv = 0;
    *l = (layer_bytes){.layer = items[0].layer, .chunk = items[0].chunk};
    for (uint32_t i = 0; i < n; i++) {
        const uint64_t bytes = least_bytes(s, &items[i]);
        const double cols = (double)items[i].cols;
        if (items[i].role == AGOQ_ROLE_FINAL_NORM_IN) continue; /* the end of the model has its number */
        l->bytes += bytes;
        switch (items[i].role) {
        case AGOQ_ROLE_ATTN_NORM_IN:
            l->input += planner_item_bytes(&items[i], 16, s->alloc_round_bytes);
            hidden = cols;
            break;
        case AGOQ_ROLE_MLP_GATE_UP:
            l->gate_up += bytes;
            ffn = cols;
            gate_up = cols * items[i].count;
            rows = (double)items[i].rows;
            break;
        case AGOQ_ROLE_ATTN_OUT:
            out = cols;
            break;
        case AGOQ_ROLE_ATTN_QKV:
            qkv = cols * items[i].count;
            break;
        default:
            break;
        }
    }
    l->ffn1_ms = product_ms(rows, hidden, gate_up);
    l->forward_ms = product_ms(rows, hidden, gate_up + ffn + out + qkv);
}

/* Decoder layers of the stage. */
static agoq_status find_layers(lever_case *c) {
    const planner_stage *s = c->stage;
    planner_item *items = mem_alloc((s->n_items ? s->n_items : 1) * sizeof *items);
    c->layers = mem_zalloc(s->n_items, sizeof *c->layers);
    if (!c->layers || !items) {
        mem_free(items);
        return AGOQ_E_NOMEM; /* layers are the caller's to free */
    }
    if (s->n_items) memcpy(items, s->items, s->n_items * sizeof *items);
    if (s->n_items) qsort(items, s->n_items, sizeof *items, by_layer);
    for (uint32_t i = 0, n; i < s->n_items; i += n) {
        for (n = 1; i + n < s->n_items && items[i + n].layer == items[i].layer;) n++;
        read_layer(s, items + i, n, &c->layers[c->n_layers]);
        if (c->layers[c->n_layers].input) c->n_layers++;
    }
    mem_free(items);
    (void)planner_rows_peak(s, c->chunk, &c->binding);
    return AGOQ_OK;
}

static void order_layers(lever_case *c) {
    const planner_stage *s = c->stage;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        layer_bytes *l = &c->layers[i];
        l->weight = s->n_live ? l->drop * s->live[(size_t)c->binding * s->n_chunks + l->chunk] : 0;
    }
    if (c->n_layers) qsort(c->layers, c->n_layers, sizeof *c->layers, by_weight);
}

/* k layers keep less; one of them at a time is whole again in backward. */
static void drop_layers(lever_case *c, planner_lever_kind kind) {
    uint64_t chunk[PLANNER_MAX_CHUNKS], transient = 0, best = c->peak;
    int32_t amount = 0;
    double ms = 0, cost_ms = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) {
        layer_bytes *l = &c->layers[i];
        l->drop = l->bytes;
        l->transient = l->bytes;
        if (kind == PLANNER_LEVER_RECOMPUTE_LAYERS) l->drop = l->bytes > l->input ? l->bytes - l->input : 0;
        if (kind == PLANNER_LEVER_RECOMPUTE_GATE_UP) l->drop = l->transient = l->gate_up;
        if (kind == PLANNER_LEVER_OFFLOAD_LAYERS) l->transient = 2 * l->bytes; /* one goes while one comes */
    }
    order_layers(c);
    memcpy(chunk, c->chunk, sizeof chunk);
    for (uint32_t k = 0; k < c->n_layers; k++) { /* other rows may bind once these are dropped */
        const layer_bytes *l = &c->layers[k];
        chunk[l->chunk] -= l->drop;
        if (l->transient > transient) transient = l->transient;
        ms += kind == PLANNER_LEVER_RECOMPUTE_LAYERS    ? l->forward_ms
              : kind == PLANNER_LEVER_RECOMPUTE_GATE_UP ? l->ffn1_ms
                                                        : 2e3 * (double)l->bytes / PLANNER_LEVER_HOST;
        const uint64_t peak = peak_with(c, chunk, transient);
        if (peak < best) {
            best = peak;
            amount = (int32_t)k + 1;
            cost_ms = ms;
        }
        if (peak <= c->available) break;
    }
    add_lever(c, kind, amount, -1, -1, best, cost_ms);
}

static uint64_t room_of(const planner_stage *stage) {
    const uint64_t peak = planner_least_peak(stage), available = planner_available(stage);
    return peak < available ? available - peak : 0;
}

/* What moves moves to every stage that holds the same tensors. */
static uint32_t group_of(const planner_problem *problem, uint32_t stage) {
    return problem->same_as ? problem->same_as[stage] : stage;
}

static uint64_t most_live(const planner_problem *problem, uint32_t group) {
    uint64_t most = 0;
    for (uint32_t t = 0; t < problem->n_stages; t++) {
        const planner_stage *stage = &problem->stages[t];
        const size_t n = group_of(problem, t) == group ? (size_t)stage->n_live * stage->n_chunks : 0;
        for (size_t i = 0; i < n; i++) most = stage->live[i] > most ? stage->live[i] : most;
    }
    return most;
}

/* The least room of each stage and of those that share its tensors. */
static uint64_t *find_rooms(const planner_problem *problem) {
    uint64_t *rooms = mem_alloc(problem->n_stages * sizeof *rooms);
    for (uint32_t t = 0; rooms && t < problem->n_stages; t++) {
        const uint32_t g = group_of(problem, t);
        rooms[t] = room_of(&problem->stages[t]);
        if (rooms[t] < rooms[g]) rooms[g] = rooms[t];
    }
    return rooms;
}

static int32_t roomiest(const lever_case *c, uint64_t *room) {
    int32_t to = -1;
    *room = 0;
    for (uint32_t t = 0; t < c->problem->n_stages; t++) {
        if (group_of(c->problem, t) != t || c->rooms[t] <= *room) continue; /* none where it came from */
        *room = c->rooms[t];
        to = (int32_t)t;
    }
    return to;
}

static void move_layers(lever_case *c) {
    uint64_t chunk[PLANNER_MAX_CHUNKS], room, load = 0, best = c->peak, share = 0;
    planner_stage left = *c->stage;
    int32_t amount = 0;
    double cost_ms = 0;
    const int32_t to = roomiest(c, &room);
    if (to < 0 || c->n_layers < 2) return;
    for (int p = 0; p < AGOQ_N_PHASES; p++)
        share = c->stage->phase[p].static_bytes > share ? c->stage->phase[p].static_bytes : share;
    share = c->stage->layer_static_bytes ? c->stage->layer_static_bytes : share / c->n_layers;
    const uint64_t most = most_live(c->problem, (uint32_t)to);
    for (uint32_t i = 0; i < c->n_layers; i++) c->layers[i].drop = c->layers[i].bytes;
    order_layers(c);
    memcpy(chunk, c->chunk, sizeof chunk);
    for (uint32_t k = 0; k + 1 < c->n_layers; k++) {
        const layer_bytes *l = &c->layers[k];
        load += l->bytes * most + share;
        if (load > room) break;
        chunk[l->chunk] -= l->bytes;
        for (int p = 0; p < AGOQ_N_PHASES; p++) {
            const uint64_t known = c->stage->layer_static_bytes;
            left.phase[p].static_bytes -= left.phase[p].static_bytes < known ? 0 : known;
        }
        best = planner_total_peak(&left, planner_rows_peak(&left, chunk, NULL));
        amount = (int32_t)k + 1;
        cost_ms += 3 * l->forward_ms;
        if (best <= c->available) break;
    }
    add_lever(c, PLANNER_LEVER_MOVE_LAYERS, amount, to, -1, best, cost_ms);
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
    double ms = 0;
    for (uint32_t i = 0; i < c->n_layers; i++) ms += 3 * c->layers[i].forward_ms;
    add_lever(c, PLANNER_LEVER_FEWER_LIVE, (int32_t)low, -1, -1, peak_with_fewer(c, low),
              ms * low / (units - low));
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
        add_lever(c, PLANNER_LEVER_LOWER_PIN, width, -1, role, peak_with(c, chunk, 0), 0);
    }
}

/* Less is lost between blocks, so a smaller margin will do; that helps whatever overshoots. */
static void expandable_segments(lever_case *c) {
    planner_stage s = *c->stage;
    if (s.budget_bytes == PLANNER_NO_BUDGET || s.margin_ppm <= MARGIN_WITH_SEGMENTS) return;
    s.margin_ppm = MARGIN_WITH_SEGMENTS;
    const uint64_t more = planner_available(&s) - c->available;
    planner_lever_add(c->result, (planner_lever){.kind = PLANNER_LEVER_EXPANDABLE_SEGMENTS,
                                                 .amount = MARGIN_WITH_SEGMENTS,
                                                 .to = -1,
                                                 .role = -1,
                                                 .saves_bytes = more,
                                                 .enough = c->peak - c->available <= more});
}

static agoq_status levers_of(const planner_problem *problem, uint32_t index, const uint64_t *rooms,
                             planner_stage_result *result) {
    lever_case c = {.problem = problem, .rooms = rooms, .stage = &problem->stages[index], .result = result};
    result->n_levers = 0;
    for (uint32_t k = 0; k < c.stage->n_chunks; k++) c.chunk[k] = c.stage->fixed_bytes[k];
    for (uint32_t i = 0; i < c.stage->n_items; i++)
        c.chunk[c.stage->items[i].chunk] += least_bytes(c.stage, &c.stage->items[i]);
    c.peak = peak_with(&c, c.chunk, 0);
    c.available = planner_available(c.stage);
    const agoq_status status = find_layers(&c);
    if (status == AGOQ_OK) {
        drop_layers(&c, PLANNER_LEVER_RECOMPUTE_LAYERS);
        drop_layers(&c, PLANNER_LEVER_RECOMPUTE_GATE_UP);
        drop_layers(&c, PLANNER_LEVER_OFFLOAD_LAYERS);
        move_layers(&c);
        fewer_live(&c);
        lower_pin(&c);
        expandable_segments(&c);
        planner_levers_sort(result);
    }
    mem_free(c.layers);
    return status;
}

agoq_status planner_levers(const planner_problem *problem, planner_result *result) {
    uint64_t *rooms = NULL;
    agoq_status status = AGOQ_OK;
    for (uint32_t s = 0; s < problem->n_stages && status == AGOQ_OK; s++) {
        if (!result->stages[s].overshoot_bytes) continue;
        if (!rooms && !(rooms = find_rooms(problem))) return AGOQ_E_NOMEM;
        status = levers_of(problem, s, rooms, &result->stages[s]);
    }
    mem_free(rooms);
    return status;
}
