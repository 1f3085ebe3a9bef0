/* Every operation of the codec layer behind one signature, with a full set of good arguments to spoil. A
 * header so that the tests themselves stay short; the trade-off: its objects are static, and everything that
 * a function may take is in one struct. */
#ifndef TESTS_API_CODEC_CALLS_H
#define TESTS_API_CODEC_CALLS_H

#include <stdint.h>
#include <string.h>

#include "agoq/agoq.h"

enum { ROWS = 3, COLS = 130, N = ROWS * COLS, N_VIEWS = 5, N_PACKED = 2, N_GRADS = 3, N_FLOATS = 4 };

/* Everything a call may read or write. */
static struct memory {
    _Alignas(16) float view[N_VIEWS][N];
    _Alignas(16) unsigned char packed[N_PACKED][1024];
    uint8_t codes[N_GRADS][N], m[N], v[N];
    float scales[N_GRADS][8], floats[N_FLOATS][N], m_absmax[4], v_absmax[4];
    int32_t positions[ROWS];
    double sqnorm;
    uint32_t nonfinite, blocks;
} memory, before;

/* Arguments of one call: positions 0, 1, ... of each kind are used by the functions below. */
typedef struct args {
    agoq_exec exec;
    const agoq_exec *exec_p;
    agoq_view view[N_VIEWS], *view_p[N_VIEWS];
    agoq_packed packed[N_PACKED], *packed_p[N_PACKED];
    agoq_grad grad[N_GRADS], *grad_p[N_GRADS];
    float *floats[N_FLOATS];
    double *sqnorm;
    uint32_t *blocks;
    agoq_key key;
    agoq_dtype dtype;
    agoq_norm norm; /* without its vectors, which are floats */
    const agoq_norm *norm_p;
    agoq_rope rope; /* without its tables, which are floats */
    const agoq_rope *rope_p;
    agoq_adam_params adam;
    const agoq_adam_params *adam_p;
    agoq_adam8 state, *state_p;
    int64_t begin, count, first;
    int n_in, n_terms;
} args;

static args good(int64_t rows, int64_t cols) {
    args a;
    memset(&a, 0, sizeof a);
    memset(&memory, 0, sizeof memory);
    a.exec = (agoq_exec){.device = AGOQ_DEVICE_CPU, .nonfinite = &memory.nonfinite};
    a.exec_p = &a.exec;
    for (int i = 0; i < N_VIEWS; i++) {
        for (int k = 0; k < N; k++) memory.view[i][k] = (float)((k * 7 + i) % 13 - 6);
        a.view[i] = (agoq_view){memory.view[i], AGOQ_DTYPE_F32, rows, cols, cols};
    }
    for (int i = 0; i < N_PACKED; i++) {
        assert_int_equal(agoq_layout_make(4 + i, rows, cols, &a.packed[i].layout), AGOQ_OK);
        a.packed[i].data = memory.packed[i];
    }
    for (int i = 0; i < N_GRADS; i++)
        a.grad[i] = (agoq_grad){memory.codes[i], memory.scales[i], rows * cols, AGOQ_GRAD_E4M3};
    for (int i = 0; i < N_FLOATS; i++) a.floats[i] = memory.floats[i];
    a.sqnorm = &memory.sqnorm;
    a.blocks = &memory.blocks;
    a.norm = (agoq_norm){.kind = AGOQ_NORM_LAYER, .weight_dtype = AGOQ_DTYPE_F32, .eps = 1e-5f};
    a.rope = (agoq_rope){.n_positions = 2, .positions = memory.positions, .head_dim = 65, .rotary = 64};
    a.adam = (agoq_adam_params){1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1};
    a.state = (agoq_adam8){memory.m, memory.v, memory.m_absmax, memory.v_absmax, rows * cols};
    a.count = rows * cols;
    a.first = rows > 0;
    a.n_in = a.n_terms = 2;
    return a;
}

/* After copies and changes of `view` and the others: pointers that are not NULL on purpose. */
static void point(args *a) {
    a->exec_p = &a->exec;
    a->norm_p = &a->norm;
    a->rope_p = &a->rope;
    a->adam_p = &a->adam;
    a->state_p = &a->state;
    for (int i = 0; i < N_VIEWS; i++) a->view_p[i] = &a->view[i];
    for (int i = 0; i < N_PACKED; i++) a->packed_p[i] = &a->packed[i];
    for (int i = 0; i < N_GRADS; i++) a->grad_p[i] = &a->grad[i];
}

