/* Norm, SwiGLU, RoPE, embedding, cross-entropy, GEMM and random numbers: see ops.h. Sums of a row are kept in
 * several lanes that are added in a fixed order: vectorisable without reassociation by the compiler, so no
 * fast-math flags. */
#include "trainer/ops.h"

#include <cblas.h>
#include <math.h>

enum { LANES = 16 };

static inline float rounded(float x, int round) {
    return round ? ops_bf16_value(x) : x;
}

OPS_WIDE void ops_round(ops_mat x) {
    for (int64_t r = 0; r < x.rows; r++) {
        float *row = x.p + r * x.ld;
        for (int64_t c = 0; c < x.cols; c++) row[c] = ops_bf16_value(row[c]);
    }
}

OPS_WIDE void ops_to_bf16(ops_mat x, uint16_t *out) {
    for (int64_t r = 0; r < x.rows; r++) {
        const float *row = x.p + r * x.ld;
        uint16_t *to = out + r * x.cols;
        for (int64_t c = 0; c < x.cols; c++) {
            const float v = ops_bf16_value(row[c]);
            uint32_t u;
            memcpy(&u, &v, 4);
            to[c] = (uint16_t)(u >> 16);
        }
    }
}

OPS_WIDE void ops_from_bf16(const uint16_t *in, ops_mat x) {
    for (int64_t r = 0; r < x.rows; r++) {
        float *row = x.p + r * x.ld;
        const uint16_t *from = in + r * x.cols;
        for (int64_t c = 0; c < x.cols; c++) {
            const uint32_t u = (uint32_t)from[c] << 16;
            memcpy(&row[c], &u, 4);
        }
    }
}

OPS_WIDE void ops_add(ops_mat x, ops_mat y, int round, ops_mat out) {
    for (int64_t r = 0; r < x.rows; r++) {
        const float *a = x.p + r * x.ld, *b = y.p + r * y.ld;
        float *o = out.p + r * out.ld;
        if (round) {
            for (int64_t c = 0; c < x.cols; c++) o[c] = ops_bf16_value(a[c] + b[c]);
        } else {
            for (int64_t c = 0; c < x.cols; c++) o[c] = a[c] + b[c];
        }
    }
}

static float add_lanes(const float lane[LANES]) {
    float sum = 0;
    for (int i = 0; i < LANES; i++) sum += lane[i];
    return sum;
}

OPS_WIDE static float dot3(const float *a, const float *b, const float *c, int64_t n) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) lane[l] += a[i + l] * b[i + l] * c[i + l];
    }
    for (; i < n; i++) lane[i % LANES] += a[i] * b[i] * c[i];
    return add_lanes(lane);
}

OPS_WIDE static float inverse_rms(const float *x, int64_t n, float eps) {
    float lane[LANES] = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        for (int l = 0; l < LANES; l++) lane[l] += x[i + l] * x[i + l];
    }
    for (; i < n; i++) lane[i % LANES] += x[i] * x[i];
    return 1.0f / sqrtf(add_lanes(lane) / (float)n + eps);
}

OPS_WIDE void ops_rmsnorm(ops_mat x, const ops_mat *r, const float *gamma, float eps, int round, ops_mat *sum,
                          ops_mat y) {
    if (r) ops_add(x, *r, round, *sum);
    const ops_mat in = r ? *sum : x;
    for (int64_t t = 0; t < in.rows; t++) {
        const float *row = in.p + t * in.ld;
        float *to = y.p + t * y.ld;
        const float inv = inverse_rms(row, in.cols, eps);
        for (int64_t c = 0; c < in.cols; c++) to[c] = row[c] * inv * gamma[c];
        if (round) ops_round(ops_mat_of(to, 1, in.cols));
    }
}

