/* Gradients and optimizer of the codec layer: checks (codec_check.h), then the kernel table. */
#include <math.h>

#include "common/try.h"
#include "kernels/format/dynmap.h"
#include "libagoq/codec_check.h"
#include "libagoq/error.h"

const char *agoq_grad_format_name(agoq_grad_format format) {
    static const char *const names[] = {
#define NAME(id, name) name,
        AGOQ_GRAD_FORMATS(NAME)
#undef NAME
    };
    return (int)format >= 0 && format < AGOQ_N_GRAD_FORMATS ? names[format] : NULL;
}

int64_t agoq_grad_blocks(int64_t n) {
    return n <= 0 ? 0 : (n - 1) / AGOQ_GRAD_BLOCK + 1;
}

agoq_status agoq_grad_zero(const agoq_exec *exec, agoq_grad *grad) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_grad(grad, "grad"));
    if (!ops->grad_zero) return codec_no_kernel("grad_zero");
    return codec_done("grad_zero", ops->grad_zero(exec, grad));
}

static agoq_status check_term(const agoq_exec *exec, const agoq_grad_term *term, agoq_dtype x_dtype,
                              int stochastic) {
    AGOQ_TRY(codec_check_grad(&term->grad, "grad"));
    if (stochastic) AGOQ_TRY(codec_check_key(&term->key));
    return codec_check_flat(exec, term->x, x_dtype, term->grad.n, "x");
}

agoq_status agoq_grad_accumulate_list(const agoq_exec *exec, const agoq_grad_term *terms, int n_terms,
                                      agoq_dtype x_dtype, int stochastic) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    if (n_terms < 0 || (n_terms && !terms))
        return error_fail(AGOQ_E_INVAL, "terms is NULL or their number negative");
    for (int i = 0; i < n_terms; i++) {
        AGOQ_TRY(check_term(exec, &terms[i], x_dtype, stochastic));
        if (terms[i].grad.format != terms[0].grad.format)
            return error_fail(AGOQ_E_INVAL, "terms[%d] has another format than terms[0]", i);
    }
    if (!ops->grad_accumulate) return codec_no_kernel("grad_accumulate");
    return codec_done("grad_accumulate", ops->grad_accumulate(exec, terms, n_terms, x_dtype, stochastic));
}

agoq_status agoq_grad_accumulate(const agoq_exec *exec, const void *x, agoq_dtype x_dtype,
                                 const agoq_key *key, agoq_grad *grad) {
    AGOQ_TRY(codec_check_grad(grad, "grad"));
    agoq_grad_term term = {*grad, x, {0, 0, 0, 0, 0, 0}};
    if (key) term.key = *key;
    return agoq_grad_accumulate_list(exec, &term, 1, x_dtype, key != NULL);
}

agoq_status agoq_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin, int64_t count,
                           float multiplier, float *out) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_grad(grad, "grad"));
    if (begin < 0 || count < 0 || begin > grad->n || count > grad->n - begin)
        return error_fail(AGOQ_E_INVAL, "grad: the range is not inside its elements");
    AGOQ_TRY(codec_check_floats(out, count, "out"));
    if (!ops->grad_read) return codec_no_kernel("grad_read");
    return codec_done("grad_read", ops->grad_read(exec, grad, begin, count, multiplier, out));
}

agoq_status agoq_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad, double *sqnorm) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_grad(grad, "grad"));
    if (!sqnorm || !codec_aligned(sqnorm, sizeof *sqnorm))
        return error_fail(AGOQ_E_INVAL, "sqnorm is NULL or not aligned");
    if (ops->grad_sqnorm_workspace)
        AGOQ_TRY(codec_check_workspace(exec, ops->grad_sqnorm_workspace(grad->n)));
    if (!ops->grad_sqnorm) return codec_no_kernel("grad_sqnorm");
    return codec_done("grad_sqnorm", ops->grad_sqnorm(exec, grad, sqnorm));
}

size_t agoq_grad_sqnorm_workspace(agoq_device device, int64_t n) {
    const agoqk_ops *ops = agoqk_device_ops(device);
    return ops && ops->grad_sqnorm_workspace && n > 0 ? ops->grad_sqnorm_workspace(n) : 0;
}

agoq_status agoq_grad_check_finite(const agoq_exec *exec, const agoq_grad *grad, uint32_t *blocks) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(codec_check_grad(grad, "grad"));
    if (!blocks || !codec_aligned(blocks, sizeof *blocks))
        return error_fail(AGOQ_E_INVAL, "blocks is NULL or not aligned");
    if (!ops->grad_check_finite) return codec_no_kernel("grad_check_finite");
    return codec_done("grad_check_finite", ops->grad_check_finite(exec, grad, blocks));
}

