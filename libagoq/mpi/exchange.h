/* Point-to-point all-to-all of byte ranges over MPI 3.1, whose counts are int: messages of any size, at any
 * displacement, cut into pieces of at most `limit` bytes. MPI_Alltoallv cannot do it: its displacements are
 * int as well, and whether a call has to be cut is known to sender and receiver only, so ranks could not
 * agree on the number of calls. */
#ifndef LIBAGOQ_MPI_EXCHANGE_H
#define LIBAGOQ_MPI_EXCHANGE_H

#include <mpi.h>
#include <stddef.h>

/* Of one message of total bytes, piece number `piece`: its length, at *offset; 0 when there is no such piece.
 */
size_t mpi_piece(size_t total, size_t limit, size_t piece, size_t *offset);

typedef struct mpi_exchange {
    MPI_Comm comm;
    int rank, size;
    size_t limit;          /* 1 .. INT_MAX */
    MPI_Request *requests; /* [2 * size] */
    MPI_Status *statuses;  /* [2 * size] */
    int *expected;         /* [2 * size]: bytes that each request must receive, -1 for a send */
} mpi_exchange;

/* Collective. same_to_all: every peer gets the same bytes (all-gather), send_bytes[0] at send_at[0].
 * MPI_SUCCESS, or an MPI error code; a message shorter than expected is MPI_ERR_COUNT. */
int mpi_exchange_run(mpi_exchange *x, const void *send, const size_t *send_bytes, const size_t *send_at,
                     void *recv, const size_t *recv_bytes, const size_t *recv_at, int same_to_all);

#endif
