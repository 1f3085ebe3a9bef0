/* Gradients across data-parallel replicas: FP8 through agoq (QuanGrad), or FP32 through MPI alone. One tensor
 * at a time, so that nothing larger than a matrix is ever in flight. FP8's workspace lives only while the
 * exchange is open. */
#ifndef TRAINER_EXCHANGE_H
#define TRAINER_EXCHANGE_H

#include <mpi.h>

#include "trainer/grads.h"

typedef struct exchange {
    MPI_Comm world, replicas;
    int n_ranks, dp, dp_rank, fp8;
    agoq_comm *quan; /* NULL: FP32, or one replica */
    void *workspace;
    size_t workspace_bytes;
    double *gathered;
    alloc_stats *mem;
} exchange;

agoq_status exchange_init(exchange *x, MPI_Comm world, MPI_Comm replicas, const grads *g, alloc_stats *mem);
void exchange_fini(exchange *x);
agoq_status exchange_open(exchange *x); /* allocates the workspace */
void exchange_close(exchange *x);
/* Mean over replicas of tensor i, in place. */
agoq_status exchange_all_reduce(exchange *x, grads *g, int i);
/* Elements of n that a replica owns, and their mean in fp32. */
void exchange_shard(const exchange *x, int64_t n, int replica, int64_t *begin, int64_t *end);
agoq_status exchange_reduce_scatter(exchange *x, grads *g, int i, float *shard);
/* Every replica has all of w again, of which each has its shard. */
agoq_status exchange_gather(exchange *x, float *w, int64_t n);
/* Sums over all ranks, added in rank order: the same bits everywhere and on every run. n <= 4. */
agoq_status exchange_sum(exchange *x, double *values, int n);
agoq_status exchange_sum_u64(exchange *x, uint64_t *value); /* modulo 2^64 */

#endif
