/* RMSNorm and LayerNorm rows fused with pack and unpack; the kind is an argument, and the two differ in a
 * mean that is 0 for RMS. Forward normalises the exact row and keeps only the packed one; backward reads the
 * packed row and recomputes its statistics. Sums are fp32 in an order that a GPU warp follows as cheaply as a
 * vector unit: docs/FORMATS.md, row sum. The trade-off: rows are read two or three times, from cache, because
 * kernels may not allocate a row. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"
#include "kernels/format/norm.h"

enum { FOLDED = 32, SEGMENT = 8 * FOLDED, SEGMENT_BLOCKS = SEGMENT / AGOQ_BLOCK, CHUNK_ROWS = 32 };

/* The row sum so far: group sums of the segment that is being filled, whole segments, and what 32 of those
 * made. */
typedef struct row_sum {
    float group[FOLDED], segment[FOLDED], total;
} row_sum;

AGOQK_INLINE void fold_once(float *group, int half) { /* half is a constant */
    for (int i = 0; i < half; i++) group[i] += group[i + half];
}

AGOQK_INLINE float fold(float sums[FOLDED]) {
    fold_once(sums, 16);
    fold_once(sums, 8);
    fold_once(sums, 4);
    fold_once(sums, 2);
    return sums[0] + sums[1];
}

/* Where the group sums of block b go, which follow. */
AGOQK_INLINE float *row_sum_groups(row_sum *s, int64_t b) {
    const int place = (int)(b % SEGMENT_BLOCKS);
    if (b == 0) s->total = 0.0f;
    if (b % (SEGMENT_BLOCKS * FOLDED) == 0) memset(s->segment, 0, sizeof s->segment);
    if (place == 0) memset(s->group, 0, sizeof s->group);
    return s->group + place * (AGOQ_BLOCK / 8);
}

/* They are there: what is full, or the last, is folded. */
AGOQK_INLINE void row_sum_fold(row_sum *s, int64_t b, int64_t n_blocks) {
    const int last = b == n_blocks - 1;
    if (b % SEGMENT_BLOCKS != SEGMENT_BLOCKS - 1 && !last) return;
    const int place = (int)(b / SEGMENT_BLOCKS % FOLDED);
    s->segment[place] = fold(s->group);
    if (place == FOLDED - 1 || last) s->total += fold(s->segment);
}

/* Block b of n_blocks, zero beyond a tail. */
AGOQK_INLINE void row_sum_add(row_sum *s, int64_t b, int64_t n_blocks, const float e[AGOQ_BLOCK]) {
    float *group = row_sum_groups(s, b);
    for (int g = 0; g < AGOQ_BLOCK / 8; g++, e += 8)
        group[g] = ((e[0] + e[4]) + (e[2] + e[6])) + ((e[1] + e[5]) + (e[3] + e[7]));
    row_sum_fold(s, b, n_blocks);
}

AGOQK_INLINE void row_sum_add_products(row_sum *s, int64_t b, int64_t n_blocks, const float *x,
                                       const float *y) {
    float *group = row_sum_groups(s, b);
    for (int g = 0; g < AGOQ_BLOCK / 8; g++) group[g] = agoqk_products8(x + 8 * g, y + 8 * g);
    row_sum_fold(s, b, n_blocks);
}

/* A row's input is a matrix or a packed tensor. */
typedef struct row_source {
    const agoq_view *view; /* NULL: packed */
    const agoq_packed *packed;
    int64_t cols;
} row_source;

AGOQK_INLINE void source_load(const row_source *s, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    if (s->view) {
        agoqk_view_load(s->view, r, b, x);
    } else {
        agoqk_block_get(s->packed, r, b, x);
    }
}

typedef struct row_stats {
    float mean, inv;
} row_stats;

/* x - mean, and zero beyond the tail. */
AGOQK_INLINE void center(float x[AGOQ_BLOCK], float mean, int n) {
    for (int i = 0; i < AGOQ_BLOCK; i++) x[i] -= mean;
    for (int i = n; i < AGOQ_BLOCK; i++) x[i] = 0.0f;
}

static float per_column(int64_t cols) {
    return 1.0f / (float)cols;
}

/* d of one block: RMS leaves x as it is (x - 0 would make +0 of -0 - harmless, but not needed). */
AGOQK_INLINE void deviations(const row_source *s, const agoq_norm *norm, int64_t r, int64_t b, float mean,
                             float d[AGOQ_BLOCK]) {
    source_load(s, r, b, d);
    if (norm->kind == AGOQ_NORM_LAYER) center(d, mean, agoqk_tail(s->cols, b, AGOQ_BLOCK));
}

static float mean_of(const row_source *s, int64_t r) {
    const int64_t n_blocks = agoqk_blocks(s->cols, AGOQ_BLOCK);
    float x[AGOQ_BLOCK];
    row_sum sum;
    sum.total = 0.0f;
    for (int64_t b = 0; b < n_blocks; b++) {
        source_load(s, r, b, x);
        row_sum_add(&sum, b, n_blocks, x);
    }
    return sum.total * per_column(s->cols);
}