static agoq_status pack(args *a) {
    return agoq_pack(a->exec_p, a->view_p[0], &a->key, a->packed_p[0]);
}
static agoq_status unpack(args *a) {
    return agoq_unpack(a->exec_p, a->packed_p[0], a->view_p[0]);
}
/* All rows but the first. */
static const agoq_view *rows_of(const agoq_view *v, agoq_view *part) {
    if (!v) return NULL;
    *part = *v;
    part->rows -= v->rows > 0;
    return part;
}
static agoq_status pack_rows(args *a) {
    agoq_view x;
    return agoq_pack_rows(a->exec_p, rows_of(a->view_p[0], &x), a->first, &a->key, a->packed_p[0]);
}
static agoq_status unpack_rows(args *a) {
    agoq_view y;
    return agoq_unpack_rows(a->exec_p, a->packed_p[0], a->first,
                            (agoq_view *)(uintptr_t)rows_of(a->view_p[0], &y));
}
static const agoq_norm *norm_of(args *a, agoq_norm *whole) {
    if (!a->norm_p) return NULL;
    *whole = *a->norm_p;
    whole->weight = a->floats[0], whole->bias = a->floats[1];
    return whole;
}
static agoq_status norm_fwd_pack(args *a) {
    agoq_norm norm;
    return agoq_norm_fwd_pack(a->exec_p, a->view_p[0], a->view_p[1], norm_of(a, &norm), a->view_p[2],
                              a->view_p[3], a->packed_p[0]);
}
static agoq_status norm_fwd_packed(args *a) {
    agoq_norm norm;
    return agoq_norm_fwd_packed(a->exec_p, a->packed_p[0], norm_of(a, &norm), a->view_p[0]);
}
static agoq_status norm_bwd_packed(args *a) {
    agoq_norm norm;
    return agoq_norm_bwd_packed(a->exec_p, a->packed_p[0], norm_of(a, &norm), a->view_p[0], a->view_p[1],
                                a->floats[2], a->floats[3]);
}
static agoq_status rope_of(args *a, const agoq_packed *packed) {
    agoq_rope rope = {0};
    if (a->rope_p) rope = *a->rope_p, rope.cos = a->floats[0], rope.sin = a->floats[1];
    return agoq_rope_apply(a->exec_p, a->view_p[0], a->rope_p ? &rope : NULL, 1, a->view_p[1],
                           (agoq_packed *)(uintptr_t)packed);
}
static agoq_status rope(args *a) {
    return rope_of(a, NULL);
}
static agoq_status rope_pack(args *a) {
    return rope_of(a, a->packed_p[0]);
}
static agoq_status swiglu_fwd_pack(args *a) {
    return agoq_swiglu_fwd_pack(a->exec_p, a->view_p[0], a->view_p[1], 0, a->view_p[2], a->packed_p[0],
                                a->packed_p[1]);
}
static agoq_status swiglu_bwd_packed(args *a) {
    return agoq_swiglu_bwd_packed(a->exec_p, a->packed_p[0], a->packed_p[1], 0, a->view_p[0], a->view_p[3],
                                  a->view_p[1], a->view_p[2]);
}
static agoq_status grad_zero(args *a) {
    return agoq_grad_zero(a->exec_p, a->grad_p[0]);
}
static agoq_status grad_accumulate(args *a) {
    return agoq_grad_accumulate(a->exec_p, a->floats[0], a->dtype, &a->key, a->grad_p[0]);
}
static agoq_status grad_accumulate_list(args *a) {
    agoq_grad_term terms[2] = {{a->grad[0], a->floats[0], a->key}, {a->grad[1], a->floats[1], a->key}};
    return agoq_grad_accumulate_list(a->exec_p, a->grad_p[0] ? terms : NULL, a->n_terms, a->dtype, 1);
}
static agoq_status grad_read(args *a) {
    return agoq_grad_read(a->exec_p, a->grad_p[0], a->begin, a->count, 2, a->floats[0]);
}
static agoq_status grad_sqnorm(args *a) {
    return agoq_grad_sqnorm(a->exec_p, a->grad_p[0], a->sqnorm);
}
static agoq_status grad_check_finite(args *a) {
    return agoq_grad_check_finite(a->exec_p, a->grad_p[0], a->blocks);
}
static agoq_status grad_reduce8(args *a) {
    /* in is the array grad[0 .. 1]; out8 comes first here, so that it is checked as a gradient argument */
    return agoq_grad_reduce(a->exec_p, a->grad_p[1] ? &a->grad[1] : NULL, a->n_in, 1, a->grad_p[0], NULL);
}
static agoq_status grad_reduce32(args *a) {
    return agoq_grad_reduce(a->exec_p, a->grad_p[0] ? &a->grad[0] : NULL, a->n_in, 1, NULL, a->floats[0]);
}
static agoq_status adam8_init(args *a) {
    return agoq_adam8_init(a->exec_p, a->state_p);
}
static agoq_status adam8_step8(args *a) {
    const agoq_adam_source source = {.grad8 = a->grad_p[0]};
    const agoq_adam_target target = {.master = a->floats[0]};
    return agoq_adam8_step(a->exec_p, a->adam_p, &source, &target, a->state_p);
}
static agoq_status adam8_step32(args *a) {
    const agoq_adam_source source = {.grad = a->floats[1], .dtype = a->dtype};
    const agoq_adam_target target = {.master = a->floats[0]};
    return agoq_adam8_step(a->exec_p, a->adam_p, &source, &target, a->state_p);
}
/* Its second array are the parameters. */
static agoq_status adam8_step_bf16(args *a) {
    const agoq_adam_source source = {.grad8 = a->grad_p[0]};
    const agoq_adam_target target = {.bf16 = a->floats[1], .key = &a->key};
    return agoq_adam8_step(a->exec_p, a->adam_p, &source, &target, a->state_p);
}
static agoq_status adam8_step_both(args *a) {
    const agoq_adam_source source = {.grad8 = a->grad_p[0]};
    const agoq_adam_target target = {.master = a->floats[0], .bf16 = a->floats[1]};
    return agoq_adam8_step(a->exec_p, a->adam_p, &source, &target, a->state_p);
}

