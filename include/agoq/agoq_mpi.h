/* MPI side of agoq (libagoq_mpi.so): for programs that already use MPI. Kept apart from agoq.h so that users
 * of other transports need no MPI. The MPI_Comm is borrowed: it is duplicated, never freed. All calls are
 * collective over it. */
#ifndef AGOQ_MPI_H
#define AGOQ_MPI_H

#include <mpi.h>

#include "agoq/agoq.h"

#ifdef __cplusplus
extern "C" {
#endif

/* QuanGrad communicator over MPI (sizes above 2 GiB are split). Free with agoq_comm_free before MPI_Finalize.
 */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_comm_from_mpi(MPI_Comm comm, agoq_comm **out);
/* Attaches the in-band vote over a duplicate of comm (MPI_Iallreduce) and runs the blocking first vote. comm
 * must span all ranks of the job. Close the session before MPI_Finalize. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_attach_mpi(agoq_session *session, MPI_Comm comm);

#ifdef __cplusplus
}
#endif

#endif
