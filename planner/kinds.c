/* Items of a stage sorted into classes (all alike but for layer, role and sensitivity) and, within these,
 * kinds of the same sensitivity, so that the solver's work depends on how many different tensors a stage has,
 * not on how many. Sizes are computed once per class; everything that is summed over items is summed over
 * classes or kinds. Hash tables keep this linear; most items find their class without, since they are like
 * the last one of their role. */
#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

#define NONE UINT32_MAX

void planner_space_fini(planner_space *space) {
    knap_space_fini(&space->knap);
    mem_free(space->classes);
    mem_free(space->kinds);
    mem_free(space->items);
    mem_free(space->kind_of);
    mem_free(space->slots);
    mem_free(space->bits);
    mem_free(space->options);
    mem_free(space->width);
    mem_free(space->knap_items);
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
    s.classes = mem_alloc(n * sizeof *s.classes);
    s.kinds = mem_alloc(n * sizeof *s.kinds);
    s.items = mem_alloc(n * sizeof *s.items);
    s.kind_of = mem_alloc(n * sizeof *s.kind_of);
    s.slots = mem_alloc(2 * (size_t)s.n_slots * sizeof *s.slots);
    s.bits = mem_alloc(n);
    s.options = mem_alloc(2 * (size_t)n * sizeof *s.options); /* classes, and kinds apart from them */
    s.width = mem_alloc(2 * (size_t)n * AGOQ_N_WIDTHS);
    s.knap_items = mem_alloc(n * sizeof *s.knap_items);
    s.taken = mem_alloc((size_t)n * KNAP_OPTIONS * sizeof *s.taken);
    s.rows = mem_alloc(rows * sizeof *s.rows);
    s.coef = mem_alloc((most_cells ? most_cells : 1) * sizeof *s.coef);
    s.capacity = mem_alloc(rows * sizeof *s.capacity);
    const int all = s.classes && s.kinds && s.items && s.kind_of && s.slots && s.bits && s.options &&
                    s.width && s.knap_items && s.taken && s.rows && s.coef && s.capacity;
    if (!all) {
        planner_space_fini(&s);
        return AGOQ_E_NOMEM;
    }
    *space = s;
    return AGOQ_OK;
}

static int same_shape(const planner_class *c, const planner_item *item) {
    return c->rows == item->rows && c->cols == item->cols && c->tensors == item->count;
}

static int same_class(const planner_class *c, const planner_item *item, const double *error) {
    return same_shape(c, item) && c->chunk == item->chunk && c->all_widths == item->widths &&
           c->error == error;
}

static uint32_t spread_bits(uint64_t h) {
    return (uint32_t)((h ^ h >> 32) * 0x94d049bb133111ebull >> 32);
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

static agoq_status make_class(const planner_stage *stage, const planner_item *item, const planner_class *like,
                              int hull_only, planner_class *c) {
    *c = (planner_class){.error = planner_errors_of(stage, item->role),
                         .rows = item->rows,
                         .cols = item->cols,
                         .widths = item->widths,
                         .all_widths = item->widths,
                         .tensors = item->count,
                         .least_sensitivity = INFINITY,
                         .chunk = item->chunk};
    if (like && same_shape(like, item)) {
        memcpy(c->bytes, like->bytes, sizeof c->bytes);
    } else {
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            c->bytes[w] = planner_item_bytes(item, agoq_width_bits(w), stage->alloc_round_bytes);
            if (c->bytes[w] > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
        }
    }
    int least = -1;
    if (hull_only) c->widths &= ~planner_above_hull(c->error, c->widths, 0);
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if (!(c->widths >> w & 1)) continue;
        if (c->error[w] > c->worst) c->worst = c->error[w];
        /* Rounding can make widths equal in size: then the better one is free. */
        if (least < 0 || c->bytes[w] < c->bytes[least] ||
            (c->bytes[w] == c->bytes[least] && c->error[w] <= c->error[least]))
            least = w;
    }
    c->least = (uint8_t)least;
    return AGOQ_OK;
}

static agoq_status check_sums(const planner_space *space, const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < space->n_classes; i++) {
        const planner_class *c = &space->classes[i];
        uint64_t most = 0;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) most = c->bytes[w] > most ? c->bytes[w] : most;
        if (most > PLANNER_BYTES_LIMIT / c->n) return AGOQ_E_LIMIT;
        chunk[c->chunk] += most * c->n;
        if (chunk[c->chunk] > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
    }
    return planner_check_rows(stage, chunk);
}

/* Where the next item of a role is looked for first. */
typedef struct latest {
    uint32_t of, kind;
} latest;

typedef struct sorting {
    planner_space *space;
    const planner_stage *stage;
    uint8_t *dropped;
    uint32_t *kinds, *classes, mask; /* hash tables */
    int hull_only;
} sorting;

static agoq_status find_class(const sorting *s, const planner_item *item, uint32_t *found) {
    planner_space *space = s->space;
    const double *error = planner_errors_of(s->stage, item->role);
    AGOQ_TRY(planner_item_check(s->stage, item));
    uint32_t at = spread_bits((uint64_t)item->cols * 0x9e3779b97f4a7c15ull ^ (uint64_t)item->rows << 40 ^
                              (uint64_t)item->count << 20 ^ (uint64_t)item->widths << 8 ^ item->chunk) &
                  s->mask;
    while (s->classes[at] != NONE && !same_class(&space->classes[s->classes[at]], item, error))
        at = (at + 1) & s->mask;
    if (s->classes[at] == NONE) {
        const planner_class *like = *found == NONE ? NULL : &space->classes[*found];
        AGOQ_TRY(make_class(s->stage, item, like, s->hull_only, &space->classes[space->n_classes]));
        s->classes[at] = space->n_classes++;
    }
    *found = s->classes[at];
    s->dropped[item->role] |= (uint8_t)planner_above_hull(error, item->widths, !s->hull_only);
    return AGOQ_OK;
}