OPS_WIDE void ops_rmsnorm_bwd(ops_mat x, const float *gamma, float eps, int round, ops_mat dy, ops_mat dx,
                              float *dgamma) {
    const int64_t n = x.cols;
    for (int64_t t = 0; t < x.rows; t++) {
        const float *row = x.p + t * x.ld, *d = dy.p + t * dy.ld;
        float *to = dx.p + t * dx.ld;
        const float inv = inverse_rms(row, n, eps);
        const float shared = dot3(d, gamma, row, n) * inv * inv * inv / (float)n;
        for (int64_t c = 0; c < n; c++) {
            const float dc = d[c]; /* dx may be dy */
            dgamma[c] += dc * row[c] * inv;
            to[c] = dc * gamma[c] * inv - row[c] * shared;
        }
        if (round) ops_round(ops_mat_of(to, 1, n));
    }
}

OPS_WIDE void ops_swiglu(ops_mat gate, ops_mat up, int round, ops_mat product) {
    for (int64_t t = 0; t < gate.rows; t++) {
        const float *g = gate.p + t * gate.ld, *u = up.p + t * up.ld;
        float *p = product.p + t * product.ld;
        for (int64_t c = 0; c < gate.cols; c++) p[c] = g[c] / (1.0f + ops_exp(-g[c])) * u[c];
        if (round) ops_round(ops_mat_of(p, 1, gate.cols));
    }
}

OPS_WIDE void ops_swiglu_bwd(ops_mat gate, ops_mat up, int round, ops_mat dproduct, ops_mat product,
                             ops_mat dgate, ops_mat dup) {
    for (int64_t t = 0; t < gate.rows; t++) {
        const float *restrict g = gate.p + t * gate.ld, *restrict u = up.p + t * up.ld;
        const float *restrict d = dproduct.p + t * dproduct.ld;
        float *restrict dg = dgate.p + t * dgate.ld, *restrict du = dup.p + t * dup.ld;
        for (int64_t c = 0; c < gate.cols; c++) {
            const float s = 1.0f / (1.0f + ops_exp(-g[c])), silu = g[c] * s;
            du[c] = d[c] * silu;
            dg[c] = d[c] * u[c] * (s + silu * (1.0f - s));
        }
        if (round) {
            ops_round(ops_mat_of(dg, 1, gate.cols));
            ops_round(ops_mat_of(du, 1, gate.cols));
        }
    }
    if (product.p) ops_swiglu(gate, up, round, product);
}

void ops_rope_table(int seq, int head_dim, float *table) {
    const int half = head_dim / 2;
    for (int t = 0; t < seq; t++) {
        for (int i = 0; i < half; i++) {
            const double angle = t * pow(10000.0, -2.0 * i / head_dim);
            table[((size_t)t * (size_t)half + (size_t)i) * 2] = (float)cos(angle);
            table[((size_t)t * (size_t)half + (size_t)i) * 2 + 1] = (float)sin(angle);
        }
    }
}

OPS_WIDE void ops_rope(ops_mat x, int n_heads, int head_dim, int seq, const float *table, int direction,
                       int round) {
    const int half = head_dim / 2;
    for (int64_t t = 0; t < x.rows; t++) {
        const float *cs = table + t % seq * half * 2;
        for (int h = 0; h < n_heads; h++) {
            float *a = x.p + t * x.ld + (int64_t)h * head_dim, *b = a + half;
            for (int i = 0; i < half; i++) {
                const float c = cs[2 * i], s = (float)direction * cs[2 * i + 1];
                const float a0 = a[i], b0 = b[i];
                a[i] = rounded(a0 * c - b0 * s, round);
                b[i] = rounded(a0 * s + b0 * c, round);
            }
        }
    }
}

void ops_embed(const uint8_t *ids, const float *table, int round, ops_mat x) {
    for (int64_t t = 0; t < x.rows; t++) {
        const float *row = table + (int64_t)ids[t] * x.cols;
        for (int64_t c = 0; c < x.cols; c++) x.p[t * x.ld + c] = rounded(row[c], round);
    }
}

