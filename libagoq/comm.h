/* Inside of a communicator: the transport table and the scratch arrays that the collectives use, so that no
 * collective allocates. The trade-off: one handle serves one collective at a time. */
#ifndef LIBAGOQ_COMM_H
#define LIBAGOQ_COMM_H

#include "agoq/agoq.h"

enum { COMM_HEADER_BYTES = 24 }; /* of what ranks compare before a collective */

struct agoq_comm {
    agoq_transport transport;
    /* [size] each, one allocation */
    size_t *send_bytes, *send_at, *recv_bytes, *recv_at;
    agoq_grad *inputs;
    unsigned char *headers; /* [size + 1] of COMM_HEADER_BYTES; the last is sent */
    int failed; /* a transport call failed: ranks may be out of step, so every later call fails at once */
};

/* One transport call with the arrays of the communicator. Any failure is E_COMM and marks it as failed. */
agoq_status comm_all_to_all(agoq_comm *comm, const void *send, void *recv);
agoq_status comm_all_gather(agoq_comm *comm, const void *send, size_t send_bytes, void *recv);
/* E_COMM if an earlier call failed. */
agoq_status comm_check(const agoq_comm *comm);

/* Blocks [*begin, *end) of n_blocks that a rank owns. */
void comm_shard_blocks(int64_t n_blocks, int size, int rank, int64_t *begin, int64_t *end);

#endif
