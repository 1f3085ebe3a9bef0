/* CODE4: 16 levels for 4 bits, fitted to normal data in blocks of 64 (Lloyd, weighted by d^2), multiples of
 * 1/8; -8 and 0 stay, so that everything but the levels is as in INT4. The code of t is a cubic of t, rounded
 * to an integer: the cubic is within 0.05 of what would find the nearest level, costs one instruction more
 * than INT4's rounding on a GPU and no table, and the error grows by 0.7 % of itself. The trade-off: the
 * multiply-adds are fused by name, which is slow where a machine has no such instruction. Code by code, t
 * goes over at one place and never back, which not every cubic does (tests/vectors/thresholds.txt has the
 * places).
 */
#ifndef KERNELS_FORMAT_CODE4_H
#define KERNELS_FORMAT_CODE4_H

#include <math.h>

#include "kernels/format/hd.h"

/* code - 8 is the integer nearest to ((CUBE t + SQUARE) t + LINE) t. */
#define AGOQK_CODE4_CUBE   (-3.0f / 512.0f)
#define AGOQK_CODE4_SQUARE (-23.0f / 4096.0f)
#define AGOQK_CODE4_LINE   (21.0f / 16.0f)
/* Every level in eighths, ascending: code, level. */
#define AGOQK_CODE4_LEVELS(X)                                                                                \
    X(0, -64)                                                                                                \
    X(1, -50)                                                                                                \
    X(2, -40)                                                                                                \
    X(3, -32)                                                                                                \
    X(4, -25)                                                                                                \
    X(5, -18) X(6, -12) X(7, -6) X(8, 0) X(9, 6) X(10, 12) X(11, 19) X(12, 26) X(13, 34) X(14, 43) X(15, 55)

/* Codes 0 .. 7 and 8 .. 15 as bytes, the first lowest. */
#define AGOQK_CODE4_LOW_BYTE(c, level)  +((uint64_t)((level) & ((c) < 8 ? 0xFF : 0)) << 8 * ((c) % 8))
#define AGOQK_CODE4_HIGH_BYTE(c, level) +((uint64_t)((level) & ((c) < 8 ? 0 : 0xFF)) << 8 * ((c) % 8))
#define AGOQK_CODE4_LOW                 (0 AGOQK_CODE4_LEVELS(AGOQK_CODE4_LOW_BYTE))
#define AGOQK_CODE4_HIGH                (0 AGOQK_CODE4_LEVELS(AGOQK_CODE4_HIGH_BYTE))

AGOQ_HD int32_t agoqk_code4_eighths(uint32_t code) {
    const uint64_t low = AGOQK_CODE4_LOW, both = AGOQK_CODE4_LOW ^ AGOQK_CODE4_HIGH;
    const uint64_t half = low ^ (both & (0 - (uint64_t)(code >> 3 & 1u)));
    return (int32_t)((half >> 8 * (code & 7u) & 0xFFu) ^ 0x80u) - 0x80;
}

/* Never above 15: the cubic is 7.14 at 8. */
AGOQ_HD uint32_t agoqk_code4_nearest(float t) {
    t = t < -8.0f ? -8.0f : t;
    t = t > 8.0f ? 8.0f : t;
    const float slope = fmaf(t, fmaf(t, AGOQK_CODE4_CUBE, AGOQK_CODE4_SQUARE), AGOQK_CODE4_LINE);
    return agoqk_bits(fmaf(t, slope, AGOQK_ROUND_MAGIC)) - AGOQK_ROUND_MAGIC_BITS + 8u;
}

/* Away from zero with the probability of the fraction of the way between two levels. In eighths; all of it is
 * exact, as levels have at most 6 bits, and a gap times 17 bits fits. Beyond the last level nothing goes up;
 * below the first everything does. No choice is written as one, so that loops over it vectorise. */
AGOQ_HD uint32_t agoqk_code4_stochastic(float t, uint32_t random) {
    uint32_t code = 0; /* of the next level above t, 1 .. 16 */
    t = t * 8.0f;
#define AGOQK_CODE4_PASS(c, level) code += (uint32_t)((c) == 0 || t >= (float)(level));
    AGOQK_CODE4_LEVELS(AGOQK_CODE4_PASS)
#undef AGOQK_CODE4_PASS
    const uint32_t minus = t < 0.0f;
    const int32_t below = agoqk_code4_eighths(code - 1), gap = agoqk_code4_eighths(code - code / 16) - below;
    const float inner = (float)(below + (int32_t)minus * gap); /* the level nearer to zero */
    const float rest = agoqk_float(agoqk_bits(t - inner) & 0x7FFFFFFFu);
    const uint32_t goes = (float)(int32_t)(2 * random + 1) * ((float)gap * 0x1p-17f) < rest;
    return code - 1 + ((minus ^ goes) & ~code >> 4 & 1u);
}

#endif
