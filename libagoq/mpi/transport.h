/* The agoq_transport over MPI, and how MPI's errors become ours. Inside of libagoq_mpi.so. */
#ifndef LIBAGOQ_MPI_TRANSPORT_H
#define LIBAGOQ_MPI_TRANSPORT_H

#include "agoq/agoq_mpi.h"

/* rc as E_COMM, with MPI's text as the detail of this thread; AGOQ_OK for MPI_SUCCESS. */
agoq_status mpi_check(int rc, const char *what);

/* E_STATE unless MPI is running; E_INVAL for a null or an inter-communicator. */
agoq_status mpi_check_comm(MPI_Comm comm, const char *what);

/* Collective. Duplicates comm; errors on the duplicate are returned, whatever the handler of comm. */
agoq_status mpi_dup(MPI_Comm comm, MPI_Comm *out);

/* Collective. limit: bytes that one MPI call may be told to move, 1 .. INT_MAX; small ones are for tests. */
agoq_status mpi_transport_make(MPI_Comm comm, size_t limit, agoq_transport *out);

#endif
