/* Argument checks of the codec layer through the public header: every wrong argument gives its code and a
 * text, and writes nothing; the checks are what stands between a caller's mistake and wild addresses. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"

enum { ROWS = 4, COLS = 70 };
static float a[ROWS * COLS], b[ROWS * COLS], c[ROWS * COLS];
static _Alignas(16) uint8_t bytes1[2048], bytes2[2048];

static const agoq_norm norm = {.eps = 1e-5f};

static agoq_view view_of(float *data) {
    return (agoq_view){data, AGOQ_DTYPE_F32, ROWS, COLS, COLS};
}

static agoq_packed packed_of(int bits, uint8_t *data) {
    agoq_packed p = {.data = data};
    assert_int_equal(agoq_layout_make(bits, ROWS, COLS, &p.layout), AGOQ_OK);
    assert_true(p.layout.bytes <= sizeof bytes1);
    return p;
}

static void refused(agoq_status got, agoq_status want) {
    assert_int_equal(got, want);
    assert_true(strlen(agoq_last_error()) > 5);
    for (size_t i = 0; i < sizeof bytes1; i++) assert_true(bytes1[i] == 0xA5 && bytes2[i] == 0xA5);
    for (int i = 0; i < ROWS * COLS; i++) assert_true(b[i] == 7.0f && c[i] == 7.0f);
}

static int reset(void **state) {
    (void)state;
    memset(bytes1, 0xA5, sizeof bytes1);
    memset(bytes2, 0xA5, sizeof bytes2);
    for (int i = 0; i < ROWS * COLS; i++) a[i] = 1.0f, b[i] = c[i] = 7.0f;
    return 0;
}

static void views(void **state) {
    (void)state;
    agoq_packed p = packed_of(4, bytes1);
    agoq_view v = view_of(a);
    refused(agoq_pack(NULL, NULL, NULL, &p), AGOQ_E_INVAL);
    refused(agoq_pack(NULL, &v, NULL, NULL), AGOQ_E_INVAL);
    v.data = NULL;
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
    v = view_of(a);
    v.dtype = (agoq_dtype)3;
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
    v = view_of(a);
    v.row_stride = COLS - 1;
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
    v.row_stride = INT64_MAX / 4;
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_LIMIT);
    v = view_of(a);
    v.cols = -1;
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
    v = view_of(a);
    v.rows = ROWS - 1; /* not the layout's shape */
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
    v = view_of(b);
    v.cols = COLS - 1;
    refused(agoq_unpack(NULL, &p, &v), AGOQ_E_INVAL);
    refused(agoq_unpack(NULL, &p, NULL), AGOQ_E_INVAL);
    const agoq_key key = {0, 0, 0, 0, 0, -1};
    v = view_of(a);
    refused(agoq_pack(NULL, &v, &key, &p), AGOQ_E_INVAL);
}

