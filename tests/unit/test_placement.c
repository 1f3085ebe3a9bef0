/* What bytes do not depend on: instruction set, alignment, stride of the rows, number of threads and how they
 * share a tensor. Nothing between rows is written; a column slice of a wider matrix is a pointer and a
 * stride (a transposed matrix has no such view: its stride would be below its columns, which is refused). */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "kernels/agoq_kernels.h"
#include "tests/unit/row_fixture.h"

enum { ROWS = 5, COLS = 579, SPACE = ROWS * (COLS + 150) * 4 + 64 };

/* Bytes of what pack, unpack, a norm and RoPE make of the same values. */
typedef struct bytes {
    uint8_t packed[4][1 << 14], y[3][ROWS * COLS * 4];
} bytes;

static _Alignas(64) uint8_t space[2][SPACE];

static agoq_view place(int which, agoq_dtype type, size_t shift, int64_t stride) {
    memset(space[which], 0x5A, SPACE);
    return (agoq_view){space[which] + shift, type, ROWS, COLS, stride};
}

/* Copies the rows out and checks what lies around them. */
static void take(const agoq_view *v, int which, uint8_t *out) {
    const size_t size = v->dtype == AGOQ_DTYPE_F32 ? 4 : 2, row = COLS * size;
    const size_t first = (size_t)((uint8_t *)v->data - space[which]), step = (size_t)v->row_stride * size;
    for (size_t i = 0; i < SPACE; i++) {
        const size_t r = (i - first) / step, c = (i - first) % step;
        if (i >= first && r < ROWS && c < row)
            out[r * row + c] = space[which][i];
        else if (space[which][i] != 0x5A)
            fail_msg("byte %zu of %d rows was written", i, (int)ROWS);
    }
}

static agoq_packed into(uint8_t *data, int format) {
    agoq_packed p = {.data = data};
    assert_int_equal(agoq_layout_make(format, ROWS, COLS, &p.layout), AGOQ_OK);
    assert_true(p.layout.bytes <= 1 << 14);
    return p;
}

static void make_bytes(const agoqk_ops *ops, int format, agoq_dtype type, size_t shift, int64_t gap,
                       bytes *b) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_key key = {1, 2, 3, 4, 5, 6};
    const agoq_norm norm = {.kind = AGOQ_NORM_LAYER, .eps = 1e-5f};
    static float table[2][2 * 96];
    uint64_t seed = 77;
    memset(b, 0, sizeof *b);
    agoq_view x = place(0, type, shift, COLS + gap);
    for (int i = 0; i < ROWS * COLS; i++) {
        uint8_t element[4];
        const size_t size = type == AGOQ_DTYPE_F32 ? 4 : 2;
        put_as(type, space[1], 0, i / 64 % 5 == 3 ? 0.0f : gauss(&seed));
        memcpy(element, space[1], size);
        memcpy((uint8_t *)x.data + (size_t)(i / COLS * (COLS + gap) + i % COLS) * size, element, size);
    }
    for (int i = 0; i < 2 * 96; i++) table[0][i] = 0.8f, table[1][i] = 0.6f;
    const agoq_rope rope = {
        .cos = table[0], .sin = table[1], .n_positions = 2, .head_dim = 193, .rotary = 192};
    agoq_packed p[4];
    _Alignas(16) static uint8_t data[4][1 << 14];
    memset(data, 0, sizeof data);
    for (int i = 0; i < 4; i++) p[i] = into(data[i], format);
    assert_int_equal(ops->pack(&exec, &x, NULL, &p[0]), AGOQ_OK);
    assert_int_equal(ops->pack(&exec, &x, &key, &p[1]), AGOQ_OK);
    agoq_view y = place(1, type, shift, COLS + 2 * gap);
    assert_int_equal(ops->unpack(&exec, &p[0], &y), AGOQ_OK);
    take(&y, 1, b->y[0]);
    y = place(1, type, shift, COLS + gap);
    assert_int_equal(ops->norm_fwd_pack(&exec, &x, NULL, &norm, NULL, &y, &p[2]), AGOQ_OK);
    take(&y, 1, b->y[1]);
    y = place(1, type, shift, COLS);
    assert_int_equal(ops->rope(&exec, &x, &rope, 0, &y, &p[3]), AGOQ_OK);
    take(&y, 1, b->y[2]);
    memcpy(b->packed, data, sizeof data);
}

