/* The kernels themselves, at every instruction set of this machine, over all floats that can stand in a block
 * of scale 1 (gradients of each format, both signs; every width, scales 1 and -1) against the exact
 * thresholds, and at the other named scales over all bf16 inputs and 64 floats on either side of every
 * threshold. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <pthread.h>
#include <unistd.h>

#include "tests/threshold_rows.h"

enum { MOST_THREADS = 64, NEAR = 64 };

static thr_bf16 bf16_last;
static thr_table *tables;
static int n_tables;

static int read_tables(void **state) {
    (void)state;
    tables = thr_read(&n_tables, &bf16_last);
    return tables ? 0 : -1;
}

static int free_tables(void **state) {
    (void)state;
    free(tables);
    return 0;
}

typedef struct part {
    pthread_t thread;
    const agoqk_ops *ops;
    const thr_table *table;
    int number, of, started;
    uint64_t inputs, wrong;
} part;

static void check(part *p, trow_work *w, int n) {
    const thr_table *t = p->table;
    if (n == 0) return;
    p->inputs += (uint64_t)n;
    if (t->fmt) {
        p->wrong += !trow_check_int(p->ops, t, w, n);
    } else {
        p->wrong += !trow_check_grad(p->ops, t, w, n, 0) || !trow_check_grad(p->ops, t, w, n, 1);
    }
}

static void range_of(const thr_table *t, uint32_t *from, uint32_t *to) {
    if (t->fmt) {
        trow_range(t, from, to);
    } else {
        *from = 0;
        *to = trow_largest(t->format);
    }
}

/* Every part takes every `of`-th chunk. */
static void *all_inputs(void *arg) {
    part *p = arg;
    trow_work *w = malloc(sizeof *w);
    uint32_t from, to;
    range_of(p->table, &from, &to);
    for (uint64_t at = from + (uint64_t)p->number * TROW_INPUTS; w && at <= to;
         at += (uint64_t)p->of * TROW_INPUTS) {
        int n = 0;
        while (n < TROW_INPUTS && at + (uint64_t)n <= to) w->index[n] = (uint32_t)at + (uint32_t)n, n++;
        check(p, w, n);
    }
    p->wrong += w == NULL;
    free(w);
    return NULL;
}

/* Ascending within each call of check, which is all that it asks. */
static void take(part *p, trow_work *w, int *n, uint64_t index, uint32_t from, uint32_t to) {
    if (index < from || index > to) return;
    w->index[(*n)++] = (uint32_t)index;
    if (*n < TROW_INPUTS) return;
    check(p, w, *n);
    *n = 0;
}

static void *chosen_inputs(void *arg) {
    part *p = arg;
    const thr_table *t = p->table;
    trow_work *w = malloc(sizeof *w);
    uint32_t from, to;
    int n = 0;
    range_of(t, &from, &to);
    for (int c = 0; w && c < t->n; c++) {
        for (int64_t k = (int64_t)t->end[c] - NEAR; k <= (int64_t)t->end[c] + NEAR; k++)
            if (k >= 0) take(p, w, &n, (uint64_t)k, from, to);
    }
    for (uint32_t h = 0; w && h <= 0xFFFF; h++) take(p, w, &n, thr_order(h << 16), from, to);
    if (w) check(p, w, n);
    p->wrong += w == NULL;
    free(w);
    return NULL;
}

static void run(void *(*walk)(void *), int level, const thr_table *t, int n, uint64_t *inputs,
                uint64_t *wrong) {
    part parts[MOST_THREADS];
    uint64_t bad = 0;
    for (int i = 0; i < n; i++) {
        parts[i] = (part){.ops = agoqk_cpu_level(level), .table = t, .number = i, .of = n};
        parts[i].started = pthread_create(&parts[i].thread, NULL, walk, &parts[i]) == 0;
        if (!parts[i].started) walk(&parts[i]);
    }
    for (int i = 0; i < n; i++) {
        if (parts[i].started) pthread_join(parts[i].thread, NULL);
        *inputs += parts[i].inputs;
        bad += parts[i].wrong;
    }
    if (bad) {
        print_message("%s: format %d, gradients %d, scale %04X: %llu wrong calls\n",
                      agoqk_cpu_level_name(level), t->fmt, (int)t->format, (unsigned)t->scale,
                      (unsigned long long)bad);
    }
    *wrong += bad;
}

static int threads(void) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > MOST_THREADS ? MOST_THREADS : (int)n;
}

static int is_scale_one(const thr_table *t) {
    return t->fmt == 0 || (t->scale & 0x7FFF) == 0x3F80;
}

