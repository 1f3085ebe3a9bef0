/* Items of a stage sorted into kinds: what cannot be told apart but by layer and role is one line with a
 * count, so that the solver's work depends on how many different tensors a stage has, not on how many. Sizes
 * are computed once per kind, and everything that is summed over items is summed over kinds. A hash table
 * keeps this linear; most items are found without it, since they are like the last one of their role. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

#define NO_KIND UINT32_MAX

void planner_space_fini(planner_space *space) {
    knap_space_fini(&space->knap);
    mem_free(space->kinds);
    mem_free(space->items);
    mem_free(space->kind_of);
    mem_free(space->slots);
    mem_free(space->bits);
    mem_free(space->knap_items);
    mem_free(space->group);
    mem_free(space->hints);
    mem_free(space->taken);
    mem_free(space->rows);
    mem_free(space->coef);
    mem_free(space->capacity);
    *space = (planner_space){0};
}

agoq_status planner_space_init(planner_space *space, uint32_t most_items, uint32_t most_rows,
                               size_t most_cells) {
    planner_space s = {.n_slots = 16};
    const uint32_t n = most_items ? most_items : 1, rows = most_rows ? most_rows : 1;
    while (s.n_slots < 2 * n) s.n_slots *= 2;
    s.kinds = mem_alloc(n * sizeof *s.kinds);
    s.items = mem_alloc(n * sizeof *s.items);
    s.kind_of = mem_alloc(n * sizeof *s.kind_of);
    s.slots = mem_alloc(s.n_slots * sizeof *s.slots);
    s.bits = mem_alloc(n);
    s.knap_items = mem_alloc(n * sizeof *s.knap_items);
    s.group = mem_alloc(n * sizeof *s.group);
    s.hints = mem_alloc((size_t)n * AGOQ_N_WIDTHS);
    s.taken = mem_alloc((size_t)n * KNAP_OPTIONS * sizeof *s.taken);
    s.rows = mem_alloc(rows * sizeof *s.rows);
    s.coef = mem_alloc((most_cells ? most_cells : 1) * sizeof *s.coef);
    s.capacity = mem_alloc(rows * sizeof *s.capacity);
    const int all = s.kinds && s.items && s.kind_of && s.slots && s.bits && s.knap_items && s.group &&
                    s.hints && s.taken && s.rows && s.coef && s.capacity;
    if (!all) {
        planner_space_fini(&s);
        return AGOQ_E_NOMEM;
    }
    *space = s;
    return AGOQ_OK;
}

static int same_shape(const planner_kind *k, const planner_item *item) {
    return k->rows == item->rows && k->cols == item->cols && k->tensors == item->count;
}

static int same_kind(const planner_kind *k, const planner_item *item, const double *error) {
    return same_shape(k, item) && k->chunk == item->chunk && k->all_widths == item->widths &&
           k->error == error &&
           (k->sensitivity == item->sensitivity || (isinf(k->sensitivity) && isnan(item->sensitivity)));
}

static uint32_t hash_of(const planner_item *item) {
    uint64_t bits, h;
    const double sensitivity = isnan(item->sensitivity) ? INFINITY : item->sensitivity + 0.0;
    memcpy(&bits, &sensitivity, sizeof bits);
    h = bits ^ (uint64_t)item->cols * 0x9e3779b97f4a7c15ull ^ (uint64_t)item->rows << 40 ^
        (uint64_t)item->count << 20 ^ (uint64_t)item->widths << 8 ^ item->chunk;
    h = (h ^ h >> 32) * 0x94d049bb133111ebull;
    return (uint32_t)(h >> 32);
}

/* Of a tensor that has no padding. */
static double width_size(int w) {
    agoq_layout layout;
    return agoq_layout_make(agoq_width_bits(w), AGOQ_BLOCK, AGOQ_BLOCK, &layout) ? 0 : (double)layout.bytes;
}

uint32_t planner_above_hull(const double *error, uint32_t widths, int dominated_only) {
    double size[AGOQ_N_WIDTHS];
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) size[w] = width_size(w);
    uint32_t above = 0;
    int kept[AGOQ_N_WIDTHS] = {0}, n = 0;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if (!(widths >> w & 1)) continue;
        if (n && !(error[w] < error[kept[n - 1]])) {
            above |= 1u << w;
            continue;
        }
        while (!dominated_only && n > 1) {
            const int a = kept[n - 2], b = kept[n - 1];
            if ((error[a] - error[b]) * (size[w] - size[b]) >= (error[b] - error[w]) * (size[b] - size[a]))
                break;
            above |= 1u << b;
            n--;
        }
        kept[n++] = w;
    }
    return above;
}

static agoq_status make_kind(const planner_stage *stage, const planner_item *item, const planner_kind *like,
                             planner_kind *k) {
    *k = (planner_kind){.error = planner_errors_of(stage, item->role),
                        .sensitivity = isnan(item->sensitivity) ? INFINITY : item->sensitivity,
                        .rows = item->rows,
                        .cols = item->cols,
                        .widths = item->widths,
                        .all_widths = item->widths,
                        .tensors = item->count,
                        .chunk = item->chunk};
    if (like && same_shape(like, item)) {
        memcpy(k->bytes, like->bytes, sizeof k->bytes);
        return AGOQ_OK;
    }
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        k->bytes[w] = planner_item_bytes(item, agoq_width_bits(w), stage->alloc_round_bytes);
        if (k->bytes[w] > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
    }
    return AGOQ_OK;
}

