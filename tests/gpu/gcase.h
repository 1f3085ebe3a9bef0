/* A case: an operation, shapes, dtype, width, flags and where everything lies in the arena. Inputs are nearly
 * normal with outliers and blocks of zeros, and in special cases what formats treat apart; extreme cases
 * write into packed inputs what encoders give rarely or never. Only what a kind of operation can touch is
 * laid out. */
#ifndef TESTS_GPU_GCASE_H
#define TESTS_GPU_GCASE_H

#include "kernels/format/half.h"
#include "tests/gpu/arena.h"

#define OPS(X)                                                                                               \
    X(pack)                                                                                                  \
    X(unpack)                                                                                                \
    X(pack_rows)                                                                                             \
    X(unpack_rows)                                                                                           \
    X(norm_fwd_pack)                                                                                         \
    X(norm_fwd_packed)                                                                                       \
    X(norm_bwd_packed)                                                                                       \
    X(rope)                                                                                                  \
    X(swiglu_fwd_pack)                                                                                       \
    X(swiglu_bwd_packed)                                                                                     \
    X(grad_zero)                                                                                             \
    X(grad_accumulate)                                                                                       \
    X(grad_accumulate_list)                                                                                  \
    X(grad_read)                                                                                             \
    X(grad_sqnorm)                                                                                           \
    X(grad_check_finite)                                                                                     \
    X(grad_reduce)                                                                                           \
    X(adam8_step)                                                                                            \
    X(adam8_init)

typedef enum op {
#define OP_ENUM(name) OP_##name,
    OPS(OP_ENUM)
#undef OP_ENUM
        N_OPS
} op;

static const char *const op_names[N_OPS] = {
#define OP_NAME(name) #name,
    OPS(OP_NAME)
#undef OP_NAME
};

enum { N_VIEWS = 6, N_PACKED = 4, N_GRADS = 3, N_TERMS = 70 };

/* What packed inputs of an extreme case hold in one row of four. */
enum { NOT_EXTREME, NONFINITE_BLOCKS, HUGE_BLOCKS, ZERO_BLOCKS, TINY_BLOCKS, N_EXTREMES };

typedef struct gcase {
    op o;
    int64_t rows, cols, pad; /* pad: elements between rows, times 0, 1, 2 .. by view */
    int64_t first_row;       /* of the tensor that this is a part of */
    int skew;                /* bytes (a multiple of the element) by which data misses alignment */
    agoq_dtype dtype;
    int bits, special, extreme;
    uint32_t flags; /* bits are read by the operations (ops.h): every combination is legal */
    uint64_t seed;
    agoq_grad_format format;
    size_t view[N_VIEWS], packed[N_PACKED], weight, bias, dweight, dbias, table, positions;
    size_t codes[N_GRADS + 1], scales[N_GRADS + 1], flat, master, bf16, m, v, m_top, v_top, sqnorm, counter;
} gcase;

static int flag(const gcase *c, int i) {
    return (int)(c->flags >> i & 1);
}

static size_t elem(agoq_dtype d) {
    return d == AGOQ_DTYPE_F32 ? 4 : 2;
}

/* Of weight and bias. */
static agoq_dtype weight_dtype(const gcase *c) {
    return !flag(c, 1) ? AGOQ_DTYPE_F32 : flag(c, 11) ? AGOQ_DTYPE_F16 : AGOQ_DTYPE_BF16;
}

static int of_activations(op o) {
    return o <= OP_swiglu_bwd_packed;
}

static int64_t stride_of(const gcase *c, int i) {
    return c->cols + c->pad * (i % 3);
}

static agoq_view view(const gcase *c, uint8_t *base, int i) {
    agoq_view v = {base + c->view[i], c->dtype, c->rows, c->cols, stride_of(c, i)};
    return v;
}

static agoq_packed packed(const gcase *c, uint8_t *base, int i) {
    agoq_packed p;
    if (agoq_layout_make(c->bits, c->rows, c->cols, &p.layout) != AGOQ_OK) exit(1);
    p.data = base + c->packed[i];
    return p;
}

