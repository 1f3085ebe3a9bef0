/* planner/model: published sizes of known models, the saved bytes that DESIGN states, and what is refused. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <string.h>
#include <cmocka.h>

#include "tests/model_cases.h"

static planner_model llama3_8b(void) {
    planner_model m = model_llama3_8b(4, 2);
    m.run.seq = 512;
    m.run.microbatch = 2;
    m.run.grad_bits = 32;
    return m;
}

static planner_model llama2_7b(void) {
    planner_model m = llama3_8b();
    m.shape.ffn = 11008;
    m.shape.kv_heads = 32;
    m.shape.vocab = 32000;
    return m;
}

static uint64_t params_of(const planner_model *m) {
    uint64_t sum = 0;
    for (uint32_t s = 0; s < m->run.pp; s++) sum += planner_model_params(m, s);
    return sum;
}

static void known_parameter_counts(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    assert_int_equal(params_of(&m), 8030261248);
    m.shape.tied = 1;
    assert_int_equal(params_of(&m), 8030261248); /* two copies on two stages */
    m.run.pp = 1;
    assert_int_equal(params_of(&m), 8030261248 - 128256ull * 4096);
    m = llama2_7b();
    assert_int_equal(params_of(&m), 6738415616);
    m.shape.hidden = 5120, m.shape.ffn = 13824, m.shape.heads = m.shape.kv_heads = m.shape.layers = 40;
    assert_int_equal(params_of(&m), 13015864320);
}

/* Per token and layer: the closed form and the items of a stage must both give the stated numbers. */
static void saved_bytes_per_token_and_layer(void **state) {
    (void)state;
    const planner_model models[2] = {llama3_8b(), llama2_7b()};
    static const double stated[2][3] = {{139400, 36224, 30272}, {131720, 44976, 33072}};
    for (int i = 0; i < 2; i++) {
        planner_model whole = models[i];
        whole.run.storage = PLANNER_STORE_16;
        assert_int_equal(planner_model_layer_bytes(&whole, 1, -1, 16), (uint64_t)stated[i][0]);
        for (int qkv8 = 0; qkv8 < 2; qkv8++) {
            planner_model m = models[i];
            m.run.qkv_bits = qkv8 ? 8 : 16;
            m.run.qkv_only8 = qkv8;
            assert_int_equal(planner_model_layer_bytes(&m, 1000, -1, 4),
                             (uint64_t)(1000 * stated[i][1 + qkv8]));
            planner_model_problem p;
            planner_stage_result r[4];
            static const uint8_t four[4] = {4, 4, 4, 4};
            assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
            assert_int_equal(planner_evaluate(&p.problem, four, r), AGOQ_OK);
            /* Stage 1 of 4: 8 layers, 3 live micro-batches of 1,024 tokens, no ids. */
            assert_int_equal(r[1].activation_peak_bytes, (uint64_t)stated[i][1 + qkv8] * 8 * 3 * 1024);
            assert_int_equal(r[0].activation_peak_bytes, ((uint64_t)stated[i][1 + qkv8] * 8 + 8) * 4 * 1024);
            planner_model_fini(&p);
        }
    }
}

static void static_bytes_per_parameter(void **state) {
    (void)state;
    /* 18 bytes without sharding (bf16, fp32 gradient, master, two moments); 6 + 12/dp with. */
    planner_model m = llama3_8b();
    m.run.dp = 8;
    for (int zero1 = 0; zero1 < 2; zero1++) {
        planner_model_problem p;
        m.run.shard = zero1 ? PLANNER_SHARD_ZERO1 : PLANNER_SHARD_NONE;
        assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
        const uint64_t params = planner_model_params(&m, 1);
        assert_int_equal(p.stages[1].phase[0].static_bytes,
                         zero1 ? params * 6 + 12 * (params / 8) : params * 18);
        planner_model_fini(&p);
    }
    /* FP8 gradients and 8-bit moments: 2 + 1.03 + 4 + 2.03. */
    planner_model_problem p;
    m.run.shard = PLANNER_SHARD_NONE;
    m.run.grad_bits = 8;
    m.run.adam8 = 1;
    m.run.context_bytes = 777;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    const double each =
        ((double)p.stages[1].phase[0].static_bytes - 777) / (double)planner_model_params(&m, 1);
    assert_true(fabs(each - (2 + 1 + 4.0 / 128 + 4 + 2 + 8.0 / 256)) < 1e-6);
    planner_model_fini(&p);
}

static void tensor_parallel_divides(void **state) {
    (void)state;
    uint64_t peak[3];
    static const uint8_t eight[4] = {8, 8, 8, 8};
    for (int k = 0; k < 3; k++) {
        planner_model m = llama3_8b();
        planner_model_problem p;
        planner_stage_result r[4];
        m.run.tp = k ? 8 : 1;
        m.run.sequence_parallel = k == 2;
        assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
        assert_int_equal(planner_evaluate(&p.problem, eight, r), AGOQ_OK);
        peak[k] = r[1].activation_peak_bytes;
        planner_model_fini(&p);
    }
    assert_true(peak[2] * 8 == peak[0]); /* everything is divided */
    assert_true(peak[1] - peak[2] ==
                (uint64_t)(2 * 4096 * 8.25 / 8 * 7 / 8) * 8 * 3 * 1024); /* but the norm inputs */
}

