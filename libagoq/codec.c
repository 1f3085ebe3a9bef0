/* The stateless layer of agoq.h: checks every argument, then hands over to the kernel table. All checks are
 * here and none in kernels/, so that each device has the same contract; the price is a few dozen comparisons
 * per call, which is why calls take whole matrices. */
#include "agoq/agoq.h"

#include <math.h>
#include <string.h>

#include "common/try.h"
#include "kernels/agoq_kernels.h"
#include "kernels/format/dynmap.h"
#include "libagoq/error.h"

static const agoq_exec cpu_exec;

static agoq_status ops_of(const agoq_exec **exec, const agoqk_ops **ops) {
    if (!*exec) *exec = &cpu_exec;
    *ops = agoqk_device_ops((*exec)->device);
    return *ops ? AGOQ_OK : error_fail(AGOQ_E_INVAL, "device %d does not exist", (int)(*exec)->device);
}

static agoq_status no_kernel(const char *operation) {
    return error_fail(AGOQ_E_UNSUPPORTED, "%s has no kernel on this device", operation);
}

static int aligned(const void *p, size_t to) {
    return (uintptr_t)p % to == 0;
}

static agoq_status check_view(const agoq_view *v, const char *name) {
    if (!v) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    const int known = v->dtype == AGOQ_DTYPE_F32 || v->dtype == AGOQ_DTYPE_BF16 || v->dtype == AGOQ_DTYPE_F16;
    if (!known) return error_fail(AGOQ_E_INVAL, "%s: unknown dtype %d", name, (int)v->dtype);
    if (v->rows < 0 || v->cols < 0) return error_fail(AGOQ_E_INVAL, "%s: negative size", name);
    if (v->row_stride < v->cols) return error_fail(AGOQ_E_INVAL, "%s: row_stride below cols", name);
    if (v->rows == 0 || v->cols == 0) return AGOQ_OK;
    if (!v->data) return error_fail(AGOQ_E_INVAL, "%s: data is NULL", name);
    const int64_t most = INT64_MAX / 8; /* bytes, with room */
    if (v->cols > most || v->rows - 1 > (most - v->cols) / v->row_stride)
        return error_fail(AGOQ_E_LIMIT, "%s: size does not fit 63 bits", name);
    return AGOQ_OK;
}

static agoq_status check_shape(const agoq_view *v, int64_t rows, int64_t cols, const char *name) {
    AGOQ_TRY(check_view(v, name));
    if (v->rows != rows || v->cols != cols) {
        return error_fail(AGOQ_E_INVAL, "%s is %lld x %lld, not %lld x %lld", name, (long long)v->rows,
                          (long long)v->cols, (long long)rows, (long long)cols);
    }
    return AGOQ_OK;
}

/* The layout is data of the caller: every field must be what agoq_layout_make gives, or addresses run wild.
 */
static agoq_status check_packed(const agoq_packed *p, const char *name) {
    if (!p) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    const agoq_layout *l = &p->layout;
    agoq_layout want;
    const agoq_status status = agoq_layout_make(l->bits, l->rows, l->cols, &want);
    if (status != AGOQ_OK)
        return error_fail(status, "%s: no layout of %d bits has this size", name, (int)l->bits);
    const int same = l->lo_bits == want.lo_bits && l->hi_bits == want.hi_bits &&
                     l->blocks_per_row == want.blocks_per_row && l->lo_row_bytes == want.lo_row_bytes &&
                     l->hi_row_bytes == want.hi_row_bytes && l->hi_offset == want.hi_offset &&
                     l->scale_offset == want.scale_offset && l->bytes == want.bytes;
    if (!same) return error_fail(AGOQ_E_INVAL, "%s: layout is not one of agoq_layout_make", name);
    if (l->bytes && !p->data) return error_fail(AGOQ_E_INVAL, "%s: data is NULL", name);
    if (!aligned(p->data, AGOQ_PLANE_ALIGN))
        return error_fail(AGOQ_E_INVAL, "%s: data is not 16-byte aligned", name);
    return AGOQ_OK;
}

