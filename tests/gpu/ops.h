/* A case: shapes, dtype, width, flags and where everything lies in the arena; and every operation of the
 * codec layer as a call on one side of it. Inputs are Gaussian with outliers, blocks of zeros and, in special
 * cases, what formats treat apart. */
#ifndef TESTS_GPU_OPS_H
#define TESTS_GPU_OPS_H

#include "kernels/format/half.h"
#include "tests/gpu/arena.h"

#define OPS(X)                                                                                               \
    X(pack)                                                                                                  \
    X(unpack)                                                                                                \
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
    X(adam8_step)

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

enum { N_VIEWS = 6, N_GRADS = 3 };

typedef struct gcase {
    int64_t rows, cols, pad; /* pad: elements between rows, times 0, 1, 2 .. by view */
    int skew;                /* bytes (a multiple of the element) by which data misses alignment */
    agoq_dtype dtype;
    int bits, special;
    uint32_t flags; /* bits are read by the operations below: every combination is legal */
    uint64_t seed;
    agoq_grad_format format;
    size_t view[N_VIEWS], packed[4], weight, bias, dweight, dbias, table, positions;
    size_t codes[N_GRADS + 1], scales[N_GRADS + 1], flat, master, bf16, m, v, m_top, v_top, sqnorm, counter;
} gcase;

static int flag(const gcase *c, int i) {
    return (int)(c->flags >> i & 1);
}

static size_t elem(agoq_dtype d) {
    return d == AGOQ_DTYPE_F32 ? 4 : 2;
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
    return k;
}

static void put_elem(uint8_t *at, agoq_dtype d, float x) {
    const uint16_t h = d == AGOQ_DTYPE_BF16 ? agoqk_bf16_encode(x) : agoqk_f16_encode(x);
    if (d == AGOQ_DTYPE_F32) {
        memcpy(at, &x, 4);
    } else {
        memcpy(at, &h, 2);
    }
}

static float draw(const gcase *c, uint64_t *state, int zero) {
    static const float odd[] = {-0.0f, 1e-40f,   -3e-38f,   1e-30f, 65520.0f,
                                3e38f, INFINITY, -INFINITY, NAN,    6e-5f};
    const uint64_t dice = next_random(state) >> 40;
    float x = gauss(state) * (dice % 97 == 0 ? 30.0f : 1.0f);
    if (zero) x = 0.0f;
    if (c->special && dice % 997 == 0) x = odd[dice / 997 % 10];
    return x;
}

static void fill_view(const gcase *c, arena *a, int i, uint64_t seed) {
    uint64_t state = seed;
    const size_t e = elem(c->dtype);
    for (int64_t r = 0; r < c->rows; r++)
        for (int64_t k = 0; k < c->cols; k++)
            put_elem(a->host + c->view[i] + (size_t)(r * stride_of(c, i) + k) * e, c->dtype,
                     draw(c, &state, (r + k / 64) % 13 == 12));
}

static void fill_floats(float *at, int64_t n, uint64_t seed, float middle, float width) {
    uint64_t state = seed;
    for (int64_t i = 0; i < n; i++) at[i] = middle + width * gauss(&state);
}

static float *floats_at(uint8_t *base, size_t at) {
    return (float *)(void *)(base + at);
}

static size_t view_bytes(const gcase *c, int i) {
    return (size_t)(c->rows > 0 ? (c->rows - 1) * stride_of(c, i) + c->cols : 0) * elem(c->dtype);
}

/* Views 0 .. 2 are inputs, 3 .. 5 outputs; packed 0, 1 inputs, 2, 3 outputs; gradients 0 .. 2 inputs, 3
 * output. */
