/* pack and unpack of any saved tensor, and the table of CPU operations. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

static uint32_t put_row_stochastic(const agoq_packed *packed, int64_t r, const agoq_view *x,
                                   const agoqk_random *random, int count) {
    uint32_t nonfinite = 0;
    float buf[AGOQ_BLOCK];
    for (int64_t b = 0; b < agoqk_blocks(x->cols, AGOQ_BLOCK); b++) {
        agoqk_view_load(x, r, b, buf);
        nonfinite += agoqk_block_put(packed, r, b, buf, random, count);
    }
    return nonfinite;
}

agoq_status AGOQK_CPU(pack)(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                            const agoq_packed *packed) {
    const agoqk_random random = agoqk_random_make(key);
    const int count = exec->nonfinite != NULL;
    uint32_t nonfinite = 0;
    for (int64_t r = 0; r < x->rows && x->cols > 0; r++) {
        nonfinite +=
            key ? put_row_stochastic(packed, r, x, &random, count) : agoqk_row_put(packed, r, x, count);
    }
    agoqk_rows_end();
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(unpack)(const agoq_exec *exec, const agoq_packed *packed, const agoq_view *y) {
    (void)exec;
    for (int64_t r = 0; r < y->rows && y->cols > 0; r++) agoqk_row_get(packed, r, y);
    agoqk_rows_end();
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
