/* What a layer keeps, in every way of counting: the paper's Table 1 row by row, its totals and COAT's, closed
 * forms for other widths, published formulas of Megatron-LM, and bytes that were measured on a GPU. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model_cases.h"
#include "planner/model_internal.h"

typedef struct known {
    planner_shape shape;
    uint64_t t1_16, t1_coat, t1_agoq, t1_scaled, fused_16, fused[4]; /* bytes per token and layer */
} known;

/* hidden, ffn, layers, heads, kv_heads, vocab */
static const known models[] = {{{4096, 11008, 32, 32, 32, 32000, 0, 0, 0, 0, 0, 0},
                                186368,
                                109568,
                                58112,
                                58648,
                                131720,
                                {48472, 52248, 56024, 63576}},
                               {{5120, 13824, 40, 40, 40, 32000, 0, 0, 0, 0, 0, 0},
                                233472,
                                137216,
                                72704,
                                73376,
                                165032,
                                {60656, 65392, 70128, 79600}},
                               {{4096, 14336, 32, 32, 8, 128256, 0, 0, 0, 0, 0, 0},
                                212992,
                                122880,
                                61440,
                                62080,
                                139400,
                                {39616, 44224, 48832, 58048}},
                               {{8192, 22016, 48, 64, 8, 32000, 0, 0, 0, 0, 0, 0},
                                372736,
                                219136,
                                116224,
                                117296,
                                234760,
                                {68272, 75824, 83376, 98480}},
                               {{6656, 17920, 60, 52, 52, 32000, 0, 0, 0, 0, 0, 0},
                                303104,
                                178176,
                                94464,
                                95336,
                                214232,
                                {78800, 84944, 91088, 103376}},
                               {{2048, 8192, 16, 16, 16, 50304, 0, 0, 0, 0, 0, 0},
                                114688,
                                65536,
                                31744,
                                32096,
                                81992,
                                {27008, 29568, 32128, 37248}}};
#define N_MODELS (sizeof models / sizeof *models)

static planner_model model_of(const planner_shape *shape, planner_accounting accounting,
                              planner_storage storage) {
    planner_model m = model_of_shape(shape);
    m.run.seq = 2048;
    m.run.accounting = accounting;
    m.run.storage = storage;
    return m;
}

static uint64_t bytes_of(const planner_shape *shape, planner_accounting accounting, planner_storage storage,
                         int part, int bits) {
    const planner_model m = model_of(shape, accounting, storage);
    char why[200] = "";
    assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_OK);
    assert_string_equal(why, "");
    /* A whole sequence, so that no rounding hides: every form is linear in tokens. */
    const uint64_t bytes = planner_model_layer_bytes(&m, 2048, part, bits);
    assert_int_equal(bytes % 2048, 0);
    return bytes / 2048;
}

/* 1 U = 2 bytes per element of hidden. */
static void table_1_row_by_row(void **state) {
    (void)state;
    const planner_shape shape = {
        .hidden = 4096, .ffn = 16384, .layers = 32, .heads = 32, .kv_heads = 32, .vocab = 32000};
    static const planner_storage storages[3] = {PLANNER_STORE_16, PLANNER_STORE_COAT, PLANNER_STORE_PLAN};
    static const double units[3][PLANNER_N_PARTS] = {
        {1, 5, 1, 4, 1, 12, 4}, {1, 5, 1, 1, 0.5, 6, 2}, {0, 5, 0.25, 0.5, 0, 2, 0}};
    static const double totals[3] = {28, 16.5, 7.75};
    const double unit = 2 * 4096;
    for (int k = 0; k < 3; k++) {
        for (int part = 0; part < PLANNER_N_PARTS; part++)
            assert_int_equal(bytes_of(&shape, PLANNER_ACCOUNT_PAPER, storages[k], part, 4),
                             (uint64_t)(units[k][part] * unit));
        assert_int_equal(bytes_of(&shape, PLANNER_ACCOUNT_PAPER, storages[k], -1, 4),
                         (uint64_t)(totals[k] * unit));
    }
}

