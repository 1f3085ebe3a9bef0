/* How many micro-batches a pipeline rank holds at once, from its operation list. The chunks of a rank peak at
 * different times: a constraint on the per-chunk maxima would be safe but loose (interleaved, p = 4, v = 2: 1
 * chunk of 12 on rank 0, 3 of 10 on rank 2), one on the sum would be wrong as soon as chunks differ in bytes.
 * So every state before something is freed counts, reduced to those that no other one covers. */
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "planner/schedule_internal.h"

#define GUESSES 1024

/* guess: by a hash of the candidate, the row that covered it last time. A steady state comes back to the same
 * candidates over and over; a wrong guess costs a search, nothing else. */
typedef struct row_set {
    uint32_t *rows, width, max, n;
    uint32_t guess[GUESSES];
} row_set;

static int covers(const uint32_t *by, const uint32_t *row, uint32_t n) {
    for (uint32_t c = 0; c < n; c++) {
        if (row[c] > by[c]) return 0;
    }
    return 1;
}

static uint32_t hash(const uint32_t *row, uint32_t width) {
    uint32_t h = 0;
    for (uint32_t c = 0; c < width; c++) h = (h ^ row[c]) * 0x9e3779b1u;
    return h >> 22; /* below GUESSES */
}

/* Keeps rows Pareto-maximal; E_LIMIT when one more row is needed than there is room for. */
static agoq_status add_row(row_set *s, const uint32_t *row) {
    const uint32_t width = s->width;
    uint32_t kept = 0, *guess = &s->guess[hash(row, width)];
    if (*guess < s->n && covers(s->rows + (size_t)*guess * width, row, width)) return AGOQ_OK;
    for (uint32_t r = 0; r < s->n; r++) {
        if (!covers(s->rows + (size_t)r * width, row, width)) continue;
        *guess = r;
        return AGOQ_OK;
    }
    for (uint32_t r = 0; r < s->n; r++) {
        uint32_t *old = s->rows + (size_t)r * width;
        if (covers(row, old, width)) continue;
        if (kept != r) memcpy(s->rows + (size_t)kept * width, old, width * sizeof *old);
        kept++;
    }
    s->n = kept;
    if (kept == s->max) return AGOQ_E_LIMIT;
    memcpy(s->rows + (size_t)kept * width, row, width * sizeof *row);
    *guess = kept;
    s->n = kept + 1;
    return AGOQ_OK;
}

static int row_before(const uint32_t *a, const uint32_t *b, uint32_t width) {
    for (uint32_t c = 0; c < width; c++) {
        if (a[c] != b[c]) return a[c] > b[c];
    }
    return 0;
}

/* By insertion: at most PLANNER_MAX_LIVE short rows, nearly sorted as they come. */
static void sort_rows(const row_set *s) {
    uint32_t row[2 * PLANNER_MAX_CHUNKS];
    const size_t width = s->width, bytes = width * sizeof *row;
    for (uint32_t k = 1; k < s->n; k++) {
        memcpy(row, s->rows + k * width, bytes);
        uint32_t at = k;
        while (at && row_before(row, s->rows + (at - 1) * width, s->width)) at--;
        memmove(s->rows + (at + 1) * width, s->rows + at * width, (k - at) * bytes);
        memcpy(s->rows + at * width, row, bytes);
    }
}

agoq_status schedule_list_live(const planner_op *ops, uint32_t n, uint32_t n_chunks, planner_held held,
                               uint32_t *rows, uint32_t max_rows, uint32_t *n_rows) {
    uint32_t live[2 * PLANNER_MAX_CHUNKS] = {0};
    const int both = held == PLANNER_HELD_BOTH;
    row_set set = {.rows = rows, .width = both ? 2 * n_chunks : n_chunks, .max = max_rows};
    int rose = 0;
    for (uint32_t k = 0; k < n; k++) {
        const uint32_t chunk = ops[k].chunk, kind = ops[k].kind;
        if (kind == PLANNER_OP_FORWARD) {
            live[chunk]++;
            live[n_chunks + chunk]++;
            rose = 1;
            continue;
        }
        if (kind == PLANNER_OP_INPUT && !both) continue;
        if (rose) AGOQ_TRY(add_row(&set, live));
        rose = 0;
        if (kind != PLANNER_OP_INPUT) live[chunk]--;
        if (kind != PLANNER_OP_WEIGHT) live[n_chunks + chunk]--;
    }
    if (rose) AGOQ_TRY(add_row(&set, live));
    sort_rows(&set);
    *n_rows = set.n;
    return AGOQ_OK;
}

