/* Rotary position embedding. */
#include "kernels/cpu/cpu.h"

agoq_status AGOQK_CPU(rope)(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                            const agoq_view *y, const agoq_packed *packed) {
    (void)exec, (void)x, (void)rope, (void)backward, (void)y, (void)packed;
    return AGOQ_E_UNSUPPORTED;
}
