/* Norms, RoPE and the squared norm against tests/vectors/rows.txt, which tools/make_vectors.py wrote from
 * exact rationals: the order of every sum is part of the format. Norms keep their input at width 16, which
 * holds the vectors' bf16 values exactly. */
#include "tests/vectors.h"

#include "common/mem.h"

/* A list as the array of a dtype, in buffer `slot`; NULL if it is empty. */
static void *as_array(const vec_list *list, agoq_dtype dtype, int slot) {
    static uint32_t wide[4][VEC_MOST];
    static uint16_t half[4][VEC_MOST];
    for (size_t i = 0; i < list->n; i++) wide[slot][i] = list->v[i], half[slot][i] = (uint16_t)list->v[i];
    if (list->n == 0) return NULL;
    return dtype == AGOQ_DTYPE_F32 ? (void *)wide[slot] : (void *)half[slot];
}

static agoq_norm norm_of(const char *kind, agoq_dtype weight_dtype, const char *eps) {
    agoq_norm norm = {.kind = strcmp(kind, "rms") ? AGOQ_NORM_LAYER : AGOQ_NORM_RMS,
                      .weight_dtype = weight_dtype,
                      .eps = agoqk_float(vec_hex(eps))};
    return norm;
}

static uint8_t *pack_at_16(const agoq_view *x, agoq_packed *packed) {
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    assert_int_equal(agoq_layout_make(16, x->rows, x->cols, &packed->layout), AGOQ_OK);
    packed->data = aligned_alloc(AGOQ_PLANE_ALIGN, packed->layout.bytes);
    assert_non_null(packed->data);
    assert_int_equal(vec_ops->pack(&exec, x, NULL, packed), AGOQ_OK);
    return packed->data;
}

static void check_norm(char **f) {
    const agoq_dtype y_dtype = vec_dtype(f[2]), w_dtype = vec_dtype(f[5]);
    const vec_list *x = vec_parse(f[7], 0), *want = vec_parse_n(f[10], 3, x->n);
    agoq_norm norm = norm_of(f[1], w_dtype, f[6]);
    norm.round_bf16 = vec_count(f[3]);
    norm.round_first = vec_count(f[4]);
    norm.weight = as_array(vec_parse(f[8], 1), w_dtype, 0);
    norm.bias = as_array(vec_parse(f[9], 2), w_dtype, 1);
    uint32_t wide[VEC_MOST];
    uint16_t half[VEC_MOST];
    const int64_t cols = (int64_t)x->n;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_view in = {(void *)(uintptr_t)x->v, AGOQ_DTYPE_F32, 1, cols, cols};
    const agoq_view y = {y_dtype == AGOQ_DTYPE_F32 ? (void *)wide : (void *)half, y_dtype, 1, cols, cols};
    agoq_packed packed;
    uint8_t *data = pack_at_16(&in, &packed);
    assert_int_equal(vec_ops->norm_fwd_pack(&exec, &in, NULL, &norm, NULL, &y, &packed), AGOQ_OK);
    for (size_t i = 0; i < x->n; i++)
        assert_int_equal(y_dtype == AGOQ_DTYPE_F32 ? wide[i] : half[i], want->v[i]);
    free(data);
}

static void check_normback(char **f) {
    const agoq_dtype w_dtype = vec_dtype(f[3]);
    const int64_t rows = vec_count(f[5]);
    const vec_list *x = vec_parse(f[6], 0), *dy = vec_parse_n(f[8], 1, x->n);
    const int64_t cols = (int64_t)x->n / rows;
    agoq_norm norm = norm_of(f[1], w_dtype, f[4]);
    norm.round_bf16 = vec_count(f[2]);
    norm.weight = as_array(vec_parse(f[7], 2), w_dtype, 0);
    float *dweight = as_array(vec_parse_n(f[9], 3, (size_t)cols), AGOQ_DTYPE_F32, 1);
    float *dbias = as_array(vec_parse_n(f[10], 4, (size_t)cols), AGOQ_DTYPE_F32, 2);
    uint32_t dx[VEC_MOST];
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_view in = {(void *)(uintptr_t)x->v, AGOQ_DTYPE_F32, rows, cols, cols};
    const agoq_view given = {(void *)(uintptr_t)dy->v, AGOQ_DTYPE_F32, rows, cols, cols};
    const agoq_view out = {dx, AGOQ_DTYPE_F32, rows, cols, cols};
    agoq_packed packed;
    uint8_t *data = pack_at_16(&in, &packed);
    assert_int_equal(vec_ops->norm_bwd_packed(&exec, &packed, &norm, &given, &out, dweight, dbias), AGOQ_OK);
    assert_memory_equal(dx, vec_parse_n(f[11], 5, x->n)->v, x->n * 4);
    assert_memory_equal(dweight, vec_parse_n(f[12], 6, (size_t)cols)->v, (size_t)cols * 4);
    assert_memory_equal(dbias, vec_parse_n(f[13], 7, (size_t)cols)->v, (size_t)cols * 4);
    free(data);
}

