/* RMSNorm and LayerNorm rows, forward and backward, against FP64 formulas; at width 16 with bf16 values
 * nothing is lost by packing. What is recomputed from packed values equals, to the bit, what forward gives
 * for those values. Backward is also held by finite differences of the FP64 forward, which knows no
 * derivative. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/row_fixture.h"

enum { ROWS = 75 }; /* two chunks of 32 rows and an odd rest */
static const int64_t some_cols[] = {1, 5, 64, 96, 129, 300, 600};
enum { N_COLS = sizeof some_cols / sizeof *some_cols, N_DTYPES = 3 };
static const double eps = 1e-5;

/* Every combination of kind, weight, bias, their dtype, and roundings. */
typedef struct options {
    agoq_norm norm;
    matrix weight, bias;
    uint8_t weight_data[600 * 4], bias_data[600 * 4];
} options;

enum { N_OPTIONS = 2 * 2 * 2 * N_DTYPES };

static void options_make(options *o, int i, int64_t cols) {
    o->norm = (agoq_norm){.kind = (agoq_norm_kind)(i % 2), .weight_dtype = (agoq_dtype)(i / 8), .eps = 1e-5f};
    o->weight = matrix_random(1, cols, 2);
    o->bias = matrix_random(1, cols, 3);
    if (i / 2 % 2) o->norm.weight = o->weight_data;
    if (i / 4 % 2) o->norm.bias = o->bias_data;
    for (int64_t c = 0; c < cols; c++) {
        const agoq_dtype type = o->norm.weight_dtype;
        o->weight.data[c] = o->norm.weight ? round_to(type, o->weight.data[c]) : 1.0f;
        o->bias.data[c] = o->norm.bias ? round_to(type, o->bias.data[c]) : 0.0f;
        put_as(type, o->weight_data, c, o->weight.data[c]);
        put_as(type, o->bias_data, c, o->bias.data[c]);
    }
}

static void options_free(options *o) {
    free(o->weight.data), free(o->bias.data);
}

typedef struct stats {
    double mean, inv;
} stats;

static stats stats_of(agoq_norm_kind kind, const float *x, const double *shift, int64_t cols) {
    stats s = {0, 0};
    double sum = 0;
    for (int64_t c = 0; kind == AGOQ_NORM_LAYER && c < cols; c++)
        s.mean += ((double)x[c] + (shift ? shift[c] : 0)) / (double)cols;
    for (int64_t c = 0; c < cols; c++) {
        const double d = (double)x[c] + (shift ? shift[c] : 0) - s.mean;
        sum += d * d;
    }
    s.inv = 1 / sqrt(sum / (double)cols + eps);
    return s;
}

static void forward(void **state) {
    (void)state;
    for (int k = 0; k < N_COLS * N_OPTIONS; k++) {
        const int64_t cols = some_cols[k % N_COLS];
        options o;
        options_make(&o, k / N_COLS, cols);
        matrix x = matrix_random(3, cols, 1), want = matrix_new(3, cols), y = matrix_new(3, cols);
        for (int64_t r = 0; r < 3; r++) {
            const stats s = stats_of(o.norm.kind, x.data + r * cols, NULL, cols);
            for (int64_t c = 0; c < cols; c++) {
                const double xhat = ((double)x.data[r * cols + c] - s.mean) * s.inv;
                want.data[r * cols + c] = (float)(xhat * (double)o.weight.data[c] + (double)o.bias.data[c]);
            }
        }
        agoq_packed p = packed_new(16, 3, cols);
        const double far = cols > 1 ? 1e-6 : 1e-3; /* one column: LayerNorm of nothing but rounding */
        assert_int_equal(agoq_norm_fwd_pack(NULL, &x.view, NULL, &o.norm, NULL, &y.view, &p), AGOQ_OK);
        assert_true(relative_error(want.data, y.data, 3 * cols) < far || o.norm.kind == AGOQ_NORM_LAYER);
        for (int64_t i = 0; i < 3 * cols; i++)
            assert_true(fabs((double)(y.data[i] - want.data[i])) < 2e-6 * (1 + fabs((double)want.data[i])));
        o.norm.round_bf16 = 1;
        for (o.norm.round_first = 0; o.norm.round_first < 2; o.norm.round_first++) {
            assert_int_equal(agoq_norm_fwd_pack(NULL, &x.view, NULL, &o.norm, NULL, &y.view, &p), AGOQ_OK);
            for (int64_t i = 0; i < 3 * cols; i++)
                assert_true(fabs((double)(y.data[i] - want.data[i])) <
                            0.012 * (1 + fabs((double)want.data[i])));
            is_bf16(&y);
        }
        free(x.data), free(want.data), free(y.data), free(p.data), options_free(&o);
    }
}

