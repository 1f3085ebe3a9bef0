/* Never a byte outside, for packing and every fused row: memory faults on either side. Sizes that no memory
 * could hold are refused, and blocks of extreme values stay what the format says. Failures known from other
 * libraries, and the tests that keep them out:
 *
 * - sizes from 2^31 on, negative counts: huge_offsets, absurd_sizes
 * - sizes that are no multiple of a block: guards; test_format shapes_and_guards
 * - the caller's memory beside a tensor overwritten: test_placement; test_format gaps_are_untouched
 * - a wrong dtype behind a raw pointer: tests/api, views of unknown dtype, unaligned floats
 * - zero and subnormal blocks divide by zero: small_blocks; test_format special_values
 * - values beyond the range of a type, NaN that a maximum drops: overflow_and_nan; tests/vectors/int.txt
 * - uninitialised scales of a padded tail: guards; test_format gaps_are_untouched
 * - input that is not contiguous: test_placement; stride below the columns: tests/api
 * - scales past some index read as zero: test_placement column_slice
 * - random bits that follow chunks or threads: test_placement threads; test_format stochastic_any_split
 * - SwiGLU inputs beyond a format's range: test_swiglu swiglu_extremes, test_levels
 *
 * What needs a GPU (streams, graphs, grid limits) is in tests/gpu. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/agoq_kernels.h"
#include "libagoq/codec_check.h"
#include "tests/unit/row_fixture.h"

/* A buffer of n bytes that ends exactly at a page that faults; before: that begins after one. */
typedef struct guarded {
    uint8_t *map, *data;
    size_t map_bytes, n;
} guarded;

static guarded guard_new(size_t n, int before) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + page) / page * page;
    guarded g = {.map_bytes = body + 2 * page, .n = n};
    g.map = mmap(NULL, g.map_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(g.map != MAP_FAILED);
    memset(g.map, 0xA5, g.map_bytes);
    assert_int_equal(mprotect(g.map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(g.map + page + body, page, PROT_NONE), 0);
    g.data = before ? g.map + page : g.map + page + body - n;
    return g;
}

enum { N_VIEWS = 5, N_PACKED = 2, N_OPS = 8 };

/* Everything an operation may touch, and nothing beside it. */
typedef struct world {
    guarded view_memory[N_VIEWS], packed_memory[N_PACKED], vectors[4], tables[2], positions;
    agoq_view view[N_VIEWS];
    agoq_packed packed[N_PACKED];
    agoq_norm norm;
    agoq_rope rope;
} world;

static world world_new(int64_t rows, int64_t cols, int bits, agoq_dtype type, int before) {
    const size_t size = type == AGOQ_DTYPE_F32 ? 4 : 2, n = (size_t)(rows * cols);
    const int rotary = (int)(cols / 2 * 2);
    world w = {.norm = {.kind = (agoq_norm_kind)(cols % 2), .weight_dtype = type, .eps = 1e-5f}};
    uint64_t seed = (uint64_t)(cols * 8 + bits);
    for (int i = 0; i < N_VIEWS; i++) {
        w.view_memory[i] = guard_new(n * size, before);
        w.view[i] = (agoq_view){w.view_memory[i].data, type, rows, cols, cols};
        for (size_t k = 0; k < n; k++) put_as(type, w.view[i].data, (int64_t)k, gauss(&seed));
    }
    for (int i = 0; i < N_PACKED; i++) {
        assert_int_equal(agoq_layout_make(bits, rows, cols, &w.packed[i].layout), AGOQ_OK);
        w.packed_memory[i] = guard_new(w.packed[i].layout.bytes, before);
        w.packed[i].data = w.packed_memory[i].data;
    }
    for (int i = 0; i < 4; i++) {
        w.vectors[i] = guard_new((size_t)cols * (i < 2 ? size : 4), before);
        for (int64_t c = 0; c < cols; c++)
            put_as(i < 2 ? type : AGOQ_DTYPE_F32, w.vectors[i].data, c, 1.0f + gauss(&seed) / 8);
    }
    w.norm.weight = w.vectors[0].data, w.norm.bias = w.vectors[1].data;
    for (int i = 0; i < 2; i++) {
        w.tables[i] = guard_new((size_t)rotary * 4, before); /* two positions */
        for (int k = 0; k < rotary; k++) put_as(AGOQ_DTYPE_F32, w.tables[i].data, k, i ? 0.6f : 0.8f);
    }
    w.positions = guard_new((size_t)rows * 4, before);
    for (int64_t r = 0; r < rows; r++) ((int32_t *)(void *)w.positions.data)[r] = (int32_t)(r % 3);
    w.rope = (agoq_rope){.cos = (float *)(void *)w.tables[0].data,
                         .sin = (float *)(void *)w.tables[1].data,
                         .n_positions = 2,
                         .positions = (int32_t *)(void *)w.positions.data,
                         .head_dim = (int32_t)cols,
                         .rotary = rotary,
                         .interleaved = bits % 2};
    return w;
}

static void world_free(world *w) {
    guarded *all[] = {w->view_memory, w->packed_memory, w->vectors, w->tables, &w->positions};
    static const int counts[] = {N_VIEWS, N_PACKED, 4, 2, 1};
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < counts[k]; i++) munmap(all[k][i].map, all[k][i].map_bytes);
    }
}

