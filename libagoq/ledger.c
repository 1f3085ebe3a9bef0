/* See ledger.h. */
#include "libagoq/ledger.h"

#include <string.h>

#include "common/mem.h"
#include "common/try.h"

void ledger_fini(ledger *l) {
    mem_free(l->cells);
    memset(l, 0, sizeof *l);
}

agoq_status ledger_reserve(ledger *l, int32_t n_layers) {
    if (n_layers <= l->n_layers) return AGOQ_OK;
    if (n_layers > LEDGER_MAX_LAYERS) return AGOQ_E_LIMIT;
    agoq_ledger_entry *cells = mem_realloc(l->cells, (size_t)n_layers * LEDGER_COLS, sizeof *cells);
    if (!cells) return AGOQ_E_NOMEM;
    const size_t had = (size_t)l->n_layers * LEDGER_COLS;
    memset(cells + had, 0, ((size_t)n_layers * LEDGER_COLS - had) * sizeof *cells);
    l->cells = cells;
    l->n_layers = n_layers;
    return AGOQ_OK;
}

/* A layout that agoq_layout_make would not give is not counted: its bytes would be anybody's guess. */
static agoq_status bytes_of(const agoq_layout *layout, uint64_t *bytes, uint64_t *bytes16) {
    agoq_layout same, wide;
    AGOQ_TRY(agoq_layout_make(layout->format, layout->rows, layout->cols, &same));
    AGOQ_TRY(agoq_layout_make(16, layout->rows, layout->cols, &wide));
    if (same.bits != layout->bits || same.bytes != layout->bytes || same.scale_offset != layout->scale_offset)
        return AGOQ_E_INVAL;
    *bytes = same.bytes;
    *bytes16 = wide.bytes;
    return AGOQ_OK;
}

static void raise_entry(agoq_ledger_entry *e, uint64_t bytes, uint64_t bytes16) {
    e->live_bytes += bytes;
    e->live_bytes16 += bytes16;
    e->live_tensors++;
    if (e->live_bytes > e->peak_bytes) e->peak_bytes = e->live_bytes;
    if (e->live_bytes16 > e->peak_bytes16) e->peak_bytes16 = e->live_bytes16;
}

static void lower_entry(agoq_ledger_entry *e, uint64_t bytes, uint64_t bytes16) {
    e->live_bytes -= bytes;
    e->live_bytes16 -= bytes16;
    e->live_tensors--;
}

agoq_status ledger_add(ledger *l, int layer, int role, const agoq_layout *layout) {
    if (layer < 0 || layer >= LEDGER_MAX_LAYERS || role < 0 || role >= AGOQ_N_ROLES) return AGOQ_E_INVAL;
    uint64_t bytes, bytes16;
    AGOQ_TRY(bytes_of(layout, &bytes, &bytes16));
    if (layer >= l->n_layers) {
        const int32_t twice = l->n_layers > LEDGER_MAX_LAYERS / 2 ? LEDGER_MAX_LAYERS : 2 * l->n_layers;
        AGOQ_TRY(ledger_reserve(l, layer < twice ? twice : layer + 1));
    }
    agoq_ledger_entry *row = l->cells + (size_t)layer * LEDGER_COLS;
    raise_entry(&row[role], bytes, bytes16);
    raise_entry(&row[AGOQ_N_ROLES], bytes, bytes16);
    raise_entry(&l->totals[role], bytes, bytes16);
    raise_entry(&l->totals[AGOQ_N_ROLES], bytes, bytes16);
    return AGOQ_OK;
}

agoq_status ledger_remove(ledger *l, int layer, int role, const agoq_layout *layout) {
    if (layer < 0 || role < 0 || role >= AGOQ_N_ROLES) return AGOQ_E_INVAL;
    uint64_t bytes, bytes16;
    AGOQ_TRY(bytes_of(layout, &bytes, &bytes16));
    if (layer >= l->n_layers) return AGOQ_E_STATE;
    agoq_ledger_entry *row = l->cells + (size_t)layer * LEDGER_COLS;
    const agoq_ledger_entry *e = &row[role];
    if (e->live_tensors == 0 || e->live_bytes < bytes || e->live_bytes16 < bytes16) return AGOQ_E_STATE;
    if (e->live_tensors == 1 && (e->live_bytes != bytes || e->live_bytes16 != bytes16)) return AGOQ_E_STATE;
    lower_entry(&row[role], bytes, bytes16);
    lower_entry(&row[AGOQ_N_ROLES], bytes, bytes16);
    lower_entry(&l->totals[role], bytes, bytes16);
    lower_entry(&l->totals[AGOQ_N_ROLES], bytes, bytes16);
    return AGOQ_OK;
}

void ledger_get(const ledger *l, int layer, int role, agoq_ledger_entry *entry) {
    memset(entry, 0, sizeof *entry);
    if (layer < -1 || role < -1 || role >= AGOQ_N_ROLES || layer >= l->n_layers) return;
    const agoq_ledger_entry *row = layer < 0 ? l->totals : l->cells + (size_t)layer * LEDGER_COLS;
    *entry = row[role < 0 ? AGOQ_N_ROLES : role];
}

static void reset_row(agoq_ledger_entry *row, size_t n) {
    for (size_t i = 0; i < n; i++) {
        row[i].peak_bytes = row[i].live_bytes;
        row[i].peak_bytes16 = row[i].live_bytes16;
    }
}

void ledger_reset_peaks(ledger *l) {
    reset_row(l->totals, LEDGER_COLS);
    if (l->cells) reset_row(l->cells, (size_t)l->n_layers * LEDGER_COLS);
}