static void all_at_scale_one(void **state) {
    (void)state;
    uint64_t inputs = 0, wrong = 0;
    for (int level = 0; agoqk_cpu_level(level); level++) {
        for (int i = 0; i < n_tables; i++) {
            if (tables[i].random < 0 && is_scale_one(&tables[i]))
                run(all_inputs, level, &tables[i], threads(), &inputs, &wrong);
        }
    }
    print_message("%llu inputs\n", (unsigned long long)inputs);
    /* the smallest range, gradients of INT8, has 1.1e9 magnitudes */
    assert_true(inputs > UINT64_C(13) * 1100000000);
    assert_true(wrong == 0);
}

static void chosen_at_other_scales(void **state) {
    (void)state;
    uint64_t inputs = 0, wrong = 0;
    for (int level = 0; agoqk_cpu_level(level); level++) {
        for (int i = 0; i < n_tables; i++) {
            if (tables[i].random < 0 && !is_scale_one(&tables[i]))
                run(chosen_inputs, level, &tables[i], 1, &inputs, &wrong);
        }
    }
    print_message("%llu inputs\n", (unsigned long long)inputs);
    assert_true(inputs > 4 * 14 * 16);
    assert_true(wrong == 0);
}

enum { NONFINITE_STRIDE = 61 };

/* Blocks of ones with one element from `pattern` on, another in each; 1 if every one became a NaN block. */
static int nan_blocks(const agoqk_ops *ops, int fmt, agoq_grad_format format, uint32_t pattern,
                      trow_work *w) {
    const int size = fmt ? AGOQ_BLOCK : AGOQ_GRAD_BLOCK, n = TROW_BLOCKS * size;
    uint32_t nonfinite = 0;
    float scales[TROW_BLOCKS];
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &nonfinite};
    int good = 1;
    for (int i = 0; i < n; i++) w->x[i] = 1.0f;
    for (int b = 0; b < TROW_BLOCKS; b++)
        w->x[b * size + b % size] = thr_float(pattern + (uint32_t)b * NONFINITE_STRIDE);
    if (fmt) {
        agoq_packed packed = {.data = w->packed};
        const agoq_view in = {w->x, AGOQ_DTYPE_F32, 1, n, n}, out = {w->got, AGOQ_DTYPE_F32, 1, n, n};
        good = agoq_layout_make(fmt, 1, n, &packed.layout) == AGOQ_OK &&
               packed.layout.bytes <= sizeof w->packed && ops->pack(&exec, &in, NULL, &packed) == AGOQ_OK;
        for (int b = 0; good && b < TROW_BLOCKS; b++)
            good = memcmp(w->packed + packed.layout.scale_offset + 2 * b, "\xC0\x7F", 2) == 0;
        good = good && ops->unpack(&exec, &packed, &out) == AGOQ_OK;
        for (int i = 0; good && i < n; i++) good = thr_bits(w->got[i]) == 0x7FC00000u;
    } else {
        const agoq_grad_term term = {{w->codes, scales, n, format}, w->x, {0}};
        good = ops->grad_zero(&exec, &term.grad) == AGOQ_OK &&
               ops->grad_accumulate(&exec, &term, 1, AGOQ_DTYPE_F32, 0) == AGOQ_OK;
        for (int b = 0; good && b < TROW_BLOCKS; b++) good = thr_bits(scales[b]) == 0x7FC00000u;
        for (int i = 0; good && i < n; i++) good = w->codes[i] == 0;
    }
    return good && nonfinite == TROW_BLOCKS;
}

static void not_finite(void **state) {
    static const int formats[] = {4, 5, 6, 8, AGOQ_FORMAT_CODE4};
    enum { N = sizeof formats / sizeof *formats };
    (void)state;
    trow_work *w = malloc(sizeof *w);
    assert_non_null(w);
    int calls = 0, wrong = 0;
    for (int level = 0; agoqk_cpu_level(level); level++) {
        for (int kind = 0; kind < N + AGOQ_N_GRAD_FORMATS; kind++) {
            for (uint32_t u = 0x7F800000; u < 0x80000000u - TROW_BLOCKS * NONFINITE_STRIDE;
                 u += TROW_BLOCKS * NONFINITE_STRIDE) {
                for (uint32_t sign = 0; sign < 2; sign++, calls++)
                    wrong += !nan_blocks(agoqk_cpu_level(level), kind < N ? formats[kind] : 0,
                                         (agoq_grad_format)(kind < N ? 0 : kind - N), u | sign << 31, w);
            }
        }
    }
    free(w);
    assert_true(calls > 8 * 2000);
    assert_int_equal(wrong, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(not_finite), cmocka_unit_test(chosen_at_other_scales),
                                       cmocka_unit_test(all_at_scale_one)};
    return cmocka_run_group_tests(tests, read_tables, free_tables);
}
