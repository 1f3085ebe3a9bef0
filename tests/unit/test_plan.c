/* planner/plan: canonical bytes. What decodes must encode to the same bytes, whatever was done to them;
 * everything else is refused. The bytes of one small plan are written out by hand so that a change of the
 * format cannot pass unseen. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "planner/plan.h"

static plan make_plan(uint32_t n_stages, uint32_t n_layers) {
    static const uint8_t widths[5] = {4, 5, 6, 8, 16};
    plan p;
    assert_int_equal(plan_init(&p, n_stages, n_layers * 3), AGOQ_OK);
    for (uint32_t i = 0; i < n_stages; i++) {
        p.stages[i] = (plan_stage){0x0123456789abcdefull + i, i + 1, 0xfedcba9876543210ull - i};
    }
    for (uint32_t i = 0; i < p.n_entries; i++) {
        p.entries[i] =
            (plan_entry){(uint16_t)(i / 3 % n_stages), (uint16_t)(i / 3), (uint8_t)(i % 3), widths[i % 5]};
    }
    return p;
}

static size_t encode(const plan *p, uint8_t *bytes) {
    size_t size = 0;
    assert_int_equal(plan_encode(p, bytes, PLAN_MAX_BYTES, &size), AGOQ_OK);
    return size;
}

static void bytes_are_the_documented_ones(void **state) {
    (void)state;
    plan p;
    assert_int_equal(plan_init(&p, 1, 2), AGOQ_OK);
    p.stages[0] = (plan_stage){0x0102, 3, 0x01000000000000ffull};
    p.entries[0] = (plan_entry){0, 7, AGOQ_ROLE_ATTN_NORM_IN, 4};
    p.entries[1] = (plan_entry){0, 0x0108, AGOQ_ROLE_MLP_GATE_UP, 16};
    static const uint8_t expected[] = {'A', 'G', 'Q', 'P', 1, 0, 1, 0, 2, 0, 0, 0, 0x02, 1, 0, 0,
                                       0,   0,   0,   0,   3, 0, 0, 0, 0, 0, 0, 0, 0xff, 0, 0, 0,
                                       0,   0,   0,   1,   0, 0, 7, 0, 0, 4, 0, 0, 8,    1, 2, 16};
    uint8_t bytes[PLAN_MAX_BYTES];
    assert_int_equal(encode(&p, bytes), sizeof expected);
    assert_memory_equal(bytes, expected, sizeof expected);
    plan_fini(&p);
}

static void round_trip(void **state) {
    (void)state;
    static const uint32_t shapes[][2] = {{0, 0}, {1, 0}, {1, 1}, {4, 8}, {128, 128}, {1024, 2000}};
    uint8_t bytes[PLAN_MAX_BYTES], again[PLAN_MAX_BYTES];
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        plan p = make_plan(shapes[i][0], shapes[i][1]), q, copy;
        size_t size = encode(&p, bytes), counted = 0;
        assert_int_equal(plan_encode(&p, NULL, 0, &counted), AGOQ_OK);
        assert_int_equal(counted, size);
        assert_int_equal(plan_encode(&p, again, size - 1, &counted), AGOQ_E_LIMIT);
        assert_int_equal(plan_decode(bytes, size, &q), AGOQ_OK);
        assert_int_equal(plan_copy(&copy, &q), AGOQ_OK);
        assert_int_equal(encode(&copy, again), size);
        assert_memory_equal(bytes, again, size);
        for (uint32_t e = 0; e < p.n_entries; e++) {
            assert_int_equal(plan_bits(&q, p.entries[e].layer, p.entries[e].role), p.entries[e].bits);
        }
        assert_int_equal(plan_bits(&q, (int)shapes[i][1], 0), 0);
        assert_int_equal(plan_bits(&q, 0, 3), 0);
        assert_int_equal(plan_bits(&q, -1, 0), 0);
        assert_int_equal(plan_bits(&q, 0, -1), 0);
        assert_int_equal(plan_bits(&q, 65536, 0), 0);
        plan_fini(&p);
        plan_fini(&q);
        plan_fini(&copy);
        plan_fini(&copy);
    }
}

static void truncated_or_extended_is_refused(void **state) {
    (void)state;
    plan p = make_plan(4, 8), q;
    uint8_t bytes[PLAN_MAX_BYTES + 1];
    size_t size = encode(&p, bytes);
    for (size_t n = 0; n < size; n++) {
        uint8_t *exact = malloc(n ? n : 1); /* so that a sanitizer sees a read past the end */
        assert_non_null(exact);
        memcpy(exact, bytes, n);
        assert_int_equal(plan_decode(exact, n, &q), AGOQ_E_FORMAT);
        free(exact);
    }
    bytes[size] = 0;
    assert_int_equal(plan_decode(bytes, size + 1, &q), AGOQ_E_FORMAT);
    plan_fini(&p);
}

static void corrupted_is_refused_or_canonical(void **state) {
    (void)state;
    plan p = make_plan(3, 4), q;
    uint8_t bytes[PLAN_MAX_BYTES], again[PLAN_MAX_BYTES];
    const size_t size = encode(&p, bytes);
    const uint64_t hash = plan_hash(bytes, size);
    int refused = 0, accepted = 0;
    for (size_t i = 0; i < size; i++) {
        const uint8_t was = bytes[i];
        for (int value = 0; value < 256; value++) {
            if (value == was) continue;
            bytes[i] = (uint8_t)value;
            const agoq_status status = plan_decode(bytes, size, &q);
            if (status == AGOQ_OK) {
                accepted++;
                assert_int_equal(encode(&q, again), size);
                assert_memory_equal(bytes, again, size);
                assert_int_not_equal(plan_hash(again, size), hash);
                plan_fini(&q);
            } else {
                refused++;
                assert_int_equal(status, AGOQ_E_FORMAT);
            }
        }
        bytes[i] = was;
    }
    /* Header (12 bytes) refused whatever the value; numbers of stages (72 bytes) accepted whatever the value.
     */
    assert_true(refused >= 12 * 255);
    assert_true(accepted >= 72 * 255);
    plan_fini(&p);
}

