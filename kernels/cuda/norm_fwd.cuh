/* What the two forward kernels of norms share: their arguments. */
#ifndef KERNELS_CUDA_NORM_FWD_CUH
#define KERNELS_CUDA_NORM_FWD_CUH

#include "kernels/cuda/launch.h"
#include "kernels/cuda/norm.cuh"

struct agoqk_fwd_args {
    agoqk_norm_args norm;
    agoqk_mat x, residual, sum, y;
    agoqk_pmat packed;
    int add, from_packed, warps, rows_per_block, rounds;
    uint32_t *nonfinite;
};

/* The usual case (norm_fwd_whole.cu), and whether a call is one. */
int agoqk_norm_fwd_is_whole(const agoqk_fwd_args *a, agoq_dtype dtype);
agoq_status agoqk_norm_fwd_whole(const agoq_exec *exec, const agoqk_fwd_args *a, int bits);

#endif
