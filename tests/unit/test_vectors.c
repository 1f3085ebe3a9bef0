/* The C arithmetic against tests/vectors/, which tools/make_vectors.py wrote from exact rationals. Every line
 * of every file must be understood, and every kind must have been met, so that a truncated file cannot pass.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "common/mem.h"
#include "kernels/format/dynmap.h"
#include "kernels/format/e4m3.h"
#include "kernels/format/half.h"
#include "kernels/format/philox.h"

enum { LINE_BYTES = 4096, MOST = 256, FIELDS = 10 };

static size_t parse_list(const char *text, uint32_t *out) {
    size_t n = 0;
    if (strcmp(text, "-") == 0) return 0;
    for (char *end; *text; text = *end ? end + 1 : end) {
        assert_true(n < MOST);
        out[n++] = (uint32_t)strtoul(text, &end, 16);
        assert_true(end != text && (*end == ',' || *end == 0));
    }
    return n;
}

/* "rn" gives NULL. */
static const agoq_key *parse_key(const char *text, agoq_key *key) {
    unsigned long long seed, tensor, step, microbatch, replica, offset;
    if (strcmp(text, "rn") == 0) return NULL;
    assert_int_equal(
        sscanf(text, "%llx:%llx:%llx:%llx:%llx:%llx", &seed, &tensor, &step, &microbatch, &replica, &offset),
        6);
    *key = (agoq_key){seed, tensor, step, (uint32_t)microbatch, (uint32_t)replica, (int64_t)offset};
    return key;
}

static int split(char *line, char *field[FIELDS]) {
    int n = 0;
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
        if (strcmp(word, "=") == 0) continue;
        assert_true(n < FIELDS);
        field[n++] = word;
    }
    return n;
}

static uint32_t hex(const char *text) {
    return (uint32_t)strtoul(text, NULL, 16);
}

static void check_int(char **f, int n_fields) {
    uint32_t x[MOST], low[MOST], high[MOST], want[MOST], got[MOST];
    assert_int_equal(n_fields, 8);
    const int bits = atoi(f[1]);
    agoq_key key;
    const agoq_key *used = parse_key(f[2], &key);
    const size_t n = parse_list(f[3], x), n_low = parse_list(f[5], low), n_high = parse_list(f[6], high);
    assert_int_equal(parse_list(f[7], want), n);
    agoq_packed packed;
    assert_int_equal(agoq_layout_make(bits, 1, (int64_t)n, &packed.layout), AGOQ_OK);
    assert_int_equal(packed.layout.lo_row_bytes, n_low * 4);
    assert_int_equal(packed.layout.hi_row_bytes, n_high * 4);
    uint8_t *data = aligned_alloc(AGOQ_PLANE_ALIGN, packed.layout.bytes);
    assert_non_null(data);
    packed.data = data;
    const agoq_view in = {x, AGOQ_DTYPE_F32, 1, (int64_t)n, (int64_t)n};
    agoq_view out = {got, AGOQ_DTYPE_F32, 1, (int64_t)n, (int64_t)n};
    assert_int_equal(agoq_pack(NULL, &in, used, &packed), AGOQ_OK);
    assert_memory_equal(data, low, n_low * 4);
    assert_memory_equal(data + packed.layout.hi_offset, high, n_high * 4);
    const uint16_t scale = (uint16_t)hex(f[4]);
    assert_memory_equal(data + packed.layout.scale_offset, &scale, 2);
    assert_int_equal(agoq_unpack(NULL, &packed, &out), AGOQ_OK);
    assert_memory_equal(got, want, n * 4);
    free(data);
}

static void check_e4m3(char **f, int n_fields) {
    uint32_t x[MOST], codes[MOST], want[MOST], scale, got_scale;
    uint8_t got_codes[MOST];
    float scales[1], got[MOST];
    assert_int_equal(n_fields, 6);
    agoq_key key;
    const agoq_key *used = parse_key(f[1], &key);
    const size_t n = parse_list(f[2], x);
    assert_int_equal(parse_list(f[4], codes), n);
    assert_int_equal(parse_list(f[5], want), n);
    scale = hex(f[3]);
    agoq_grad grad = {got_codes, scales, (int64_t)n};
    assert_int_equal(agoq_grad_zero(NULL, &grad), AGOQ_OK);
    assert_int_equal(agoq_grad_accumulate(NULL, x, AGOQ_DTYPE_F32, used, &grad), AGOQ_OK);
    memcpy(&got_scale, scales, 4);
    assert_int_equal(got_scale, scale);
    /* 0 + -0 is +0 before it is coded: a -0 that comes in is code 00 here, and 80 where a value is coded by
     * itself */
    for (size_t i = 0; i < n; i++) assert_int_equal(got_codes[i], x[i] == 0x80000000u ? 0 : codes[i]);
    assert_int_equal(agoq_grad_read(NULL, &grad, 0, (int64_t)n, 1.0f, got), AGOQ_OK);
    assert_memory_equal(got, want, n * 4);
    for (size_t i = 0; i < n && scales[0] > 0.0f && !used; i++)
        assert_int_equal(agoqk_e4m3_encode(agoqk_float(x[i]) * (1.0f / scales[0])), codes[i]);
}

