/* What AdamW needs of a step beside the element: the bias correction, in double by repeated squaring, so that
 * every device starts from the same float. */
#ifndef KERNELS_FORMAT_ADAM_H
#define KERNELS_FORMAT_ADAM_H

#include "kernels/format/hd.h"

/* 1 / (1 - beta^step). */
AGOQ_HD float agoqk_adam_correction(float beta, int64_t step) {
    double power = 1.0, square = (double)beta;
    for (; step > 0; step >>= 1, square *= square) {
        if (step & 1) power *= square;
    }
    return 1.0f / (1.0f - (float)power);
}

#endif
