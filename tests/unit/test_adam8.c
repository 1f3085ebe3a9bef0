/* 8-bit AdamW against an FP64 AdamW on the same gradients: close over many steps and able to minimise as
 * well; state and special blocks as docs/FORMATS.md says. */
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

enum { N = 3000, BLOCKS = (N + 255) / 256 };

typedef struct adam8_store {
    uint8_t m[N], v[N];
    float m_absmax[BLOCKS], v_absmax[BLOCKS];
    agoq_adam8 state;
} adam8_store;

static adam8_store *store_new(void) {
    adam8_store *s = malloc(sizeof *s);
    assert_non_null(s);
    s->state = (agoq_adam8){s->m, s->v, s->m_absmax, s->v_absmax, N};
    assert_int_equal(agoq_adam8_init(NULL, &s->state), AGOQ_OK);
    return s;
}

static const agoq_adam_params usual = {1e-2f, 0.9f, 0.95f, 1e-8f, 0.1f, 1, 1.0f};

/* The reference, textbook order, in double. */
static void adamw64(const agoq_adam_params *a, double g, double *p, double *m, double *v) {
    g *= (double)a->grad_multiplier;
    *m = (double)a->beta1 * *m + (1 - (double)a->beta1) * g;
    *v = (double)a->beta2 * *v + (1 - (double)a->beta2) * g * g;
    const double m_hat = *m / (1 - pow((double)a->beta1, (double)a->step));
    const double v_hat = *v / (1 - pow((double)a->beta2, (double)a->step));
    *p -= (double)a->lr * (m_hat / (sqrt(v_hat) + (double)a->eps) + (double)a->weight_decay * *p);
}

static agoq_status step32(const agoq_exec *exec, const agoq_adam_params *a, const float *g, float *p,
                          agoq_adam8 *state) {
    return agoq_adam8_step(exec, a, &(agoq_adam_source){.grad = g, .dtype = AGOQ_DTYPE_F32},
                           &(agoq_adam_target){.master = p}, state);
}

/* Step 1 starts from exact zeros, so it is exact up to fp32 rounding. */
static void first_step_is_exact(void **state) {
    (void)state;
    adam8_store *s = store_new();
    float p[N], g[N];
    double want[N], m = 0, v = 0;
    uint64_t seed = 1;
    for (int i = 0; i < N; i++) want[i] = (double)(p[i] = gauss(&seed)), g[i] = gauss(&seed) * 1e-3f;
    agoq_adam_params a = usual;
    a.grad_multiplier = 0.5f;
    assert_int_equal(step32(NULL, &a, g, p, &s->state), AGOQ_OK);
    for (int i = 0; i < N; i++) {
        m = v = 0;
        adamw64(&a, (double)g[i], &want[i], &m, &v);
        assert_true(fabs((double)p[i] - want[i]) < 1e-6);
    }
    free(s);
}

/* Noisy gradients with a mean, scales spread over decades: after 200 steps the moves differ by a few percent.
 */
static void follows_adamw(void **state) {
    (void)state;
    adam8_store *s = store_new();
    static float p[N], g[N], start[N], scale[N], mean[N], moved[N], want_moved[N];
    static double want[N], m[N], v[N];
    uint64_t seed = 2;
    for (int i = 0; i < N; i++) {
        want[i] = (double)(start[i] = p[i] = gauss(&seed));
        scale[i] = expf(gauss(&seed)), mean[i] = gauss(&seed);
    }
    agoq_adam_params a = usual;
    a.weight_decay = 0.0f;
    for (a.step = 1; a.step <= 200; a.step++) {
        for (int i = 0; i < N; i++) {
            g[i] = scale[i] * (mean[i] + gauss(&seed));
            adamw64(&a, (double)g[i], &want[i], &m[i], &v[i]);
        }
        assert_int_equal(step32(NULL, &a, g, p, &s->state), AGOQ_OK);
    }
    for (int i = 0; i < N; i++)
        moved[i] = p[i] - start[i], want_moved[i] = (float)(want[i] - (double)start[i]);
    const double error = relative_error(want_moved, moved, N);
    print_message("moves differ by %.2f %%\n", 100 * error);
    assert_true(error < 0.05);
    free(s);
}

/* A quadratic bowl of noisy gradients, weights near 1e-3 beside weights near 0.3: ends as low as FP64 does.
 */