static void check_philox(char **f, int n_fields) {
    uint32_t want[MOST];
    agoqk_words counter;
    assert_int_equal(n_fields, 5);
    assert_int_equal(parse_list(f[3], counter.w), 4);
    assert_int_equal(parse_list(f[4], want), 4);
    const agoqk_words got = agoqk_philox(hex(f[1]), hex(f[2]), counter);
    assert_memory_equal(got.w, want, 16);
}

static void check_stream(char **f, int n_fields) {
    agoq_key k;
    assert_int_equal(n_fields, 4);
    assert_non_null(parse_key(f[1], &k));
    const uint64_t index = (uint64_t)k.offset + hex(f[2]);
    const agoqk_stream stream = agoqk_stream_make(k.seed, k.tensor, k.step, k.microbatch, k.replica);
    assert_int_equal(agoqk_stream_words(&stream, index / 4).w[index % 4], hex(f[3]));
}

static float map_level(int is_signed, int code) {
    return is_signed ? agoqk_dynmap_signed(code) : agoqk_dynmap_unsigned(code);
}

static void check_map(char **f, int n_fields) {
    uint32_t want[MOST];
    assert_int_equal(n_fields, 3);
    assert_int_equal(parse_list(f[2], want), 256);
    for (int c = 0; c < 256; c++)
        assert_int_equal(agoqk_bits(map_level(strcmp(f[1], "signed") == 0, c)), want[c]);
}

static void check_code(char **f, int n_fields) {
    float middles[255];
    assert_int_equal(n_fields, 4);
    const int is_signed = strcmp(f[1], "signed") == 0;
    for (int c = 0; c < 255; c++)
        middles[c] = agoqk_dynmap_middle(map_level(is_signed, c), map_level(is_signed, c + 1));
    assert_int_equal(agoqk_dynmap_encode(middles, agoqk_float(hex(f[2]))), hex(f[3]));
}

static void check_half(char **f, int n_fields) {
    assert_int_equal(n_fields, 3);
    const float x = agoqk_float(hex(f[1]));
    assert_int_equal(f[0][0] == 'b' ? agoqk_bf16_encode(x) : agoqk_f16_encode(x), hex(f[2]));
}

static void check_value8(char **f, int n_fields) {
    assert_int_equal(n_fields, 3);
    assert_int_equal(agoqk_bits(agoqk_e4m3_value(hex(f[1]))), hex(f[2]));
}

static void check_file(const char *path) {
    static const struct {
        const char *kind, *file;
        void (*check)(char **field, int n_fields);
        int at_least;
    } kinds[] = {{"int", "int", check_int, 80},          {"e4m3", "e4m3", check_e4m3, 15},
                 {"value8", "e4m3", check_value8, 256},  {"philox", "philox", check_philox, 3},
                 {"stream", "philox", check_stream, 20}, {"map", "adam", check_map, 2},
                 {"code", "adam", check_code, 100},      {"bf16", "half", check_half, 45},
                 {"f16", "half", check_half, 45}};
    enum { N_KINDS = sizeof kinds / sizeof *kinds };
    int seen[N_KINDS] = {0}, n_line = 0;
    char *line = mem_alloc(LINE_BYTES), *field[FIELDS];
    FILE *file = fopen(path, "r");
    if (!file || !line) fail_msg("cannot open %s (tests run from the root of the repository)", path);
    while (fgets(line, LINE_BYTES, file)) {
        n_line++;
        assert_non_null(strchr(line, '\n'));
        if (line[0] == '#') continue;
        const int n_fields = split(line, field);
        size_t k = 0;
        while (k < N_KINDS && strcmp(kinds[k].kind, field[0])) k++;
        if (k == N_KINDS) fail_msg("%s:%d: unknown kind %s", path, n_line, field[0]);
        print_message("%s:%d: %s\n", path, n_line, kinds[k].kind); /* the last one printed failed */
        kinds[k].check(field, n_fields);
        seen[k]++;
    }
    fclose(file);
    mem_free(line);
    for (size_t k = 0; k < N_KINDS; k++) {
        if (strstr(path, kinds[k].file)) assert_true(seen[k] >= kinds[k].at_least);
    }
}

static void int_blocks(void **state) {
    (void)state;
    check_file("tests/vectors/int.txt");
}
static void e4m3_blocks(void **state) {
    (void)state;
    check_file("tests/vectors/e4m3.txt");
}
static void philox_words(void **state) {
    (void)state;
    check_file("tests/vectors/philox.txt");
}
static void adam_maps(void **state) {
    (void)state;
    check_file("tests/vectors/adam.txt");
}
static void half_floats(void **state) {
    (void)state;
    check_file("tests/vectors/half.txt");
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(int_blocks), cmocka_unit_test(e4m3_blocks),
                                       cmocka_unit_test(philox_words), cmocka_unit_test(adam_maps),
                                       cmocka_unit_test(half_floats)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
