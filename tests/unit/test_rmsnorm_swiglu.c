/* The fused rows. At width 16 with bf16 input nothing is lost by packing, so forward and backward must equal
 * FP64 formulas up to rounding; at every width, recomputing from packed values must equal, to the bit, what
 * forward gives for those values. Backward is also checked against finite differences of the FP64 forward,
 * which knows no derivative formula. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "kernels/format/half.h"
#include "tests/numeric.h"

enum { ROWS = 150 }; /* more than two chunks of dgamma */
static const int widths[] = {4, 5, 6, 8, 16};
static const int64_t some_cols[] = {1, 5, 64, 96, 129, 300, 600};
static const float eps = 1e-5f;

typedef struct matrix {
    float *data;
    agoq_view view;
} matrix;

static matrix matrix_new(int64_t rows, int64_t cols) {
    matrix m = {calloc((size_t)(rows * cols) + 1, sizeof(float)), {0}};
    assert_non_null(m.data);
    m.view = (agoq_view){m.data, AGOQ_DTYPE_F32, rows, cols, cols};
    return m;
}

static matrix matrix_random(int64_t rows, int64_t cols, uint64_t seed) { /* bf16 values */
    matrix m = matrix_new(rows, cols);
    for (int64_t i = 0; i < rows * cols; i++) m.data[i] = agoqk_bf16_round(gauss(&seed));
    return m;
}

static agoq_packed packed_new(int bits, int64_t rows, int64_t cols) {
    agoq_packed p;
    assert_int_equal(agoq_layout_make(bits, rows, cols, &p.layout), AGOQ_OK);
    p.data = aligned_alloc(AGOQ_PLANE_ALIGN, p.layout.bytes + AGOQ_PLANE_ALIGN);
    assert_non_null(p.data);
    memset(p.data, 0, p.layout.bytes);
    return p;
}

static double inverse_rms(const float *x, int64_t cols) {
    double sum = 0;
    for (int64_t c = 0; c < cols; c++) sum += (double)x[c] * (double)x[c];
    return 1 / sqrt(sum / (double)cols + (double)eps);
}

static void is_bf16(const matrix *m) {
    for (int64_t i = 0; i < m->view.rows * m->view.cols; i++)
        assert_true(agoqk_bf16_round(m->data[i]) == m->data[i]);
}

static void rmsnorm_forward(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof some_cols / sizeof *some_cols; k++) {
        const int64_t cols = some_cols[k];
        matrix x = matrix_random(3, cols, 1), gamma = matrix_random(1, cols, 2), want = matrix_new(3, cols);
        for (int64_t r = 0; r < 3; r++) {
            const double inv = inverse_rms(x.data + r * cols, cols);
            for (int64_t c = 0; c < cols; c++)
                want.data[r * cols + c] = (float)((double)x.data[r * cols + c] * inv * (double)gamma.data[c]);
        }
        agoq_packed p = packed_new(16, 3, cols);
        matrix y = matrix_new(3, cols);
        assert_int_equal(agoq_rmsnorm_fwd_pack(NULL, &x.view, NULL, gamma.data, eps, 0, NULL, &y.view, &p),
                         AGOQ_OK);
        assert_true(relative_error(want.data, y.data, 3 * cols) < 2e-7);
        assert_int_equal(agoq_rmsnorm_fwd_pack(NULL, &x.view, NULL, gamma.data, eps, 1, NULL, &y.view, &p),
                         AGOQ_OK);
        assert_true(relative_error(want.data, y.data, 3 * cols) < 4e-3);
        is_bf16(&y);
        free(x.data), free(gamma.data), free(want.data), free(y.data), free(p.data);
    }
}

/* y of forward on values v equals y recomputed from packed v, whenever packing v loses nothing. */
static void rmsnorm_recompute(void **state) {
    (void)state;
    for (int w = 0; w < 5; w++) {
        for (size_t k = 0; k < sizeof some_cols / sizeof *some_cols; k++) {
            for (int round_bf16 = 0; round_bf16 < 2; round_bf16++) {
                const int64_t cols = some_cols[k];
                matrix x = matrix_random(4, cols, 3), gamma = matrix_random(1, cols, 4);
                matrix y = matrix_new(4, cols), again = matrix_new(4, cols);
                agoq_packed p = packed_new(widths[w], 4, cols), q = packed_new(widths[w], 4, cols);
                assert_int_equal(agoq_pack(NULL, &x.view, NULL, &p), AGOQ_OK);
                assert_int_equal(agoq_unpack(NULL, &p, &x.view), AGOQ_OK);
                assert_int_equal(agoq_rmsnorm_fwd_pack(NULL, &x.view, NULL, gamma.data, eps, round_bf16, NULL,
                                                       &y.view, &q),
                                 AGOQ_OK);
                assert_memory_equal(q.data, p.data, p.layout.bytes);
                assert_int_equal(agoq_rmsnorm_fwd_packed(NULL, &q, gamma.data, eps, round_bf16, &again.view),
                                 AGOQ_OK);
                assert_memory_equal(again.data, y.data, (size_t)(4 * cols) * 4);
                free(x.data), free(gamma.data), free(y.data), free(again.data), free(p.data), free(q.data);
            }
        }
    }
}

