/* Point-to-point between stages: see pipe.h. A tag names (micro-batch, virtual stage, direction), so that two
 * stages which are neighbours twice (interleaved, pp = 2) never take one message for another. */
#include "trainer/pipe.h"

#include <limits.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "trainer/try.h"

agoq_status pipe_wait(MPI_Request *request) {
    for (long tries = 0;; tries++) {
        int done = 0;
        if (MPI_Test(request, &done, MPI_STATUS_IGNORE) != MPI_SUCCESS) return AGOQ_E_COMM;
        if (done) return AGOQ_OK;
        if (tries < 16)
            sched_yield();
        else
            nanosleep(&(struct timespec){0, tries < 200 ? 20000 : 100000}, NULL);
    }
}

static int sends(const pipe_link *p, int what) {
    const int end = what == SCHEDULE_FORWARD ? p->pp - 1 : 0;
    return p->pp > 1 && (p->chunks > 1 || p->stage != end);
}

agoq_status pipe_init(pipe_link *p, MPI_Comm comm, const schedule *s, int64_t elements, int fp32,
                      alloc_stats *mem) {
    *p = (pipe_link){.comm = comm, .pp = s->pp, .chunks = s->chunks, .fp32 = fp32, .mem = mem};
    if (elements > INT_MAX / 4) return AGOQ_E_UNSUPPORTED; /* MPI counts bytes in int */
    MPI_Comm_rank(comm, &p->stage);
    p->message_bytes = (size_t)elements * (fp32 ? 4 : 2);
    p->slots = schedule_slots(s) + 1;
    for (int what = 0; what < 2; what++) {
        if (!sends(p, what)) continue;
        p->ring[what] = alloc_zero(mem, ALLOC_COMM, (size_t)p->slots * alloc_rounded(p->message_bytes));
        p->sent[what] = malloc((size_t)p->slots * sizeof(MPI_Request));
        if (!p->ring[what] || !p->sent[what]) return AGOQ_E_NOMEM;
        for (int i = 0; i < p->slots; i++) p->sent[what][i] = MPI_REQUEST_NULL;
    }
    if (p->pp == 1) return AGOQ_OK;
    p->staging = alloc_zero(mem, ALLOC_COMM, p->message_bytes);
    return p->staging ? AGOQ_OK : AGOQ_E_NOMEM;
}

void pipe_fini(pipe_link *p) {
    for (int what = 0; what < 2; what++) {
        alloc_free(p->mem, p->ring[what]);
        free(p->sent[what]);
    }
    alloc_free(p->mem, p->staging);
    *p = (pipe_link){0};
}

/* Virtual stages of the two ends of a message; 0 if it does not exist. */
static int route(const pipe_link *p, const schedule_op *op, int outgoing, int *peer, int *tag) {
    const int n_virtual = p->pp * p->chunks, at = op->chunk * p->pp + p->stage;
    const int forward = op->what == SCHEDULE_FORWARD, other = at + (forward == outgoing ? 1 : -1);
    if (other < 0 || other >= n_virtual) return 0;
    *peer = other % p->pp;
    *tag = (op->microbatch * n_virtual + (outgoing ? other : at)) * 2 + op->what;
    return 1;
}

agoq_status pipe_send(pipe_link *p, const schedule_op *op, ops_mat x) {
    int peer, tag;
    if (!route(p, op, 1, &peer, &tag)) return AGOQ_OK;
    const int slot = p->next[op->what];
    p->next[op->what] = (slot + 1) % p->slots;
    MPI_Request *request = &p->sent[op->what][slot];
    unsigned char *buffer = p->ring[op->what] + (size_t)slot * alloc_rounded(p->message_bytes);
    TRY(pipe_wait(request));
    if (p->fp32)
        memcpy(buffer, x.p, p->message_bytes);
    else
        ops_to_bf16(x, (uint16_t *)(void *)buffer);
    const int rc = MPI_Isend(buffer, (int)p->message_bytes, MPI_BYTE, peer, tag, p->comm, request);
    return rc == MPI_SUCCESS ? AGOQ_OK : AGOQ_E_COMM;
}

agoq_status pipe_receive(pipe_link *p, const schedule_op *op, ops_mat x) {
    int peer, tag;
    if (!route(p, op, 0, &peer, &tag)) return AGOQ_OK;
    MPI_Request request;
    if (MPI_Irecv(p->staging, (int)p->message_bytes, MPI_BYTE, peer, tag, p->comm, &request) != MPI_SUCCESS)
        return AGOQ_E_COMM;
    TRY(pipe_wait(&request));
    if (p->fp32)
        memcpy(x.p, p->staging, p->message_bytes);
    else
        ops_from_bf16((const uint16_t *)(const void *)p->staging, x);
    return AGOQ_OK;
}

agoq_status pipe_flush(pipe_link *p) {
    for (int what = 0; what < 2; what++) {
        for (int i = 0; p->sent[what] && i < p->slots; i++) TRY(pipe_wait(&p->sent[what][i]));
    }
    return AGOQ_OK;
}