static float inverse_deviation(const row_source *s, const agoq_norm *norm, int64_t r, float mean) {
    const int64_t n_blocks = agoqk_blocks(s->cols, AGOQ_BLOCK);
    float d[AGOQ_BLOCK];
    row_sum squares;
    squares.total = 0.0f;
    for (int64_t b = 0; b < n_blocks; b++) {
        deviations(s, norm, r, b, mean, d);
        row_sum_add_products(&squares, b, n_blocks, d, d);
    }
    return agoqk_norm_inverse(squares.total, per_column(s->cols), norm->eps);
}

AGOQK_INLINE void load_vector(const void *from, const agoq_norm *norm, int64_t cols, int64_t b, float *out) {
    agoqk_load(from, norm->weight_dtype, b * AGOQ_BLOCK, agoqk_tail(cols, b, AGOQ_BLOCK), out, AGOQ_BLOCK);
}

/* y = xhat * weight + bias of one block of deviations, which is used up. */
AGOQK_INLINE void write_y(const agoq_view *y, int64_t r, int64_t b, float *h, float inv,
                          const agoq_norm *norm) {
    float w[AGOQ_BLOCK];
    for (int i = 0; i < AGOQ_BLOCK; i++) h[i] *= inv;
    if (norm->round_first && (norm->round_bf16 || y->dtype == AGOQ_DTYPE_BF16)) {
        agoqk_round_bf16(h);
    } else if (norm->round_first && y->dtype == AGOQ_DTYPE_F16) {
        for (int i = 0; i < AGOQ_BLOCK; i++) h[i] = agoqk_f16_decode(agoqk_f16_encode(h[i]));
    }
    if (norm->weight) {
        load_vector(norm->weight, norm, y->cols, b, w);
        for (int i = 0; i < AGOQ_BLOCK; i++) h[i] *= w[i];
    }
    if (norm->bias) {
        load_vector(norm->bias, norm, y->cols, b, w);
        for (int i = 0; i < AGOQ_BLOCK; i++) h[i] += w[i];
    }
    if (norm->round_bf16) agoqk_round_bf16(h);
    agoqk_view_store(y, r, b, h);
}

static void write_row(const row_source *s, const agoq_norm *norm, int64_t r, row_stats stats,
                      const agoq_view *y) {
    float d[AGOQ_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(s->cols, AGOQ_BLOCK); b++) {
        deviations(s, norm, r, b, stats.mean, d);
        write_y(y, r, b, d, stats.inv, norm);
    }
}

/* x := round(x + residual) in the dtype of sum, written there. */
static void add_residual(const agoq_view *residual, const agoq_view *sum, int64_t r, int64_t b,
                         int round_bf16, float *x) {
    float other[AGOQ_BLOCK];
    agoqk_view_load(residual, r, b, other);
    for (int i = 0; i < AGOQ_BLOCK; i++) x[i] += other[i];
    if (round_bf16) agoqk_round_bf16(x);
    agoqk_view_store(sum, r, b, x);
    agoqk_view_load(sum, r, b, x);
}