static float round_to(agoq_dtype type, float x) {
    if (type == AGOQ_DTYPE_F32) return x;
    return type == AGOQ_DTYPE_BF16 ? agoqk_bf16_round(x) : agoqk_f16_decode(agoqk_f16_encode(x));
}

/* sum = round(x + residual), in x's type; what is normalised and packed is the rounded sum, in place or not.
 */
static void rmsnorm_residual(void **state) {
    (void)state;
    static const agoq_dtype types[] = {AGOQ_DTYPE_F32, AGOQ_DTYPE_BF16, AGOQ_DTYPE_F16};
    enum { COLS = 200, N = 3 * COLS };
    matrix x = matrix_random(3, COLS, 5), residual = matrix_random(3, COLS, 6);
    for (int t = 0; t < 3; t++) {
        for (int round_bf16 = 0; round_bf16 < 2; round_bf16++) {
            float in[N] = {0}, sum_data[N] = {0}, want[N];
            matrix y = matrix_new(3, COLS), y2 = matrix_new(3, COLS);
            agoq_packed p = packed_new(4, 3, COLS), q = packed_new(4, 3, COLS);
            for (int i = 0; i < N; i++) {
                const float xi = round_to(types[t], x.data[i]);
                const float added = xi + residual.data[i];
                want[i] = round_to(types[t], round_bf16 ? agoqk_bf16_round(added) : added);
                const uint16_t half = t == 1 ? agoqk_bf16_encode(xi) : agoqk_f16_encode(xi);
                memcpy((char *)in + (t ? 2 : 4) * i, t ? (const void *)&half : &xi, t ? 2 : 4);
            }
            const agoq_view vx = {in, types[t], 3, COLS, COLS};
            agoq_view sum = {sum_data, types[t], 3, COLS, COLS};
            assert_int_equal(
                agoq_rmsnorm_fwd_pack(NULL, &vx, &residual.view, NULL, eps, round_bf16, &sum, &y.view, &p),
                AGOQ_OK);
            const agoq_view vwant = {want, AGOQ_DTYPE_F32, 3, COLS, COLS};
            assert_int_equal(
                agoq_rmsnorm_fwd_pack(NULL, &vwant, NULL, NULL, eps, round_bf16, NULL, &y2.view, &q),
                AGOQ_OK);
            assert_memory_equal(p.data, q.data, p.layout.bytes);
            assert_memory_equal(y.data, y2.data, sizeof want);
            agoq_view in_place = vx;
            assert_int_equal(agoq_rmsnorm_fwd_pack(NULL, &vx, &residual.view, NULL, eps, round_bf16,
                                                   &in_place, &y.view, &q),
                             AGOQ_OK);
            assert_memory_equal(in, sum_data, sizeof in);
            assert_memory_equal(y.data, y2.data, sizeof want);
            free(y.data), free(y2.data), free(p.data), free(q.data);
        }
    }
    free(x.data), free(residual.data);
}

/* FP64 gradients of RMSNorm of the decoded rows; dgamma is added to, and not computed when NULL. */
static void rmsnorm_backward(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof some_cols / sizeof *some_cols; k++) {
        const int64_t cols = some_cols[k];
        for (int w = 0; w < 5; w++) {
            matrix x = matrix_random(ROWS, cols, 7), gamma = matrix_random(1, cols, 8),
                   dy = matrix_random(ROWS, cols, 9);
            matrix dx = matrix_new(ROWS, cols), want = matrix_new(ROWS, cols), dgamma = matrix_new(1, cols);
            matrix want_dgamma = matrix_new(1, cols);
            double *sums = calloc((size_t)cols, sizeof *sums);
            agoq_packed p = packed_new(widths[w], ROWS, cols);
            assert_int_equal(agoq_pack(NULL, &x.view, NULL, &p), AGOQ_OK);
            assert_int_equal(agoq_unpack(NULL, &p, &x.view), AGOQ_OK);
            for (int64_t r = 0; r < ROWS; r++) {
                const float *row = x.data + r * cols, *d = dy.data + r * cols;
                const double inv = inverse_rms(row, cols);
                double dot = 0;
                for (int64_t c = 0; c < cols; c++)
                    dot += (double)d[c] * (double)gamma.data[c] * (double)row[c] * inv / (double)cols;
                for (int64_t c = 0; c < cols; c++) {
                    const double xhat = (double)row[c] * inv;
                    want.data[r * cols + c] =
                        (float)(inv * ((double)d[c] * (double)gamma.data[c] - xhat * dot));
                    sums[c] += (double)d[c] * xhat;
                }
            }
            for (int64_t c = 0; c < cols; c++) {
                dgamma.data[c] = (float)c; /* added to, not overwritten */
                want_dgamma.data[c] = (float)(sums[c] + (double)c);
            }
            assert_int_equal(
                agoq_rmsnorm_bwd_packed(NULL, &p, gamma.data, eps, 0, &dy.view, &dx.view, dgamma.data),
                AGOQ_OK);
            if (cols > 1) assert_true(relative_error(want.data, dx.data, ROWS * cols) < 1e-6);
            assert_true(relative_error(want_dgamma.data, dgamma.data, cols) < 1e-6);
            assert_int_equal(agoq_rmsnorm_bwd_packed(NULL, &p, gamma.data, eps, 1, &dy.view, &dx.view, NULL),
                             AGOQ_OK);
            if (cols > 1) assert_true(relative_error(want.data, dx.data, ROWS * cols) < 4e-3);
            is_bf16(&dx);
            free(x.data), free(gamma.data), free(dy.data), free(dx.data), free(want.data), free(dgamma.data);
            free(want_dgamma.data), free(sums), free(p.data);
        }
    }
}

