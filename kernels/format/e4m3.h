/* Earlier names of the E4M3 row of grad_block.h. */
#ifndef KERNELS_FORMAT_E4M3_H
#define KERNELS_FORMAT_E4M3_H

#include "kernels/format/grad_block.h"

AGOQ_HD uint32_t agoqk_e4m3_encode(float t) {
    return agoqk_grad_encode(t, AGOQ_GRAD_E4M3);
}

AGOQ_HD uint32_t agoqk_e4m3_encode_sr(float t, uint32_t random) {
    return agoqk_grad_encode_sr(t, random, AGOQ_GRAD_E4M3);
}

AGOQ_HD float agoqk_e4m3_scale(uint32_t stat) {
    return agoqk_grad_scale(stat, AGOQ_GRAD_E4M3);
}

AGOQ_HD float agoqk_e4m3_value(uint32_t code) {
    return agoqk_grad_value(code, AGOQ_GRAD_E4M3);
}

AGOQ_HD float agoqk_e4m3_decode(uint32_t code, float scale) {
    return agoqk_grad_decode(code, scale, AGOQ_GRAD_E4M3);
}

#endif