/* How many arguments of each kind it takes, and of the floats which may be NULL and which may lie anywhere
 * (bits by position). last_view_optional: it may be NULL. sizes: those of gradients must agree. */
static const struct function {
    const char *name;
    agoq_status (*call)(args *);
    int views, packed, packed_optional, grads, floats, floats_optional, floats_anywhere, state;
    int last_view_optional, sizes;
} functions[] = {
    {"pack", pack, .views = 1, .packed = 1},
    {"unpack", unpack, .views = 1, .packed = 1},
    {"pack_rows", pack_rows, .views = 1, .packed = 1},
    {"unpack_rows", unpack_rows, .views = 1, .packed = 1},
    {"norm_fwd_pack", norm_fwd_pack, .views = 4, .packed = 1, .floats = 2, .floats_optional = 3},
    {"norm_fwd_packed", norm_fwd_packed, .views = 1, .packed = 1, .floats = 2, .floats_optional = 3},
    {"norm_bwd_packed", norm_bwd_packed, .views = 2, .packed = 1, .floats = 4, .floats_optional = 15},
    {"rope", rope, .views = 2, .floats = 2},
    {"rope_pack", rope_pack, .views = 2, .packed = 1, .packed_optional = 1, .floats = 2},
    {"swiglu_fwd_pack", swiglu_fwd_pack, .views = 3, .packed = 2},
    {"swiglu_bwd_packed", swiglu_bwd_packed, .views = 4, .packed = 2, .last_view_optional = 1},
    {"grad_zero", grad_zero, .grads = 1},
    {"grad_accumulate", grad_accumulate, .grads = 1, .floats = 1, .floats_anywhere = 1},
    {"grad_accumulate_list", grad_accumulate_list, .grads = 2, .floats = 2, .floats_anywhere = 3},
    {"grad_read", grad_read, .grads = 1, .floats = 1},
    {"grad_sqnorm", grad_sqnorm, .grads = 1},
    {"grad_check_finite", grad_check_finite, .grads = 1},
    {"grad_reduce8", grad_reduce8, .grads = 3, .sizes = 1},
    {"grad_reduce32", grad_reduce32, .grads = 2, .floats = 1, .sizes = 1},
    {"adam8_init", adam8_init, .state = 1},
    {"adam8_step8", adam8_step8, .grads = 1, .floats = 1, .state = 1, .sizes = 1},
    {"adam8_step32", adam8_step32, .floats = 2, .floats_anywhere = 2, .state = 1},
    {"adam8_step_bf16", adam8_step_bf16, .grads = 1, .state = 1, .sizes = 1},
    {"adam8_step_both", adam8_step_both, .grads = 1, .floats = 1, .floats_optional = 1, .state = 1,
     .sizes = 1},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

/* The call fails, says why, and touches nothing. */
static void refuses_as(const struct function *f, args *a, const char *what, agoq_status want) {
    before = memory;
    args a_before = *a;
    agoq_set_last_error(NULL);
    assert_string_equal(agoq_last_error(), "");
    agoq_status status = f->call(a);
    if (status != want) fail_msg("%s: %s: %s", f->name, what, agoq_status_name(status));
    if (agoq_last_error()[0] == 0) fail_msg("%s: %s: no text", f->name, what);
    if (memcmp(&before, &memory, sizeof memory)) fail_msg("%s: %s: an output was touched", f->name, what);
    assert_memory_equal(&a_before, a, sizeof *a);
}

static void refuses(const struct function *f, args *a, const char *what) {
    refuses_as(f, a, what, AGOQ_E_INVAL);
}

#define REFUSES(name, change)                                                                                \
    do {                                                                                                     \
        args a = good(ROWS, COLS);                                                                           \
        point(&a);                                                                                           \
        change;                                                                                              \
        const struct function f = {#name, name, .views = 0};                                                 \
        refuses(&f, &a, #change);                                                                            \
    } while (0)

#endif