static void finish_kind(planner_kind *k, uint32_t above, int hull_only) {
    int least = -1;
    if (hull_only) k->widths &= ~above;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if (!(k->widths >> w & 1)) continue;
        /* Rounding can make widths equal in size: then the better one is free. */
        if (least < 0 || k->bytes[w] < k->bytes[least] ||
            (k->bytes[w] == k->bytes[least] && k->error[w] <= k->error[least]))
            least = w;
    }
    k->least = (uint8_t)least;
}

static agoq_status check_sums(const planner_space *space, const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < space->n_kinds; i++) {
        const planner_kind *k = &space->kinds[i];
        uint64_t most = 0;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) most = k->bytes[w] > most ? k->bytes[w] : most;
        if (most > PLANNER_BYTES_LIMIT / k->n) return AGOQ_E_LIMIT;
        chunk[k->chunk] += most * k->n;
        if (chunk[k->chunk] > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
    }
    return planner_check_rows(stage, chunk);
}

agoq_status planner_kinds_make(planner_space *space, const planner_stage *stage, int hull_only,
                               uint8_t *dropped) {
    uint32_t last[AGOQ_N_ROLES];
    for (int r = 0; r < AGOQ_N_ROLES; r++) last[r] = NO_KIND;
    space->n_kinds = 0;
    AGOQ_TRY(planner_check_scalars(stage));
    uint32_t mask = 15;
    while (mask < 2 * stage->n_items) mask = 2 * mask + 1;
    if (mask >= space->n_slots) mask = space->n_slots - 1;
    memset(space->slots, 0xff, (mask + (size_t)1) * sizeof *space->slots);
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        AGOQ_TRY(planner_item_check(stage, item));
        const double *error = planner_errors_of(stage, item->role);
        const uint32_t near = last[item->role];
        uint32_t found = near;
        if (near == NO_KIND || !same_kind(&space->kinds[near], item, error)) {
            uint32_t at = hash_of(item) & mask;
            while (space->slots[at] != NO_KIND && !same_kind(&space->kinds[space->slots[at]], item, error))
                at = (at + 1) & mask;
            found = space->slots[at];
            if (found == NO_KIND) {
                found = space->slots[at] = space->n_kinds++;
                planner_kind *k = &space->kinds[found];
                AGOQ_TRY(make_kind(stage, item, near == NO_KIND ? NULL : &space->kinds[near], k));
                finish_kind(k, planner_above_hull(error, k->widths, 0), hull_only);
                dropped[item->role] |= (uint8_t)planner_above_hull(error, k->all_widths, !hull_only);
            }
            last[item->role] = found;
        }
        space->kinds[found].n++;
        space->kind_of[i] = found;
    }
    return check_sums(space, stage);
}

void planner_kinds_least(const planner_space *space, const planner_stage *stage, uint64_t *chunk) {
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < space->n_kinds; i++) {
        const planner_kind *k = &space->kinds[i];
        chunk[k->chunk] += k->bytes[k->least] * k->n;
    }
}

void planner_kinds_measure(const planner_space *space, const planner_stage *stage,
                           planner_stage_result *result) {
    planner_stage_result r = {0};
    uint64_t chunk[PLANNER_MAX_CHUNKS], chunk16[PLANNER_MAX_CHUNKS];
    double elements = 0, weighted = 0;
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = chunk16[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < space->n_kinds; i++) {
        const planner_kind *k = &space->kinds[i];
        const double n = (double)k->tensors * (double)k->rows * (double)k->cols;
        const int choice = (k->all_widths & (k->all_widths - 1)) != 0;
        chunk16[k->chunk] += k->bytes[AGOQ_N_WIDTHS - 1] * k->n;
        if (choice) elements += n * k->n;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (!k->taken[w]) continue;
            chunk[k->chunk] += k->bytes[w] * k->taken[w];
            if (k->error[w] > 0) r.objective += k->taken[w] * (k->sensitivity * k->error[w]);
            if (choice) weighted += n * k->taken[w] * agoq_width_bits(w);
        }
    }
    r.activation_peak_bytes = planner_rows_peak(stage, chunk, &r.binding_live);
    r.activation_peak_bytes16 = planner_rows_peak(stage, chunk16, NULL);
    r.predicted_peak_bytes = planner_total_peak(stage, r.activation_peak_bytes);
    const uint64_t available = planner_available(stage);
    if (r.predicted_peak_bytes <= available)
        r.slack_bytes = available - r.predicted_peak_bytes;
    else
        r.overshoot_bytes = r.predicted_peak_bytes - available;
    r.lower_bound = r.objective;
    r.bits_mean = elements > 0 ? weighted / elements : 0;
    *result = r;
}

static void take_widest(planner_space *space, uint32_t item) {
    planner_kind *k = &space->kinds[space->kind_of[item]];
    int w = AGOQ_N_WIDTHS - 1;
    while (w > 0 && !k->taken[w]) w--;
    k->taken[w]--;
    space->bits[item] = (uint8_t)agoq_width_bits(w);
}

void planner_spread(planner_space *space, const planner_stage *stage, const plan *previous) {
    if (!previous) {
        for (uint32_t i = 0; i < stage->n_items; i++) take_widest(space, i);
        return;
    }
    for (uint32_t i = 0; i < stage->n_items; i++)
        space->bits[i] = (uint8_t)plan_bits(previous, stage->items[i].layer, stage->items[i].role);
    /* The former widths from the widest down, then items that had none; a done item is marked by bit 7. */
    for (int h = AGOQ_N_WIDTHS - 1; h >= -1; h--) { /* an index of no width has 0 bits */
        for (uint32_t i = 0; i < stage->n_items; i++) {
            if (space->bits[i] != agoq_width_bits(h)) continue;
            take_widest(space, i);
            space->bits[i] |= 0x80;
        }
    }
    for (uint32_t i = 0; i < stage->n_items; i++) space->bits[i] &= 0x7f;
}