/* Every layer once, in order, for layers that do not divide; the final norm on the last chunk of the last
 * stage. */
static void layers_are_dealt_once(void **state) {
    (void)state;
    for (uint32_t layers = 8; layers <= 29; layers++) {
        planner_model m = llama3_8b();
        planner_model_problem p;
        uint8_t seen[30] = {0};
        uint32_t layout[8];
        for (uint32_t k = 0; k < 8; k++) layout[k] = layers / 8 + (k < layers % 8);
        m.run.layout = layers % 8 ? layout : NULL;
        m.shape.layers = layers;
        m.run.schedule = AGOQ_SCHEDULE_INTERLEAVED;
        m.run.chunks = 2;
        assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
        for (uint32_t s = 0; s < 4; s++) {
            for (uint32_t i = 0; i < p.stages[s].n_items; i++) {
                const planner_item *item = &p.stages[s].items[i];
                if (item->role != AGOQ_ROLE_ATTN_NORM_IN) continue;
                seen[item->layer]++;
                const uint32_t at = item->chunk * 4 + s, n = layers / 8, extra = layers % 8;
                assert_true(item->layer >= n * at + (at < extra ? at : extra));
                assert_true(item->layer < n * (at + 1) + (at + 1 < extra ? at + 1 : extra));
            }
        }
        for (uint32_t l = 0; l < layers; l++) assert_int_equal(seen[l], 1);
        const planner_item *last = &p.stages[3].items[p.stages[3].n_items - 1];
        assert_true(last->role == AGOQ_ROLE_FINAL_NORM_IN && last->layer == layers - 1 && last->chunk == 1);
        planner_model_fini(&p);
    }
}

static void sharding_the_optimizer_is_a_lever(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    m.run.dp = 8;
    m.run.budget_bytes = 38ull << 30;
    planner_model_problem p;
    planner_result r;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    assert_int_equal(planner_solve(&p.problem, &r), AGOQ_OK);
    assert_false(r.feasible);
    assert_int_equal(planner_model_levers(&m, &p, &r), AGOQ_OK);
    const planner_lever *l = &r.stages[0].levers[0];
    assert_true(l->kind == PLANNER_LEVER_SHARD_OPTIMIZER && l->enough);
    const uint64_t saves = l->saves_bytes, before = r.stages[0].predicted_peak_bytes;
    planner_result_fini(&r);
    for (int s = 0; s < 4; s++) p.stages[s].budget_bytes = before - saves - 1; /* one byte short */
    assert_int_equal(planner_solve(&p.problem, &r), AGOQ_OK);
    assert_int_equal(planner_model_levers(&m, &p, &r), AGOQ_OK);
    for (uint32_t k = 0; k < r.stages[0].n_levers; k++) {
        if (r.stages[0].levers[k].kind != PLANNER_LEVER_SHARD_OPTIMIZER) continue;
        assert_false(r.stages[0].levers[k].enough);
        assert_int_equal(r.stages[0].levers[k].saves_bytes, saves);
    }
    planner_result_fini(&r);
    planner_model_fini(&p);
    m.run.shard = PLANNER_SHARD_ZERO1;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    assert_int_equal(planner_solve(&p.problem, &r), AGOQ_OK);
    assert_true(r.feasible);
    planner_result_fini(&r);
    planner_model_fini(&p);
}

static void impossible_shapes_are_refused(void **state) {
    (void)state;
    planner_model_problem p;
    char why[128];
    const planner_model good = llama3_8b();
    assert_int_equal(planner_model_check(&good, why, sizeof why), AGOQ_OK);
#define REFUSED(change)                                                                                      \
    do {                                                                                                     \
        planner_model m = llama3_8b();                                                                       \
        change;                                                                                              \
        why[0] = 0;                                                                                          \
        assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_E_INVAL);                            \
        assert_true(why[0]);                                                                                 \
        assert_int_equal(planner_model_build(&m, &p), AGOQ_E_INVAL);                                         \
    } while (0)
    REFUSED(m.shape.hidden = 0);
    REFUSED(m.shape.hidden = 4097);
    REFUSED(m.shape.kv_heads = 5);
    REFUSED(m.shape.vocab = 1u << 21);
    REFUSED(m.shape.layers = 3);
    REFUSED(m.shape.layers = 5000);
    REFUSED(m.run.pp = 0);
    REFUSED(m.run.chunks = 2);
    REFUSED(m.run.tp = 3);
    REFUSED((m.run.tp = 2, m.run.seq = 511, m.run.sequence_parallel = 1));
    REFUSED((m.run.schedule = AGOQ_SCHEDULE_INTERLEAVED, m.run.chunks = 3));
    REFUSED(m.run.microbatches = 0);
    REFUSED(m.run.grad_bits = 4);
    REFUSED(m.run.qkv_bits = 4);
#undef REFUSED
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(known_parameter_counts),        cmocka_unit_test(saved_bytes_per_token_and_layer),
        cmocka_unit_test(static_bytes_per_parameter),    cmocka_unit_test(tensor_parallel_divides),
        cmocka_unit_test(layers_are_dealt_once),         cmocka_unit_test(sharding_the_optimizer_is_a_lever),
        cmocka_unit_test(impossible_shapes_are_refused),
    };
    return cmocka_run_group_tests_name("model", tests, NULL, NULL);
}