agoq_status AGOQK_CPU(norm_fwd_pack)(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                     const agoq_norm *norm, const agoq_view *sum, const agoq_view *y,
                                     const agoq_packed *packed) {
    const agoqk_random nearest = agoqk_random_make(NULL);
    const int64_t n_blocks = agoqk_blocks(x->cols, AGOQ_BLOCK);
    const row_source source = {residual ? sum : x, NULL, x->cols};
    const int layer = norm->kind == AGOQ_NORM_LAYER;
    uint32_t nonfinite = 0;
    float buf[AGOQ_BLOCK];
    for (int64_t r = 0; r < x->rows && x->cols > 0; r++) {
        row_stats stats = {0.0f, 0.0f};
        row_sum sums; /* of x for a mean, else of its squares */
        for (int64_t b = 0; b < n_blocks; b++) {
            agoqk_view_load(x, r, b, buf);
            if (residual) add_residual(residual, sum, r, b, norm->round_bf16, buf);
            if (layer) {
                row_sum_add(&sums, b, n_blocks, buf);
            } else {
                row_sum_add_products(&sums, b, n_blocks, buf, buf);
            }
            nonfinite += agoqk_block_put(packed, r, b, buf, &nearest, exec->nonfinite != NULL);
        }
        if (n_blocks == 0) continue;
        if (layer) stats.mean = sums.total * per_column(x->cols);
        stats.inv = layer ? inverse_deviation(&source, norm, r, stats.mean)
                          : agoqk_norm_inverse(sums.total, per_column(x->cols), norm->eps);
        write_row(&source, norm, r, stats, y);
    }
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(norm_fwd_packed)(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *y) {
    (void)exec;
    const row_source source = {NULL, packed, y->cols};
    for (int64_t r = 0; r < y->rows && y->cols > 0; r++) {
        row_stats stats = {0.0f, 0.0f};
        if (norm->kind == AGOQ_NORM_LAYER) stats.mean = mean_of(&source, r);
        stats.inv = inverse_deviation(&source, norm, r, stats.mean);
        write_row(&source, norm, r, stats, y);
    }
    return AGOQ_OK;
}

/* What backward needs of a row: its statistics, and the two numbers of agoqk_norm_dx. */
typedef struct backward_stats {
    float mean, inv, shift, slope;
} backward_stats;

/* The weights of one block, zero beyond the tail; ones if there are none. */
AGOQK_INLINE void load_weights(const agoq_norm *norm, int64_t cols, int64_t b, float *w) {
    for (int i = 0; i < AGOQ_BLOCK; i++) w[i] = 1.0f;
    if (norm->weight) load_vector(norm->weight, norm, cols, b, w);
}

static backward_stats backward_row(const row_source *s, const agoq_norm *norm, const agoq_view *dy,
                                   int64_t r) {
    const int64_t n_blocks = agoqk_blocks(s->cols, AGOQ_BLOCK);
    const int layer = norm->kind == AGOQ_NORM_LAYER;
    backward_stats stats = {0.0f, 0.0f, 0.0f, 0.0f};
    float d[AGOQ_BLOCK], g[AGOQ_BLOCK], w[AGOQ_BLOCK];
    row_sum squares, dots, sums;
    squares.total = dots.total = sums.total = 0.0f;
    if (layer) stats.mean = mean_of(s, r);
    for (int64_t b = 0; b < n_blocks; b++) {
        deviations(s, norm, r, b, stats.mean, d);
        agoqk_view_load(dy, r, b, g);
        load_weights(norm, dy->cols, b, w);
        for (int i = 0; i < AGOQ_BLOCK; i++) g[i] *= w[i];
        row_sum_add_products(&squares, b, n_blocks, d, d);
        row_sum_add_products(&dots, b, n_blocks, g, d);
        if (layer) row_sum_add(&sums, b, n_blocks, g);
    }
    const float per_col = per_column(s->cols);
    stats.inv = agoqk_norm_inverse(squares.total, per_col, norm->eps);
    stats.slope = agoqk_norm_slope(dots.total, per_col, stats.inv);
    if (layer) stats.shift = sums.total * per_col * stats.inv;
    return stats;
}

/* Sums over the rows of a chunk, for one block of columns: even rows apart from odd ones. */
typedef struct column_sums {
    float weight[2][AGOQ_BLOCK], bias[2][AGOQ_BLOCK];
} column_sums;

static void add_columns(float *into, float part[2][AGOQ_BLOCK], int64_t cols, int64_t b) {
    const int n = agoqk_tail(cols, b, AGOQ_BLOCK);
    for (int i = 0; into && i < n; i++) into[b * AGOQ_BLOCK + i] += part[0][i] + part[1][i];
}

/* dx of one block, in d; its terms of dweight and dbias go to the sums of this row's parity. */
AGOQK_INLINE void backward_block(const backward_stats *s, const float *dy, const float *w, float *d,
                                 float *weight_sum, float *bias_sum) {
    for (int i = 0; i < AGOQ_BLOCK; i++) {
        const float h = dy[i] * s->inv;
        weight_sum[i] = fmaf(h, d[i], weight_sum[i]);
        bias_sum[i] += dy[i];
        d[i] = agoqk_norm_dx(h, w[i], d[i], s->shift, s->slope);
    }
}

agoq_status AGOQK_CPU(norm_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                       float *dweight, float *dbias) {
    (void)exec;
    const int64_t rows = dy->rows, cols = dy->cols;
    const row_source source = {NULL, packed, cols};
    backward_stats stats[CHUNK_ROWS];
    float d[AGOQ_BLOCK], dy_block[AGOQ_BLOCK], w[AGOQ_BLOCK];
    for (int64_t first = 0; first < rows && cols > 0; first += CHUNK_ROWS) {
        const int64_t end = rows - first < CHUNK_ROWS ? rows : first + CHUNK_ROWS;
        for (int64_t r = first; r < end; r++) stats[r - first] = backward_row(&source, norm, dy, r);
        for (int64_t b = 0; b < agoqk_blocks(cols, AGOQ_BLOCK); b++) {
            column_sums sums = {{{0}}, {{0}}};
            load_weights(norm, cols, b, w);
            for (int64_t r = first; r < end; r++) {
                const backward_stats *s = &stats[r - first];
                const int odd = (int)((r - first) % 2);
                deviations(&source, norm, r, b, s->mean, d);
                agoqk_view_load(dy, r, b, dy_block);
                backward_block(s, dy_block, w, d, sums.weight[odd], sums.bias[odd]);
                if (norm->round_bf16) agoqk_round_bf16(d);
                agoqk_view_store(dx, r, b, d);
            }
            add_columns(dweight, sums.weight, cols, b);
            add_columns(dbias, sums.bias, cols, b);
        }
    }
    return AGOQ_OK;
}
