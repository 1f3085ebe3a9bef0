/* The C arithmetic against tests/vectors/, which tools/make_vectors.py wrote from exact rationals: block
 * formats, random bits, maps and conversions. Rows and steps are in test_vectors_rows.c, thresholds in
 * test_thresholds.c. */
#include "tests/vectors.h"

#include "kernels/format/dynmap.h"
#include "kernels/format/philox.h"
#include "tests/dynmap_ref.h"

static void check_int(char **f) {
    const int bits = vec_count(f[1]);
    agoq_key key;
    const agoq_key *used = vec_key(f[2], &key);
    const vec_list *x = vec_parse(f[3], 0), *low = vec_parse(f[5], 1), *high = vec_parse(f[6], 2);
    const vec_list *want = vec_parse_n(f[7], 3, x->n);
    uint32_t got[VEC_MOST], nonfinite = 0;
    agoq_packed packed;
    assert_int_equal(agoq_layout_make(bits, 1, (int64_t)x->n, &packed.layout), AGOQ_OK);
    assert_int_equal(packed.layout.lo_row_bytes, low->n * 4);
    assert_int_equal(packed.layout.hi_row_bytes, high->n * 4);
    uint8_t *data = aligned_alloc(AGOQ_PLANE_ALIGN, packed.layout.bytes);
    assert_non_null(data);
    packed.data = data;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &nonfinite};
    const agoq_view in = {(void *)(uintptr_t)x->v, AGOQ_DTYPE_F32, 1, (int64_t)x->n, (int64_t)x->n};
    const agoq_view out = {got, AGOQ_DTYPE_F32, 1, (int64_t)x->n, (int64_t)x->n};
    assert_int_equal(vec_ops->pack(&exec, &in, used, &packed), AGOQ_OK);
    assert_int_equal(nonfinite, vec_nonfinite(x));
    assert_memory_equal(data, low->v, low->n * 4);
    assert_memory_equal(data + packed.layout.hi_offset, high->v, high->n * 4);
    if (bits < 16) {
        const uint16_t scale = (uint16_t)vec_hex(f[4]);
        assert_memory_equal(data + packed.layout.scale_offset, &scale, 2);
    }
    assert_int_equal(vec_ops->unpack(&exec, &packed, &out), AGOQ_OK);
    assert_memory_equal(got, want->v, x->n * 4);
    free(data);
}

static void check_grad(char **f) {
    agoq_key key;
    const agoq_key *used = vec_key(f[2], &key);
    const vec_list *x = vec_parse(f[3], 0), *codes = vec_parse_n(f[5], 1, x->n);
    const vec_list *want = vec_parse_n(f[6], 2, x->n);
    uint8_t got_codes[VEC_MOST];
    uint32_t nonfinite = 0, got_scale;
    float scale, got[VEC_MOST];
    agoq_grad_term term = {{got_codes, &scale, (int64_t)x->n, vec_grad_format(f[1])}, x->v, {0}};
    if (used) term.key = key;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &nonfinite};
    assert_int_equal(vec_ops->grad_zero(&exec, &term.grad), AGOQ_OK);
    assert_int_equal(vec_ops->grad_accumulate(&exec, &term, 1, AGOQ_DTYPE_F32, used != NULL), AGOQ_OK);
    assert_int_equal(nonfinite, vec_nonfinite(x));
    memcpy(&got_scale, &scale, 4);
    assert_int_equal(got_scale, vec_hex(f[4]));
    /* 0 + -0 is +0 before it is coded: a -0 that comes in is code 00 here, and keeps its sign where t is
     * coded
     */
    for (size_t i = 0; i < x->n; i++)
        assert_int_equal(got_codes[i], x->v[i] == 0x80000000u ? 0 : codes->v[i]);
    assert_int_equal(vec_ops->grad_read(&exec, &term.grad, 0, term.grad.n, 1.0f, got), AGOQ_OK);
    assert_memory_equal(got, want->v, x->n * 4);
}

