/* AdamW, with state in fp32 or 8 bits, whole or sharded over replicas (ZeRO-1), on averaged gradients.
 * Clipping needs the norm before the first update, so ZeRO-1 with clipping reduces each matrix twice, once
 * for its norm and once for its update: twice the traffic instead of a second gradient buffer that lives for
 * the whole phase. */
#ifndef TRAINER_OPTIM_H
#define TRAINER_OPTIM_H

#include "trainer/exchange.h"
#include "trainer/options.h"

typedef struct optim_state {
    int64_t begin, n; /* the elements that this replica updates */
    float *m, *v;     /* fp32 state, or NULL */
    agoq_adam8 a8;
} optim_state;

typedef struct optim {
    const options_train *train;
    int zero1, adam8;
    optim_state *list;
    int n;
    alloc_stats *mem;
} optim;

agoq_status optim_init(optim *o, const options_train *train, int zero1, const grads *g, const exchange *x,
                       alloc_stats *mem);
void optim_fini(optim *o);
/* Averages the gradients over the replicas (ZeRO-1: not in place) and adds their squares: this rank's share
 * of the squared norm, such that shares add up over all ranks. */
agoq_status optim_reduce(optim *o, grads *g, exchange *x, double *sqnorm);
/* One update with every gradient times multiplier. */
agoq_status optim_step(optim *o, grads *g, exchange *x, int64_t step, float multiplier);

#endif
