/* Activations of the codec layer: checks (codec_check.h), then the kernel table. */
#include <math.h>

#include "common/try.h"
#include "libagoq/codec_check.h"
#include "libagoq/error.h"

static agoq_status check_norm(const agoq_norm *norm, int64_t cols) {
    if (!norm) return error_fail(AGOQ_E_INVAL, "norm is NULL");
    if (norm->kind != AGOQ_NORM_RMS && norm->kind != AGOQ_NORM_LAYER)
        return error_fail(AGOQ_E_INVAL, "norm: unknown kind %d", (int)norm->kind);
    if (norm->weight) AGOQ_TRY(codec_check_array(norm->weight, norm->weight_dtype, cols, "weight"));
    if (norm->bias) AGOQ_TRY(codec_check_array(norm->bias, norm->weight_dtype, cols, "bias"));
    if (!(norm->eps >= 0.0f && norm->eps < INFINITY))
        return error_fail(AGOQ_E_INVAL, "eps is not a finite number >= 0");
    return AGOQ_OK;
}

agoq_status agoq_layout_fill(int format, int64_t rows, int64_t cols, agoq_layout *layout) {
    const agoq_status status = agoq_layout_make(format, rows, cols, layout);
    return status == AGOQ_OK ? AGOQ_OK
                             : error_fail(status, "format %d has no layout of %lld x %lld", format,
                                          (long long)rows, (long long)cols);
}

agoq_status agoq_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key, agoq_packed *packed) {
    AGOQ_TRY(codec_check_view(exec, x, "x"));
    AGOQ_TRY(codec_check_packed_shape(packed, x->rows, x->cols, "packed"));
    return agoq_pack_rows(exec, x, 0, key, packed);
}

agoq_status agoq_unpack(const agoq_exec *exec, const agoq_packed *packed, agoq_view *y) {
    AGOQ_TRY(codec_check_packed(packed, "packed"));
    AGOQ_TRY(codec_check_shape(exec, y, packed->layout.rows, packed->layout.cols, "y"));
    return agoq_unpack_rows(exec, packed, 0, y);
}

/* Rows [first, first + v->rows) for a kernel. */
static agoq_status rows_of(const agoq_exec *exec, const agoq_packed *packed, int64_t first,
                           const agoq_view *v, agoq_packed *part) {
    AGOQ_TRY(codec_check_packed(packed, "packed"));
    const agoq_layout *l = &packed->layout;
    if (v->cols != l->cols) return error_fail(AGOQ_E_INVAL, "packed has another number of columns");
    if (first < 0 || first > l->rows || v->rows > l->rows - first)
        return error_fail(AGOQ_E_INVAL, "packed has no such rows");
    if (exec->device != AGOQ_DEVICE_CPU && first % 8) /* then every part is aligned as in a whole tensor */
        return error_fail(AGOQ_E_UNSUPPORTED, "first is not a multiple of 8");
    *part = agoqk_packed_rows(packed, first, v->rows);
    return AGOQ_OK;
}

agoq_status agoq_pack_rows(const agoq_exec *exec, const agoq_view *x, int64_t first, const agoq_key *key,
                           agoq_packed *packed) {
    const agoqk_ops *ops;
    agoq_packed part;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_view(exec, x, "x"));
    AGOQ_TRY(codec_check_key(key));
    AGOQ_TRY(rows_of(exec, packed, first, x, &part));
    agoq_key moved = {0, 0, 0, 0, 0, 0};
    if (key) moved = *key;
    moved.offset = (int64_t)((uint64_t)moved.offset + (uint64_t)(first * x->cols));
    if (!ops->pack) return codec_no_kernel("pack");
    return codec_done("pack", ops->pack(exec, x, key ? &moved : NULL, &part));
}