static agoq_status run(world *w, const agoqk_ops *ops, int op) {
    static const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    static const agoq_key key = {1, 2, 3, 4, 5, 6};
    agoq_view *v = w->view;
    switch (op) {
    case 0:
        return ops->pack(&exec, &v[0], NULL, &w->packed[0]);
    case 1:
        return ops->unpack(&exec, &w->packed[0], &v[1]);
    case 2:
        return ops->pack(&exec, &v[0], &key, &w->packed[1]);
    case 3:
        return ops->norm_fwd_pack(&exec, &v[0], &v[1], &w->norm, &v[2], &v[3], &w->packed[1]);
    case 4:
        return ops->norm_fwd_packed(&exec, &w->packed[0], &w->norm, &v[4]);
    case 5:
        return ops->norm_bwd_packed(&exec, &w->packed[0], &w->norm, &v[0], &v[1],
                                    (float *)(void *)w->vectors[2].data, (float *)(void *)w->vectors[3].data);
    case 6:
        return ops->rope(&exec, &v[0], &w->rope, 0, &v[1], &w->packed[1]);
    default:
        return ops->swiglu_fwd_pack(&exec, &v[0], &v[1], 0, &v[2], &w->packed[0], &w->packed[1]) == AGOQ_OK
                   ? ops->swiglu_bwd_packed(&exec, &w->packed[0], &w->packed[1], 1, &v[0], &v[1], &v[3],
                                            &v[4])
                   : AGOQ_E_INVAL;
    }
}

/* Every tail of a block and of a word, first and last byte against a page that faults. A short plane that was
 * read too far, or written too far, is a crash. */
static void guards(void **state) {
    (void)state;
    int64_t cols[2 * 64 + 5];
    int n = 0;
    for (int c = 1; c <= 66; c++) cols[n++] = c;
    for (int c = 0; c < 5; c++) cols[n++] = (const int64_t[]){127, 128, 511, 513, 700}[c];
    for (int k = 0; k < n * N_FORMATS * 2; k++) {
        const int64_t c = cols[k / (N_FORMATS * 2)];
        const agoq_dtype type = (agoq_dtype)((k / 2 + c) % 3);
        world w = world_new(1 + c % 3, c, formats[k / 2 % N_FORMATS], type, k % 2);
        for (int i = 0; agoqk_cpu_level(i); i++) {
            for (int op = 0; op < N_OPS; op++) assert_int_equal(run(&w, agoqk_cpu_level(i), op), AGOQ_OK);
        }
        world_free(&w);
    }
}

/* ---- sizes and values ---- */

/* Rows that lie 2^31 elements and more apart, and a packed plane beyond 2^32 bytes: only a few pages of the
 * address range are touched. */
