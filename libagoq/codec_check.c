/* Argument checks of the codec layer: all are here and none in kernels/, so that each device has the same
 * contract. The price is a few dozen comparisons per call, which is why calls take whole matrices. */
#include "libagoq/codec_check.h"

#include "common/try.h"
#include "libagoq/error.h"

static const agoq_exec cpu_exec;

agoq_status codec_ops_of(const agoq_exec **exec, const agoqk_ops **ops) {
    if (!*exec) *exec = &cpu_exec;
    *ops = agoqk_device_ops((*exec)->device);
    if (!*ops) return error_fail(AGOQ_E_INVAL, "device %d does not exist", (int)(*exec)->device);
    return codec_check_exec(*exec);
}

agoq_status codec_check_exec(const agoq_exec *exec) {
    return !exec || codec_aligned(exec->nonfinite, sizeof *exec->nonfinite)
               ? AGOQ_OK
               : error_fail(AGOQ_E_INVAL, "exec: nonfinite is not aligned to 4 bytes");
}

agoq_status codec_no_kernel(const char *operation) {
    return error_fail(AGOQ_E_UNSUPPORTED, "%s has no kernel on this device", operation);
}

agoq_status codec_done(const char *operation, agoq_status status) {
    switch (status) {
    case AGOQ_OK:
        return AGOQ_OK;
    case AGOQ_E_UNSUPPORTED:
        return error_fail(status, "%s has no kernel for this combination of dtypes, widths and device",
                          operation);
    case AGOQ_E_CUDA:
        return error_fail(status, "%s: %s", operation, agoqk_device_error());
    default:
        return error_fail(status, "%s: %s", operation, agoq_status_text(status));
    }
}

int codec_aligned(const void *p, size_t to) {
    return (uintptr_t)p % to == 0;
}

static agoq_status check_dtype(agoq_dtype dtype, const char *name) {
    const int known = dtype == AGOQ_DTYPE_F32 || dtype == AGOQ_DTYPE_BF16 || dtype == AGOQ_DTYPE_F16;
    return known ? AGOQ_OK : error_fail(AGOQ_E_INVAL, "%s: unknown dtype %d", name, (int)dtype);
}

/* The CPU copies elements to where it works on them; on a GPU an address between two of them is a fault that
 * ends the context. */
agoq_status codec_check_elements(const agoq_exec *exec, const void *p, agoq_dtype dtype, const char *name) {
    const size_t size = dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    if (!exec || exec->device == AGOQ_DEVICE_CPU || codec_aligned(p, size)) return AGOQ_OK;
    return error_fail(AGOQ_E_INVAL, "%s is not aligned to %zu bytes", name, size);
}

agoq_status codec_check_view(const agoq_exec *exec, const agoq_view *v, const char *name) {
    if (!v) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    AGOQ_TRY(check_dtype(v->dtype, name));
    if (v->rows < 0 || v->cols < 0) return error_fail(AGOQ_E_INVAL, "%s: negative size", name);
    if (v->row_stride < v->cols) return error_fail(AGOQ_E_INVAL, "%s: row_stride below cols", name);
    if (v->rows == 0 || v->cols == 0) return AGOQ_OK;
    if (!v->data) return error_fail(AGOQ_E_INVAL, "%s: data is NULL", name);
    const int64_t most = INT64_MAX / 8; /* bytes, with room */
    if (v->cols > most || v->rows - 1 > (most - v->cols) / v->row_stride)
        return error_fail(AGOQ_E_LIMIT, "%s: size does not fit 63 bits", name);
    return codec_check_elements(exec, v->data, v->dtype, name);
}

agoq_status codec_check_flat(const agoq_exec *exec, const void *p, agoq_dtype dtype, int64_t n,
                             const char *name) {
    const agoq_view flat = {(void *)(uintptr_t)p, dtype, 1, n, n};
    return codec_check_view(exec, &flat, name);
}

agoq_status codec_check_shape(const agoq_exec *exec, const agoq_view *v, int64_t rows, int64_t cols,
                              const char *name) {
    AGOQ_TRY(codec_check_view(exec, v, name));
    if (v->rows != rows || v->cols != cols) {
        return error_fail(AGOQ_E_INVAL, "%s is %lld x %lld, not %lld x %lld", name, (long long)v->rows,
                          (long long)v->cols, (long long)rows, (long long)cols);
    }
    return AGOQ_OK;
}

