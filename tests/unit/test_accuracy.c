/* Errors that docs/FORMATS.md quotes, held here. Gradients: the sums of 1 and 64 micro-batches of five kinds
 * against an independent simulation (block 128) and without bias, the sum of 64 replicas, each code unbiased.
 * Activations: every width on five distributions against the same simulation, stochastic rounding unbiased.
 * bench/accuracy.c prints the whole tables from the same functions. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/accuracy.h"

enum { N = 98304, N_COUNTS = 7 };

/* Percent, of an independent simulation; 0: it says nothing. */
typedef struct expected {
    acc_case kind;
    agoq_grad_format format;
    int stochastic, staged;
    double at_1, at_64, bias;
} expected;

static const expected sums[] = {
    {ACC_NOISE, AGOQ_GRAD_E4M3, 0, 1, 2.57, 14.8, -1.7},  {ACC_NOISE, AGOQ_GRAD_E4M3, 1, 1, 3.65, 20.9, 0},
    {ACC_SIGNAL, AGOQ_GRAD_E4M3, 0, 1, 2.57, 12.8, -1.4}, {ACC_SIGNAL, AGOQ_GRAD_E4M3, 1, 1, 3.64, 17.2, 0},
    {ACC_HEAVY, AGOQ_GRAD_E4M3, 0, 1, 2.05, 10.1, -0.9},  {ACC_HEAVY, AGOQ_GRAD_E4M3, 1, 1, 2.91, 14.1, 0},
    {ACC_BURST, AGOQ_GRAD_E4M3, 0, 1, 2.56, 24.6, -1.9},  {ACC_BURST, AGOQ_GRAD_E4M3, 1, 1, 3.64, 22.0, 0},
    {ACC_FROZEN, AGOQ_GRAD_E4M3, 0, 1, 2.65, 64.3, -64},  {ACC_FROZEN, AGOQ_GRAD_E4M3, 1, 1, 3.76, 18.0, 0},
    {ACC_NOISE, AGOQ_GRAD_E5M2, 0, 1, 5.14, 30.2, -6.1},  {ACC_SIGNAL, AGOQ_GRAD_E5M2, 1, 1, 0, 0, 0},
    {ACC_FROZEN, AGOQ_GRAD_E5M2, 0, 1, 0, 82.0, -82},     {ACC_NOISE, AGOQ_GRAD_INT8, 0, 1, 0.65, 3.67, 0},
    {ACC_HEAVY, AGOQ_GRAD_INT8, 0, 1, 1.60, 7.12, 0},     {ACC_BURST, AGOQ_GRAD_INT8, 1, 1, 0, 0, 0},
    {ACC_NOISE, AGOQ_GRAD_E4M3, 0, 4, 0, 7.5, 0},         {ACC_SIGNAL, AGOQ_GRAD_E4M3, 0, 8, 0, 4.8, 0},
};

/* Within 5 %, the draw of the data included. Stochastic sums have no bias: 0.1 % and what the estimate is
 * uncertain by. */
static void sums_of_micro_batches(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof sums / sizeof *sums; i++) {
        const expected *e = &sums[i];
        acc_result r[N_COUNTS];
        assert_int_equal(
            acc_accumulate(e->kind, (acc_way){e->format, e->stochastic, e->staged}, N, r, N_COUNTS), AGOQ_OK);
        const double first = 100 * r[0].error, last = 100 * r[N_COUNTS - 1].error;
        const double bias = 100 * r[N_COUNTS - 1].bias, sure = 100 * r[N_COUNTS - 1].bias_error;
        print_message("%s, %s %s: %.2f, %.2f %%, bias %+.3f (%.3f) %%\n", acc_case_names[e->kind],
                      agoq_grad_format_name(e->format), e->stochastic ? "SR" : "RN", first, last, bias, sure);
        if (e->at_1 > 0) assert_true(fabs(first / e->at_1 - 1) < 0.05);
        if (e->at_64 > 0) assert_true(fabs(last / e->at_64 - 1) < 0.05);
        if (e->stochastic) assert_true(fabs(bias) < 0.1 + 2 * sure && sure < 0.3);
        if (e->bias < 0) assert_true(fabs(bias - e->bias) < 1 - 0.1 * e->bias && bias < -4 * sure);
    }
}

/* Bits of micro-batches and of replicas are independent: the error of the sum of 64 roundings of the same
 * number is that of one divided by 8. With equal bits it would not fall at all. */
static void bits_are_independent(void **state) {
    (void)state;
    enum { COUNT = 8192, TIMES = 64 };
    static float x[COUNT], y[COUNT], sum[COUNT];
    static uint8_t codes[COUNT];
    static float scales[COUNT / 128];
    uint64_t seed = 4;
    for (int i = 0; i < COUNT; i++) x[i] = gauss(&seed);
    for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
        for (int field = 0; field < 3; field++) {
            agoq_grad g = {codes, scales, COUNT, (agoq_grad_format)f};
            double one = 0;
            memset(sum, 0, sizeof sum);
            for (uint32_t k = 0; k < TIMES; k++) {
                const agoq_key key = {1, 2, field == 2 ? k : 3, field == 0 ? k : 4, field == 1 ? k : 5, 0};
                assert_int_equal(agoq_grad_zero(NULL, &g), AGOQ_OK);
                assert_int_equal(agoq_grad_accumulate(NULL, x, AGOQ_DTYPE_F32, &key, &g), AGOQ_OK);
                assert_int_equal(agoq_grad_read(NULL, &g, 0, COUNT, 1.0f, y), AGOQ_OK);
                one += relative_error(x, y, COUNT) / TIMES;
                for (int i = 0; i < COUNT; i++) sum[i] += y[i] / TIMES;
            }
            const double ratio = 8 * relative_error(x, sum, COUNT) / one;
            print_message("%s, field %d: %.3f of what independent bits give\n",
                          agoq_grad_format_name(g.format), field, ratio);
            assert_true(fabs(ratio - 1) < 0.1);
        }
    }
}

