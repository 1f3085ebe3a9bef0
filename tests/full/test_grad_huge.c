/* Gradients of more than 2^31 elements: index arithmetic of what works on a whole tensor. The input is a
 * mapping of zeros that only a few elements of were written, so that codes are all the memory it takes. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <cmocka.h>

#include "agoq/agoq.h"

static const int64_t n = (INT64_C(1) << 31) + 200;

static void *map(size_t bytes) {
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return p == MAP_FAILED ? NULL : p;
}

static void more_than_32_bits(void **state) {
    (void)state;
    const size_t scales_bytes = (size_t)agoq_grad_blocks(n) * sizeof(float);
    agoq_grad g = {map((size_t)n), map(scales_bytes), n, AGOQ_GRAD_INT8};
    uint16_t *x = map((size_t)n * sizeof *x);
    if (!g.codes || !g.scales || !x) skip();
    /* block of its own each: first, last below 2^31, first above, last */
    const int64_t at[] = {0, (INT64_C(1) << 31) - 1, INT64_C(1) << 31, n - 1};
    static const uint16_t one[] = {0x3F80, 0xC000, 0x4040, 0xC080}; /* 1, -2, 3, -4 as bf16 */
    for (int i = 0; i < 4; i++) x[at[i]] = one[i];
    const agoq_key key = {1, 2, 3, 4, 5, 0};
    assert_int_equal(agoq_grad_zero(NULL, &g), AGOQ_OK);
    assert_int_equal(agoq_grad_accumulate(NULL, x, AGOQ_DTYPE_BF16, &key, &g), AGOQ_OK);
    assert_int_equal(agoq_grad_accumulate(NULL, x, AGOQ_DTYPE_BF16, NULL, &g), AGOQ_OK);
    double sqnorm = 0;
    uint32_t blocks = 0;
    assert_int_equal(agoq_grad_sqnorm(NULL, &g, &sqnorm), AGOQ_OK);
    assert_true(sqnorm > 119.999 && sqnorm < 120.001); /* 4 + 16 + 36 + 64 */
    agoq_grad again = g;
    assert_int_equal(agoq_grad_reduce(NULL, &g, 1, 0.5f, &again, NULL), AGOQ_OK);
    g.scales[agoq_grad_blocks(n) - 2] = NAN;
    assert_int_equal(agoq_grad_check_finite(NULL, &g, &blocks), AGOQ_OK);
    assert_int_equal(blocks, 1);
    float y[3];
    for (int i = 0; i < 4; i++) {
        const int64_t begin = at[i] > 0 ? at[i] - 1 : 0;
        const int64_t count = begin + 3 < n ? 3 : n - begin;
        assert_int_equal(agoq_grad_read(NULL, &g, begin, count, 1.0f, y), AGOQ_OK);
        const float want = (float)(i % 2 ? -(i + 1) : i + 1), got = y[at[i] - begin];
        if (i == 2)
            assert_true(isnan(got)); /* the block that was lost above */
        else
            assert_true(got > want - 1e-5f && got < want + 1e-5f);
    }
    munmap(g.codes, (size_t)n), munmap(g.scales, scales_bytes), munmap(x, (size_t)n * sizeof *x);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(more_than_32_bits)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