static void case_lay_out(gcase *c, arena *a) {
    const int64_t n = c->rows * c->cols, blocks = agoq_grad_blocks(n), tops = agoq_adam8_blocks(n);
    agoq_layout l;
    if (agoq_layout_make(c->bits, c->rows, c->cols, &l) != AGOQ_OK) exit(1);
    arena_reset(a, (size_t)(n + 4096) * 80 + (size_t)(c->rows * c->pad) * 48 + (1 << 16));
    for (int i = 0; i < N_VIEWS; i++) c->view[i] = arena_take(a, view_bytes(c, i), (size_t)c->skew);
    for (int i = 0; i < 4; i++) c->packed[i] = arena_take(a, l.bytes, 0);
    c->weight = arena_take(a, (size_t)c->cols * 4, 0);
    c->bias = arena_take(a, (size_t)c->cols * 4, 0);
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

static void case_fill(gcase *c, arena *a) {
    const int64_t n = c->rows * c->cols;
    for (int i = 0; i < 3; i++) fill_view(c, a, i, c->seed + (uint64_t)i);
    for (int i = 0; i < 2; i++) {
        const agoq_view v = view(c, a->host, i);
        agoq_packed p = packed(c, a->host, i);
        if (agoq_pack(NULL, &v, NULL, &p) != AGOQ_OK) exit(1);
    }
    fill_floats(floats_at(a->host, c->weight), c->cols, c->seed + 5, 1.0f, 0.1f); /* read as any dtype */
    fill_floats(floats_at(a->host, c->bias), c->cols, c->seed + 6, 0.0f, 0.1f);
    fill_floats(floats_at(a->host, c->dweight), c->cols, c->seed + 7, 0.0f, 1.0f);
    fill_floats(floats_at(a->host, c->dbias), c->cols, c->seed + 8, 0.0f, 1.0f);
    fill_floats(floats_at(a->host, c->table), (c->cols + 2) * 32, c->seed + 9, 0.0f, 0.7f);
    int32_t *positions = (int32_t *)(void *)(a->host + c->positions);
    for (int64_t r = 0; r < c->rows; r++) positions[r] = (int32_t)((r * 7 + 3) % 18) - (c->special ? 1 : 0);
    for (int i = 0; i <= N_GRADS; i++) { /* scaled, so that the sums are of one size */
        agoq_grad g = grad(c, a->host, i);
        fill_floats(floats_at(a->host, c->flat), n, c->seed + 20 + (uint64_t)i, 0.0f, 1.0f);
        if (c->special && n > 300) floats_at(a->host, c->flat)[299] = i == 1 ? NAN : 1e-30f;
        if (agoq_grad_zero(NULL, &g) != AGOQ_OK) exit(1);
        if (agoq_grad_accumulate(NULL, floats_at(a->host, c->flat), AGOQ_DTYPE_F32, NULL, &g) != AGOQ_OK)
            exit(1);
    }
    fill_floats(floats_at(a->host, c->master), n, c->seed + 30, 0.0f, 0.5f);
    for (int64_t i = 0; i < n; i++)
        put_elem(a->host + c->bf16 + (size_t)i * 2, AGOQ_DTYPE_BF16, floats_at(a->host, c->master)[i]);
    uint64_t state = c->seed + 31;
    for (int64_t i = 0; i < n; i++) {
        const uint64_t dice = next_random(&state);
        a->host[c->m + (size_t)i] = (uint8_t)dice;
        a->host[c->v + (size_t)i] = (uint8_t)(dice >> 8);
    }
    for (int64_t b = 0; b < agoq_adam8_blocks(n); b++) {
        floats_at(a->host, c->m_top)[b] = b % 5 == 4 && c->special ? 1e-39f : 0.01f * (float)(b % 3 + 1);
        floats_at(a->host, c->v_top)[b] = b % 5 == 3 && c->special ? 0.0f : 0.001f * (float)(b % 4 + 1);
    }
    memset(a->host + c->sqnorm, 0, 16);
    memset(a->host + c->counter, 0, 8);
    if (c->dtype == AGOQ_DTYPE_F32) {
        for (int i = 3; i < N_VIEWS; i++) arena_floats(a, c->view[i], (int64_t)view_bytes(c, i) / 4);
        arena_floats(a, c->view[0], (int64_t)view_bytes(c, 0) / 4); /* RoPE in place */
    }
    arena_floats(a, c->dweight, c->cols);
    arena_floats(a, c->dbias, c->cols);
    arena_floats(a, c->flat, n);
    arena_floats(a, c->master, n);
}

static agoq_norm norm_of(const gcase *c, uint8_t *base) {
    agoq_norm n = {flag(c, 0) ? AGOQ_NORM_LAYER : AGOQ_NORM_RMS,
                   flag(c, 1) ? AGOQ_DTYPE_BF16 : AGOQ_DTYPE_F32,
                   flag(c, 2) ? NULL : base + c->weight,
                   flag(c, 3) ? base + c->bias : NULL,
                   1e-5f,
                   flag(c, 4),
                   flag(c, 5)};
    return n;
}

static agoq_status run_norm(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_norm norm = norm_of(c, base);
    const agoq_view x = view(c, base, 0), r = view(c, base, 1), dy = view(c, base, 2);
    agoq_view sum = view(c, base, 3), y = view(c, base, 4);
    agoq_packed in = packed(c, base, 0), out = packed(c, base, 2);
    if (o == OP_norm_fwd_pack)
        return agoq_norm_fwd_pack(e, &x, flag(c, 6) ? &r : NULL, &norm, flag(c, 6) ? &sum : NULL, &y, &out);
    if (o == OP_norm_fwd_packed) return agoq_norm_fwd_packed(e, &in, &norm, &y);
    return agoq_norm_bwd_packed(e, &in, &norm, &dy, &y, flag(c, 6) ? NULL : floats_at(base, c->dweight),
                                flag(c, 7) ? floats_at(base, c->dbias) : NULL);
}

/* Heads of a size that divides the columns. */
static agoq_status run_rope(const gcase *c, const agoq_exec *e, uint8_t *base) {
    static const int sizes[] = {128, 64, 96, 80, 32, 10, 4, 2};
    agoq_rope rope = {floats_at(base, c->table),
                      floats_at(base, c->table) + 16 * (c->cols + 2),
                      16,
                      flag(c, 0) ? (const int32_t *)(void *)(base + c->positions) : NULL,
                      0,
                      0,
                      flag(c, 1)};
    rope.head_dim = (int32_t)(c->cols > 0 && c->cols < 512 ? c->cols : 1);
    for (int i = 7; i >= 0; i--)
        if (c->cols % sizes[i] == 0 && (flag(c, 2) || i < 4 || rope.head_dim == 1)) rope.head_dim = sizes[i];
    rope.rotary = flag(c, 3) ? rope.head_dim / 4 * 2 : rope.head_dim / 2 * 2;
    const agoq_view x = view(c, base, 0);
    agoq_view y = flag(c, 6) ? view(c, base, 0) : view(c, base, 3);
    agoq_packed out = packed(c, base, 2);
    return agoq_rope_apply(e, &x, &rope, flag(c, 4), &y, flag(c, 5) ? &out : NULL);
}

static agoq_status run_swiglu(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_view g = view(c, base, 0), u = view(c, base, 1), d = view(c, base, 2);
    agoq_view out[3] = {view(c, base, 3), view(c, base, 4), view(c, base, 5)};
    const agoq_packed pg = packed(c, base, 0), pu = packed(c, base, 1);
    agoq_packed qg = packed(c, base, 2), qu = packed(c, base, 3);
    if (o == OP_swiglu_fwd_pack) return agoq_swiglu_fwd_pack(e, &g, &u, flag(c, 4), &out[0], &qg, &qu);
    return agoq_swiglu_bwd_packed(e, &pg, &pu, flag(c, 4), &d, flag(c, 0) ? NULL : &out[0], &out[1], &out[2]);
}

static agoq_status run_grad(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const int64_t n = c->rows * c->cols, skip = n > 300 && !flag(c, 5) ? 77 : 0;
    agoq_grad in[N_GRADS] = {grad(c, base, 0), grad(c, base, 1), grad(c, base, 2)}, g = grad(c, base, 3);
    const agoq_key key = key_of(c);
    const void *x = base + c->view[0]; /* dense where there is no padding; elsewhere what lies there */
    agoq_grad_term terms[70];
    switch (o) {
    case OP_grad_zero:
        return agoq_grad_zero(e, &g);
    case OP_grad_accumulate:
        return agoq_grad_accumulate(e, x, c->dtype, flag(c, 0) ? &key : NULL, &g);
    case OP_grad_accumulate_list: /* pieces of one gradient, more than one launch holds, some of them empty */
        for (int i = 0; i < 70; i++) {
            const int64_t blocks = agoq_grad_blocks(n), from = blocks * i / 70, to = blocks * (i + 1) / 70;
            const int64_t end = to * 128 < n ? to * 128 : n;
            terms[i].grad = (agoq_grad){g.codes + from * 128, g.scales + from, end - from * 128, c->format};
            terms[i].x = (const uint8_t *)x + (size_t)(from * 128) * elem(c->dtype);
            terms[i].key = key;
            terms[i].key.tensor = (uint64_t)i;
        }
        return agoq_grad_accumulate_list(e, terms, 70, c->dtype, flag(c, 0));
    case OP_grad_read:
        return agoq_grad_read(e, &in[0], skip, n - skip, 0.25f, floats_at(base, c->flat));
    case OP_grad_sqnorm:
        return agoq_grad_sqnorm(e, &in[0], (double *)(void *)(base + c->sqnorm));
    case OP_grad_check_finite:
        return agoq_grad_check_finite(e, &in[1], (uint32_t *)(void *)(base + c->counter) + 1);
    default:
        return agoq_grad_reduce(e, in, 1 + (int)(c->flags % 3), 1.0f / 3.0f,
                                flag(c, 2) ? flag(c, 3) ? &in[0] : &g : NULL,
                                flag(c, 2) ? NULL : floats_at(base, c->flat));
    }
}

static agoq_status run_adam(const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_adam_params adam = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 12, 0.5f};
    const agoq_grad g = grad(c, base, 1);
    const agoq_key key = key_of(c);
    const agoq_adam_source source = {flag(c, 0) ? &g : NULL, flag(c, 0) ? NULL : base + c->view[0], c->dtype};
    const agoq_adam_target target = {flag(c, 1) ? NULL : floats_at(base, c->master),
                                     flag(c, 1) || flag(c, 2) ? base + c->bf16 : NULL,
                                     flag(c, 3) ? &key : NULL};
    agoq_adam8 state = {base + c->m, base + c->v, floats_at(base, c->m_top), floats_at(base, c->v_top),
                        c->rows * c->cols};
    return agoq_adam8_step(e, &adam, &source, &target, &state);
}

