/* QuanGrad (AGoQ, arXiv 2605.00539; bytes as in docs/FORMATS.md): gradients stay FP8 on the wire and are
 * added in fp32 only. Each rank owns a shard of whole blocks. Rounds of: all-to-all of codes and scales of a
 * part of every shard, local decode + fp32 sum in rank order + encode to nearest, all-gather of the encoded
 * parts. The owner, too, takes its encoded value, so all ranks hold the same bytes. Two ranks exchange their
 * whole tensors instead: as many bytes on the wire and one exchange less to wait for, at the price of both
 * doing the whole arithmetic. The trade-offs: ownership depends on n and the number of ranks alone, so that
 * the size of the workspace changes the number of rounds and nothing else; a call begins with an exchange of
 * headers, a few microseconds, so that every later message has the length that its receiver expects. Lengths
 * that differ are not an error that transports can be trusted with: some crash, some wait for ever. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "agoq/agoq.h"
#include "common/most.h"
#include "common/try.h"
#include "libagoq/codec_check.h"
#include "libagoq/comm.h"
#include "libagoq/error.h"

enum { WORKSPACE_ALIGN = 16 };

/* OP_REFUSED: of a rank that does not take part, because its own arguments are bad. */
typedef enum operation { OP_ALL_REDUCE, OP_REDUCE_SCATTER, OP_REFUSED } operation;

/* What ranks must agree on before anything else is sent. */
typedef struct header {
    int64_t n, part;
    uint32_t op, multiplier_bits; /* op: operation in the lowest byte, format of the gradients above it */
} header;
_Static_assert(sizeof(header) == COMM_HEADER_BYTES, "the header is wire format");

/* Where things lie in the workspace, for `part` blocks per rank and round; nothing else says its size. */
typedef struct layout {
    size_t recv_codes, sum_codes, recv_scales, sum_scales;
    size_t bytes;
} layout;

typedef struct exchange {
    agoq_comm *comm;
    const agoq_grad *in;
    operation op;
    int rank, size;
    int64_t n_blocks, part, n_rounds;
    float multiplier;
    layout at;
    unsigned char *work; /* aligned */
} exchange;

/* Every rank reduces every block. */
static int is_one_shot(int size, operation op) {
    return op == OP_ALL_REDUCE && size == 2;
}

static layout layout_of(int size, operation op, int64_t part) {
    layout l = {0};
    if (size == 1) return l;
    size_t peers = (size_t)size - 1, codes = (size_t)part * AGOQ_GRAD_BLOCK,
           scales = (size_t)part * sizeof(float);
    int gathers = op == OP_ALL_REDUCE && !is_one_shot(size, op);
    l.sum_codes = l.recv_codes + peers * codes;
    l.recv_scales = l.sum_codes + (gathers ? codes : 0);
    l.sum_scales = l.recv_scales + peers * scales;
    l.bytes = l.sum_scales + (gathers ? scales : 0) + WORKSPACE_ALIGN - 1;
    return l;
}

/* Blocks per rank with which one round is enough. */
static int64_t part_full(int size, operation op, int64_t n_blocks) {
    int64_t part = is_one_shot(size, op) ? n_blocks : n_blocks / size + (n_blocks % size != 0);
    return part > 0 ? part : 1;
}

/* Depends on the size of the workspace, never on its address: it is the same on all ranks. 0: too small. */
static int64_t part_for(int size, operation op, int64_t n_blocks, size_t bytes) {
    size_t fixed = layout_of(size, op, 0).bytes, each = layout_of(size, op, 1).bytes - fixed;
    int64_t full = part_full(size, op, n_blocks);
    if (size == 1) return full;
    if (bytes < fixed + each) return 0;
    size_t part = (bytes - fixed) / each;
    return part < (size_t)full ? (int64_t)part : full;
}

size_t agoq_comm_workspace_min(const agoq_comm *comm) {
    if (!comm) return 0;
    int size = comm->transport.size;
    return most_u64(layout_of(size, OP_ALL_REDUCE, 1).bytes, layout_of(size, OP_REDUCE_SCATTER, 1).bytes);
}

size_t agoq_comm_workspace_full(const agoq_comm *comm, int64_t n) {
    if (!comm) return 0;
    int size = comm->transport.size;
    size_t bytes = agoq_comm_workspace_min(comm);
    int64_t n_blocks = agoq_grad_blocks(n > 0 ? n : 0);
    for (int i = OP_ALL_REDUCE; i <= OP_REDUCE_SCATTER; i++)
        bytes = most_u64(bytes, layout_of(size, (operation)i, part_full(size, (operation)i, n_blocks)).bytes);
    return bytes;
}

