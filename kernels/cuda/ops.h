/* The CUDA operations, one file per family. Signatures and meaning: kernels/agoq_kernels.h. */
#ifndef KERNELS_CUDA_OPS_H
#define KERNELS_CUDA_OPS_H

#include "kernels/agoq_kernels.h"

agoq_status agoqk_cuda_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                            const agoq_packed *packed);
agoq_status agoqk_cuda_unpack(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y);
agoq_status agoqk_cuda_norm_fwd_pack(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                     const agoq_norm *norm, const agoq_view *sum, const agoq_view *y,
                                     const agoq_packed *packed);
agoq_status agoqk_cuda_norm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *y);
agoq_status agoqk_cuda_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                       const agoq_norm *norm, const agoq_view *dy, const agoq_view *dx,
                                       float *dweight, float *dbias);
size_t agoqk_cuda_norm_bwd_workspace(int64_t rows, int64_t cols);
agoq_status agoqk_cuda_rope(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                            const agoq_view *y, const agoq_packed *packed);
agoq_status agoqk_cuda_swiglu_fwd_pack(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                       int round_bf16, const agoq_view *product,
                                       const agoq_packed *packed_gate, const agoq_packed *packed_up);
agoq_status agoqk_cuda_swiglu_bwd_packed(const agoq_exec *exec, const agoq_packed *packed_gate,
                                         const agoq_packed *packed_up, int round_bf16,
                                         const agoq_view *dproduct, const agoq_view *product,
                                         const agoq_view *dgate, const agoq_view *dup);
agoq_status agoqk_cuda_grad_zero(const agoq_exec *exec, const agoq_grad *grad);
agoq_status agoqk_cuda_grad_accumulate(const agoq_exec *exec, const agoq_grad_term *terms, int n_terms,
                                       agoq_dtype x_dtype, int stochastic);
agoq_status agoqk_cuda_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                                 float multiplier, float *out);
agoq_status agoqk_cuda_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm);
size_t agoqk_cuda_grad_sqnorm_workspace(int64_t n);
agoq_status agoqk_cuda_grad_check_finite(const agoq_exec *exec, const agoq_grad *grad, uint32_t *blocks);
/* Addresses of the inputs travel with the launch: more than 1024 of them are E_UNSUPPORTED. */
agoq_status agoqk_cuda_grad_reduce(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                                   const agoq_grad *out8, float *out32);
agoq_status agoqk_cuda_adam8_init(const agoq_exec *exec, const agoq_adam8 *state);
agoq_status agoqk_cuda_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam,
                                  const agoq_adam_source *source, const agoq_adam_target *target,
                                  const agoq_adam8 *state);

#endif
