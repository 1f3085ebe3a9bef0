/* 8-bit gradients: stochastic rounding keyed on every field, special values, partial reads, squared norm and
 * the local sum of QuanGrad. Errors and biases are in test_accuracy.c, memory in test_grad_placement.c. */
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

static agoq_grad grad_new(int64_t n) {
    agoq_grad g = {malloc((size_t)n + 1), malloc((size_t)(agoq_grad_blocks(n) + 1) * sizeof(float)), n,
                   AGOQ_GRAD_E4M3};
    assert_non_null(g.codes);
    assert_non_null(g.scales);
    assert_int_equal(agoq_grad_zero(NULL, &g), AGOQ_OK);
    return g;
}

static void grad_free(agoq_grad *g) {
    free(g->codes), free(g->scales);
}

static int same(const agoq_grad *a, const agoq_grad *b) {
    return memcmp(a->codes, b->codes, (size_t)a->n) == 0 &&
           memcmp(a->scales, b->scales, (size_t)agoq_grad_blocks(a->n) * sizeof(float)) == 0;
}

static agoq_grad keyed(const float *x, int64_t n, const agoq_key *key) {
    agoq_grad g = grad_new(n);
    assert_int_equal(agoq_grad_accumulate(NULL, x, AGOQ_DTYPE_F32, key, &g), AGOQ_OK);
    return g;
}

static void every_key_field_matters(void **state) {
    (void)state;
    enum { COUNT = 1000 };
    float x[COUNT];
    uint64_t seed = 3;
    for (int i = 0; i < COUNT; i++) x[i] = gauss(&seed);
    const agoq_key base = {1, 2, 3, 4, 5, 64};
    agoq_grad want = keyed(x, COUNT, &base), again = keyed(x, COUNT, &base);
    assert_true(same(&want, &again));
    grad_free(&again);
    agoq_key keys[10];
    for (int i = 0; i < 10; i++) keys[i] = base;
    keys[0].seed ^= 1, keys[1].seed ^= 1ull << 63, keys[2].tensor ^= 1, keys[3].tensor ^= 1ull << 63;
    keys[4].step ^= 1, keys[5].step ^= 1ull << 40, keys[6].microbatch ^= 1, keys[7].replica ^= 1;
    keys[8].offset += 1, keys[9].offset += 1ll << 40;
    for (int i = 0; i < 10; i++) {
        agoq_grad other = keyed(x, COUNT, &keys[i]);
        int differ = 0;
        for (int j = 0; j < COUNT; j++) differ += other.codes[j] != want.codes[j];
        assert_true(differ > COUNT / 4); /* independent bits, not one changed word */
        grad_free(&other);
    }
    grad_free(&want);
}

/* A tensor in two shards, cut at a block, rounds as the whole does. */
static void shards_round_as_the_whole(void **state) {
    (void)state;
    enum { COUNT = 1000, CUT = 384 };
    float x[COUNT];
    uint64_t seed = 9;
    for (int i = 0; i < COUNT; i++) x[i] = gauss(&seed);
    agoq_key key = {1, 2, 3, 4, 5, 7};
    agoq_grad whole = keyed(x, COUNT, &key), left = keyed(x, CUT, &key);
    key.offset += CUT;
    agoq_grad right = keyed(x + CUT, COUNT - CUT, &key);
    assert_memory_equal(whole.codes, left.codes, CUT);
    assert_memory_equal(whole.codes + CUT, right.codes, COUNT - CUT);
    grad_free(&whole), grad_free(&left), grad_free(&right);
}

static void special_values(void **state) {
    (void)state;
    enum { COUNT = 300 };
    float x[COUNT] = {0}, y[COUNT];
    uint32_t nonfinite = 0;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &nonfinite};
    agoq_grad g = grad_new(COUNT);
    for (int i = 0; i < COUNT; i++) x[i] = i % 2 ? 1.0f : -0.0f;
    x[130] = INFINITY;
    for (int i = 256; i < COUNT; i++) x[i] = 447.0f * 0x1p-126f;
    assert_int_equal(agoq_grad_accumulate(&exec, x, AGOQ_DTYPE_F32, NULL, &g), AGOQ_OK);
    assert_int_equal(nonfinite, 1);
    assert_int_equal(agoq_grad_read(NULL, &g, 0, COUNT, 2.0f, y), AGOQ_OK);
    const uint32_t nan_bits = 0x7FC00000, zero = 0;
    for (int i = 0; i < 128; i++) assert_true(y[i] == (i % 2 ? 2.0f : 0.0f) && !signbit(y[i]));
    for (int i = 128; i < 256; i++) assert_memory_equal(&y[i], &nan_bits, 4);
    for (int i = 256; i < COUNT; i++) assert_memory_equal(&y[i], &zero, 4);
    double norm = 0;
    assert_int_equal(agoq_grad_sqnorm(NULL, &g, &norm), AGOQ_OK);
    assert_true(isnan(norm));
    x[130] = 0.0f; /* once lost, a block stays lost until it is zeroed */
    assert_int_equal(agoq_grad_accumulate(&exec, x, AGOQ_DTYPE_F32, NULL, &g), AGOQ_OK);
    assert_int_equal(nonfinite, 2);
    assert_true(isnan(g.scales[1]));
    grad_free(&g);
    agoq_grad empty = {.n = 0};
    assert_int_equal(agoq_grad_zero(NULL, &empty), AGOQ_OK);
    assert_int_equal(agoq_grad_accumulate(NULL, NULL, AGOQ_DTYPE_F32, NULL, &empty), AGOQ_OK);
    assert_int_equal(agoq_grad_read(NULL, &empty, 0, 0, 1.0f, NULL), AGOQ_OK);
}