static agoq_status run_op(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_view x = view(c, base, 0);
    agoq_view y = view(c, base, 3);
    agoq_packed in = packed(c, base, 0), out = packed(c, base, 2);
    const agoq_key key = key_of(c);
    if (o == OP_pack) return agoq_pack(e, &x, flag(c, 0) ? &key : NULL, &out);
    if (o == OP_unpack) return agoq_unpack(e, &in, &y);
    if (o <= OP_norm_bwd_packed) return run_norm(o, c, e, base);
    if (o == OP_rope) return run_rope(c, e, base);
    if (o <= OP_swiglu_bwd_packed) return run_swiglu(o, c, e, base);
    if (o <= OP_grad_reduce) return run_grad(o, c, e, base);
    return run_adam(c, e, base);
}

/* Which parts of a case an operation reads. */
static int op_has_width(op o) {
    return o <= OP_swiglu_bwd_packed;
}

/* 1: both sides returned the same status and, if it is OK, the same bytes. Else detail says what. */
static int case_agree(op o, gcase *c, arena *a, char detail[256]) {
    case_lay_out(c, a);
    case_fill(c, a);
    arena_upload(a);
    const agoq_exec host = arena_exec(a, 0, c->counter), device = arena_exec(a, 1, c->counter);
    const agoq_status want = run_op(o, c, &host, a->host), got = run_op(o, c, &device, a->device);
    const int64_t at = want == got ? arena_compare(a) : -2;
    if (at == -1) return 1;
    snprintf(
        detail, 256,
        "%s %lld x %lld pad %lld skew %d dtype %d bits %d flags %x special %d format %d: status %s, %s%s, "
        "byte %lld (%s %lld) host %02x device %02x",
        op_names[o], (long long)c->rows, (long long)c->cols, (long long)c->pad, c->skew, (int)c->dtype,
        c->bits, c->flags, c->special, (int)c->format, agoq_status_name(want), agoq_status_name(got),
        got ? agoq_last_error() : "", (long long)at,
        at < 0                      ? "-"
        : (size_t)at < c->view[3]   ? "input view"
        : (size_t)at < c->view[4]   ? "view 3"
        : (size_t)at < c->view[5]   ? "view 4"
        : (size_t)at < c->packed[0] ? "view 5"
        : (size_t)at < c->packed[2] ? "input packed"
        : (size_t)at < c->weight    ? "packed out"
        : (size_t)at < c->codes[0]  ? "weights"
        : (size_t)at < c->codes[3]  ? "input grad"
        : (size_t)at < c->flat      ? "grad 3"
        : (size_t)at < c->master    ? "flat"
        : (size_t)at < c->m         ? "params"
                                    : "state",
        (long long)(at < 0                       ? 0
                    : (size_t)at >= c->m         ? at - (int64_t)c->m
                    : (size_t)at >= c->master    ? at - (int64_t)c->master
                    : (size_t)at >= c->flat      ? at - (int64_t)c->flat
                    : (size_t)at >= c->codes[3]  ? at - (int64_t)c->codes[3]
                    : (size_t)at >= c->packed[2] ? at - (int64_t)c->packed[2]
                    : (size_t)at >= c->view[5]   ? at - (int64_t)c->view[5]
                    : (size_t)at >= c->view[4]   ? at - (int64_t)c->view[4]
                                                 : at - (int64_t)c->view[3]),
        at < 0 ? 0 : a->host[at], at < 0 ? 0 : a->back[at]);
    return 0;
}

#endif
