/* The ledger against a model that keeps every tensor in a list and adds up from scratch. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "libagoq/ledger.h"

#define MAX_TENSORS 256

typedef struct tensor {
    int layer, role;
    agoq_layout layout;
} tensor;

static uint64_t random_state = 88172645463325252ull;
static uint32_t next_random(uint32_t below) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 11) % below;
}

static agoq_layout layout_of(int bits, int64_t rows, int64_t cols) {
    agoq_layout layout;
    assert_int_equal(agoq_layout_make(bits, rows, cols, &layout), AGOQ_OK);
    return layout;
}

/* What is live in the model for (layer, role), -1: any. */
static agoq_ledger_entry add_up(const tensor *tensors, int n, int layer, int role) {
    agoq_ledger_entry e = {0};
    for (int i = 0; i < n; i++) {
        if ((layer >= 0 && tensors[i].layer != layer) || (role >= 0 && tensors[i].role != role)) continue;
        e.live_bytes += tensors[i].layout.bytes;
        e.live_bytes16 += layout_of(16, tensors[i].layout.rows, tensors[i].layout.cols).bytes;
        e.live_tensors++;
    }
    return e;
}

static void matches_the_model(void **state) {
    (void)state;
    static const int widths[] = {4, 5, 6, 8, 16};
    enum { LAYERS = 7 };
    tensor tensors[MAX_TENSORS];
    uint64_t peak[LAYERS + 1][AGOQ_N_ROLES + 1] = {{0}}, peak16[LAYERS + 1][AGOQ_N_ROLES + 1] = {{0}};
    int n = 0;
    ledger l = {0};
    for (int step = 0; step < 4000; step++) {
        if (step % 1000 == 999) {
            ledger_reset_peaks(&l);
            for (int layer = -1; layer < LAYERS; layer++) {
                for (int role = -1; role < AGOQ_N_ROLES; role++) {
                    const agoq_ledger_entry now = add_up(tensors, n, layer, role);
                    peak[layer + 1][role + 1] = now.live_bytes;
                    peak16[layer + 1][role + 1] = now.live_bytes16;
                }
            }
        }
        if (n && (n == MAX_TENSORS || next_random(2))) {
            const uint32_t gone = next_random((uint32_t)n);
            assert_int_equal(
                ledger_remove(&l, tensors[gone].layer, tensors[gone].role, &tensors[gone].layout), AGOQ_OK);
            tensors[gone] = tensors[--n];
        } else {
            tensor t = {(int)next_random(LAYERS), (int)next_random(AGOQ_N_ROLES),
                        layout_of(widths[next_random(5)], next_random(40), next_random(300))};
            assert_int_equal(ledger_add(&l, t.layer, t.role, &t.layout), AGOQ_OK);
            tensors[n++] = t;
        }
        for (int layer = -1; layer < LAYERS; layer++) {
            for (int role = -1; role < AGOQ_N_ROLES; role++) {
                const agoq_ledger_entry want = add_up(tensors, n, layer, role);
                agoq_ledger_entry got;
                ledger_get(&l, layer, role, &got);
                uint64_t *most = &peak[layer + 1][role + 1], *most16 = &peak16[layer + 1][role + 1];
                if (want.live_bytes > *most) *most = want.live_bytes;
                if (want.live_bytes16 > *most16) *most16 = want.live_bytes16;
                assert_int_equal(got.live_bytes, want.live_bytes);
                assert_int_equal(got.live_bytes16, want.live_bytes16);
                assert_int_equal(got.live_tensors, want.live_tensors);
                assert_int_equal(got.peak_bytes, *most);
                assert_int_equal(got.peak_bytes16, *most16);
            }
        }
        assert_int_equal(ledger_live_tensors(&l), n);
    }
    ledger_fini(&l);
}

static void refuses_what_it_cannot_count(void **state) {
    (void)state;
    ledger l = {0};
    const agoq_layout good = layout_of(4, 8, 64), other = layout_of(8, 8, 64);
    agoq_layout forged = good;
    forged.bytes -= AGOQ_PLANE_ALIGN;
    assert_int_equal(ledger_add(&l, -1, 0, &good), AGOQ_E_INVAL);
    assert_int_equal(ledger_add(&l, LEDGER_MAX_LAYERS, 0, &good), AGOQ_E_INVAL);
    assert_int_equal(ledger_add(&l, 0, -1, &good), AGOQ_E_INVAL);
    assert_int_equal(ledger_add(&l, 0, AGOQ_N_ROLES, &good), AGOQ_E_INVAL);
    assert_int_equal(ledger_add(&l, 0, 0, &forged), AGOQ_E_INVAL);
    forged = good;
    forged.bits = 7;
    assert_int_equal(ledger_add(&l, 0, 0, &forged), AGOQ_E_INVAL);
    assert_int_equal(ledger_remove(&l, 0, 0, &good), AGOQ_E_STATE);
    assert_int_equal(ledger_remove(&l, -1, 0, &good), AGOQ_E_INVAL);
    assert_int_equal(ledger_add(&l, 3, 0, &good), AGOQ_OK);
    assert_int_equal(ledger_remove(&l, 3, 1, &good), AGOQ_E_STATE);
    assert_int_equal(ledger_remove(&l, 2, 0, &good), AGOQ_E_STATE);
    assert_int_equal(ledger_remove(&l, 3, 0, &other), AGOQ_E_STATE); /* the last one must leave zero behind */
    assert_int_equal(ledger_remove(&l, 3, 0, &good), AGOQ_OK);
    assert_int_equal(ledger_remove(&l, 3, 0, &good), AGOQ_E_STATE);
    assert_int_equal(ledger_add(&l, LEDGER_MAX_LAYERS - 1, AGOQ_N_ROLES - 1, &good), AGOQ_OK);
    agoq_ledger_entry e;
    ledger_get(&l, -2, 0, &e);
    assert_int_equal(e.live_tensors, 0);
    ledger_get(&l, 0, AGOQ_N_ROLES, &e);
    assert_int_equal(e.live_tensors, 0);
    ledger_get(&l, -1, -1, &e);
    assert_int_equal(e.live_tensors, 1);
    ledger_fini(&l);
}

static void allocates_at_the_first_touch_only(void **state) {
    (void)state;
    ledger l = {0};
    const agoq_layout t = layout_of(4, 8, 64);
    mem_fail_after(1);
    assert_int_equal(ledger_add(&l, 5, 0, &t), AGOQ_E_NOMEM);
    mem_fail_after(0);
    agoq_ledger_entry e;
    ledger_get(&l, -1, -1, &e);
    assert_int_equal(e.live_tensors, 0);
    assert_int_equal(ledger_reserve(&l, 8), AGOQ_OK);
    mem_fail_after(1);
    for (int i = 0; i < 8; i++) assert_int_equal(ledger_add(&l, i, 0, &t), AGOQ_OK);
    assert_int_equal(ledger_add(&l, 8, 0, &t), AGOQ_E_NOMEM);
    ledger_get(&l, -1, -1, &e);
    assert_int_equal(e.live_tensors, 8);
    mem_fail_after(0);
    assert_int_equal(ledger_reserve(&l, LEDGER_MAX_LAYERS + 1), AGOQ_E_LIMIT);
    ledger_fini(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_the_model),
        cmocka_unit_test(refuses_what_it_cannot_count),
        cmocka_unit_test(allocates_at_the_first_touch_only),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