agoq_status agoq_unpack_rows(const agoq_exec *exec, const agoq_packed *packed, int64_t first, agoq_view *y) {
    const agoqk_ops *ops;
    agoq_packed part;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_view(exec, y, "y"));
    AGOQ_TRY(rows_of(exec, packed, first, y, &part));
    if (!ops->unpack) return codec_no_kernel("unpack");
    return codec_done("unpack", ops->unpack(exec, &part, y));
}

agoq_status agoq_norm_fwd_pack(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                               const agoq_norm *norm, agoq_view *sum, agoq_view *y, agoq_packed *packed) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_view(exec, x, "x"));
    if (!residual != !sum) return error_fail(AGOQ_E_INVAL, "residual and sum go together");
    if (residual) {
        AGOQ_TRY(codec_check_shape(exec, residual, x->rows, x->cols, "residual"));
        AGOQ_TRY(codec_check_shape(exec, sum, x->rows, x->cols, "sum"));
        if (sum->dtype != x->dtype) return error_fail(AGOQ_E_INVAL, "sum has another dtype than x");
    }
    AGOQ_TRY(check_norm(norm, x->cols));
    AGOQ_TRY(codec_check_shape(exec, y, x->rows, x->cols, "y"));
    AGOQ_TRY(codec_check_packed_shape(packed, x->rows, x->cols, "packed"));
    if (!ops->norm_fwd_pack) return codec_no_kernel("norm_fwd_pack");
    return codec_done("norm_fwd_pack", ops->norm_fwd_pack(exec, x, residual, norm, sum, y, packed));
}

agoq_status agoq_norm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed, const agoq_norm *norm,
                                 agoq_view *y) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_packed(packed, "packed"));
    AGOQ_TRY(check_norm(norm, packed->layout.cols));
    AGOQ_TRY(codec_check_shape(exec, y, packed->layout.rows, packed->layout.cols, "y"));
    if (!ops->norm_fwd_packed) return codec_no_kernel("norm_fwd_packed");
    return codec_done("norm_fwd_packed", ops->norm_fwd_packed(exec, packed, norm, y));
}

agoq_status agoq_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed, const agoq_norm *norm,
                                 const agoq_view *dy, agoq_view *dx, float *dweight, float *dbias) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_packed(packed, "packed"));
    const int64_t rows = packed->layout.rows, cols = packed->layout.cols;
    AGOQ_TRY(check_norm(norm, cols));
    AGOQ_TRY(codec_check_shape(exec, dy, rows, cols, "dy"));
    AGOQ_TRY(codec_check_shape(exec, dx, rows, cols, "dx"));
    if (dweight) AGOQ_TRY(codec_check_floats(dweight, cols, "dweight"));
    if (dbias) AGOQ_TRY(codec_check_floats(dbias, cols, "dbias"));
    if ((dweight || dbias) && ops->norm_bwd_workspace)
        AGOQ_TRY(codec_check_workspace(exec, ops->norm_bwd_workspace(rows, cols)));
    if (!ops->norm_bwd_packed) return codec_no_kernel("norm_bwd_packed");
    return codec_done("norm_bwd_packed", ops->norm_bwd_packed(exec, packed, norm, dy, dx, dweight, dbias));
}

static agoq_status check_rope(const agoq_rope *rope, int64_t rows, int64_t cols) {
    if (!rope) return error_fail(AGOQ_E_INVAL, "rope is NULL");
    if (rope->head_dim <= 0) return error_fail(AGOQ_E_INVAL, "rope: head_dim is not positive");
    if (rope->rotary < 0 || rope->rotary % 2 || rope->rotary > rope->head_dim)
        return error_fail(AGOQ_E_INVAL, "rope: rotary is not an even number in [0, head_dim]");
    if (cols % rope->head_dim) return error_fail(AGOQ_E_INVAL, "rope: head_dim does not divide the columns");
    if (rope->n_positions <= 0) return error_fail(AGOQ_E_INVAL, "rope: n_positions is not positive");
    if (rope->rotary && rope->n_positions > INT64_MAX / 8 / rope->rotary)
        return error_fail(AGOQ_E_LIMIT, "rope: the tables do not fit 63 bits");
    AGOQ_TRY(codec_check_floats(rope->cos, rope->rotary, "cos"));
    AGOQ_TRY(codec_check_floats(rope->sin, rope->rotary, "sin"));
    if (rows && !codec_aligned(rope->positions, sizeof *rope->positions))
        return error_fail(AGOQ_E_INVAL, "rope: positions is not aligned to 4 bytes");
    return AGOQ_OK;
}

