/* The public codec layer through libagoq.so: every function, given one wrong argument at a time, says so,
 * explains it in agoq_last_error(), and touches no byte. Wrong arguments are made by kind (view, packed
 * tensor, gradient, floats) for every argument of that kind, so that a new function needs one line in the
 * table. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "tests/api/codec_calls.h"

static void good_calls_succeed(void **state) {
    (void)state;
    for (int i = 0; i < N_FUNCTIONS; i++) {
        args a = good(ROWS, COLS);
        point(&a);
        if (functions[i].call(&a) != AGOQ_OK) fail_msg("%s: %s", functions[i].name, agoq_last_error());
        a.exec_p = NULL; /* the CPU */
        assert_int_equal(functions[i].call(&a), AGOQ_OK);
    }
}

static void nothing_to_do_is_success(void **state) {
    (void)state;
    static const int64_t shapes[][2] = {{0, COLS}, {ROWS, 0}, {0, 0}, {INT64_C(1) << 60, 0}};
    for (int i = 0; i < 4 * N_FUNCTIONS; i++) {
        args a = good(shapes[i % 4][0], shapes[i % 4][1]);
        point(&a);
        for (int k = 0; k < N_VIEWS; k++) a.view[k].data = NULL;
        for (int k = 0; k < N_PACKED; k++) a.packed[k].data = NULL;
        for (int k = 0; k < N_GRADS; k++) a.grad[k] = (agoq_grad){NULL, NULL, 0, AGOQ_GRAD_E4M3};
        a.state = (agoq_adam8){NULL, NULL, NULL, NULL, 0};
        before = memory;
        if (functions[i / 4].call(&a) != AGOQ_OK)
            fail_msg("%s: %s", functions[i / 4].name, agoq_last_error());
        assert_memory_equal(&before, &memory, sizeof memory);
    }
}

static void wrong_views(void **state) {
    (void)state;
    static const char *const kinds[] = {"view NULL",
                                        "view of unknown dtype",
                                        "view of negative rows",
                                        "view of negative cols",
                                        "view with short stride",
                                        "view without data",
                                        "view with a row more",
                                        "view with a column less"};
    for (int i = 0; i < N_FUNCTIONS; i++) {
        const struct function *f = &functions[i];
        for (int k = 0; k < f->views; k++) {
            for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
                args a = good(ROWS, COLS);
                point(&a);
                agoq_view *v = &a.view[k];
                switch (kind) {
                case 0:
                    a.view_p[k] = NULL;
                    break;
                case 1:
                    v->dtype = (agoq_dtype)9;
                    break;
                case 2:
                    v->rows = -1;
                    break;
                case 3:
                    v->cols = -1;
                    break;
                case 4:
                    v->row_stride = COLS - 1;
                    break;
                case 5:
                    v->data = NULL;
                    break;
                case 6:
                    v->rows++;
                    break;
                default:
                    v->cols--;
                    break;
                }
                if (kind == 0 && f->last_view_optional && k == f->views - 1)
                    assert_int_equal(f->call(&a), AGOQ_OK);
                else
                    refuses(f, &a, kinds[kind]);
            }
        }
    }
}

static void wrong_packed(void **state) {
    (void)state;
    static const char *const kinds[] = {"packed NULL",   "width 7",        "width 0",
                                        "no data",       "unaligned data", "bytes changed",
                                        "scales moved",  "another shape",  "width of another layout",
                                        "hi plane moved"};
    for (int i = 0; i < N_FUNCTIONS; i++) {
        const struct function *f = &functions[i];
        for (int k = 0; k < f->packed; k++) {
            for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
                args a = good(ROWS, COLS);
                point(&a);
                agoq_packed *p = &a.packed[k];
                switch (kind) {
                case 0:
                    a.packed_p[k] = NULL;
                    break;
                case 1:
                    p->layout.bits = 7;
                    break;
                case 2:
                    p->layout.bits = 0;
                    break;
                case 3:
                    p->data = NULL;
                    break;
                case 4:
                    p->data = memory.packed[k] + 4;
                    break;
                case 5:
                    p->layout.bytes += 16;
                    break;
                case 6:
                    p->layout.scale_offset += 16;
                    break;
                case 7:
                    assert_int_equal(agoq_layout_make(4, ROWS - 1, COLS, &p->layout), AGOQ_OK);
                    break;
                case 8:
                    p->layout.bits = 6;
                    break;
                default:
                    p->layout.hi_offset -= 16;
                    break;
                }
                if (kind == 0 && f->packed_optional)
                    assert_int_equal(f->call(&a), AGOQ_OK);
                else
                    refuses(f, &a, kinds[kind]);
            }
        }
    }
}

