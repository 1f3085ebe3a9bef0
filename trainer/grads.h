/* Main gradients. FP32: one float tensor per weight matrix, into which the weight-gradient GEMM adds. FP8:
 * one shared fp32 scratch of the size of the largest matrix takes one matrix's gradient at a time and is
 * added, stochastically rounded, to its agoq_grad; no other gradient in 16 or 32 bits is ever alive (gains of
 * norms aside, a few hundred floats). The trade-off: one more pass over a matrix per micro-batch, for a
 * quarter of the bytes. */
#ifndef TRAINER_GRADS_H
#define TRAINER_GRADS_H

#include "agoq/agoq.h"
#include "trainer/alloc.h"
#include "trainer/params.h"

typedef struct grads_tensor {
    float *g32; /* FP32 mode, and gains of norms in both */
    agoq_grad g8;
} grads_tensor;

typedef struct grads {
    int fp8;
    const params *params;
    grads_tensor *list;
    float *scratch; /* FP8: the dW of the matrix at hand; also the exchange's and optimizer's scratch */
    agoq_key key;   /* seed, step, microbatch, replica of what is being added */
    unsigned char *started; /* per parameter: has a gradient in this step */
    alloc_stats *mem;
} grads;

agoq_status grads_init(grads *g, const params *p, int fp8, uint64_t seed, uint32_t replica, alloc_stats *mem);
void grads_fini(grads *g);
/* Before the first micro-batch of a step: everything is zero. */
agoq_status grads_start(grads *g, int64_t step);
void grads_microbatch(grads *g, int microbatch);
/* Where the gradient of a matrix goes, and the beta of the GEMM; then done with it. */
float *grads_target(grads *g, int index, float *beta);
agoq_status grads_done(grads *g, int index);
size_t grads_bytes(const grads *g);

#endif