/* A run of blocks and the elements in it (the last block of the tensor may be short). */
typedef struct range {
    int64_t block, n_blocks, begin, n;
} range;

/* What rank reduces in a round. */
static range part_range(const exchange *x, int rank, int64_t round) {
    int64_t first = 0, last = x->n_blocks;
    if (!is_one_shot(x->size, x->op)) comm_shard_blocks(x->n_blocks, x->size, rank, &first, &last);
    range r;
    r.block = last - first > round * x->part ? first + round * x->part : last;
    r.n_blocks = last - r.block < x->part ? last - r.block : x->part;
    r.begin = r.block * AGOQ_GRAD_BLOCK < x->in->n ? r.block * AGOQ_GRAD_BLOCK : x->in->n;
    int64_t left = x->in->n - r.begin;
    r.n = left / AGOQ_GRAD_BLOCK < r.n_blocks ? left : r.n_blocks * AGOQ_GRAD_BLOCK;
    return r;
}

static agoq_grad grad_range(const agoq_grad *grad, range r) {
    return r.n ? (agoq_grad){grad->codes + r.begin, grad->scales + r.block, r.n, grad->format}
               : (agoq_grad){.format = grad->format};
}

/* Slots of the workspace are for the others only. */
static size_t slot(const exchange *x, int peer) {
    return (size_t)(peer < x->rank ? peer : peer - 1);
}

static void no_message(const exchange *x, int rank) {
    x->comm->send_bytes[rank] = x->comm->recv_bytes[rank] = 0;
    x->comm->send_at[rank] = x->comm->recv_at[rank] = 0;
}

static agoq_status check_header(const header *mine, int rank, const header *other, int peer) {
    if (memcmp(other, mine, sizeof *mine) == 0) return AGOQ_OK;
    const uint32_t op = mine->op & 0xFF, its_op = other->op & 0xFF;
    if (its_op == OP_REFUSED)
        return error_fail(AGOQ_E_INVAL, "rank %d called with arguments that it refused", peer);
    return error_fail(
        AGOQ_E_INVAL,
        "ranks called with different arguments: rank %d has operation %u, format %u, n %lld, %lld "
        "blocks a round, multiplier %08x; rank %d has %u, %u, %lld, %lld, %08x",
        rank, op, mine->op >> 8, (long long)mine->n, (long long)mine->part, mine->multiplier_bits, peer,
        its_op, other->op >> 8, (long long)other->n, (long long)other->part, other->multiplier_bits);
}

/* All ranks fail, or none, and all stay in step. status: what this rank thinks of its own arguments; one that
 * refuses them takes part as well, since the others are in the same call. */
static agoq_status agree(agoq_comm *c, const exchange *x, agoq_status status) {
    int size = c->transport.size, rank = c->transport.rank;
    char why[256];
    if (size == 1) return status;
    header mine = {.op = OP_REFUSED}, other;
    if (status == AGOQ_OK) {
        mine = (header){x->in->n, x->part, (uint32_t)x->op | (uint32_t)x->in->format << 8, 0};
        memcpy(&mine.multiplier_bits, &x->multiplier, sizeof mine.multiplier_bits);
    } else {
        snprintf(why, sizeof why, "%s", agoq_last_error());
    }
    unsigned char *theirs = c->headers, *own = c->headers + (size_t)size * sizeof mine;
    memcpy(theirs + (size_t)rank * sizeof mine, &mine, sizeof mine);
    memcpy(own, &mine, sizeof mine);
    for (int peer = 0; peer < size; peer++) {
        c->send_bytes[peer] = c->recv_bytes[peer] = peer == rank ? 0 : sizeof mine;
        c->send_at[peer] = 0;
        c->recv_at[peer] = (size_t)peer * sizeof mine;
    }
    agoq_status got = comm_all_to_all(c, own, theirs);
    if (status != AGOQ_OK) {
        error_set("%s", why);
        return status;
    }
    for (int peer = 0; peer < size && got == AGOQ_OK; peer++) {
        memcpy(&other, theirs + (size_t)peer * sizeof other, sizeof other);
        got = check_header(&mine, rank, &other, peer);
    }
    return got;
}

static agoq_status exchange_scales(exchange *x, int64_t round) {
    agoq_comm *c = x->comm;
    size_t mine = (size_t)part_range(x, x->rank, round).n_blocks * sizeof(float);
    for (int peer = 0; peer < x->size; peer++) {
        no_message(x, peer);
        if (peer == x->rank) continue;
        range r = part_range(x, peer, round);
        c->send_bytes[peer] = (size_t)r.n_blocks * sizeof(float);
        c->send_at[peer] = (size_t)r.block * sizeof(float);
        c->recv_bytes[peer] = mine;
        c->recv_at[peer] = slot(x, peer) * (size_t)x->part * sizeof(float);
    }
    return comm_all_to_all(c, x->in->scales, x->work + x->at.recv_scales);
}