agoq_status planner_ops_live(const planner_ops *ops, uint32_t rank, planner_held held, uint32_t *rows,
                             uint32_t max_rows, uint32_t *n_rows) {
    if (!ops || !rows || !max_rows || !n_rows || rank >= ops->n_ranks) return AGOQ_E_INVAL;
    if (ops->n_chunks > PLANNER_MAX_CHUNKS) return AGOQ_E_LIMIT;
    return schedule_list_live(ops->ops + ops->start[rank], ops->start[rank + 1] - ops->start[rank],
                              ops->n_chunks, held, rows, max_rows, n_rows);
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* The same schedule with fewer micro-batches and the same rows. Interleaved repeats after one group in every
 * chunk and is through its warm-up after two; the last, smaller group stays. The others repeat after every
 * micro-batch (DualPipe: two) once the pipeline is full. */
static planner_schedule shortened(const planner_schedule *s) {
    planner_schedule few = *s;
    const uint32_t p = s->n_ranks, m = s->n_microbatches, group = planner_schedule_group(s);
    switch (s->kind) {
    case AGOQ_SCHEDULE_GPIPE:
        break;
    case AGOQ_SCHEDULE_INTERLEAVED: {
        const uint32_t groups = 4 + (s->ahead + group - 1) / group;
        few.group = group;
        if (m / group > groups) few.n_microbatches = groups * group + m % group;
        break;
    }
    default:
        few.n_microbatches = m % 2 ? least(m, 2 * p + 5) : least(m, 2 * p + 4);
        break;
    }
    return few;
}

static int is_vee(agoq_schedule kind) {
    return kind == AGOQ_SCHEDULE_V_HALF || kind == AGOQ_SCHEDULE_V_MIN;
}

/* Room for one rank's list. */
static agoq_status list_room(const planner_schedule *s, planner_op **ops) {
    const uint64_t most = s->kind == AGOQ_SCHEDULE_GPIPE ? 1 : schedule_rank_most(s);
    if (most > PLANNER_MAX_OPS) return AGOQ_E_LIMIT;
    *ops = mem_alloc((size_t)most * sizeof **ops);
    return *ops ? AGOQ_OK : AGOQ_E_NOMEM;
}

/* One rank's rows without the other ranks' lists. */
static agoq_status live_of_rank(const planner_schedule *s, uint32_t rank, planner_op *ops, planner_held held,
                                uint32_t *rows, uint32_t max_rows, uint32_t *n_rows) {
    if (s->kind == AGOQ_SCHEDULE_GPIPE) { /* however many */
        rows[0] = s->n_microbatches;
        if (held == PLANNER_HELD_BOTH) rows[1] = s->n_microbatches;
        *n_rows = 1;
        return AGOQ_OK;
    }
    return schedule_list_live(ops, schedule_rank_ops(s, rank, ops), s->n_chunks, held, rows, max_rows,
                              n_rows);
}

agoq_status planner_live(agoq_schedule schedule, uint32_t n_stages, uint32_t stage, uint32_t n_microbatches,
                         uint32_t n_chunks, uint32_t *rows, uint32_t max_rows, uint32_t *n_rows) {
    const planner_schedule asked = {schedule, n_stages, n_microbatches, n_chunks, 0, 0};
    if (!rows || !n_rows || !max_rows || stage >= n_stages) return AGOQ_E_INVAL;
    if (n_stages > PLAN_MAX_STAGES || n_chunks > PLANNER_MAX_CHUNKS) return AGOQ_E_LIMIT;
    if (planner_schedule_refused(&asked)) return AGOQ_E_INVAL;
    const planner_schedule s = shortened(&asked);
    if (is_vee(schedule)) {
        planner_ops all;
        AGOQ_TRY(planner_ops_make(&s, &all));
        const agoq_status status =
            planner_ops_live(&all, stage, PLANNER_HELD_TO_WEIGHT, rows, max_rows, n_rows);
        planner_ops_fini(&all);
        return status;
    }
    planner_op *ops;
    AGOQ_TRY(list_room(&s, &ops));
    const agoq_status status = live_of_rank(&s, stage, ops, PLANNER_HELD_TO_WEIGHT, rows, max_rows, n_rows);
    mem_free(ops);
    return status;
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

/* Where the lists come from: they are there, or each rank's is written when it is its turn. */
typedef struct source {
    const planner_ops *lists;
    const planner_schedule *schedule; /* if lists is NULL */
    planner_op *ops;                  /* room for one list of it */
    planner_held held;
} source;

static agoq_status fill_set(const source *from, uint32_t *rows, planner_live_set *set) {
    uint32_t room = 0, n = 0;
    for (uint32_t r = 0; r < set->n_ranks; r++) {
        AGOQ_TRY(from->lists
                     ? planner_ops_live(from->lists, r, from->held, rows, PLANNER_MAX_LIVE, &n)
                     : live_of_rank(from->schedule, r, from->ops, from->held, rows, PLANNER_MAX_LIVE, &n));
        if (set->start[r] + n > room) {
            room = 2 * (set->start[r] + n);
            uint32_t *grown = mem_realloc(set->rows, room, set->n_columns * sizeof *grown);
            if (!grown) return AGOQ_E_NOMEM;
            set->rows = grown;
        }
        if (n)
            memcpy(set->rows + (size_t)set->start[r] * set->n_columns, rows,
                   (size_t)n * set->n_columns * sizeof *rows);
        set->start[r + 1] = set->start[r] + n;
    }
    return AGOQ_OK;
}

static agoq_status make_set(const source *from, uint32_t n_ranks, uint32_t n_chunks, planner_live_set *out) {
    if (n_chunks > PLANNER_MAX_CHUNKS) return AGOQ_E_LIMIT;
    planner_live_set set = {.n_ranks = n_ranks,
                            .n_columns = from->held == PLANNER_HELD_BOTH ? 2 * n_chunks : n_chunks};
    uint32_t *rows = mem_zalloc(PLANNER_MAX_LIVE, set.n_columns * sizeof *rows);
    set.start = mem_zalloc(n_ranks + 1, sizeof *set.start);
    agoq_status status = AGOQ_E_NOMEM;
    if (rows && set.start) status = fill_set(from, rows, &set);
    mem_free(rows);
    if (status == AGOQ_OK)
        *out = set;
    else
        planner_live_set_fini(&set);
    return status;
}

agoq_status planner_ops_live_all(const planner_ops *ops, planner_held held, planner_live_set *out) {
    if (!ops || !out) return AGOQ_E_INVAL;
    return make_set(&(source){.lists = ops, .held = held}, ops->n_ranks, ops->n_chunks, out);
}

agoq_status planner_schedule_live(const planner_schedule *s, planner_held held, planner_live_set *out) {
    if (!s || !out || planner_schedule_refused(s)) return AGOQ_E_INVAL;
    const planner_schedule few = shortened(s);
    source from = {.schedule = &few, .held = held};
    if (is_vee(s->kind)) {
        planner_ops all;
        AGOQ_TRY(planner_ops_make(&few, &all));
        const agoq_status status = planner_ops_live_all(&all, held, out);
        planner_ops_fini(&all);
        return status;
    }
    AGOQ_TRY(list_room(&few, &from.ops));
    const agoq_status status = make_set(&from, s->n_ranks, s->n_chunks, out);
    mem_free(from.ops);
    return status;
}

void planner_live_set_fini(planner_live_set *set) {
    if (!set) return;
    mem_free(set->start);
    mem_free(set->rows);
    *set = (planner_live_set){0};
}
