/* pack and unpack as wholes: every width over shapes, strides, alignments and special values, with memory
 * that faults at the first byte outside, and the scalar E4M3 encoder against a search in the table of values.
 * The decoder used as the oracle here is written from docs/FORMATS.md, one element at a time, and shares
 * nothing with kernels/. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "kernels/format/half.h"
#include "tests/numeric.h"

static const int formats[] = {4, 5, 6, 8, 16, AGOQ_FORMAT_CODE4};
enum { N_FORMATS = sizeof formats / sizeof *formats };

/* A buffer of n bytes that ends exactly at a page that faults; `before`: the byte before it faults instead.
 */
typedef struct guarded {
    uint8_t *map, *data;
    size_t map_bytes;
} guarded;

static guarded guard_new(size_t n, int before) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page) / page * page;
    guarded g;
    g.map_bytes = body + 2 * page;
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    memset(g.map, 0xA5, g.map_bytes);
    assert_int_equal(mprotect(g.map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(g.map + page + body, page, PROT_NONE), 0);
    g.data = before ? g.map + page : g.map + page + body - n;
    return g;
}

static void guard_free(guarded *g) {
    munmap(g->map, g->map_bytes);
}

/* ---- an element-wise reader, from docs/FORMATS.md ---- */

static uint32_t plane_bits(const uint8_t *row, int64_t i, int k) {
    const int64_t per_word = 32 / k, j = i % per_word;
    uint32_t word;
    memcpy(&word, row + i / per_word * 4, 4);
    return (uint32_t)(word >> (k * (j / 2) + 16 * (j % 2)) & ((1ull << k) - 1));
}

static double read_element(const agoq_packed *p, int64_t r, int64_t c) {
    const agoq_layout *l = &p->layout;
    const uint8_t *data = p->data;
    const uint32_t low = plane_bits(data + (size_t)r * l->lo_row_bytes, c, l->lo_bits);
    if (l->bits == 16) return (double)bf16_value((uint16_t)low);
    uint32_t code = low;
    static const int code4[] = {-64, -50, -40, -32, -25, -18, -12, -6, 0, 6, 12, 19, 26, 34, 43, 55};
    if (l->hi_bits) code |= plane_bits(data + l->hi_offset + (size_t)r * l->hi_row_bytes, c, l->hi_bits) << 4;
    uint16_t scale;
    memcpy(&scale, data + l->scale_offset + 2 * (size_t)(r * l->blocks_per_row + c / 64), 2);
    if (l->format == AGOQ_FORMAT_CODE4) return code4[code] / 8.0 * (double)bf16_value(scale);
    return ((double)code - (double)(1 << (l->bits - 1))) * (double)bf16_value(scale);
}

/* ---- shapes ---- */

static void fill(float *x, int64_t n, uint64_t seed) {
    for (int64_t i = 0; i < n; i++) x[i] = gauss(&seed) * (i % 97 == 0 ? 30.0f : 1.0f);
}

/* The largest error a block of this format may have: half a step, or up to a whole one where the top end
 * clips. */
static void check_values(const agoq_packed *p, const float *x, int64_t stride, const float *y,
                         int64_t y_stride) {
    const agoq_layout *l = &p->layout;
    for (int64_t r = 0; r < l->rows; r++) {
        for (int64_t c = 0; c < l->cols; c++) {
            const float in = x[r * stride + c], out = y[r * y_stride + c];
            assert_true((double)out == read_element(p, r, c));
            double top = 0;
            for (int64_t i = c / 64 * 64; i < l->cols && i < c / 64 * 64 + 64; i++)
                top = fmax(top, fabs((double)x[r * stride + i]));
            const double step = l->bits == 16 ? fabs((double)in) / 128 : top / (1 << (l->bits - 1));
            const double most = l->format == AGOQ_FORMAT_CODE4 ? 1.125 : 1; /* above the last level */
            assert_true(fabs((double)(out - in)) <= most * step * 1.02);
        }
    }
}

