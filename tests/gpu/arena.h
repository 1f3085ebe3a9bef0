/* One operation on host and device, from equal beginnings to a comparison of every byte. All arguments of a
 * case lie in an arena at offsets that are the same on both sides; what an operation should leave alone is
 * compared too. NaNs that fused operations write as fp32 are compared as NaNs: their bits are not part of the
 * format. */
#ifndef TESTS_GPU_ARENA_H
#define TESTS_GPU_ARENA_H

#include <math.h>

#include "tests/gpu/gpu.h"
#include "tests/numeric.h"

enum { ARENA_FLOATS = 8, ARENA_SCRATCH = 64 << 20 };

typedef struct arena {
    uint8_t *host, *device, *back; /* back: what the device holds, copied */
    size_t capacity, used;
    struct {
        size_t at;
        int64_t n;
    } floats[ARENA_FLOATS]; /* fp32 outputs whose NaNs are made alike */
    int n_floats;
    void *scratch; /* exec.workspace on the device */
    cudaStream_t stream;
} arena;

static void arena_open(arena *a, size_t capacity) {
    memset(a, 0, sizeof *a);
    a->capacity = capacity;
    a->host = malloc(capacity);
    a->back = malloc(capacity);
    if (!a->host || !a->back) exit(1);
    gpu_must(cudaMalloc((void **)&a->device, capacity), "cudaMalloc");
    gpu_must(cudaMalloc(&a->scratch, ARENA_SCRATCH), "cudaMalloc");
    gpu_must(cudaStreamCreateWithFlags(&a->stream, cudaStreamNonBlocking), "cudaStreamCreate");
}

static void arena_close(arena *a) {
    free(a->host);
    free(a->back);
    gpu_must(cudaFree(a->device), "cudaFree");
    gpu_must(cudaFree(a->scratch), "cudaFree");
    gpu_must(cudaStreamDestroy(a->stream), "cudaStreamDestroy");
}

/* An empty arena, all 0xA5 (without memory, only laid out). */
static void arena_reset(arena *a, size_t bytes) {
    a->used = 0;
    a->n_floats = 0;
    if (a->host) memset(a->host, 0xA5, bytes < a->capacity ? bytes : a->capacity);
}

/* Offset of `bytes`, `skew` bytes beyond a multiple of 64; there is always a gap behind it. */
static size_t arena_take(arena *a, size_t bytes, size_t skew) {
    const size_t at = (a->used + 63) / 64 * 64 + skew;
    a->used = at + bytes + 16;
    if (a->used > a->capacity) {
        printf("not ok arena: too small\n");
        exit(1);
    }
    return at;
}

static void arena_floats(arena *a, size_t at, int64_t n) {
    a->floats[a->n_floats].at = at;
    a->floats[a->n_floats++].n = n;
}

static agoq_exec arena_exec(const arena *a, int on_device, size_t counter) {
    agoq_exec e = {.device = on_device ? AGOQ_DEVICE_CUDA : AGOQ_DEVICE_CPU};
    e.stream = on_device ? (void *)a->stream : NULL;
    e.nonfinite = (uint32_t *)(void *)((on_device ? a->device : a->host) + counter);
    e.workspace = a->scratch;
    e.workspace_bytes = ARENA_SCRATCH;
    return e;
}

static void arena_same_nans(const arena *a, uint8_t *base) {
    for (int k = 0; k < a->n_floats; k++) {
        for (int64_t i = 0; i < a->floats[k].n; i++) {
            uint32_t u;
            memcpy(&u, base + a->floats[k].at + (size_t)i * 4, 4);
            if ((u & 0x7FFFFFFFu) > 0x7F800000u) u = 0x7FC00000u;
            memcpy(base + a->floats[k].at + (size_t)i * 4, &u, 4);
        }
    }
}

static void arena_upload(const arena *a) {
    gpu_must(cudaMemcpyAsync(a->device, a->host, a->used, cudaMemcpyHostToDevice, a->stream), "upload");
}

/* Offset of the first byte that differs, -1 if none does. Waits for the stream. */
static int64_t arena_compare(arena *a) {
    gpu_must(cudaStreamSynchronize(a->stream), "kernel");
    gpu_must(cudaMemcpy(a->back, a->device, a->used, cudaMemcpyDeviceToHost), "download");
    arena_same_nans(a, a->host);
    arena_same_nans(a, a->back);
    if (memcmp(a->host, a->back, a->used) == 0) return -1;
    size_t i = 0;
    while (a->host[i] == a->back[i]) i++;
    return (int64_t)i;
}

#endif
