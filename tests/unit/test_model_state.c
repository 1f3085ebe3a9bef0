/* The memory model beyond saved tensors: sharding, context parallelism, recomputation, chunked loss, where
 * layers and vocabulary tables lie under each route, overflow, margins, and the sentences of refusals. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "planner/model_internal.h"
#include "tests/model_cases.h"

#define GIB   ((uint64_t)1 << 30)
#define TABLE (128256ull * 4096)
#define LAYER (4096ull * (2 * 4096 + 2 * 1024 + 3 * 14336) + 2 * 4096)

static planner_model llama3_8b(void) {
    planner_model m = model_llama3_8b(4, 8);
    m.run.grad_bits = 32;
    return m;
}

static planner_model_problem build(const planner_model *m) {
    planner_model_problem p;
    char why[256] = "";
    assert_int_equal(planner_model_check(m, why, sizeof why), AGOQ_OK);
    assert_string_equal(why, "");
    assert_int_equal(planner_model_build(m, &p), AGOQ_OK);
    return p;
}

static planner_parts parts_of(const planner_model *m, uint32_t stage) {
    planner_model_problem p = build(m);
    const planner_parts parts = p.parts[stage];
    const planner_stage *s = &p.stages[stage];
    assert_int_equal(s->phase[AGOQ_PHASE_FWD_BWD].static_bytes,
                     parts.weight_bytes + parts.grad_bytes + parts.optimizer_bytes + m->run.context_bytes);
    assert_int_equal(s->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes,
                     (parts.layer_bytes > parts.logits_bytes ? parts.layer_bytes : parts.logits_bytes) +
                         parts.receive_bytes + parts.gather_bytes);
    assert_int_equal(s->phase[AGOQ_PHASE_EXCHANGE].workspace_bytes, parts.exchange_bytes);
    assert_int_equal(s->phase[AGOQ_PHASE_OPTIMIZER].workspace_bytes, parts.update_bytes);
    planner_model_fini(&p);
    return parts;
}

static void sharding(void **state) {
    (void)state;
    const uint64_t n = 8 * LAYER; /* stage 1 of 4; a multiple of 8 and of 256 */
    static const int divided[5][3] = {{0, 0, 0}, {0, 0, 1}, {0, 1, 1}, {1, 1, 1}, {0, 0, 1}};
    for (int k = 0; k < 5; k++) {
        planner_model m = llama3_8b();
        m.run.shard = (planner_shard)k;
        for (uint32_t cp = 1; cp <= 2; cp++) { /* context-parallel ranks hold the same weights */
            m.run.cp = cp;
            const uint64_t ranks = 8 * cp;
            const planner_parts p = parts_of(&m, 1);
            assert_int_equal(p.params, n);
            assert_int_equal(p.weight_bytes, 2 * n / (divided[k][0] ? ranks : 1));
            assert_int_equal(p.grad_bytes, 4 * n / (divided[k][1] ? ranks : 1));
            assert_int_equal(p.optimizer_bytes, 12 * n / (divided[k][2] ? ranks : 1));
            assert_int_equal(p.gather_bytes, k == PLANNER_SHARD_ZERO2   ? 2 * LAYER
                                             : k == PLANNER_SHARD_ZERO3 ? (2 + 2 * 2) * LAYER
                                                                        : 0);
            /* Only the distributed optimizer reduces in place. */
            assert_int_equal(p.exchange_bytes, k == PLANNER_SHARD_DISTRIBUTED ? 0 : 2ull * 40000000 * 4);
        }
    }
    planner_model m = llama3_8b();
    m.run.weights32 = 1; /* no master copy beside fp32 weights */
    assert_int_equal(parts_of(&m, 1).weight_bytes, 4 * n);
    assert_int_equal(parts_of(&m, 1).optimizer_bytes, 8 * n);
    m.run.adam8 = 1;
    assert_int_equal(parts_of(&m, 1).optimizer_bytes, 2 * n + 8 * (n / 256));
    m.run.grad_bits = 16;
    assert_int_equal(parts_of(&m, 1).grad_bytes, 2 * n);
    m.run.grad_bits = 8;
    assert_int_equal(parts_of(&m, 1).grad_bytes, n + 4 * (n / 128));
    m.run.dp = 1;
    assert_int_equal(parts_of(&m, 1).exchange_bytes, 0);
}

