/* What threads may share beside the rows of a tensor (test_placement.c): a counter, and what one has written
 * once it says so. Both depend on timing, so each is tried many times; one miss fails. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/row_fixture.h"

/* ---- counters ---- */

enum { THREADS = 4, WIDTH = 96 };

/* Calls that meet one bad block each (Adam two: m and v), and what they count them in. */
typedef struct counting {
    agoq_exec exec;
    uint32_t *blocks;
    int which;
    float x[2 * WIDTH];
    pthread_barrier_t *start;
    agoq_status status;
} counting;

enum { COUNT_PACK, COUNT_ACCUMULATE, COUNT_FINITE, COUNT_ADAM, N_COUNTING };
static const uint32_t bad_blocks[N_COUNTING] = {1, 1, 1, 2};
static const int n_calls[N_COUNTING] = {20000, 20000, 500000, 20000};

static agoq_status count_once(counting *c) {
    _Alignas(16) uint8_t packed[512], codes[WIDTH] = {0}, m[WIDTH] = {0}, v[WIDTH] = {0};
    float scale = 1.0f, tops[2] = {1.0f, 1.0f};
    agoq_grad grad = {codes, &scale, WIDTH, AGOQ_GRAD_E4M3};
    agoq_packed p = {.data = packed};
    const agoq_view x = {c->x, AGOQ_DTYPE_F32, 1, WIDTH, WIDTH};
    agoq_adam8 state = {m, v, &tops[0], &tops[1], WIDTH};
    const agoq_adam_params adam = AGOQ_ADAM_PARAMS_INIT;
    const agoq_adam_source source = {.grad = c->x, .dtype = AGOQ_DTYPE_F32};
    const agoq_adam_target target = {.master = c->x + WIDTH};
    switch (c->which) {
    case COUNT_PACK:
        return agoq_layout_make(4, 1, WIDTH, &p.layout) == AGOQ_OK ? agoq_pack(&c->exec, &x, NULL, &p)
                                                                   : AGOQ_E_INVAL;
    case COUNT_ACCUMULATE:
        return agoq_grad_accumulate(&c->exec, c->x, AGOQ_DTYPE_F32, NULL, &grad);
    case COUNT_FINITE:
        scale = c->x[1];
        return agoq_grad_check_finite(&c->exec, &grad, c->blocks);
    default:
        return agoq_adam8_step(&c->exec, &adam, &source, &target, &state);
    }
}

static void *count_many(void *arg) {
    counting *c = arg;
    pthread_barrier_wait(c->start);
    for (int i = 0; i < n_calls[c->which] && c->status == AGOQ_OK; i++) c->status = count_once(c);
    return NULL;
}

static void counters(void **state) {
    (void)state;
    for (int which = 0; which < N_COUNTING; which++) {
        uint32_t counter = 7;
        counting c[THREADS];
        pthread_t id[THREADS];
        pthread_barrier_t start;
        assert_int_equal(pthread_barrier_init(&start, NULL, THREADS), 0);
        for (int i = 0; i < THREADS; i++) {
            c[i] = (counting){.blocks = &counter, .which = which, .start = &start};
            c[i].exec = (agoq_exec){.device = AGOQ_DEVICE_CPU, .nonfinite = &counter};
            c[i].x[1] = INFINITY;
            assert_int_equal(pthread_create(&id[i], NULL, count_many, &c[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(id[i], NULL);
            assert_int_equal(c[i].status, AGOQ_OK);
        }
        pthread_barrier_destroy(&start);
        assert_int_equal(counter, 7 + THREADS * (uint32_t)n_calls[which] * bad_blocks[which]);
    }
}

/* ---- what is written is there ---- */

/* Rows of two and a half cache lines, of which the last ends within one: a line that is not full is what the
 * processor keeps longest. */
enum { ROWS = 106000, COLS = 64, STRIDE = 80, TURNS = 150 };

typedef struct handing {
    agoq_packed packed[2];
    uint16_t *y;
    uint32_t turn; /* of the last tensor that is there; set by one thread, read by the other */
    uint32_t seen, stale;
    agoq_status status;
} handing;

static uint16_t expected(uint32_t turn) {
    return turn % 2 ? 0x3F80 : 0xC000; /* 1, -2 */
}

/* Looks at the end of a tensor as soon as it is said to be there, then asks for the next. */
static void *look(void *arg) {
    handing *h = arg;
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        while (__atomic_load_n(&h->turn, __ATOMIC_ACQUIRE) != turn) sched_yield();
        const uint16_t *last = h->y + (int64_t)(ROWS - 1) * STRIDE;
        for (int i = COLS - 1; i >= 0; i--) h->stale += last[i] != expected(turn);
        __atomic_store_n(&h->seen, turn, __ATOMIC_RELEASE);
    }
    return NULL;
}

/* A tensor beyond the caches is written by stores that no ordinary store waits for. */
static void large_tensors_are_there(void **state) {
    (void)state;
    handing h = {.turn = 0};
    h.y = aligned_alloc(64, (size_t)ROWS * STRIDE * sizeof *h.y);
    assert_non_null(h.y);
    agoq_view y = {h.y, AGOQ_DTYPE_BF16, ROWS, COLS, STRIDE};
    for (uint32_t k = 0; k < 2; k++) {
        for (int64_t i = 0; i < (int64_t)ROWS * STRIDE; i++) h.y[i] = expected(k);
        h.packed[k] = packed_new(8, ROWS, COLS);
        assert_int_equal(agoq_pack(NULL, &y, NULL, &h.packed[k]), AGOQ_OK);
    }
    pthread_t id;
    assert_int_equal(pthread_create(&id, NULL, look, &h), 0);
    for (uint32_t turn = 1; turn <= TURNS; turn++) {
        const agoq_status status = agoq_unpack(NULL, &h.packed[turn % 2], &y);
        __atomic_store_n(&h.turn, turn, __ATOMIC_RELEASE);
        if (status != AGOQ_OK) h.status = status;
        while (__atomic_load_n(&h.seen, __ATOMIC_ACQUIRE) != turn) sched_yield();
    }
    pthread_join(id, NULL);
    assert_int_equal(h.status, AGOQ_OK);
    assert_int_equal(h.stale, 0);
    for (int k = 0; k < 2; k++) free(h.packed[k].data);
    free(h.y);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(counters), cmocka_unit_test(large_tensors_are_there)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
