/* common/: strict numbers, bounded buffers, SHA-256 against the standard's vectors, allocation failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/log.h"
#include "common/mem.h"
#include "common/proc.h"
#include "common/sha256.h"
#include "common/units.h"
#include "common/words.h"

static void bytes_accepts_units(void **state) {
    (void)state;
    static const struct {
        const char *text;
        uint64_t bytes;
    } good[] = {{"0B", 0},
                {"1B", 1},
                {"80GiB", 80ull << 30},
                {"1.5KiB", 1536},
                {"70GB", 70000000000ull},
                {"4MiB", 4 << 20},
                {"16777215TiB", 16777215ull << 40},
                {"16383PiB", 16383ull << 50},
                {"2PB", 2000000000000000ull}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        uint64_t bytes = 7;
        assert_int_equal(units_parse_bytes(good[i].text, &bytes), 0);
        assert_int_equal(bytes, good[i].bytes);
    }
}

static void bytes_refuses_everything_else(void **state) {
    (void)state;
    static const char *const bad[] = {"",      "80",    "010GiB",       "80GB ",   " 80GB", "80 GB", "1_000B",
                                      "8e1B",  "+80B",  "-1B",          "0x10B",   "80gib", "80Gib", "80GiBB",
                                      ".5GiB", "1.GiB", "1.1234567GiB", "80GiB\n", "٨B"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t bytes = 7;
        assert_int_equal(units_parse_bytes(bad[i], &bytes), -1);
        assert_int_equal(bytes, 7);
    }
    static const char *const large[] = {"16777216TiB", "16384PiB", "99999999999GiB", "99999999999999999999B",
                                        "340282366920938463463374607431768211457.5PB"};
    for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
        uint64_t bytes = 7;
        assert_int_equal(units_parse_bytes(large[i], &bytes), UNITS_TOO_LARGE);
        assert_int_equal(bytes, 7);
    }
}

/* A pipe without a writer is refused at once, not waited for. */
static void whole_files(void **state) {
    (void)state;
    char dir[] = "/tmp/agoq-file-XXXXXX", path[64], *text = NULL;
    const char *why = NULL;
    size_t size = 7;
    assert_non_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/file", dir);
    assert_int_equal(file_read(path, 10, &text, &size, &why), AGOQ_E_IO);
    assert_string_equal(why, "No such file or directory");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("0123456789", f) >= 0 && fclose(f) == 0);
    assert_int_equal(file_read(path, 9, &text, &size, &why), AGOQ_E_LIMIT);
    assert_string_equal(why, "is too large");
    assert_true(!text && size == 7);
    assert_int_equal(file_read(path, 10, &text, &size, &why), AGOQ_OK);
    assert_int_equal(size, 10);
    assert_string_equal(text, "0123456789");
    mem_free(text);
    assert_int_equal(unlink(path) | mkfifo(path, 0600), 0);
    assert_int_equal(file_read(path, 10, &text, &size, &why), AGOQ_E_IO);
    assert_string_equal(why, "is not a regular file");
    assert_int_equal(file_read(dir, 1 << 20, &text, &size, &why), AGOQ_E_IO);
    assert_int_equal(unlink(path) | rmdir(dir), 0);
}

static void other_units(void **state) {
    (void)state;
    uint64_t value;
    uint32_t ppm;
    assert_int_equal(units_parse_ms("500ms", &value), 0);
    assert_int_equal(value, 500);
    assert_int_equal(units_parse_ms("1.5s", &value), 0);
    assert_int_equal(value, 1500);
    assert_int_equal(units_parse_ms("500", &value), -1);
    assert_int_equal(units_parse_ppm("12.5%", &ppm), 0);
    assert_int_equal(ppm, 125000);
    assert_int_equal(units_parse_ppm("101%", &ppm), UNITS_TOO_LARGE);
    assert_int_equal(units_parse_ppm("99999999999999999999%", &ppm), UNITS_TOO_LARGE);
    assert_int_equal(units_parse_uint("18446744073709551615", &value), 0);
    assert_true(value == UINT64_MAX);
    assert_int_equal(units_parse_uint("18446744073709551616", &value), UNITS_TOO_LARGE);
    assert_int_equal(units_parse_uint("18446744073709551616B", &value), -1);
    assert_int_equal(units_parse_uint("010", &value), -1);
    assert_int_equal(units_parse_uint("1.0", &value), -1);
    assert_int_equal(units_parse_uint(NULL, &value), -1);
}

