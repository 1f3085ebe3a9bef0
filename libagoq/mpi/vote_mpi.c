/* The in-band vote over MPI: one MPI_Iallreduce of six words, started at one step boundary and waited for at
 * the next. It needs no thread of its own: MPI moves it on inside of the trainer's other MPI calls, and the
 * wait finishes it. The reduction works on a copy of the words, so that a session can be closed, and its
 * memory freed, while a vote is still under way because another rank is gone; what MPI still refers to is
 * then left allocated. */
#include <string.h>
#include <time.h>

#include "common/mem.h"
#include "libagoq/mpi/transport.h"

enum { N_WORDS = 6 };
static const double CLOSE_WAIT_S = 0.2; /* agoq_session_close() promises no more */

typedef struct vote_mpi {
    MPI_Comm comm;
    MPI_Request request; /* MPI_REQUEST_NULL: none under way */
    uint64_t words[N_WORDS], *result;
} vote_mpi;

static agoq_status start(void *ctx, uint64_t buf[N_WORDS]) {
    vote_mpi *v = ctx;
    if (v->request != MPI_REQUEST_NULL) {
        agoq_set_last_error("vote: started twice");
        return AGOQ_E_STATE;
    }
    memcpy(v->words, buf, sizeof v->words);
    v->result = buf;
    int rc = MPI_Iallreduce(MPI_IN_PLACE, v->words, N_WORDS, MPI_UINT64_T, MPI_MIN, v->comm, &v->request);
    if (rc != MPI_SUCCESS) v->request = MPI_REQUEST_NULL;
    return mpi_check(rc, "vote: MPI_Iallreduce");
}

static agoq_status finish(void *ctx) {
    vote_mpi *v = ctx;
    if (v->request == MPI_REQUEST_NULL) {
        agoq_set_last_error("vote: finished before it was started");
        return AGOQ_E_STATE;
    }
    agoq_status status = mpi_check(MPI_Wait(&v->request, MPI_STATUS_IGNORE), "vote: MPI_Wait");
    if (status == AGOQ_OK) memcpy(v->result, v->words, sizeof v->words);
    return status;
}

/* 1 if no vote is under way any more. */
static int settle(vote_mpi *v) {
    const struct timespec pause = {0, 1000000};
    double until = MPI_Wtime() + CLOSE_WAIT_S;
    int done = v->request == MPI_REQUEST_NULL;
    while (!done) {
        if (MPI_Test(&v->request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return 0;
        if (done || MPI_Wtime() > until) break;
        nanosleep(&pause, NULL);
    }
    return done;
}

static void destroy(void *ctx) {
    vote_mpi *v = ctx;
    int over = 1;
    if (MPI_Finalized(&over) == MPI_SUCCESS && !over) {
        if (!settle(v)) return;
        MPI_Comm_free(&v->comm);
    }
    mem_free(v);
}

agoq_status agoq_session_attach_mpi(agoq_session *session, MPI_Comm comm) {
    if (!session) {
        agoq_set_last_error("session_attach_mpi: session is NULL");
        return AGOQ_E_INVAL;
    }
    agoq_status status = mpi_check_comm(comm, "session_attach_mpi");
    if (status != AGOQ_OK) return status;
    vote_mpi *v = mem_zalloc(1, sizeof *v);
    if (!v) {
        agoq_set_last_error("session_attach_mpi: out of memory");
        return AGOQ_E_NOMEM;
    }
    v->request = MPI_REQUEST_NULL;
    status = mpi_dup(comm, &v->comm);
    if (status != AGOQ_OK) {
        mem_free(v);
        return status;
    }
    const agoq_vote_comm vote = {v, start, finish, destroy};
    status = agoq_session_attach(session, &vote);
    if (status != AGOQ_OK) destroy(v);
    return status;
}