static agoq_status exchange_codes(exchange *x, int64_t round) {
    agoq_comm *c = x->comm;
    size_t mine = (size_t)part_range(x, x->rank, round).n;
    for (int peer = 0; peer < x->size; peer++) {
        no_message(x, peer);
        if (peer == x->rank) continue;
        range r = part_range(x, peer, round);
        c->send_bytes[peer] = (size_t)r.n;
        c->send_at[peer] = (size_t)r.begin;
        c->recv_bytes[peer] = mine;
        c->recv_at[peer] = slot(x, peer) * (size_t)x->part * AGOQ_GRAD_BLOCK;
    }
    return comm_all_to_all(c, x->in->codes, x->work + x->at.recv_codes);
}

/* Sums this rank's part of the round into out8 or out32. Own input is read where it is: a rank sends nothing
 * to itself. */
static agoq_status reduce_part(exchange *x, const agoq_exec *exec, range mine, agoq_grad *out8,
                               float *out32) {
    if (mine.n == 0) return AGOQ_OK;
    for (int i = 0; i < x->size; i++) {
        agoq_grad *input = &x->comm->inputs[i];
        *input = grad_range(x->in, mine);
        if (i == x->rank) continue;
        input->codes = x->work + x->at.recv_codes + slot(x, i) * (size_t)x->part * AGOQ_GRAD_BLOCK;
        input->scales = (float *)(void *)(x->work + x->at.recv_scales) + slot(x, i) * (size_t)x->part;
    }
    return agoq_grad_reduce(exec, x->comm->inputs, x->size, x->multiplier, out8, out32);
}

static agoq_status gather_parts(exchange *x, int64_t round, const agoq_grad *sum, agoq_grad *out) {
    agoq_comm *c = x->comm;
    for (int i = 0; i < x->size; i++) {
        range r = part_range(x, i, round);
        c->recv_bytes[i] = (size_t)r.n;
        c->recv_at[i] = (size_t)r.begin;
    }
    agoq_status status = comm_all_gather(c, sum->codes, c->recv_bytes[x->rank], out->codes);
    if (status != AGOQ_OK) return status;
    for (int i = 0; i < x->size; i++) {
        range r = part_range(x, i, round);
        c->recv_bytes[i] = (size_t)r.n_blocks * sizeof(float);
        c->recv_at[i] = (size_t)r.block * sizeof(float);
    }
    return comm_all_gather(c, sum->scales, c->recv_bytes[x->rank], out->scales);
}

static agoq_status run_round(exchange *x, const agoq_exec *exec, int64_t round, agoq_grad *out,
                             float *shard) {
    agoq_status status = exchange_scales(x, round);
    if (status == AGOQ_OK) status = exchange_codes(x, round);
    if (status != AGOQ_OK) return status;
    range mine = part_range(x, x->rank, round);
    agoq_grad sum = {.format = x->in->format};
    if (x->op == OP_REDUCE_SCATTER) {
        status = reduce_part(x, exec, mine, NULL, mine.n ? shard + round * x->part * AGOQ_GRAD_BLOCK : NULL);
    } else if (is_one_shot(x->size, x->op)) {
        sum = grad_range(out, mine);
        status = reduce_part(x, exec, mine, &sum, NULL);
    } else {
        sum.codes = x->work + x->at.sum_codes;
        sum.scales = (float *)(void *)(x->work + x->at.sum_scales);
        sum.n = mine.n;
        status = reduce_part(x, exec, mine, &sum, NULL);
    }
    if (status != AGOQ_OK) x->comm->failed = 1; /* the others go on without this rank */
    if (status == AGOQ_OK && x->op == OP_ALL_REDUCE && !is_one_shot(x->size, x->op))
        status = gather_parts(x, round, &sum, out);
    return status;
}

