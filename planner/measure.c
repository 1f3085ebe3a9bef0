/* Bytes, peaks and objective of given widths, and the error table. Everything that says how large a
 * plan is comes through here, so that the solver, its levers and the comparison with the rule cannot
 * disagree. Sizes are integers; the price is that inputs are checked once (planner_stage_check) so that no
 * sum can overflow. */
#include <math.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/internal.h"

/* Measured RMS error of INT4/5/6/8, block 64, signed scale, on Gaussian data (docs/FORMATS.md). bf16 rounds
 * to 8 significant bits: relative error uniform within half a unit of the last place, 2^-9 / sqrt(3) at most.
 */
static const double squared_error[AGOQ_N_WIDTHS] = {0.0950 * 0.0950, 0.0473 * 0.0473, 0.0236 * 0.0236,
                                                    0.0059 * 0.0059, 1.0 / (512.0 * 512.0 * 3.0)};

double planner_error(int bits) {
    const int index = agoq_width_index(bits);
    return index < 0 ? 0 : squared_error[index];
}

/* PyTorch: blocks of 512 bytes; above 10 MiB segments of their own, of 2 MiB. */
uint64_t planner_alloc_rounded(uint64_t bytes, uint64_t to) {
    if (to == PLANNER_ALLOC_CACHING) to = bytes > 10 << 20 ? 2 << 20 : 512;
    if (to <= 1) return bytes;
    const uint64_t units = bytes / to + (bytes % to != 0);
    return units > UINT64_MAX / to ? UINT64_MAX : units * to;
}

uint64_t planner_item_bytes(const planner_item *item, int bits, uint64_t alloc_round_bytes) {
    agoq_layout layout;
    if (agoq_layout_make(bits, item->rows, item->cols, &layout) != AGOQ_OK) return UINT64_MAX;
    const uint64_t bytes = planner_alloc_rounded(layout.bytes, alloc_round_bytes);
    return item->count && bytes > UINT64_MAX / item->count ? UINT64_MAX : bytes * item->count;
}

int planner_allows(const planner_item *item, int bits) {
    const int index = agoq_width_index(bits);
    return index >= 0 && (item->widths >> index & 1);
}

int planner_has_choice(const planner_item *item) {
    return (item->widths & (item->widths - 1)) != 0;
}

uint8_t planner_least_bits(const planner_stage *stage, const planner_item *item) {
    uint64_t least = UINT64_MAX;
    uint8_t bits = 0;
    for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
        if (!planner_allows(item, agoq_width_bits(w))) continue;
        const uint64_t bytes = planner_item_bytes(item, agoq_width_bits(w), stage->alloc_round_bytes);
        /* Rounding can make widths equal in size: then the better one is free. */
        if (!bits || bytes < least ||
            (bytes == least &&
             planner_item_error(stage, item, agoq_width_bits(w)) <= planner_item_error(stage, item, bits))) {
            least = bytes;
            bits = (uint8_t)agoq_width_bits(w);
        }
    }
    return bits;
}

void planner_least(const planner_stage *stage, uint8_t *bits) {
    for (uint32_t i = 0; i < stage->n_items; i++) bits[i] = planner_least_bits(stage, &stage->items[i]);
}

agoq_status planner_item_check(const planner_stage *stage, const planner_item *item) {
    const int good = item->widths && !(item->widths >> AGOQ_N_WIDTHS) && item->role < AGOQ_N_ROLES &&
                     item->chunk < stage->n_chunks && item->rows >= 0 && item->cols >= 0 &&
                     !(item->sensitivity < 0);
    return good ? AGOQ_OK : AGOQ_E_INVAL;
}

