/* 8-bit optimizer state: Dettmers' dynamic map (8-bit optimizers via block-wise quantization, 2021), seven
 * decades with twice as many levels in each as in the one below. Levels come from a closed rule, not from a
 * typed-in table: code -> (decade e, step j) by the top bit, then one correctly rounded division of two
 * integers that float holds exactly. */
#ifndef KERNELS_FORMAT_DYNMAP_H
#define KERNELS_FORMAT_DYNMAP_H

#include "kernels/format/hd.h"

#define AGOQK_ADAM_BLOCK         256
#define AGOQK_DYNMAP_ZERO_SIGNED 127 /* code of 0 in the signed map; it is 0 in the unsigned one */

/* Step j of n = 2^log_n in decade e (0 .. 6): 10^(e-6) * (0.1 + 0.9 * (j + 1/2) / n)
 * = (2n + 9 (2j + 1)) / (2n * 10^(7-e)). */
AGOQ_HD float agoqk_dynmap_step(int e, int log_n, int j) {
    int32_t ten = 1;
    for (int i = e; i < 7; i++) ten *= 10;
    const int32_t two_n = 2 << log_n;
    return (float)(two_n + 9 * (2 * j + 1)) / (float)(two_n * ten);
}

AGOQ_HD int agoqk_dynmap_top_bit(int n) {
    int bit = 0;
    while (n >> (bit + 1)) bit++;
    return bit;
}

/* Level of a code, ascending; signed: 127 negative levels, 0, 127 positive levels, 1. */
AGOQ_HD float agoqk_dynmap_signed(int code) {
    if (code == AGOQK_DYNMAP_ZERO_SIGNED) return 0.0f;
    if (code == 255) return 1.0f;
    const int n = code > 127 ? code - 127 : 127 - code; /* 1 .. 127 = 2^e + j */
    const int e = agoqk_dynmap_top_bit(n);
    const float level = agoqk_dynmap_step(e, e, n - (1 << e));
    return code > 127 ? level : -level;
}

/* Unsigned: 0, 254 levels, 1. */
AGOQ_HD float agoqk_dynmap_unsigned(int code) {
    if (code == 0) return 0.0f;
    if (code == 255) return 1.0f;
    const int n = code + 1; /* 2 .. 255 = 2^(e+1) + j */
    const int top = agoqk_dynmap_top_bit(n);
    return agoqk_dynmap_step(top - 1, top, n - (1 << top));
}

/* One step of finding the code of t, steps being taken with half = 128, 64, .. 1 from code 0: the number of
 * the 255 midpoints (level[c] + level[c+1]) * 0.5f below t, so that a tie takes the lower level. t not NaN.
 */
AGOQ_HD int agoqk_dynmap_halve(const float *middles, float t, int code, int half) {
    return code + (middles[code + half - 1] < t) * half;
}

/* What elements are multiplied by to lie in [-1, 1]; 0 if absmax is subnormal: its inverse may overflow, and
 * they are divided instead. absmax > 0. */
AGOQ_HD float agoqk_dynmap_inverse(float absmax) {
    return absmax < 0x1p-126f ? 0.0f : 1.0f / absmax;
}

/* An element in units of absmax. */
AGOQ_HD float agoqk_dynmap_unit(float x, float absmax, float inverse) {
    return inverse > 0.0f ? x * inverse : x / absmax;
}

AGOQ_HD float agoqk_dynmap_middle(float level, float next) {
    return (level + next) * 0.5f;
}

/* The same codes without bisection, for t in [-1 - 2^-7, 1 + 2^-7]: floats from 2^-22 up are cut into cells
 * of 2^16, few enough for a table and so small that none holds two midpoints. An entry is c << 16, c being
 * the midpoints below the cell, plus what makes the low half of a float above the cell's own midpoint carry
 * into c, less the cell's first float: entry + float is then (midpoints below) << 16. Of the midpoints
 * between 0 and the level after it only those above 2^-22 are seen. */
#define AGOQK_DYNMAP_LEAST      0x1p-22f
#define AGOQK_DYNMAP_FIRST_CELL 0x3480u /* its upper half */
#define AGOQK_DYNMAP_CELLS      (0x3F80 - 0x3480 + 1)

AGOQ_HD uint32_t agoqk_dynmap_cell_first(int cell) {
    return (AGOQK_DYNMAP_FIRST_CELL + (uint32_t)cell) << 16;
}

/* How many of n midpoints, not negative and ascending, lie below a cell. */
AGOQ_HD int agoqk_dynmap_below(const float *middles, int n, int cell) {
    int below = 0;
    for (int half = 128; half > 0; half >>= 1) {
        if (below + half <= n && agoqk_bits(middles[below + half - 1]) < agoqk_dynmap_cell_first(cell))
            below += half;
    }
    return below;
}

/* Entry of a cell above that many. */
AGOQ_HD uint32_t agoqk_dynmap_entry(const float *middles, int n, int cell, int below) {
    const uint32_t first = agoqk_dynmap_cell_first(cell);
    const uint32_t middle = below < n ? agoqk_bits(middles[below]) : 0;
    const uint32_t carry = middle >> 16 == first >> 16 ? 0xFFFFu - (middle & 0xFFFFu) : 0;
    return ((uint32_t)below << 16) + carry - first;
}

/* What is looked up: |t|, and for a negative t the next float: a tie goes to the lower level, which is the
 * one farther from 0. A NaN, which no block with an absmax has, counts as 0. */
AGOQ_HD uint32_t agoqk_dynmap_key(float t) {
    const float mag = agoqk_float(agoqk_bits(t) & 0x7FFFFFFFu);
    return agoqk_bits(mag > AGOQK_DYNMAP_LEAST ? mag : AGOQK_DYNMAP_LEAST) + (agoqk_bits(t) >> 31);
}

/* Midpoints below the key, << 16; the low half is of no use. */
AGOQ_HD uint32_t agoqk_dynmap_count(const uint32_t *cells, uint32_t key) {
    return cells[(key >> 16) - AGOQK_DYNMAP_FIRST_CELL] + key;
}

/* The midpoints that the cells of the signed map are made from: the 128 above 0. Code: 127 + count for t >=
 * 0, 127 - min(count, 127) below. */
AGOQ_HD float agoqk_dynmap_middle_signed(int i) {
    return agoqk_dynmap_middle(agoqk_dynmap_signed(127 + i), agoqk_dynmap_signed(128 + i));
}

/* Of the unsigned map, 255, of which the first is 0: an element above zero never gets code 0. Code: count,
 * but 0 for an element that is 0. */
AGOQ_HD float agoqk_dynmap_middle_unsigned(int i) {
    return i == 0 ? 0.0f : agoqk_dynmap_middle(agoqk_dynmap_unsigned(i), agoqk_dynmap_unsigned(i + 1));
}

#endif
