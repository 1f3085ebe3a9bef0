/* walk.h at any level of this machine, over several threads, with a message that says which inputs are wrong.
 */
#ifndef TESTS_FULL_WALK_LEVELS_H
#define TESTS_FULL_WALK_LEVELS_H

#include <pthread.h>
#include <unistd.h>

#include "kernels/agoq_kernels.h"
#include "tests/full/walk.h"

typedef struct walk_level {
    const char *name;
    walk_fn *codes;
    walk_bf16_fn *bf16;
} walk_level;

#define WALK_LEVEL(level)                                                                                    \
    { #level, agoqk_##level##_walk_codes, agoqk_##level##_walk_bf16 }
walk_fn agoqk_base_walk_codes;
walk_bf16_fn agoqk_base_walk_bf16;
#if defined(__x86_64__)
walk_fn agoqk_avx2_walk_codes, agoqk_avx512_walk_codes;
walk_bf16_fn agoqk_avx2_walk_bf16, agoqk_avx512_walk_bf16;
#endif
static const walk_level walk_known[] = {WALK_LEVEL(base),
#if defined(__x86_64__)
                                        WALK_LEVEL(avx2), WALK_LEVEL(avx512)
#endif
};
#undef WALK_LEVEL

/* The i-th level of this machine, widest first; NULL beyond the last. */
static inline const walk_level *walk_level_at(int i) {
    const char *name = agoqk_cpu_level_name(i);
    for (size_t k = 0; name && k < sizeof walk_known / sizeof *walk_known; k++) {
        if (strcmp(walk_known[k].name, name) == 0) return &walk_known[k];
    }
    return NULL;
}

enum { WALK_MOST_THREADS = 64 };

static inline int walk_threads(void) {
    const long n = sysconf(_SC_NPROCESSORS_ONLN);
    return n < 1 ? 1 : n > WALK_MOST_THREADS ? WALK_MOST_THREADS : (int)n;
}

typedef struct walk_part {
    pthread_t thread;
    walk_fn *fn;
    const thr_table *table;
    uint32_t from, to;
    int negative, started;
    walk_result result;
} walk_part;

static inline void *walk_part_run(void *arg) {
    walk_part *p = arg;
    p->result = p->fn(p->table, p->from, p->to, p->negative);
    return NULL;
}

/* Number of wrong codes among inputs from .. to, which are told apart on stdout. */
static inline uint64_t walk_all(const walk_level *level, const thr_table *table, uint32_t from, uint32_t to,
                                int negative) {
    walk_part part[WALK_MOST_THREADS];
    const int n = walk_threads();
    const uint64_t inputs = (uint64_t)to - from + 1;
    uint64_t wrong = 0, walked = 0;
    for (int i = 0; i < n; i++) {
        part[i] = (walk_part){.fn = level->codes, .table = table, .negative = negative};
        part[i].from = from + (uint32_t)(inputs * (uint64_t)i / (uint64_t)n);
        part[i].to = from + (uint32_t)(inputs * (uint64_t)(i + 1) / (uint64_t)n - 1);
        part[i].started = pthread_create(&part[i].thread, NULL, walk_part_run, &part[i]) == 0;
        if (!part[i].started) walk_part_run(&part[i]);
    }
    for (int i = 0; i < n; i++) {
        if (part[i].started) pthread_join(part[i].thread, NULL);
        const walk_result *r = &part[i].result;
        walked += r->inputs;
        if (r->wrong && wrong == 0) {
            printf(
                "%s: format %d, gradients %d, scale %04X, random %d, %s: input %08X is the first wrong one\n",
                level->name, table->fmt, (int)table->format, (unsigned)table->scale, (int)table->random,
                negative ? "negative" : "as it is", (unsigned)r->first);
        }
        wrong += r->wrong;
    }
    return walked == inputs ? wrong : UINT64_MAX;
}

#endif
