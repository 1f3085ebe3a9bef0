/* What every CPU kernel is made of: one block (64 elements of a row, or 128 of a gradient) at a time in a
 * float buffer on the stack. Loads and stores go through memcpy, so any alignment is legal; buffers are zero
 * beyond a short tail, so that loops always run the full width and vectorise. The trade-off: rows are decoded
 * twice where a kernel needs a row statistic first, because kernels may not allocate. */
#ifndef KERNELS_CPU_BLOCK_H
#define KERNELS_CPU_BLOCK_H

#include "agoq/agoq.h"
#include "kernels/cpu/level.h"
#include "kernels/format/half.h"
#include "kernels/format/philox.h"

#define agoqk_random_make AGOQK_CPU(random_make)
#define agoqk_block_put   AGOQK_CPU(block_put)
#define agoqk_block_get   AGOQK_CPU(block_get)
#define agoqk_row_put     AGOQK_CPU(row_put)
#define agoqk_row_get     AGOQK_CPU(row_get)
#define agoqk_rows_end    AGOQK_CPU(rows_end)

/* Random bits for a call: element (r, c) of a rows x cols tensor has global index offset + r * cols + c. */
typedef struct agoqk_random {
    agoqk_stream stream;
    uint64_t offset;
    int stochastic; /* 0: nearest even, nothing else is read */
} agoqk_random;

agoqk_random agoqk_random_make(const agoq_key *key); /* NULL: nearest even */

/* Block b of row r of a packed tensor: the encoder writes its words and scale and returns 1 if it met a NaN
 * or Inf (looked for at width 16 only if `count`); x is zero beyond the tail. The decoder leaves zeros beyond
 * the tail. */
uint32_t agoqk_block_put(const agoq_packed *packed, int64_t r, int64_t b, const float x[AGOQ_BLOCK],
                         const agoqk_random *random, int count);
void agoqk_block_get(const agoq_packed *packed, int64_t r, int64_t b, float x[AGOQ_BLOCK]);

/* The same for row r of a matrix, to nearest even: its whole blocks are not copied. Returns blocks with a NaN
 * or Inf. */
uint32_t agoqk_row_put(const agoq_packed *packed, int64_t r, const agoq_view *x, int count);
void agoqk_row_get(const agoq_packed *packed, int64_t r, const agoq_view *y);
/* After the last row of a call: a large tensor's rows may have been written past the caches, by stores that
 * are in no order with what the caller does next to say that they are there. */
void agoqk_rows_end(void);

enum { AGOQK_GROUP = 8 }; /* blocks whose scales are made side by side */

static inline int64_t agoqk_blocks(int64_t n, int block) {
    return n / block + (n % block != 0);
}

static inline int agoqk_tail(int64_t n, int64_t b, int block) {
    const int64_t left = n - b * block;
    return left < block ? (int)left : block;
}

/* n elements from index `at` of a flat array; out[n .. size) becomes 0. `size` is a constant of the caller: a
 * whole block is copied and converted by loops of constant length. */
AGOQK_INLINE void agoqk_load(const void *base, agoq_dtype dtype, int64_t at, int n, float *out, int size) {
    const size_t bytes = dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    const uint8_t *from = (const uint8_t *)base + (size_t)at * bytes;
    uint16_t half[AGOQ_GRAD_BLOCK];
    void *to = dtype == AGOQ_DTYPE_F32 ? (void *)out : (void *)half;
    if (n == size) {
        memcpy(to, from, (size_t)size * bytes);
    } else {
        memset(to, 0, (size_t)size * bytes);
        memcpy(to, from, (size_t)n * bytes);
    }
    if (dtype == AGOQ_DTYPE_BF16) {
        for (int i = 0; i < size; i++) out[i] = agoqk_bf16_decode(half[i]);
    } else if (dtype == AGOQ_DTYPE_F16) {
        for (int i = 0; i < size; i++) out[i] = agoqk_f16_decode(half[i]);
    }
}

/* To nearest even. */
AGOQK_INLINE void agoqk_store(void *base, agoq_dtype dtype, int64_t at, int n, const float *in, int size) {
    const size_t bytes = dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    uint8_t *to = (uint8_t *)base + (size_t)at * bytes;
    uint16_t half[AGOQ_GRAD_BLOCK];
    const void *from = dtype == AGOQ_DTYPE_F32 ? (const void *)in : (const void *)half;
    if (dtype == AGOQ_DTYPE_BF16) {
        for (int i = 0; i < size; i++) half[i] = agoqk_bf16_encode(in[i]);
    } else if (dtype == AGOQ_DTYPE_F16) {
        for (int i = 0; i < size; i++) half[i] = agoqk_f16_encode(in[i]);
    }
    if (n == size) {
        memcpy(to, from, (size_t)size * bytes);
    } else {
        memcpy(to, from, (size_t)n * bytes);
    }
}

AGOQK_INLINE void agoqk_round_bf16(float x[AGOQ_BLOCK]) {
    for (int i = 0; i < AGOQ_BLOCK; i++) x[i] = agoqk_bf16_round(x[i]);
}

/* Largest statistic (kernels/format/hd.h) of x[0 .. n). */
AGOQK_INLINE uint32_t agoqk_block_stat(const float *x, int n) {
    uint32_t stat = 0;
    for (int i = 0; i < n; i++) {
        const uint32_t s = agoqk_stat(x[i]);
        stat = s > stat ? s : stat;
    }
    return stat;
}

/* Block b of row r of a matrix; x is zero beyond the tail. */
AGOQK_INLINE void agoqk_view_load(const agoq_view *v, int64_t r, int64_t b, float x[AGOQ_BLOCK]) {
    const int n = agoqk_tail(v->cols, b, AGOQ_BLOCK);
    agoqk_load(v->data, v->dtype, r * v->row_stride + b * AGOQ_BLOCK, n, x, AGOQ_BLOCK);
}

AGOQK_INLINE void agoqk_view_store(const agoq_view *v, int64_t r, int64_t b, const float x[AGOQ_BLOCK]) {
    const int n = agoqk_tail(v->cols, b, AGOQ_BLOCK);
    agoqk_store(v->data, v->dtype, r * v->row_stride + b * AGOQ_BLOCK, n, x, AGOQ_BLOCK);
}

/* Counters of blocks, which calls of several threads may share; NULL: not counted. */
static inline void agoqk_count(uint32_t *counter, uint32_t blocks) {
    if (counter && blocks) __atomic_fetch_add(counter, blocks, __ATOMIC_RELAXED);
}

#endif