static void bad_content_is_refused(void **state) {
    (void)state;
    static const plan_entry bad[] = {
        {2, 5, 0, 4},            /* no such stage */
        {0, 5, AGOQ_N_ROLES, 4}, /* no such role */
        {0, 5, 255, 4},
        {0, 5, 0, 0}, /* no such width */
        {0, 5, 0, 7},
        {0, 4, 1, 4}, /* out of order: twice the entry before it */
        {0, 4, 0, 4}, /* out of order by role */
        {0, 3, 2, 4}, /* out of order by layer */
    };
    uint8_t bytes[PLAN_MAX_BYTES];
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        plan p, q;
        size_t size;
        assert_int_equal(plan_init(&p, 2, 2), AGOQ_OK);
        p.entries[0] = (plan_entry){0, 4, 1, 4};
        p.entries[1] = (plan_entry){1, 5, 0, 4};
        size = encode(&p, bytes);
        const plan_entry *e = &bad[i];
        const uint8_t raw[6] = {(uint8_t)e->stage, 0, (uint8_t)e->layer, 0, e->role, e->bits};
        memcpy(bytes + size - 6, raw, 6);
        assert_int_equal(plan_decode(bytes, size, &q), AGOQ_E_FORMAT);
        p.entries[1] = bad[i];
        assert_int_equal(plan_encode(&p, bytes, sizeof bytes, &size), AGOQ_E_INVAL);
        plan_fini(&p);
    }
}

static void caps_hold(void **state) {
    (void)state;
    plan p;
    assert_int_equal(plan_init(&p, PLAN_MAX_STAGES + 1, 0), AGOQ_E_LIMIT);
    assert_int_equal(plan_init(&p, 1, PLAN_MAX_ENTRIES + 1), AGOQ_E_LIMIT);
    assert_int_equal(plan_init(&p, PLAN_MAX_STAGES, PLAN_MAX_ENTRIES),
                     AGOQ_E_LIMIT); /* each fits, the bytes don't */
    assert_int_equal(plan_init(&p, 1, PLAN_MAX_ENTRIES), AGOQ_OK);
    plan_fini(&p);
    /* A header that promises more than the caps allow is refused before anything is allocated. */
    static const uint8_t huge[12] = {'A', 'G', 'Q', 'P', 1, 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff};
    mem_fail_after(1);
    const agoq_status status = plan_decode(huge, sizeof huge, &p);
    mem_fail_after(0);
    assert_int_equal(status, AGOQ_E_FORMAT);
    const plan too_many = {PLAN_MAX_STAGES + 1, 0, (plan_stage *)(uintptr_t)1, NULL};
    size_t size;
    assert_int_equal(plan_encode(&too_many, NULL, 0, &size), AGOQ_E_LIMIT);
    plan_fini(NULL);
}

static void allocation_failures_are_reported(void **state) {
    (void)state;
    plan p = make_plan(4, 8);
    uint8_t bytes[PLAN_MAX_BYTES];
    const size_t size = encode(&p, bytes);
    int failed = 0;
    for (long n = 1;; n++) {
        plan q = {0}, copy = {0};
        mem_fail_after(n);
        agoq_status status = plan_decode(bytes, size, &q);
        if (status == AGOQ_OK) status = plan_copy(&copy, &q);
        mem_fail_after(0);
        plan_fini(&q);
        plan_fini(&copy);
        if (status == AGOQ_OK) break;
        assert_int_equal(status, AGOQ_E_NOMEM);
        failed++;
    }
    assert_int_equal(failed, 4);
    plan_fini(&p);
}

static void ids_pack_and_print(void **state) {
    (void)state;
    char text[32];
    const uint64_t id = plan_id_make(0xabcdef, 0x1234, 0x98765);
    assert_true(id == 0xabcdef1234098765ull);
    assert_int_equal(plan_id_term(id), 0xabcdef);
    assert_int_equal(plan_id_node(id), 0x1234);
    assert_int_equal(plan_id_seq(id), 0x98765);
    plan_id_format(0, text);
    assert_string_equal(text, "floor");
    plan_id_format(plan_id_make(3, 0, 17), text);
    assert_string_equal(text, "3.0.17");
    plan_id_format(UINT64_MAX, text);
    assert_string_equal(text, "16777215.65535.16777215");
    /* SHA-256("abc") starts with ba7816bf 8f01cfea. */
    assert_true(plan_hash((const uint8_t *)"abc", 3) == 0xba7816bf8f01cfeaull);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_are_the_documented_ones),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(truncated_or_extended_is_refused),
        cmocka_unit_test(corrupted_is_refused_or_canonical),
        cmocka_unit_test(bad_content_is_refused),
        cmocka_unit_test(caps_hold),
        cmocka_unit_test(allocation_failures_are_reported),
        cmocka_unit_test(ids_pack_and_print),
    };
    return cmocka_run_group_tests_name("plan", tests, NULL, NULL);
}
