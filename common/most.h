/* The larger or smaller of two numbers, by type: macros would evaluate twice, and C11 has no others. */
#ifndef COMMON_MOST_H
#define COMMON_MOST_H

#include <stdint.h>

static inline uint64_t most_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

static inline int64_t most_i64(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t least_i64(int64_t a, int64_t b) {
    return a < b ? a : b;
}

#endif