agoq_status planner_check_scalars(const planner_stage *stage) {
    if (stage->margin_ppm > 1000000) return AGOQ_E_INVAL;
    if (stage->n_chunks > PLANNER_MAX_CHUNKS || stage->n_live > PLANNER_MAX_LIVE) return AGOQ_E_LIMIT;
    if ((stage->n_chunks && !stage->fixed_bytes) || (stage->n_items && !stage->items)) return AGOQ_E_INVAL;
    if (stage->n_live && (!stage->live || !stage->n_chunks)) return AGOQ_E_INVAL;
    for (int p = 0; p < AGOQ_N_PHASES; p++) {
        if (stage->phase[p].static_bytes > PLANNER_BYTES_LIMIT ||
            stage->phase[p].workspace_bytes > PLANNER_BYTES_LIMIT)
            return AGOQ_E_LIMIT;
    }
    for (uint32_t c = 0; c < stage->n_chunks; c++) {
        if (stage->fixed_bytes[c] > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
    }
    for (int r = 0; stage->errors && r < AGOQ_N_ROLES; r++) {
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (!(stage->errors->of[r][w] >= 0) || !isfinite(stage->errors->of[r][w])) return AGOQ_E_INVAL;
        }
    }
    return AGOQ_OK;
}

agoq_status planner_check_rows(const planner_stage *stage, const uint64_t *chunk) {
    for (uint32_t r = 0; r < stage->n_live; r++) {
        uint64_t sum = 0;
        for (uint32_t c = 0; c < stage->n_chunks; c++) {
            const uint32_t n = stage->live[(size_t)r * stage->n_chunks + c];
            if (n && chunk[c] > PLANNER_BYTES_LIMIT / n) return AGOQ_E_LIMIT;
            sum += n * chunk[c];
            if (sum > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
        }
    }
    return AGOQ_OK;
}

agoq_status planner_stage_check(const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS] = {0};
    AGOQ_TRY(planner_check_scalars(stage));
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        uint64_t most = 0;
        AGOQ_TRY(planner_item_check(stage, item));
        /* Short rows: scales and padding may make a narrow width larger than bf16. */
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            const uint64_t bytes = planner_item_bytes(item, agoq_width_bits(w), stage->alloc_round_bytes);
            most = bytes > most ? bytes : most;
        }
        if (most > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
        chunk[item->chunk] += most;
        if (chunk[item->chunk] > PLANNER_BYTES_LIMIT) return AGOQ_E_LIMIT;
    }
    return planner_check_rows(stage, chunk);
}

const double *planner_errors_of(const planner_stage *stage, int role) {
    return stage->errors ? stage->errors->of[role] : squared_error;
}

double planner_item_error(const planner_stage *stage, const planner_item *item, int bits) {
    return planner_errors_of(stage, item->role)[agoq_width_index(bits)];
}

uint64_t planner_available(const planner_stage *stage) {
    const uint64_t budget = stage->budget_bytes, million = 1000000;
    if (budget == PLANNER_NO_BUDGET) return PLANNER_BYTES_LIMIT * 16;
    const uint64_t rest = budget % million * stage->margin_ppm;
    return budget - budget / million * stage->margin_ppm - rest / million - (rest % million != 0);
}

void planner_chunk_bytes(const planner_stage *stage, const uint8_t *bits,
                         uint64_t chunk[PLANNER_MAX_CHUNKS]) {
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        chunk[item->chunk] += planner_item_bytes(item, bits[i], stage->alloc_round_bytes);
    }
}

uint64_t planner_rows_peak(const planner_stage *stage, const uint64_t *chunk, uint32_t *binding) {
    uint64_t peak = 0;
    uint32_t at = 0;
    for (uint32_t r = 0; r < stage->n_live; r++) {
        uint64_t sum = 0;
        for (uint32_t c = 0; c < stage->n_chunks; c++)
            sum += stage->live[(size_t)r * stage->n_chunks + c] * chunk[c];
        if (sum > peak) {
            peak = sum;
            at = r;
        }
    }
    if (binding) *binding = at;
    return peak;
}

uint64_t planner_activation_peak(const planner_stage *stage, const uint8_t *bits, uint32_t *binding) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    planner_chunk_bytes(stage, bits, chunk);
    return planner_rows_peak(stage, chunk, binding);
}