static void padding_is_zero(const agoq_packed *p) {
    const agoq_layout *l = &p->layout;
    for (int64_t r = 0; r < l->rows; r++) {
        const uint8_t *low = (const uint8_t *)p->data + (size_t)r * l->lo_row_bytes;
        const uint8_t *high = (const uint8_t *)p->data + l->hi_offset + (size_t)r * l->hi_row_bytes;
        for (int64_t i = l->cols; i < (int64_t)l->lo_row_bytes * 8 / l->lo_bits; i++)
            assert_int_equal(plane_bits(low, i, l->lo_bits), 0);
        for (int64_t i = l->cols; l->hi_bits && i < (int64_t)l->hi_row_bytes * 8 / l->hi_bits; i++)
            assert_int_equal(plane_bits(high, i, l->hi_bits), 0);
    }
}

/* Packed bytes from and into memory with a fault on either side, and idempotence: what was decoded packs to
 * the same. */
static void one_shape(int format, int64_t rows, int64_t cols, int64_t stride, int before) {
    agoq_packed p, again;
    assert_int_equal(agoq_layout_make(format, rows, cols, &p.layout), AGOQ_OK);
    again.layout = p.layout;
    const size_t n_in = (size_t)((rows - 1) * stride + cols) * 4, n_out = (size_t)(rows * cols) * 4;
    guarded in = guard_new(n_in, before), out = guard_new(n_out, before),
            packed = guard_new(p.layout.bytes, before);
    guarded second = guard_new(p.layout.bytes, before);
    float *x = (float *)(void *)in.data, *y = (float *)(void *)out.data;
    fill(x, (rows - 1) * stride + cols, (uint64_t)(rows * 131 + cols * 7 + format));
    p.data = packed.data;
    again.data = second.data;
    const agoq_view vx = {x, AGOQ_DTYPE_F32, rows, cols, stride};
    agoq_view vy = {y, AGOQ_DTYPE_F32, rows, cols, cols};
    assert_int_equal(agoq_pack(NULL, &vx, NULL, &p), AGOQ_OK);
    assert_int_equal(agoq_unpack(NULL, &p, &vy), AGOQ_OK);
    check_values(&p, x, stride, y, cols);
    padding_is_zero(&p);
    memcpy(second.data, packed.data, p.layout.bytes);
    assert_int_equal(agoq_pack(NULL, &vy, NULL, &again), AGOQ_OK);
    assert_memory_equal(second.data, packed.data, p.layout.bytes);
    guard_free(&in);
    guard_free(&out);
    guard_free(&packed);
    guard_free(&second);
}

static void shapes_and_guards(void **state) {
    (void)state;
    static const int64_t cols[] = {1,  2,  3,  7,  8,  9,   15,  16,  17,  31, 32,
                                   33, 63, 64, 65, 96, 127, 128, 129, 200, 257};
    for (int w = 0; w < N_FORMATS; w++) {
        for (size_t i = 0; i < sizeof cols / sizeof *cols; i++) {
            one_shape(formats[w], 1, cols[i], cols[i], 0);
            one_shape(formats[w], 3, cols[i], cols[i] + 5, (int)(i % 2));
            one_shape(formats[w], 4, cols[i], cols[i], 1);
        }
    }
}

/* Gaps between planes and after the last are not ours to write. */
static void gaps_are_untouched(void **state) {
    (void)state;
    for (int w = 0; w < N_FORMATS; w++) {
        agoq_packed p;
        assert_int_equal(agoq_layout_make(formats[w], 3, 67, &p.layout), AGOQ_OK);
        const agoq_layout *l = &p.layout;
        uint8_t *data = aligned_alloc(16, l->bytes);
        float x[3 * 67];
        fill(x, 3 * 67, 5);
        memset(data, 0xA5, l->bytes);
        p.data = data;
        const agoq_view vx = {x, AGOQ_DTYPE_F32, 3, 67, 67};
        assert_int_equal(agoq_pack(NULL, &vx, NULL, &p), AGOQ_OK);
        for (size_t i = 3 * l->lo_row_bytes; i < l->hi_offset; i++) assert_int_equal(data[i], 0xA5);
        for (size_t i = l->hi_offset + 3 * l->hi_row_bytes; i < l->scale_offset; i++)
            assert_int_equal(data[i], 0xA5);
        for (size_t i = l->scale_offset + 6 * (size_t)l->blocks_per_row; i < l->bytes; i++)
            assert_int_equal(data[i], 0xA5);
        free(data);
    }
}