static void minimises_as_well(void **state) {
    (void)state;
    adam8_store *s = store_new();
    static float p[N], g[N], target[N];
    static double p64[N], m[N], v[N];
    uint64_t seed = 3;
    for (int i = 0; i < N; i++) target[i] = gauss(&seed) * (i % 2 ? 0.3f : 1e-3f), p[i] = 0.0f;
    agoq_adam_params a = usual;
    a.weight_decay = 0.0f;
    double loss8 = 0, loss64 = 0;
    for (a.step = 1; a.step <= 600; a.step++) {
        a.lr = 1e-2f * (1 - (float)(a.step - 1) / 600.0f);
        for (int i = 0; i < N; i++) {
            const float noise = 0.1f * gauss(&seed);
            adamw64(&a, p64[i] - (double)target[i] + (double)noise, &p64[i], &m[i], &v[i]);
            g[i] = p[i] - target[i] + noise;
        }
        assert_int_equal(step32(NULL, &a, g, p, &s->state), AGOQ_OK);
    }
    for (int i = 0; i < N; i++) {
        loss8 += pow((double)p[i] - (double)target[i], 2);
        loss64 += pow(p64[i] - (double)target[i], 2);
    }
    print_message("loss %.3e, in FP64 %.3e\n", loss8, loss64);
    assert_true(loss8 < 1.1 * loss64);
    free(s);
}

/* A tiny gradient beside a huge one: its second moment is not flushed to zero, so its step stays bounded. */
static void small_beside_large(void **state) {
    (void)state;
    adam8_store *s = store_new();
    static float p[N], g[N];
    agoq_adam_params a = usual;
    a.weight_decay = 0.0f;
    for (int i = 0; i < N; i++) p[i] = 0.0f, g[i] = i % 2 ? 1e4f : 1e-2f;
    for (a.step = 1; a.step <= 50; a.step++) {
        static float before[N];
        memcpy(before, p, sizeof p);
        assert_int_equal(step32(NULL, &a, g, p, &s->state), AGOQ_OK);
        for (int i = 0; i < N; i++) {
            assert_true(fabsf(p[i] - before[i]) <= 1.5f * a.lr);
            assert_true(s->v[i] > 0);
        }
    }
    free(s);
}

static void special_blocks(void **state) {
    (void)state;
    adam8_store *s = store_new();
    static float p[N], g[N];
    uint32_t nonfinite = 0;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &nonfinite};
    for (int i = 0; i < N; i++) assert_true(s->m[i] == 127 && s->v[i] == 0);
    for (int i = 0; i < N; i++) p[i] = 1.0f, g[i] = 0.0f;
    g[300] = NAN; /* block 1; all other blocks stay zero */
    assert_int_equal(step32(&exec, &usual, g, p, &s->state), AGOQ_OK);
    assert_int_equal(nonfinite, 2); /* m and v of one block */
    for (int i = 0; i < N; i++) {
        assert_true(i == 300 ? isnan(p[i]) : p[i] == 1.0f - 1e-2f * 0.1f);
        assert_true(s->m[i] == 127 && s->v[i] == 0);
    }
    for (int b = 0; b < BLOCKS; b++) {
        assert_true(b == 1 ? isnan(s->m_absmax[b]) && isnan(s->v_absmax[b]) : s->m_absmax[b] == 0.0f);
    }
    agoq_adam8 empty = {NULL, NULL, NULL, NULL, 0};
    assert_int_equal(agoq_adam8_init(NULL, &empty), AGOQ_OK);
    const agoq_grad none = {.n = 0};
    assert_int_equal(
        agoq_adam8_step(NULL, &usual, &(agoq_adam_source){.grad8 = &none}, &(agoq_adam_target){0}, &empty),
        AGOQ_OK);
    free(s);
}

/* FP8 gradients are used as their decoded values. */
static void fp8_gradients(void **state) {
    (void)state;
    adam8_store *a = store_new(), *b = store_new();
    static float p[N], q[N], g[N];
    static uint8_t codes[N];
    static float scales[(N + 127) / 128];
    agoq_grad grad = {codes, scales, N, AGOQ_GRAD_E4M3};
    uint64_t seed = 4;
    for (int i = 0; i < N; i++) g[i] = gauss(&seed), p[i] = q[i] = gauss(&seed);
    assert_int_equal(agoq_grad_zero(NULL, &grad), AGOQ_OK);
    assert_int_equal(agoq_grad_accumulate(NULL, g, AGOQ_DTYPE_F32, NULL, &grad), AGOQ_OK);
    assert_int_equal(agoq_grad_read(NULL, &grad, 0, N, 1.0f, g), AGOQ_OK);
    assert_int_equal(agoq_adam8_step(NULL, &usual, &(agoq_adam_source){.grad8 = &grad},
                                     &(agoq_adam_target){.master = p}, &a->state),
                     AGOQ_OK);
    assert_int_equal(step32(NULL, &usual, g, q, &b->state), AGOQ_OK);
    assert_memory_equal(p, q, sizeof p);
    assert_memory_equal(a->m, b->m, sizeof a->m);
    assert_memory_equal(a->v, b->v, sizeof a->v);
    free(a), free(b);
}

