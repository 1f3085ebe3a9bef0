/* The part of a kernel case (tests/kernels_cases.h) that is about gradients and the optimizer: their
 * operations, what those read and write, and how to run them. */
#ifndef TESTS_KERNELS_CASES_GRAD_H
#define TESTS_KERNELS_CASES_GRAD_H

#include "tests/kernels_fill.h"
#include "tests/kernels_ref_grad.h"

/* As KCASE_ACT_OPS. */
#define KCASE_GRAD_OPS(X)                                                                                    \
    X(GRAD_ADD, "grad_accumulate", 0, 1, 0, 2)                                                               \
    X(GRAD_ADD_SR, "grad_accumulate_sr", 0, 1, 0, 2)                                                         \
    X(GRAD_READ, "grad_read", 0, 0, 0, 5)                                                                    \
    X(GRAD_SQNORM, "grad_sqnorm", 0, 0, 0, 1)                                                                \
    X(GRAD_REDUCE, "grad_reduce_3", 0, 0, 0, 4)                                                              \
    X(GRAD_REDUCE_32, "grad_reduce_3_f32", 0, 0, 0, 7)                                                       \
    X(ADAM8, "adam8_step", 0, 0, 0, 16)                                                                      \
    X(ADAM8_COPY, "adam8_step_master_bf16", 0, 1, 0, 14)                                                     \
    X(ADAM8_BF16, "adam8_step_bf16_sr", 0, 0, 0, 9)

typedef enum kgrad_op {
#define KGRAD_ENUM(id, name, wide, matrices, packed, rest) KGRAD_##id,
    KCASE_GRAD_OPS(KGRAD_ENUM)
#undef KGRAD_ENUM
        KGRAD_N_OPS
} kgrad_op;

typedef struct kgrad {
    int64_t n;
    agoq_view x; /* what is accumulated: dtype and n elements without gaps */
    agoq_key key;
    agoq_grad in[3], grad;
    float *flat, *params;
    uint16_t *half; /* parameters as bf16 */
    agoq_adam8 adam;
    double *sqnorm;
} kgrad;

static agoq_grad kgrad_take(karena *a, int64_t n, agoq_grad_format format) {
    uint8_t *codes = karena_take(a, (size_t)n);
    return (agoq_grad){codes, karena_take(a, (size_t)(n / AGOQ_GRAD_BLOCK + 1) * 4), n, format};
}

static void kgrad_carve_inputs(kgrad *k, karena *a, int64_t n, agoq_dtype dtype, agoq_grad_format format) {
    k->n = n;
    k->x = (agoq_view){karena_take(a, (size_t)n * (dtype == AGOQ_DTYPE_F32 ? 4 : 2)), dtype, 1, n, n};
    for (int i = 0; i < 3; i++) k->in[i] = kgrad_take(a, n, format);
}

static void kgrad_carve_outputs(kgrad *k, karena *a) {
    const size_t n = (size_t)k->n, n_tops = (n / AGOQK_ADAM_BLOCK + 1) * 4;
    k->flat = karena_take(a, n * 4);
    k->params = karena_take(a, n * 4);
    k->half = karena_take(a, n * 2);
    k->grad = kgrad_take(a, k->n, k->in[0].format);
    uint8_t *m = karena_take(a, n), *v = karena_take(a, n);
    float *m_top = karena_take(a, n_tops), *v_top = karena_take(a, n_tops);
    k->adam = (agoq_adam8){m, v, m_top, v_top, k->n};
    k->sqnorm = karena_take(a, sizeof *k->sqnorm);
}

static void kgrad_fill(kgrad *k, uint64_t seed, int special) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_view flat = {k->flat, AGOQ_DTYPE_F32, 1, k->n, k->n};
    kernels_fill(&k->x, seed + 7, special);
    for (int i = 0; i < 3; i++) {
        kernels_fill(&flat, seed + (uint64_t)i, special);
        memset(k->in[i].codes, 0, (size_t)k->n);
        memset(k->in[i].scales, 0, (size_t)(k->n / AGOQ_GRAD_BLOCK + 1) * 4);
        (void)kref_grad_add(&exec, k->flat, AGOQ_DTYPE_F32, NULL, &k->in[i]);
    }
}

/* After outputs were filled with the pattern: plausible values in what is read and written. */
static void kgrad_reset(kgrad *k) {
    uint64_t state = 99;
    memcpy(k->grad.codes, k->in[0].codes, (size_t)k->n);
    memcpy(k->grad.scales, k->in[0].scales, (size_t)(k->n / AGOQ_GRAD_BLOCK + 1) * 4);
    for (int64_t i = 0; i < k->n; i++) {
        const uint64_t dice = next_random(&state);
        k->params[i] = (float)(dice >> 40) * 0x1p-24f - 0.5f;
        k->half[i] = agoqk_bf16_encode(k->params[i]);
        k->flat[i] = (float)(dice & 0xFFFF) * 0x1p-16f;
        k->adam.m[i] = (uint8_t)(dice >> 16), k->adam.v[i] = (uint8_t)(dice >> 24);
    }
    for (int64_t b = 0; b <= k->n / AGOQK_ADAM_BLOCK; b++) k->adam.m_absmax[b] = k->adam.v_absmax[b] = 0.01f;
    *k->sqnorm = 0.5;
}

static agoq_status kgrad_run(kgrad *k, const agoq_exec *exec, const agoqk_ops *ops, kgrad_op op) {
    const agoq_adam_params adam = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 12, 0.5f};
    const agoq_adam_source source = {.grad8 = &k->in[1]};
    const agoq_adam_source plain = {.grad = k->x.data, .dtype = k->x.dtype};
    const agoq_adam_target target = {.master = k->params}, both = {k->params, k->half, NULL},
                           bf16 = {.bf16 = k->half, .key = &k->key};
    const agoq_grad_term term = {k->grad, k->x.data, k->key};
    const int64_t skip = k->n > 300 ? 77 : 0;
    switch (op) {
    case KGRAD_GRAD_ADD:
    case KGRAD_GRAD_ADD_SR:
        return ops->grad_accumulate(exec, &term, 1, k->x.dtype, op == KGRAD_GRAD_ADD_SR);
    case KGRAD_GRAD_READ:
        return ops->grad_read(exec, &k->in[0], skip, k->n - skip, 0.25f, k->flat);
    case KGRAD_GRAD_SQNORM:
        return ops->grad_sqnorm(exec, &k->in[0], k->sqnorm);
    case KGRAD_GRAD_REDUCE:
        return ops->grad_reduce(exec, k->in, 3, 1.0f / 3.0f, &k->grad, NULL);
    case KGRAD_GRAD_REDUCE_32:
        return ops->grad_reduce(exec, k->in, 3, 1.0f / 3.0f, NULL, k->flat);
    case KGRAD_ADAM8:
        return ops->adam8_step(exec, &adam, &source, &target, &k->adam);
    case KGRAD_ADAM8_COPY:
        return ops->adam8_step(exec, &adam, &plain, &both, &k->adam);
    case KGRAD_ADAM8_BF16:
        return ops->adam8_step(exec, &adam, &source, &bf16, &k->adam);
    case KGRAD_N_OPS:
        break;
    }
    return AGOQ_E_INVAL;
}

#endif
