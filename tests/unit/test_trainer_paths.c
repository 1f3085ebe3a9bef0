/* The trainer's three save-and-restore paths against each other, and FP8 main gradients against fp32 ones. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "tests/unit/trainer_case.h"

/* Two micro-batches add up. */
static void accumulates(void **state) {
    (void)state;
    model_case once, twice;
    case_init(&once, STORE_BASELINE, 1);
    case_init(&twice, STORE_BASELINE, 1);
    model_gradient(&once);
    model_gradient(&twice);
    model_gradient(&twice);
    for (int i = 0; i < once.m.params.n; i++) {
        for (int64_t k = 0; k < once.m.params.list[i].n; k++)
            assert_float_equal(twice.g.list[i].g32[k], 2 * once.g.list[i].g32[k], 1e-4);
    }
    case_fini(&once);
    case_fini(&twice);
}

static double distance(const model_case *a, const model_case *b) {
    double diff = 0, norm = 0;
    for (int i = 0; i < a->m.params.n; i++) {
        for (int64_t k = 0; k < a->m.params.list[i].n; k++) {
            const double d = (double)a->g.list[i].g32[k] - (double)b->g.list[i].g32[k];
            diff += d * d;
            norm += (double)a->g.list[i].g32[k] * (double)a->g.list[i].g32[k];
        }
    }
    return sqrt(diff / norm);
}

/* Recomputing from stored 16-bit values equals storing, to the last bit; the fused path differs by roundings
 * at 16 bits and by more and more with fewer bits. */
static void paths(void **state) {
    (void)state;
    model_case baseline, exact, other;
    case_init(&exact, STORE_BASELINE, 1);
    case_init(&baseline, STORE_BASELINE, 0);
    model_gradient(&exact);
    const double loss = model_gradient(&baseline);
    assert_true(distance(&exact, &baseline) < 2e-2);
    case_init(&other, STORE_IDENTITY, 0);
    assert_true(model_gradient(&other) == loss);
    assert_true(distance(&baseline, &other) == 0);
    case_fini(&other);
    const int bits[] = {16, 8, 6, 4};
    const double most[] = {1e-2, 3e-2, 8e-2, 4e-1};
    double last = 0;
    for (int i = 0; i < 4; i++) {
        case_init(&other, STORE_AGOQ, 0);
        memset(other.s.bits, bits[i], sizeof other.s.bits);
        other.s.bits[AGOQ_ROLE_ATTN_QKV] = 16;
        const double own = model_gradient(&other), d = distance(&baseline, &other);
        assert_float_equal(own, loss, 1e-3 * loss); /* forward uses what was not packed */
        if (d > most[i] || d < last) fail_msg("%d bits: distance %g", bits[i], d);
        last = d;
        case_fini(&other);
    }
    assert_true(last > 5e-2); /* 4 bits are felt: backward does read what was packed */
    case_init(&other, STORE_AGOQ, 0);
    memset(other.s.bits, 4, sizeof other.s.bits);
    other.s.bits[AGOQ_ROLE_ATTN_QKV] = 16;
    other.s.format4 = AGOQ_FORMAT_CODE4;
    assert_float_equal(model_gradient(&other), loss, 1e-3 * loss);
    const double code4 = distance(&baseline, &other);
    print_message("distance with INT4: %.4f, with CODE4: %.4f\n", last, code4);
    assert_true(code4 > 0.5 * last && code4 < 0.97 * last); /* errors are 9 % smaller */
    case_fini(&other);
    case_fini(&baseline);
    case_fini(&exact);
}

/* FP8 main gradients stay near the fp32 ones. */
static void fp8_gradients(void **state) {
    (void)state;
    model_case c, fp8;
    case_init(&c, STORE_BASELINE, 0);
    case_init(&fp8, STORE_BASELINE, 0);
    grads_fini(&fp8.g);
    assert_int_equal(grads_init(&fp8.g, &fp8.m.params, 1, 3, 0, &fp8.mem), AGOQ_OK);
    assert_int_equal(grads_start(&fp8.g, 0), AGOQ_OK);
    for (int mb = 0; mb < 4; mb++) {
        model_gradient(&c);
        grads_microbatch(&fp8.g, mb);
        model_gradient(&fp8);
    }
    double diff = 0, norm = 0;
    for (int i = 0; i < c.m.params.n; i++) {
        const param *t = &c.m.params.list[i];
        if (!t->matrix) continue;
        assert_int_equal(agoq_grad_read(NULL, &fp8.g.list[i].g8, 0, t->n, 1.0f, fp8.g.scratch), AGOQ_OK);
        for (int64_t k = 0; k < t->n; k++) {
            const double want = (double)c.g.list[i].g32[k], d = want - (double)fp8.g.scratch[k];
            diff += d * d;
            norm += want * want;
        }
    }
    assert_true(sqrt(diff / norm) < 0.15 && diff > 0);
    assert_true(grads_bytes(&fp8.g) * 100 < grads_bytes(&c.g) * 30);
    case_fini(&c);
    case_fini(&fp8);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(accumulates), cmocka_unit_test(paths),
                                       cmocka_unit_test(fp8_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
