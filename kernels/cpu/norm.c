/* RMSNorm rows fused with pack and unpack. Forward normalises the exact row and keeps only the packed one;
 * backward reads the packed row and recomputes 1/rms. Sums are fp32 in a fixed order, so that a GPU can
 * reproduce them: 256 lanes, lane i % 256 takes its elements in order, then lanes fold in halves (128, 64, ..
 * 1). dgamma: chunks of 64 rows are summed row by row from zero, then added to dgamma in order. Every row is
 * read twice: kernels may not allocate a row. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

#include <math.h>

#include "kernels/format/half.h"

enum { LANES = 256, CHUNK_ROWS = 64 };

/* Lanes that no element reaches hold +0 and change nothing, so folding starts at the first power of two >=
 * cols. */
static int lanes_of(int64_t cols) {
    int lanes = AGOQ_BLOCK;
    while (lanes < LANES && lanes < cols) lanes *= 2;
    return lanes;
}

AGOQK_INLINE void fold_once(float *lane, int half) { /* half is a constant */
    for (int i = 0; i < half; i++) lane[i] += lane[i + half];
}

static float fold(float *lane, int lanes) {
    if (lanes > 128) fold_once(lane, 128);
    if (lanes > 64) fold_once(lane, 64);
    fold_once(lane, 32);
    fold_once(lane, 16);
    fold_once(lane, 8);
    fold_once(lane, 4);
    fold_once(lane, 2);
    return lane[0] + lane[1];
}

AGOQK_INLINE void add_products(float *lane, int64_t b, const float *x, const float *y) {
    float *at = lane + b * AGOQ_BLOCK % LANES;
    for (int i = 0; i < AGOQ_BLOCK; i++) at[i] += x[i] * y[i];
}

static float inverse_rms(float sum_squares, int64_t cols, float eps) {
    return 1.0f / sqrtf(sum_squares / (float)cols + eps);
}

AGOQK_INLINE void load_gamma(const float *gamma, int64_t cols, int64_t b, float *g) {
    if (gamma) {
        agoqk_load(gamma, AGOQ_DTYPE_F32, b * AGOQ_BLOCK, agoqk_tail(cols, b, AGOQ_BLOCK), g, AGOQ_BLOCK);
    } else {
        for (int i = 0; i < AGOQ_BLOCK; i++) g[i] = 1.0f;
    }
}

/* y = (x * inv) * gamma of one block. */
static void write_y(const agoq_view *y, int64_t r, int64_t b, float *x, float inv, const agoq_norm *norm) {
    float g[AGOQ_BLOCK];
    load_gamma((const float *)norm->weight, y->cols, b, g);
    for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = x[i] * inv * g[i];
    if (norm->round_bf16) agoqk_round_bf16(x);
    agoqk_view_store(y, r, b, x);
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
    const int lanes = lanes_of(x->cols);
    const agoq_view *input = residual ? sum : x;
    uint32_t nonfinite = 0;
    float buf[AGOQ_BLOCK];
    for (int64_t r = 0; r < x->rows; r++) {
        float lane[LANES] = {0};
        for (int64_t b = 0; b < n_blocks; b++) {
            agoqk_view_load(x, r, b, buf);
            if (residual) add_residual(residual, sum, r, b, norm->round_bf16, buf);
            add_products(lane, b, buf, buf);
            nonfinite += agoqk_block_put(packed, r, b, buf, &nearest, exec->nonfinite != NULL);
        }
        const float inv = inverse_rms(fold(lane, lanes), x->cols, norm->eps);
        for (int64_t b = 0; b < n_blocks; b++) {
            agoqk_view_load(input, r, b, buf);
            write_y(y, r, b, buf, inv, norm);
        }
    }
    agoqk_count(exec, nonfinite);
    return AGOQ_OK;
}

static float packed_inverse_rms(const agoq_packed *packed, int64_t r, float eps) {
    const int64_t cols = packed->layout.cols;
    float lane[LANES] = {0}, x[AGOQ_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(cols, AGOQ_BLOCK); b++) {
        agoqk_block_get(packed, r, b, x);
        add_products(lane, b, x, x);
    }
    return inverse_rms(fold(lane, lanes_of(cols)), cols, eps);
}

agoq_status AGOQK_CPU(norm_fwd_packed)(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *y) {
    (void)exec;
    float buf[AGOQ_BLOCK];
    for (int64_t r = 0; r < y->rows; r++) {
        const float inv = packed_inverse_rms(packed, r, norm->eps);
        for (int64_t b = 0; b < agoqk_blocks(y->cols, AGOQ_BLOCK); b++) {
            agoqk_block_get(packed, r, b, buf);
            write_y(y, r, b, buf, inv, norm);
        }
    }
    return AGOQ_OK;
}

/* What backward needs of a row: 1/rms, and the mean of gamma * dy * xhat. */
typedef struct row_stats {
    float inv, mean;
} row_stats;

static row_stats backward_stats(const agoq_packed *packed, const agoq_norm *norm, const agoq_view *dy,
                                int64_t r) {
    const int64_t cols = packed->layout.cols;
    float squares[LANES] = {0}, dots[LANES] = {0}, x[AGOQ_BLOCK], g[AGOQ_BLOCK], dy_block[AGOQ_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(cols, AGOQ_BLOCK); b++) {
        agoqk_block_get(packed, r, b, x);
        agoqk_view_load(dy, r, b, dy_block);
        load_gamma((const float *)norm->weight, cols, b, g);
        add_products(squares, b, x, x);
        for (int i = 0; i < AGOQ_BLOCK; i++) g[i] *= dy_block[i];
        add_products(dots, b, g, x);
    }
    row_stats stats;
    stats.inv = inverse_rms(fold(squares, lanes_of(cols)), cols, norm->eps);
    stats.mean = fold(dots, lanes_of(cols)) * stats.inv / (float)cols;
    return stats;
}

agoq_status AGOQK_CPU(norm_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                       float *dweight, float *dbias) {
    (void)dbias;
    (void)exec;
    const int64_t rows = dy->rows, cols = dy->cols;
    row_stats stats[CHUNK_ROWS];
    float xhat[AGOQ_BLOCK], dy_block[AGOQ_BLOCK], g[AGOQ_BLOCK];
    for (int64_t first = 0; first < rows; first += CHUNK_ROWS) {
        const int64_t end = rows - first < CHUNK_ROWS ? rows : first + CHUNK_ROWS;
        for (int64_t r = first; r < end; r++) stats[r - first] = backward_stats(packed, norm, dy, r);
        for (int64_t b = 0; b < agoqk_blocks(cols, AGOQ_BLOCK); b++) {
            float part[AGOQ_BLOCK] = {0};
            load_gamma((const float *)norm->weight, cols, b, g);
            for (int64_t r = first; r < end; r++) {
                const row_stats s = stats[r - first];
                agoqk_block_get(packed, r, b, xhat);
                agoqk_view_load(dy, r, b, dy_block);
                for (int i = 0; i < AGOQ_BLOCK; i++) {
                    xhat[i] *= s.inv;
                    part[i] += dy_block[i] * xhat[i];
                    xhat[i] = s.inv * (g[i] * dy_block[i] - xhat[i] * s.mean);
                }
                if (norm->round_bf16) agoqk_round_bf16(xhat);
                agoqk_view_store(dx, r, b, xhat);
            }
            const int n = agoqk_tail(cols, b, AGOQ_BLOCK);
            for (int i = 0; dweight && i < n; i++) dweight[b * AGOQ_BLOCK + i] += part[i];
        }
    }
    return AGOQ_OK;
}
