/* The scalar encoders of kernels/format/ over long ranges of inputs, against a table of thresholds. Compiled
 * once per instruction set with the flags of kernels/cpu/, because that is how the kernels get them; a range
 * of 2^32 takes seconds, which is what lets a test walk all of them, many times. */
#ifndef TESTS_FULL_WALK_H
#define TESTS_FULL_WALK_H

#include "kernels/cpu/level.h"
#include "tests/thresholds.h"

/* What a walk found: how many codes differ, and the first input that got another one. */
typedef struct walk_result {
    uint64_t inputs, wrong;
    uint32_t first;
} walk_result;

/* Inputs with index from .. to of a table; negative: of a gradient, the negatives of these magnitudes. */
typedef walk_result walk_fn(const thr_table *table, uint32_t from, uint32_t to, int negative);

/* Codes of n <= 65536 bf16 patterns by the scale d. */
typedef void walk_bf16_fn(const uint16_t *x, int n, uint16_t d, int fmt, uint8_t *codes);

walk_fn AGOQK_CPU(walk_codes);
walk_bf16_fn AGOQK_CPU(walk_bf16);

#endif