static void alignments_and_types(void **state) {
    (void)state;
    enum { ROWS = 2, COLS = 71, STRIDE = 73 };
    static const agoq_dtype types[] = {AGOQ_DTYPE_F32, AGOQ_DTYPE_BF16, AGOQ_DTYPE_F16};
    for (int w = 0; w < N_FORMATS; w++) {
        for (int t = 0; t < 3; t++) {
            const size_t size = types[t] == AGOQ_DTYPE_F32 ? 4 : 2;
            uint8_t first[2048];
            for (size_t shift = 0; shift < 16; shift++) {
                uint8_t in[ROWS * STRIDE * 4 + 16], out[ROWS * STRIDE * 4 + 16];
                uint64_t seed = 11;
                for (int i = 0; i < ROWS * STRIDE; i++) {
                    const float v = gauss(&seed);
                    const uint16_t half = t == 1 ? agoqk_bf16_encode(v) : agoqk_f16_encode(v);
                    memcpy(in + shift + (size_t)i * size, t == 0 ? (const void *)&v : &half, size);
                }
                agoq_packed p;
                assert_int_equal(agoq_layout_make(formats[w], ROWS, COLS, &p.layout), AGOQ_OK);
                p.data = aligned_alloc(16, p.layout.bytes);
                memset(p.data, 0, p.layout.bytes);
                const agoq_view vx = {in + shift, types[t], ROWS, COLS, STRIDE};
                agoq_view vy = {out + shift, types[t], ROWS, COLS, STRIDE};
                assert_int_equal(agoq_pack(NULL, &vx, NULL, &p), AGOQ_OK);
                if (shift == 0) memcpy(first, p.data, p.layout.bytes);
                assert_memory_equal(first, p.data, p.layout.bytes);
                memset(out, 0x5A, sizeof out);
                assert_int_equal(agoq_unpack(NULL, &p, &vy), AGOQ_OK);
                for (size_t i = 0; i < shift; i++) assert_int_equal(out[i], 0x5A);
                for (size_t i = shift + COLS * size; i < shift + STRIDE * size; i++)
                    assert_int_equal(out[i], 0x5A);
                if (formats[w] == 16 && t == 1) assert_memory_equal(out + shift, in + shift, COLS * size);
                free(p.data);
            }
        }
    }
}

static void empty_is_success(void **state) {
    (void)state;
    for (int w = 0; w < N_FORMATS; w++) {
        static const int64_t sizes[][2] = {{0, 0}, {0, 64}, {5, 0}};
        for (int s = 0; s < 3; s++) {
            agoq_packed p = {.data = NULL};
            assert_int_equal(agoq_layout_make(formats[w], sizes[s][0], sizes[s][1], &p.layout), AGOQ_OK);
            assert_int_equal(p.layout.bytes, 0);
            agoq_view v = {NULL, AGOQ_DTYPE_F32, sizes[s][0], sizes[s][1], sizes[s][1]};
            assert_int_equal(agoq_pack(NULL, &v, NULL, &p), AGOQ_OK);
            assert_int_equal(agoq_unpack(NULL, &p, &v), AGOQ_OK);
            const agoq_norm norm = {.eps = 1e-5f, .round_bf16 = 1};
            assert_int_equal(agoq_norm_fwd_pack(NULL, &v, NULL, &norm, NULL, &v, &p), AGOQ_OK);
        }
    }
}

/* ---- special values ---- */

static void pack_row(int format, const float *x, float *y, int n, uint32_t *nonfinite) {
    uint8_t data[1024] __attribute__((aligned(16)));
    agoq_packed p = {.data = data};
    assert_int_equal(agoq_layout_make(format, 1, n, &p.layout), AGOQ_OK);
    assert_true(p.layout.bytes <= sizeof data);
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = nonfinite};
    const agoq_view vx = {(void *)(uintptr_t)x, AGOQ_DTYPE_F32, 1, n, n};
    agoq_view vy = {y, AGOQ_DTYPE_F32, 1, n, n};
    assert_int_equal(agoq_pack(&exec, &vx, NULL, &p), AGOQ_OK);
    assert_int_equal(agoq_unpack(&exec, &p, &vy), AGOQ_OK);
}