/* The layout is data of the caller: every field must be what agoq_layout_make gives, or addresses run wild.
 */
agoq_status codec_check_packed(const agoq_packed *p, const char *name) {
    if (!p) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    const agoq_layout *l = &p->layout;
    agoq_layout want;
    const agoq_status status = agoq_layout_make(l->format, l->rows, l->cols, &want);
    if (status != AGOQ_OK)
        return error_fail(status, "%s: format %d has no layout of this size", name, (int)l->format);
    const int same = l->bits == want.bits && l->lo_bits == want.lo_bits && l->hi_bits == want.hi_bits &&
                     l->blocks_per_row == want.blocks_per_row && l->lo_row_bytes == want.lo_row_bytes &&
                     l->hi_row_bytes == want.hi_row_bytes && l->hi_offset == want.hi_offset &&
                     l->scale_offset == want.scale_offset && l->bytes == want.bytes;
    if (!same) return error_fail(AGOQ_E_INVAL, "%s: layout is not one of agoq_layout_make", name);
    if (l->bytes && !p->data) return error_fail(AGOQ_E_INVAL, "%s: data is NULL", name);
    if (!codec_aligned(p->data, AGOQ_PLANE_ALIGN))
        return error_fail(AGOQ_E_INVAL, "%s: data is not 16-byte aligned", name);
    return AGOQ_OK;
}

agoq_status codec_check_packed_shape(const agoq_packed *p, int64_t rows, int64_t cols, const char *name) {
    AGOQ_TRY(codec_check_packed(p, name));
    if (p->layout.rows != rows || p->layout.cols != cols) {
        return error_fail(AGOQ_E_INVAL, "%s is laid out for %lld x %lld, not %lld x %lld", name,
                          (long long)p->layout.rows, (long long)p->layout.cols, (long long)rows,
                          (long long)cols);
    }
    return AGOQ_OK;
}

agoq_status codec_check_array(const void *p, agoq_dtype dtype, int64_t n, const char *name) {
    const size_t size = dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    AGOQ_TRY(check_dtype(dtype, name));
    if (n == 0) return AGOQ_OK;
    if (!p) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    if (!codec_aligned(p, size))
        return error_fail(AGOQ_E_INVAL, "%s is not aligned to %zu bytes", name, size);
    return AGOQ_OK;
}

agoq_status codec_check_floats(const void *p, int64_t n, const char *name) {
    return codec_check_array(p, AGOQ_DTYPE_F32, n, name);
}

agoq_status codec_check_key(const agoq_key *key) {
    return key && key->offset < 0 ? error_fail(AGOQ_E_INVAL, "key: negative offset") : AGOQ_OK;
}

agoq_status codec_check_grad(const agoq_grad *g, const char *name) {
    if (!g) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    if (g->n < 0) return error_fail(AGOQ_E_INVAL, "%s: negative size", name);
    if (g->n > INT64_MAX / 8) return error_fail(AGOQ_E_LIMIT, "%s: size does not fit 63 bits", name);
    if ((int)g->format < 0 || g->format >= AGOQ_N_GRAD_FORMATS)
        return error_fail(AGOQ_E_INVAL, "%s: unknown format %d", name, (int)g->format);
    if (g->n && !g->codes) return error_fail(AGOQ_E_INVAL, "%s: codes is NULL", name);
    return codec_check_floats(g->scales, g->n, "scales");
}

agoq_status codec_check_workspace(const agoq_exec *exec, size_t bytes) {
    if (bytes == 0) return AGOQ_OK;
    if (!exec->workspace || exec->workspace_bytes < bytes) {
        return error_fail(AGOQ_E_INVAL, "exec: the workspace has %zu bytes of %zu",
                          exec->workspace ? exec->workspace_bytes : (size_t)0, bytes);
    }
    return codec_aligned(exec->workspace, 16)
               ? AGOQ_OK
               : error_fail(AGOQ_E_INVAL, "exec: the workspace is not aligned");
}
