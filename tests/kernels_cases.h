/* One set of inputs and outputs for every codec operation, so that a test and a benchmark can run the same
 * call on any row of operations and compare all it wrote, byte for byte, with the scalar row. Outputs lie in
 * one arena, filled alike before each call: what a kernel should leave alone is compared too. NaNs that fused
 * operations write as fp32 are compared as NaNs: their bits are not part of the format. */
#ifndef TESTS_KERNELS_CASES_H
#define TESTS_KERNELS_CASES_H

#include "tests/kernels_cases_grad.h"

/* op, name, whether it depends on the format, matrices of the dtype it reads or writes, packed tensors, bytes
 * per element of anything else */
#define KCASE_ACT_OPS(X)                                                                                     \
    X(PACK, "pack", 1, 1, 1, 0)                                                                              \
    X(PACK_SR, "pack_sr", 1, 1, 1, 0)                                                                        \
    X(UNPACK, "unpack", 1, 1, 1, 0)                                                                          \
    X(RMS_FWD, "rmsnorm_fwd_pack", 1, 4, 1, 0)                                                               \
    X(RMS_AGAIN, "rmsnorm_fwd_packed", 1, 1, 1, 0)                                                           \
    X(RMS_BWD, "rmsnorm_bwd_packed", 1, 2, 1, 0)                                                             \
    X(LAYER_FWD, "layernorm_fwd_pack", 1, 4, 1, 0)                                                           \
    X(LAYER_AGAIN, "layernorm_fwd_packed", 1, 1, 1, 0)                                                       \
    X(LAYER_BWD, "layernorm_bwd_packed", 1, 2, 1, 0)                                                         \
    X(ROPE, "rope_pack", 1, 2, 1, 0)                                                                         \
    X(ROPE_BACK, "rope_back_interleaved", 0, 2, 0, 0)                                                        \
    X(SWIGLU_FWD, "swiglu_fwd_pack", 1, 3, 2, 0)                                                             \
    X(SWIGLU_BWD, "swiglu_bwd_packed", 1, 4, 2, 0)
#define KCASE_OPS(X) KCASE_ACT_OPS(X) KCASE_GRAD_OPS(X)

typedef enum kcase_op {
#define KCASE_ENUM(id, name, wide, matrices, packed, rest) KCASE_##id,
    KCASE_OPS(KCASE_ENUM)
#undef KCASE_ENUM
        KCASE_N_OPS
} kcase_op;
enum { KCASE_N_ACT_OPS = KCASE_N_OPS - KGRAD_N_OPS };

typedef struct kcase {
    int64_t rows, cols;
    agoq_dtype dtype;
    int format, special, round_bf16;
    agoq_key key;
    agoq_view x, r, dy, out[3];
    agoq_norm norm; /* of either kind */
    void *weight, *bias;
    float *cos, *sin, *dweight, *dbias;
    int32_t *positions;
    agoq_rope rope;
    agoq_packed kept[2], packed[2];
    kgrad grads;
    uint32_t *nonfinite;
    karena arena;
    uint8_t *outputs;
    size_t inputs_bytes;
} kcase;

static const agoqk_ops kref_ops = {
    .pack = kref_pack,
    .unpack = kref_unpack,
    .norm_fwd_pack = kref_norm_fwd_pack,
    .norm_fwd_packed = kref_norm_fwd_packed,
    .norm_bwd_packed = kref_norm_bwd_packed,
    .rope = kref_rope,
    .swiglu_fwd_pack = kref_swiglu_fwd_pack,
    .swiglu_bwd_packed = kref_swiglu_bwd_packed,
    .grad_accumulate = kref_grad_accumulate,
    .grad_read = kref_grad_read,
    .grad_sqnorm = kref_grad_sqnorm,
    .grad_reduce = kref_grad_reduce,
    .adam8_step = kref_adam8_step,
};

static agoq_view kcase_view(kcase *k, int64_t pad) {
    const size_t size = k->dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    void *data = karena_take(&k->arena, (size_t)(k->rows * (k->cols + pad)) * size);
    return (agoq_view){data, k->dtype, k->rows, k->cols, k->cols + pad};
}

static agoq_packed kcase_packed(kcase *k) {
    agoq_packed p;
    memset(&p, 0, sizeof p);
    if (agoq_layout_make(k->format, k->rows, k->cols, &p.layout) != AGOQ_OK) abort();
    p.data = karena_take(&k->arena, p.layout.bytes);
    return p;
}

