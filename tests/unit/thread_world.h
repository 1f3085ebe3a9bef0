/* A transport between threads of one process: every rank publishes its arguments, all meet, every rank copies
 * what is meant for it, all meet again. Can fail on demand, on all ranks at the same call, as a transport
 * does that aborts. */
#ifndef TESTS_UNIT_THREAD_WORLD_H
#define TESTS_UNIT_THREAD_WORLD_H

#include <pthread.h>
#include <string.h>

#include "agoq/agoq.h"

enum { WORLD_MAX = 8 };

typedef struct world_call {
    const unsigned char *send;
    const size_t *bytes, *at; /* NULL: an all-gather of `same` bytes */
    size_t same;
} world_call;

typedef struct world {
    int size, fail_at; /* fail_at: the n-th call fails, from 1; 0: none */
    pthread_barrier_t barrier;
    world_call calls[WORLD_MAX];
    struct world_rank {
        struct world *world;
        int rank, n_calls;
        size_t received; /* bytes from other ranks */
        agoq_comm *comm;
        void (*body)(struct world_rank *, void *);
        void *arg;
    } ranks[WORLD_MAX];
} world;

typedef struct world_rank world_rank;

static inline agoq_status world_run_call(world_rank *r, world_call mine, void *recv, const size_t *recv_bytes,
                                         const size_t *recv_at) {
    world *w = r->world;
    if (++r->n_calls == w->fail_at) return AGOQ_E_IO;
    w->calls[r->rank] = mine;
    pthread_barrier_wait(&w->barrier);
    agoq_status status = AGOQ_OK;
    for (int from = 0; from < w->size; from++) {
        const world_call *c = &w->calls[from];
        size_t bytes = c->bytes ? c->bytes[r->rank] : c->same, at = c->at ? c->at[r->rank] : 0;
        if (bytes != recv_bytes[from]) status = AGOQ_E_COMM; /* as MPI: what fits is delivered */
        if (bytes > recv_bytes[from]) bytes = recv_bytes[from];
        if (bytes) memcpy((unsigned char *)recv + recv_at[from], c->send + at, bytes);
        if (from != r->rank) r->received += bytes;
    }
    pthread_barrier_wait(&w->barrier);
    return status;
}

static inline agoq_status world_all_to_all(void *ctx, const void *send, const size_t *send_bytes,
                                           const size_t *send_at, void *recv, const size_t *recv_bytes,
                                           const size_t *recv_at) {
    return world_run_call(ctx, (world_call){send, send_bytes, send_at, 0}, recv, recv_bytes, recv_at);
}

static inline agoq_status world_all_gather(void *ctx, const void *send, size_t send_bytes, void *recv,
                                           const size_t *recv_bytes, const size_t *recv_at) {
    return world_run_call(ctx, (world_call){send, NULL, NULL, send_bytes}, recv, recv_bytes, recv_at);
}

static inline void *world_thread(void *arg) {
    world_rank *r = arg;
    r->body(r, r->arg);
    return NULL;
}

/* Runs body on `size` ranks, each with a communicator. 0, or -1 when something could not be set up. */
static inline int world_run(int size, int fail_at, void (*body)(world_rank *, void *), void *arg, world *w) {
    pthread_t threads[WORLD_MAX];
    memset(w, 0, sizeof *w);
    w->size = size;
    w->fail_at = fail_at;
    if (pthread_barrier_init(&w->barrier, NULL, (unsigned)size)) return -1;
    for (int i = 0; i < size; i++) {
        world_rank *r = &w->ranks[i];
        *r = (world_rank){.world = w, .rank = i, .body = body, .arg = arg};
        agoq_transport t = {r, i, size, world_all_to_all, world_all_gather, NULL};
        if (agoq_comm_new(&t, &r->comm) != AGOQ_OK) return -1;
    }
    for (int i = 0; i < size; i++)
        if (pthread_create(&threads[i], NULL, world_thread, &w->ranks[i])) return -1;
    for (int i = 0; i < size; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < size; i++) agoq_comm_free(&w->ranks[i].comm);
    pthread_barrier_destroy(&w->barrier);
    return 0;
}

#endif
