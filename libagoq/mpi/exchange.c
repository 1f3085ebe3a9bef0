/* See exchange.h. Pieces go round by round: piece k of a message is posted when this rank's pieces k-1 are
 * through. Both ends cut a message alike, and messages between two ranks keep their order, so one tag is
 * enough and no rank waits for one that waits for it. Peers are visited starting after the own rank, so that
 * not all send to rank 0 first. */
#include "libagoq/mpi/exchange.h"

#include <string.h>

size_t mpi_piece(size_t total, size_t limit, size_t piece, size_t *offset) {
    *offset = total;
    if (piece > total / limit) return 0;
    *offset = piece * limit;
    return total - *offset < limit ? total - *offset : limit;
}

/* Posts piece number `piece` of every message that has one. *n: requests posted. */
static int post(mpi_exchange *x, size_t piece, const unsigned char *send, const size_t *send_bytes,
                const size_t *send_at, unsigned char *recv, const size_t *recv_bytes, const size_t *recv_at,
                int same_to_all, int *n) {
    *n = 0;
    for (int step = 1; step < x->size; step++) {
        int from = (x->rank - step + x->size) % x->size;
        size_t offset, bytes = mpi_piece(recv_bytes[from], x->limit, piece, &offset);
        if (bytes == 0) continue;
        x->expected[*n] = (int)bytes;
        int rc = MPI_Irecv(recv + recv_at[from] + offset, (int)bytes, MPI_BYTE, from, 0, x->comm,
                           &x->requests[*n]);
        if (rc != MPI_SUCCESS) return rc;
        (*n)++;
    }
    for (int step = 1; step < x->size; step++) {
        int to = (x->rank + step) % x->size, which = same_to_all ? 0 : to;
        size_t offset, bytes = mpi_piece(send_bytes[which], x->limit, piece, &offset);
        if (bytes == 0) continue;
        x->expected[*n] = -1;
        int rc =
            MPI_Isend(send + send_at[which] + offset, (int)bytes, MPI_BYTE, to, 0, x->comm, &x->requests[*n]);
        if (rc != MPI_SUCCESS) return rc;
        (*n)++;
    }
    return MPI_SUCCESS;
}

/* After a failure: what is still under way refers to the caller's buffers. A send cannot be taken back, only
 * let go. */
static void abandon(mpi_exchange *x, int n) {
    for (int i = 0; i < n; i++) {
        if (x->requests[i] == MPI_REQUEST_NULL) continue;
        if (x->expected[i] >= 0) MPI_Cancel(&x->requests[i]);
        MPI_Request_free(&x->requests[i]);
    }
}

/* The reason behind MPI_ERR_IN_STATUS, and messages that came too short. */
static int check_statuses(const mpi_exchange *x, int n, int rc) {
    for (int i = 0; i < n && rc == MPI_ERR_IN_STATUS; i++) {
        int error = x->statuses[i].MPI_ERROR;
        if (error != MPI_SUCCESS && error != MPI_ERR_PENDING) return error;
    }
    for (int i = 0; i < n && rc == MPI_SUCCESS; i++) {
        int got = 0;
        if (x->expected[i] >= 0) rc = MPI_Get_count(&x->statuses[i], MPI_BYTE, &got);
        if (rc == MPI_SUCCESS && x->expected[i] >= 0 && got != x->expected[i]) rc = MPI_ERR_COUNT;
    }
    return rc;
}

int mpi_exchange_run(mpi_exchange *x, const void *send, const size_t *send_bytes, const size_t *send_at,
                     void *recv, const size_t *recv_bytes, const size_t *recv_at, int same_to_all) {
    const unsigned char *from = send;
    unsigned char *to = recv;
    size_t mine = send_bytes[same_to_all ? 0 : x->rank];
    if (mine != recv_bytes[x->rank]) return MPI_ERR_COUNT;
    if (mine) memcpy(to + recv_at[x->rank], from + send_at[same_to_all ? 0 : x->rank], mine);
    for (size_t piece = 0;; piece++) {
        int n = 0, rc = post(x, piece, from, send_bytes, send_at, to, recv_bytes, recv_at, same_to_all, &n);
        if (n == 0) return rc;
        if (rc == MPI_SUCCESS) rc = check_statuses(x, n, MPI_Waitall(n, x->requests, x->statuses));
        if (rc != MPI_SUCCESS) {
            abandon(x, n);
            return rc;
        }
    }
}
