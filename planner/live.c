/* How many micro-batches a pipeline rank holds at once. GPipe and 1F1B have closed forms. Interleaved 1F1B is
 * simulated from its own operation order, because the chunks of a rank peak at different times: a constraint
 * on the per-chunk maxima would be safe but loose (p = 4, v = 2: 1 chunk of 12 on rank 0, 3 of 10 on rank 2),
 * one on the sum would be wrong as soon as chunks differ in bytes. The order is Megatron's: groups of p
 * micro-batches walk through the v chunks, 2 (p - r - 1) + (v - 1) p forwards warm up, then forward and
 * backward alternate. */
#include <string.h>

#include "common/try.h"
#include "planner/planner.h"

/* Steady state repeats after p * v operations and warm-up is shorter than 2 p * v: more micro-batches show
 * nothing new. */
#define PERIODS 4

static int dominated(const uint32_t *a, const uint32_t *by, uint32_t n) {
    for (uint32_t c = 0; c < n; c++) {
        if (a[c] > by[c]) return 0;
    }
    return 1;
}

/* Keeps rows Pareto-maximal; E_LIMIT when one more row is needed than there is room for. */
static agoq_status add_row(const uint32_t *live, uint32_t n_chunks, uint32_t *rows, uint32_t max_rows,
                           uint32_t *n_rows) {
    uint32_t kept = 0;
    for (uint32_t r = 0; r < *n_rows; r++) {
        if (dominated(live, rows + (size_t)r * n_chunks, n_chunks)) return AGOQ_OK;
    }
    for (uint32_t r = 0; r < *n_rows; r++) {
        const uint32_t *row = rows + (size_t)r * n_chunks;
        if (dominated(row, live, n_chunks)) continue;
        memmove(rows + (size_t)kept++ * n_chunks, row, n_chunks * sizeof *row);
    }
    *n_rows = kept;
    if (kept == max_rows) return AGOQ_E_LIMIT;
    memcpy(rows + (size_t)kept * n_chunks, live, n_chunks * sizeof *live);
    *n_rows = kept + 1;
    return AGOQ_OK;
}

static agoq_status interleaved(uint32_t p, uint32_t r, uint32_t m, uint32_t v, uint32_t *rows,
                               uint32_t max_rows, uint32_t *n_rows) {
    uint32_t live[PLANNER_MAX_CHUNKS] = {0};
    if (m / p > PERIODS) m = PERIODS * p;
    const uint32_t total = m * v;
    uint32_t warm_up = 2 * (p - r - 1) + (v - 1) * p;
    if (warm_up > total) warm_up = total;
    for (uint32_t k = 0; k < total; k++) {
        live[k % (p * v) / p]++; /* the k-th forward */
        if (k + 1 < warm_up) continue;
        AGOQ_TRY(add_row(live, v, rows, max_rows, n_rows));
        if (k >= warm_up) live[v - 1 - (k - warm_up) % (p * v) / p]--; /* and the backward that follows it */
    }
    return AGOQ_OK;
}

agoq_status planner_live(agoq_schedule schedule, uint32_t n_stages, uint32_t stage, uint32_t n_microbatches,
                         uint32_t n_chunks, uint32_t *rows, uint32_t max_rows, uint32_t *n_rows) {
    if (!rows || !n_rows || !max_rows || !n_chunks || stage >= n_stages) return AGOQ_E_INVAL;
    if (n_stages > PLAN_MAX_STAGES || n_chunks > PLANNER_MAX_CHUNKS) return AGOQ_E_LIMIT;
    if (schedule == AGOQ_SCHEDULE_INTERLEAVED) {
        if (n_microbatches % n_stages != 0) return AGOQ_E_INVAL;
        uint32_t found = 0;
        AGOQ_TRY(interleaved(n_stages, stage, n_microbatches, n_chunks, rows, max_rows, &found));
        *n_rows = found;
        return AGOQ_OK;
    }
    if (n_chunks != 1 || (schedule != AGOQ_SCHEDULE_GPIPE && schedule != AGOQ_SCHEDULE_1F1B))
        return AGOQ_E_INVAL;
    rows[0] = n_microbatches;
    if (schedule == AGOQ_SCHEDULE_1F1B && rows[0] > n_stages - stage) rows[0] = n_stages - stage;
    *n_rows = rows[0] ? 1 : 0;
    return AGOQ_OK;
}

uint32_t planner_live_units(const uint32_t *rows, uint32_t n_rows, uint32_t n_chunks) {
    uint32_t most = 0;
    for (uint32_t r = 0; r < n_rows; r++) {
        uint32_t sum = 0;
        for (uint32_t c = 0; c < n_chunks; c++) sum += rows[(size_t)r * n_chunks + c];
        if (sum > most) most = sum;
    }
    return most;
}