/* xhat is rounded to y's type before the weight, or only y after it: by hand, from an fp32 xhat. */
static void order_of_rounding(void **state) {
    (void)state;
    enum { COLS = 200 };
    int differ = 0;
    for (int t = 0; t < N_DTYPES; t++) {
        for (int first = 0; first < 2; first++) {
            matrix x = matrix_random(1, COLS, 31), xhat = matrix_new(1, COLS), w = matrix_random(1, COLS, 32);
            agoq_packed p = packed_new(16, 1, COLS);
            uint8_t out[COLS * 4];
            agoq_view y = {out, (agoq_dtype)t, 1, COLS, COLS};
            agoq_norm norm = {.weight = w.data, .eps = 1e-5f, .round_first = first}, plain = {.eps = 1e-5f};
            assert_int_equal(agoq_norm_fwd_pack(NULL, &x.view, NULL, &plain, NULL, &xhat.view, &p), AGOQ_OK);
            assert_int_equal(agoq_norm_fwd_pack(NULL, &x.view, NULL, &norm, NULL, &y, &p), AGOQ_OK);
            for (int c = 0; c < COLS; c++) {
                const float once = round_to((agoq_dtype)t, xhat.data[c] * w.data[c]),
                            twice =
                                round_to((agoq_dtype)t, round_to((agoq_dtype)t, xhat.data[c]) * w.data[c]);
                assert_true(get_as((agoq_dtype)t, out, c) == (first ? twice : once));
                differ += once != twice;
            }
            free(x.data), free(xhat.data), free(w.data), free(p.data);
        }
    }
    assert_true(differ > 10); /* else this test compares nothing */
}

/* y of forward on values v equals y recomputed from packed v, whenever packing v loses nothing. */
static void recompute(void **state) {
    (void)state;
    for (int k = 0; k < N_COLS * N_FORMATS * N_OPTIONS; k++) {
        const int64_t cols = some_cols[k % N_COLS];
        const int format = formats[k / N_COLS % N_FORMATS];
        options o;
        options_make(&o, k / N_COLS / N_FORMATS, cols);
        o.norm.round_bf16 = k % 2;
        o.norm.round_first = k / 2 % 2;
        matrix x = matrix_random(4, cols, 3), y = matrix_new(4, cols), again = matrix_new(4, cols);
        agoq_packed p = packed_new(format, 4, cols), q = packed_new(format, 4, cols);
        assert_int_equal(agoq_pack(NULL, &x.view, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &x.view), AGOQ_OK);
        assert_int_equal(agoq_norm_fwd_pack(NULL, &x.view, NULL, &o.norm, NULL, &y.view, &q), AGOQ_OK);
        assert_memory_equal(q.data, p.data, p.layout.bytes);
        assert_int_equal(agoq_norm_fwd_packed(NULL, &q, &o.norm, &again.view), AGOQ_OK);
        assert_memory_equal(again.data, y.data, (size_t)(4 * cols) * 4);
        free(x.data), free(y.data), free(again.data), free(p.data), free(q.data), options_free(&o);
    }
}

/* sum = round(x + residual), in x's type; what is normalised and packed is the rounded sum, whether sum is
 * its own memory, x or residual. */