static void huge_offsets(void **state) {
    (void)state;
    enum { WIDTH = 128 };
    const int64_t stride = (INT64_C(1) << 31) + 64;
    const size_t span = (size_t)(2 * stride + WIDTH) * 2;
    uint8_t *far =
        mmap(NULL, span, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (far == MAP_FAILED) skip();
    agoq_view v = {far, AGOQ_DTYPE_BF16, 3, WIDTH, stride};
    uint16_t near[3 * WIDTH];
    uint64_t seed = 8;
    for (int i = 0; i < 3 * WIDTH; i++) {
        near[i] = agoqk_bf16_encode(gauss(&seed));
        ((uint16_t *)(void *)far)[i / WIDTH * stride + i % WIDTH] = near[i];
    }
    const agoq_view dense = {near, AGOQ_DTYPE_BF16, 3, WIDTH, WIDTH};
    agoq_packed p = packed_new(8, 3, WIDTH), q = packed_new(8, 3, WIDTH), wide = packed_new(16, 3, WIDTH);
    assert_int_equal(agoq_pack(NULL, &v, NULL, &p), AGOQ_OK);
    assert_int_equal(agoq_pack(NULL, &dense, NULL, &q), AGOQ_OK);
    assert_memory_equal(p.data, q.data, p.layout.bytes);
    assert_int_equal(agoq_pack(NULL, &dense, NULL, &wide), AGOQ_OK);
    memset(far, 0, WIDTH * 2);
    assert_int_equal(agoq_unpack(NULL, &wide, &v), AGOQ_OK);
    for (int i = 0; i < 3 * WIDTH; i++)
        assert_int_equal(((uint16_t *)(void *)far)[i / WIDTH * stride + i % WIDTH], near[i]);
    munmap(far, span);
    free(p.data), free(q.data), free(wide.data);
}

static void absurd_sizes(void **state) {
    (void)state;
    float x = 0;
    agoq_packed p = packed_new(4, 1, 1);
    agoq_layout layout;
    static const int64_t big[] = {INT64_MAX, INT64_MAX / 2, INT64_C(1) << 61};
    for (int i = 0; i < 3; i++) {
        agoq_view v = {&x, AGOQ_DTYPE_F32, 1, big[i], big[i]};
        assert_int_equal(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_LIMIT);
        v = (agoq_view){&x, AGOQ_DTYPE_F32, big[i], 64, 64};
        assert_int_equal(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_LIMIT);
        assert_int_equal(agoq_unpack(NULL, &p, &v), AGOQ_E_LIMIT);
        v.cols = v.row_stride = -1;
        assert_int_equal(agoq_pack(NULL, &v, NULL, &p), AGOQ_E_INVAL);
        for (int w = 0; w < N_FORMATS; w++) {
            assert_int_equal(agoq_layout_make(formats[w], big[i], big[i], &layout), AGOQ_E_LIMIT);
            assert_int_equal(agoq_layout_make(formats[w], -1, 64, &layout), AGOQ_E_INVAL);
        }
    }
    free(p.data);
}

/* Blocks of nothing, of subnormals and next to them give exact zeros or what fits, never NaN. */
static void small_blocks(void **state) {
    (void)state;
    static const float tops[] = {0.0f, -0.0f, 1e-45f, 1e-40f, 1e-38f, 1e-37f, 1e-36f, 1e-35f, 1e-30f, 1e-11f};
    for (int k = 0; k < 10 * N_FORMATS * 2; k++) {
        const float top = tops[k / (N_FORMATS * 2)];
        const agoq_dtype type = k % 2 ? AGOQ_DTYPE_BF16 : AGOQ_DTYPE_F32;
        const int format = formats[k / 2 % N_FORMATS];
        uint8_t x[192 * 4] = {0}, y[192 * 4];
        for (int i = 0; i < 192; i++) put_as(type, x, i, i / 64 == 1 ? top * (float)(i % 3 - 1) : 1.0f);
        agoq_packed p = packed_new(format, 1, 192);
        const int bits = p.layout.bits;
        /* what lies at the upper end is as far off as the last level is from 2^(b-1) */
        const float end = format == AGOQ_FORMAT_CODE4 ? 1.125f : 1.0f;
        uint32_t nonfinite = 0;
        const agoq_exec exec = {.nonfinite = &nonfinite};
        agoq_view v = {x, type, 1, 192, 192}, out = {y, type, 1, 192, 192};
        assert_int_equal(agoq_pack(&exec, &v, NULL, &p), AGOQ_OK);
        assert_int_equal(agoq_unpack(NULL, &p, &out), AGOQ_OK);
        assert_int_equal(nonfinite, 0);
        for (int i = 0; i < 192; i++) {
            const float in = get_as(type, x, i), got = get_as(type, y, i);
            assert_true(isfinite(got));
            const float slack =
                fabsf(in) / 256 + (bits == 16 ? 0 : end * fabsf(top) / (float)(1 << (bits - 1)));
            if (i / 64 == 1)
                assert_true(fabsf(got - in) <=
                            1.02f * slack + (bits == 16 ? 0x1p-133f : 0x1p-126f * (float)(1 << (bits - 1))));
            if (i / 64 == 1 && fabsf(top) < 0x1p-126f && bits < 16) assert_true(got == 0.0f);
        }
        free(p.data);
    }
}

/* The largest fp16 values survive; an Inf or NaN spoils its block alone, whatever its place, and is counted.
 */
static void overflow_and_nan(void **state) {
    (void)state;
    for (int k = 0; k < N_FORMATS * 3 * 64; k++) {
        const agoq_dtype type = (agoq_dtype)(k / 64 % 3);
        const int bits = formats[k / 192], at = k % 64;
        uint8_t x[256 * 4] = {0}, y[256 * 4];
        for (int i = 0; i < 256; i++) put_as(type, x, i, i / 64 == 0 ? (i % 2 ? 65504.0f : -65504.0f) : 1.0f);
        put_as(type, x, 64 + at, k % 2 ? INFINITY : -INFINITY);
        put_as(type, x, 192 + at, NAN);
        agoq_packed p = packed_new(bits, 1, 256);
        uint32_t nonfinite = 5;
        const agoq_exec exec = {.nonfinite = &nonfinite};
        agoq_view v = {x, type, 1, 256, 256}, out = {y, type, 1, 256, 256};
        assert_int_equal(agoq_pack(&exec, &v, NULL, &p), AGOQ_OK);
        assert_int_equal(nonfinite, 7);
        assert_int_equal(agoq_unpack(NULL, &p, &out), AGOQ_OK);
        for (int i = 0; i < 256; i++) {
            const float got = get_as(type, y, i);
            const int spoilt = bits == 16 ? i == 192 + at : i / 64 % 2 == 1;
            assert_int_equal(isnan(got) != 0, spoilt);
            if (bits == 16 && i == 64 + at)
                assert_true(isinf(got));
            else if (!spoilt && i / 64 == 2)
                assert_true(got == 1.0f || fabsf(got - 1.0f) < 0.13f);
            else if (!spoilt && i / 64 == 0 && i % 2 == 0 && type == AGOQ_DTYPE_F32)
                assert_true(fabsf(got + 65504.0f) <= 65504.0f / 256);
        }
        free(p.data);
    }
}

/* Whatever a kernel answers, the text says what failed and why: the device's own words for E_CUDA alone. */
static void failures_have_texts(void **state) {
    (void)state;
#define STATUS_VALUE(id, value, text) AGOQ_##id,
    static const agoq_status all[] = {AGOQ_STATUS(STATUS_VALUE)};
#undef STATUS_VALUE
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        assert_int_equal(codec_done("pack", all[i]), all[i]);
        if (all[i] == AGOQ_OK) continue;
        const char *text = agoq_last_error();
        const int device = strstr(text, agoqk_device_error()) != NULL;
        assert_true(strncmp(text, "pack", 4) == 0);
        assert_int_equal(device, all[i] == AGOQ_E_CUDA);
        if (!device && all[i] != AGOQ_E_UNSUPPORTED) assert_non_null(strstr(text, agoq_status_text(all[i])));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(guards),           cmocka_unit_test(huge_offsets),
        cmocka_unit_test(absurd_sizes),     cmocka_unit_test(small_blocks),
        cmocka_unit_test(overflow_and_nan), cmocka_unit_test(failures_have_texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
