/* Memory and data of kernel tests: one arena for everything a case reads and writes, so that what a kernel
 * should leave alone is compared too, and inputs that meet every special case of the formats. */
#ifndef TESTS_KERNELS_FILL_H
#define TESTS_KERNELS_FILL_H

#include "tests/kernels_ref.h"
#include "tests/numeric.h"

typedef struct karena {
    uint8_t *memory;
    size_t bytes;
} karena;

/* Hands out memory at multiples of 64 bytes; a pass without memory only counts. */
static void *karena_take(karena *a, size_t bytes) {
    void *at = a->memory ? a->memory + a->bytes : NULL;
    a->bytes += (bytes + 63) / 64 * 64;
    return at;
}

/* Gaussian, with an outlier here and there, whole blocks of zeros, and (special) what formats treat apart. */
static void kernels_fill(const agoq_view *v, uint64_t seed, int special) {
    static const float odd[] = {-0.0f, 1e-40f, -3e-38f, 1e-30f, 65520.0f, 3e38f, INFINITY, -INFINITY, NAN};
    for (int64_t r = 0; r < v->rows; r++) {
        for (int64_t c = 0; c < v->cols; c++) {
            const uint64_t dice = next_random(&seed) >> 40;
            float x = gauss(&seed) * (dice % 97 == 0 ? 30.0f : 1.0f);
            if ((r + c / 64) % 13 == 12) x = 0.0f;
            if (special && dice % 211 == 0) x = odd[dice / 211 % 9];
            kref_set(v, r, c, 0, x);
        }
    }
}

static void kernels_same_nans(float *x, size_t n) {
    for (size_t i = 0; i < n; i++) x[i] = agoqk_canonical(x[i]);
}

#endif
