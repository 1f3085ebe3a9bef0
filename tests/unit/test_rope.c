/* Rotary embedding against FP64 rotations and against the formula of Hugging Face (x cos + rotate_half(x)
 * sin), for both pairings, partial rotation, any head size and dtype; backward undoes forward; packing in the
 * same call equals packing afterwards, also where heads straddle blocks of 64. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/unit/row_fixture.h"

enum { ROWS = 7, POSITIONS = 5, MOST_HALF = 128 };

typedef struct shape {
    int head_dim, rotary, heads;
} shape;

/* Q and K side by side is heads of both; 80, 96 and 33 straddle blocks; 256 is more pairs than one run. */
static const shape shapes[] = {{64, 64, 2}, {128, 128, 3}, {80, 80, 4},   {96, 48, 3},
                               {33, 32, 5}, {2, 2, 70},    {256, 256, 1}, {256, 130, 2},
                               {1, 0, 9},   {100, 50, 2},  {8, 6, 40},    {64, 0, 2}};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static float cosines[POSITIONS * MOST_HALF], sines[POSITIONS * MOST_HALF];

static agoq_rope rope_of(const shape *s, int interleaved) {
    const int half = s->rotary / 2;
    for (int i = 0; i < POSITIONS * half; i++) {
        const double angle = (double)(i / half) * pow(10000.0, -(double)(i % half) / (double)half);
        cosines[i] = (float)cos(angle), sines[i] = (float)sin(angle);
    }
    return (agoq_rope){.cos = cosines,
                       .sin = sines,
                       .n_positions = POSITIONS,
                       .head_dim = s->head_dim,
                       .rotary = s->rotary,
                       .interleaved = interleaved};
}

/* Element e of a head rotated by the angles of position p. */
static double rotated(const agoq_rope *rope, const float *head, int e, int64_t p, double sign) {
    const int half = rope->rotary / 2;
    if (e >= rope->rotary) return (double)head[e];
    const int i = rope->interleaved ? e / 2 : e % half, first = rope->interleaved ? 2 * i : i,
              second = rope->interleaved ? 2 * i + 1 : i + half;
    const double c = (double)rope->cos[p * half + i], s = sign * (double)rope->sin[p * half + i];
    return e == first ? (double)head[first] * c - (double)head[second] * s
                      : (double)head[second] * c + (double)head[first] * s;
}

static void rotates(void **state) {
    (void)state;
    static const int32_t positions[ROWS] = {4, 0, 3, 3, 1, 2, 0};
    for (int k = 0; k < N_SHAPES * 8; k++) {
        const shape *s = &shapes[k / 8];
        const int64_t cols = s->head_dim * s->heads;
        agoq_rope rope = rope_of(s, k % 2);
        const int backward = k / 2 % 2;
        if (k / 4 % 2) rope.positions = positions;
        matrix x = matrix_random(ROWS, cols, 21), y = matrix_new(ROWS, cols);
        assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, backward, &y.view, NULL), AGOQ_OK);
        for (int64_t i = 0; i < ROWS * cols; i++) {
            const int64_t r = i / cols, c = i % cols, p = rope.positions ? positions[r] : r % POSITIONS;
            const double want = rotated(&rope, x.data + r * cols + c / s->head_dim * s->head_dim,
                                        (int)(c % s->head_dim), p, backward ? -1 : 1);
            assert_true(fabs((double)y.data[i] - want) < 1e-6);
            if (c % s->head_dim >= s->rotary) assert_true(y.data[i] == x.data[i]);
        }
        free(x.data), free(y.data);
    }
}

/* q * cos + rotate_half(q) * sin with tables repeated over both halves, in fp32 as written there. */
static void hugging_face(void **state) {
    (void)state;
    enum { HEAD = 128, HALF = HEAD / 2 };
    const shape s = {HEAD, HEAD, 4};
    const agoq_rope rope = rope_of(&s, 0);
    matrix x = matrix_random(ROWS, 4 * HEAD, 22), y = matrix_new(ROWS, 4 * HEAD);
    assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, 0, &y.view, NULL), AGOQ_OK);
    for (int64_t r = 0; r < ROWS; r++) {
        for (int c = 0; c < 4 * HEAD; c++) {
            const float *q = x.data + r * 4 * HEAD + c / HEAD * HEAD;
            const int e = c % HEAD;
            const float half_turn = e < HALF ? -q[e + HALF] : q[e - HALF];
            const float *cosine = cosines + r % POSITIONS * HALF, *sine = sines + r % POSITIONS * HALF;
            assert_true(y.data[r * 4 * HEAD + c] == q[e] * cosine[e % HALF] + half_turn * sine[e % HALF]);
        }
    }
    free(x.data), free(y.data);
}

