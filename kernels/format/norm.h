/* What norms make of a row: sums of products, 1 / rms, and the two factors of the backward pass.
 * Multiply-adds are fused where a product is only summed: a GPU's issue slots, not its memory, bound these
 * kernels. The trade-off: a CPU without such an instruction computes them by a function of its library. */
#ifndef KERNELS_FORMAT_NORM_H
#define KERNELS_FORMAT_NORM_H

#include <math.h>

#include "kernels/format/hd.h"

/* A group of eight products in the row sum of docs/FORMATS.md. */
AGOQ_HD float agoqk_products8(const float *a, const float *b) {
    const float p = fmaf(a[4], b[4], a[0] * b[0]), q = fmaf(a[5], b[5], a[1] * b[1]),
                r = fmaf(a[6], b[6], a[2] * b[2]), s = fmaf(a[7], b[7], a[3] * b[3]);
    return (p + r) + (q + s);
}

/* per_col: 1 / number of columns. */
AGOQ_HD float agoqk_norm_inverse(float squares, float per_col, float eps) {
    return 1.0f / sqrtf(squares * per_col + eps);
}

/* What x - mean is taken by in dx; dots: the row sum of g * d. */
AGOQ_HD float agoqk_norm_slope(float dots, float per_col, float inv) {
    return dots * per_col * inv * inv * inv;
}

/* One element's gradient; h: dy * inv; shift: the mean of g, times inv (RMS: +0). */
AGOQ_HD float agoqk_norm_dx(float h, float weight, float d, float shift, float slope) {
    return fmaf(d, -slope, fmaf(h, weight, -shift));
}

#endif