static uint64_t activations(const planner_model *m, uint32_t stage) {
    planner_model_problem p = build(m);
    planner_stage_result r[8];
    static const uint8_t four[8] = {4, 4, 4, 4, 4, 4, 4, 4};
    assert_int_equal(planner_evaluate(&p.problem, four, r), AGOQ_OK);
    planner_model_fini(&p);
    return r[stage].activation_peak_bytes;
}

static void context_parallelism_divides_tokens(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    const uint64_t whole = activations(&m, 1);
    const planner_parts one = parts_of(&m, 3);
    m.run.cp = 4;
    assert_int_equal(activations(&m, 1) * 4, whole);
    const planner_parts four = parts_of(&m, 3);
    assert_int_equal(four.logits_bytes * 4, one.logits_bytes);
    assert_int_equal(four.layer_bytes * 4, one.layer_bytes);
    /* Two tensors from the neighbours; K and V of one block, twice. */
    assert_int_equal(one.receive_bytes, 2 * 4096 * 8192);
    assert_int_equal(four.receive_bytes, 2 * 1024 * 8192 + 2 * 1024 * 4 * 1024);
}

static void loss_in_chunks(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    assert_int_equal(parts_of(&m, 3).logits_bytes, 6ull * 4096 * 128256); /* 3.15 GB */
    assert_int_equal(parts_of(&m, 2).logits_bytes, 0);
    m.run.loss_chunks = 8;
    assert_int_equal(parts_of(&m, 3).logits_bytes, 6ull * 512 * 128256);
    m.run.loss_chunks = 3; /* 1,366 tokens in the largest part */
    assert_int_equal(parts_of(&m, 3).logits_bytes, 6ull * 1366 * 128256);
    m.run.tp = 4;
    assert_int_equal(parts_of(&m, 3).logits_bytes, 6ull * 1366 * 128256 / 4);
}

static void recomputed_layers_keep_their_input(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    const uint64_t kept = 36224ull * 4096, input = 8192ull * 4096;
    const uint64_t all = activations(&m, 1), layer = parts_of(&m, 1).layer_bytes;
    assert_int_equal(all, 3 * 8 * kept);
    m.run.recompute_layers = 3;
    assert_int_equal(activations(&m, 1), 3 * (5 * kept + 3 * input));
    assert_int_equal(parts_of(&m, 1).recomputed, 3);
    assert_int_equal(parts_of(&m, 1).layer_bytes, layer + kept); /* whole again, one at a time */
    m.run.recompute_layers = PLANNER_ALL_LAYERS;
    assert_int_equal(activations(&m, 1), 3 * 8 * input);
    assert_int_equal(parts_of(&m, 1).recomputed, 8);
    static const uint32_t of_stage[4] = {0, 2, 0, 8};
    m.run.recompute = of_stage;
    assert_int_equal(activations(&m, 1), 3 * (6 * kept + 2 * input));
    assert_int_equal(activations(&m, 2), 2 * 8 * kept);
    m.run.recompute = NULL;
    m.run.storage = PLANNER_STORE_16;
    m.run.recompute_layers = 8;
    assert_int_equal(activations(&m, 2), 2 * 8 * input);
}

/* A layer unpacked, gradients of gate, up and the residual; without packing also the product's, twice the
 * residual. */