static float round_half(float x, agoq_dtype dtype) {
    return dtype == AGOQ_DTYPE_BF16 ? agoqk_bf16_decode(agoqk_bf16_encode(x))
                                    : agoqk_f16_decode(agoqk_f16_encode(x));
}

/* 16-bit gradients are used as their values; beside a master, bf16 is the master rounded. */
static void sources_and_targets(void **state) {
    (void)state;
    static const agoq_dtype dtypes[] = {AGOQ_DTYPE_BF16, AGOQ_DTYPE_F16};
    for (int d = 0; d < 2; d++) {
        adam8_store *a = store_new(), *b = store_new();
        static float p[N], q[N], g[N];
        static uint16_t half[N], kept[N];
        uint64_t seed = 11;
        for (int i = 0; i < N; i++) {
            g[i] = round_half(gauss(&seed) * 1e-2f, dtypes[d]), p[i] = q[i] = gauss(&seed);
            half[i] = d ? agoqk_f16_encode(g[i]) : agoqk_bf16_encode(g[i]);
        }
        agoq_adam_params params = AGOQ_ADAM_PARAMS_INIT;
        assert_true(params.lr == 1e-3f && params.beta2 == 0.999f && params.step == 1);
        assert_int_equal(step32(NULL, &params, g, p, &a->state), AGOQ_OK);
        assert_int_equal(agoq_adam8_step(NULL, &params, &(agoq_adam_source){NULL, half, dtypes[d]},
                                         &(agoq_adam_target){q, kept, NULL}, &b->state),
                         AGOQ_OK);
        assert_memory_equal(p, q, sizeof p);
        assert_memory_equal(a->m, b->m, sizeof a->m);
        assert_memory_equal(a->v, b->v, sizeof a->v);
        for (int i = 0; i < N; i++) assert_int_equal(kept[i], agoqk_bf16_encode(p[i]));
        free(a), free(b);
    }
}

/* bf16 alone: steps far below a unit of the parameter are lost to nearest rounding and kept, on average, by
 * stochastic rounding. */
static void bf16_parameters(void **state) {
    (void)state;
    for (int stochastic = 0; stochastic < 2; stochastic++) {
        adam8_store *s = store_new();
        static uint16_t p[N];
        static float g[N];
        for (int i = 0; i < N; i++) p[i] = agoqk_bf16_encode(1.0f), g[i] = 1e-3f;
        agoq_adam_params a = usual;
        a.lr = 1e-4f, a.weight_decay = 0;
        for (int k = 0; k < 50; k++) {
            a.step = k + 1;
            const agoq_key key = {9, 4, (uint64_t)k, 0, 0, 0};
            assert_int_equal(agoq_adam8_step(NULL, &a, &(agoq_adam_source){NULL, g, AGOQ_DTYPE_F32},
                                             &(agoq_adam_target){NULL, p, stochastic ? &key : NULL},
                                             &s->state),
                             AGOQ_OK);
        }
        double mean = 0;
        for (int i = 0; i < N; i++) mean += (double)agoqk_bf16_decode(p[i]) / N;
        print_message("bf16 parameters, %s: mean %.6f\n", stochastic ? "stochastic" : "nearest", mean);
        if (stochastic)
            assert_true(fabs(mean - (1 - 50e-4)) < 3e-4);
        else
            assert_true(fabs(mean - 1.0) < 1e-9);
        free(s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources_and_targets), cmocka_unit_test(bf16_parameters),
        cmocka_unit_test(first_step_is_exact), cmocka_unit_test(follows_adamw),
        cmocka_unit_test(minimises_as_well),   cmocka_unit_test(small_beside_large),
        cmocka_unit_test(special_blocks),      cmocka_unit_test(fp8_gradients)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
