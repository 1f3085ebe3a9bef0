/* The record of launches, and the table of CUDA operations. The record is one small array per thread: a
 * pointer, two shapes and a size per launch, formatted only when it is asked for. */
#include "kernels/cuda/launch.h"

#include <stdio.h>

#include "kernels/cuda/ops.h"

enum { MOST_LAUNCHES = 16 };

static thread_local struct {
    const char *op;
    int n;
    struct {
        const char *kernel;
        agoq_dtype dtype;
        int bits;
        agoqk_shape shape;
    } launch[MOST_LAUNCHES];
} record;

static thread_local const char *last_error = "no error";

void agoqk_launch_begin(const char *op) {
    (void)cudaGetLastError(); /* an error that the caller saw and left pending would pass for ours */
    record.op = op;
    record.n = 0;
}

agoq_status agoqk_from_cuda(cudaError_t error) {
    if (error == cudaSuccess) return AGOQ_OK;
    last_error = cudaGetErrorString(error);
    return AGOQ_E_CUDA;
}

agoq_status agoqk_launched(const char *kernel, agoq_dtype dtype, int bits, const agoqk_shape *shape) {
    if (record.n < MOST_LAUNCHES) {
        record.launch[record.n].kernel = kernel;
        record.launch[record.n].dtype = dtype;
        record.launch[record.n].bits = bits;
        record.launch[record.n].shape = *shape;
    }
    record.n++;
    return agoqk_from_cuda(cudaGetLastError());
}

agoq_status agoqk_shared_room(const void *kernel, size_t bytes) {
    const size_t everywhere = 48 * 1024;
    if (bytes <= everywhere) return AGOQ_OK;
    return agoqk_from_cuda(
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes));
}

unsigned agoqk_grid(int64_t n_blocks) {
    const int64_t most = 0x7FFFFFFF;
    return (unsigned)(n_blocks < 1 ? 1 : n_blocks > most ? most : n_blocks);
}

const char *agoqk_device_error(void) {
    return last_error;
}

size_t agoqk_last_launch(char *text, size_t capacity) {
    static const char *const dtypes[] = {"f32", "bf16", "f16"};
    size_t length = 0;
    if (capacity) text[0] = 0;
    for (int i = 0; i < record.n && i < MOST_LAUNCHES; i++) {
        const agoqk_shape *s = &record.launch[i].shape;
        const int bits = record.launch[i].bits;
        char width[24]; /* a format that a width has not by default is named */
        if (agoq_format_of(bits) && agoq_width_index(bits) < 0)
            snprintf(width, sizeof width, "%s", agoq_format_of(bits)->name);
        else
            snprintf(width, sizeof width, "%d bits", bits);
        const size_t room = length < capacity ? capacity - length : 0;
        const int n = snprintf(room ? text + length : NULL, room,
                               "%s%s: %s %s %s, grid %u x %u, block %u x %u, shared %zu", i ? "\n" : "",
                               record.op, record.launch[i].kernel, dtypes[record.launch[i].dtype], width,
                               s->grid.x, s->grid.y, s->block.x, s->block.y, s->smem);
        length += n > 0 ? (size_t)n : 0;
    }
    return length;
}

const agoqk_ops *agoqk_cuda_table(void) {
    return &agoqk_cuda_ops;
}

const agoqk_ops agoqk_cuda_ops = {
    agoqk_cuda_pack,
    agoqk_cuda_unpack,
    agoqk_cuda_norm_fwd_pack,
    agoqk_cuda_norm_fwd_packed,
    agoqk_cuda_norm_bwd_packed,
    agoqk_cuda_norm_bwd_workspace,
    agoqk_cuda_rope,
    agoqk_cuda_swiglu_fwd_pack,
    agoqk_cuda_swiglu_bwd_packed,
    agoqk_cuda_grad_zero,
    agoqk_cuda_grad_accumulate,
    agoqk_cuda_grad_read,
    agoqk_cuda_grad_sqnorm,
    agoqk_cuda_grad_sqnorm_workspace,
    agoqk_cuda_grad_check_finite,
    agoqk_cuda_grad_reduce,
    agoqk_cuda_adam8_init,
    agoqk_cuda_adam8_step,
};
