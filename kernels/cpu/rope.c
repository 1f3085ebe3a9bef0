/* Rotary position embedding, optionally packing what it stores. A row is walked by heads, a head by runs of
 * up to 64 pairs: loads of both halves, the rotation, stores; heads of any size, so that blocks of 64 may
 * straddle them. Rows are packed afterwards from the stored y, still in cache: the trade-off is one more
 * load, which spares a row buffer and makes y and packed agree by construction. */
#include "kernels/cpu/block.h"
#include "kernels/cpu/cpu.h"

enum { RUN = AGOQ_BLOCK };

AGOQK_INLINE void load_run(const agoq_view *v, int64_t at, int n, float out[RUN]) {
    agoqk_load(v->data, v->dtype, at, n, out, RUN);
}

AGOQK_INLINE void store_run(const agoq_view *v, int64_t at, int n, const float in[RUN]) {
    agoqk_store(v->data, v->dtype, at, n, in, RUN);
}

AGOQK_INLINE void rotate(float a[RUN], float b[RUN], const float c[RUN], const float s[RUN]) {
    for (int i = 0; i < RUN; i++) {
        const float x = a[i] * c[i] - b[i] * s[i], y = b[i] * c[i] + a[i] * s[i];
        a[i] = x;
        b[i] = y;
    }
}

AGOQK_INLINE void fill_nan(float x[RUN]) {
    for (int i = 0; i < RUN; i++) x[i] = agoqk_float(AGOQK_NAN_BITS);
}

/* One position's part of the tables; outside: it has none. */
typedef struct angles {
    const float *cos, *sin;
    int outside, backward;
} angles;

static angles angles_of(const agoq_rope *rope, int64_t r, int backward) {
    const int64_t p = rope->positions ? rope->positions[r] : r % rope->n_positions;
    angles a = {NULL, NULL, p < 0 || p >= rope->n_positions, backward};
    if (a.outside || rope->rotary == 0) return a;
    a.cos = rope->cos + p * (rope->rotary / 2);
    a.sin = rope->sin + p * (rope->rotary / 2);
    return a;
}

AGOQK_INLINE void load_angles(const angles *t, int i, int n, float c[RUN], float s[RUN]) {
    agoqk_load(t->cos, AGOQ_DTYPE_F32, i, n, c, RUN);
    agoqk_load(t->sin, AGOQ_DTYPE_F32, i, n, s, RUN);
    if (t->backward) {
        for (int k = 0; k < RUN; k++) s[k] = -s[k];
    }
}

/* Pairs (i, i + half) of the head whose first element is at `from` of x and `to` of y. */
static void head_halves(const agoq_view *x, int64_t from, const agoq_view *y, int64_t to, int half,
                        const angles *t) {
    float a[RUN], b[RUN], c[RUN], s[RUN];
    for (int i = 0; i < half; i += RUN) {
        const int n = half - i < RUN ? half - i : RUN;
        if (t->outside) {
            fill_nan(a);
            fill_nan(b);
        } else {
            load_run(x, from + i, n, a);
            load_run(x, from + half + i, n, b);
            load_angles(t, i, n, c, s);
            rotate(a, b, c, s);
        }
        store_run(y, to + i, n, a);
        store_run(y, to + half + i, n, b);
    }
}

/* Pairs (2 i, 2 i + 1). */
static void head_pairs(const agoq_view *x, int64_t from, const agoq_view *y, int64_t to, int half,
                       const angles *t) {
    float in[2][RUN], a[RUN], b[RUN], c[RUN], s[RUN];
    float *flat = &in[0][0];
    for (int i = 0; i < half; i += RUN) {
        const int n = half - i < RUN ? half - i : RUN, first = 2 * n < RUN ? 2 * n : RUN;
        if (t->outside) {
            fill_nan(in[0]);
            fill_nan(in[1]);
        } else {
            load_run(x, from + 2 * i, first, in[0]);
            load_run(x, from + 2 * i + first, 2 * n - first, in[1]);
            load_angles(t, i, n, c, s);
            for (int k = 0; k < RUN; k++) a[k] = flat[2 * k], b[k] = flat[2 * k + 1];
            rotate(a, b, c, s);
            for (int k = 0; k < RUN; k++) flat[2 * k] = a[k], flat[2 * k + 1] = b[k];
        }
        store_run(y, to + 2 * i, first, in[0]);
        store_run(y, to + 2 * i + first, 2 * n - first, in[1]);
    }
}

static void copy_run(const agoq_view *x, int64_t from, const agoq_view *y, int64_t to, int64_t n) {
    float run[RUN];
    for (int64_t i = 0; i < n; i += RUN) {
        const int part = n - i < RUN ? (int)(n - i) : RUN;
        load_run(x, from + i, part, run);
        store_run(y, to + i, part, run);
    }
}

agoq_status AGOQK_CPU(rope)(const agoq_exec *exec, const agoq_view *x, const agoq_rope *rope, int backward,
                            const agoq_view *y, const agoq_packed *packed) {
    const agoqk_random nearest = agoqk_random_make(NULL);
    const int64_t n_blocks = agoqk_blocks(x->cols, AGOQ_BLOCK);
    const int rotary = rope->rotary, rest = rope->head_dim - rotary;
    uint32_t nonfinite = 0;
    float buf[AGOQ_BLOCK];
    for (int64_t r = 0; r < x->rows && x->cols > 0; r++) {
        const angles t = angles_of(rope, r, backward);
        for (int64_t c = 0; c < x->cols; c += rope->head_dim) {
            const int64_t from = r * x->row_stride + c, to = r * y->row_stride + c;
            if (rope->interleaved) {
                head_pairs(x, from, y, to, rotary / 2, &t);
            } else {
                head_halves(x, from, y, to, rotary / 2, &t);
            }
            copy_run(x, from + rotary, y, to + rotary, rest);
        }
        for (int64_t b = 0; packed && b < n_blocks; b++) {
            agoqk_view_load(y, r, b, buf);
            nonfinite += agoqk_block_put(packed, r, b, buf, &nearest, exec->nonfinite != NULL);
        }
    }
    agoqk_count(exec->nonfinite, nonfinite);
    return AGOQ_OK;
}