static void sha256_vectors(void **state) {
    (void)state;
    static const struct {
        const char *text, *hex;
    } cases[] = {{"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
                 {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
                 {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint8_t digest[32];
        char hex[65];
        sha256(cases[i].text, strlen(cases[i].text), digest);
        buf_hex_encode(digest, 32, hex);
        assert_string_equal(hex, cases[i].hex);
    }
}

static void buffers_stop_at_their_end(void **state) {
    (void)state;
    uint8_t bytes[6];
    buf_writer w = {.data = bytes, .capacity = sizeof bytes};
    buf_put(&w, 0x11223344, 4);
    buf_put(&w, 0x5566, 2);
    assert_false(w.bad);
    buf_put(&w, 1, 1);
    assert_true(w.bad);
    buf_reader r = {.data = bytes, .size = sizeof bytes};
    assert_int_equal(buf_get(&r, 4), 0x11223344);
    assert_int_equal(buf_get(&r, 2), 0x5566);
    assert_int_equal(buf_get(&r, 1), 0);
    assert_true(r.bad);
    size_t n = 0;
    assert_int_equal(buf_hex_decode("0aff", 4, bytes, 6, &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(bytes[1], 0xff);
    assert_int_equal(buf_hex_decode("0af", 3, bytes, 6, &n), -1);
    assert_int_equal(buf_hex_decode("0g", 2, bytes, 6, &n), -1);
    assert_int_equal(buf_hex_decode("00000000000000", 14, bytes, 6, &n), -1);
}

static void nth_allocation_fails(void **state) {
    (void)state;
    mem_fail_after(2);
    void *first = mem_alloc(8);
    assert_non_null(first);
    assert_null(mem_alloc(8));
    assert_null(mem_zalloc(2, 8));
    mem_fail_after(0);
    mem_free(first);
    assert_null(mem_realloc(NULL, SIZE_MAX, 16));
}

static char logged[128];
static void keep_line(void *user, log_level level, const char *module, const char *text) {
    snprintf(logged, sizeof logged, "%d %s %s%s", (int)level, module, text, (const char *)user);
}

static void log_filters_by_level_and_keeps_errno(void **state) {
    (void)state;
    log_write(LOG_LEVEL_ERROR, "test", "nobody listens");
    assert_string_equal(logged, "");
    log_set_sink(keep_line, "!");
    errno = EBADF;
    log_write(LOG_LEVEL_INFO, "test", "n=%d", 7);
    assert_int_equal(errno, EBADF);
    assert_string_equal(logged, "2 test n=7!");
    log_write(LOG_LEVEL_DEBUG, "test", "not wanted");
    assert_string_equal(logged, "2 test n=7!");
    log_set_level(LOG_LEVEL_DEBUG);
    log_write(LOG_LEVEL_DEBUG, "test", "wanted");
    assert_string_equal(logged, "3 test wanted!");
    log_set_sink(NULL, NULL);
}

static void a_process_has_a_start_time(void **state) {
    (void)state;
    char letter = 0;
    uint64_t mine = proc_start_time((uint64_t)getpid(), &letter);
    assert_true(mine > 0);
    assert_true(proc_start_time((uint64_t)getpid(), NULL) == mine);
    assert_int_equal(letter, 'R');
    assert_true(proc_start_time((uint64_t)getppid(), NULL) <= mine);
    assert_true(proc_start_time(UINT64_MAX, &letter) == 0);
}

static void the_nearest_word(void **state) {
    (void)state;
    static const char *const words[] = {"ranks", "microbatches", "chunks", "route", NULL};
    assert_string_equal(words_nearest("rnaks", words), "ranks"); /* a swap is one edit */
    assert_string_equal(words_nearest("microbatch", words), "microbatches");
    assert_string_equal(words_nearest("CHUNK", words), "chunks");
    assert_null(words_nearest("stages", words));
    static const char *const machines[] = {"h200", "h100-80", "h100-94", NULL};
    assert_string_equal(words_nearest("h100", machines), "h100-80"); /* its beginning */
    assert_string_equal(words_nearest("h20", machines), "h200");
    assert_null(words_nearest("", words));
    assert_null(words_nearest("microbatchesmicrobatchesmicrobatchesmicrobatchesm", words));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_accepts_units),
        cmocka_unit_test(bytes_refuses_everything_else),
        cmocka_unit_test(whole_files),
        cmocka_unit_test(other_units),
        cmocka_unit_test(the_nearest_word),
        cmocka_unit_test(sha256_vectors),
        cmocka_unit_test(buffers_stop_at_their_end),
        cmocka_unit_test(nth_allocation_fails),
        cmocka_unit_test(log_filters_by_level_and_keeps_errno),
        cmocka_unit_test(a_process_has_a_start_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