static double loss_of(const float *x, const double *shift, const float *gamma, const float *dy,
                      int64_t cols) {
    double sum = 0, loss = 0;
    for (int64_t c = 0; c < cols; c++) sum += ((double)x[c] + shift[c]) * ((double)x[c] + shift[c]);
    for (int64_t c = 0; c < cols; c++) {
        const double y =
            ((double)x[c] + shift[c]) / sqrt(sum / (double)cols + (double)eps) * (double)gamma[c];
        loss += y * (double)dy[c];
    }
    return loss;
}

static void rmsnorm_finite_difference(void **state) {
    (void)state;
    enum { COLS = 70 };
    matrix x = matrix_random(1, COLS, 10), gamma = matrix_random(1, COLS, 11),
           dy = matrix_random(1, COLS, 12);
    matrix dx = matrix_new(1, COLS);
    agoq_packed p = packed_new(16, 1, COLS);
    assert_int_equal(agoq_pack(NULL, &x.view, NULL, &p), AGOQ_OK);
    assert_int_equal(agoq_rmsnorm_bwd_packed(NULL, &p, gamma.data, eps, 0, &dy.view, &dx.view, NULL),
                     AGOQ_OK);
    for (int c = 0; c < COLS; c++) {
        double shift[COLS] = {0};
        shift[c] = 1e-5;
        const double up = loss_of(x.data, shift, gamma.data, dy.data, COLS);
        shift[c] = -1e-5;
        const double slope = (up - loss_of(x.data, shift, gamma.data, dy.data, COLS)) / 2e-5;
        assert_true(fabs(slope - (double)dx.data[c]) < 1e-5);
    }
    free(x.data), free(gamma.data), free(dy.data), free(dx.data), free(p.data);
}

static double silu(double g) {
    return g / (1 + exp(-g));
}

static void swiglu_forward_backward(void **state) {
    (void)state;
    const double h = 1e-6;
    for (size_t k = 0; k < sizeof some_cols / sizeof *some_cols; k++) {
        const int64_t cols = some_cols[k], n = 5 * cols;
        for (int w = 0; w < 5; w++) {
            matrix g = matrix_random(5, cols, 13), u = matrix_random(5, cols, 14),
                   d = matrix_random(5, cols, 15);
            matrix want = matrix_new(5, cols), want_g = matrix_new(5, cols), want_u = matrix_new(5, cols);
            matrix y = matrix_new(5, cols), again = matrix_new(5, cols), dg = matrix_new(5, cols),
                   du = matrix_new(5, cols);
            agoq_packed pg = packed_new(widths[w], 5, cols), pu = packed_new(widths[w], 5, cols);
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

/* Gates far out: no NaN, no overflow, silu tends to g and to 0. */
static void swiglu_extremes(void **state) {
    (void)state;
    float g[6] = {1e30f, -1e30f, 100.0f, -100.0f, 0.0f, -0.0f}, u[6] = {1, 1, 1, 1, 1, 1}, y[6];
    const float want[6] = {1e30f, 0, 100, 0, 0, 0};
    agoq_view vg = {g, AGOQ_DTYPE_F32, 1, 6, 6}, vu = vg, vy = vg;
    vu.data = u, vy.data = y;
    agoq_packed pg = packed_new(16, 1, 6), pu = packed_new(16, 1, 6);
    assert_int_equal(agoq_swiglu_fwd_pack(NULL, &vg, &vu, 0, &vy, &pg, &pu), AGOQ_OK);
    for (int i = 0; i < 6; i++) assert_true(fabsf(y[i] - want[i]) <= 1e-6f * want[i] + 1e-30f);
    free(pg.data), free(pu.data);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rmsnorm_forward),
                                       cmocka_unit_test(rmsnorm_recompute),
                                       cmocka_unit_test(rmsnorm_residual),
                                       cmocka_unit_test(rmsnorm_backward),
                                       cmocka_unit_test(rmsnorm_finite_difference),
                                       cmocka_unit_test(swiglu_forward_backward),
                                       cmocka_unit_test(swiglu_extremes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
