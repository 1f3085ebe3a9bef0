/* What the trainer tells the daemon against what its allocator counts: for every width, chunk and shape the
 * planner's formula over the profile gives exactly the bytes that a micro-batch keeps, and a held micro-batch
 * keeps them all. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "planner/planner.h"
#include "trainer/plans.h"

static options make_options(int hidden, int ffn, int layers, int heads, int kv, int seq, int mb_size, int pp,
                            int chunks) {
    options o;
    memset(&o, 0, sizeof o);
    o.shape = (options_shape){hidden, ffn, layers, heads, kv, seq, mb_size};
    o.par = (options_parallel){.pp = pp,
                               .dp = 1,
                               .schedule = chunks > 1 ? OPTIONS_INTERLEAVED : OPTIONS_1F1B,
                               .chunks = chunks,
                               .microbatches = 4,
                               .hold_extra = -1};
    o.store.qkv_bits = 16;
    return o;
}

static uint64_t predicted(const agoq_profile *p, int chunk, int bits) {
    uint64_t sum = p->fixed_bytes[chunk];
    for (int i = 0; i < p->n_items; i++) {
        const agoq_item *it = &p->items[i];
        const planner_item item = {.layer = (uint16_t)it->layer,
                                   .role = (uint8_t)it->role,
                                   .count = (uint32_t)it->count,
                                   .rows = it->rows,
                                   .cols = it->cols};
        if (it->chunk == chunk)
            sum +=
                planner_item_bytes(&item, it->role == AGOQ_ROLE_ATTN_QKV ? 16 : bits, p->alloc_round_bytes);
    }
    return sum;
}

static void check_stage(const options *o, int stage, int bits) {
    alloc_stats mem = {.total = 0};
    model m;
    store s;
    grads g;
    plans_profile profile;
    assert_int_equal(model_init(&m, &o->shape, o->par.pp, stage, o->par.chunks, 1, 1, &mem), AGOQ_OK);
    assert_int_equal(grads_init(&g, &m.params, 0, 1, 0, &mem), AGOQ_OK);
    assert_int_equal(grads_start(&g, 0), AGOQ_OK);
    assert_int_equal(plans_profile_init(&profile, o, &m), AGOQ_OK);
    store_init(&s, STORE_AGOQ, &mem, NULL, 0);
    memset(s.bits, bits, sizeof s.bits);
    s.bits[AGOQ_ROLE_ATTN_QKV] = 16;
    uint8_t *ids = calloc(2, (size_t)m.tokens);
    for (int c = 0; c < m.n_chunks; c++) {
        model_kept *kept = model_kept_new(&m, c);
        const uint64_t before = mem.current[ALLOC_SAVED], buffers = alloc_buffers(&mem);
        double loss = 0;
        ops_normal(1, 1, 1.0f, m.work.x.p, m.work.x.rows * m.work.x.cols);
        alloc_step(&mem);
        assert_int_equal(model_forward(&m, c, ids, ids + m.tokens, &s, kept, &loss), AGOQ_OK);
        assert_int_equal(mem.current[ALLOC_SAVED] - before, predicted(&profile.said, c, bits));
        assert_int_equal(mem.step_peak[ALLOC_SAVED], mem.current[ALLOC_SAVED]); /* nothing more in between */
        assert_int_equal(s.live16, predicted(&profile.said, c, 16));
        s.hold = 1;
        assert_int_equal(model_backward(&m, c, 1.0f, &s, kept, &g), AGOQ_OK);
        assert_int_equal(mem.current[ALLOC_SAVED] - before, predicted(&profile.said, c, bits));
        s.hold = 0;
        assert_int_equal(model_release(&m, c, &s, kept), AGOQ_OK);
        assert_int_equal(mem.current[ALLOC_SAVED], before);
        assert_int_equal(alloc_buffers(&mem), buffers); /* no workspace comes or goes */
        assert_int_equal(mem.step_peak_total, mem.total + predicted(&profile.said, c, bits));
        model_kept_delete(kept);
    }
    free(ids);
    plans_profile_fini(&profile);
    grads_fini(&g);
    model_fini(&m);
    assert_int_equal(mem.total, 0);
}