static void backward_transient(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    const uint64_t n = 4096, h = 4096, f = 14336;
    assert_int_equal(parts_of(&m, 1).layer_bytes, n * (139400 + 4 * f + 2 * h));
    m.run.storage = PLANNER_STORE_16;
    assert_int_equal(parts_of(&m, 1).layer_bytes, n * (6 * f + 4 * h));
    m.run.recompute_modules = PLANNER_RECOMPUTE_NORMS; /* norm outputs come back, for one layer */
    assert_int_equal(parts_of(&m, 1).layer_bytes, n * (6 * f + 4 * h + 4 * h));
}

/* Every layer as often as the route says, tables where the first and the last piece are. */
static void routes(void **state) {
    (void)state;
    static const struct {
        agoq_schedule schedule;
        uint32_t chunks, copies;
        uint32_t tables[4]; /* embedding and head on each rank */
    } cases[] = {
        {AGOQ_SCHEDULE_1F1B, 1, 1, {1, 0, 0, 1}},     {AGOQ_SCHEDULE_INTERLEAVED, 2, 1, {1, 0, 0, 1}},
        {AGOQ_SCHEDULE_ZB_H1, 1, 1, {1, 0, 0, 1}},    {AGOQ_SCHEDULE_ZB_V, 2, 1, {2, 0, 0, 0}},
        {AGOQ_SCHEDULE_V_HALF, 2, 1, {2, 0, 0, 0}},   {AGOQ_SCHEDULE_V_MIN, 2, 1, {2, 0, 0, 0}},
        {AGOQ_SCHEDULE_DUALPIPE, 2, 2, {2, 0, 0, 2}}, {AGOQ_SCHEDULE_DUALPIPEV, 2, 1, {2, 0, 0, 0}},
        {AGOQ_SCHEDULE_ZB_H2, 1, 1, {1, 0, 0, 1}},    {AGOQ_SCHEDULE_GPIPE, 1, 1, {1, 0, 0, 1}}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        planner_model m = llama3_8b();
        uint8_t seen[33] = {0};
        m.run.schedule = cases[k].schedule;
        m.run.chunks = cases[k].chunks;
        planner_model_problem p = build(&m);
        for (uint32_t r = 0; r < 4; r++) {
            const uint64_t norms = seen[32];
            for (uint32_t i = 0; i < p.stages[r].n_items; i++) {
                const planner_item *item = &p.stages[r].items[i];
                seen[item->layer] += item->role == AGOQ_ROLE_ATTN_NORM_IN;
                if (item->role != AGOQ_ROLE_FINAL_NORM_IN) continue;
                seen[32]++;
                assert_int_equal(item->layer, 31);
            }
            assert_int_equal(p.parts[r].layers, 8 * cases[k].copies);
            assert_int_equal(p.parts[r].params, 8 * cases[k].copies * LAYER + cases[k].tables[r] * TABLE +
                                                    (seen[32] - norms) * 4096);
            assert_true(p.stages[r].n_live > 0 && p.live_units[r] > 0);
        }
        for (int l = 0; l <= 32; l++) assert_int_equal(seen[l], cases[k].copies);
        planner_model_fini(&p);
        m.shape.tied = 1; /* one table where both ends are on one rank */
        assert_int_equal(planner_model_params(&m, 0),
                         8 * cases[k].copies * LAYER + TABLE + (cases[k].tables[0] == 2) * 4096);
    }
}

static void layouts(void **state) {
    (void)state;
    static const uint32_t uneven[4] = {6, 10, 10, 6}, short_[4] = {6, 10, 10, 5}, empty[4] = {0, 16, 16, 0};
    planner_model m = llama3_8b();
    char why[256];
    m.run.layout = uneven;
    for (uint32_t r = 0; r < 4; r++) assert_int_equal(parts_of(&m, r).layers, uneven[r]);
    m.run.layout = empty; /* embedding and head alone */
    assert_int_equal(parts_of(&m, 0).params, TABLE);
    assert_int_equal(parts_of(&m, 3).params, TABLE + 4096);
    assert_int_equal(parts_of(&m, 0).layer_bytes, 0);
    m.run.layout = short_;
    assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_E_INVAL);
    assert_string_equal(why, "the layout has 31 layers, the model 32");
    m = llama3_8b();
    m.run.no_live = 1;
    planner_model_problem p = build(&m);
    assert_true(!p.stages[0].live && !p.stages[0].n_live);
    planner_model_fini(&p);
}

