/* SwiGLU rows fused with pack and unpack: forward keeps packed gate and up only; backward recomputes silu
 * from them in the same pass that makes the gradients, and the product again for the weight gradient of the
 * layer below. Element-wise, so there is no order to fix; exp is our own (kernels/format/silu.h). */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

#include "kernels/format/silu.h"

static void store(const agoq_view *v, int64_t r, int64_t b, int round_bf16, float *x) {
    if (round_bf16) agoqk_round_bf16(x);
    agoqk_view_store(v, r, b, x);
}

agoq_status AGOQK_CPU(swiglu_fwd_pack)(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                       int round_bf16, const agoq_view *product,
                                       const agoq_packed *packed_gate, const agoq_packed *packed_up) {
    const agoqk_random nearest = agoqk_random_make(NULL);
    const int64_t n_blocks = agoqk_blocks(gate->cols, AGOQ_BLOCK);
    const int count = exec->nonfinite != NULL;
    uint32_t nonfinite = 0;
    float g[AGOQ_BLOCK], u[AGOQ_BLOCK];
    for (int64_t r = 0; r < gate->rows && gate->cols > 0; r++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            agoqk_view_load(gate, r, b, g);
            agoqk_view_load(up, r, b, u);
            nonfinite += agoqk_block_put(packed_gate, r, b, g, &nearest, count);
            nonfinite += agoqk_block_put(packed_up, r, b, u, &nearest, count);
            for (int i = 0; i < AGOQ_BLOCK; i++) {
                float low, high;
                agoqk_logistic(g[i], &low, &high);
                g[i] = agoqk_swiglu(g[i], high, u[i]);
            }
            store(product, r, b, round_bf16, g);
        }
    }
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}

agoq_status AGOQK_CPU(swiglu_bwd_packed)(const agoq_exec *exec, const agoq_packed *packed_gate,
                                         const agoq_packed *packed_up, int round_bf16,
                                         const agoq_view *dproduct, const agoq_view *product,
                                         const agoq_view *dgate, const agoq_view *dup) {
    (void)exec;
    const int64_t n_blocks = agoqk_blocks(dproduct->cols, AGOQ_BLOCK);
    float g[AGOQ_BLOCK], u[AGOQ_BLOCK], d[AGOQ_BLOCK];
    for (int64_t r = 0; r < dproduct->rows && dproduct->cols > 0; r++) {
        for (int64_t b = 0; b < n_blocks; b++) {
            float p[AGOQ_BLOCK];
            agoqk_block_get(packed_gate, r, b, g);
            agoqk_block_get(packed_up, r, b, u);
            agoqk_view_load(dproduct, r, b, d);
            for (int i = 0; i < AGOQ_BLOCK; i++) {
                float low, high;
                agoqk_logistic(g[i], &low, &high);
                const agoqk_swiglu_grads out = agoqk_swiglu_backward(g[i], low, high, u[i], d[i]);
                p[i] = out.product, g[i] = out.dgate, d[i] = out.dup;
            }
            if (product) store(product, r, b, round_bf16, p);
            store(dgate, r, b, round_bf16, g);
            store(dup, r, b, round_bf16, d);
        }
    }
    return AGOQ_OK;
}
