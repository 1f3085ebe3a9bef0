/* One set of inputs and outputs for every codec operation, so that a test and a benchmark can run the same
 * call on any row of operations and compare all it wrote, byte for byte, with the scalar row. Outputs lie in
 * one arena, filled alike before each call: what a kernel should leave alone is compared too. NaNs that fused
 * operations write as fp32 are compared as NaNs: their bits are not part of the format. */
#ifndef TESTS_KERNELS_CASES_H
#define TESTS_KERNELS_CASES_H

#include "tests/kernels_ref.h"
#include "tests/numeric.h"

/* op, name, whether it depends on the width, matrices of the dtype it reads or writes, packed tensors, bytes
 * per element of anything else */
#define KCASE_OPS(X)                                                                                         \
    X(PACK, "pack", 1, 1, 1, 0)                                                                              \
    X(PACK_SR, "pack_sr", 1, 1, 1, 0)                                                                        \
    X(UNPACK, "unpack", 1, 1, 1, 0)                                                                          \
    X(NORM_FWD, "norm_fwd_pack", 1, 4, 1, 0)                                                                 \
    X(NORM_AGAIN, "norm_fwd_packed", 1, 1, 1, 0)                                                             \
    X(NORM_BWD, "norm_bwd_packed", 1, 2, 1, 0)                                                               \
    X(SWIGLU_FWD, "swiglu_fwd_pack", 1, 3, 2, 0)                                                             \
    X(SWIGLU_BWD, "swiglu_bwd_packed", 1, 4, 2, 0)                                                           \
    X(GRAD_ADD, "grad_accumulate", 0, 1, 0, 2)                                                               \
    X(GRAD_ADD_SR, "grad_accumulate_sr", 0, 1, 0, 2)                                                         \
    X(GRAD_READ, "grad_read", 0, 0, 0, 5)                                                                    \
    X(GRAD_SQNORM, "grad_sqnorm", 0, 0, 0, 1)                                                                \
    X(GRAD_REDUCE, "grad_reduce_3", 0, 0, 0, 4)                                                              \
    X(GRAD_REDUCE_32, "grad_reduce_3_f32", 0, 0, 0, 7)                                                       \
    X(ADAM8, "adam8_step", 0, 0, 0, 16)

typedef enum kcase_op {
#define KCASE_ENUM(id, name, wide, matrices, packed, rest) KCASE_##id,
    KCASE_OPS(KCASE_ENUM)
#undef KCASE_ENUM
        KCASE_N_OPS
} kcase_op;

typedef struct kcase {
    int64_t rows, cols;
    agoq_dtype dtype;
    int bits, round_bf16;
    agoq_key key;
    agoq_view x, r, dy, out[3];
    float *gamma, *flat, *params;
    agoq_packed kept[2], packed[2];
    agoq_grad grad_in[3], grad;
    agoq_adam8 adam;
    double *sqnorm;
    uint32_t *nonfinite;
    uint8_t *memory, *outputs;
    size_t bytes, inputs_bytes;
} kcase;

/* Hands out memory at multiples of 64 bytes; the first pass, without memory, only counts. */
static void *kcase_take(kcase *k, size_t bytes) {
    void *at = k->memory ? k->memory + k->bytes : NULL;
    k->bytes += (bytes + 63) / 64 * 64;
    return at;
}

static agoq_view kcase_view(kcase *k, int64_t pad) {
    const size_t size = k->dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    void *data = kcase_take(k, (size_t)(k->rows * (k->cols + pad)) * size);
    return (agoq_view){data, k->dtype, k->rows, k->cols, k->cols + pad};
}

static agoq_packed kcase_packed(kcase *k) {
    agoq_packed p;
    memset(&p, 0, sizeof p);
    if (agoq_layout_make(k->bits, k->rows, k->cols, &p.layout) != AGOQ_OK) abort();
    p.data = kcase_take(k, p.layout.bytes);
    return p;
}

static agoq_grad kcase_grad(kcase *k) {
    const int64_t n = k->rows * k->cols;
    uint8_t *codes = kcase_take(k, (size_t)n);
    return (agoq_grad){codes, kcase_take(k, (size_t)(n / AGOQ_GRAD_BLOCK + 1) * 4), n, AGOQ_GRAD_E4M3};
}