static void strides_alignments_levels(void **state) {
    (void)state;
    static bytes first, other;
    for (int k = 0; k < N_FORMATS * 3; k++) {
        const agoq_dtype type = (agoq_dtype)(k % 3);
        make_bytes(agoqk_cpu_level(0), formats[k / 3], type, 0, 0, &first);
        for (int i = 0; agoqk_cpu_level(i); i++) {
            for (size_t shift = 0; shift < 16; shift++) {
                make_bytes(agoqk_cpu_level(i), formats[k / 3], type, shift, (int64_t)shift * 5, &other);
                assert_memory_equal(&first, &other, sizeof first);
            }
        }
    }
}

/* Columns [100, 100 + 200) of a wider matrix, and every second row: a view is a pointer and a stride. */
static void column_slice(void **state) {
    (void)state;
    enum { WIDE = 512, FROM = 100, PART = 200, N = 6 };
    matrix wide = matrix_random(N, WIDE, 41), part = matrix_new(N / 2, PART), back = matrix_new(N, WIDE);
    for (int i = 0; i < N / 2 * PART; i++) part.data[i] = wide.data[i / PART * 2 * WIDE + FROM + i % PART];
    for (int w = 0; w < N_FORMATS; w++) {
        agoq_packed p = packed_new(formats[w], N / 2, PART), q = packed_new(formats[w], N / 2, PART);
        const agoq_view slice = {wide.data + FROM, AGOQ_DTYPE_F32, N / 2, PART, 2 * WIDE};
        agoq_view to = {back.data + FROM, AGOQ_DTYPE_F32, N / 2, PART, 2 * WIDE};
        assert_int_equal(agoq_pack(NULL, &slice, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_pack(NULL, &part.view, NULL, &q), AGOQ_OK);
        assert_memory_equal(p.data, q.data, p.layout.bytes);
        memset(back.data, 0, N * WIDE * 4);
        assert_int_equal(agoq_unpack(NULL, &p, &to), AGOQ_OK);
        for (int i = 0; i < N * WIDE; i++) {
            const int inside = i / WIDE % 2 == 0 && i % WIDE >= FROM && i % WIDE < FROM + PART;
            assert_true(inside ? fabsf(back.data[i] - wide.data[i]) < 0.5f : back.data[i] == 0.0f);
        }
        free(p.data), free(q.data);
    }
    free(wide.data), free(part.data), free(back.data);
}

/* ---- threads ---- */

typedef struct share {
    const agoq_view *x;
    const agoq_key *key;
    agoq_packed *packed;
    agoq_view y;
    int64_t first, rows;
    agoq_status status;
} share;

static void *work(void *arg) {
    share *s = arg;
    agoq_view x = *s->x, y = s->y;
    x.data = (uint8_t *)x.data + (size_t)(s->first * x.row_stride) * 2;
    y.data = (uint8_t *)y.data + (size_t)(s->first * y.row_stride) * 2;
    x.rows = y.rows = s->rows;
    s->status = agoq_pack_rows(NULL, &x, s->first, s->key, s->packed);
    if (s->status == AGOQ_OK) s->status = agoq_unpack_rows(NULL, s->packed, s->first, &y);
    return NULL;
}

/* Threads that share a tensor by rows, in parts of any size, write the bytes of one call. */
static void threads(void **state) {
    (void)state;
    enum { N = 37, WIDTH = 203, THREADS = 5 };
    static uint16_t x_data[N * WIDTH], one[N * WIDTH], many[N * WIDTH];
    static const int64_t cuts[THREADS + 1] = {0, 1, 8, 8, 23, N};
    const agoq_key key = {1, 2, 3, 4, 5, INT64_C(1) << 40};
    uint64_t seed = 4;
    for (int i = 0; i < N * WIDTH; i++) x_data[i] = agoqk_bf16_encode(gauss(&seed));
    const agoq_view x = {x_data, AGOQ_DTYPE_BF16, N, WIDTH, WIDTH};
    for (int k = 0; k < N_FORMATS * 2; k++) {
        agoq_packed p = packed_new(formats[k / 2], N, WIDTH), q = packed_new(formats[k / 2], N, WIDTH);
        agoq_view y = {one, AGOQ_DTYPE_BF16, N, WIDTH, WIDTH}, y2 = {many, AGOQ_DTYPE_BF16, N, WIDTH, WIDTH};
        pthread_t id[THREADS];
        share shares[THREADS];
        assert_int_equal(agoq_pack(NULL, &x, k % 2 ? &key : NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &y), AGOQ_OK);
        for (int i = 0; i < THREADS; i++) {
            shares[i] =
                (share){&x, k % 2 ? &key : NULL, &q, y2, cuts[i], cuts[i + 1] - cuts[i], AGOQ_E_INVAL};
            assert_int_equal(pthread_create(&id[i], NULL, work, &shares[i]), 0);
        }
        for (int i = 0; i < THREADS; i++) {
            pthread_join(id[i], NULL);
            assert_int_equal(shares[i].status, AGOQ_OK);
        }
        assert_memory_equal(p.data, q.data, p.layout.bytes);
        assert_memory_equal(one, many, sizeof one);
        agoq_view two = x;
        two.rows = 2;
        assert_int_equal(agoq_pack_rows(NULL, &two, N - 1, NULL, &q), AGOQ_E_INVAL);
        assert_int_equal(agoq_pack_rows(NULL, &two, -1, NULL, &q), AGOQ_E_INVAL);
        assert_int_equal(agoq_unpack_rows(NULL, &q, INT64_MAX, &two), AGOQ_E_INVAL);
        two.cols--;
        assert_int_equal(agoq_unpack_rows(NULL, &q, 0, &two), AGOQ_E_INVAL);
        assert_memory_equal(p.data, q.data, p.layout.bytes);
        free(p.data), free(q.data);
    }
}

/* Tensors beyond the caches take other stores: whole and in chunks of few rows they give the same bytes. */
static void large_tensors(void **state) {
    (void)state;
    enum { N = 4100, WIDTH = 8192, CHUNK = 100, PERIOD = 1 << 16 };
    const size_t all = (size_t)N * WIDTH * 2;
    uint16_t *x_data = aligned_alloc(64, all), *one = aligned_alloc(64, all), *many = aligned_alloc(64, all);
    assert_true(x_data && one && many);
    uint64_t seed = 6;
    for (int i = 0; i < PERIOD; i++) x_data[i] = agoqk_bf16_encode(gauss(&seed));
    for (size_t i = PERIOD; i < (size_t)N * WIDTH; i++) x_data[i] = x_data[i - PERIOD];
    const agoq_view x = {x_data, AGOQ_DTYPE_BF16, N, WIDTH, WIDTH};
    for (int w = 0; w < N_FORMATS; w++) {
        agoq_packed p = {.data = NULL}, q;
        assert_int_equal(agoq_layout_make(formats[w], N, WIDTH, &p.layout), AGOQ_OK);
        q.layout = p.layout;
        p.data = aligned_alloc(64, (p.layout.bytes + 63) / 64 * 64);
        q.data = aligned_alloc(64, (p.layout.bytes + 63) / 64 * 64);
        assert_true(p.data && q.data);
        memset(p.data, 0, p.layout.bytes), memset(q.data, 0, p.layout.bytes);
        agoq_view y = {one, AGOQ_DTYPE_BF16, N, WIDTH, WIDTH};
        assert_int_equal(agoq_pack(NULL, &x, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &y), AGOQ_OK);
        for (int64_t first = 0; first < N; first += CHUNK) {
            const agoq_view part = {x_data + first * WIDTH, AGOQ_DTYPE_BF16, CHUNK, WIDTH, WIDTH};
            agoq_view back = {many + first * WIDTH, AGOQ_DTYPE_BF16, CHUNK, WIDTH, WIDTH};
            assert_int_equal(agoq_pack_rows(NULL, &part, first, NULL, &q), AGOQ_OK);
            assert_int_equal(agoq_unpack_rows(NULL, &q, first, &back), AGOQ_OK);
        }
        assert_true(memcmp(p.data, q.data, p.layout.bytes) == 0);
        assert_true(memcmp(one, many, all) == 0);
        free(p.data), free(q.data);
    }
    free(x_data), free(one), free(many);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(strides_alignments_levels),
                                       cmocka_unit_test(column_slice), cmocka_unit_test(threads),
                                       cmocka_unit_test(large_tensors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