/* Backward of forward is x within fp32 rounding, in place. */
static void inverse(void **state) {
    (void)state;
    for (int k = 0; k < N_SHAPES * 2; k++) {
        const shape *s = &shapes[k / 2];
        const int64_t cols = s->head_dim * s->heads;
        const agoq_rope rope = rope_of(s, k % 2);
        matrix x = matrix_random(ROWS, cols, 23), y = matrix_new(ROWS, cols);
        assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, 0, &y.view, NULL), AGOQ_OK);
        agoq_view in_place = x.view;
        matrix before = matrix_random(ROWS, cols, 23);
        assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, 0, &in_place, NULL), AGOQ_OK);
        assert_memory_equal(x.data, y.data, (size_t)(ROWS * cols) * 4);
        assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, 1, &in_place, NULL), AGOQ_OK);
        for (int64_t i = 0; i < ROWS * cols; i++)
            assert_true(fabs((double)(x.data[i] - before.data[i])) < 2e-6);
        free(x.data), free(y.data), free(before.data);
    }
}

/* Packing in the call equals packing the stored y; y is rounded to its own type. */
static void packs_what_it_stores(void **state) {
    (void)state;
    for (int k = 0; k < N_SHAPES * N_FORMATS * 3; k++) {
        const shape *s = &shapes[k / N_FORMATS / 3];
        const agoq_dtype type = (agoq_dtype)(k % 3);
        const int64_t cols = s->head_dim * s->heads;
        const agoq_rope rope = rope_of(s, k % 2);
        matrix x = matrix_random(ROWS, cols, 24), exact = matrix_new(ROWS, cols), y = matrix_new(ROWS, cols);
        agoq_packed p = packed_new(formats[k / 3 % N_FORMATS], ROWS, cols),
                    q = packed_new(formats[k / 3 % N_FORMATS], ROWS, cols);
        y.view.dtype = type;
        uint32_t nonfinite = 0;
        const agoq_exec exec = {.nonfinite = &nonfinite};
        x.data[cols] = INFINITY; /* row 1 */
        assert_int_equal(agoq_rope_apply(&exec, &x.view, &rope, 0, &y.view, &p), AGOQ_OK);
        assert_true(nonfinite >= 1 && nonfinite <= 2);
        assert_int_equal(agoq_pack(NULL, &y.view, NULL, &q), AGOQ_OK);
        assert_memory_equal(p.data, q.data, p.layout.bytes);
        assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, 0, &exact.view, NULL), AGOQ_OK);
        for (int64_t i = 2 * cols; i < ROWS * cols; i++)
            assert_true(get_as(type, y.data, i) == round_to(type, exact.data[i]));
        free(x.data), free(exact.data), free(y.data), free(p.data), free(q.data);
    }
}

/* Positions outside the tables make rotated elements NaN, of the bits of each type, and copy the others. */
static void outside_the_tables(void **state) {
    (void)state;
    static const int32_t positions[ROWS] = {0, -1, POSITIONS, INT32_MAX, INT32_MIN, POSITIONS - 1, 1};
    static const uint32_t nan_bits[] = {0x7FC00000u, 0x7FC0u, 0x7E00u};
    const shape s = {10, 6, 13};
    const int64_t cols = 130;
    for (int k = 0; k < 6; k++) {
        const agoq_dtype type = (agoq_dtype)(k / 2);
        agoq_rope rope = rope_of(&s, k % 2);
        rope.positions = positions;
        matrix x = matrix_random(ROWS, cols, 25), y = matrix_new(ROWS, cols);
        y.view.dtype = type;
        assert_int_equal(agoq_rope_apply(NULL, &x.view, &rope, 0, &y.view, NULL), AGOQ_OK);
        for (int64_t i = 0; i < ROWS * cols; i++) {
            const int64_t r = i / cols;
            const int outside = r >= 1 && r <= 4, turned = i % cols % 10 < 6;
            uint32_t bits = 0;
            memcpy(&bits, (const char *)y.data + i * (k < 2 ? 4 : 2), k < 2 ? 4 : 2);
            if (outside && turned)
                assert_int_equal(bits, nan_bits[k / 2]);
            else
                assert_true(isfinite(get_as(type, y.data, i)));
            if (!turned) assert_true(get_as(type, y.data, i) == round_to(type, x.data[i]));
        }
        free(x.data), free(y.data);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rotates), cmocka_unit_test(hugging_face),
                                       cmocka_unit_test(inverse), cmocka_unit_test(packs_what_it_stores),
                                       cmocka_unit_test(outside_the_tables)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
