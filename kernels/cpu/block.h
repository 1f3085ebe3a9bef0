/* What every CPU kernel is made of: one block (64 elements of a row, or 128 of a gradient) at a time in a
 * float buffer on the stack. Loads and stores go through memcpy, so any alignment is legal; buffers are zero
 * beyond a short tail, so that loops always run the full width and vectorise. The trade-off: rows are decoded
 * twice where a kernel needs a row statistic first, because kernels may not allocate. */
#ifndef KERNELS_CPU_BLOCK_H
#define KERNELS_CPU_BLOCK_H

#include "agoq/agoq.h"
#include "kernels/format/philox.h"

/* Random bits for a call: element (r, c) of a rows x cols tensor has global index offset + r * cols + c. */
typedef struct agoqk_random {
    agoqk_stream stream;
    uint64_t offset;
    int stochastic; /* 0: nearest even, nothing else is read */
} agoqk_random;

agoqk_random agoqk_random_make(const agoq_key *key); /* NULL: nearest even */

/* words[i] of global indices first + i, 0 <= i < n <= 128. */
void agoqk_random_words(const agoqk_random *random, uint64_t first, int n, uint32_t words[AGOQ_GRAD_BLOCK]);

/* n elements from index `at` of a flat array; out[n .. size) becomes 0. */
void agoqk_load(const void *base, agoq_dtype dtype, int64_t at, int n, float *out, int size);
/* To nearest even. */
void agoqk_store(void *base, agoq_dtype dtype, int64_t at, int n, const float *in);
void agoqk_round_bf16(float *x, int n);

/* Largest statistic (kernels/format/hd.h) of x[0 .. n). */
uint32_t agoqk_block_stat(const float *x, int n);

/* Block b of row r of a packed tensor: the encoder writes its words and scale and returns 1 if it met a NaN
 * or Inf (looked for at width 16 only if `count`); x is zero beyond the tail. The decoder leaves zeros beyond
 * the tail. */
uint32_t agoqk_block_put(const agoq_packed *packed, int64_t r, int64_t b, const float x[AGOQ_BLOCK],
                         const agoqk_random *random, int count);
void agoqk_block_get(const agoq_packed *packed, int64_t r, int64_t b, float x[AGOQ_BLOCK]);

/* Block b of a gradient, x zero beyond the tail; first: global index of its first element. Returns as above.
 */
uint32_t agoqk_grad_put(const agoq_grad *grad, int64_t b, const float x[AGOQ_GRAD_BLOCK],
                        const agoqk_random *random, uint64_t first);
void agoqk_grad_get(const agoq_grad *grad, int64_t b, float x[AGOQ_GRAD_BLOCK]);

static inline int64_t agoqk_blocks(int64_t n, int block) {
    return n / block + (n % block != 0);
}

static inline int agoqk_tail(int64_t n, int64_t b, int block) {
    const int64_t left = n - b * block;
    return left < block ? (int)left : block;
}

/* Block b of row r of a matrix; x is zero beyond the tail. */
static inline void agoqk_view_load(const agoq_view *v, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    const int n = agoqk_tail(v->cols, b, AGOQ_BLOCK);
    agoqk_load(v->data, v->dtype, r * v->row_stride + b * AGOQ_BLOCK, n, x, AGOQ_BLOCK);
}

static inline void agoqk_view_store(const agoq_view *v, int64_t r, int64_t b, const float x[AGOQ_BLOCK]) {
    const int n = agoqk_tail(v->cols, b, AGOQ_BLOCK);
    agoqk_store(v->data, v->dtype, r * v->row_stride + b * AGOQ_BLOCK, n, x);
}

static inline void agoqk_count(const agoq_exec *exec, uint32_t blocks) {
    if (exec->nonfinite) *exec->nonfinite += blocks;
}

#endif