static void bytes_of_a_microbatch(void **state) {
    (void)state;
    const options shapes[] = {
        make_options(96, 256, 8, 6, 3, 16, 2, 4, 1),
        make_options(24, 20, 3, 4, 2, 7, 3, 2, 1),
        make_options(40, 130, 6, 2, 1, 9, 1, 2, 2),
        make_options(16, 33, 2, 4, 4, 5, 1, 1, 1),
    };
    const int widths[] = {4, 5, 6, 8, 16};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int stage = 0; stage < shapes[i].par.pp; stage++) {
            for (size_t w = 0; w < sizeof widths / sizeof widths[0]; w++)
                check_stage(&shapes[i], stage, widths[w]);
        }
    }
}

static void counts_and_rounds(void **state) {
    (void)state;
    alloc_stats a = {.total = 0};
    void *p = alloc_new(&a, ALLOC_SAVED, 1), *q = alloc_new(&a, ALLOC_WORKSPACE, 65);
    assert_int_equal(a.total, 64 + 128);
    assert_int_equal((uintptr_t)p % 64, 0);
    alloc_free(&a, q);
    assert_int_equal(a.total, 64);
    assert_int_equal(a.step_peak_total, 192);
    assert_int_equal(a.phase_peak_buffers, 128);
    alloc_step(&a);
    alloc_phase(&a);
    assert_int_equal(a.step_peak_total, 64);
    assert_int_equal(a.step_peak[ALLOC_WORKSPACE], 0);
    assert_int_equal(a.phase_peak_buffers, 0);
    alloc_free(&a, p);
    alloc_free(&a, NULL);
    assert_int_equal(a.total, 0);
    assert_null(alloc_new(&a, ALLOC_SAVED, SIZE_MAX - 3));
    a.limit = 128;
    p = alloc_new(&a, ALLOC_SAVED, 60);
    assert_null(alloc_new(&a, ALLOC_WORKSPACE, 65));
    q = alloc_new(&a, ALLOC_WORKSPACE, 64);
    assert_non_null(q);
    alloc_free(&a, p);
    alloc_free(&a, q);
    assert_int_equal(a.total, 0);
}

/* Gradients that are not FP8, whatever they are for: most at once and the largest, ever. */
static void counts_fp32_gradients(void **state) {
    (void)state;
    alloc_stats a = {.total = 0};
    void *main8 = alloc_new(&a, ALLOC_GRADIENTS, 6400), *work = alloc_new(&a, ALLOC_WORKSPACE, 6400);
    assert_int_equal(a.fp32_grad_peak + a.fp32_grad_largest, 0);
    void *dw = alloc_new(&a, ALLOC_GRADIENT_WORK, 1000), *gain = alloc_new(&a, ALLOC_GRADIENTS_FP32, 64);
    assert_int_equal(a.fp32_grad_peak, 1024 + 64);
    alloc_free(&a, dw);
    dw = alloc_new(&a, ALLOC_GRADIENTS_FP32, 900);
    alloc_step(&a);
    assert_int_equal(a.fp32_grad_peak, 1024 + 64);
    assert_int_equal(a.fp32_grad_largest, 1024);
    assert_int_equal(alloc_gradients(&a), 6400 + 64 + 960);
    assert_int_equal(alloc_static(&a), 6400 + 64 + 960);
    void *all[] = {main8, work, dw, gain};
    for (int i = 0; i < 4; i++) alloc_free(&a, all[i]);
    assert_int_equal(alloc_gradients(&a) + alloc_buffers(&a), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counts_and_rounds),
                                       cmocka_unit_test(counts_fp32_gradients),
                                       cmocka_unit_test(bytes_of_a_microbatch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