static void few_kv_heads_are_replicated(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    m.run.tp = 16;
    planner_tensor tensors[PLANNER_MAX_TENSORS];
    uint32_t n, found = 0;
    planner_model_tensors(&m, 1, 0, tensors, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (tensors[i].role != AGOQ_ROLE_ATTN_QKV) continue;
        assert_int_equal(tensors[i].cols, 2 * 128 + 2 * 128);
        found++;
    }
    assert_int_equal(found, 1);
    m = llama3_8b();
    m.shape.head_dim = 256; /* wider than hidden / heads */
    planner_model_tensors(&m, 1, 0, tensors, &n);
    for (uint32_t i = 0; i < n; i++) {
        if (tensors[i].role == AGOQ_ROLE_ATTN_OUT) assert_int_equal(tensors[i].cols, 32 * 256);
    }
    assert_int_equal(parts_of(&m, 1).params, 8 * (LAYER + 4096ull * (2 * 4096 + 2 * 1024)));
    m.shape.bare_norms = 1;
    assert_int_equal(parts_of(&m, 1).params, 8 * (LAYER - 8192 + 4096ull * (2 * 4096 + 2 * 1024)));
}

static void allocator_rounding_only_adds(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    m.run.seq = 100;
    const uint64_t exact = activations(&m, 1);
    m.run.alloc_round_bytes = 512;
    const uint64_t rounded = activations(&m, 1);
    assert_true(rounded > exact && rounded - exact < 3 * 8 * 7 * 512);
    m.run.storage = PLANNER_STORE_16;
    assert_int_equal(activations(&m, 1) % 512, 0);
    m.run.alloc_round_bytes = 2 << 20;
    assert_int_equal(activations(&m, 1) % (2 << 20), 0);
    static const uint64_t sizes[][2] = {{0, 0},
                                        {1, 512},
                                        {512, 512},
                                        {(10 << 20) - 1, 10 << 20},
                                        {10 << 20, 10 << 20},
                                        {(10 << 20) + 1, 12 << 20},
                                        {UINT64_MAX, UINT64_MAX}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(planner_alloc_rounded(sizes[i][0], PLANNER_ALLOC_CACHING), sizes[i][1]);
    m = llama3_8b(); /* 4,096 tokens: norm inputs and O packed below 10 MiB, the rest in whole segments of 2
                        MiB */
    m.run.alloc_round_bytes = PLANNER_ALLOC_CACHING;
    const uint64_t n = 4096, mib = 1 << 20, norm = n * 4096 * 17 / 32, out = n * 4096 * 33 / 32,
                   gate = n * 14336 * 17 / 32, qkv = n * 6144 * 2, lse = n * 128;
    assert_true(norm < 10 * mib && lse < 10 * mib && norm % 512 == 0);
    assert_int_equal(activations(&m, 1),
                     3 * 8 *
                         (2 * norm + (out + 2 * mib - 1) / (2 * mib) * (2 * mib) +
                          2 * ((gate + 2 * mib - 1) / (2 * mib) * (2 * mib)) + qkv + lse));
}

static planner_shape huge(uint32_t heads) {
    return (planner_shape){.hidden = 1 << 20,
                           .ffn = 1 << 20,
                           .layers = 1024,
                           .heads = heads,
                           .kv_heads = heads,
                           .vocab = 1 << 20};
}

static void sums_never_wrap(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    planner_model_problem p;
    m.shape = huge(1 << 20);
    m.run.seq = 1 << 24;
    m.run.microbatch = 1 << 20;
    m.run.pp = 1;
    for (int a = 0; a < PLANNER_N_ACCOUNTINGS; a++) {
        for (int s = 0; s <= PLANNER_STORE_COAT_OWN; s++) {
            m.run.accounting = (planner_accounting)a;
            m.run.storage = (planner_storage)s;
            if (planner_model_check(&m, NULL, 0) != AGOQ_OK) continue;
            assert_int_equal(planner_model_build(&m, &p), AGOQ_E_LIMIT);
            assert_true(planner_model_layer_bytes(&m, (uint64_t)1 << 44, -1, 4) > (uint64_t)1 << 60);
        }
    }
}

/* Weights alone beyond every limit; then one that is below it. */
static void static_bytes_have_a_limit(void **state) {
    (void)state;
    planner_model m = llama3_8b();
    planner_model_problem p;
    m.shape = huge(1 << 10);
    m.run.seq = m.run.pp = 1;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_E_LIMIT);
    m.shape.layers = 64;
    assert_int_equal(planner_model_build(&m, &p), AGOQ_OK);
    planner_model_fini(&p);
}