static void special_values(void **state) {
    (void)state;
    for (int w = 0; w < N_FORMATS; w++) {
        if (formats[w] == 16) continue;
        float x[130] = {0}, y[130];
        uint32_t nonfinite = 0;
        fill(x, 130, 3);
        x[5] = 0.0f;
        x[6] = -0.0f;
        x[70] = NAN;
        x[129] = -INFINITY;
        pack_row(formats[w], x, y, 130, &nonfinite);
        assert_int_equal(nonfinite, 2);
        for (int i = 0; i < 64; i++) assert_true(isfinite(y[i]));
        for (int i = 64; i < 130; i++) assert_int_equal(agoqk_bits(y[i]), 0x7FC00000u);
        assert_int_equal(agoqk_bits(y[5]), 0);
        assert_int_equal(agoqk_bits(y[6]), 0);
        for (int i = 0; i < 130; i++) x[i] = i % 2 ? -0.0f : 0x1p-130f;
        pack_row(formats[w], x, y, 130, &nonfinite);
        for (int i = 0; i < 130; i++) assert_int_equal(agoqk_bits(y[i]), 0);
        assert_int_equal(nonfinite, 2);
        const float tie[2] = {1.0f, -1.0f};
        pack_row(formats[w], tie, y, 2, NULL); /* the negative takes level -2^(b-1), the other is clipped */
        const float last =
            formats[w] == AGOQ_FORMAT_CODE4 ? 55.0f / 64.0f : 1.0f - 1.0f / (float)(1 << (formats[w] - 1));
        assert_true(y[1] == -1.0f && y[0] == last);
    }
    float x16[4] = {-0.0f, INFINITY, NAN, 0x1p-140f}, y16[4];
    uint32_t nonfinite = 0;
    pack_row(16, x16, y16, 4, &nonfinite);
    assert_int_equal(nonfinite, 1);
    assert_int_equal(agoqk_bits(y16[0]), 0x80000000u);
    assert_true(isinf(y16[1]) && isnan(y16[2]));
    pack_row(16, x16, y16, 4, NULL);
}

static void accuracy_on_gauss(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    static const double want[N_FORMATS] = {9.50, 4.73, 2.36, 0.59, 0.166, 8.64};
    float *x = malloc(N * sizeof *x), *y = malloc(N * sizeof *y);
    uint64_t seed = 1;
    for (int i = 0; i < N; i++) x[i] = gauss(&seed);
    for (int w = 0; w < N_FORMATS; w++) {
        agoq_packed p;
        assert_int_equal(agoq_layout_make(formats[w], N / 256, 256, &p.layout), AGOQ_OK);
        p.data = aligned_alloc(16, p.layout.bytes);
        const agoq_view vx = {x, AGOQ_DTYPE_F32, N / 256, 256, 256};
        agoq_view vy = {y, AGOQ_DTYPE_F32, N / 256, 256, 256};
        assert_int_equal(agoq_pack(NULL, &vx, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &vy), AGOQ_OK);
        const double error = 100 * relative_error(x, y, N);
        print_message("%s: %.3f %%\n", agoq_format_of(formats[w])->name, error);
        assert_true(fabs(error / want[w] - 1) < 0.02);
        free(p.data);
    }
    free(x);
    free(y);
}

/* Stochastic: the mean of many roundings is the value, and one key gives the same bytes in any split by rows.
 */
static void stochastic(void **state) {
    (void)state;
    enum { N = 50000, COLS = 61 };
    for (int w = 0; w < N_FORMATS; w++) {
        float x[COLS], y[COLS];
        double sum[COLS] = {0};
        uint8_t data[512] __attribute__((aligned(16)));
        agoq_packed p = {.data = data};
        uint64_t seed = 7;
        for (int i = 0; i < COLS; i++) x[i] = gauss(&seed);
        x[0] = 4.0f;
        assert_int_equal(agoq_layout_make(formats[w], 1, COLS, &p.layout), AGOQ_OK);
        const agoq_view vx = {x, AGOQ_DTYPE_F32, 1, COLS, COLS};
        agoq_view vy = {y, AGOQ_DTYPE_F32, 1, COLS, COLS};
        for (uint64_t n = 0; n < N; n++) {
            const agoq_key key = {9, 1, n, 2, 3, 4};
            assert_int_equal(agoq_pack(NULL, &vx, &key, &p), AGOQ_OK);
            assert_int_equal(agoq_unpack(NULL, &p, &vy), AGOQ_OK);
            for (int i = 0; i < COLS; i++) sum[i] += (double)y[i] - (double)x[i];
        }
        for (int i = 0; i < COLS;
             i++) { /* one rounding errs by at most a step, so half a step is above its deviation */
            double step = formats[w] == 16 ? fabs((double)x[i]) / 128 : 4.0 / (1 << (p.layout.bits - 1));
            if (formats[w] == AGOQ_FORMAT_CODE4) step *= 1.75; /* between the two levels farthest out */
            assert_true(fabs(sum[i]) / N < 4 * step / 2 / sqrt((double)N) + 1e-6);
        }
    }
}