static void kcase_carve(kcase *k, int64_t pad) {
    const size_t n = (size_t)(k->rows * k->cols);
    k->bytes = 0;
    k->x = kcase_view(k, pad);
    k->r = kcase_view(k, 0);
    k->dy = kcase_view(k, 2 * pad);
    k->gamma = kcase_take(k, (size_t)k->cols * 4);
    for (int i = 0; i < 2; i++) k->kept[i] = kcase_packed(k);
    for (int i = 0; i < 3; i++) k->grad_in[i] = kcase_grad(k);
    k->inputs_bytes = k->bytes;
    for (int i = 0; i < 3; i++) k->out[i] = kcase_view(k, pad);
    k->flat = kcase_take(k, n * 4 + (size_t)k->cols * 4);
    k->params = kcase_take(k, n * 4);
    for (int i = 0; i < 2; i++) k->packed[i] = kcase_packed(k);
    k->grad = kcase_grad(k);
    const size_t n_tops = (n / AGOQK_ADAM_BLOCK + 1) * 4;
    uint8_t *m = kcase_take(k, n), *v = kcase_take(k, n);
    float *m_top = kcase_take(k, n_tops), *v_top = kcase_take(k, n_tops);
    k->adam = (agoq_adam8){m, v, m_top, v_top, (int64_t)n};
    k->sqnorm = kcase_take(k, sizeof *k->sqnorm);
    k->nonfinite = kcase_take(k, sizeof *k->nonfinite);
    k->outputs = k->memory + k->inputs_bytes;
}

/* Gaussian, with an outlier here and there, whole blocks of zeros, and (special) what formats treat apart. */
static void kcase_fill(const agoq_view *v, uint64_t seed, int special) {
    static const float odd[] = {-0.0f, 1e-40f, -3e-38f, 1e-30f, 65520.0f, 3e38f, INFINITY, -INFINITY, NAN};
    for (int64_t r = 0; r < v->rows; r++) {
        for (int64_t c = 0; c < v->cols; c++) {
            const uint64_t dice = next_random(&seed) >> 40;
            float x = gauss(&seed) * (dice % 97 == 0 ? 30.0f : 1.0f);
            if ((r + c / 64) % 13 == 12) x = 0.0f;
            if (special && dice % 211 == 0) x = odd[dice / 211 % 9];
            kref_set(v, r, c, 0, x);
        }
    }
}

static void kcase_make_grads(kcase *k, uint64_t seed, int special) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    agoq_view flat = {k->flat, AGOQ_DTYPE_F32, k->rows, k->cols, k->cols};
    for (int i = 0; i < 3; i++) {
        kcase_fill(&flat, seed + (uint64_t)i, special);
        memset(k->grad_in[i].codes, 0, (size_t)k->grad_in[i].n);
        memset(k->grad_in[i].scales, 0, (size_t)(k->grad_in[i].n / AGOQ_GRAD_BLOCK + 1) * 4);
        (void)kref_ops.grad_accumulate(&exec, k->flat, AGOQ_DTYPE_F32, NULL, &k->grad_in[i]);
    }
}

/* 0 when there is no memory. */
static int kcase_make(kcase *k, int64_t rows, int64_t cols, int bits, agoq_dtype dtype, int special) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const uint64_t seed = (uint64_t)(rows * 1000003 + cols) * 64 + (uint64_t)bits;
    const int64_t pad = special ? 3 : 0;
    memset(k, 0, sizeof *k);
    k->rows = rows, k->cols = cols, k->bits = bits, k->dtype = dtype;
    k->round_bf16 = rows % 2 == 1;
    k->key = (agoq_key){seed, 7, 1ull << 40 | 3, 5, 2, special ? INT64_C(0x3FFFFFFFD) : 0};
    kcase_carve(k, pad);
    k->memory = malloc(k->bytes);
    if (!k->memory) return 0;
    memset(k->memory, 0, k->bytes);
    kcase_carve(k, pad);
    kcase_fill(&k->x, seed + 1, special);
    kcase_fill(&k->r, seed + 2, special);
    kcase_fill(&k->dy, seed + 3, special);
    uint64_t state = seed + 4;
    for (int64_t c = 0; c < cols; c++) k->gamma[c] = 1.0f + 0.1f * gauss(&state);
    (void)kref_ops.pack(&exec, &k->x, NULL, &k->kept[0]);
    (void)kref_ops.pack(&exec, &k->r, NULL, &k->kept[1]);
    kcase_make_grads(k, seed + 5, special);
    return 1;
}

static void kcase_free(kcase *k) {
    free(k->memory);
}

