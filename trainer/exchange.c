/* Exchange of gradients: see exchange.h. The FP32 path is MPI_Allreduce and MPI_Reduce_scatter on the main
 * gradients and makes no agoq call, which is what the baseline needs. */
#include "trainer/exchange.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "agoq/agoq_mpi.h"
#include "trainer/pipe.h"
#include "trainer/try.h"

enum { MAX_SUMS = 4 };

static agoq_status done(int rc) {
    return rc == MPI_SUCCESS ? AGOQ_OK : AGOQ_E_COMM;
}

agoq_status exchange_init(exchange *x, MPI_Comm world, MPI_Comm replicas, const grads *g, alloc_stats *mem) {
    *x = (exchange){.world = world, .replicas = replicas, .fp8 = g->fp8, .mem = mem};
    for (int i = 0; i < g->params->n; i++) {
        if (g->params->list[i].n > INT_MAX) return AGOQ_E_UNSUPPORTED; /* MPI counts elements in int */
    }
    MPI_Comm_size(world, &x->n_ranks);
    MPI_Comm_size(replicas, &x->dp);
    MPI_Comm_rank(replicas, &x->dp_rank);
    x->gathered = malloc((size_t)x->n_ranks * MAX_SUMS * sizeof(double));
    if (!x->gathered) return AGOQ_E_NOMEM;
    if (!x->fp8 || x->dp == 1) return AGOQ_OK;
    TRY(agoq_comm_from_mpi(replicas, &x->quan));
    x->workspace_bytes = agoq_comm_workspace_full(x->quan, g->params->largest);
    return AGOQ_OK;
}

void exchange_fini(exchange *x) {
    exchange_close(x);
    agoq_comm_free(&x->quan);
    free(x->gathered);
    *x = (exchange){0};
}

agoq_status exchange_open(exchange *x) {
    if (!x->quan || x->workspace) return AGOQ_OK;
    x->workspace = alloc_new(x->mem, ALLOC_COMM, x->workspace_bytes);
    return x->workspace ? AGOQ_OK : AGOQ_E_NOMEM;
}

void exchange_close(exchange *x) {
    alloc_free(x->mem, x->workspace);
    x->workspace = NULL;
}

static agoq_status finish(int rc, MPI_Request *request) {
    return rc == MPI_SUCCESS ? pipe_wait(request) : AGOQ_E_COMM;
}

agoq_status exchange_all_reduce(exchange *x, grads *g, int i) {
    const param *t = &g->params->list[i];
    const float mean = 1.0f / (float)x->dp;
    MPI_Request request;
    if (x->dp == 1) return AGOQ_OK;
    if (x->fp8 && t->matrix)
        return agoq_all_reduce(x->quan, NULL, &g->list[i].g8, &g->list[i].g8, mean, x->workspace,
                               x->workspace_bytes);
    float *w = g->list[i].g32;
    const int rc = MPI_Iallreduce(MPI_IN_PLACE, w, (int)t->n, MPI_FLOAT, MPI_SUM, x->replicas, &request);
    TRY(finish(rc, &request));
    for (int64_t k = 0; k < t->n; k++) w[k] *= mean;
    return AGOQ_OK;
}

void exchange_shard(const exchange *x, int64_t n, int replica, int64_t *begin, int64_t *end) {
    if (x->fp8) {
        agoq_shard_range(n, x->dp, replica, begin, end);
        return;
    }
    /* agoq_shard_range again: the baseline makes no agoq call, and the same shards make runs comparable. */
    const int64_t blocks = (n + 127) / 128, base = blocks / x->dp, more = blocks % x->dp;
    const int64_t first = replica * base + (replica < more ? replica : more),
                  last = first + base + (replica < more);
    *begin = first * 128 < n ? first * 128 : n;
    *end = last * 128 < n ? last * 128 : n;
}

agoq_status exchange_reduce_scatter(exchange *x, grads *g, int i, float *shard) {
    const param *t = &g->params->list[i];
    const float mean = 1.0f / (float)x->dp;
    int64_t begin, end;
    MPI_Request request;
    if (x->fp8 && x->quan)
        return agoq_reduce_scatter(x->quan, NULL, &g->list[i].g8, shard, mean, x->workspace,
                                   x->workspace_bytes);
    if (x->fp8) return agoq_grad_read(NULL, &g->list[i].g8, 0, t->n, 1.0f, shard);
    int *counts = malloc((size_t)x->dp * sizeof *counts);
    if (!counts) return AGOQ_E_NOMEM;
    for (int r = 0; r < x->dp; r++) {
        exchange_shard(x, t->n, r, &begin, &end);
        counts[r] = (int)(end - begin);
    }
    const int rc =
        MPI_Ireduce_scatter(g->list[i].g32, shard, counts, MPI_FLOAT, MPI_SUM, x->replicas, &request);
    const agoq_status status = finish(rc, &request);
    free(counts);
    exchange_shard(x, t->n, x->dp_rank, &begin, &end);
    for (int64_t k = 0; k < end - begin; k++) shard[k] *= mean;
    return status;
}

agoq_status exchange_gather(exchange *x, float *w, int64_t n) {
    int *counts = malloc((size_t)x->dp * 2 * sizeof *counts);
    if (!counts) return AGOQ_E_NOMEM;
    int *at = counts + x->dp;
    for (int r = 0; r < x->dp; r++) {
        int64_t begin, end;
        exchange_shard(x, n, r, &begin, &end);
        counts[r] = (int)(end - begin);
        at[r] = (int)begin;
    }
    MPI_Request request;
    const int rc =
        MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, w, counts, at, MPI_FLOAT, x->replicas, &request);
    const agoq_status status = finish(rc, &request);
    free(counts);
    return status;
}

agoq_status exchange_sum(exchange *x, double *values, int n) {
    MPI_Request request;
    if (n > MAX_SUMS) return AGOQ_E_INVAL;
    const int rc = MPI_Iallgather(values, n, MPI_DOUBLE, x->gathered, n, MPI_DOUBLE, x->world, &request);
    TRY(finish(rc, &request));
    for (int k = 0; k < n; k++) {
        values[k] = 0;
        for (int r = 0; r < x->n_ranks; r++) values[k] += x->gathered[r * n + k];
    }
    return AGOQ_OK;
}

agoq_status exchange_sum_u64(exchange *x, uint64_t *value) {
    return done(MPI_Allreduce(MPI_IN_PLACE, value, 1, MPI_UINT64_T, MPI_SUM, x->world));
}
