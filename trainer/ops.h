/* The model's operations in fp32, with optional rounding of every result to a bf16 value: the caller's own
 * arithmetic of the baseline and identity paths, and what both paths share (RoPE, embedding, cross-entropy,
 * GEMM). Sums run in a fixed order, so results repeat bit for bit. The trade-off: plain loops that a compiler
 * vectorises, no intrinsics. */
#ifndef TRAINER_OPS_H
#define TRAINER_OPS_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Hot loops are compiled for several vector widths and chosen when the program is loaded. Without contraction
 * or reassociation all of them give the same bits. (TSan cannot start a program that has such functions.) */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define OPS_WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define OPS_WIDE
#endif

/* A matrix of floats; row r starts at p + r * ld. */
typedef struct ops_mat {
    float *p;
    int64_t rows, cols, ld;
} ops_mat;

static inline ops_mat ops_mat_of(float *p, int64_t rows, int64_t cols) {
    return (ops_mat){p, rows, cols, cols};
}
/* Columns [from, from + cols) of m. */
static inline ops_mat ops_columns(ops_mat m, int64_t from, int64_t cols) {
    return (ops_mat){m.p + from, m.rows, cols, m.ld};
}

static inline float ops_bf16_value(float x) { /* nearest even; NaN stays NaN */
    uint32_t u;
    memcpy(&u, &x, 4);
    const uint32_t rounded = (u + 0x7fff + (u >> 16 & 1)) & 0xffff0000u;
    u = (u & 0x7fffffff) > 0x7f800000 ? (u | 0x400000) & 0xffff0000u : rounded;
    memcpy(&x, &u, 4);
    return x;
}

/* e^x, relative error below 3e-7; branch-free so that loops over it vectorise. NaN in, NaN out. */
static inline float ops_exp(float x) {
    x = x < -87.0f ? -87.0f : x;
    x = x > 88.0f ? 88.0f : x;
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    const float t = x * 1.44269504f + magic;
    const float k = t - magic;
    const float r = (x - k * 0.693359375f) - k * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int32_t bits;
    memcpy(&bits, &t, 4);
    const uint32_t scale_bits = ((uint32_t)bits + 127u) << 23;
    float scale;
    memcpy(&scale, &scale_bits, 4);
    return p * scale;
}

void ops_round(ops_mat x);                  /* every element to a bf16 value */
void ops_to_bf16(ops_mat x, uint16_t *out); /* dense; values are bf16 already or are rounded */
void ops_from_bf16(const uint16_t *in, ops_mat x);
void ops_add(ops_mat x, ops_mat y, int round, ops_mat out); /* out = round(x + y); out may be x or y */

/* With r: sum = round(x + r) is normalised, else x. y = x / rms * gamma. */
void ops_rmsnorm(ops_mat x, const ops_mat *r, const float *gamma, float eps, int round, ops_mat *sum,
                 ops_mat y);
void ops_rmsnorm_bwd(ops_mat x, const float *gamma, float eps, int round, ops_mat dy, ops_mat dx,
                     float *dgamma);
void ops_swiglu(ops_mat gate, ops_mat up, int round, ops_mat product);
/* product may be without storage (p NULL): not wanted. dgate and dup may not overlap gate and up. */
void ops_swiglu_bwd(ops_mat gate, ops_mat up, int round, ops_mat dproduct, ops_mat product, ops_mat dgate,
                    ops_mat dup);

/* cos and sin of position t and pair i: table[(t * half + i) * 2]. Rotates n_heads heads of head_dim columns
 * in place; direction +1 forward, -1 backward (the transpose). Row t of the matrix is position t % seq. */
void ops_rope_table(int seq, int head_dim, float *table);
void ops_rope(ops_mat x, int n_heads, int head_dim, int seq, const float *table, int direction, int round);

float ops_row_max(const float *row, int64_t n);        /* n >= 1 */
float ops_row_exp(float *row, int64_t n, float minus); /* exp(row - minus) in place; returns their sum */

void ops_embed(const uint8_t *ids, const float *table, int round, ops_mat x);
void ops_embed_bwd(const uint8_t *ids, ops_mat dx, float *dtable); /* added to */
/* Sum over rows of -log softmax(logits)[target]; logits are used up. */
double ops_cross_entropy(ops_mat logits, const uint8_t *targets);
/* logits becomes scale * (softmax - onehot). */
void ops_cross_entropy_bwd(ops_mat logits, const uint8_t *targets, float scale, int round);

/* GEMM on OpenBLAS. w is [in][out], dense. */
void ops_linear(ops_mat x, const float *w, ops_mat y);            /* y = x w */
void ops_linear_dx(ops_mat dy, const float *w, ops_mat dx);       /* dx = dy w^T */
void ops_linear_dw(ops_mat x, ops_mat dy, float beta, float *dw); /* dw = beta dw + x^T dy */

/* Counter-based random numbers of (seed, stream, index). */
uint64_t ops_hash(uint64_t seed, uint64_t stream, uint64_t index);
void ops_normal(uint64_t seed, uint64_t stream, float std, float *out, int64_t n);

#endif
