/* Matrices and packed tensors of the tests of fused rows. */
#ifndef TESTS_UNIT_ROW_FIXTURE_H
#define TESTS_UNIT_ROW_FIXTURE_H

#include <stdlib.h>
#include <string.h>

#include "agoq/agoq.h"
#include "kernels/format/half.h"
#include "tests/numeric.h"

static const int formats[] = {4, 5, 6, 8, 16, AGOQ_FORMAT_CODE4};
enum { N_FORMATS = sizeof formats / sizeof *formats };

typedef struct matrix {
    float *data;
    agoq_view view;
} matrix;

static inline matrix matrix_new(int64_t rows, int64_t cols) {
    matrix m = {calloc((size_t)(rows * cols) + 1, sizeof(float)), {0}};
    assert_non_null(m.data);
    m.view = (agoq_view){m.data, AGOQ_DTYPE_F32, rows, cols, cols};
    return m;
}

static inline matrix matrix_random(int64_t rows, int64_t cols, uint64_t seed) { /* bf16 values */
    matrix m = matrix_new(rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) m.data[i] = agoqk_bf16_round(gauss(&seed));
    return m;
}

static inline agoq_packed packed_new(int format, int64_t rows, int64_t cols) {
    agoq_packed p = {.data = NULL};
    assert_int_equal(agoq_layout_make(format, rows, cols, &p.layout), AGOQ_OK);
    p.data = aligned_alloc(AGOQ_PLANE_ALIGN, p.layout.bytes + AGOQ_PLANE_ALIGN);
    assert_non_null(p.data);
    memset(p.data, 0, p.layout.bytes);
    return p;
}

static inline void is_bf16(const matrix *m) {
    for (int64_t i = 0; i < m->view.rows * m->view.cols; i++)
        assert_true(agoqk_bf16_round(m->data[i]) == m->data[i]);
}

static inline float round_to(agoq_dtype type, float x) {
    if (type == AGOQ_DTYPE_F32) return x;
    return type == AGOQ_DTYPE_BF16 ? agoqk_bf16_round(x) : agoqk_f16_decode(agoqk_f16_encode(x));
}

/* Element i of an array of this type. */
static inline void put_as(agoq_dtype type, void *array, int64_t i, float x) {
    if (type == AGOQ_DTYPE_F32) {
        ((float *)array)[i] = x;
    } else {
        ((uint16_t *)array)[i] = type == AGOQ_DTYPE_BF16 ? agoqk_bf16_encode(x) : agoqk_f16_encode(x);
    }
}

static inline float get_as(agoq_dtype type, const void *array, int64_t i) {
    if (type == AGOQ_DTYPE_F32) return ((const float *)array)[i];
    const uint16_t half = ((const uint16_t *)array)[i];
    return type == AGOQ_DTYPE_BF16 ? agoqk_bf16_decode(half) : agoqk_f16_decode(half);
}

#endif