static void residual(void **state) {
    (void)state;
    enum { COLS = 200, N = 3 * COLS };
    matrix x = matrix_random(3, COLS, 5), other = matrix_random(3, COLS, 6);
    for (int k = 0; k < N_DTYPES * 4; k++) {
        const agoq_dtype type = (agoq_dtype)(k % N_DTYPES);
        const agoq_norm norm = {
            .kind = (agoq_norm_kind)(k / N_DTYPES % 2), .eps = 1e-5f, .round_bf16 = k / N_DTYPES / 2};
        float in[N] = {0}, more[N] = {0}, sum_data[N] = {0}, want[N];
        matrix y = matrix_new(3, COLS), y2 = matrix_new(3, COLS);
        agoq_packed p = packed_new(4, 3, COLS), q = packed_new(4, 3, COLS);
        for (int i = 0; i < N; i++) {
            put_as(type, in, i, x.data[i]);
            put_as(type, more, i, other.data[i]);
            const float added = get_as(type, in, i) + get_as(type, more, i);
            want[i] = round_to(type, norm.round_bf16 ? agoqk_bf16_round(added) : added);
        }
        agoq_view vx = {in, type, 3, COLS, COLS}, vmore = vx, sum = vx;
        vmore.data = more, sum.data = sum_data;
        assert_int_equal(agoq_norm_fwd_pack(NULL, &vx, &vmore, &norm, &sum, &y.view, &p), AGOQ_OK);
        for (int i = 0; i < N; i++) assert_true(get_as(type, sum_data, i) == want[i]);
        const agoq_view vwant = {want, AGOQ_DTYPE_F32, 3, COLS, COLS};
        assert_int_equal(agoq_norm_fwd_pack(NULL, &vwant, NULL, &norm, NULL, &y2.view, &q), AGOQ_OK);
        assert_memory_equal(p.data, q.data, p.layout.bytes);
        assert_memory_equal(y.data, y2.data, sizeof want);
        float in_copy[N];
        memcpy(in_copy, in, sizeof in);
        assert_int_equal(agoq_norm_fwd_pack(NULL, &vx, &vmore, &norm, &vx, &y.view, &q), AGOQ_OK);
        assert_memory_equal(in, sum_data, sizeof in);
        assert_memory_equal(y.data, y2.data, sizeof want);
        memcpy(in, in_copy, sizeof in);
        assert_int_equal(agoq_norm_fwd_pack(NULL, &vx, &vmore, &norm, &vmore, &y.view, &q), AGOQ_OK);
        assert_memory_equal(more, sum_data, sizeof in);
        assert_memory_equal(y.data, y2.data, sizeof want);
        assert_memory_equal(p.data, q.data, p.layout.bytes);
        free(y.data), free(y2.data), free(p.data), free(q.data);
    }
    free(x.data), free(other.data);
}

/* FP64 gradients of one row, added to the sums of columns. */
static void backward_row(const options *o, const float *x, const float *dy, int64_t cols, float *dx,
                         double *dweight, double *dbias) {
    const stats s = stats_of(o->norm.kind, x, NULL, cols);
    double m1 = 0, m2 = 0;
    for (int64_t c = 0; c < cols; c++) {
        const double g = (double)dy[c] * (double)o->weight.data[c], xhat = ((double)x[c] - s.mean) * s.inv;
        m1 += o->norm.kind == AGOQ_NORM_LAYER ? g / (double)cols : 0;
        m2 += g * xhat / (double)cols;
        dweight[c] += (double)dy[c] * xhat;
        dbias[c] += (double)dy[c];
    }
    for (int64_t c = 0; c < cols; c++) {
        const double g = (double)dy[c] * (double)o->weight.data[c], xhat = ((double)x[c] - s.mean) * s.inv;
        dx[c] = (float)(s.inv * (g - m1 - xhat * m2));
    }
}

