/* What QuanGrad must give, written down a second time for the tests: 8-bit formats by frexp and ldexp in
 * double, sums in fp32 in rank order. Shares no code with kernels/. The trade-off: slow, and only nearest
 * rounding. */
#ifndef TESTS_QUANGRAD_REF_H
#define TESTS_QUANGRAD_REF_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "agoq/agoq.h"

static const int64_t ref_counts[] = {0,   1,  7,  127, 128,
                                     129, -1, -2, -3,  5000}; /* negative: by number of ranks */
enum { REF_N_COUNTS = sizeof ref_counts / sizeof *ref_counts };

static inline int64_t ref_count(int i, int n_ranks) {
    int64_t n = ref_counts[i];
    return n >= 0 ? n : 128 * (int64_t)n_ranks + n + 2; /* 128 N + 1, 128 N, 128 N - 1 */
}

static inline int64_t ref_blocks(int64_t n) {
    return (n + 127) / 128;
}

/* A gradient of its own memory; codes start `skew` bytes past a malloc boundary. */
static inline agoq_grad ref_grad_new_as(agoq_grad_format format, int64_t n, int skew) {
    unsigned char *codes = malloc((size_t)n + 64);
    float *scales = malloc((size_t)(ref_blocks(n) + 1) * sizeof *scales);
    if (!codes || !scales) abort();
    memset(codes, 0xA5, (size_t)n + 64);
    memset(scales, 0xA5, (size_t)(ref_blocks(n) + 1) * sizeof *scales);
    return (agoq_grad){codes + skew, scales, n, format};
}

static inline agoq_grad ref_grad_new(int64_t n, int skew) {
    return ref_grad_new_as(AGOQ_GRAD_E4M3, n, skew);
}

static inline void ref_grad_free(agoq_grad *g, int skew) {
    free(g->codes - skew);
    free(g->scales);
}

/* Mantissa bits, exponent of the smallest step, largest value; INT8 is a row of small values alone. */
static const struct ref_format {
    int mantissa, step, largest;
} ref_formats[AGOQ_N_GRAD_FORMATS] = {{3, -9, 448}, {2, -16, 57344}, {7, 0, 127}};

static inline float ref_decode_as(agoq_grad_format format, uint8_t code, float scale) {
    const struct ref_format *f = &ref_formats[format];
    if (isnan(scale)) return NAN;
    if (format == AGOQ_GRAD_INT8) return (float)(code < 128 ? code : code - 256) * scale + 0.0f;
    const int whole = 1 << f->mantissa, exponent = (code & 0x7F) >> f->mantissa,
              mantissa = code & (whole - 1);
    if (format == AGOQ_GRAD_E4M3 ? (code & 0x7F) == 0x7F : (code & 0x7F) > 0x7C) return NAN;
    double v = exponent ? ldexp(whole + mantissa, exponent - 1 + f->step) : ldexp(mantissa, f->step);
    if (format == AGOQ_GRAD_E5M2 && (code & 0x7F) == 0x7C) v = INFINITY;
    const float x = (float)(code & 0x80 ? -v : v) * scale;
    return isnan(x) ? NAN : x + 0.0f;
}

static inline float ref_decode(uint8_t code, float scale) {
    return ref_decode_as(AGOQ_GRAD_E4M3, code, scale);
}

static inline float ref_at(const agoq_grad *g, int64_t i) {
    return ref_decode_as(g->format, g->codes[i], g->scales[i / 128]);
}

static inline uint8_t ref_code(agoq_grad_format format, float t) {
    const struct ref_format *f = &ref_formats[format];
    int exponent, steps;
    double mag = fabs((double)t);
    if (mag == 0) return 0;
    if (mag > f->largest) mag = f->largest;
    if (format == AGOQ_GRAD_INT8) {
        steps = (int)nearbyint(mag);
        return (uint8_t)(t < 0 ? 256 - steps : steps);
    }
    frexp(mag, &exponent); /* mag = f * 2^exponent, f in [1/2, 1) */
    int step = exponent - 1 - f->mantissa;
    if (step < f->step) step = f->step;
    steps = (int)nearbyint(ldexp(mag, -step)); /* 0 .. 2^(mantissa + 1) */
    /* a carry into the exponent comes out right */
    int code = ((step - f->step) << f->mantissa) + steps;
    return (uint8_t)(code | (t < 0 && code ? 0x80 : 0));
}

static inline void ref_encode(const float *x, agoq_grad *out) {
    for (int64_t b = 0; b < ref_blocks(out->n); b++) {
        int64_t first = b * 128, last = first + 128 < out->n ? first + 128 : out->n;
        float amax = 0;
        int finite = 1;
        for (int64_t i = first; i < last; i++) {
            finite &= isfinite(x[i]) != 0;
            if (fabsf(x[i]) > amax) amax = fabsf(x[i]);
        }
        const float largest = (float)ref_formats[out->format].largest;
        float s = !finite ? NAN : amax < largest * 0x1p-126f ? 0 : amax / largest;
        float inverse = s > 0 ? 1 / s : 0;
        out->scales[b] = s;
        for (int64_t i = first; i < last; i++)
            out->codes[i] = s > 0 ? ref_code(out->format, x[i] * inverse) : 0;
    }
}

/* out[i] = multiplier * sum over ranks, in fp32, in rank order. */
static inline void ref_sum(const agoq_grad *in, int n_ranks, float multiplier, float *out) {
    for (int64_t i = 0; i < in[0].n; i++) {
        float sum = ref_at(&in[0], i);
        for (int r = 1; r < n_ranks; r++) sum += ref_at(&in[r], i);
        out[i] = multiplier * sum;
    }
}

/* Deterministic noise, the same on every machine: splitmix64, Box-Muller. */
static inline uint64_t ref_random(uint64_t *state) {
    uint64_t z = *state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

static inline float ref_gauss(uint64_t *state) {
    double u = (double)((ref_random(state) >> 11) + 1) * 0x1p-53,
           v = (double)(ref_random(state) >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* Gaussian, with a scale of its own per block. */
static inline void ref_fill(agoq_grad *g, int rank, int64_t tag) {
    uint64_t state = (uint64_t)tag * 1000003u + (uint64_t)rank;
    float *x = malloc((size_t)(g->n + 1) * sizeof *x);
    if (!x) abort();
    for (int64_t i = 0; i < g->n; i++) x[i] = ref_gauss(&state) * (float)(1 + i / 128 % 5) * 0.01f;
    ref_encode(x, g);
    free(x);
}

static inline int ref_same_float(float a, float b) {
    return a == b || (isnan(a) && isnan(b));
}

/* Index of the first element whose value differs, -1 if none. Codes are compared as values: -0 is 0, and the
 * codes of a NaN block say nothing. */
static inline int64_t ref_first_difference(const agoq_grad *a, const agoq_grad *b) {
    for (int64_t i = 0; i < a->n; i++) {
        float sa = a->scales[i / 128], sb = b->scales[i / 128];
        if (!ref_same_float(sa, sb)) return i;
        if (!ref_same_float(ref_at(a, i), ref_at(b, i))) return i;
    }
    return -1;
}

static inline int ref_same_bytes(const agoq_grad *a, const agoq_grad *b) {
    return a->n == 0 || (memcmp(a->codes, b->codes, (size_t)a->n) == 0 &&
                         memcmp(a->scales, b->scales, (size_t)ref_blocks(a->n) * sizeof *a->scales) == 0);
}

#endif
