/* Causal grouped-query attention that never stores probabilities: forward keeps the log-sum-exp, backward
 * recomputes them from Q, K and it, as flash attention does. */
#ifndef TRAINER_ATTENTION_H
#define TRAINER_ATTENTION_H

#include "trainer/ops.h"

enum { ATTENTION_BLOCK = 64 }; /* query rows at a time */

typedef struct attention_shape {
    int seq, n_seqs, heads, kv_heads, head_dim;
} attention_shape;

/* Floats of scratch that both directions need. */
size_t attention_scratch(const attention_shape *s);
/* qkv: rows of [Q heads | K kv_heads | V kv_heads], rotated. o: [tokens][heads * head_dim]. lse:
 * [heads][tokens]. */
void attention_forward(const attention_shape *s, ops_mat qkv, int round, ops_mat o, float *lse,
                       float *scratch);
/* dqkv is overwritten, not rounded (the caller rotates dQ and dK back first). */
void attention_backward(const attention_shape *s, ops_mat qkv, ops_mat o, ops_mat d_o, const float *lse,
                        ops_mat dqkv, float *scratch);

#endif
