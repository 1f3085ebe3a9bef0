/* What enters the trainer: sampling of the text, command line, learning rate. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoq/format.h"
#include "trainer/data.h"
#include "trainer/options.h"

enum { SEQ = 8, N_SEQS = 3, TOKENS = SEQ * N_SEQS };

/* A text in which any 4 bytes name their place. */
static data numbered_text(size_t n) {
    data d = {malloc(n), n, n - n / 20};
    for (size_t i = 0; i < n; i++)
        d.bytes[i] = (uint8_t)(i % 4 == 0 ? i / 4 >> 16 : i % 4 == 1 ? i / 4 >> 8 : i % 4 == 2 ? i / 4 : 255);
    return d;
}

static int same_ids(const data *d, uint64_t seed, int64_t step, int microbatch, int replica,
                    const uint8_t *than) {
    uint8_t ids[TOKENS], targets[TOKENS];
    data_microbatch(d, seed, step, microbatch, replica, N_SEQS, SEQ, ids, targets);
    return memcmp(ids, than, TOKENS) == 0;
}

static void sampling(void **state) {
    (void)state;
    data d = numbered_text(400000);
    uint8_t ids[TOKENS], targets[TOKENS];
    data_microbatch(&d, 1, 5, 2, 1, N_SEQS, SEQ, ids, targets);
    for (int s = 0; s < N_SEQS; s++) assert_memory_equal(ids + s * SEQ + 1, targets + s * SEQ, SEQ - 1);
    assert_true(memcmp(ids, ids + SEQ, SEQ) != 0);
    assert_true(same_ids(&d, 1, 5, 2, 1, ids));
    assert_false(same_ids(&d, 2, 5, 2, 1, ids));
    assert_false(same_ids(&d, 1, 6, 2, 1, ids));
    assert_false(same_ids(&d, 1, 5, 3, 1, ids));
    assert_false(same_ids(&d, 1, 5, 2, 0, ids));
    /* Every start that training may use, and none of the held-out tail; the other way round for evaluation.
     */
    data tiny = {(uint8_t[64]){0}, 64, 60};
    memset(tiny.bytes + 60, 1, 4);
    for (int step = 0; step < 400; step++) {
        data_microbatch(&tiny, 1, step, 0, 0, N_SEQS, SEQ, ids, targets);
        for (int i = 0; i < TOKENS; i++) assert_int_equal(ids[i] + targets[i], 0);
        data_held_out(&tiny, step, 1, 3, ids, targets);
        for (int i = 0; i < 3; i++) assert_int_equal(ids[i] + targets[i], 2);
    }
    free(d.bytes);
}

static int parse(options *o, char *error, const char *line) {
    char copy[512], *argv[32] = {"agoq-train"};
    int argc = 1;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word && argc < 32; word = strtok(NULL, " ")) argv[argc++] = word;
    error[0] = 0;
    return options_parse(argc, argv, o, error, 256);
}

static void command_line(void **state) {
    (void)state;
    options o;
    char error[256];
    assert_int_equal(parse(&o, error, "--data x"), OPTIONS_OK);
    assert_int_equal(o.shape.hidden, 96);
    assert_int_equal(o.train.stop_at, 300);
    assert_int_equal(o.train.grads, OPTIONS_GRADS_FP8);
    assert_int_equal(o.store.qkv_bits, 16);
    assert_int_equal(o.store.format4, AGOQ_FORMAT_INT4);
    assert_int_equal(o.par.hold_extra, -1);
    assert_int_equal(parse(&o, error,
                           "--data=x --baseline --lr=2e-3 --schedule gpipe --qkv-bits 8 --format4 code4 "
                           "--hidden 32 --heads 4 --kv-heads=2"),
                     OPTIONS_OK);
    assert_float_equal(o.train.lr, 2e-3, 0);
    assert_int_equal(o.train.grads, OPTIONS_GRADS_FP32);
    assert_int_equal(o.par.schedule, OPTIONS_GPIPE);
    assert_int_equal(o.store.qkv_bits, 8);
    assert_int_equal(o.store.format4, AGOQ_FORMAT_CODE4);
    assert_int_equal(parse(&o, error, "--help"), OPTIONS_HELP);
    static const char *const bad[] = {
        "",
        "--data",
        "--data=",
        "x",
        "--data x --steps",
        "--data x --steps 0",
        "--data x --steps 1.5",
        "--data x --steps 010",
        "--data x --lr nan",
        "--data x --lr 0x1p-3",
        "--data x --lr 1e999",
        "--data x --zero1=1",
        "--data x --step 3",
        "--data x -steps 3",
        "--data x --schedule 1f",
        "--data x --schedule",
        "--data x --heads 5",
        "--data x --kv-heads 4",
        "--data x --chunks 2",
        "--data x --pp 9",
        "--data x --hold-extra 1",
        "--data x --resume",
        "--data x --fp32",
        "--data x --stop-at 301",
        "--data x --baseline --adam 8bit",
        "--data x --baseline --plan-file y",
        "--data x --schedule interleaved --pp 2",
        "--data x --schedule interleaved --pp 2 --chunks 2 --microbatches 3",
        "--data x --hidden 6 --heads 2 --kv-heads 1",
        "--data x --steps 99999999999999999999",
        "--data x --seed -1",
        "--data x --fixed-bits 8 --record-plan y",
        "--data x --fixed-bits 8 --plan-file y",
        "--data x --socket y --fixed-bits 8",
        "--data x --steps 2 --steps 3",
        "--data x --steps 2 --steps=2",
        "--data x --baseline --baseline",
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        if (parse(&o, error, bad[i]) != OPTIONS_BAD || !error[0]) fail_msg("\"%s\" was taken", bad[i]);
    }
}

static void learning_rate(void **state) {
    (void)state;
    options_train t = {.steps = 100, .warmup = 10, .lr = 2.0};
    assert_float_equal(options_rate(&t, 0), 0.2, 1e-12);
    assert_float_equal(options_rate(&t, 9), 2.0, 1e-12);
    assert_float_equal(options_rate(&t, 10), 2.0, 1e-12);
    assert_float_equal(options_rate(&t, 55), 1.1, 1e-12);
    for (int step = 11; step < 100; step++) assert_true(options_rate(&t, step) < options_rate(&t, step - 1));
    assert_float_equal(options_rate(&t, 99), 0.2, 1e-2);
    t.lr_schedule = OPTIONS_LR_CONSTANT;
    assert_float_equal(options_rate(&t, 99), 2.0, 0);
    t.warmup = 0;
    assert_float_equal(options_rate(&t, 0), 2.0, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sampling), cmocka_unit_test(command_line),
                                       cmocka_unit_test(learning_rate)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
