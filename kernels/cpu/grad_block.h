/* One block of a gradient at a time, between its codes and a float buffer (see block.h), in any format. */
#ifndef KERNELS_CPU_GRAD_BLOCK_H
#define KERNELS_CPU_GRAD_BLOCK_H

#include "kernels/cpu/block.h"

#define agoqk_grad_put AGOQK_CPU(grad_put)
#define agoqk_grad_get AGOQK_CPU(grad_get)
#define agoqk_grad_sum AGOQK_CPU(grad_sum)

/* Block b, x zero beyond the tail; first: global index of its first element. Returns 1 if it met a NaN or
 * Inf. The decoder leaves zeros beyond the tail. */
uint32_t agoqk_grad_put(const agoq_grad *grad, int64_t b, const float x[AGOQ_GRAD_BLOCK],
                        const agoqk_random *random, uint64_t first);
void agoqk_grad_get(const agoq_grad *grad, int64_t b, float x[AGOQ_GRAD_BLOCK]);
/* Sum of the squares of a block's codes, in units of its scale, in the order of docs/FORMATS.md. */
double agoqk_grad_sum(const agoq_grad *grad, int64_t b);

#endif
