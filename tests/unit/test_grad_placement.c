/* What bytes of gradients and optimizer states do not depend on: instruction set, where codes, inputs and
 * parameters lie, how a tensor is cut into calls, lists or single calls. Nothing outside is touched: every
 * array ends, or begins, at a page that faults. All formats, sizes around a block, special values. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/agoq_kernels.h"
#include "tests/unit/row_fixture.h"

enum { MOST = 3072 };

/* Everything that the operations on a gradient of n elements write. */
typedef struct bytes {
    uint8_t codes[MOST], reduced[MOST], m[MOST], v[MOST], half[2 * MOST];
    float scales[MOST / 128 + 1], reduced_scales[MOST / 128 + 1], m_top[MOST / 256 + 1],
        v_top[MOST / 256 + 1];
    float read[MOST], sum[MOST], master[MOST];
    double sqnorm;
    uint32_t nonfinite, blocks;
} bytes;

typedef struct arena {
    int before; /* arrays begin after a page that faults, else they end before one */
    struct {
        uint8_t *map;
        size_t bytes;
    } taken[24];
    int n;
} arena;

/* n bytes that end exactly where memory does; shift moves them away from the page, for other alignments. */
static void *take(arena *a, size_t n, size_t shift) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (n + shift + page) / page * page;
    assert_in_range(a->n, 0, 23);
    uint8_t *map = mmap(NULL, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(map != MAP_FAILED);
    memset(map, 0xA5, body + 2 * page);
    assert_int_equal(mprotect(map, page, PROT_NONE), 0);
    assert_int_equal(mprotect(map + page + body, page, PROT_NONE), 0);
    a->taken[a->n].map = map, a->taken[a->n++].bytes = body + 2 * page;
    return a->before ? map + page + shift : map + page + body - n - shift;
}

static void release(arena *a) {
    for (int i = 0; i < a->n; i++) munmap(a->taken[i].map, a->taken[i].bytes);
    a->n = 0;
}

static agoq_grad grad_at(arena *a, agoq_grad_format format, int64_t n, size_t shift) {
    uint8_t *codes = take(a, (size_t)n, shift);
    return (agoq_grad){codes, take(a, (size_t)(n + 127) / 128 * 4, 0), n, format};
}

static float value(int64_t i, int special, uint64_t *seed) {
    static const float odd[] = {-0.0f, 1e-40f, -3e-38f, 3e38f, -INFINITY, NAN, 1e-30f};
    const float x = gauss(seed) * exp2f((float)(-(i % 37)));
    return special && next_random(seed) % 101 == 0 ? odd[next_random(seed) % 7] : x;
}

/* Elements [from, to) by one call each; the state of Adam has blocks of 256. */
static void run_part(const agoqk_ops *ops, const agoq_exec *exec, agoq_grad g, agoq_grad sum,
                     const uint8_t *x, agoq_dtype type, agoq_adam8 state, float *master, uint16_t *half,
                     int64_t from, int64_t to) {
    static const agoq_adam_params adam = AGOQ_ADAM_PARAMS_INIT;
    const size_t size = type == AGOQ_DTYPE_F32 ? 4 : 2;
    const int64_t n = to - from;
    const agoq_key key = {1, 2, 3, 4, 5, 7 + from};
    agoq_grad part = {g.codes + from, g.scales + from / 128, n, g.format};
    agoq_grad out = {sum.codes + from, sum.scales + from / 128, n, g.format}, twice[2] = {part, part};
    const agoq_grad_term term = {part, x + (size_t)from * size, key};
    assert_int_equal(ops->grad_accumulate(exec, &term, 1, type, 0), AGOQ_OK);
    assert_int_equal(ops->grad_accumulate(exec, &term, 1, type, 1), AGOQ_OK);
    assert_int_equal(ops->grad_reduce(exec, twice, 2, 0.7f, &out, NULL), AGOQ_OK);
    const agoq_adam8 s = {state.m + from, state.v + from, state.m_absmax + from / 256,
                          state.v_absmax + from / 256, n};
    const agoq_adam_source source = {.grad8 = &part}, plain = {.grad = term.x, .dtype = type};
    const agoq_adam_target first = {master + from, half + from, NULL}, second = {NULL, half + from, &key};
    assert_int_equal(ops->adam8_step(exec, &adam, &source, &first, &s), AGOQ_OK);
    assert_int_equal(ops->adam8_step(exec, &adam, &plain, &second, &s), AGOQ_OK);
}

