/* The INT encoders over all inputs, against the exact thresholds of tests/vectors/thresholds.txt: every
 * finite float32 at 16 scales a format, to nearest at all of them and with extreme random bits at three, at
 * the widest instruction set; at scale 1 at every instruction set; every finite bf16 input at every scale
 * that an encoder writes; and the scale of every float. A changed tie rule is a few dozen wrong inputs in
 * 2^32: only a walk through all of them sees it. NaN and Inf never reach these encoders
 * (test_exhaustive_rows.c). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/format/int_block.h"
#include "tests/full/walk_levels.h"

static const int formats[] = {4, 5, 6, 8, AGOQ_FORMAT_CODE4};
enum { N_FORMATS = sizeof formats / sizeof *formats };
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

static void floats_at_named_scales(void **state) {
    (void)state;
    int walks = 0;
    uint64_t wrong = 0;
    const walk_level *level;
    for (int i = 0; (level = walk_level_at(i)); i++) {
        for (int t = 0; t < n_tables; t++) {
            if (tables[t].fmt == 0) continue;
            if (i > 0 && (tables[t].scale != 0x3F80 || tables[t].random >= 0)) continue;
            wrong += walk_all(level, &tables[t], THR_FIRST, THR_LAST, 0);
            walks++;
        }
    }
    print_message("%d walks through 2^32 - 2^24 finite floats\n", walks);
    assert_true(walks >= 28 * N_FORMATS);
    assert_true(wrong == 0);
}

typedef struct bf16_part {
    pthread_t thread;
    const walk_level *level;
    int first, step, started;
    uint64_t scales, wrong;
} bf16_part;

static void *bf16_run(void *arg) {
    bf16_part *p = arg;
    uint16_t x[2 * THR_BF16];
    uint8_t want[2 * THR_BF16], got[2 * THR_BF16];
    for (int i = 0; i < THR_BF16; i++) x[i] = (uint16_t)i, x[THR_BF16 + i] = (uint16_t)(0x8000 | i);
    for (int d = 0x80 + p->first; d <= 0x7E00; d += p->step) {
        for (int f = 0; f < N_FORMATS; f++) {
            if (d > (0x7E00 + (4 - formats[f] % 64) * 0x80))
                continue; /* 2^(128 - (b-1)): no block has more */
            for (int minus = 0; minus < 2; minus++) {
                p->level->bf16(x, 2 * THR_BF16, (uint16_t)(d | minus << 15), formats[f], got);
                thr_expect_bf16(&bf16_last, formats[f], (uint16_t)d, minus, want);
                thr_expect_bf16(&bf16_last, formats[f], (uint16_t)d, !minus, want + THR_BF16);
                p->wrong += memcmp(got, want, sizeof got) != 0;
                p->scales++;
            }
        }
    }
    return NULL;
}

static void bf16_at_all_scales(void **state) {
    (void)state;
    const walk_level *level;
    for (int i = 0; (level = walk_level_at(i)); i++) {
        bf16_part part[WALK_MOST_THREADS];
        const int n = walk_threads();
        uint64_t scales = 0, wrong = 0;
        for (int k = 0; k < n; k++) {
            part[k] = (bf16_part){.level = level, .first = k, .step = n};
            part[k].started = pthread_create(&part[k].thread, NULL, bf16_run, &part[k]) == 0;
            if (!part[k].started) bf16_run(&part[k]);
        }
        for (int k = 0; k < n; k++) {
            if (part[k].started) pthread_join(part[k].thread, NULL);
            scales += part[k].scales;
            wrong += part[k].wrong;
        }
        print_message("%s: %llu scales of 65,280 inputs, %llu wrong\n", level->name,
                      (unsigned long long)scales, (unsigned long long)wrong);
        assert_true(scales == 2 * (N_FORMATS * (0x7E01 - 0x80) - (0 + 1 + 2 + 4) * 0x80));
        assert_true(wrong == 0);
    }
}

/* Every float as the extreme of a block: the scale is the nearest bf16 of x / -2^(b-1), zeros below the
 * normal range; 7FC0 for NaN and Inf. */
static void scale_of_every_float(void **state) {
    (void)state;
    uint64_t wrong = 0;
    for (int f = 0; f < N_FORMATS; f++) {
        const int fmt = formats[f];
        const double divisor = -(double)(1 << (fmt % 64 - 1));
        for (uint32_t u = 0; u < AGOQK_INF_BITS; u++) {
            /* the two roundings of docs/FORMATS.md */
            const double want = (double)(float)((double)agoqk_float(u) / divisor);
            const uint16_t d = agoqk_int_scale(u << 1, fmt);
            const double got = (double)agoqk_bf16_decode(d),
                         step = ldexp(1, ilogb(fmax(-want, 0x1p-126)) - 7);
            wrong += d == 0 ? -want >= 0x1p-126 - 0x1p-134 : fabs(got - want) > step / 2 || (d & 0x7F80) == 0;
            wrong += agoqk_int_scale(u << 1 | 1, fmt) != (d ? d ^ 0x8000 : 0);
        }
        for (uint64_t stat = (uint64_t)AGOQK_INF_BITS << 1; stat <= UINT32_MAX; stat++)
            wrong += agoqk_int_scale((uint32_t)stat, fmt) != AGOQK_BF16_NAN;
    }
    assert_true(wrong == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bf16_at_all_scales),
                                       cmocka_unit_test(floats_at_named_scales),
                                       cmocka_unit_test(scale_of_every_float)};
    return cmocka_run_group_tests(tests, read_tables, free_tables);
}