static void check_rope(char **f) {
    const vec_list *x = vec_parse(f[7], 0), *cos = vec_parse(f[8], 1), *sin = vec_parse(f[9], 2);
    const int64_t cols = (int64_t)x->n;
    const int32_t position = vec_count(f[5]);
    uint32_t got[VEC_MOST];
    const agoq_rope rope = {.cos = as_array(cos, AGOQ_DTYPE_F32, 0),
                            .sin = as_array(sin, AGOQ_DTYPE_F32, 1),
                            .n_positions = vec_count(f[6]),
                            .positions = &position,
                            .head_dim = vec_count(f[1]),
                            .rotary = vec_count(f[2]),
                            .interleaved = vec_count(f[3])};
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_view in = {(void *)(uintptr_t)x->v, AGOQ_DTYPE_F32, 1, cols, cols};
    const agoq_view out = {got, AGOQ_DTYPE_F32, 1, cols, cols};
    assert_int_equal(vec_ops->rope(&exec, &in, &rope, vec_count(f[4]), &out, NULL), AGOQ_OK);
    assert_memory_equal(got, vec_parse_n(f[10], 3, x->n)->v, x->n * 4);
}

/* Codes of a block of the squared norm's tensor: upper bytes of a linear congruential generator; what is no
 * finite number becomes 01. */
static void sqnorm_codes(agoq_grad_format format, uint64_t state, uint8_t *codes, int64_t n) {
    const int top = format == AGOQ_GRAD_E4M3 ? 0x7E : format == AGOQ_GRAD_E5M2 ? 0x7B : 0x7F;
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const uint8_t code = (uint8_t)(state >> 56);
        codes[i] = (code & 0x7F) > top ? 1 : code;
    }
}

static void check_sqnorm(char **f) {
    const int64_t n = vec_count(f[2]), n_blocks = (n - 1) / AGOQ_GRAD_BLOCK + 1;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const uint64_t start = strtoull(f[3], NULL, 16), want = strtoull(f[5], NULL, 16);
    agoq_grad grad = {mem_alloc((size_t)n), mem_alloc((size_t)n_blocks * 4), n, vec_grad_format(f[1])};
    double sum;
    assert_true(grad.codes && grad.scales);
    assert_int_equal(vec_ops->grad_zero(&exec, &grad), AGOQ_OK);
    for (char *at = f[4]; *at; at += *at == ',') {
        const int64_t block = (int64_t)strtoull(at, &at, 16), first = block * AGOQ_GRAD_BLOCK;
        assert_true(*at == ':' && block < n_blocks);
        grad.scales[block] = agoqk_float((uint32_t)strtoul(at + 1, &at, 16));
        assert_true(*at == ':');
        const uint64_t seed = strtoull(at + 1, &at, 16);
        sqnorm_codes(grad.format, seed, grad.codes + first,
                     n - first < AGOQ_GRAD_BLOCK ? n - first : AGOQ_GRAD_BLOCK);
    }
    memcpy(&sum, &start, sizeof sum);
    assert_int_equal(vec_ops->grad_sqnorm(&exec, &grad, &sum), AGOQ_OK);
    assert_memory_equal(&sum, &want, sizeof sum);
    mem_free(grad.codes);
    mem_free(grad.scales);
}

static void rows_vectors(void **state) {
    static const vec_kind kinds[] = {{"norm", check_norm, 11, 14},
                                     {"normback", check_normback, 14, 8},
                                     {"rope", check_rope, 11, 5},
                                     {"sqnorm", check_sqnorm, 6, 12}};
    (void)state;
    vec_check_file("tests/vectors/rows.txt", kinds, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
