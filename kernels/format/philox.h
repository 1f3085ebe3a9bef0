/* Random bits of stochastic rounding: Philox4x32-10 (Salmon et al., SC 2011), a function of (seed, tensor,
 * step, micro-batch, replica, global element index) and of nothing else: not of launch shape, thread, shard
 * or number of calls. 320 bits go in and one Philox takes 192, so the fields but the index are first hashed,
 * by two Philox calls, into a stream of 128 bits. An element takes 16 bits (a probability needs no more:
 * hd.h), so that 10 rounds serve 8 elements; with 32 bits each, rounding would cost more than memory. */
#ifndef KERNELS_FORMAT_PHILOX_H
#define KERNELS_FORMAT_PHILOX_H

#include "kernels/format/hd.h"

typedef struct agoqk_words {
    uint32_t w[4];
} agoqk_words;

/* What is left of a key once its fields but the index are hashed: w[0..1] Philox key, w[2..3] upper counter.
 */
typedef agoqk_words agoqk_stream;

AGOQ_HD agoqk_words agoqk_philox_round(uint32_t k0, uint32_t k1, agoqk_words ctr) {
    const uint64_t p0 = (uint64_t)0xD2511F53u * ctr.w[0], p1 = (uint64_t)0xCD9E8D57u * ctr.w[2];
    agoqk_words next;
    next.w[0] = (uint32_t)(p1 >> 32) ^ ctr.w[1] ^ k0;
    next.w[1] = (uint32_t)p1;
    next.w[2] = (uint32_t)(p0 >> 32) ^ ctr.w[3] ^ k1;
    next.w[3] = (uint32_t)p0;
    return next;
}

#define AGOQK_PHILOX_ROUNDS 10
#define AGOQK_PHILOX_STEP0  0x9E3779B9u /* what the key's words grow by after each round */
#define AGOQK_PHILOX_STEP1  0xBB67AE85u

AGOQ_HD agoqk_words agoqk_philox(uint32_t k0, uint32_t k1, agoqk_words ctr) {
    for (int round = 0; round < AGOQK_PHILOX_ROUNDS; round++) {
        ctr = agoqk_philox_round(k0, k1, ctr);
        k0 += AGOQK_PHILOX_STEP0;
        k1 += AGOQK_PHILOX_STEP1;
    }
    return ctr;
}

AGOQ_HD agoqk_stream agoqk_stream_make(uint64_t seed, uint64_t tensor, uint64_t step, uint32_t microbatch,
                                       uint32_t replica) {
    agoqk_words c;
    c.w[0] = (uint32_t)tensor;
    c.w[1] = (uint32_t)(tensor >> 32);
    c.w[2] = (uint32_t)step;
    c.w[3] = (uint32_t)(step >> 32);
    const agoqk_words a = agoqk_philox((uint32_t)seed, (uint32_t)(seed >> 32), c);
    c.w[0] = microbatch;
    c.w[1] = replica;
    c.w[2] = a.w[2];
    c.w[3] = a.w[3];
    return agoqk_philox(a.w[0], a.w[1], c);
}

AGOQ_HD agoqk_words agoqk_stream_counter(const agoqk_stream *stream, uint64_t group) {
    agoqk_words c;
    c.w[0] = (uint32_t)group;
    c.w[1] = (uint32_t)(group >> 32);
    c.w[2] = stream->w[2];
    c.w[3] = stream->w[3];
    return c;
}

/* The random bits of elements [8 group, 8 group + 8), two to a word. */
AGOQ_HD agoqk_words agoqk_stream_words(const agoqk_stream *stream, uint64_t group) {
    return agoqk_philox(stream->w[0], stream->w[1], agoqk_stream_counter(stream, group));
}

/* The 16 bits of element j of the group. */
AGOQ_HD uint32_t agoqk_stream_bits(const agoqk_words *words, int j) {
    return words->w[j / 2] >> 16 * (j % 2) & 0xFFFFu;
}

#endif
