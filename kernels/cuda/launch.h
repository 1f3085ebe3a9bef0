/* What every launch of kernels/cuda goes through: the record behind agoq_last_launch, and CUDA errors as
 * status codes. Launches only enqueue on the caller's stream; nothing here allocates, waits or picks a
 * device, so that every operation can be captured in a graph. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime.h>

#include "kernels/agoq_kernels.h"

typedef struct agoqk_shape {
    dim3 grid, block;
    size_t smem;
} agoqk_shape;

/* An operation begins: the record of this thread is emptied, and a pending CUDA error of somebody else. op:
 * static text. */
void agoqk_launch_begin(const char *op);
/* After <<< >>>: records the launch and returns E_CUDA if it was refused. kernel: static text. */
agoq_status agoqk_launched(const char *kernel, agoq_dtype dtype, int bits, const agoqk_shape *shape);
/* The same for other asynchronous calls (memset). */
agoq_status agoqk_from_cuda(cudaError_t error);

/* Lets a kernel have more shared memory than every chip gives by itself; before its launch. */
agoq_status agoqk_shared_room(const void *kernel, size_t bytes);

/* Blocks of a grid-stride or tiled launch: enough for n items, at most what a grid may have. */
unsigned agoqk_grid(int64_t n_blocks);

extern const agoqk_ops agoqk_cuda_ops;

#endif
