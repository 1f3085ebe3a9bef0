/* Attention by blocks of query rows and one head at a time: scores of a block against the keys up to its end
 * are one small GEMM straight on the strided QKV rows, so half of the causal square is never computed and
 * scratch is 2 x 64 x seq floats, not seq^2. The trade-off: on short sequences the GEMMs are small. */
#include "trainer/attention.h"

#include <cblas.h>
#include <math.h>

size_t attention_scratch(const attention_shape *s) {
    return (size_t)2 * ATTENTION_BLOCK * (size_t)s->seq + ATTENTION_BLOCK;
}

typedef struct head {
    const float *q, *k, *v;
    int ld, dim;
    float scale;
} head;

static head pick_head(const attention_shape *s, ops_mat qkv, int sequence, int h) {
    const int64_t kv = h / (s->heads / s->kv_heads);
    const float *row = qkv.p + (int64_t)sequence * s->seq * qkv.ld;
    return (head){row + (int64_t)h * s->head_dim,
                  row + (s->heads + kv) * s->head_dim,
                  row + (s->heads + s->kv_heads + kv) * s->head_dim,
                  (int)qkv.ld,
                  s->head_dim,
                  1.0f / sqrtf((float)s->head_dim)};
}

static void block_scores(const head *a, int from, int rows, int keys, float *scores) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, a->dim, a->scale,
                a->q + (int64_t)from * a->ld, a->ld, a->k, a->ld, 0.0f, scores, keys);
}

/* Exponentials of one row up to the diagonal, zeros after it; returns their sum. */
static float exp_row(float *row, int valid, int keys, float minus) {
    const float sum = ops_row_exp(row, valid, minus);
    memset(row + valid, 0, (size_t)(keys - valid) * sizeof(float));
    return sum;
}

void attention_forward(const attention_shape *s, ops_mat qkv, int round, ops_mat o, float *lse,
                       float *scratch) {
    for (int i = 0; i < s->n_seqs * s->heads; i++) {
        const int sequence = i / s->heads, h = i % s->heads;
        const head a = pick_head(s, qkv, sequence, h);
        float *lse_row = lse + ((int64_t)h * s->n_seqs + sequence) * s->seq;
        for (int from = 0; from < s->seq; from += ATTENTION_BLOCK) {
            const int rows = s->seq - from < ATTENTION_BLOCK ? s->seq - from : ATTENTION_BLOCK,
                      keys = from + rows;
            float *sums = scratch + (int64_t)2 * ATTENTION_BLOCK * s->seq;
            block_scores(&a, from, rows, keys, scratch);
            for (int r = 0; r < rows; r++) {
                float *row = scratch + (int64_t)r * keys;
                const float max = ops_row_max(row, from + r + 1);
                sums[r] = exp_row(row, from + r + 1, keys, max);
                lse_row[from + r] = max + logf(sums[r]);
            }
            float *out = o.p + ((int64_t)sequence * s->seq + from) * o.ld + (int64_t)h * a.dim;
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, a.dim, keys, 1.0f, scratch, keys,
                        a.v, a.ld, 0.0f, out, (int)o.ld);
            for (int r = 0; r < rows; r++) {
                const float inv = 1.0f / sums[r];
                float *row = out + r * o.ld;
                for (int c = 0; c < a.dim; c++) row[c] *= inv;
                if (round) ops_round(ops_mat_of(row, 1, a.dim));
            }
        }
    }
}

/* P and dS of one block; delta = rowsum(dO * O). */
OPS_WIDE static void block_backward(const head *a, int from, int rows, int keys, const float *out,
                                    const float *dout, int o_ld, const float *lse, float *p, float *ds) {
    block_scores(a, from, rows, keys, p);
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, keys, a->dim, 1.0f, dout, o_ld, a->v, a->ld,
                0.0f, ds, keys);
    for (int r = 0; r < rows; r++) {
        const float *restrict o_row = out + (int64_t)r * o_ld, *restrict d_row = dout + (int64_t)r * o_ld;
        float delta = 0;
        for (int c = 0; c < a->dim; c++) delta += o_row[c] * d_row[c];
        float *restrict p_row = p + (int64_t)r * keys, *restrict ds_row = ds + (int64_t)r * keys;
        (void)exp_row(p_row, from + r + 1, keys, lse[from + r]);
        for (int c = 0; c < keys; c++) ds_row[c] = p_row[c] * (ds_row[c] - delta) * a->scale;
    }
}

void attention_backward(const attention_shape *s, ops_mat qkv, ops_mat o, ops_mat d_o, const float *lse,
                        ops_mat dqkv, float *scratch) {
    float *p = scratch, *ds = scratch + (int64_t)ATTENTION_BLOCK * s->seq;
    for (int64_t t = 0; t < dqkv.rows; t++)
        memset(dqkv.p + t * dqkv.ld, 0, (size_t)dqkv.cols * sizeof(float));
    for (int i = 0; i < s->n_seqs * s->heads; i++) {
        const int sequence = i / s->heads, h = i % s->heads;
        const head a = pick_head(s, qkv, sequence, h);
        const ptrdiff_t k_at = a.k - a.q, v_at = a.v - a.q;
        float *dq = dqkv.p + (int64_t)sequence * s->seq * dqkv.ld + (int64_t)h * a.dim, *dk = dq + k_at,
              *dv = dq + v_at;
        const float *lse_row = lse + ((int64_t)h * s->n_seqs + sequence) * s->seq;
        const int ld = (int)dqkv.ld, o_ld = (int)o.ld;
        for (int from = 0; from < s->seq; from += ATTENTION_BLOCK) {
            const int rows = s->seq - from < ATTENTION_BLOCK ? s->seq - from : ATTENTION_BLOCK,
                      keys = from + rows;
            const int64_t at = ((int64_t)sequence * s->seq + from) * o_ld + (int64_t)h * a.dim;
            block_backward(&a, from, rows, keys, o.p + at, d_o.p + at, o_ld, lse_row, p, ds);
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, a.dim, rows, 1.0f, p, keys, d_o.p + at,
                        o_ld, 1.0f, dv, ld);
            cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, keys, a.dim, rows, 1.0f, ds, keys,
                        a.q + (int64_t)from * a.ld, a.ld, 1.0f, dk, ld);
            cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, rows, a.dim, keys, 1.0f, ds, keys, a.k,
                        a.ld, 0.0f, dq + (int64_t)from * ld, ld);
        }
    }
}