uint64_t planner_total_peak(const planner_stage *stage, uint64_t activation_bytes) {
    uint64_t peak = 0;
    for (int p = 0; p < AGOQ_N_PHASES; p++) {
        uint64_t sum = stage->phase[p].static_bytes + stage->phase[p].workspace_bytes;
        if (p == AGOQ_PHASE_FWD_BWD) sum += activation_bytes;
        if (sum > peak) peak = sum;
    }
    return peak;
}

uint64_t planner_least_peak(const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    for (uint32_t k = 0; k < stage->n_chunks; k++) chunk[k] = stage->fixed_bytes[k];
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        chunk[item->chunk] +=
            planner_item_bytes(item, planner_least_bits(stage, item), stage->alloc_round_bytes);
    }
    return planner_total_peak(stage, planner_rows_peak(stage, chunk, NULL));
}

static uint64_t activation_peak16(const planner_stage *stage) {
    uint64_t chunk[PLANNER_MAX_CHUNKS];
    for (uint32_t c = 0; c < stage->n_chunks; c++) chunk[c] = stage->fixed_bytes[c];
    for (uint32_t i = 0; i < stage->n_items; i++) {
        chunk[stage->items[i].chunk] += planner_item_bytes(&stage->items[i], 16, stage->alloc_round_bytes);
    }
    return planner_rows_peak(stage, chunk, NULL);
}

void planner_measure(const planner_stage *stage, const uint8_t *bits, planner_stage_result *result) {
    planner_stage_result r = {0};
    double elements = 0, weighted = 0;
    r.activation_peak_bytes = planner_activation_peak(stage, bits, &r.binding_live);
    r.activation_peak_bytes16 = activation_peak16(stage);
    r.predicted_peak_bytes = planner_total_peak(stage, r.activation_peak_bytes);
    const uint64_t available = planner_available(stage);
    if (r.predicted_peak_bytes <= available)
        r.slack_bytes = available - r.predicted_peak_bytes;
    else
        r.overshoot_bytes = r.predicted_peak_bytes - available;
    for (uint32_t i = 0; i < stage->n_items; i++) {
        const planner_item *item = &stage->items[i];
        const double n = (double)item->count * (double)item->rows * (double)item->cols;
        const double error = planner_item_error(stage, item, bits[i]);
        if (error > 0) r.objective += (isnan(item->sensitivity) ? INFINITY : item->sensitivity) * error;
        if (!planner_has_choice(item)) continue;
        elements += n;
        weighted += n * bits[i];
    }
    r.lower_bound = r.objective;
    r.bits_mean = elements > 0 ? weighted / elements : 0;
    *result = r;
}

static int at_max(const planner_item *item, int bits) {
    return !(item->widths >> (agoq_width_index(bits) + 1));
}

/* What a rank takes without a plan: the least bits, even where rounding makes a wider width as small. */
static int floor_bits(const planner_item *item) {
    int index = 0;
    while (!(item->widths >> index & 1)) index++;
    return agoq_width_bits(index);
}

agoq_status planner_measure_plan(const planner_problem *problem, const plan *p,
                                 planner_stage_result *stages) {
    if (!problem || !problem->n_stages || !problem->stages || !stages) return AGOQ_E_INVAL;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        const planner_stage *stage = &problem->stages[s];
        AGOQ_TRY(planner_stage_check(stage));
        uint8_t *bits = mem_alloc(stage->n_items + 1);
        if (!bits) return AGOQ_E_NOMEM;
        int all_max = 1;
        for (uint32_t i = 0; i < stage->n_items; i++) {
            const planner_item *item = &stage->items[i];
            const int planned = p ? plan_bits(p, item->layer, item->role) : floor_bits(item);
            bits[i] = (uint8_t)(planned ? planned : 16);
            all_max &= at_max(item, bits[i]);
        }
        planner_measure(stage, bits, &stages[s]);
        if (all_max) stages[s].why = PLANNER_WHY_ALL_AT_MAX;
        mem_free(bits);
    }
    return AGOQ_OK;
}