static agoq_grad grad(const gcase *c, uint8_t *base, int i) {
    agoq_grad g = {base + c->codes[i], (float *)(void *)(base + c->scales[i]), c->rows * c->cols, c->format};
    return g;
}

static agoq_key key_of(const gcase *c) {
    agoq_key k = {c->seed, 7, 1ull << 40 | 3, 5, 2, c->special ? INT64_C(0x3FFFFFFF5) : 0};
    k.offset += c->first_row * c->cols;
    return k;
}

static float *floats_at(uint8_t *base, size_t at) {
    return (float *)(void *)(base + at);
}

static size_t view_bytes(const gcase *c, int i) {
    return (size_t)(c->rows > 0 ? (c->rows - 1) * stride_of(c, i) + c->cols : 0) * elem(c->dtype);
}

/* Views 0 .. 2 are inputs, 3 .. 5 outputs; packed 0, 1 inputs, 2, 3 outputs; gradients 0 .. 2 inputs, 3
 * output. */
static void case_lay_out(op o, gcase *c, arena *a) {
    const int act = of_activations(o);
    const int64_t n = act ? 0 : c->rows * c->cols, blocks = agoq_grad_blocks(n), tops = agoq_adam8_blocks(n);
    agoq_layout l;
    c->o = o;
    if (agoq_layout_make(c->bits, c->rows, c->cols, &l) != AGOQ_OK) exit(1);
    arena_reset(a, (size_t)(c->rows * c->cols + 4096) * 40 + (size_t)(c->rows * c->pad) * 48 + (1 << 16));
    for (int i = 0; i < N_VIEWS; i++)
        c->view[i] = arena_take(a, act || i == 0 ? view_bytes(c, i) : 0, (size_t)c->skew);
    for (int i = 0; i < N_PACKED; i++) c->packed[i] = arena_take(a, act ? l.bytes : 0, 0);
    c->weight = arena_take(a, (size_t)c->cols * 4, flag(c, 12) ? 4 : 0);
    c->bias = arena_take(a, (size_t)c->cols * 4, flag(c, 13) ? 4 : 0);
    c->dweight = arena_take(a, (size_t)c->cols * 4, 4);
    c->dbias = arena_take(a, (size_t)c->cols * 4, 8);
    c->table = arena_take(a, (size_t)(c->cols + 2) * 16 * 8, 0);
    c->positions = arena_take(a, (size_t)c->rows * 4, 0);
    for (int i = 0; i <= N_GRADS; i++) {
        c->codes[i] = arena_take(a, (size_t)n, c->special ? (size_t)c->skew : 0);
        c->scales[i] = arena_take(a, (size_t)blocks * 4, 4);
    }
    c->flat = arena_take(a, (size_t)n * 4, (size_t)(c->special ? 4 : 0));
    c->master = arena_take(a, (size_t)n * 4, (size_t)(c->special ? 4 : 0));
    c->bf16 = arena_take(a, (size_t)n * 2, (size_t)(c->special ? 2 : 0));
    c->m = arena_take(a, (size_t)n, (size_t)c->skew);
    c->v = arena_take(a, (size_t)n, (size_t)c->skew);
    c->m_top = arena_take(a, (size_t)tops * 4, 0);
    c->v_top = arena_take(a, (size_t)tops * 4, 0);
    c->sqnorm = arena_take(a, 8, 0);
    c->counter = arena_take(a, 8, 0);
}

/* A part of the arena: `unit` bytes for every `per` elements, for every row (PER_ROW), or once (ONCE). */
enum { ONCE = 0, PER_ROW = -1, MOST_FIELDS = 48 };
typedef struct field {
    const char *name;
    size_t at, unit;
    int64_t per;
} field;