static void stochastic_any_split(void **state) {
    (void)state;
    enum { ROWS = 5, COLS = 67 };
    float x[ROWS * COLS], whole[ROWS * COLS], part[COLS];
    uint8_t data[4096] __attribute__((aligned(16)));
    fill(x, ROWS * COLS, 21);
    for (int w = 0; w < N_FORMATS; w++) {
        agoq_packed p = {.data = data};
        agoq_key key = {1, 2, 3, 4, 5, 1000};
        agoq_view v = {x, AGOQ_DTYPE_F32, ROWS, COLS, COLS}, y = {whole, AGOQ_DTYPE_F32, ROWS, COLS, COLS};
        assert_int_equal(agoq_layout_make(formats[w], ROWS, COLS, &p.layout), AGOQ_OK);
        assert_int_equal(agoq_pack(NULL, &v, &key, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &y), AGOQ_OK);
        assert_int_equal(agoq_layout_make(formats[w], 1, COLS, &p.layout), AGOQ_OK);
        v.rows = y.rows = 1;
        y.data = part;
        for (int r = 0; r < ROWS; r++) {
            v.data = x + r * COLS;
            key.offset = 1000 + r * COLS;
            assert_int_equal(agoq_pack(NULL, &v, &key, &p), AGOQ_OK);
            assert_int_equal(agoq_unpack(NULL, &p, &y), AGOQ_OK);
            assert_memory_equal(part, whole + r * COLS, sizeof part);
        }
    }
}

static void widths_and_formats(void **state) {
    (void)state;
    for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
        assert_int_equal(agoq_width_bits(i), formats[i]);
        assert_int_equal(agoq_width_index(formats[i]), i);
    }
    assert_int_equal(agoq_width_bits(-1), 0);
    assert_int_equal(agoq_width_bits(AGOQ_N_WIDTHS), 0);
    assert_int_equal(agoq_width_index(7), -1);
    assert_int_equal(AGOQ_N_FORMATS, N_FORMATS);
    for (int i = 0; i < AGOQ_N_FORMATS; i++) {
        const agoq_format_info *info = agoq_format_at(i);
        assert_int_equal(info->number, formats[i]);
        assert_ptr_equal(agoq_format_of(formats[i]), info);
        assert_int_equal(info->bits, info->lo_bits + info->hi_bits);
        if (i < AGOQ_N_WIDTHS) assert_int_equal(info->bits, info->number);
        if (i >= AGOQ_N_WIDTHS) assert_int_equal(agoq_width_index(info->number), -1);
    }
    assert_null(agoq_format_at(-1));
    assert_null(agoq_format_at(AGOQ_N_FORMATS));
    assert_null(agoq_format_of(7));
    agoq_layout layout, as_int4;
    assert_int_equal(agoq_layout_make(AGOQ_FORMAT_CODE4, 5, 67, &layout), AGOQ_OK);
    assert_int_equal(agoq_layout_make(4, 5, 67, &as_int4), AGOQ_OK);
    as_int4.format = AGOQ_FORMAT_CODE4; /* all else is the same */
    assert_memory_equal(&layout, &as_int4, sizeof layout);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widths_and_formats),  cmocka_unit_test(shapes_and_guards),
        cmocka_unit_test(gaps_are_untouched),  cmocka_unit_test(alignments_and_types),
        cmocka_unit_test(empty_is_success),    cmocka_unit_test(special_values),
        cmocka_unit_test(accuracy_on_gauss),   cmocka_unit_test(stochastic),
        cmocka_unit_test(stochastic_any_split)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
