/* Random bits of whole blocks: Philox for up to 16 groups of eight side by side, round by round, in loops of
 * constant length that vectorise. Which bits an element gets is kernels/format/philox.h. */
#ifndef KERNELS_CPU_RANDOM_H
#define KERNELS_CPU_RANDOM_H

#include "kernels/cpu/block.h"

/* n / 8 groups of eight, side by side, round by round; n is a constant. */
AGOQK_INLINE void agoqk_random_groups(const agoqk_stream *stream, uint64_t group, int n, uint32_t *random) {
    uint32_t w0[AGOQ_GRAD_BLOCK / 8], w1[AGOQ_GRAD_BLOCK / 8], w2[AGOQ_GRAD_BLOCK / 8],
        w3[AGOQ_GRAD_BLOCK / 8];
    uint32_t k0 = stream->w[0], k1 = stream->w[1];
    for (int i = 0; i < n / 8; i++) {
        const agoqk_words c = agoqk_stream_counter(stream, (group + (uint64_t)i) & UINT64_MAX / 8);
        w0[i] = c.w[0], w1[i] = c.w[1], w2[i] = c.w[2], w3[i] = c.w[3];
    }
    for (int round = 0; round < AGOQK_PHILOX_ROUNDS; round++) {
        for (int i = 0; i < n / 8; i++) {
            const agoqk_words in = {{w0[i], w1[i], w2[i], w3[i]}}, c = agoqk_philox_round(k0, k1, in);
            w0[i] = c.w[0], w1[i] = c.w[1], w2[i] = c.w[2], w3[i] = c.w[3];
        }
        k0 += AGOQK_PHILOX_STEP0;
        k1 += AGOQK_PHILOX_STEP1;
    }
    for (int i = 0; i < n / 8; i++) {
        const agoqk_words w = {{w0[i], w1[i], w2[i], w3[i]}};
        for (int j = 0; j < 8; j++) random[8 * i + j] = agoqk_stream_bits(&w, j);
    }
}

/* Random bits of global indices first + i, 0 <= i < n; n is a constant. A block that does not start on a
 * group of eight costs one group more. */
AGOQK_INLINE void agoqk_random_bits(const agoqk_random *random, uint64_t first, int n, uint32_t *bits) {
    const uint64_t group = first / 8;
    const int skip = (int)(first % 8);
    uint32_t all[AGOQ_GRAD_BLOCK + 8];
    if (skip == 0) {
        agoqk_random_groups(&random->stream, group, n, bits);
        return;
    }
    agoqk_random_groups(&random->stream, group, n, all);
    const agoqk_words last =
        agoqk_stream_words(&random->stream, (group + (uint64_t)(n / 8)) & UINT64_MAX / 8);
    for (int j = 0; j < 8; j++) all[n + j] = agoqk_stream_bits(&last, j);
    memcpy(bits, all + skip, (size_t)n * sizeof *bits);
}

#endif