static void reads_and_norm(void **state) {
    (void)state;
    enum { COUNT = 40000 };
    float *x = malloc(COUNT * sizeof *x), *all = malloc(COUNT * sizeof *all), part[400];
    uint16_t *half = malloc(COUNT * sizeof *half);
    uint64_t seed = 12;
    for (int i = 0; i < COUNT; i++)
        half[i] = agoqk_bf16_encode(gauss(&seed)), x[i] = agoqk_bf16_decode(half[i]);
    agoq_grad g = keyed(x, COUNT, NULL), h = grad_new(COUNT);
    assert_int_equal(agoq_grad_accumulate(NULL, half, AGOQ_DTYPE_BF16, NULL, &h), AGOQ_OK);
    assert_true(same(&g, &h));
    assert_int_equal(agoq_grad_read(NULL, &g, 0, COUNT, 0.25f, all), AGOQ_OK);
    assert_true(all[5] != 0.0f && fabsf(all[5] - 0.25f * x[5]) < 0.02f * fabsf(x[5]) + 0.01f);
    for (int begin = 0; begin < 300; begin += 37) {
        for (int count = 0; count < 400; count += 57) {
            part[count] = -7.0f;
            assert_int_equal(agoq_grad_read(NULL, &g, begin, count, 0.25f, part), AGOQ_OK);
            assert_memory_equal(part, all + begin, (size_t)count * 4);
            assert_true(part[count] == -7.0f);
        }
    }
    double want = 1.0, norm = 1.0; /* added to */
    for (int i = 0; i < COUNT; i++) want += 16.0 * (double)all[i] * (double)all[i];
    assert_int_equal(agoq_grad_sqnorm(NULL, &g, &norm), AGOQ_OK);
    assert_true(fabs(norm / want - 1) < 1e-7); /* all[] was rounded to float */
    free(x), free(all), free(half);
    grad_free(&g), grad_free(&h);
}

/* out32 is the fp32 sum in order, out8 its nearest encoding, also in place over an input. */
static void reduce_is_the_sum_in_order(void **state) {
    (void)state;
    enum { COUNT = 1000, RANKS = 5 };
    agoq_grad in[RANKS];
    float y[RANKS][COUNT], want[COUNT], got[COUNT];
    uint64_t seed = 33;
    for (int r = 0; r < RANKS; r++) {
        float x[COUNT];
        for (int i = 0; i < COUNT; i++) x[i] = gauss(&seed) * (r == 1 ? 100.0f : 1.0f);
        in[r] = keyed(x, COUNT, NULL);
        assert_int_equal(agoq_grad_read(NULL, &in[r], 0, COUNT, 1.0f, y[r]), AGOQ_OK);
    }
    for (int i = 0; i < COUNT; i++) {
        float sum = y[0][i];
        for (int r = 1; r < RANKS; r++) sum += y[r][i];
        want[i] = 0.2f * sum;
    }
    assert_int_equal(agoq_grad_reduce(NULL, in, RANKS, 0.2f, NULL, got), AGOQ_OK);
    assert_memory_equal(got, want, sizeof want);
    agoq_grad encoded = keyed(want, COUNT, NULL), out = grad_new(COUNT);
    assert_int_equal(agoq_grad_reduce(NULL, in, RANKS, 0.2f, &out, NULL), AGOQ_OK);
    assert_true(same(&out, &encoded));
    assert_int_equal(agoq_grad_reduce(NULL, in, RANKS, 0.2f, &in[3], NULL), AGOQ_OK);
    assert_true(same(&in[3], &encoded));
    assert_int_equal(agoq_grad_reduce(NULL, in, 0, 1.0f, &out, NULL), AGOQ_E_INVAL);
    assert_int_equal(agoq_grad_reduce(NULL, in, 1, 1.0f, &out, got), AGOQ_E_INVAL);
    assert_int_equal(agoq_grad_reduce(NULL, in, 1, 1.0f, NULL, NULL), AGOQ_E_INVAL);
    for (int r = 0; r < RANKS; r++) grad_free(&in[r]);
    grad_free(&encoded), grad_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_key_field_matters),
                                       cmocka_unit_test(shards_round_as_the_whole),
                                       cmocka_unit_test(special_values), cmocka_unit_test(reads_and_norm),
                                       cmocka_unit_test(reduce_is_the_sum_in_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