/* f = 8/3 h, the width for which COAT publishes 22.66 U and 13.33 U. */
static void units_of_coat(void **state) {
    (void)state;
    const planner_shape shape = {
        .hidden = 3072, .ffn = 8192, .layers = 32, .heads = 32, .kv_heads = 32, .vocab = 32000};
    const double unit = 2 * 3072;
    const double whole = (double)bytes_of(&shape, PLANNER_ACCOUNT_PAPER, PLANNER_STORE_16, -1, 16) / unit,
                 coat = (double)bytes_of(&shape, PLANNER_ACCOUNT_PAPER, PLANNER_STORE_COAT_OWN, -1, 8) / unit;
    assert_true(whole > 22.66 && whole < 22.67);
    assert_true(coat > 13.33 && coat < 13.34);
    /* Norm 1, act 4, RoPE 2 and attention 3, linear 3.33. */
    static const double parts[PLANNER_N_PARTS] = {[PLANNER_PART_NORMS] = 1,
                                                  [PLANNER_PART_ACT] = 4,
                                                  [PLANNER_PART_ATTENTION] = 5,
                                                  [PLANNER_PART_LINEAR] = 2,
                                                  [PLANNER_PART_FFN2] = 4.0 / 3};
    for (int p = 0; p < PLANNER_N_PARTS; p++)
        assert_int_equal(bytes_of(&shape, PLANNER_ACCOUNT_PAPER, PLANNER_STORE_COAT_OWN, p, 8),
                         (uint64_t)(parts[p] * unit + 0.5));
}

static void table_of_known_models(void **state) {
    (void)state;
    static const int bits[4] = {4, 5, 6, 8};
    for (size_t i = 0; i < N_MODELS; i++) {
        const known *k = &models[i];
        const uint64_t h = k->shape.hidden, f = k->shape.ffn, a = k->shape.heads,
                       kd = k->shape.kv_heads * (h / a);
        assert_int_equal(bytes_of(&k->shape, PLANNER_ACCOUNT_PAPER, PLANNER_STORE_16, -1, 16), k->t1_16);
        assert_int_equal(bytes_of(&k->shape, PLANNER_ACCOUNT_PAPER, PLANNER_STORE_COAT_OWN, -1, 8),
                         k->t1_coat);
        assert_int_equal(bytes_of(&k->shape, PLANNER_ACCOUNT_PAPER, PLANNER_STORE_PLAN, -1, 4), k->t1_agoq);
        assert_int_equal(bytes_of(&k->shape, PLANNER_ACCOUNT_PAPER_SCALES, PLANNER_STORE_PLAN, -1, 4),
                         k->t1_scaled);
        assert_int_equal(bytes_of(&k->shape, PLANNER_ACCOUNT_FUSED, PLANNER_STORE_16, -1, 16), k->fused_16);
        assert_int_equal(k->t1_16, 24 * h + 8 * f);
        assert_int_equal(k->t1_coat, 16 * h + 4 * f);
        assert_int_equal(k->t1_agoq, 10 * h + (3 * h + 2 * f) / 2);
        assert_int_equal(k->fused_16, 8 * h + 4 * h + 4 * kd + 6 * f + 4 * a + 8);
        for (int w = 0; w < 4; w++) {
            const uint64_t b = (uint64_t)bits[w];
            assert_int_equal(bytes_of(&k->shape, PLANNER_ACCOUNT_FUSED_14, PLANNER_STORE_PLAN, -1, bits[w]),
                             k->fused[w]);
            assert_int_equal(k->fused[w],
                             4 * h + 4 * kd + 4 * a + (2 * h + 2 * f) * b / 8 + (2 * h + 2 * f) / 128 * 2);
        }
    }
}

