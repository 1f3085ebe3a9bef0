/* The plane word rule of include/agoq/format.h: a plane of k bits per element is made of 32-bit little-endian
 * words of 32/k elements; element j of a word sits at bit k*(j/2) + 16*(j%2). Why: (word >> k*i) & mask then
 * holds the pair (2i, 2i+1) in its two 16-bit halves, which is what a 2-wide bf16 instruction wants. */
#ifndef KERNELS_FORMAT_PLANE_H
#define KERNELS_FORMAT_PLANE_H

#include "kernels/format/hd.h"

AGOQ_HD int agoqk_plane_shift(int j, int k) {
    return k * (j / 2) + 16 * (j % 2);
}

/* The rule for eight consecutive codes at once, k <= 4: byte j of `codes` is code j, of which the low k bits
 * count. Their 4 k + 4 k bits come out where a word's first eight elements go; the next eight go 4 k bits
 * higher. */
AGOQ_HD uint32_t agoqk_plane_fold(uint64_t codes, int k) {
    const uint64_t one = ((uint64_t)1 << k) - 1, two = ((uint64_t)1 << 2 * k) - 1,
                   four = ((uint64_t)1 << 4 * k) - 1;
    uint64_t even = codes & one * 0x0001000100010001u, odd = codes >> 8 & one * 0x0001000100010001u;
    even = (even | even >> (16 - k)) & two * 0x0000000100000001u;
    odd = (odd | odd >> (16 - k)) & two * 0x0000000100000001u;
    even = (even | even >> (32 - 2 * k)) & four;
    odd = (odd | odd >> (32 - 2 * k)) & four;
    return (uint32_t)(even | odd << 16);
}

/* The inverse; bits of `word` above the low 4 k of either half do not count. */
AGOQ_HD uint64_t agoqk_plane_spread(uint32_t word, int k) {
    const uint64_t one = ((uint64_t)1 << k) - 1, two = ((uint64_t)1 << 2 * k) - 1,
                   four = ((uint64_t)1 << 4 * k) - 1;
    uint64_t even = word & four, odd = word >> 16 & four;
    even = (even | even << (32 - 2 * k)) & two * 0x0000000100000001u;
    odd = (odd | odd << (32 - 2 * k)) & two * 0x0000000100000001u;
    even = (even | even << (16 - k)) & one * 0x0001000100010001u;
    odd = (odd | odd << (16 - k)) & one * 0x0001000100010001u;
    return even | odd << 8;
}

/* k = 8: four codes to their word, and back. */
AGOQ_HD uint32_t agoqk_plane_swap(uint32_t word) {
    return (word & 0xFF0000FFu) | (word >> 8 & 0xFF00u) | (word << 8 & 0xFF0000u);
}

#endif
