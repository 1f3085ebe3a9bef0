/* Where the arguments of the codec layer may lie: which addresses each device takes, and devices that do not
 * exist. For every function and every argument of a kind, as in test_codec_api.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "tests/api/codec_calls.h"

/* Weights of a half type need two bytes of alignment, not four. */
static void half_weights_lie_on_two_bytes(void **state) {
    (void)state;
    args a = good(ROWS, COLS);
    point(&a);
    a.norm.weight_dtype = AGOQ_DTYPE_BF16;
    for (int k = 0; k < 2; k++) a.floats[k] = (float *)(void *)((char *)a.floats[k] + 2);
    assert_int_equal(norm_fwd_packed(&a), AGOQ_OK);
    a.floats[1] = (float *)(void *)((char *)a.floats[1] + 1);
    const struct function f = {"norm_fwd_packed", norm_fwd_packed, .views = 1};
    refuses(&f, &a, "bias on an odd address");
}

static void *shifted(void *p, size_t bytes) {
    return (unsigned char *)p + bytes;
}

/* Refused before a kernel is looked for: no GPU is needed to see it. */
static void refuses_address(const struct function *f, args *a, agoq_device device) {
    a->exec.device = device;
    refuses(f, a, "address between two elements");
    if (!strstr(agoq_last_error(), "aligned")) fail_msg("%s: %s", f->name, agoq_last_error());
}

/* Elements of views and of what is added lie anywhere on the CPU, and at multiples of their size on a GPU. */
static void addresses_on_a_gpu(void **state) {
    (void)state;
    for (int i = 0; i < N_FUNCTIONS; i++) {
        const struct function *f = &functions[i];
        for (int k = 0; k < f->views; k++) {
            for (int half = 0; half < 2; half++) { /* bf16 lies at even addresses */
                args a = good(ROWS, COLS);
                point(&a);
                for (int v = 0; half && v < N_VIEWS; v++) a.view[v].dtype = AGOQ_DTYPE_BF16;
                a.view[k].data = shifted(a.view[k].data, half ? 1 : 2);
                assert_int_equal(f->call(&a), AGOQ_OK);
                refuses_address(f, &a, AGOQ_DEVICE_CUDA);
            }
        }
        for (int k = 0; k < f->floats; k++) {
            args a = good(ROWS, COLS);
            point(&a);
            a.floats[k] = shifted(a.floats[k], 2);
            refuses_address(f, &a, AGOQ_DEVICE_CUDA);
        }
        args a = good(ROWS, COLS);
        point(&a);
        a.exec.nonfinite = shifted(&memory.nonfinite, 1);
        refuses_address(f, &a, AGOQ_DEVICE_CPU);
        refuses_address(f, &a, AGOQ_DEVICE_CUDA);
    }
    args a = good(ROWS, COLS);
    point(&a);
    a.floats[1] = shifted(a.floats[1], 1); /* the bf16 parameters */
    const struct function bf16 = {"adam8_step_bf16", adam8_step_bf16, .views = 0},
                          both = {"adam8_step_both", adam8_step_both, .views = 0};
    assert_int_equal(adam8_step_bf16(&a), AGOQ_OK);
    assert_int_equal(adam8_step_both(&a), AGOQ_OK);
    refuses_address(&bf16, &a, AGOQ_DEVICE_CUDA);
    refuses_address(&both, &a, AGOQ_DEVICE_CUDA);
}

static void devices_that_are_not_there(void **state) {
    (void)state;
    for (int i = 0; i < N_FUNCTIONS; i++) {
        args a = good(ROWS, COLS);
        point(&a);
        a.exec.device = (agoq_device)7;
        refuses(&functions[i], &a, "device 7");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(half_weights_lie_on_two_bytes),
                                       cmocka_unit_test(addresses_on_a_gpu),
                                       cmocka_unit_test(devices_that_are_not_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