/* What of a field belongs to rows [first, first + rows). */
static void field_range(const gcase *c, const field *f, int64_t first, int64_t rows, size_t *from,
                        size_t *bytes) {
    const int64_t per = f->per > 0 ? f->per : 1, unit = f->per > 0 ? c->cols : 1;
    const int64_t begin = first * unit / per, end = ((first + rows) * unit + per - 1) / per;
    *from = f->at + (f->per == ONCE ? 0 : (size_t)begin * f->unit);
    *bytes = f->per == ONCE ? f->unit : (size_t)(end - begin) * f->unit;
}

/* In the order of the arena. */
static int case_fields(const gcase *c, field list[MOST_FIELDS]) {
    static const char *const views[] = {"view 0", "view 1", "view 2", "view 3", "view 4", "view 5"};
    static const char *const planes[] = {"packed 0", "packed 1", "packed 2", "packed 3"};
    static const char *const codes[] = {"codes 0", "codes 1", "codes 2", "codes 3"};
    static const char *const scales[] = {"scales 0", "scales 1", "scales 2", "scales 3"};
    const int act = of_activations(c->o);
    const size_t cols = (size_t)c->cols;
    agoq_layout l;
    int n = 0;
    if (agoq_layout_make(c->bits, c->rows, c->cols, &l) != AGOQ_OK) exit(1);
    for (int i = 0; i < (act ? N_VIEWS : 1); i++)
        list[n++] = (field){views[i], c->view[i], (size_t)stride_of(c, i) * elem(c->dtype), PER_ROW};
    for (int i = 0; i < N_PACKED && act; i++) {
        list[n++] = (field){planes[i], c->packed[i], l.lo_row_bytes, PER_ROW};
        list[n++] = (field){planes[i], c->packed[i] + l.hi_offset, l.hi_row_bytes, PER_ROW};
        list[n++] = (field){planes[i], c->packed[i] + l.scale_offset, (size_t)l.blocks_per_row * 2, PER_ROW};
    }
    const field once[] = {
        {"weight", c->weight, cols * 4, ONCE},          {"bias", c->bias, cols * 4, ONCE},
        {"dweight", c->dweight, cols * 4, ONCE},        {"dbias", c->dbias, cols * 4, ONCE},
        {"table", c->table, (cols + 2) * 16 * 8, ONCE}, {"positions", c->positions, 4, PER_ROW}};
    for (size_t i = 0; i < sizeof once / sizeof *once; i++) list[n++] = once[i];
    for (int i = 0; i <= N_GRADS && !act; i++) {
        list[n++] = (field){codes[i], c->codes[i], 1, 1};
        list[n++] = (field){scales[i], c->scales[i], 4, AGOQ_GRAD_BLOCK};
    }
    const field flat[] = {{"flat", c->flat, 4, 1},
                          {"master", c->master, 4, 1},
                          {"bf16", c->bf16, 2, 1},
                          {"m", c->m, 1, 1},
                          {"v", c->v, 1, 1},
                          {"m_absmax", c->m_top, 4, 256},
                          {"v_absmax", c->v_top, 4, 256}};
    for (size_t i = 0; i < sizeof flat / sizeof *flat && !act; i++) list[n++] = flat[i];
    list[n++] = (field){"sqnorm", c->sqnorm, 8, ONCE};
    list[n++] = (field){"counter", c->counter, 8, ONCE};
    return n;
}

/* The only NaNs that have no bits of their own (docs/FORMATS.md): fp32 from fused operations that are not
 * rounded to bf16, and the sums of weight and bias. */
static void case_mask(const gcase *c, arena *a) {
    const int fused = c->o >= OP_norm_fwd_pack && c->o <= OP_swiglu_bwd_packed;
    const int any = fused && (c->o == OP_rope || !flag(c, 4)); /* what flag 4 says: ops.h */
    for (int i = 0; i < N_VIEWS && any && c->dtype == AGOQ_DTYPE_F32; i++)
        arena_floats(a, c->view[i], (int64_t)view_bytes(c, i) / 4);
    arena_floats(a, c->dweight, c->cols);
    arena_floats(a, c->dbias, c->cols);
}

#endif