/* step: elements per call, a multiple of 256. */
static void make_bytes(const agoqk_ops *ops, agoq_grad_format format, agoq_dtype type, int64_t n,
                       int64_t step, int shift, int before, int special, bytes *b) {
    arena a = {.before = before};
    const size_t size = type == AGOQ_DTYPE_F32 ? 4 : 2, un = (size_t)n;
    const size_t x_shift = (size_t)(shift * 3 % 16), tops = (un + 255) / 256 * 4;
    agoq_grad g = grad_at(&a, format, n, (size_t)shift), sum = grad_at(&a, format, n, (size_t)(15 - shift));
    uint8_t *x = take(&a, un * size, x_shift), *m = take(&a, un, (size_t)(shift * 7 % 16)),
            *v = take(&a, un, 0);
    float *m_top = take(&a, tops, 0), *v_top = take(&a, tops, 0), *read = take(&a, un * 4, 0);
    float *master = take(&a, un * 4, 0), *total = take(&a, un * 4, 0);
    uint16_t *half = take(&a, un * 2, 0);
    const agoq_adam8 state = {m, v, m_top, v_top, n};
    memset(b, 0, sizeof *b);
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &b->nonfinite};
    uint64_t seed = 7;
    for (int64_t i = 0; i < n; i++) {
        float one[1];
        put_as(type, one, 0, value(i, special, &seed));
        memcpy(x + (size_t)i * size, one, size);
        master[i] = gauss(&seed);
    }
    assert_int_equal(ops->grad_zero(&exec, &g), AGOQ_OK);
    assert_int_equal(ops->adam8_init(&exec, &state), AGOQ_OK);
    for (int64_t from = 0; from < n; from += step)
        run_part(ops, &exec, g, sum, x, type, state, master, half, from, from + step < n ? from + step : n);
    const agoq_grad both[2] = {g, sum};
    assert_int_equal(ops->grad_read(&exec, &g, 0, n, 0.3f, read), AGOQ_OK);
    assert_int_equal(ops->grad_reduce(&exec, both, 2, 0.5f, NULL, total), AGOQ_OK);
    assert_int_equal(ops->grad_sqnorm(&exec, &g, &b->sqnorm), AGOQ_OK);
    assert_int_equal(ops->grad_check_finite(&exec, &g, &b->blocks), AGOQ_OK);
    for (int64_t i = 0; i < n; i++) b->read[i] = read[i], b->sum[i] = total[i];
    for (int64_t i = 0; i < n; i++)
        b->master[i] = master[i] == master[i] ? master[i] : 0.0f; /* NaN has no bits */
    memcpy(b->codes, g.codes, un), memcpy(b->reduced, sum.codes, un), memcpy(b->m, m, un),
        memcpy(b->v, v, un);
    memcpy(b->scales, g.scales, (un + 127) / 128 * 4),
        memcpy(b->reduced_scales, sum.scales, (un + 127) / 128 * 4);
    memcpy(b->m_top, m_top, tops), memcpy(b->v_top, v_top, tops), memcpy(b->half, half, un * 2);
    if (b->sqnorm != b->sqnorm) b->sqnorm = -1;
    release(&a);
}

static const int64_t sizes[] = {1, 127, 128, 129, 255, 256, 257, 1000, 2900};
enum { N_SIZES = sizeof sizes / sizeof *sizes };

