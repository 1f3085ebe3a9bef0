/* Communicators over a caller's transport: ownership, shard ranges, and the one place where a transport is
 * called. The trade-off: a failed call ends the communicator, because a rank cannot know how far the others
 * came; whoever wants to go on builds a new one. */
#include "libagoq/comm.h"

#include <string.h>

#include "common/mem.h"
#include "libagoq/error.h"

/* Set when a transport said why it failed, so that its text is not replaced by a vaguer one. */
static _Thread_local int transport_spoke;

void agoq_set_last_error(const char *text) {
    error_set("%s", text ? text : "");
    transport_spoke = 1;
}

agoq_status agoq_comm_new(const agoq_transport *transport, agoq_comm **comm) {
    if (!transport || !comm) return error_fail(AGOQ_E_INVAL, "comm_new: NULL argument");
    if (transport->size < 1 || transport->rank < 0 || transport->rank >= transport->size)
        return error_fail(AGOQ_E_INVAL, "comm_new: rank %d of %d", transport->rank, transport->size);
    if (!transport->all_to_all || !transport->all_gather)
        return error_fail(AGOQ_E_INVAL, "comm_new: the transport lacks a function");
    size_t size = (size_t)transport->size;
    agoq_comm *c = mem_zalloc(1, sizeof *c);
    if (!c) return error_fail(AGOQ_E_NOMEM, "comm_new: out of memory");
    c->transport = *transport;
    c->send_bytes = mem_zalloc(4 * size, sizeof *c->send_bytes);
    c->inputs = mem_zalloc(size, sizeof *c->inputs);
    c->headers = mem_zalloc(size + 1, COMM_HEADER_BYTES);
    if (!c->send_bytes || !c->inputs || !c->headers) {
        c->transport.destroy = NULL; /* on failure the context stays the caller's */
        agoq_comm_free(&c);
        return error_fail(AGOQ_E_NOMEM, "comm_new: out of memory for %zu ranks", size);
    }
    c->send_at = c->send_bytes + size;
    c->recv_bytes = c->send_bytes + 2 * size;
    c->recv_at = c->send_bytes + 3 * size;
    *comm = c;
    return AGOQ_OK;
}

void agoq_comm_free(agoq_comm **comm) {
    if (!comm || !*comm) return;
    agoq_comm *c = *comm;
    if (c->transport.destroy) c->transport.destroy(c->transport.ctx);
    mem_free(c->headers);
    mem_free(c->inputs);
    mem_free(c->send_bytes);
    mem_free(c);
    *comm = NULL;
}

int agoq_comm_rank(const agoq_comm *comm) {
    return comm ? comm->transport.rank : -1;
}

int agoq_comm_size(const agoq_comm *comm) {
    return comm ? comm->transport.size : -1;
}

void comm_shard_blocks(int64_t n_blocks, int size, int rank, int64_t *begin, int64_t *end) {
    int64_t each = n_blocks / size, more = n_blocks % size; /* the first `more` ranks own one block more */
    *begin = each * rank + (rank < more ? rank : more);
    *end = *begin + each + (rank < more);
}

void agoq_shard_range(int64_t n, int size, int rank, int64_t *begin, int64_t *end) {
    if (!begin || !end) return;
    *begin = *end = 0;
    if (n <= 0 || size < 1 || rank < 0 || rank >= size) return;
    int64_t first, last;
    comm_shard_blocks((n - 1) / AGOQ_GRAD_BLOCK + 1, size, rank, &first, &last);
    /* compared in blocks: first * 128 could pass INT64_MAX where first does not */
    *begin = first > n / AGOQ_GRAD_BLOCK ? n : first * AGOQ_GRAD_BLOCK;
    *end = last > n / AGOQ_GRAD_BLOCK ? n : last * AGOQ_GRAD_BLOCK;
}

agoq_status comm_check(const agoq_comm *comm) {
    if (!comm->failed) return AGOQ_OK;
    return error_fail(AGOQ_E_COMM, "an earlier call on this communicator failed; make a new one");
}

static agoq_status outcome(agoq_comm *comm, agoq_status status, const char *what) {
    if (status == AGOQ_OK) return AGOQ_OK;
    comm->failed = 1;
    if (!transport_spoke)
        error_set("the transport's %s failed on rank %d: %s", what, comm->transport.rank,
                  agoq_status_name(status));
    return AGOQ_E_COMM;
}

agoq_status comm_all_to_all(agoq_comm *comm, const void *send, void *recv) {
    transport_spoke = 0;
    return outcome(comm,
                   comm->transport.all_to_all(comm->transport.ctx, send, comm->send_bytes, comm->send_at,
                                              recv, comm->recv_bytes, comm->recv_at),
                   "all_to_all");
}

agoq_status comm_all_gather(agoq_comm *comm, const void *send, size_t send_bytes, void *recv) {
    transport_spoke = 0;
    return outcome(comm,
                   comm->transport.all_gather(comm->transport.ctx, send, send_bytes, recv, comm->recv_bytes,
                                              comm->recv_at),
                   "all_gather");
}
