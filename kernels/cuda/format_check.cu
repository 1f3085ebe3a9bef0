/* Proof at build time that the shared arithmetic is CUDA too: every function of kernels/format is
 * instantiated in device code under the flags that codec kernels will use (--fmad=false, warnings as errors).
 * It launches nothing and is linked into nothing; the price is one more object per build. */
#include "kernels/format/dynmap.h"
#include "kernels/format/e4m3.h"
#include "kernels/format/half.h"
#include "kernels/format/int_block.h"
#include "kernels/format/philox.h"
#include "kernels/format/plane.h"
#include "kernels/format/silu.h"

__device__ static uint32_t encode_int(const float *x, uint32_t random, int bits, uint8_t *out) {
    uint32_t stat = 0;
    uint8_t codes[8];
    for (int i = 0; i < 8; i++) stat = max(stat, agoqk_stat(x[i]));
    const uint16_t d = agoqk_int_scale(stat, bits);
    const float inverse = agoqk_int_inverse(d);
    for (int i = 0; i < 8; i++) {
        codes[i] = (uint8_t)(random ? agoqk_int_encode_sr(x[i], inverse, bits, random)
                                    : agoqk_int_encode(x[i], inverse, bits));
    }
    if (d == 0 || agoqk_int_scale_is_nan(d)) codes[0] = (uint8_t)agoqk_int_zero_code(bits);
    agoqk_store_le32(out, agoqk_plane_word(codes, 4, 0));
    agoqk_store_le16(out + 4, d);
    agoqk_plane_codes(agoqk_load_le32(out), 4, 0, codes);
    return agoqk_bits(agoqk_int_decode(codes[1], agoqk_bf16_decode(agoqk_load_le16(out + 4)), bits));
}

__device__ static uint32_t encode_e4m3(float x, uint32_t random) {
    const float scale = agoqk_e4m3_scale(agoqk_stat(x));
    const uint32_t code = random ? agoqk_e4m3_encode_sr(x / scale, random) : agoqk_e4m3_encode(x / scale);
    return agoqk_bits(agoqk_e4m3_decode(code, scale));
}

__device__ static uint32_t round_half(float x, uint32_t random) {
    return agoqk_bits(agoqk_bf16_round(x)) ^ agoqk_bf16_encode_sr(x, random) ^
           agoqk_bits(agoqk_f16_decode(agoqk_f16_encode(x)));
}

__device__ static float adam_level(float x) {
    float middles[255];
    for (int c = 0; c < 255; c++)
        middles[c] = agoqk_dynmap_middle(agoqk_dynmap_signed(c), agoqk_dynmap_signed(c + 1));
    return agoqk_dynmap_unsigned(agoqk_dynmap_encode(middles, x));
}

__global__ void format_check_kernel(const float *x, uint8_t *bytes, uint32_t *out, int bits, uint64_t seed) {
    const agoqk_stream stream = agoqk_stream_make(seed, 1, 2, 3, 4);
    const agoqk_words words = agoqk_stream_words(&stream, (uint64_t)threadIdx.x);
    float low, high;
    agoqk_logistic(x[0], &low, &high);
    out[0] = encode_int(x, words.w[0], bits, bytes);
    out[1] = encode_e4m3(x[0], words.w[1]);
    out[2] = round_half(x[0], words.w[2]);
    out[3] = agoqk_bits(adam_level(x[0]) + low + high);
}