/* Values at every distance between two codes, in every format: the mean over many keys is the value, within
 * four standard errors. */
static void gradients_are_unbiased(void **state) {
    (void)state;
    enum { KEYS = 8000, COUNT = 16 };
    uint64_t seed = 8;
    for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
        float x[COUNT], y[COUNT], scale;
        uint8_t codes[COUNT];
        double sum[COUNT] = {0}, squares[COUNT] = {0};
        agoq_grad g = {codes, &scale, COUNT, (agoq_grad_format)f};
        for (int i = 0; i < COUNT; i++)
            x[i] = gauss(&seed) * exp2f((float)(f == AGOQ_GRAD_INT8 ? 3 - i % 6 : -i));
        x[0] = f == AGOQ_GRAD_INT8 ? 127.0f : 448.0f; /* scale a power of two: x[0] is exact */
        for (uint64_t k = 0; k < KEYS; k++) {
            const agoq_key key = {77, 5, k, 0, 0, 3};
            assert_int_equal(agoq_grad_zero(NULL, &g), AGOQ_OK);
            assert_int_equal(agoq_grad_accumulate(NULL, x, AGOQ_DTYPE_F32, &key, &g), AGOQ_OK);
            assert_int_equal(agoq_grad_read(NULL, &g, 0, COUNT, 1.0f, y), AGOQ_OK);
            for (int i = 0; i < COUNT; i++) {
                const double d = (double)y[i] - (double)x[i];
                sum[i] += d, squares[i] += d * d;
            }
        }
        for (int i = 0; i < COUNT; i++) {
            assert_true(fabs(sum[i]) <= 4 * sqrt(squares[i]));
            assert_true(i == 0 ? squares[i] == 0 : squares[i] > 0);
        }
    }
}

/* ---- activations ---- */

enum { ROWS = 256, COLS = 4096 };

static void widths_on_distributions(void **state) {
    (void)state;
    static const struct {
        act_case kind;
        double at[5]; /* percent at 4, 5, 6, 8 bits and in CODE4, of an independent simulation */
    } rows[] = {{ACT_NORMAL, {9.50, 4.73, 2.36, 0.59, 8.64}}, {ACT_LAPLACE, {12.4, 0, 0, 0, 10.38}},
                {ACT_CHANNELS, {15.6, 0, 4.9, 0, 12.7}},      {ACT_SILU_UP, {15.9, 0, 0, 0, 12.9}},
                {ACT_SILU, {12.9, 0, 0, 0, 10.52}},           {ACT_SHIFTED, {9.3, 0, 0, 0, 8.44}}};
    static const int formats[] = {4, 5, 6, 8, AGOQ_FORMAT_CODE4};
    float *x = malloc((size_t)ROWS * COLS * sizeof *x);
    assert_non_null(x);
    for (size_t k = 0; k < sizeof rows / sizeof *rows; k++) {
        act_fill(rows[k].kind, x, ROWS, COLS);
        for (int b = 0; b < 5; b++) {
            acc_result r;
            assert_int_equal(act_error(x, ROWS, COLS, formats[b], NULL, &r), AGOQ_OK);
            print_message("%s, %s: %.3f %%\n", act_case_names[rows[k].kind], agoq_format_of(formats[b])->name,
                          100 * r.error);
            /* channels are drawn 64 times: their error is not known better than to a few percent */
            const double within = rows[k].kind == ACT_CHANNELS ? 0.05 : 0.02;
            if (rows[k].at[b] > 0) assert_true(fabs(100 * r.error / rows[k].at[b] - 1) < within);
        }
    }
    free(x);
}

static void activations_are_unbiased(void **state) {
    (void)state;
    static const int formats[] = {4, 5, 6, 8, 16, AGOQ_FORMAT_CODE4};
    static const agoq_key key = {1, 2, 3, 4, 5, 6};
    float *x = malloc((size_t)ROWS * COLS * sizeof *x);
    assert_non_null(x);
    uint64_t seed = 21;
    /* one element of each block sets the scale, to 1 at 4 bits, and nothing comes near the end that is
     * clipped
     */
    for (int i = 0; i < ROWS * COLS; i++)
        x[i] = i % AGOQ_BLOCK == 0 ? -8.0f : fmaxf(fminf(2.0f * gauss(&seed), 6.9f), -6.9f);
    for (int b = 0; b < 6; b++) {
        acc_result nearest, r;
        assert_int_equal(act_error(x, ROWS, COLS, formats[b], NULL, &nearest), AGOQ_OK);
        assert_int_equal(act_error(x, ROWS, COLS, formats[b], &key, &r), AGOQ_OK);
        print_message("%s SR: %.3f %%, bias %+.4f (%.4f) %%\n", agoq_format_of(formats[b])->name,
                      100 * r.error, 100 * r.bias, 100 * r.bias_error);
        assert_true(fabs(r.bias) < 4 * r.bias_error);
        assert_true(r.error > 1.35 * nearest.error && r.error < 1.45 * nearest.error);
    }
    free(x);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_of_micro_batches),    cmocka_unit_test(bits_are_independent),
        cmocka_unit_test(gradients_are_unbiased),   cmocka_unit_test(widths_on_distributions),
        cmocka_unit_test(activations_are_unbiased),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
