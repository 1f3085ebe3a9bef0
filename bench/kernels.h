/* What bench/kernels.c times: a large tensor that threads pack, unpack or copy by ranges of rows, and the
 * cases of the tests. Threads start before the clock does. */
#ifndef BENCH_KERNELS_H
#define BENCH_KERNELS_H

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "tests/kernels_cases.h"

enum { LARGE_COPY, LARGE_PACK, LARGE_UNPACK };
enum { LARGE_MOST_THREADS = 256, LARGE_ROUNDS = 7 };

typedef struct large {
    int64_t rows, cols;
    uint8_t *plain, *coded; /* rows x cols floats each, and some more */
    size_t bytes;
    agoq_view view;
    agoq_packed packed;
} large;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int large_make(large *l, int64_t rows, int64_t cols) {
    memset(l, 0, sizeof *l);
    l->rows = rows, l->cols = cols;
    l->bytes = ((size_t)(rows * cols) * 4 + 4096) / 64 * 64;
    l->plain = aligned_alloc(64, l->bytes);
    l->coded = aligned_alloc(64, l->bytes);
    return l->plain && l->coded;
}

static void large_free(large *l) {
    free(l->plain);
    free(l->coded);
}

/* Gaussian data that repeats every 2^16 elements. */
static int large_shape(large *l, agoq_dtype dtype, int format) {
    enum { PERIOD = 1 << 16 };
    const size_t size = dtype == AGOQ_DTYPE_F32 ? 4 : 2, all = (size_t)(l->rows * l->cols) * size;
    const agoq_view first = {l->plain, dtype, 1, PERIOD, PERIOD};
    if (all < PERIOD * size || agoq_layout_make(format, l->rows, l->cols, &l->packed.layout) != AGOQ_OK)
        return 0;
    kernels_fill(&first, 3, 0);
    for (size_t at = PERIOD * size; at < all; at += PERIOD * size)
        memcpy(l->plain + at, l->plain, all - at < PERIOD * size ? all - at : PERIOD * size);
    memset(l->coded, 1, l->bytes); /* every page is there */
    l->view = (agoq_view){l->plain, dtype, l->rows, l->cols, l->cols};
    l->packed.data = l->coded;
    return 1;
}

/* Bytes read and written by either direction, and by a copy of half as many. */
static double large_bytes(const large *l) {
    const double size = l->view.dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    return (double)(l->rows * l->cols) * size + (double)l->packed.layout.bytes;
}

typedef struct large_job {
    const large *l;
    const agoqk_ops *ops;
    int job, part, parts, failed;
    pthread_barrier_t *start, *end;
} large_job;

static void large_part(large_job *j) {
    const large *l = j->l;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    if (j->job == LARGE_COPY) {
        const size_t half = (size_t)(large_bytes(l) / 2),
                     from = half / 64 * (size_t)j->part / (size_t)j->parts,
                     to = half / 64 * ((size_t)j->part + 1) / (size_t)j->parts;
        memcpy(l->coded + from * 64, l->plain + from * 64, (to - from) * 64);
        return;
    }
    const int64_t first = l->rows * j->part / j->parts, end = l->rows * (j->part + 1) / j->parts;
    const agoq_packed p = agoqk_packed_rows(&l->packed, first, end - first);
    agoq_view v = l->view;
    v.rows = end - first;
    v.data = l->plain + (size_t)(first * l->cols) * (v.dtype == AGOQ_DTYPE_F32 ? 4 : 2);
    const agoq_status status =
        j->job == LARGE_PACK ? j->ops->pack(&exec, &v, NULL, &p) : j->ops->unpack(&exec, &p, &v);
    j->failed |= status != AGOQ_OK;
}

static void *large_thread(void *arg) {
    large_job *j = arg;
    pthread_barrier_wait(j->start);
    large_part(j);
    pthread_barrier_wait(j->end);
    return NULL;
}

/* Seconds of one call by n threads, from where all have started; negative: it failed. */
static double large_once(const large *l, const agoqk_ops *ops, int job, int n) {
    pthread_t id[LARGE_MOST_THREADS];
    large_job jobs[LARGE_MOST_THREADS];
    pthread_barrier_t start, end;
    int failed = 0;
    pthread_barrier_init(&start, NULL, (unsigned)n + 1);
    pthread_barrier_init(&end, NULL, (unsigned)n + 1);
    for (int i = 0; i < n; i++) {
        jobs[i] = (large_job){l, ops, job, i, n, 0, &start, &end};
        if (pthread_create(&id[i], NULL, large_thread, &jobs[i])) abort();
    }
    pthread_barrier_wait(&start);
    const double began = now();
    pthread_barrier_wait(&end);
    const double took = now() - began;
    for (int i = 0; i < n; i++) {
        pthread_join(id[i], NULL);
        failed |= jobs[i].failed;
    }
    pthread_barrier_destroy(&start);
    pthread_barrier_destroy(&end);
    return failed ? -1 : took;
}

/* The best of several rounds of copy, pack, unpack: what slows the machine down for a while slows all three.
 * 0: a call failed. */
static int large_time(const large *l, const agoqk_ops *ops, int threads, double best[3]) {
    const int n = threads < LARGE_MOST_THREADS ? threads : LARGE_MOST_THREADS;
    best[LARGE_COPY] = best[LARGE_PACK] = best[LARGE_UNPACK] = 1e9;
    for (int i = 0; i < LARGE_ROUNDS; i++) {
        for (int job = LARGE_COPY; job <= LARGE_UNPACK; job++) {
            const double took = large_once(l, ops, job, n);
            if (took < 0) return 0;
            best[job] = took < best[job] ? took : best[job];
        }
    }
    return 1;
}

/* Bytes a second that memcpy reads and writes with matrices of a case. */
static double copy_speed(kcase *k) {
    const size_t bytes = (size_t)(k->rows * k->cols) * (k->dtype == AGOQ_DTYPE_F32 ? 4 : 2);
    double best = 0, spent = 0;
    for (int i = 0; i < 5 || spent < 0.05; i++) {
        const double began = now();
        memcpy(k->out[0].data, k->x.data, bytes);
        const double took = now() - began;
        best = best > 2.0 * (double)bytes / took ? best : 2.0 * (double)bytes / took;
        spent += took;
    }
    return best;
}

/* Seconds of the fastest call; 0 when one failed. */
static double case_time(kcase *k, const agoqk_ops *ops, kcase_op op) {
    double best = 1e9, spent = 0;
    kcase_reset(k);
    for (int i = 0; i < 3 || spent < 0.02; i++) {
        const double began = now();
        if (kcase_run(k, ops, op) != AGOQ_OK) return 0;
        const double took = now() - began;
        best = took < best ? took : best;
        spent += took;
    }
    return best;
}

#endif
