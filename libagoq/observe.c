/* See observe.h. */
#include "libagoq/observe.h"

#include <string.h>

#define MAX_LIVE (1u << 16)

agoq_status observe_reset(observe *o, int32_t n_chunks) {
    if (n_chunks < 1 || n_chunks > OBSERVE_MAX_CHUNKS) return AGOQ_E_INVAL;
    for (int c = n_chunks; c < OBSERVE_MAX_CHUNKS; c++) {
        if (o->live[c]) return AGOQ_E_STATE;
    }
    memset(o->rows, 0, sizeof o->rows);
    o->n_chunks = n_chunks;
    o->n_rows = 0;
    o->grown = 0;
    o->steps = 0;
    return AGOQ_OK;
}

static int covers(const uint32_t *a, const uint32_t *b, int n) {
    for (int i = 0; i < n; i++) {
        if (a[i] < b[i]) return 0;
    }
    return 1;
}

static void add_row(observe *o, const uint32_t *row) {
    const int n = o->n_chunks;
    uint32_t kept = 0, merged[OBSERVE_MAX_CHUNKS];
    for (uint32_t i = 0; i < o->n_rows; i++) {
        if (covers(o->rows[i], row, n)) return;
    }
    memcpy(merged, row, sizeof merged);
    if (o->n_rows == OBSERVE_MAX_ROWS) {
        for (int i = 0; i < n; i++) {
            const uint32_t last = o->rows[OBSERVE_MAX_ROWS - 1][i];
            if (last > merged[i]) merged[i] = last;
        }
    }
    for (uint32_t i = 0; i < o->n_rows; i++) {
        if (covers(merged, o->rows[i], n)) continue;
        if (kept != i) memcpy(o->rows[kept], o->rows[i], sizeof merged);
        kept++;
    }
    memcpy(o->rows[kept], merged, sizeof merged);
    o->n_rows = kept + 1;
    o->grown = 1;
}

agoq_status observe_microbatch(observe *o, int chunk, int delta) {
    if (chunk < 0 || chunk >= o->n_chunks || (delta != 1 && delta != -1)) return AGOQ_E_INVAL;
    if (delta == 1) {
        if (o->live[chunk] == MAX_LIVE) return AGOQ_E_LIMIT;
        o->live[chunk]++;
        o->rising = 1;
        return AGOQ_OK;
    }
    if (o->live[chunk] == 0) return AGOQ_E_STATE;
    if (o->rising) add_row(o, o->live);
    o->rising = 0;
    o->live[chunk]--;
    return AGOQ_OK;
}

int observe_step_end(observe *o) {
    if (o->rising) add_row(o, o->live);
    o->rising = 0;
    o->steps++;
    return o->grown;
}
