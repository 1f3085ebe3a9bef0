/* The internal table of operations, [device][operation]: what libagoq/codec.c dispatches to after it has
 * checked the arguments. A hole is NULL and becomes AGOQ_E_UNSUPPORTED. Kernels never check, allocate, print
 * or synchronise; a third device is a third row. Signatures follow agoq.h; exec is never NULL here. */
#ifndef KERNELS_AGOQ_KERNELS_H
#define KERNELS_AGOQ_KERNELS_H

#include "agoq/agoq.h"

typedef struct agoqk_norm {
    const float *gamma; /* NULL: ones */
    float eps;
    int round_bf16;
} agoqk_norm;

typedef struct agoqk_ops {
    agoq_status (*pack)(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                        const agoq_packed *packed);
    agoq_status (*unpack)(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y);
    agoq_status (*rmsnorm_fwd_pack)(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                    const agoqk_norm *norm, const agoq_view *sum, const agoq_view *y,
                                    const agoq_packed *packed);
    agoq_status (*rmsnorm_fwd_packed)(const agoq_exec *exec, const agoq_packed *packed,
                                      const agoqk_norm *norm, const agoq_view *y);
    agoq_status (*rmsnorm_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed,
                                      const agoqk_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                      float *dgamma);
    agoq_status (*swiglu_fwd_pack)(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                   int round_bf16, const agoq_view *product, const agoq_packed *packed_gate,
                                   const agoq_packed *packed_up);
    agoq_status (*swiglu_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed_gate,
                                     const agoq_packed *packed_up, int round_bf16, const agoq_view *dproduct,
                                     const agoq_view *product, const agoq_view *dgate, const agoq_view *dup);
    agoq_status (*grad_zero)(const agoq_exec *exec, const agoq_grad *grad);
    agoq_status (*grad_accumulate)(const agoq_exec *exec, const void *x, agoq_dtype x_dtype,
                                   const agoq_key *key, const agoq_grad *grad);
    agoq_status (*grad_read)(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                             float multiplier, float *out);
    agoq_status (*grad_sqnorm)(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm);
    agoq_status (*grad_reduce)(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                               const agoq_grad *out8, float *out32);
    agoq_status (*adam8_init)(const agoq_exec *exec, const agoq_adam8 *state);
    agoq_status (*adam8_step)(const agoq_exec *exec, const agoq_adam_params *adam, const agoq_grad *grad8,
                              const float *grad, float *params, const agoq_adam8 *state);
} agoqk_ops;

/* The CPU rows this machine can run, widest instruction set first, the plain one last; NULL beyond the last.
 * All write the same bytes. */
const agoqk_ops *agoqk_cpu_level(int i);
const char *agoqk_cpu_level_name(int i);

/* NULL for a device that does not exist. */
const agoqk_ops *agoqk_device_ops(agoq_device device);

#endif