static void placement_levels_and_cuts(void **state) {
    (void)state;
    static bytes want, got;
    for (int k = 0; k < AGOQ_N_GRAD_FORMATS * N_SIZES; k++) {
        const agoq_grad_format format = (agoq_grad_format)(k % AGOQ_N_GRAD_FORMATS);
        const int64_t n = sizes[k / AGOQ_N_GRAD_FORMATS];
        for (int special = 0; special < 2; special++) {
            const agoq_dtype type = (agoq_dtype)((k + special) % 3);
            make_bytes(agoqk_cpu_level(0), format, type, n, MOST, 0, 0, special, &want);
            if (n > 900) assert_int_equal(want.blocks != 0, special);
            for (int i = 0; agoqk_cpu_level(i); i++) {
                for (int shift = i; shift < 16; shift += 3) {
                    const int64_t step = shift % 2 ? MOST : 256 * (1 + shift % 3);
                    make_bytes(agoqk_cpu_level(i), format, type, n, step, shift, shift % 4 < 2, special,
                               &got);
                    if (memcmp(&want, &got, sizeof got))
                        fail_msg("level %s, format %d, n %lld, %d bytes off, %lld a call",
                                 agoqk_cpu_level_name(i), (int)format, (long long)n, shift, (long long)step);
                }
            }
        }
    }
}

/* The order of summation of a norm whose terms differ by more than doubles hold: E5M2 squares span 2^63. */
static void order_of_the_norm(void **state) {
    (void)state;
    enum { N = 70 * 128 * 1024 + 77, BLOCKS = N / 128 + 1 };
    uint8_t *codes = malloc(N);
    float *scales = malloc(BLOCKS * sizeof *scales);
    assert_non_null(codes);
    assert_non_null(scales);
    uint64_t seed = 31;
    for (int i = 0; i < N; i++) codes[i] = (uint8_t)(next_random(&seed) % 0x7C);
    for (int i = 0; i < BLOCKS; i++) scales[i] = exp2f((float)(next_random(&seed) % 40) - 20);
    const agoq_grad g = {codes, scales, N, AGOQ_GRAD_E5M2};
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    double total = 0, super[256];
    memset(super, 0, sizeof super);
    for (int64_t chunk = 0; chunk * 256 < BLOCKS; chunk++) {
        double term[256] = {0};
        for (int64_t b = chunk * 256; b < BLOCKS && b < (chunk + 1) * 256; b++) {
            double p[16];
            for (int64_t k = 0; k < 16; k++) {
                double q[8];
                for (int64_t j = 0; j < 8; j++) {
                    const int64_t i = b * 128 + 8 * k + j;
                    const int e = i < N ? codes[i] >> 2 : 0, m = i < N ? codes[i] & 3 : 0;
                    const double v = e ? ldexp(4 + m, e - 17) : ldexp(m, -16);
                    q[j] = v * v;
                }
                p[k] = ((q[0] + q[4]) + (q[2] + q[6])) + ((q[1] + q[5]) + (q[3] + q[7]));
            }
            for (int h = 8; h; h /= 2)
                for (int i = 0; i < h; i++) p[i] += p[i + h];
            term[b % 256] = p[0] * ((double)scales[b] * (double)scales[b]);
        }
        for (int h = 128; h; h /= 2)
            for (int i = 0; i < h; i++) term[i] += term[i + h];
        super[chunk % 256] = term[0];
        if (chunk % 256 < 255 && (chunk + 1) * 256 < BLOCKS) continue;
        for (int h = 128; h; h /= 2)
            for (int i = 0; i < h; i++) super[i] += super[i + h];
        total += super[0];
        memset(super, 0, sizeof super);
    }
    for (int i = 0; agoqk_cpu_level(i); i++) {
        double got = 0.5;
        assert_int_equal(agoqk_cpu_level(i)->grad_sqnorm(&exec, &g, &got), AGOQ_OK);
        assert_true(got == 0.5 + total);
    }
    free(codes), free(scales);
}

