/* Counting allocator: every byte that a rank holds on its device comes from here, by kind, so that "measured"
 * means what was really handed out. The trade-off: a 64-byte header per allocation (not counted) buys a free
 * that needs no size. Counted bytes are rounded up to ALLOC_ROUND, as a device allocator does. One per
 * process, passed around, no globals. */
#ifndef TRAINER_ALLOC_H
#define TRAINER_ALLOC_H

#include <stddef.h>

enum { ALLOC_ROUND = 64 };

typedef enum alloc_kind {
    ALLOC_WEIGHTS,
    ALLOC_GRADIENTS,
    ALLOC_GRADIENTS_FP32, /* main gradients in fp32, gains of norms */
    ALLOC_OPTIMIZER,
    ALLOC_SAVED,
    ALLOC_WORKSPACE,
    ALLOC_GRADIENT_WORK, /* fp32 gradients of the moment: the shared dW, which also takes ZeRO-1's shards */
    ALLOC_COMM,
    ALLOC_N_KINDS
} alloc_kind;

typedef struct alloc_stats {
    size_t current[ALLOC_N_KINDS];
    size_t step_peak[ALLOC_N_KINDS]; /* since alloc_step */
    size_t total, step_peak_total;
    size_t fp32_grad_peak,
        fp32_grad_largest;     /* gradients that are not FP8: most at once, largest one; ever */
    size_t phase_peak_buffers; /* workspace and comm together, since alloc_phase */
    size_t limit;              /* of total, as if the device had no more; 0: none */
} alloc_stats;

/* Aligned to 64 bytes; alloc_new leaves the content undefined, alloc_zero clears it. NULL: no memory. */
void *alloc_new(alloc_stats *a, alloc_kind kind, size_t bytes);
void *alloc_zero(alloc_stats *a, alloc_kind kind, size_t bytes);
void alloc_free(alloc_stats *a, void *p); /* NULL-safe */
void alloc_step(alloc_stats *a);          /* peaks restart from what is current */
void alloc_phase(alloc_stats *a);
size_t alloc_rounded(size_t bytes);
/* Weights, gradients and optimizer; everything that is neither those nor saved activations. */
size_t alloc_static(const alloc_stats *a);
size_t alloc_buffers(const alloc_stats *a);
/* Main gradients of either kind. */
size_t alloc_gradients(const alloc_stats *a);

#endif
