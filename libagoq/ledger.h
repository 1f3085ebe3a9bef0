/* Ledger of packed tensors: live and peak bytes by (layer, role), by layer, by role and in all, as packed and
 * as the same tensors would cost at 16 bits. O(1) per tensor and no allocation after the first touch of a
 * layer: one dense row of cells per layer plus one row of sums. The trade-off: memory for the highest layer
 * index seen, 40 bytes a cell (3 MiB at 8,192 layers), where a hash would need less on a stage with few
 * layers but could fill up. */
#ifndef LIBAGOQ_LEDGER_H
#define LIBAGOQ_LEDGER_H

#include "agoq/agoq.h"

#define LEDGER_MAX_LAYERS UINT16_MAX         /* a plan holds 16-bit layers */
#define LEDGER_COLS       (AGOQ_N_ROLES + 1) /* the last column of a row is its sum */

typedef struct ledger {
    agoq_ledger_entry *cells;              /* n_layers rows of LEDGER_COLS */
    agoq_ledger_entry totals[LEDGER_COLS]; /* by role, and in all */
    int32_t n_layers;
} ledger;

void ledger_fini(ledger *l);
/* Makes room for layers 0 .. n_layers-1. E_LIMIT, E_NOMEM. */
AGOQ_MUST_USE agoq_status ledger_reserve(ledger *l, int32_t n_layers);
/* E_INVAL: no such layer, role or layout; E_NOMEM on the first touch of a layer. */
AGOQ_MUST_USE agoq_status ledger_add(ledger *l, int layer, int role, const agoq_layout *layout);
/* E_STATE: no such tensor is live. */
AGOQ_MUST_USE agoq_status ledger_remove(ledger *l, int layer, int role, const agoq_layout *layout);
/* -1: the sum over layers or roles. Zeros for what was never touched. */
void ledger_get(const ledger *l, int layer, int role, agoq_ledger_entry *entry);
void ledger_reset_peaks(ledger *l);

static inline uint64_t ledger_live_tensors(const ledger *l) {
    return l->totals[AGOQ_N_ROLES].live_tensors;
}

#endif