static void wrong_gradients(void **state) {
    (void)state;
    static const char *const kinds[] = {"NULL",     "n < 0", "no codes", "no scales", "unaligned scales",
                                        "another n"};
    for (int i = 0; i < N_FUNCTIONS; i++) {
        const struct function *f = &functions[i];
        for (int k = 0; k < f->grads; k++) {
            for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
                args a = good(ROWS, COLS);
                point(&a);
                agoq_grad *g = &a.grad[k];
                switch (kind) {
                case 0:
                    a.grad_p[k] = NULL;
                    break;
                case 1:
                    g->n = -1;
                    break;
                case 2:
                    g->codes = NULL;
                    break;
                case 3:
                    g->scales = NULL;
                    break;
                case 4:
                    g->scales = (float *)(void *)((unsigned char *)g->scales + 2);
                    break;
                default:
                    g->n--;
                    break;
                }
                /* only the first of an array is a pointer of its own */
                const int in_array = f->call == grad_reduce8                                       ? k == 2
                                     : f->call == grad_reduce32 || f->call == grad_accumulate_list ? k == 1
                                                                                                   : 0;
                if ((kind == 0 && in_array) || (kind == 5 && !f->sizes)) continue;
                refuses(f, &a, kinds[kind]);
            }
        }
    }
}

static void wrong_floats_and_state(void **state) {
    (void)state;
    for (int i = 0; i < N_FUNCTIONS; i++) {
        const struct function *f = &functions[i];
        for (int k = 0; k < f->floats; k++) {
            args a = good(ROWS, COLS);
            point(&a);
            a.floats[k] = NULL;
            if (f->floats_optional >> k & 1)
                assert_int_equal(f->call(&a), AGOQ_OK);
            else
                refuses(f, &a, "floats NULL");
            a = good(ROWS, COLS);
            point(&a);
            a.floats[k] = (float *)(void *)((unsigned char *)a.floats[k] + 1);
            if (f->floats_anywhere >> k & 1)
                assert_int_equal(f->call(&a), AGOQ_OK); /* as views */
            else
                refuses(f, &a, "unaligned floats");
        }
        for (int kind = 0; f->state && kind < 6; kind++) {
            args a = good(ROWS, COLS);
            point(&a);
            if (kind == 0) a.state_p = NULL;
            if (kind == 1) a.state.n = -1;
            if (kind == 2) a.state.m = NULL;
            if (kind == 3) a.state.v = NULL;
            if (kind == 4) a.state.m_absmax = NULL;
            if (kind == 5) a.state.v_absmax = NULL;
            refuses(f, &a, "adam8 state");
        }
    }
}