/* One H200, 4 layers, 32,768 tokens; per layer, and with a quarter of the final norm and the RoPE tables. */
static void measured_in_hugging_face(void **state) {
    (void)state;
    static const struct {
        int model;
        double layer, quarter;
    } measured[] = {{2, 200840, 209161}, {0, 186504, 194825}};
    for (int i = 0; i < 2; i++) {
        planner_model m =
            model_of(&models[measured[i].model].shape, PLANNER_ACCOUNT_HF_EAGER, PLANNER_STORE_16);
        planner_tensor end[PLANNER_MAX_TENSORS];
        uint32_t n;
        m.run.seq = 32768;
        const double tokens = 32768, layer = (double)planner_model_layer_bytes(&m, 32768, -1, 16);
        double rest = 0;
        planner_model_tensors(&m, 32768, 1, end, &n);
        for (uint32_t k = 0; k < n; k++) rest += (double)planner_model_tensor_bytes(&m, &end[k], 16);
        assert_true(layer / tokens > measured[i].layer * 0.99999 &&
                    layer / tokens < measured[i].layer * 1.00001);
        const double with = (layer + rest / 4) / tokens;
        assert_true(with > measured[i].quarter * 0.9999 && with < measured[i].quarter * 1.0001);
        /* Everything recomputed: 16,515 measured. */
        const double input = ((double)planner_model_input_bytes(&m, 32768) + rest / 4) / tokens;
        assert_true(input > 16515 * 0.999 && input < 16515 * 1.001);
    }
}

/* 34 + 5 a s / h bytes per element of hidden; 10 + 24 / t without sequence parallelism; 18 + 4 f / h. */
static void megatron_formulas(void **state) {
    (void)state;
    const planner_shape shape = {
        .hidden = 4096, .ffn = 16384, .layers = 32, .heads = 32, .kv_heads = 32, .vocab = 32000};
    const uint64_t h = 4096, a = 32, s = 2048;
    planner_model m = model_of(&shape, PLANNER_ACCOUNT_MEGATRON, PLANNER_STORE_16);
    assert_int_equal(planner_model_layer_bytes(&m, s, -1, 16), s * (34 * h + 5 * a * s));
    m.run.recompute_modules = PLANNER_RECOMPUTE_CORE;
    assert_int_equal(planner_model_layer_bytes(&m, s, -1, 16), s * 34 * h);
    m.run.tp = 8;
    assert_int_equal(planner_model_layer_bytes(&m, s, -1, 16), s * (10 * h + 24 * h / 8));
    m.run.sequence_parallel = 1;
    assert_int_equal(planner_model_layer_bytes(&m, s, -1, 16), s * 34 * h / 8);
    m.shape.ffn = 11008;
    assert_int_equal(planner_model_layer_bytes(&m, s, -1, 16), s * (18 * h + 4 * 11008) / 8);
}

static void recomputed_modules_are_not_kept(void **state) {
    (void)state;
    const planner_shape *shape = &models[2].shape;
    const uint64_t h = 4096, f = 14336, kd = 1024, a = 32;
    static const uint32_t modules[5] = {PLANNER_RECOMPUTE_NORMS, PLANNER_RECOMPUTE_CORE,
                                        PLANNER_RECOMPUTE_ACT, PLANNER_RECOMPUTE_GATE_UP,
                                        PLANNER_RECOMPUTE_QKV};
    const uint64_t saves_16[5] = {4 * h, 4 * a, 2 * f, 6 * f, 2 * h + 4 * kd},
                   saves_4[5] = {0, 4 * a, 0, 2 * (f / 2 + f / 32), 2 * h + 4 * kd};
    for (int packed = 0; packed < 2; packed++) {
        planner_model m =
            model_of(shape, PLANNER_ACCOUNT_FUSED, packed ? PLANNER_STORE_PLAN : PLANNER_STORE_16);
        const uint64_t all = planner_model_layer_bytes(&m, 1024, -1, 4);
        for (int k = 0; k < 5; k++) {
            m.run.recompute_modules = modules[k];
            assert_int_equal(all - planner_model_layer_bytes(&m, 1024, -1, 4),
                             1024 * (packed ? saves_4 : saves_16)[k]);
        }
    }
}

static void names_go_both_ways(void **state) {
    (void)state;
    for (int i = 0; i < PLANNER_N_ACCOUNTINGS; i++)
        assert_int_equal(planner_accounting_from_name(planner_accounting_name((planner_accounting)i)), i);
    assert_int_equal(planner_accounting_from_name("fused-1.5"), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(table_1_row_by_row),    cmocka_unit_test(units_of_coat),
        cmocka_unit_test(table_of_known_models), cmocka_unit_test(measured_in_hugging_face),
        cmocka_unit_test(megatron_formulas),     cmocka_unit_test(recomputed_modules_are_not_kept),
        cmocka_unit_test(names_go_both_ways),
    };
    return cmocka_run_group_tests_name("model accounts", tests, NULL, NULL);
}