agoq_status agoq_grad_reduce(const agoq_exec *exec, const agoq_grad *in, int n_in, float multiplier,
                             agoq_grad *out8, float *out32) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    if (!in || n_in < 1) return error_fail(AGOQ_E_INVAL, "nothing to reduce");
    for (int i = 0; i < n_in; i++) {
        AGOQ_TRY(codec_check_grad(&in[i], "in"));
        if (in[i].n != in[0].n) return error_fail(AGOQ_E_INVAL, "in[%d] has another size than in[0]", i);
        if (in[i].format != in[0].format)
            return error_fail(AGOQ_E_INVAL, "in[%d] has another format than in[0]", i);
    }
    if (!out8 == !out32) return error_fail(AGOQ_E_INVAL, "exactly one of out8 and out32 must be given");
    if (out8) {
        AGOQ_TRY(codec_check_grad(out8, "out8"));
        if (out8->n != in[0].n) return error_fail(AGOQ_E_INVAL, "out8 has another size than in[0]");
        if (out8->format != in[0].format)
            return error_fail(AGOQ_E_INVAL, "out8 has another format than in[0]");
    } else {
        AGOQ_TRY(codec_check_floats(out32, in[0].n, "out32"));
    }
    if (!ops->grad_reduce) return codec_no_kernel("grad_reduce");
    return codec_done("grad_reduce", ops->grad_reduce(exec, in, n_in, multiplier, out8, out32));
}

int64_t agoq_adam8_blocks(int64_t n) {
    return n <= 0 ? 0 : (n - 1) / AGOQK_ADAM_BLOCK + 1;
}

static agoq_status check_adam8(const agoq_adam8 *s) {
    if (!s) return error_fail(AGOQ_E_INVAL, "state is NULL");
    if (s->n < 0) return error_fail(AGOQ_E_INVAL, "state: negative size");
    if (s->n > INT64_MAX / 8) return error_fail(AGOQ_E_LIMIT, "state: size does not fit 63 bits");
    if (s->n && (!s->m || !s->v)) return error_fail(AGOQ_E_INVAL, "state: m or v is NULL");
    AGOQ_TRY(codec_check_floats(s->m_absmax, s->n, "m_absmax"));
    return codec_check_floats(s->v_absmax, s->n, "v_absmax");
}

agoq_status agoq_adam8_init(const agoq_exec *exec, agoq_adam8 *state) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(check_adam8(state));
    if (!ops->adam8_init) return codec_no_kernel("adam8_init");
    return codec_done("adam8_init", ops->adam8_init(exec, state));
}

static agoq_status check_adam_params(const agoq_adam_params *a) {
    if (!a) return error_fail(AGOQ_E_INVAL, "adam is NULL");
    const int betas = a->beta1 >= 0.0f && a->beta1 < 1.0f && a->beta2 >= 0.0f && a->beta2 < 1.0f;
    if (!betas) return error_fail(AGOQ_E_INVAL, "adam: a beta is outside [0, 1)");
    if (a->step < 1) return error_fail(AGOQ_E_INVAL, "adam: step is below 1");
    const int finite = a->eps >= 0.0f && isfinite(a->eps) && isfinite(a->lr) && isfinite(a->weight_decay) &&
                       isfinite(a->grad_multiplier);
    if (!finite)
        return error_fail(AGOQ_E_INVAL,
                          "adam: lr, eps, weight_decay or grad_multiplier is not finite, or eps is negative");
    return AGOQ_OK;
}

static agoq_status check_source(const agoq_exec *exec, const agoq_adam_source *source, int64_t n) {
    if (!source) return error_fail(AGOQ_E_INVAL, "source is NULL");
    if (!source->grad8 == !source->grad)
        return error_fail(AGOQ_E_INVAL, "exactly one of grad8 and grad must be given");
    if (source->grad8) {
        AGOQ_TRY(codec_check_grad(source->grad8, "grad8"));
        return source->grad8->n == n ? AGOQ_OK
                                     : error_fail(AGOQ_E_INVAL, "grad8 has another size than the state");
    }
    return codec_check_flat(exec, source->grad, source->dtype, n, "grad");
}

static agoq_status check_target(const agoq_exec *exec, const agoq_adam_target *target, int64_t n) {
    if (!target) return error_fail(AGOQ_E_INVAL, "target is NULL");
    if (n == 0) return AGOQ_OK;
    if (!target->master && !target->bf16) return error_fail(AGOQ_E_INVAL, "target: no parameters");
    AGOQ_TRY(codec_check_elements(exec, target->bf16, AGOQ_DTYPE_BF16, "bf16"));
    if (target->master) return codec_check_floats(target->master, n, "master");
    return codec_check_key(target->key);
}

agoq_status agoq_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam,
                            const agoq_adam_source *source, const agoq_adam_target *target,
                            agoq_adam8 *state) {
    const agoqk_ops *ops;
    AGOQ_TRY(codec_ops_of(&exec, &ops));
    AGOQ_TRY(check_adam_params(adam));
    AGOQ_TRY(check_adam8(state));
    AGOQ_TRY(check_source(exec, source, state->n));
    AGOQ_TRY(check_target(exec, target, state->n));
    if (!ops->adam8_step) return codec_no_kernel("adam8_step");
    return codec_done("adam8_step", ops->adam8_step(exec, adam, source, target, state));
}