/* In place means the same view. Overlap in any other way is the caller's to avoid, here and in every other
 * operation: it cannot be seen from two views with strides. */
agoq_status agoq_rope_apply(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                            agoq_view *y, agoq_packed *packed) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_view(exec, x, "x"));
    AGOQ_TRY(check_rope(rope, x->rows, x->cols));
    AGOQ_TRY(codec_check_shape(exec, y, x->rows, x->cols, "y"));
    if (packed) AGOQ_TRY(codec_check_packed_shape(packed, x->rows, x->cols, "packed"));
    if (!ops->rope) return codec_no_kernel("rope");
    return codec_done("rope", ops->rope(exec, x, rope, backward, y, packed));
}

agoq_status agoq_swiglu_fwd_pack(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                 int round_bf16, agoq_view *product, agoq_packed *packed_gate,
                                 agoq_packed *packed_up) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_view(exec, gate, "gate"));
    AGOQ_TRY(codec_check_shape(exec, up, gate->rows, gate->cols, "up"));
    AGOQ_TRY(codec_check_shape(exec, product, gate->rows, gate->cols, "product"));
    AGOQ_TRY(codec_check_packed_shape(packed_gate, gate->rows, gate->cols, "packed_gate"));
    AGOQ_TRY(codec_check_packed_shape(packed_up, gate->rows, gate->cols, "packed_up"));
    if (!ops->swiglu_fwd_pack) return codec_no_kernel("swiglu_fwd_pack");
    return codec_done("swiglu_fwd_pack",
                      ops->swiglu_fwd_pack(exec, gate, up, round_bf16, product, packed_gate, packed_up));
}

agoq_status agoq_swiglu_bwd_packed(const agoq_exec *exec, const agoq_packed *packed_gate,
                                   const agoq_packed *packed_up, int round_bf16, const agoq_view *dproduct,
                                   agoq_view *product, agoq_view *dgate, agoq_view *dup) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_packed(packed_gate, "packed_gate"));
    const int64_t rows = packed_gate->layout.rows, cols = packed_gate->layout.cols;
    AGOQ_TRY(codec_check_packed_shape(packed_up, rows, cols, "packed_up"));
    AGOQ_TRY(codec_check_shape(exec, dproduct, rows, cols, "dproduct"));
    if (product) AGOQ_TRY(codec_check_shape(exec, product, rows, cols, "product"));
    AGOQ_TRY(codec_check_shape(exec, dgate, rows, cols, "dgate"));
    AGOQ_TRY(codec_check_shape(exec, dup, rows, cols, "dup"));
    if (!ops->swiglu_bwd_packed) return codec_no_kernel("swiglu_bwd_packed");
    return codec_done("swiglu_bwd_packed", ops->swiglu_bwd_packed(exec, packed_gate, packed_up, round_bf16,
                                                                  dproduct, product, dgate, dup));
}

size_t agoq_norm_bwd_workspace(agoq_device device, int64_t rows, int64_t cols) {
    const agoqk_ops *ops = agoqk_device_ops(device);
    return ops && ops->norm_bwd_workspace && rows > 0 && cols > 0 ? ops->norm_bwd_workspace(rows, cols) : 0;
}

size_t agoq_last_launch(char *text, size_t capacity) {
    return agoqk_last_launch(text, capacity);
}