static uint32_t find_kind(const sorting *s, uint32_t of, double sensitivity) {
    planner_kind *kinds = s->space->kinds;
    uint64_t bits;
    memcpy(&bits, &sensitivity, sizeof bits);
    uint32_t at = spread_bits(bits ^ (uint64_t)of * 0x9e3779b97f4a7c15ull) & s->mask;
    while (s->kinds[at] != NONE &&
           (kinds[s->kinds[at]].sensitivity != sensitivity || kinds[s->kinds[at]].of != of))
        at = (at + 1) & s->mask;
    if (s->kinds[at] == NONE) {
        planner_kind *k = &kinds[s->space->n_kinds];
        planner_class *c = &s->space->classes[of];
        s->kinds[at] = s->space->n_kinds++;
        k->sensitivity = sensitivity;
        k->of = of;
        k->n = 0;
        c->n_kinds++;
        c->least_sensitivity = sensitivity < c->least_sensitivity ? sensitivity : c->least_sensitivity;
    }
    return s->kinds[at];
}

agoq_status planner_kinds_make(planner_space *space, const planner_stage *stage, int hull_only,
                               uint8_t *dropped) {
    latest last[AGOQ_N_ROLES];
    const double *error[AGOQ_N_ROLES];
    for (int r = 0; r < AGOQ_N_ROLES; r++) {
        last[r] = (latest){NONE, NONE};
        error[r] = planner_errors_of(stage, r);
    }
    space->n_classes = space->n_kinds = 0;
    AGOQ_TRY(planner_check_scalars(stage));
    sorting s = {space, stage, dropped, space->slots, space->slots, 15, hull_only};
    while (s.mask < 2 * stage->n_items) s.mask = 2 * s.mask + 1;
    if (s.mask >= space->n_slots) s.mask = space->n_slots - 1;
    s.classes += s.mask + (size_t)1;
    memset(space->slots, 0xff, 2 * (s.mask + (size_t)1) * sizeof *space->slots);
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        if (item->role >= AGOQ_N_ROLES || item->sensitivity < 0) return AGOQ_E_INVAL;
        latest *near = &last[item->role];
        if (near->of == NONE || !same_class(&space->classes[near->of], item, error[item->role])) {
            AGOQ_TRY(find_class(&s, item, &near->of));
            near->kind = NONE;
        }
        const double sensitivity = isnan(item->sensitivity) ? INFINITY : item->sensitivity + 0.0;
        if (near->kind == NONE || space->kinds[near->kind].sensitivity != sensitivity)
            near->kind = find_kind(&s, near->of, sensitivity);
        planner_class *c = &space->classes[near->of];
        c->n++;
        if (isfinite(sensitivity))
            c->sum += sensitivity;
        else
            c->n_infinite++;
        space->kinds[near->kind].n++;
        space->kind_of[i] = near->kind;
    }
    return check_sums(space, stage);
}

void planner_kinds_least(const planner_space *space, const planner_stage *stage, uint64_t *chunk) {
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < space->n_classes; i++) {
        const planner_class *c = &space->classes[i];
        chunk[c->chunk] += c->bytes[c->least] * c->n;
    }
}

/* Harm of a kind; counts its widths. */
static double count_kind(const planner_kind *k, const planner_class *c, uint32_t *taken) {
    double harm = 0;
    if (k->whole) {
        const int w = k->whole - 1;
        taken[w] += k->n;
        return c->error[w] > 0 ? k->n * (k->sensitivity * c->error[w]) : 0;
    }
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        taken[w] += k->taken[w];
        if (k->taken[w] && c->error[w] > 0) harm += k->taken[w] * (k->sensitivity * c->error[w]);
    }
    return harm;
}

void planner_kinds_measure(planner_space *space, const planner_stage *stage, planner_stage_result *result) {
    planner_stage_result r = {0};
    uint64_t chunk[PLANNER_MAX_CHUNKS], chunk16[PLANNER_MAX_CHUNKS];
    double elements = 0, weighted = 0;
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = chunk16[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < space->n_classes; i++)
        memset(space->classes[i].taken, 0, sizeof space->classes[i].taken);
    for (uint32_t i = 0; i < space->n_kinds; i++) {
        const planner_kind *k = &space->kinds[i];
        planner_class *c = &space->classes[k->of];
        r.objective += count_kind(k, c, c->taken);
    }
    for (uint32_t i = 0; i < space->n_classes; i++) {
        const planner_class *c = &space->classes[i];
        const double n = (double)c->tensors * (double)c->rows * (double)c->cols;
        const int choice = (c->all_widths & (c->all_widths - 1)) != 0;
        chunk16[c->chunk] += c->bytes[AGOQ_N_WIDTHS - 1] * c->n;
        if (choice) elements += n * c->n;
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            chunk[c->chunk] += c->bytes[w] * c->taken[w];
            if (choice) weighted += n * c->taken[w] * agoq_width_bits(w);
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
    int w = k->whole - 1;
    if (w < 0) {
        for (w = AGOQ_N_WIDTHS - 1; w > 0 && !k->taken[w];) w--;
        k->taken[w]--;
    }
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
