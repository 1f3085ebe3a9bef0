/* 8-bit main gradients: accumulate (stochastic by default: nearest stagnates once an increment is below half
 * a step), read, squared norm, and the local sum of QuanGrad. Everything works block by block, so that
 * in-place use is safe; sums are fp32 in the order of the inputs. A NaN or Inf makes its block NaN, for good,
 * until the gradient is zeroed. */
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/grad_block.h"

enum { SQNORM_CHUNK = 256 };

agoq_status AGOQK_CPU(grad_zero)(const agoq_exec *exec, const agoq_grad *grad) {
    (void)exec;
    if (grad->n == 0) return AGOQ_OK;
    memset(grad->codes, 0, (size_t)grad->n);
    for (int64_t b = 0; b < agoqk_blocks(grad->n, AGOQ_GRAD_BLOCK); b++) grad->scales[b] = 0.0f;
    return AGOQ_OK;
}

static uint32_t accumulate(const agoq_grad_term *term, agoq_dtype dtype, int stochastic) {
    const agoqk_random random = agoqk_random_make(stochastic ? &term->key : NULL);
    const agoq_grad *grad = &term->grad;
    uint32_t nonfinite = 0;
    float sum[AGOQ_GRAD_BLOCK], add[AGOQ_GRAD_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(grad->n, AGOQ_GRAD_BLOCK); b++) {
        const int64_t at = b * AGOQ_GRAD_BLOCK;
        agoqk_grad_get(grad, b, sum);
        agoqk_load(term->x, dtype, at, agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK), add, AGOQ_GRAD_BLOCK);
        for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) sum[i] += add[i];
        nonfinite += agoqk_grad_put(grad, b, sum, &random, random.offset + (uint64_t)at);
    }
    return nonfinite;
}

agoq_status AGOQK_CPU(grad_accumulate)(const agoq_exec *exec, const agoq_grad_term *terms, int n_terms,
                                       agoq_dtype x_dtype, int stochastic) {
    uint32_t nonfinite = 0;
    for (int i = 0; i < n_terms; i++) nonfinite += accumulate(&terms[i], x_dtype, stochastic);
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(grad_check_finite)(const agoq_exec *exec, const agoq_grad *grad, uint32_t *blocks) {
    (void)exec;
    uint32_t n = 0;
    for (int64_t b = 0; b < agoqk_blocks(grad->n, AGOQ_GRAD_BLOCK); b++)
        n += (agoqk_bits(grad->scales[b]) & AGOQK_INF_BITS) == AGOQK_INF_BITS;
    agoqk_count(blocks, n);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(grad_read)(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                                 float multiplier, float *out) {
    (void)exec;
    const int64_t end = begin + count;
    float x[AGOQ_GRAD_BLOCK];
    for (int64_t i = begin; i < end;) {
        const int64_t b = i / AGOQ_GRAD_BLOCK;
        const int from = (int)(i % AGOQ_GRAD_BLOCK);
        const int tail = agoqk_tail(end, b, AGOQ_GRAD_BLOCK);
        agoqk_grad_get(grad, b, x);
        for (int j = from; j < tail; j++) out[i - begin + j - from] = agoqk_canonical(multiplier * x[j]);
        i += tail - from;
    }
    return AGOQ_OK;
}

/* Sums count values in halves; what is missing of SQNORM_CHUNK is +0. */
static double fold(double v[SQNORM_CHUNK], int64_t count) {
    for (int64_t i = count; i < SQNORM_CHUNK; i++) v[i] = 0.0;
    for (int h = SQNORM_CHUNK / 2; h > 0; h /= 2) {
        for (int i = 0; i < h; i++) v[i] += v[i + h];
    }
    return v[0];
}

static double chunk_sum(const agoq_grad *grad, int64_t first, int64_t count) {
    double term[SQNORM_CHUNK];
    for (int64_t i = 0; i < count; i++) {
        const double scale = (double)grad->scales[first + i];
        term[i] = agoqk_grad_sum(grad, first + i) * (scale * scale);
    }
    return fold(term, count);
}

/* The order is that of a device: 256 blocks, 256 such chunks, and those one after another. */
agoq_status AGOQK_CPU(grad_sqnorm)(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    (void)exec;
    const int64_t n_blocks = agoqk_blocks(grad->n, AGOQ_GRAD_BLOCK);
    double total = 0.0, chunk[SQNORM_CHUNK];
    int filled = 0;
    for (int64_t first = 0; first < n_blocks; first += SQNORM_CHUNK) {
        const int64_t left = n_blocks - first;
        chunk[filled++] = chunk_sum(grad, first, left < SQNORM_CHUNK ? left : SQNORM_CHUNK);
        if (filled < SQNORM_CHUNK && left > SQNORM_CHUNK) continue;
        total += fold(chunk, filled);
        filled = 0;
    }
    total += *sqnorm;
    const uint64_t nan = UINT64_C(0x7FF8) << 48; /* the only NaN that is ever written */
    if (total != total) memcpy(&total, &nan, sizeof total);
    *sqnorm = total;
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(grad_reduce)(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                                   const agoq_grad *out8, float *out32) {
    const agoqk_random nearest = agoqk_random_make(NULL);
    uint32_t nonfinite = 0;
    float sum[AGOQ_GRAD_BLOCK], x[AGOQ_GRAD_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(in[0].n, AGOQ_GRAD_BLOCK); b++) {
        agoqk_grad_get(&in[0], b, sum);
        for (int k = 1; k < n_in; k++) {
            agoqk_grad_get(&in[k], b, x);
            for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) sum[i] += x[i];
        }
        for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) sum[i] = agoqk_canonical(multiplier * sum[i]);
        if (out8) {
            nonfinite += agoqk_grad_put(out8, b, sum, &nearest, 0);
        } else {
            const int n = agoqk_tail(in[0].n, b, AGOQ_GRAD_BLOCK);
            memcpy(out32 + b * AGOQ_GRAD_BLOCK, sum, (size_t)n * sizeof *sum);
            nonfinite += exec->nonfinite && agoqk_stat_nonfinite(agoqk_block_stat(sum, n));
        }
    }
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}