static agoq_status check_packed_shape(const agoq_packed *p, int64_t rows, int64_t cols, const char *name) {
    AGOQ_TRY(check_packed(p, name));
    if (p->layout.rows != rows || p->layout.cols != cols) {
        return error_fail(AGOQ_E_INVAL, "%s is laid out for %lld x %lld, not %lld x %lld", name,
                          (long long)p->layout.rows, (long long)p->layout.cols, (long long)rows,
                          (long long)cols);
    }
    return AGOQ_OK;
}

static agoq_status check_floats(const void *p, int64_t n, const char *name) {
    if (n == 0) return AGOQ_OK;
    if (!p) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    if (!aligned(p, sizeof(float))) return error_fail(AGOQ_E_INVAL, "%s is not aligned to 4 bytes", name);
    return AGOQ_OK;
}

static agoq_status check_norm(const agoqk_norm *norm, int64_t cols) {
    if (norm->gamma) AGOQ_TRY(check_floats(norm->gamma, cols, "gamma"));
    if (!(norm->eps >= 0.0f && norm->eps < INFINITY))
        return error_fail(AGOQ_E_INVAL, "eps is not a finite number >= 0");
    return AGOQ_OK;
}

static agoq_status check_key(const agoq_key *key) {
    return key && key->offset < 0 ? error_fail(AGOQ_E_INVAL, "key: negative offset") : AGOQ_OK;
}

agoq_status agoq_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key, agoq_packed *packed) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_view(x, "x"));
    AGOQ_TRY(check_key(key));
    AGOQ_TRY(check_packed_shape(packed, x->rows, x->cols, "packed"));
    return ops->pack ? ops->pack(exec, x, key, packed) : no_kernel("pack");
}

agoq_status agoq_unpack(const agoq_exec *exec, const agoq_packed *packed, agoq_view *y) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_packed(packed, "packed"));
    AGOQ_TRY(check_shape(y, packed->layout.rows, packed->layout.cols, "y"));
    return ops->unpack ? ops->unpack(exec, packed, y) : no_kernel("unpack");
}

agoq_status agoq_rmsnorm_fwd_pack(const agoq_exec *exec, const agoq_view *x, const agoq_view *residual,
                                  const float *gamma, float eps, int round_bf16, agoq_view *sum, agoq_view *y,
                                  agoq_packed *packed) {
    const agoqk_norm norm = {gamma, eps, round_bf16};
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_view(x, "x"));
    if (!residual != !sum) return error_fail(AGOQ_E_INVAL, "residual and sum go together");
    if (residual) {
        AGOQ_TRY(check_shape(residual, x->rows, x->cols, "residual"));
        AGOQ_TRY(check_shape(sum, x->rows, x->cols, "sum"));
        if (sum->dtype != x->dtype) return error_fail(AGOQ_E_INVAL, "sum has another dtype than x");
    }
    AGOQ_TRY(check_norm(&norm, x->cols));
    AGOQ_TRY(check_shape(y, x->rows, x->cols, "y"));
    AGOQ_TRY(check_packed_shape(packed, x->rows, x->cols, "packed"));
    return ops->rmsnorm_fwd_pack ? ops->rmsnorm_fwd_pack(exec, x, residual, &norm, sum, y, packed)
                                 : no_kernel("rmsnorm_fwd_pack");
}

agoq_status agoq_rmsnorm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed, const float *gamma,
                                    float eps, int round_bf16, agoq_view *y) {
    const agoqk_norm norm = {gamma, eps, round_bf16};
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_packed(packed, "packed"));
    AGOQ_TRY(check_norm(&norm, packed->layout.cols));
    AGOQ_TRY(check_shape(y, packed->layout.rows, packed->layout.cols, "y"));
    return ops->rmsnorm_fwd_packed ? ops->rmsnorm_fwd_packed(exec, packed, &norm, y)
                                   : no_kernel("rmsnorm_fwd_packed");
}

agoq_status agoq_rmsnorm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed, const float *gamma,
                                    float eps, int round_bf16, const agoq_view *dy, agoq_view *dx,
                                    float *dgamma) {
    const agoqk_norm norm = {gamma, eps, round_bf16};
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_packed(packed, "packed"));
    const int64_t rows = packed->layout.rows, cols = packed->layout.cols;
    AGOQ_TRY(check_norm(&norm, cols));
    AGOQ_TRY(check_shape(dy, rows, cols, "dy"));
    AGOQ_TRY(check_shape(dx, rows, cols, "dx"));
    if (dgamma) AGOQ_TRY(check_floats(dgamma, cols, "dgamma"));
    return ops->rmsnorm_bwd_packed ? ops->rmsnorm_bwd_packed(exec, packed, &norm, dy, dx, dgamma)
                                   : no_kernel("rmsnorm_bwd_packed");
}

