/* The internal table of operations, [device][operation]: what libagoq/codec.c dispatches to after it has
 * checked the arguments. A hole is NULL and becomes AGOQ_E_UNSUPPORTED. Kernels never check, allocate, print
 * or synchronise; a third device is a third row. Signatures follow agoq.h; exec is never NULL here. */
#ifndef KERNELS_AGOQ_KERNELS_H
#define KERNELS_AGOQ_KERNELS_H

#include "agoq/agoq.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct agoqk_ops {
    agoq_status (*pack)(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                        const agoq_packed *packed);
    agoq_status (*unpack)(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y);
    agoq_status (*norm_fwd_pack)(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                 const agoq_norm *norm, const agoq_view *sum, const agoq_view *y,
                                 const agoq_packed *packed);
    agoq_status (*norm_fwd_packed)(const agoq_exec *exec, const agoq_packed *packed, const agoq_norm *norm,
                                   const agoq_view *y);
    agoq_status (*norm_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed, const agoq_norm *norm,
                                   const agoq_view *dy, const agoq_view *dx, float *dweight, float *dbias);
    size_t (*norm_bwd_workspace)(int64_t rows, int64_t cols); /* NULL: none is needed */
    agoq_status (*rope)(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                        const agoq_view *y, const agoq_packed *packed);
    agoq_status (*swiglu_fwd_pack)(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                   int round_bf16, const agoq_view *product, const agoq_packed *packed_gate,
                                   const agoq_packed *packed_up);
    agoq_status (*swiglu_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed_gate,
                                     const agoq_packed *packed_up, int round_bf16, const agoq_view *dproduct,
                                     const agoq_view *product, const agoq_view *dgate, const agoq_view *dup);
    agoq_status (*grad_zero)(const agoq_exec *exec, const agoq_grad *grad);
    agoq_status (*grad_accumulate)(const agoq_exec *exec, const agoq_grad_term *terms, int n_terms,
                                   agoq_dtype x_dtype, int stochastic);
    agoq_status (*grad_read)(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                             float multiplier, float *out);
    agoq_status (*grad_sqnorm)(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm);
    size_t (*grad_sqnorm_workspace)(int64_t n); /* NULL: none is needed */
    agoq_status (*grad_check_finite)(const agoq_exec *exec, const agoq_grad *grad, uint32_t *blocks);
    agoq_status (*grad_reduce)(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                               const agoq_grad *out8, float *out32);
    agoq_status (*adam8_init)(const agoq_exec *exec, const agoq_adam8 *state);
    agoq_status (*adam8_step)(const agoq_exec *exec, const agoq_adam_params *adam,
                              const agoq_adam_source *source, const agoq_adam_target *target,
                              const agoq_adam8 *state);
} agoqk_ops;

/* The CPU rows this machine can run, widest instruction set first, the plain one last; NULL beyond the last.
 * All write the same bytes. */
const agoqk_ops *agoqk_cpu_level(int i);
const char *agoqk_cpu_level_name(int i);

/* The CUDA row (kernels/cuda; empty without a CUDA compiler). */
const agoqk_ops *agoqk_cuda_table(void);
/* Why the last operation of this thread failed with E_CUDA; static text. */
const char *agoqk_device_error(void);
/* See agoq_last_launch. */
size_t agoqk_last_launch(char *text, size_t capacity);

/* Rows [first, first + rows) of a packed tensor as a tensor of their own, whose parts lie where they are in
 * the whole: its layout is not one of agoq_layout_make, and only kernels see it. */
static inline agoq_packed agoqk_packed_rows(const agoq_packed *whole, int64_t first, int64_t rows) {
    agoq_packed part = *whole;
    agoq_layout *l = &part.layout;
    l->rows = rows;
    if (first == 0 || rows == 0 || l->cols == 0) return part;
    const size_t skip = (size_t)first * l->lo_row_bytes; /* every later part lies beyond it */
    part.data = (uint8_t *)whole->data + skip;
    l->hi_offset += (size_t)first * l->hi_row_bytes - skip;
    l->scale_offset += (size_t)(first * l->blocks_per_row) * 2 - skip;
    return part;
}

/* NULL for a device that does not exist. */
const agoqk_ops *agoqk_device_ops(agoq_device device);

#ifdef __cplusplus
}
#endif

#endif
