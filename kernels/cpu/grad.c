/* FP8 main gradients: accumulate (stochastic by default: nearest stagnates once an increment is below half a
 * step), read, squared norm, and the local sum of QuanGrad. Everything works block by block, so that in-place
 * use is safe; sums are fp32 in the order of the inputs. A NaN or Inf makes its block NaN, for good, until
 * the gradient is zeroed. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

#include "kernels/format/e4m3.h"

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
    agoqk_count(exec, nonfinite);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(grad_check_finite)(const agoq_exec *exec, const agoq_grad *grad, uint32_t *blocks) {
    (void)exec;
    uint32_t n = 0;
    for (int64_t b = 0; b < agoqk_blocks(grad->n, AGOQ_GRAD_BLOCK); b++)
        n += (agoqk_bits(grad->scales[b]) & AGOQK_INF_BITS) == AGOQK_INF_BITS;
    *blocks += n;
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

/* The sum of a block's squared E4M3 values is exact in double (a multiple of 2^-18 below 2^25), in any order.
 */
static double sum_squares(const uint8_t *codes, int n) {
    enum { SUMS = 16 };
    uint8_t code[AGOQ_GRAD_BLOCK] = {0};
    double square[AGOQ_GRAD_BLOCK], sum[SUMS] = {0};
    memcpy(code, codes, (size_t)n);
    for (int i = 0; i < AGOQ_GRAD_BLOCK; i++) {
        const double value = (double)agoqk_e4m3_value(code[i]);
        square[i] = value * value;
    }
    for (int i = 0; i < AGOQ_GRAD_BLOCK; i += SUMS) {
        for (int j = 0; j < SUMS; j++) sum[j] += square[i + j];
    }
    double block = 0.0;
    for (int j = 0; j < SUMS; j++) block += sum[j];
    return block;
}

/* Chunks of blocks fix the order of what is not exact. */
agoq_status AGOQK_CPU(grad_sqnorm)(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    (void)exec;
    const int64_t n_blocks = agoqk_blocks(grad->n, AGOQ_GRAD_BLOCK);
    double total = 0.0;
    for (int64_t first = 0; first < n_blocks; first += SQNORM_CHUNK) {
        const int64_t end = n_blocks - first < SQNORM_CHUNK ? n_blocks : first + SQNORM_CHUNK;
        double chunk = 0.0;
        for (int64_t b = first; b < end; b++) {
            const double block =
                sum_squares(grad->codes + b * AGOQ_GRAD_BLOCK, agoqk_tail(grad->n, b, AGOQ_GRAD_BLOCK));
            const double scale = (double)grad->scales[b];
            chunk += block * (scale * scale);
        }
        total += chunk;
    }
    *sqnorm += total;
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
    agoqk_count(exec, nonfinite);
    return AGOQ_OK;
}
