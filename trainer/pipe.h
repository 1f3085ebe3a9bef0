/* Activations forward and gradients back between pipeline stages, over MPI. Values are bf16 already, so they
 * travel as 16 bits. Sends leave from rings of buffers that are allocated once; a ring has the slots that its
 * schedule needs to finish at all (schedule_slots) and one more for slack. Ranks usually outnumber cores
 * here, so waiting sleeps. */
#ifndef TRAINER_PIPE_H
#define TRAINER_PIPE_H

#include <mpi.h>

#include "agoq/status.h"
#include "trainer/alloc.h"
#include "trainer/ops.h"
#include "trainer/schedule.h"

typedef struct pipe_link {
    MPI_Comm comm; /* of the stages; its rank is the stage */
    int pp, chunks, stage, fp32, slots;
    size_t message_bytes;
    unsigned char *ring[2], *staging; /* [SCHEDULE_FORWARD], [SCHEDULE_BACKWARD] */
    MPI_Request *sent[2];
    int next[2];
    alloc_stats *mem;
} pipe_link;

agoq_status pipe_init(pipe_link *p, MPI_Comm comm, const schedule *s, int64_t elements, int fp32,
                      alloc_stats *mem);
void pipe_fini(pipe_link *p);
/* To or from the neighbour of (chunk on this stage) in the direction `what`; no-op at the ends of the
 * pipeline. */
agoq_status pipe_send(pipe_link *p, const schedule_op *op, ops_mat x);
agoq_status pipe_receive(pipe_link *p, const schedule_op *op, ops_mat x);
agoq_status pipe_flush(pipe_link *p); /* all sends are done */
agoq_status pipe_wait(MPI_Request *request);

#endif