static void layouts(void **state) {
    (void)state;
    const agoq_view v = view_of(a);
    agoq_view y = view_of(b);
    for (int field = 0; field < 10; field++) {
        agoq_packed p = packed_of(6, bytes1);
        agoq_layout *l = &p.layout;
        switch (field) {
        case 0:
            l->bits = 7;
            break;
        case 1:
            l->lo_bits = 8;
            break;
        case 2:
            l->hi_bits = 1;
            break;
        case 3:
            l->blocks_per_row++;
            break;
        case 4:
            l->lo_row_bytes += 4;
            break;
        case 5:
            l->hi_row_bytes += 4;
            break;
        case 6:
            l->hi_offset += 16;
            break;
        case 7:
            l->scale_offset += 16;
            break;
        case 8:
            l->bytes -= 16;
            break;
        case 9:
            l->rows = -1;
            break;
        }
        refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
        refused(agoq_unpack(NULL, &p, &y), AGOQ_E_INVAL);
        refused(agoq_norm_fwd_packed(NULL, &p, &norm, &y), AGOQ_E_INVAL);
    }
    agoq_packed p = packed_of(4, bytes1 + 8);
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
    p.data = NULL;
    refused(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
}

/* The exported function is the inline one. */
static void filled_layouts(void **state) {
    (void)state;
    for (int i = 0; i < AGOQ_N_FORMATS; i++) {
        const int format = agoq_format_at(i)->number;
        agoq_layout want = {0}, got = {0};
        assert_int_equal(agoq_layout_make(format, 7, 1000 + i, &want), AGOQ_OK);
        assert_int_equal(agoq_layout_fill(format, 7, 1000 + i, &got), AGOQ_OK);
        assert_true(want.format == got.format && want.bits == got.bits && want.rows == got.rows &&
                    want.cols == got.cols);
        assert_true(want.lo_bits == got.lo_bits && want.lo_row_bytes == got.lo_row_bytes);
        assert_true(want.hi_bits == got.hi_bits && want.hi_row_bytes == got.hi_row_bytes);
        assert_true(want.hi_offset == got.hi_offset && want.blocks_per_row == got.blocks_per_row);
        assert_true(want.scale_offset == got.scale_offset && want.bytes == got.bytes);
    }
    agoq_layout none;
    refused(agoq_layout_fill(7, 1, 1, &none), AGOQ_E_INVAL);
    refused(agoq_layout_fill(4, -1, 1, &none), AGOQ_E_INVAL);
    refused(agoq_layout_fill(4, 1, 1, NULL), AGOQ_E_INVAL);
    refused(agoq_layout_fill(4, INT64_MAX, INT64_MAX, &none), AGOQ_E_LIMIT);
}

static void devices(void **state) {
    (void)state;
    agoq_exec exec = {.device = AGOQ_DEVICE_CUDA};
    agoq_packed p = packed_of(4, bytes1);
    const agoq_view v = view_of(a);
    agoq_view none = v;
    none.rows = 0;
    agoq_packed empty = {.data = NULL};
    assert_int_equal(agoq_layout_make(4, 0, COLS, &empty.layout), AGOQ_OK);
    /* a build without CUDA has a hole there; one with it needs no GPU for nothing */
    const agoq_status status = agoq_pack(&exec, &none, NULL, &empty);
    assert_true(status == AGOQ_OK || status == AGOQ_E_UNSUPPORTED);
    exec.device = (agoq_device)2;
    refused(agoq_pack(&exec, &v, NULL, &p), AGOQ_E_INVAL);
}

static void rows(void **state) {
    (void)state;
    agoq_view x = view_of(a), y = view_of(b), sum = view_of(c), narrow = view_of(c);
    agoq_packed p = packed_of(4, bytes1), q = packed_of(8, bytes2);
    narrow.cols--;
    agoq_norm bad = norm;
    refused(agoq_norm_fwd_pack(NULL, &x, &x, &norm, NULL, &y, &p), AGOQ_E_INVAL);
    refused(agoq_norm_fwd_pack(NULL, &x, NULL, &norm, &sum, &y, &p), AGOQ_E_INVAL);
    sum.dtype = AGOQ_DTYPE_BF16;
    refused(agoq_norm_fwd_pack(NULL, &x, &x, &norm, &sum, &y, &p), AGOQ_E_INVAL);
    refused(agoq_norm_fwd_pack(NULL, &x, &narrow, &norm, &sum, &y, &p), AGOQ_E_INVAL);
    bad.eps = -1.0f;
    refused(agoq_norm_fwd_pack(NULL, &x, NULL, &bad, NULL, &y, &p), AGOQ_E_INVAL);
    bad.eps = NAN;
    refused(agoq_norm_fwd_pack(NULL, &x, NULL, &bad, NULL, &y, &p), AGOQ_E_INVAL);
    bad = norm, bad.weight = bytes1 + 2;
    refused(agoq_norm_fwd_pack(NULL, &x, NULL, &bad, NULL, &y, &p), AGOQ_E_INVAL);
    bad = norm, bad.bias = bytes1 + 3, bad.weight_dtype = AGOQ_DTYPE_F16;
    refused(agoq_norm_fwd_pack(NULL, &x, NULL, &bad, NULL, &y, &p), AGOQ_E_INVAL);
    refused(agoq_norm_bwd_packed(NULL, &p, &norm, &narrow, &y, NULL, NULL), AGOQ_E_INVAL);
    refused(agoq_norm_bwd_packed(NULL, &p, &norm, &x, &narrow, NULL, NULL), AGOQ_E_INVAL);
    refused(agoq_swiglu_fwd_pack(NULL, &x, &narrow, 0, &y, &p, &q), AGOQ_E_INVAL);
    refused(agoq_swiglu_fwd_pack(NULL, &x, &x, 0, &narrow, &p, &q), AGOQ_E_INVAL);
    refused(agoq_swiglu_fwd_pack(NULL, &x, &x, 0, &y, &p, NULL), AGOQ_E_INVAL);
    refused(agoq_swiglu_bwd_packed(NULL, &p, &q, 0, &narrow, NULL, &y, &y), AGOQ_E_INVAL);
    refused(agoq_swiglu_bwd_packed(NULL, &p, &q, 0, &x, &narrow, &y, &y), AGOQ_E_INVAL);
    refused(agoq_swiglu_bwd_packed(NULL, &p, &q, 0, &x, NULL, NULL, &y), AGOQ_E_INVAL);
    refused(agoq_swiglu_bwd_packed(NULL, &p, &q, 0, &x, NULL, &y, NULL), AGOQ_E_INVAL);
}

static void grads(void **state) {
    (void)state;
    static const agoq_adam_params adam = {1e-3f, 0.9f, 0.999f, 1e-8f, 0, 1, 1};
    agoq_grad g = {bytes1, b, ROWS * COLS, AGOQ_GRAD_E4M3}, bad = g;
    double sqnorm;
    bad.n = -1;
    refused(agoq_grad_zero(NULL, &bad), AGOQ_E_INVAL);
    bad = g, bad.scales = NULL;
    refused(agoq_grad_zero(NULL, &bad), AGOQ_E_INVAL);
    bad = g, bad.codes = NULL;
    refused(agoq_grad_accumulate(NULL, a, AGOQ_DTYPE_F32, NULL, &bad), AGOQ_E_INVAL);
    refused(agoq_grad_accumulate(NULL, NULL, AGOQ_DTYPE_F32, NULL, &g), AGOQ_E_INVAL);
    refused(agoq_grad_accumulate(NULL, a, (agoq_dtype)9, NULL, &g), AGOQ_E_INVAL);
    refused(agoq_grad_read(NULL, &g, 1, ROWS * COLS, 1.0f, c), AGOQ_E_INVAL);
    refused(agoq_grad_read(NULL, &g, -1, 1, 1.0f, c), AGOQ_E_INVAL);
    refused(agoq_grad_read(NULL, &g, 2, INT64_MAX, 1.0f, c), AGOQ_E_INVAL);
    refused(agoq_grad_read(NULL, &g, 0, 1, 1.0f, NULL), AGOQ_E_INVAL);
    refused(agoq_grad_sqnorm(NULL, &g, NULL), AGOQ_E_INVAL);
    refused(agoq_grad_sqnorm(NULL, NULL, &sqnorm), AGOQ_E_INVAL);
    agoq_adam8 s = {bytes1, bytes2, b, c, ROWS * COLS}, wrong = s;
    agoq_adam_params p = adam;
    wrong.v_absmax = NULL;
    refused(agoq_adam8_init(NULL, &wrong), AGOQ_E_INVAL);
    const agoq_adam_source source = {.grad = a}, neither = {0}, both = {&g, a, AGOQ_DTYPE_F32};
    const agoq_adam_target target = {.master = a}, nowhere = {0};
    refused(agoq_adam8_step(NULL, &adam, &neither, &target, &s), AGOQ_E_INVAL);
    refused(agoq_adam8_step(NULL, &adam, &both, &target, &s), AGOQ_E_INVAL);
    refused(agoq_adam8_step(NULL, &adam, &source, &nowhere, &s), AGOQ_E_INVAL);
    p.step = 0;
    refused(agoq_adam8_step(NULL, &p, &source, &target, &s), AGOQ_E_INVAL);
    p = adam, p.beta2 = 1.0f;
    refused(agoq_adam8_step(NULL, &p, &source, &target, &s), AGOQ_E_INVAL);
    p = adam, p.lr = NAN;
    refused(agoq_adam8_step(NULL, &p, &source, &target, &s), AGOQ_E_INVAL);
}

static void names(void **state) {
    (void)state;
    assert_string_equal(agoq_status_name(AGOQ_E_LIMIT), "AGOQ_E_LIMIT");
    assert_string_equal(agoq_status_text(AGOQ_OK), "success");
    assert_non_null(agoq_status_name((agoq_status)99));
    assert_non_null(agoq_status_text((agoq_status)-1));
    for (int role = 0; role < AGOQ_N_ROLES; role++)
        assert_int_equal(agoq_role_from_name(agoq_role_name(role)), role);
    assert_null(agoq_role_name(-1));
    assert_null(agoq_role_name(AGOQ_N_ROLES));
    assert_int_equal(agoq_role_from_name("mlp_gate"), -1);
    assert_int_equal(agoq_role_from_name(NULL), -1);
    int major, minor, patch;
    assert_int_equal(sscanf(agoq_version(), "%d.%d.%d", &major, &minor, &patch), 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup(views, reset),
                                       cmocka_unit_test_setup(layouts, reset),
                                       cmocka_unit_test_setup(filled_layouts, reset),
                                       cmocka_unit_test_setup(devices, reset),
                                       cmocka_unit_test_setup(rows, reset),
                                       cmocka_unit_test_setup(grads, reset),
                                       cmocka_unit_test(names)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
