/* Test data and error measures shared by the numeric tests: a SplitMix64 generator and Box-Muller, so that
 * the data is the same on every machine up to libm, and relative errors in double. */
#ifndef TESTS_NUMERIC_H
#define TESTS_NUMERIC_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t next_random(uint64_t *state) {
    uint64_t z = (*state += 0x9E3779B97F4A7C15u);
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline double uniform(uint64_t *state) { /* (0, 1] */
    return ((double)(next_random(state) >> 11) + 1.0) * 0x1p-53;
}

static inline float gauss(uint64_t *state) {
    const double u = uniform(state), v = uniform(state);
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}

static inline float bf16_value(uint16_t h) {
    const uint32_t u = (uint32_t)h << 16;
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* Codes that a magnitude may move to are in ascending order; this one says whether a magnitude above the
 * midpoint of `code` and code + 1, or a tie with an odd code, has gone over. The midpoint is exact in double.
 */
static inline int goes_over(double mag, double here, double next, int code) {
    const double middle = (here + next) / 2;
    return mag > middle || (mag == middle && code % 2 == 1);
}

/* |got - want| / |want| over n elements. */
static inline double relative_error(const float *want, const float *got, int64_t n) {
    double error = 0, norm = 0;
    for (int64_t i = 0; i < n; i++) {
        const double d = (double)got[i] - (double)want[i];
        error += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(error / norm);
}

#endif