void ops_embed_bwd(const uint8_t *ids, ops_mat dx, float *dtable) {
    for (int64_t t = 0; t < dx.rows; t++) {
        float *row = dtable + (int64_t)ids[t] * dx.cols;
        for (int64_t c = 0; c < dx.cols; c++) row[c] += dx.p[t * dx.ld + c];
    }
}

/* Lanes, because a compiler may not reorder a float maximum by itself. A NaN is passed over: it will show in
 * the sum. */
OPS_WIDE float ops_row_max(const float *row, int64_t n) {
    float lane[LANES], max = row[0];
    int64_t c = 0;
    for (int l = 0; l < LANES; l++) lane[l] = row[0];
    for (; c + LANES <= n; c += LANES) {
        for (int l = 0; l < LANES; l++) lane[l] = row[c + l] > lane[l] ? row[c + l] : lane[l];
    }
    for (; c < n; c++) max = row[c] > max ? row[c] : max;
    for (int l = 0; l < LANES; l++) max = lane[l] > max ? lane[l] : max;
    return max;
}

OPS_WIDE float ops_row_exp(float *row, int64_t n, float minus) {
    float lane[LANES] = {0}, rest = 0;
    int64_t c = 0;
    for (; c + LANES <= n; c += LANES) {
        for (int l = 0; l < LANES; l++) {
            row[c + l] = ops_exp(row[c + l] - minus);
            lane[l] += row[c + l];
        }
    }
    for (; c < n; c++) {
        row[c] = ops_exp(row[c] - minus);
        rest += row[c];
    }
    return rest + add_lanes(lane);
}

double ops_cross_entropy(ops_mat logits, const uint8_t *targets) {
    double loss = 0;
    for (int64_t t = 0; t < logits.rows; t++) {
        float *row = logits.p + t * logits.ld;
        const float max = ops_row_max(row, logits.cols), wanted = row[targets[t]];
        loss += log((double)ops_row_exp(row, logits.cols, max)) + (double)max - (double)wanted;
    }
    return loss;
}

OPS_WIDE void ops_cross_entropy_bwd(ops_mat logits, const uint8_t *targets, float scale, int round) {
    for (int64_t t = 0; t < logits.rows; t++) {
        float *row = logits.p + t * logits.ld;
        const float inv = 1.0f / ops_row_exp(row, logits.cols, ops_row_max(row, logits.cols));
        for (int64_t c = 0; c < logits.cols; c++) row[c] *= inv;
        row[targets[t]] -= 1.0f;
        for (int64_t c = 0; c < logits.cols; c++) row[c] = rounded(row[c] * scale, round);
    }
}

void ops_linear(ops_mat x, const float *w, ops_mat y) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)x.rows, (int)y.cols, (int)x.cols, 1.0f, x.p,
                (int)x.ld, w, (int)y.cols, 0.0f, y.p, (int)y.ld);
}

void ops_linear_dx(ops_mat dy, const float *w, ops_mat dx) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, (int)dy.rows, (int)dx.cols, (int)dy.cols, 1.0f, dy.p,
                (int)dy.ld, w, (int)dy.cols, 0.0f, dx.p, (int)dx.ld);
}

void ops_linear_dw(ops_mat x, ops_mat dy, float beta, float *dw) {
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, (int)x.cols, (int)dy.cols, (int)x.rows, 1.0f, x.p,
                (int)x.ld, dy.p, (int)dy.ld, beta, dw, (int)dy.cols);
}

static uint64_t mix(uint64_t z) { /* splitmix64 finaliser */
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

uint64_t ops_hash(uint64_t seed, uint64_t stream, uint64_t index) {
    return mix(mix(mix(seed + 0x9e3779b97f4a7c15u) + stream) + (index + 1) * 0x9e3779b97f4a7c15u);
}

void ops_normal(uint64_t seed, uint64_t stream, float std, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        const uint64_t h = ops_hash(seed, stream, (uint64_t)i);
        const double u = ((double)(h >> 40) + 0.5) / 16777216.0, v = (double)(h & 0xffffff) / 16777216.0;
        out[i] = std * (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
    }
}
