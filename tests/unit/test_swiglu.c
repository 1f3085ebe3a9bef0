/* SwiGLU rows against FP64 formulas and finite differences; what is recomputed from packed values equals what
 * forward gives for those values, to the bit. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/row_fixture.h"

static const int64_t some_cols[] = {1, 5, 64, 96, 129, 300, 600};

static double silu(double g) {
    return g / (1 + exp(-g));
}

static void swiglu_forward_backward(void **state) {
    (void)state;
    const double h = 1e-6;
    for (size_t k = 0; k < sizeof some_cols / sizeof *some_cols; k++) {
        const int64_t cols = some_cols[k], n = 5 * cols;
        for (int w = 0; w < N_FORMATS; w++) {
            matrix g = matrix_random(5, cols, 13), u = matrix_random(5, cols, 14),
                   d = matrix_random(5, cols, 15);
            matrix want = matrix_new(5, cols), want_g = matrix_new(5, cols), want_u = matrix_new(5, cols);
            matrix y = matrix_new(5, cols), again = matrix_new(5, cols), dg = matrix_new(5, cols),
                   du = matrix_new(5, cols);
            agoq_packed pg = packed_new(formats[w], 5, cols), pu = packed_new(formats[w], 5, cols);
            for (int i = 0; i < n; i++) g.data[i] *= 3.0f;
            assert_int_equal(agoq_pack(NULL, &g.view, NULL, &pg), AGOQ_OK);
            assert_int_equal(agoq_pack(NULL, &u.view, NULL, &pu), AGOQ_OK);
            assert_int_equal(agoq_unpack(NULL, &pg, &g.view), AGOQ_OK);
            assert_int_equal(agoq_unpack(NULL, &pu, &u.view), AGOQ_OK);
            for (int64_t i = 0; i < n; i++) {
                const double gi = (double)g.data[i], ui = (double)u.data[i], di = (double)d.data[i];
                want.data[i] = (float)(silu(gi) * ui);
                want_u.data[i] = (float)(silu(gi) * di);
                want_g.data[i] = (float)((silu(gi + h) - silu(gi - h)) / (2 * h) * ui * di);
            }
            assert_int_equal(agoq_swiglu_fwd_pack(NULL, &g.view, &u.view, 0, &y.view, &pg, &pu), AGOQ_OK);
            assert_true(relative_error(want.data, y.data, n) < 3e-7);
            for (int round_bf16 = 0; round_bf16 < 2; round_bf16++) {
                const double bound = round_bf16 ? 4e-3 : 3e-7;
                assert_int_equal(agoq_swiglu_fwd_pack(NULL, &g.view, &u.view, round_bf16, &y.view, &pg, &pu),
                                 AGOQ_OK);
                assert_int_equal(agoq_swiglu_bwd_packed(NULL, &pg, &pu, round_bf16, &d.view, &again.view,
                                                        &dg.view, &du.view),
                                 AGOQ_OK);
                assert_memory_equal(again.data, y.data, (size_t)n * 4); /* recomputed = computed */
                assert_true(relative_error(want_g.data, dg.data, n) < bound + 1e-7);
                assert_true(relative_error(want_u.data, du.data, n) < bound);
                assert_int_equal(
                    agoq_swiglu_bwd_packed(NULL, &pg, &pu, round_bf16, &d.view, NULL, &again.view, &du.view),
                    AGOQ_OK);
                assert_memory_equal(again.data, dg.data, (size_t)n * 4);
                if (round_bf16) is_bf16(&y), is_bf16(&dg), is_bf16(&du);
            }
            free(g.data), free(u.data), free(d.data), free(want.data), free(want_g.data), free(want_u.data);
            free(y.data), free(again.data), free(dg.data), free(du.data), free(pg.data), free(pu.data);
        }
    }
}

/* Gates far out: no NaN, no overflow, silu tends to g, and to g times the logistic function at -87. */
static void swiglu_extremes(void **state) {
    (void)state;
    float g[6] = {1e30f, -1e30f, 100.0f, -100.0f, 0.0f, -0.0f}, u[6] = {1, 1, 1, 1, 1, 1}, y[6];
    const float want[6] = {1e30f, 0, 100, 0, 0, 0};
    agoq_view vg = {g, AGOQ_DTYPE_F32, 1, 6, 6}, vu = vg, vy = vg;
    vu.data = u, vy.data = y;
    agoq_packed pg = packed_new(16, 1, 6), pu = packed_new(16, 1, 6);
    assert_int_equal(agoq_swiglu_fwd_pack(NULL, &vg, &vu, 0, &vy, &pg, &pu), AGOQ_OK);
    for (int i = 0; i < 6; i++) assert_true(fabsf(y[i] - want[i]) <= 1e-6f * want[i] + 2e-38f * fabsf(g[i]));
    free(pg.data), free(pu.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(swiglu_forward_backward),
                                       cmocka_unit_test(swiglu_extremes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
