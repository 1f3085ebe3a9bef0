/* pack and unpack of any saved tensor, and the table of CPU operations. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

agoq_status AGOQK_CPU(pack)(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                            const agoq_packed *packed) {
    const agoqk_random random = agoqk_random_make(key);
    const int64_t n_blocks = agoqk_blocks(x->cols, AGOQ_BLOCK);
    uint32_t nonfinite = 0;
    float buf[AGOQ_BLOCK];
    for (int64_t r = 0; r < x->rows; r++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            agoqk_view_load(x, r, b, buf);
            nonfinite += agoqk_block_put(packed, r, b, buf, &random, exec->nonfinite != NULL);
        }
    }
    agoqk_count(exec, nonfinite);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(unpack)(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y) {
    (void)exec;
    const int64_t n_blocks = agoqk_blocks(y->cols, AGOQ_BLOCK);
    float buf[AGOQ_BLOCK];
    for (int64_t r = 0; r < y->rows; r++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            agoqk_block_get(packed, r, b, buf);
            agoqk_view_store(y, r, b, buf);
        }
    }
    return AGOQ_OK;
}

const agoqk_ops AGOQK_CPU(ops) = {
    .pack = AGOQK_CPU(pack),
    .unpack = AGOQK_CPU(unpack),
    .norm_fwd_pack = AGOQK_CPU(norm_fwd_pack),
    .norm_fwd_packed = AGOQK_CPU(norm_fwd_packed),
    .norm_bwd_packed = AGOQK_CPU(norm_bwd_packed),
    .rope = AGOQK_CPU(rope),
    .swiglu_fwd_pack = AGOQK_CPU(swiglu_fwd_pack),
    .swiglu_bwd_packed = AGOQK_CPU(swiglu_bwd_packed),
    .grad_zero = AGOQK_CPU(grad_zero),
    .grad_accumulate = AGOQK_CPU(grad_accumulate),
    .grad_read = AGOQK_CPU(grad_read),
    .grad_sqnorm = AGOQK_CPU(grad_sqnorm),
    .grad_check_finite = AGOQK_CPU(grad_check_finite),
    .grad_reduce = AGOQK_CPU(grad_reduce),
    .adam8_init = AGOQK_CPU(adam8_init),
    .adam8_step = AGOQK_CPU(adam8_step),
};