static void check_value8(char **f) {
    uint8_t code = (uint8_t)vec_hex(f[2]);
    float scale = 1.0f, got;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_grad grad = {&code, &scale, 1, vec_grad_format(f[1])};
    assert_int_equal(vec_ops->grad_read(&exec, &grad, 0, 1, 1.0f, &got), AGOQ_OK);
    assert_int_equal(agoqk_bits(got), vec_hex(f[3]));
}

static void check_philox(char **f) {
    agoqk_words counter;
    memcpy(counter.w, vec_parse_n(f[3], 0, 4)->v, sizeof counter.w);
    const agoqk_words got = agoqk_philox(vec_hex(f[1]), vec_hex(f[2]), counter);
    assert_memory_equal(got.w, vec_parse_n(f[4], 1, 4)->v, 16);
}

static void check_stream(char **f) {
    agoq_key k;
    assert_non_null(vec_key(f[1], &k));
    const uint64_t index = (uint64_t)k.offset + vec_hex(f[2]);
    const agoqk_stream stream = agoqk_stream_make(k.seed, k.tensor, k.step, k.microbatch, k.replica);
    const agoqk_words words = agoqk_stream_words(&stream, index / 8);
    assert_int_equal(agoqk_stream_bits(&words, (int)(index % 8)), vec_hex(f[3]));
}

static float map_level(int is_signed, int code) {
    return is_signed ? agoqk_dynmap_signed(code) : agoqk_dynmap_unsigned(code);
}

static void check_map(char **f) {
    const vec_list *want = vec_parse_n(f[2], 0, 256);
    for (int c = 0; c < 256; c++)
        assert_int_equal(agoqk_bits(map_level(strcmp(f[1], "signed") == 0, c)), want->v[c]);
}

static void check_code(char **f) {
    float middles[255];
    const int is_signed = strcmp(f[1], "signed") == 0;
    for (int c = 0; c < 255; c++)
        middles[c] = agoqk_dynmap_middle(map_level(is_signed, c), map_level(is_signed, c + 1));
    assert_int_equal(dynmap_code(middles, agoqk_float(vec_hex(f[2]))), vec_hex(f[3]));
}

static void check_codes(const uint8_t *got, const vec_list *want) {
    for (size_t i = 0; i < want->n; i++) assert_int_equal(got[i], want->v[i]);
}

/* m and v of one step from nothing with beta1 = beta2 = 0 are x and x * x. */
static void check_state(char **f) {
    const vec_list *x = vec_parse(f[1], 0), *codes_m = vec_parse_n(f[3], 1, x->n);
    const vec_list *codes_v = vec_parse_n(f[5], 2, x->n);
    uint8_t m[VEC_MOST], v[VEC_MOST];
    float tops[2], params[VEC_MOST] = {0};
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const agoq_adam8 state = {m, v, &tops[0], &tops[1], (int64_t)x->n};
    const agoq_adam_params adam = {0.0f, 0.0f, 0.0f, 1.0f, 0.0f, 1, 1.0f};
    const agoq_adam_source source = {NULL, x->v, AGOQ_DTYPE_F32};
    const agoq_adam_target target = {params, NULL, NULL};
    assert_int_equal(vec_ops->adam8_init(&exec, &state), AGOQ_OK);
    assert_int_equal(vec_ops->adam8_step(&exec, &adam, &source, &target, &state), AGOQ_OK);
    assert_int_equal(agoqk_bits(tops[0]), vec_hex(f[2]));
    assert_int_equal(agoqk_bits(tops[1]), vec_hex(f[4]));
    check_codes(m, codes_m);
    check_codes(v, codes_v);
}

/* The parameters as the target holds them; `both`: the bf16 copy is the rounded master. */
static void check_params(const vec_list *want, const char *target, const uint32_t *master,
                         const uint16_t *copy) {
    for (size_t i = 0; i < want->n; i++) {
        if (strcmp(target, "bf16")) assert_int_equal(master[i], want->v[i]);
        if (strcmp(target, "bf16") == 0) assert_int_equal(copy[i], want->v[i]);
        if (strcmp(target, "both") == 0)
            assert_int_equal(copy[i], agoqk_bf16_encode(agoqk_float(want->v[i])));
    }
}