agoq_status agoq_swiglu_fwd_pack(const agoq_exec *exec, const agoq_view *gate, const agoq_view *up,
                                 int round_bf16, agoq_view *product, agoq_packed *packed_gate,
                                 agoq_packed *packed_up) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_view(gate, "gate"));
    AGOQ_TRY(check_shape(up, gate->rows, gate->cols, "up"));
    AGOQ_TRY(check_shape(product, gate->rows, gate->cols, "product"));
    AGOQ_TRY(check_packed_shape(packed_gate, gate->rows, gate->cols, "packed_gate"));
    AGOQ_TRY(check_packed_shape(packed_up, gate->rows, gate->cols, "packed_up"));
    return ops->swiglu_fwd_pack
               ? ops->swiglu_fwd_pack(exec, gate, up, round_bf16, product, packed_gate, packed_up)
               : no_kernel("swiglu_fwd_pack");
}

agoq_status agoq_swiglu_bwd_packed(const agoq_exec *exec, const agoq_packed *packed_gate,
                                   const agoq_packed *packed_up, int round_bf16, const agoq_view *dproduct,
                                   agoq_view *product, agoq_view *dgate, agoq_view *dup) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_packed(packed_gate, "packed_gate"));
    const int64_t rows = packed_gate->layout.rows, cols = packed_gate->layout.cols;
    AGOQ_TRY(check_packed_shape(packed_up, rows, cols, "packed_up"));
    AGOQ_TRY(check_shape(dproduct, rows, cols, "dproduct"));
    if (product) AGOQ_TRY(check_shape(product, rows, cols, "product"));
    AGOQ_TRY(check_shape(dgate, rows, cols, "dgate"));
    AGOQ_TRY(check_shape(dup, rows, cols, "dup"));
    if (!ops->swiglu_bwd_packed) return no_kernel("swiglu_bwd_packed");
    return ops->swiglu_bwd_packed(exec, packed_gate, packed_up, round_bf16, dproduct, product, dgate, dup);
}

static agoq_status check_grad(const agoq_grad *g, const char *name) {
    if (!g) return error_fail(AGOQ_E_INVAL, "%s is NULL", name);
    if (g->n < 0) return error_fail(AGOQ_E_INVAL, "%s: negative size", name);
    if (g->n > INT64_MAX / 8) return error_fail(AGOQ_E_LIMIT, "%s: size does not fit 63 bits", name);
    if (g->n && !g->codes) return error_fail(AGOQ_E_INVAL, "%s: codes is NULL", name);
    return check_floats(g->scales, g->n, name);
}

int64_t agoq_grad_blocks(int64_t n) {
    return n <= 0 ? 0 : (n - 1) / AGOQ_GRAD_BLOCK + 1;
}

agoq_status agoq_grad_zero(const agoq_exec *exec, agoq_grad *grad) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_grad(grad, "grad"));
    return ops->grad_zero ? ops->grad_zero(exec, grad) : no_kernel("grad_zero");
}

agoq_status agoq_grad_accumulate(const agoq_exec *exec, const void *x, agoq_dtype x_dtype,
                                 const agoq_key *key, agoq_grad *grad) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_grad(grad, "grad"));
    AGOQ_TRY(check_key(key));
    const agoq_view flat = {(void *)(uintptr_t)x, x_dtype, 1, grad->n, grad->n};
    AGOQ_TRY(check_view(&flat, "x"));
    return ops->grad_accumulate ? ops->grad_accumulate(exec, x, x_dtype, key, grad)
                                : no_kernel("grad_accumulate");
}

agoq_status agoq_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                           float multiplier, float *out) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_grad(grad, "grad"));
    if (begin < 0 || count < 0 || begin > grad->n || count > grad->n - begin)
        return error_fail(AGOQ_E_INVAL, "grad: the range is not inside its elements");
    AGOQ_TRY(check_floats(out, count, "out"));
    return ops->grad_read ? ops->grad_read(exec, grad, begin, count, multiplier, out)
                          : no_kernel("grad_read");
}

