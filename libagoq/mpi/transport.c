/* QuanGrad's transport over MPI. The all-to-all is point-to-point (exchange.h says why). The all-gather is
 * MPI_Allgatherv, which has better algorithms for many ranks, where all offsets fit an int, and else
 * point-to-point; sizes and offsets of an all-gather are the same on all ranks, so all of them choose alike.
 */
#include "libagoq/mpi/transport.h"

#include <limits.h>
#include <stdio.h>

#include "common/mem.h"
#include "libagoq/mpi/exchange.h"

typedef struct transport {
    mpi_exchange x;
    int *counts, *displacements; /* [size] */
} transport;

agoq_status mpi_check(int rc, const char *what) {
    if (rc == MPI_SUCCESS) return AGOQ_OK;
    char reason[MPI_MAX_ERROR_STRING] = "", text[MPI_MAX_ERROR_STRING + 64];
    int n = 0;
    if (MPI_Error_string(rc, reason, &n) != MPI_SUCCESS) reason[0] = 0;
    snprintf(text, sizeof text, "%s: MPI error %d: %s", what, rc, reason);
    agoq_set_last_error(text);
    return AGOQ_E_COMM;
}

static agoq_status refuse(agoq_status status, const char *what, const char *why) {
    char text[128];
    snprintf(text, sizeof text, "%s: %s", what, why);
    agoq_set_last_error(text);
    return status;
}

agoq_status mpi_check_comm(MPI_Comm comm, const char *what) {
    int begun = 0, over = 0, is_inter = 0;
    if (MPI_Initialized(&begun) != MPI_SUCCESS || MPI_Finalized(&over) != MPI_SUCCESS || !begun || over)
        return refuse(AGOQ_E_STATE, what, "MPI is not initialised, or finalised already");
    if (comm == MPI_COMM_NULL) return refuse(AGOQ_E_INVAL, what, "MPI_COMM_NULL");
    if (MPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter)
        return refuse(AGOQ_E_INVAL, what, "not an intra-communicator");
    return AGOQ_OK;
}

agoq_status mpi_dup(MPI_Comm comm, MPI_Comm *out) {
    MPI_Comm dup = MPI_COMM_NULL;
    agoq_status status = mpi_check(MPI_Comm_dup(comm, &dup), "MPI_Comm_dup");
    if (status == AGOQ_OK)
        status = mpi_check(MPI_Comm_set_errhandler(dup, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    if (status == AGOQ_OK)
        *out = dup;
    else if (dup != MPI_COMM_NULL)
        MPI_Comm_free(&dup);
    return status;
}

static agoq_status mpi_all_to_all(void *ctx, const void *send, const size_t *send_bytes,
                                  const size_t *send_at, void *recv, const size_t *recv_bytes,
                                  const size_t *recv_at) {
    transport *t = ctx;
    int rc = mpi_exchange_run(&t->x, send, send_bytes, send_at, recv, recv_bytes, recv_at, 0);
    return mpi_check(rc, "all_to_all (do n, multiplier and workspace agree on all ranks?)");
}

static agoq_status mpi_all_gather(void *ctx, const void *send, size_t send_bytes, void *recv,
                                  const size_t *recv_bytes, const size_t *recv_at) {
    transport *t = ctx;
    int fits = 1;
    for (int i = 0; i < t->x.size; i++)
        fits &= recv_bytes[i] <= t->x.limit && recv_at[i] <= t->x.limit - recv_bytes[i];
    if (!fits) {
        size_t zero = 0;
        return mpi_check(mpi_exchange_run(&t->x, send, &send_bytes, &zero, recv, recv_bytes, recv_at, 1),
                         "all_gather");
    }
    for (int i = 0; i < t->x.size; i++) {
        t->counts[i] = (int)recv_bytes[i];
        t->displacements[i] = (int)recv_at[i];
    }
    int rc = MPI_Allgatherv(send, (int)send_bytes, MPI_BYTE, recv, t->counts, t->displacements, MPI_BYTE,
                            t->x.comm);
    return mpi_check(rc, "MPI_Allgatherv");
}

static void free_transport(transport *t) {
    mem_free(t->x.requests);
    mem_free(t->x.statuses);
    mem_free(t->x.expected);
    mem_free(t->counts);
    mem_free(t);
}

static void mpi_destroy(void *ctx) {
    transport *t = ctx;
    int over = 1;
    if (MPI_Finalized(&over) == MPI_SUCCESS && !over) MPI_Comm_free(&t->x.comm);
    free_transport(t);
}

/* Everything but the communicator. NULL: out of memory. */
static transport *new_transport(int rank, int size, size_t limit) {
    transport *t = mem_zalloc(1, sizeof *t);
    if (!t) return NULL;
    size_t n = 2 * (size_t)size;
    t->x.rank = rank;
    t->x.size = size;
    t->x.limit = limit;
    t->x.requests = mem_zalloc(n, sizeof *t->x.requests);
    t->x.statuses = mem_zalloc(n, sizeof *t->x.statuses);
    t->x.expected = mem_zalloc(n, sizeof *t->x.expected);
    t->counts = mem_zalloc(n, sizeof *t->counts);
    if (t->x.requests && t->x.statuses && t->x.expected && t->counts) {
        t->displacements = t->counts + size;
        return t;
    }
    free_transport(t);
    return NULL;
}

agoq_status mpi_transport_make(MPI_Comm comm, size_t limit, agoq_transport *out) {
    if (limit < 1 || limit > INT_MAX) return refuse(AGOQ_E_INVAL, "transport", "limit out of range");
    int rank, size;
    agoq_status status = mpi_check(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    if (status == AGOQ_OK) status = mpi_check(MPI_Comm_size(comm, &size), "MPI_Comm_size");
    if (status != AGOQ_OK) return status;
    transport *t = new_transport(rank, size, limit);
    /* All ranks or none: a rank that gave up here would leave the others waiting in the first collective. */
    MPI_Comm dup = MPI_COMM_NULL;
    status = mpi_dup(comm, &dup);
    int have = t != NULL, all_have = 0;
    if (status == AGOQ_OK)
        status = mpi_check(MPI_Allreduce(&have, &all_have, 1, MPI_INT, MPI_MIN, dup), "MPI_Allreduce");
    if (status == AGOQ_OK && !all_have) status = refuse(AGOQ_E_NOMEM, "transport", "a rank is out of memory");
    if (status != AGOQ_OK) {
        if (dup != MPI_COMM_NULL) MPI_Comm_free(&dup);
        if (t) free_transport(t);
        return status;
    }
    t->x.comm = dup;
    *out = (agoq_transport){t, rank, size, mpi_all_to_all, mpi_all_gather, mpi_destroy};
    return AGOQ_OK;
}

agoq_status agoq_comm_from_mpi(MPI_Comm comm, agoq_comm **out) {
    agoq_transport made;
    if (!out) return refuse(AGOQ_E_INVAL, "comm_from_mpi", "out is NULL");
    agoq_status status = mpi_check_comm(comm, "comm_from_mpi");
    if (status == AGOQ_OK) status = mpi_transport_make(comm, INT_MAX, &made);
    if (status != AGOQ_OK) return status;
    status = agoq_comm_new(&made, out);
    if (status != AGOQ_OK) made.destroy(made.ctx);
    return status;
}