/* dweight and dbias are added to, and left out when NULL; dx may be dy. */
static void backward(void **state) {
    (void)state;
    for (int k = 0; k < (N_COLS - 1) * N_OPTIONS; k++) {
        const int64_t cols = some_cols[k % (N_COLS - 1) + 1], n = ROWS * cols;
        options o;
        options_make(&o, k / (N_COLS - 1), cols);
        matrix x = matrix_random(ROWS, cols, 7), dy = matrix_random(ROWS, cols, 9),
               dx = matrix_new(ROWS, cols);
        matrix want = matrix_new(ROWS, cols), dw = matrix_new(1, cols), db = matrix_new(1, cols);
        double *sums = calloc((size_t)cols * 2, sizeof *sums);
        agoq_packed p = packed_new(formats[k % N_FORMATS], ROWS, cols);
        assert_non_null(sums);
        assert_int_equal(agoq_pack(NULL, &x.view, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &x.view), AGOQ_OK);
        for (int64_t r = 0; r < ROWS; r++)
            backward_row(&o, x.data + r * cols, dy.data + r * cols, cols, want.data + r * cols, sums,
                         sums + cols);
        for (int64_t c = 0; c < cols; c++) dw.data[c] = (float)c, db.data[c] = 1.0f;
        assert_int_equal(agoq_norm_bwd_packed(NULL, &p, &o.norm, &dy.view, &dx.view, dw.data, db.data),
                         AGOQ_OK);
        assert_true(relative_error(want.data, dx.data, n) < 2e-6);
        for (int64_t c = 0; c < cols; c++) {
            assert_true(fabs((double)dw.data[c] - sums[c] - (double)c) < 1e-5 * (10 + (double)c));
            assert_true(fabs((double)db.data[c] - sums[cols + c] - 1) < 2e-5);
        }
        o.norm.round_bf16 = 1;
        assert_int_equal(agoq_norm_bwd_packed(NULL, &p, &o.norm, &dy.view, &dx.view, NULL, NULL), AGOQ_OK);
        assert_true(relative_error(want.data, dx.data, n) < 4e-3);
        is_bf16(&dx);
        assert_int_equal(agoq_norm_bwd_packed(NULL, &p, &o.norm, &dy.view, &dy.view, NULL, db.data), AGOQ_OK);
        assert_memory_equal(dy.data, dx.data, (size_t)n * 4);
        free(x.data), free(dy.data), free(dx.data), free(want.data), free(dw.data), free(db.data);
        free(sums), free(p.data), options_free(&o);
    }
}

static double loss_of(const options *o, const float *x, const double *shift, const float *dy, int64_t cols) {
    const stats s = stats_of(o->norm.kind, x, shift, cols);
    double loss = 0;
    for (int64_t c = 0; c < cols; c++)
        loss += ((double)x[c] + shift[c] - s.mean) * s.inv * (double)o->weight.data[c] * (double)dy[c];
    return loss;
}

static void finite_difference(void **state) {
    (void)state;
    enum { COLS = 70 };
    for (int kind = 0; kind < 2; kind++) {
        options o;
        options_make(&o, 2 + kind, COLS);
        matrix x = matrix_random(1, COLS, 10), dy = matrix_random(1, COLS, 12), dx = matrix_new(1, COLS);
        agoq_packed p = packed_new(16, 1, COLS);
        assert_int_equal(agoq_pack(NULL, &x.view, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_norm_bwd_packed(NULL, &p, &o.norm, &dy.view, &dx.view, NULL, NULL), AGOQ_OK);
        for (int c = 0; c < COLS; c++) {
            double shift[COLS] = {0};
            shift[c] = 1e-5;
            const double up = loss_of(&o, x.data, shift, dy.data, COLS);
            shift[c] = -1e-5;
            const double slope = (up - loss_of(&o, x.data, shift, dy.data, COLS)) / 2e-5;
            assert_true(fabs(slope - (double)dx.data[c]) < 1e-5);
        }
        free(x.data), free(dy.data), free(dx.data), free(p.data), options_free(&o);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(forward),   cmocka_unit_test(order_of_rounding),
                                       cmocka_unit_test(recompute), cmocka_unit_test(residual),
                                       cmocka_unit_test(backward),  cmocka_unit_test(finite_difference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
