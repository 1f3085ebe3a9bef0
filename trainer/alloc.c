/* Counting allocator: plain aligned_alloc with a header that remembers size and kind. Peaks are updated on
 * every allocation, so a peak is never missed between two samples. */
#include "trainer/alloc.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct header {
    size_t bytes;
    alloc_kind kind;
    char fill[ALLOC_ROUND - sizeof(size_t) - sizeof(alloc_kind)];
} header;
_Static_assert(sizeof(header) == ALLOC_ROUND, "data after the header stays aligned");

size_t alloc_rounded(size_t bytes) {
    return (bytes + ALLOC_ROUND - 1) / ALLOC_ROUND * ALLOC_ROUND;
}

size_t alloc_gradients(const alloc_stats *a) {
    return a->current[ALLOC_GRADIENTS] + a->current[ALLOC_GRADIENTS_FP32];
}

size_t alloc_static(const alloc_stats *a) {
    return a->current[ALLOC_WEIGHTS] + alloc_gradients(a) + a->current[ALLOC_OPTIMIZER];
}

size_t alloc_buffers(const alloc_stats *a) {
    return a->current[ALLOC_WORKSPACE] + a->current[ALLOC_GRADIENT_WORK] + a->current[ALLOC_COMM];
}

static void update_peaks(alloc_stats *a, alloc_kind kind) {
    if (a->current[kind] > a->step_peak[kind]) a->step_peak[kind] = a->current[kind];
    if (a->total > a->step_peak_total) a->step_peak_total = a->total;
    if (alloc_buffers(a) > a->phase_peak_buffers) a->phase_peak_buffers = alloc_buffers(a);
}

void *alloc_new(alloc_stats *a, alloc_kind kind, size_t bytes) {
    if (bytes > SIZE_MAX / 2) return NULL;
    const size_t counted = alloc_rounded(bytes);
    if (a->limit && (counted > a->limit || a->total > a->limit - counted)) return NULL;
    header *h = aligned_alloc(ALLOC_ROUND, sizeof *h + counted);
    if (!h) return NULL;
    h->bytes = counted;
    h->kind = kind;
    a->current[kind] += counted;
    a->total += counted;
    update_peaks(a, kind);
    if (kind == ALLOC_GRADIENTS_FP32 || kind == ALLOC_GRADIENT_WORK) {
        const size_t now = a->current[ALLOC_GRADIENTS_FP32] + a->current[ALLOC_GRADIENT_WORK];
        if (now > a->fp32_grad_peak) a->fp32_grad_peak = now;
        if (counted > a->fp32_grad_largest) a->fp32_grad_largest = counted;
    }
    return h + 1;
}

void *alloc_zero(alloc_stats *a, alloc_kind kind, size_t bytes) {
    void *p = alloc_new(a, kind, bytes);
    if (p) memset(p, 0, alloc_rounded(bytes));
    return p;
}

void alloc_free(alloc_stats *a, void *p) {
    if (!p) return;
    header *h = (header *)p - 1;
    a->current[h->kind] -= h->bytes;
    a->total -= h->bytes;
    free(h);
}

void alloc_step(alloc_stats *a) {
    memcpy(a->step_peak, a->current, sizeof a->step_peak);
    a->step_peak_total = a->total;
}

void alloc_phase(alloc_stats *a) {
    a->phase_peak_buffers = alloc_buffers(a);
}