/* A list is its single calls; stochastic 0 reads no keys. */
static void lists(void **state) {
    (void)state;
    enum { TERMS = 70, SPACE = 64 * 1024 };
    static uint8_t codes[2][SPACE];
    static float scales[2][SPACE / 128 + TERMS], x[SPACE];
    uint64_t seed = 5;
    for (int i = 0; i < SPACE; i++) x[i] = gauss(&seed);
    for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
        for (int stochastic = 0; stochastic < 2; stochastic++) {
            agoq_grad_term terms[2][TERMS];
            memset(codes, 0, sizeof codes);
            memset(scales, 0, sizeof scales);
            int64_t at = 0;
            for (int t = 0; t < TERMS; t++) {
                const int64_t n = t * t % 977;
                for (int k = 0; k < 2; k++) {
                    const agoq_grad g = {codes[k] + at, scales[k] + at / 128 + t, n, (agoq_grad_format)f};
                    terms[k][t] = (agoq_grad_term){g, x + at, {1, (uint64_t)t, 3, 4, 5, 6}};
                }
                at += n;
            }
            assert_int_equal(agoq_grad_accumulate_list(NULL, terms[0], TERMS, AGOQ_DTYPE_F32, stochastic),
                             AGOQ_OK);
            for (int t = 0; t < TERMS; t++) {
                agoq_grad_term *one = &terms[1][t];
                assert_int_equal(agoq_grad_accumulate(NULL, one->x, AGOQ_DTYPE_F32,
                                                      stochastic ? &one->key : NULL, &one->grad),
                                 AGOQ_OK);
            }
            assert_memory_equal(codes[0], codes[1], SPACE);
            assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
        }
    }
    agoq_grad_term mixed[2] = {{{codes[0], scales[0], 5, AGOQ_GRAD_E4M3}, x, {0}},
                               {{codes[1], scales[1], 5, AGOQ_GRAD_E5M2}, x, {0}}};
    assert_int_equal(agoq_grad_accumulate_list(NULL, NULL, 0, AGOQ_DTYPE_F32, 0), AGOQ_OK);
    assert_int_equal(agoq_grad_accumulate_list(NULL, mixed, 2, AGOQ_DTYPE_F32, 0), AGOQ_E_INVAL);
    assert_int_equal(agoq_grad_accumulate_list(NULL, mixed, -1, AGOQ_DTYPE_F32, 0), AGOQ_E_INVAL);
    assert_int_equal(agoq_grad_accumulate_list(NULL, NULL, 1, AGOQ_DTYPE_F32, 0), AGOQ_E_INVAL);
}

/* Nothing of nothing, whatever the pointers. */
static void nothing(void **state) {
    (void)state;
    uint32_t blocks = 3;
    double norm = 2;
    for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
        agoq_grad g = {NULL, NULL, 0, (agoq_grad_format)f};
        assert_int_equal(agoq_grad_zero(NULL, &g), AGOQ_OK);
        assert_int_equal(agoq_grad_accumulate(NULL, NULL, AGOQ_DTYPE_BF16, NULL, &g), AGOQ_OK);
        assert_int_equal(agoq_grad_read(NULL, &g, 0, 0, 1, NULL), AGOQ_OK);
        assert_int_equal(agoq_grad_sqnorm(NULL, &g, &norm), AGOQ_OK);
        assert_int_equal(agoq_grad_check_finite(NULL, &g, &blocks), AGOQ_OK);
        assert_int_equal(agoq_grad_reduce(NULL, &g, 1, 1, &g, NULL), AGOQ_OK);
        assert_non_null(agoq_grad_format_name(g.format));
    }
    assert_true(blocks == 3 && norm == 2);
    assert_null(agoq_grad_format_name(AGOQ_N_GRAD_FORMATS));
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(placement_levels_and_cuts),
                                       cmocka_unit_test(order_of_the_norm), cmocka_unit_test(lists),
                                       cmocka_unit_test(nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