/* The outputs as every call finds them: a pattern, and in what is read and written plausible values. */
static void kcase_reset(kcase *k) {
    const int64_t n = k->rows * k->cols;
    uint64_t state = 99;
    memset(k->outputs, 0xA5, k->bytes - k->inputs_bytes);
    memcpy(k->grad.codes, k->grad_in[0].codes, (size_t)n);
    memcpy(k->grad.scales, k->grad_in[0].scales, (size_t)(n / AGOQ_GRAD_BLOCK + 1) * 4);
    for (int64_t i = 0; i < n; i++) {
        const uint64_t dice = next_random(&state);
        k->params[i] = (float)(dice >> 40) * 0x1p-24f - 0.5f;
        k->flat[i] = (float)(dice & 0xFFFF) * 0x1p-16f;
        k->adam.m[i] = (uint8_t)(dice >> 16), k->adam.v[i] = (uint8_t)(dice >> 24);
    }
    for (int64_t b = 0; b <= n / AGOQK_ADAM_BLOCK; b++) k->adam.m_absmax[b] = k->adam.v_absmax[b] = 0.01f;
    *k->sqnorm = 0.5;
    *k->nonfinite = 0;
}

static agoq_status kcase_run(kcase *k, const agoqk_ops *ops, kcase_op op) {
    const agoq_exec exec = {AGOQ_DEVICE_CPU, NULL, k->nonfinite};
    const agoq_norm norm = {k->gamma, 1e-5f, k->round_bf16};
    const agoq_adam_params adam = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 12, 0.5f};
    const agoq_key *key = op == KCASE_PACK_SR || op == KCASE_GRAD_ADD_SR ? &k->key : NULL;
    const int64_t n = k->rows * k->cols, skip = n > 300 ? 77 : 0;
    switch (op) {
    case KCASE_PACK:
    case KCASE_PACK_SR:
        return ops->pack(&exec, &k->x, key, &k->packed[0]);
    case KCASE_UNPACK:
        return ops->unpack(&exec, &k->kept[0], &k->out[0]);
    case KCASE_NORM_FWD:
        return ops->norm_fwd_pack(&exec, &k->x, &k->r, &norm, &k->out[0], &k->out[1], &k->packed[0]);
    case KCASE_NORM_AGAIN:
        return ops->norm_fwd_packed(&exec, &k->kept[0], &norm, &k->out[0]);
    case KCASE_NORM_BWD:
        return ops->norm_bwd_packed(&exec, &k->kept[0], &norm, &k->dy, &k->out[0], k->flat);
    case KCASE_SWIGLU_FWD:
        return ops->swiglu_fwd_pack(&exec, &k->x, &k->r, k->round_bf16, &k->out[0], &k->packed[0],
                                    &k->packed[1]);
    case KCASE_SWIGLU_BWD:
        return ops->swiglu_bwd_packed(&exec, &k->kept[0], &k->kept[1], k->round_bf16, &k->dy, &k->out[0],
                                      &k->out[1], &k->out[2]);
    case KCASE_GRAD_ADD:
    case KCASE_GRAD_ADD_SR:
        return ops->grad_accumulate(&exec, k->r.data, k->r.dtype, key, &k->grad);
    case KCASE_GRAD_READ:
        return ops->grad_read(&exec, &k->grad_in[0], skip, n - skip, 0.25f, k->flat);
    case KCASE_GRAD_SQNORM:
        return ops->grad_sqnorm(&exec, &k->grad_in[0], k->sqnorm);
    case KCASE_GRAD_REDUCE:
        return ops->grad_reduce(&exec, k->grad_in, 3, 1.0f / 3.0f, &k->grad, NULL);
    case KCASE_GRAD_REDUCE_32:
        return ops->grad_reduce(&exec, k->grad_in, 3, 1.0f / 3.0f, NULL, k->flat);
    case KCASE_ADAM8:
        return ops->adam8_step(&exec, &adam, &k->grad_in[1], NULL, k->params, &k->adam);
    case KCASE_N_OPS:
        break;
    }
    return AGOQ_E_INVAL;
}

static void kcase_same_nans(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = agoqk_canonical(x[i]);
}

/* Runs one operation on both rows from equal beginnings; 1 when they wrote the same. */
static int kcase_agree(kcase *k, const agoqk_ops *ops, kcase_op op) {
    const size_t bytes = k->bytes - k->inputs_bytes, n = (size_t)(k->rows * k->cols);
    uint8_t *want = malloc(bytes);
    int same = want != NULL;
    for (int turn = 0; same && turn < 2; turn++) {
        kcase_reset(k);
        same = kcase_run(k, turn == 0 ? &kref_ops : ops, op) == AGOQ_OK;
        for (int i = 0; i < 3 && k->dtype == AGOQ_DTYPE_F32; i++)
            kcase_same_nans(k->out[i].data, (size_t)(k->rows * k->out[i].row_stride));
        kcase_same_nans(k->flat, n + (size_t)k->cols);
        kcase_same_nans(k->params, n);
        if (*k->sqnorm != *k->sqnorm) *k->sqnorm = (double)NAN;
        if (turn == 0 && same) memcpy(want, k->outputs, bytes);
    }
    same = same && memcmp(want, k->outputs, bytes) == 0;
    free(want);
    return same;
}

#endif