/* The longest common head that divides cols; special: the last quarter of a head passes through. */
static void kcase_rope(kcase *k) {
    static const int heads[] = {257, 128, 96, 67, 64, 50, 40, 31, 1};
    int i = 0;
    while (k->cols % heads[i]) i++;
    const int head_dim = heads[i], rotary = (k->special ? head_dim * 3 / 4 : head_dim) / 2 * 2;
    const int64_t n = k->special && k->rows > 1 ? k->rows - 1 : k->rows;
    k->cos = karena_take(&k->arena, (size_t)n * (size_t)rotary / 2 * 4);
    k->sin = karena_take(&k->arena, (size_t)n * (size_t)rotary / 2 * 4);
    k->positions = karena_take(&k->arena, (size_t)k->rows * 4);
    k->rope = (agoq_rope){k->cos, k->sin, n, k->special ? k->positions : NULL, head_dim, rotary, 0};
}

static void kcase_carve(kcase *k, int64_t pad) {
    karena *a = &k->arena;
    a->bytes = 0;
    k->x = kcase_view(k, pad);
    k->r = kcase_view(k, 0);
    k->dy = kcase_view(k, 2 * pad);
    k->weight = karena_take(a, (size_t)k->cols * 4);
    k->bias = karena_take(a, (size_t)k->cols * 4);
    kcase_rope(k);
    for (int i = 0; i < 2; i++) k->kept[i] = kcase_packed(k);
    kgrad_carve_inputs(&k->grads, a, k->rows * k->cols, k->dtype,
                       (agoq_grad_format)((k->format - 4) % AGOQ_N_GRAD_FORMATS));
    k->inputs_bytes = a->bytes;
    for (int i = 0; i < 3; i++) k->out[i] = kcase_view(k, pad);
    k->dweight = karena_take(a, (size_t)k->cols * 4);
    k->dbias = karena_take(a, (size_t)k->cols * 4);
    for (int i = 0; i < 2; i++) k->packed[i] = kcase_packed(k);
    kgrad_carve_outputs(&k->grads, a);
    k->nonfinite = karena_take(a, sizeof *k->nonfinite);
    k->outputs = a->memory + k->inputs_bytes;
}

/* Every dtype of weights, with and without each of them and of the roundings, depending on the shape. */
static void kcase_fill_norm(kcase *k, uint64_t seed) {
    const agoq_dtype dtype = k->special ? (agoq_dtype)((k->rows + k->format) % 3) : k->dtype;
    agoq_view row = {k->weight, dtype, 1, k->cols, k->cols};
    for (int64_t c = 0; c < k->cols; c++) kref_set(&row, 0, c, 0, 1.0f + 0.1f * gauss(&seed));
    row.data = k->bias;
    for (int64_t c = 0; c < k->cols; c++) kref_set(&row, 0, c, 0, 0.1f * gauss(&seed));
    k->norm = (agoq_norm){.weight_dtype = dtype, .weight = k->weight, .bias = k->bias, .eps = 1e-5f};
    k->norm.round_bf16 = k->round_bf16;
    if (!k->special) return;
    k->norm.round_first = k->format % 2 ? 1 : (int)(k->cols % 2);
    if (k->cols % 5 == 0 && k->format == 6) k->norm.weight = NULL;
    if (k->cols % 2 == 0 && k->format != 5) k->norm.bias = NULL;
}

static void kcase_fill_rope(kcase *k) {
    const int64_t half = k->rope.rotary / 2;
    for (int64_t i = 0; i < k->rope.n_positions * half; i++) {
        const double angle = (double)(i / half) * pow(10000.0, -(double)(i % half) / (double)half);
        k->cos[i] = (float)cos(angle), k->sin[i] = (float)sin(angle);
    }
    for (int64_t r = 0; r < k->rows; r++) /* from -1 to one beyond the last */
        k->positions[r] = (int32_t)((r * 7 + 3) % (k->rope.n_positions + 2) - 1);
}

/* 0 when there is no memory. special: rows with gaps, odd values, unusual options. */
static int kcase_make(kcase *k, int64_t rows, int64_t cols, int format, agoq_dtype dtype, int special) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const uint64_t seed = (uint64_t)(rows * 1000003 + cols) * 64 + (uint64_t)format;
    const int64_t pad = special ? 3 : 0;
    memset(k, 0, sizeof *k);
    k->rows = rows, k->cols = cols, k->format = format, k->dtype = dtype, k->special = special;
    k->round_bf16 = rows % 2 == 1;
    k->key = (agoq_key){seed, 7, 1ull << 40 | 3, 5, 2, special ? INT64_C(0x3FFFFFFFD) : 0};
    k->grads.key = k->key;
    kcase_carve(k, pad);
    k->arena.memory = malloc(k->arena.bytes);
    if (!k->arena.memory) return 0;
    memset(k->arena.memory, 0, k->arena.bytes);
    kcase_carve(k, pad);
    kernels_fill(&k->x, seed + 1, special);
    kernels_fill(&k->r, seed + 2, special);
    kernels_fill(&k->dy, seed + 3, special);
    kcase_fill_norm(k, seed + 4);
    kcase_fill_rope(k);
    (void)kref_ops.pack(&exec, &k->x, NULL, &k->kept[0]);
    (void)kref_ops.pack(&exec, &k->r, NULL, &k->kept[1]);
    kgrad_fill(&k->grads, seed + 5, special);
    return 1;
}

