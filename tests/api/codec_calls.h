/* The functions of the codec layer behind one signature, with a full set of good arguments to spoil. A header
 * so that the test itself stays short; the trade-off: it is included once, its objects are static. */
#ifndef TESTS_API_CODEC_CALLS_H
#define TESTS_API_CODEC_CALLS_H

#include <stdint.h>
#include <string.h>

#include "agoq/agoq.h"

enum { ROWS = 3, COLS = 130, N = ROWS * COLS, N_VIEWS = 5, N_PACKED = 2, N_GRADS = 3, N_FLOATS = 3 };

/* Everything a call may read or write. */
static struct memory {
    _Alignas(16) float view[N_VIEWS][N];
    _Alignas(16) unsigned char packed[N_PACKED][1024];
    uint8_t codes[N_GRADS][N], m[N], v[N];
    float scales[N_GRADS][8], floats[N_FLOATS][N], m_absmax[4], v_absmax[4];
    double sqnorm;
    uint32_t nonfinite;
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
    agoq_key key;
    agoq_dtype dtype;
    agoq_adam_params adam;
    const agoq_adam_params *adam_p;
    agoq_adam8 state, *state_p;
    float eps;
    int64_t begin, count;
    int n_in;
} args;

static args good(int64_t rows, int64_t cols) {
    args a;
    memset(&a, 0, sizeof a);
    memset(&memory, 0, sizeof memory);
    a.exec = (agoq_exec){AGOQ_DEVICE_CPU, NULL, &memory.nonfinite};
    a.exec_p = &a.exec;
    for (int i = 0; i < N_VIEWS; i++) {
        for (int k = 0; k < N; k++) memory.view[i][k] = (float)((k * 7 + i) % 13 - 6);
        a.view[i] = (agoq_view){memory.view[i], AGOQ_DTYPE_F32, rows, cols, cols};
    }
    for (int i = 0; i < N_PACKED; i++) {
        assert_int_equal(agoq_layout_make(4 + i, rows, cols, &a.packed[i].layout), AGOQ_OK);
        a.packed[i].data = memory.packed[i];
    }
    for (int i = 0; i < N_GRADS; i++) a.grad[i] = (agoq_grad){memory.codes[i], memory.scales[i], rows * cols, AGOQ_GRAD_E4M3};
    for (int i = 0; i < N_FLOATS; i++) a.floats[i] = memory.floats[i];
    a.sqnorm = &memory.sqnorm;
    a.adam = (agoq_adam_params){1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1};
    a.state = (agoq_adam8){memory.m, memory.v, memory.m_absmax, memory.v_absmax, rows * cols};
    a.eps = 1e-5f;
    a.count = rows * cols;
    a.n_in = 2;
    return a;
}

/* After copies and changes of `view` and the others: pointers that are not NULL on purpose. */
static void point(args *a) {
    a->exec_p = &a->exec;
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
static agoq_status rmsnorm_fwd_pack(args *a) {
    return agoq_rmsnorm_fwd_pack(a->exec_p, a->view_p[0], a->view_p[1], a->floats[0], a->eps, 0, a->view_p[2],
                                 a->view_p[3], a->packed_p[0]);
}
static agoq_status rmsnorm_fwd_packed(args *a) {
    return agoq_rmsnorm_fwd_packed(a->exec_p, a->packed_p[0], a->floats[0], a->eps, 0, a->view_p[0]);
}
static agoq_status rmsnorm_bwd_packed(args *a) {
    return agoq_rmsnorm_bwd_packed(a->exec_p, a->packed_p[0], a->floats[0], a->eps, 0, a->view_p[0],
                                   a->view_p[1], a->floats[1]);
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
static agoq_status grad_read(args *a) {
    return agoq_grad_read(a->exec_p, a->grad_p[0], a->begin, a->count, 2, a->floats[0]);
}
static agoq_status grad_sqnorm(args *a) {
    return agoq_grad_sqnorm(a->exec_p, a->grad_p[0], a->sqnorm);
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
    return agoq_adam8_step(a->exec_p, a->adam_p, a->grad_p[0], NULL, a->floats[0], a->state_p);
}
static agoq_status adam8_step32(args *a) {
    return agoq_adam8_step(a->exec_p, a->adam_p, NULL, a->floats[1], a->floats[0], a->state_p);
}

/* How many arguments of each kind it takes. optional: of the last view (1) and of the floats (2). */
static const struct function {
    const char *name;
    agoq_status (*call)(args *);
    int views, packed, grads, floats, state;
    int view_optional, floats_optional, sizes_must_match;
} functions[] = {
    {"pack", pack, 1, 1, 0, 0, 0, 0, 0, 1},
    {"unpack", unpack, 1, 1, 0, 0, 0, 0, 0, 1},
    {"rmsnorm_fwd_pack", rmsnorm_fwd_pack, 4, 1, 0, 1, 0, 0, 1, 1},
    {"rmsnorm_fwd_packed", rmsnorm_fwd_packed, 1, 1, 0, 1, 0, 0, 1, 1},
    {"rmsnorm_bwd_packed", rmsnorm_bwd_packed, 2, 1, 0, 2, 0, 0, 1, 1},
    {"swiglu_fwd_pack", swiglu_fwd_pack, 3, 2, 0, 0, 0, 0, 0, 1},
    {"swiglu_bwd_packed", swiglu_bwd_packed, 4, 2, 0, 0, 0, 1, 0, 1},
    {"grad_zero", grad_zero, 0, 0, 1, 0, 0, 0, 0, 0},
    {"grad_accumulate", grad_accumulate, 0, 0, 1, 1, 0, 0, 0, 0},
    {"grad_read", grad_read, 0, 0, 1, 1, 0, 0, 0, 0},
    {"grad_sqnorm", grad_sqnorm, 0, 0, 1, 0, 0, 0, 0, 0},
    {"grad_reduce8", grad_reduce8, 0, 0, 3, 0, 0, 0, 0, 1},
    {"grad_reduce32", grad_reduce32, 0, 0, 2, 1, 0, 0, 0, 1},
    {"adam8_init", adam8_init, 0, 0, 0, 0, 1, 0, 0, 0},
    {"adam8_step8", adam8_step8, 0, 0, 1, 1, 1, 0, 0, 1},
    {"adam8_step32", adam8_step32, 0, 0, 0, 2, 1, 0, 0, 0},
};
enum { N_FUNCTIONS = sizeof functions / sizeof *functions };

#endif