/* Two steps from no state. */
static void check_adam(char **f) {
    const vec_list *fields = vec_parse_n(f[3], 0, 7), *p = vec_parse(f[4], 1);
    float value[7], tops[2];
    uint8_t m[VEC_MOST], v[VEC_MOST];
    uint32_t master[VEC_MOST];
    uint16_t copy[VEC_MOST];
    agoq_key key;
    const agoq_exec exec = {.device = AGOQ_DEVICE_CPU};
    const int is_bf16 = strcmp(f[1], "bf16") == 0;
    const agoq_adam_target target = {is_bf16 ? NULL : (float *)(void *)master,
                                     strcmp(f[1], "f32") ? copy : NULL, vec_key(f[2], &key)};
    const agoq_adam8 state = {m, v, &tops[0], &tops[1], (int64_t)p->n};
    for (size_t i = 0; i < p->n; i++) master[i] = p->v[i], copy[i] = (uint16_t)p->v[i];
    for (int i = 1; i < 7; i++) value[i] = agoqk_float(fields->v[i]);
    agoq_adam_params adam = {value[1], value[2], value[3], value[4], value[5], fields->v[0], value[6]};
    assert_int_equal(vec_ops->adam8_init(&exec, &state), AGOQ_OK);
    for (int step = 0; step < 2; step++, adam.step++) {
        const vec_list *g = vec_parse_n(f[5 + step], 2, p->n);
        const agoq_adam_source source = {NULL, g->v, AGOQ_DTYPE_F32};
        assert_int_equal(vec_ops->adam8_step(&exec, &adam, &source, &target, &state), AGOQ_OK);
        check_params(vec_parse_n(f[7 + step], 3, p->n), f[1], master, copy);
    }
    assert_int_equal(agoqk_bits(tops[0]), vec_hex(f[9]));
    assert_int_equal(agoqk_bits(tops[1]), vec_hex(f[11]));
    check_codes(m, vec_parse_n(f[10], 4, p->n));
    check_codes(v, vec_parse_n(f[12], 5, p->n));
}

static void check_half(char **f) {
    const float x = agoqk_float(vec_hex(f[1]));
    assert_int_equal(f[0][0] == 'b' ? agoqk_bf16_encode(x) : agoqk_f16_encode(x), vec_hex(f[2]));
}

static void check_bf16sr(char **f) {
    assert_int_equal(agoqk_bf16_encode_sr(agoqk_float(vec_hex(f[1])), vec_hex(f[2])), vec_hex(f[3]));
}

static void int_vectors(void **state) {
    static const vec_kind kinds[] = {{"int", check_int, 8, 140}};
    (void)state;
    vec_check_file("tests/vectors/int.txt", kinds, 1);
}

static void grad_vectors(void **state) {
    static const vec_kind kinds[] = {{"grad", check_grad, 7, 60}, {"value8", check_value8, 4, 768}};
    (void)state;
    vec_check_file("tests/vectors/grad.txt", kinds, 2);
}

static void philox_vectors(void **state) {
    static const vec_kind kinds[] = {{"philox", check_philox, 5, 3}, {"stream", check_stream, 4, 29}};
    (void)state;
    vec_check_file("tests/vectors/philox.txt", kinds, 2);
}

static void adam_vectors(void **state) {
    static const vec_kind kinds[] = {{"map", check_map, 3, 2},
                                     {"code", check_code, 4, 100},
                                     {"state", check_state, 6, 15},
                                     {"adam", check_adam, 13, 8}};
    (void)state;
    vec_check_file("tests/vectors/adam.txt", kinds, 4);
}

static void half_vectors(void **state) {
    static const vec_kind kinds[] = {
        {"bf16", check_half, 3, 45}, {"f16", check_half, 3, 45}, {"bf16sr", check_bf16sr, 4, 180}};
    (void)state;
    vec_check_file("tests/vectors/half.txt", kinds, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(int_vectors), cmocka_unit_test(grad_vectors),
                                       cmocka_unit_test(philox_vectors), cmocka_unit_test(adam_vectors),
                                       cmocka_unit_test(half_vectors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