static void kcase_free(kcase *k) {
    free(k->arena.memory);
}

/* The outputs as every call finds them: a pattern, and in what is read and written plausible values. */
static void kcase_reset(kcase *k) {
    memset(k->outputs, 0xA5, k->arena.bytes - k->inputs_bytes);
    for (int64_t c = 0; c < k->cols; c++)
        k->dweight[c] = (float)(c % 11), k->dbias[c] = (float)(c % 7) - 3.0f;
    kgrad_reset(&k->grads);
    *k->nonfinite = 0;
}

static agoq_status kcase_run(kcase *k, const agoqk_ops *ops, kcase_op op) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = k->nonfinite};
    agoq_norm norm = k->norm;
    agoq_rope rope = k->rope;
    norm.kind = op >= KCASE_LAYER_FWD ? AGOQ_NORM_LAYER : AGOQ_NORM_RMS;
    rope.interleaved = op == KCASE_ROPE_BACK;
    switch (op) {
    case KCASE_PACK:
        return ops->pack(&exec, &k->x, NULL, &k->packed[0]);
    case KCASE_PACK_SR:
        return ops->pack(&exec, &k->x, &k->key, &k->packed[0]);
    case KCASE_UNPACK:
        return ops->unpack(&exec, &k->kept[0], &k->out[0]);
    case KCASE_RMS_FWD:
    case KCASE_LAYER_FWD:
        return ops->norm_fwd_pack(&exec, &k->x, &k->r, &norm, &k->out[0], &k->out[1], &k->packed[0]);
    case KCASE_RMS_AGAIN:
    case KCASE_LAYER_AGAIN:
        return ops->norm_fwd_packed(&exec, &k->kept[0], &norm, &k->out[0]);
    case KCASE_RMS_BWD:
    case KCASE_LAYER_BWD:
        return ops->norm_bwd_packed(&exec, &k->kept[0], &norm, &k->dy, &k->out[0], k->dweight, k->dbias);
    case KCASE_ROPE:
        return ops->rope(&exec, &k->x, &rope, 0, &k->out[0], &k->packed[0]);
    case KCASE_ROPE_BACK:
        return ops->rope(&exec, &k->x, &rope, 1, &k->out[0], NULL);
    case KCASE_SWIGLU_FWD:
        return ops->swiglu_fwd_pack(&exec, &k->x, &k->r, k->round_bf16, &k->out[0], &k->packed[0],
                                    &k->packed[1]);
    case KCASE_SWIGLU_BWD:
        return ops->swiglu_bwd_packed(&exec, &k->kept[0], &k->kept[1], k->round_bf16, &k->dy, &k->out[0],
                                      &k->out[1], &k->out[2]);
    default:
        return kgrad_run(&k->grads, &exec, ops, (kgrad_op)(op - KCASE_N_ACT_OPS));
    }
}

/* The NaNs whose bits the formats leave open: what fused rows write as fp32 without a rounding. */
static void kcase_same_nans(kcase *k, kcase_op op) {
    if (op < KCASE_RMS_FWD || op >= (kcase_op)KCASE_N_ACT_OPS) return;
    const int rope = op == KCASE_ROPE || op == KCASE_ROPE_BACK;
    for (int i = 0; i < 3 && k->dtype == AGOQ_DTYPE_F32 && (rope || !k->round_bf16); i++)
        kernels_same_nans(k->out[i].data, (size_t)(k->rows * k->out[i].row_stride));
    kernels_same_nans(k->dweight, (size_t)k->cols);
    kernels_same_nans(k->dbias, (size_t)k->cols);
}

/* Runs one operation on both rows from equal beginnings; 1 when they wrote the same. */
static int kcase_agree(kcase *k, const agoqk_ops *ops, kcase_op op) {
    const size_t bytes = k->arena.bytes - k->inputs_bytes;
    uint8_t *want = malloc(bytes);
    int same = want != NULL;
    for (int turn = 0; same && turn < 2; turn++) {
        kcase_reset(k);
        same = kcase_run(k, turn == 0 ? &kref_ops : ops, op) == AGOQ_OK;
        kcase_same_nans(k, op);
        if (turn == 0 && same) memcpy(want, k->outputs, bytes);
    }
    same = same && memcmp(want, k->outputs, bytes) == 0;
    free(want);
    return same;
}

#endif