static agoq_status exchange_init(exchange *x, agoq_comm *comm, const agoq_exec *exec, operation op,
                                 const agoq_grad *in, float multiplier, void *workspace,
                                 size_t workspace_bytes) {
    AGOQ_TRY(codec_check_grad(in, "in"));
    AGOQ_TRY(codec_check_exec(exec));
    if (exec && exec->device != AGOQ_DEVICE_CPU)
        return error_fail(AGOQ_E_UNSUPPORTED, "quangrad: this transport reads host memory");
    int size = comm->transport.size;
    *x = (exchange){.comm = comm, .in = in, .op = op, .rank = comm->transport.rank, .size = size};
    x->multiplier = multiplier;
    x->n_blocks = agoq_grad_blocks(in->n);
    if (in->n == 0) return AGOQ_OK; /* no round */
    if (size > 1 && (!workspace || workspace_bytes < agoq_comm_workspace_min(comm)))
        return error_fail(AGOQ_E_INVAL, "quangrad: workspace of %zu bytes, at least %zu are needed",
                          workspace ? workspace_bytes : 0, agoq_comm_workspace_min(comm));
    x->part = part_for(size, op, x->n_blocks, workspace_bytes);
    x->at = layout_of(size, op, x->part);
    int64_t full = part_full(size, op, x->n_blocks);
    x->n_rounds = full / x->part + (full % x->part != 0);
    uintptr_t pad = -(uintptr_t)workspace % WORKSPACE_ALIGN;
    x->work = size > 1 ? (unsigned char *)workspace + pad : NULL;
    return AGOQ_OK;
}

/* in and out are the same array or do not touch. */
static int overlaps_badly(const void *a, const void *b, size_t bytes) {
    uintptr_t p = (uintptr_t)a, q = (uintptr_t)b;
    return p != q && (p < q ? q - p : p - q) < bytes;
}

static agoq_status check_out(const exchange *x, const agoq_grad *out) {
    const agoq_grad *in = x->in;
    AGOQ_TRY(codec_check_grad(out, "out"));
    if (out->n != in->n || out->format != in->format)
        return error_fail(AGOQ_E_INVAL, "all_reduce: out is not a gradient of %lld elements",
                          (long long)in->n);
    if (overlaps_badly(in->codes, out->codes, (size_t)in->n) ||
        overlaps_badly(in->scales, out->scales, (size_t)x->n_blocks * sizeof(float)))
        return error_fail(AGOQ_E_INVAL, "all_reduce: in and out overlap, but are not the same");
    return AGOQ_OK;
}

agoq_status agoq_all_reduce(agoq_comm *comm, const agoq_exec *exec, const agoq_grad *in, agoq_grad *out,
                            float multiplier, void *workspace, size_t workspace_bytes) {
    exchange x;
    if (!comm) return error_fail(AGOQ_E_INVAL, "all_reduce: comm is NULL");
    AGOQ_TRY(comm_check(comm));
    agoq_status status =
        exchange_init(&x, comm, exec, OP_ALL_REDUCE, in, multiplier, workspace, workspace_bytes);
    if (status == AGOQ_OK) status = check_out(&x, out);
    status = agree(comm, &x, status);
    if (status != AGOQ_OK) return status;
    /* Counted below from the result, so that the counters, too, agree on all ranks. */
    agoq_exec quiet = {.device = AGOQ_DEVICE_CPU};
    if (x.size == 1) {
        x.comm->inputs[0] = *in;
        if (in->n) status = agoq_grad_reduce(&quiet, x.comm->inputs, 1, multiplier, out, NULL);
    } else {
        for (int64_t round = 0; round < x.n_rounds && status == AGOQ_OK; round++)
            status = run_round(&x, &quiet, round, out, NULL);
    }
    if (status != AGOQ_OK || !exec || !exec->nonfinite) return status;
    uint32_t nonfinite = 0;
    for (int64_t b = 0; b < x.n_blocks; b++) nonfinite += isnan(out->scales[b]) != 0;
    if (nonfinite) __atomic_fetch_add(exec->nonfinite, nonfinite, __ATOMIC_RELAXED);
    return AGOQ_OK;
}

agoq_status agoq_reduce_scatter(agoq_comm *comm, const agoq_exec *exec, const agoq_grad *in, float *shard,
                                float multiplier, void *workspace, size_t workspace_bytes) {
    exchange x;
    if (!comm) return error_fail(AGOQ_E_INVAL, "reduce_scatter: comm is NULL");
    AGOQ_TRY(comm_check(comm));
    agoq_status status =
        exchange_init(&x, comm, exec, OP_REDUCE_SCATTER, in, multiplier, workspace, workspace_bytes);
    int64_t begin = 0, end = 0;
    if (status == AGOQ_OK) agoq_shard_range(in->n, x.size, x.rank, &begin, &end);
    if (status == AGOQ_OK) status = codec_check_floats(shard, end - begin, "shard");
    status = agree(comm, &x, status);
    if (status != AGOQ_OK) return status;
    if (x.size == 1) {
        x.comm->inputs[0] = *in;
        return in->n ? agoq_grad_reduce(exec, x.comm->inputs, 1, multiplier, NULL, shard) : AGOQ_OK;
    }
    for (int64_t round = 0; round < x.n_rounds && status == AGOQ_OK; round++)
        status = run_round(&x, exec, round, NULL, shard);
    return status;
}