static void refusals_say_why(void **state) {
    (void)state;
    char why[256];
#define SAYS(change, sentence)                                                                               \
    do {                                                                                                     \
        planner_model m = llama3_8b();                                                                       \
        change;                                                                                              \
        assert_int_equal(planner_model_check(&m, why, sizeof why), AGOQ_E_INVAL);                            \
        assert_string_equal(why, sentence);                                                                  \
    } while (0)
    SAYS(m.run.tp = 3, "tp 3 does not divide the 32 heads");
    SAYS(m.run.tp = 64, "tp 64 does not divide the 32 heads");
    SAYS(
        (m.shape.heads = 40, m.shape.kv_heads = 40, m.shape.hidden = 5120, m.shape.ffn = 13820, m.run.tp = 8),
        "tp 8 does not divide ffn 13820");
    SAYS(m.run.pp = 33, "pp 33 is more than the 32 layers");
    SAYS((m.run.schedule = AGOQ_SCHEDULE_INTERLEAVED, m.run.chunks = 3),
         "pp 4 with 3 chunks cuts the model in 12, which does not divide the 32 layers: other chunks, or a "
         "layout");
    SAYS(m.run.chunks = 2, "this schedule has one chunk on a rank");
    SAYS(m.run.microbatches = 0, "microbatches is 0, and must be 1 to 65536");
    SAYS(m.run.cp = 3, "cp 3 does not divide seq 4096");
    SAYS((m.run.budget_bytes = GIB, m.run.context_bytes = 2 * GIB),
         "the budget of stage 0 (1073741824 bytes) is not above the context (2147483648 bytes)");
    SAYS(m.run.accounting = PLANNER_ACCOUNT_HF_EAGER, "accounting hf-eager knows 16 bits only");
    SAYS(m.run.storage = PLANNER_STORE_COAT, "COAT is counted as in the paper only");
    SAYS(m.shape.hidden = 4100, "32 heads do not divide hidden 4100: give head_dim");
    SAYS(m.run.account_bits = 7, "7 is no width");
#undef SAYS
    const planner_model m = llama3_8b();
    char tiny[8];
    planner_model bad = m;
    bad.run.tp = 3;
    assert_int_equal(planner_model_check(&bad, tiny, sizeof tiny), AGOQ_E_INVAL);
    assert_string_equal(tiny, "tp 3 do");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sharding),
        cmocka_unit_test(context_parallelism_divides_tokens),
        cmocka_unit_test(loss_in_chunks),
        cmocka_unit_test(recomputed_layers_keep_their_input),
        cmocka_unit_test(backward_transient),
        cmocka_unit_test(routes),
        cmocka_unit_test(layouts),
        cmocka_unit_test(few_kv_heads_are_replicated),
        cmocka_unit_test(allocator_rounding_only_adds),
        cmocka_unit_test(sums_never_wrap),
        cmocka_unit_test(static_bytes_have_a_limit),
        cmocka_unit_test(refusals_say_why),
    };
    return cmocka_run_group_tests_name("model state", tests, NULL, NULL);
}