agoq_status agoq_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_grad(grad, "grad"));
    if (!sqnorm || !aligned(sqnorm, sizeof *sqnorm))
        return error_fail(AGOQ_E_INVAL, "sqnorm is NULL or not aligned");
    return ops->grad_sqnorm ? ops->grad_sqnorm(exec, grad, sqnorm) : no_kernel("grad_sqnorm");
}

agoq_status agoq_grad_reduce(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                             agoq_grad *out8, float *out32) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    if (!in || n_in < 1) return error_fail(AGOQ_E_INVAL, "nothing to reduce");
    for (int i = 0; i < n_in; i++) {
        AGOQ_TRY(check_grad(&in[i], "in"));
        if (in[i].n != in[0].n) return error_fail(AGOQ_E_INVAL, "in[%d] has another size than in[0]", i);
    }
    if (!out8 == !out32) return error_fail(AGOQ_E_INVAL, "exactly one of out8 and out32 must be given");
    if (out8) {
        AGOQ_TRY(check_grad(out8, "out8"));
        if (out8->n != in[0].n) return error_fail(AGOQ_E_INVAL, "out8 has another size than in[0]");
    } else {
        AGOQ_TRY(check_floats(out32, in[0].n, "out32"));
    }
    return ops->grad_reduce ? ops->grad_reduce(exec, in, n_in, multiplier, out8, out32)
                            : no_kernel("grad_reduce");
}

int64_t agoq_adam8_blocks(int64_t n) {
    return n <= 0 ? 0 : (n - 1) / AGOQK_ADAM_BLOCK + 1;
}

static agoq_status check_adam8(const agoq_adam8 *s) {
    if (!s) return error_fail(AGOQ_E_INVAL, "state is NULL");
    if (s->n < 0) return error_fail(AGOQ_E_INVAL, "state: negative size");
    if (s->n > INT64_MAX / 8) return error_fail(AGOQ_E_LIMIT, "state: size does not fit 63 bits");
    if (s->n && (!s->m || !s->v)) return error_fail(AGOQ_E_INVAL, "state: m or v is NULL");
    AGOQ_TRY(check_floats(s->m_absmax, s->n, "m_absmax"));
    return check_floats(s->v_absmax, s->n, "v_absmax");
}

agoq_status agoq_adam8_init(const agoq_exec *exec, agoq_adam8 *state) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_adam8(state));
    return ops->adam8_init ? ops->adam8_init(exec, state) : no_kernel("adam8_init");
}

static agoq_status check_adam_params(const agoq_adam_params *a) {
    if (!a) return error_fail(AGOQ_E_INVAL, "adam is NULL");
    const int betas = a->beta1 >= 0.0f && a->beta1 < 1.0f && a->beta2 >= 0.0f && a->beta2 < 1.0f;
    if (!betas) return error_fail(AGOQ_E_INVAL, "adam: a beta is outside [0, 1)");
    if (a->step < 1) return error_fail(AGOQ_E_INVAL, "adam: step is below 1");
    const int finite = a->eps >= 0.0f && isfinite(a->eps) && isfinite(a->lr) && isfinite(a->weight_decay);
    if (!finite)
        return error_fail(AGOQ_E_INVAL, "adam: lr, eps or weight_decay is not finite, or eps is negative");
    return AGOQ_OK;
}

agoq_status agoq_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam, const agoq_grad *grad8,
                            const float *grad, float *params, agoq_adam8 *state) {
    const agoqk_ops *ops;
    AGOQ_TRY(ops_of(&exec, &ops));
    AGOQ_TRY(check_adam_params(adam));
    AGOQ_TRY(check_adam8(state));
    if (!grad8 == !grad) return error_fail(AGOQ_E_INVAL, "exactly one of grad8 and grad must be given");
    if (grad8) {
        AGOQ_TRY(check_grad(grad8, "grad8"));
        if (grad8->n != state->n) return error_fail(AGOQ_E_INVAL, "grad8 has another size than the state");
    } else {
        AGOQ_TRY(check_floats(grad, state->n, "grad"));
    }
    AGOQ_TRY(check_floats(params, state->n, "params"));
    return ops->adam8_step ? ops->adam8_step(exec, adam, grad8, grad, params, state)
                           : no_kernel("adam8_step");
}