static void what_is_special_to_a_function(void **state) {
    (void)state;
    REFUSES(norm_fwd_pack, a.view_p[1] = NULL); /* residual and sum: both or neither */
    REFUSES(norm_fwd_pack, a.view_p[2] = NULL);
    REFUSES(norm_fwd_pack, a.view[2].dtype = AGOQ_DTYPE_BF16);
    REFUSES(norm_fwd_pack, a.norm_p = NULL);
    REFUSES(norm_fwd_packed, a.norm_p = NULL);
    REFUSES(norm_bwd_packed, a.norm_p = NULL);
    REFUSES(norm_fwd_pack, a.norm.eps = -1);
    REFUSES(norm_fwd_packed, a.norm.eps = NAN);
    REFUSES(norm_bwd_packed, a.norm.eps = INFINITY);
    REFUSES(norm_fwd_packed, a.norm.kind = (agoq_norm_kind)2);
    REFUSES(norm_bwd_packed, a.norm.weight_dtype = (agoq_dtype)3);
    REFUSES(pack, a.key.offset = -1);
    REFUSES(pack_rows, a.key.offset = -1);
    REFUSES(pack_rows, a.first = -1);
    REFUSES(pack_rows, a.first = 2); /* of two rows of three */
    REFUSES(unpack_rows, a.first = -1);
    REFUSES(unpack_rows, a.first = 2);
    REFUSES(unpack_rows, a.first = INT64_MAX);
    REFUSES(adam8_step_bf16, a.key.offset = -1);
    REFUSES(adam8_step_bf16, a.floats[1] = NULL); /* no parameters */
    REFUSES(grad_accumulate, a.key.offset = -1);
    REFUSES(grad_accumulate, a.dtype = (agoq_dtype)-1);
    REFUSES(grad_read, a.begin = -1);
    REFUSES(grad_read, a.begin = 1);
    REFUSES(grad_read, a.count = -1);
    REFUSES(grad_read, (a.begin = INT64_MAX, a.count = INT64_MAX));
    REFUSES(grad_sqnorm, a.sqnorm = NULL);
    REFUSES(grad_check_finite, a.blocks = NULL);
    REFUSES(grad_zero, a.grad[0].format = AGOQ_N_GRAD_FORMATS);
    REFUSES(grad_reduce8, a.grad[2].format = AGOQ_GRAD_INT8); /* formats do not mix */
    REFUSES(grad_reduce8, a.grad[0].format = AGOQ_GRAD_E5M2);
    REFUSES(grad_accumulate_list, a.grad[1].format = AGOQ_GRAD_E5M2);
    REFUSES(grad_accumulate_list, a.n_terms = -1);
    REFUSES(grad_reduce8, a.n_in = 0);
    REFUSES(grad_reduce32, a.n_in = -3);
    REFUSES(adam8_step8, a.grad_p[0] = NULL); /* neither gradient */
    REFUSES(adam8_step8, a.adam_p = NULL);
    REFUSES(adam8_step8, a.adam.step = 0);
    REFUSES(adam8_step32, a.adam.beta1 = 1);
    REFUSES(adam8_step32, a.adam.beta2 = -0.1f);
    REFUSES(adam8_step32, a.adam.lr = NAN);
    REFUSES(adam8_step32, a.adam.eps = -1);
    REFUSES(adam8_step32, a.adam.grad_multiplier = NAN); /* a clipping factor of a norm that is NaN */
    REFUSES(adam8_step8, a.adam.grad_multiplier = INFINITY);
    args a = good(ROWS, COLS);
    point(&a);
    before = memory;
    assert_int_equal(agoq_grad_reduce(NULL, a.grad, 2, 1, &a.grad[2], a.floats[0]), AGOQ_E_INVAL);
    const agoq_adam_source both = {a.grad, a.floats[1], AGOQ_DTYPE_F32}, neither = {0};
    const agoq_adam_target target = {.master = a.floats[0]}, nowhere = {0};
    assert_int_equal(agoq_adam8_step(NULL, &a.adam, &both, &target, &a.state), AGOQ_E_INVAL);
    assert_int_equal(agoq_adam8_step(NULL, &a.adam, &neither, &target, &a.state), AGOQ_E_INVAL);
    assert_int_equal(agoq_adam8_step(NULL, &a.adam, NULL, &target, &a.state), AGOQ_E_INVAL);
    const agoq_adam_source one = {.grad8 = a.grad};
    assert_int_equal(agoq_adam8_step(NULL, &a.adam, &one, NULL, &a.state), AGOQ_E_INVAL);
    assert_int_equal(agoq_adam8_step(NULL, &a.adam, &one, &nowhere, &a.state), AGOQ_E_INVAL);
    assert_memory_equal(&before, &memory, sizeof memory);
}

static void what_rope_refuses(void **state) {
    (void)state;
    REFUSES(rope, a.rope_p = NULL);
    REFUSES(rope, a.rope.head_dim = 0);
    REFUSES(rope, a.rope.head_dim = -65);
    REFUSES(rope, a.rope.head_dim = 64); /* does not divide the columns */
    REFUSES(rope, a.rope.rotary = 63);
    REFUSES(rope, a.rope.rotary = 66);
    REFUSES(rope, a.rope.rotary = -2);
    REFUSES(rope, a.rope.n_positions = 0);
    REFUSES(rope, a.rope.n_positions = -1);
    REFUSES(rope, a.rope.positions = (const int32_t *)(const void *)((const char *)memory.positions + 2));
    args a = good(ROWS, COLS);
    point(&a);
    a.rope.n_positions = INT64_MAX;
    const struct function f = {"rope", rope, .views = 2};
    refuses_as(&f, &a, "tables beyond 63 bits", AGOQ_E_LIMIT);
    a.rope.n_positions = 2;
    a.rope.rotary = 0; /* tables are then not read */
    a.floats[0] = a.floats[1] = NULL;
    assert_int_equal(rope(&a), AGOQ_OK);
    assert_memory_equal(memory.view[0], memory.view[1], sizeof memory.view[0]);
    a.rope.positions = NULL;
    assert_int_equal(rope_pack(&a), AGOQ_OK);
}

/* A block is 256 parameters; the last may be short, and none is needed for nothing. */
static void adam8_blocks(void **state) {
    (void)state;
    static const int64_t n[][2] = {{0, 0}, {1, 1}, {255, 1}, {256, 1}, {257, 2}, {1ll << 40, 1ll << 32}};
    for (size_t i = 0; i < sizeof n / sizeof n[0]; i++) assert_true(agoq_adam8_blocks(n[i][0]) == n[i][1]);
    assert_true(agoq_adam8_blocks(-1) == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(adam8_blocks),
        cmocka_unit_test(good_calls_succeed),
        cmocka_unit_test(nothing_to_do_is_success),
        cmocka_unit_test(wrong_views),
        cmocka_unit_test(wrong_packed),
        cmocka_unit_test(wrong_gradients),
        cmocka_unit_test(wrong_floats_and_state),
        cmocka_unit_test(what_is_special_to_a_function),
        cmocka_unit_test(what_rope_refuses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
