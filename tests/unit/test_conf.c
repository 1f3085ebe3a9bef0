/* agoqd/conf: the table of options, and every bad input that a file may hold. A refused file must change
 * nothing; a printed configuration must load to the same values; config/agoqd.yaml must be what the table
 * says. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoqd/conf.h"
#include "agoqd/conf_table.h"
#include "agoqd/yaml.h"
#include "common/mem.h"

static char error[600];

static agoq_status parse(const char *text, conf *c) {
    snprintf(error, sizeof error, "untouched");
    return conf_parse("t.yaml", text, strlen(text), c, error, sizeof error);
}

static void defaults(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    assert_string_equal(c.socket, "/run/agoq/agoqd.sock");
    assert_int_equal(c.socket_mode, 0660);
    assert_string_equal(c.state_dir, "/var/lib/agoq");
    assert_string_equal(c.job, "");
    assert_int_equal(c.margin_ppm, 20000);
    assert_int_equal(c.default_budget_bytes, 0);
    assert_int_equal(c.n_budgets, 0);
    assert_int_equal(c.mode, PLANNER_BUDGET);
    assert_int_equal(c.heartbeat_ms, 1000);
    assert_int_equal(c.silent_ms, 3000);
    assert_int_equal(c.prepare_timeout_ms, 10000);
    assert_int_equal(c.dwell_steps, 20);
    assert_int_equal(c.max_sessions, 4096);
    assert_int_equal(c.level, LOG_LEVEL_INFO);
    assert_true(c.from_file == 0);
    conf_fini(&c);
}

static void every_option_is_read(void **state) {
    (void)state;
    static const char text[] =
        "socket: \"/tmp/a b.sock\"\nsocket_mode: 0600\nsocket_group: gpu\nstate_dir: /tmp/s\n"
        "node_index: 65535\njob: \"42\"\nmargin: 12.5%\ndefault_budget: 1.5GiB\n"
        "budgets:\n  - device: 'GPU-*'\n    bytes: 70GiB\n  - {stage: 3, bytes: 64MB}\n"
        "mode: equalize\nallowed_widths: {attn_qkv: [16, 8], mlp_gate_up: [4, 5, 6, 8, 16]}\n"
        "heartbeat: 500ms\nsilent_after: 2s\nprepare_timeout: 1min\ndwell_steps: 0\n"
        "max_sessions: 1\nlog_level: debug\n";
    conf c;
    conf_default(&c);
    assert_int_equal(parse(text, &c), AGOQ_OK);
    assert_string_equal(c.socket, "/tmp/a b.sock");
    assert_int_equal(c.socket_mode, 0600);
    assert_string_equal(c.socket_group, "gpu");
    assert_string_equal(c.state_dir, "/tmp/s");
    assert_int_equal(c.node_index, 65535);
    assert_string_equal(c.job, "42");
    assert_int_equal(c.margin_ppm, 125000);
    assert_true(c.default_budget_bytes == 3ull << 29);
    assert_int_equal(c.n_budgets, 2);
    assert_string_equal(c.budgets[0].device, "GPU-*");
    assert_int_equal(c.budgets[0].stage, -1);
    assert_true(c.budgets[0].bytes == 70ull << 30);
    assert_string_equal(c.budgets[1].device, "");
    assert_int_equal(c.budgets[1].stage, 3);
    assert_true(c.budgets[1].bytes == 64000000);
    assert_int_equal(c.mode, PLANNER_EQUALIZE);
    assert_int_equal(c.role_widths[AGOQ_ROLE_ATTN_QKV], AGOQ_MASK_8 | AGOQ_MASK_16);
    assert_int_equal(c.role_widths[AGOQ_ROLE_MLP_GATE_UP], 31);
    assert_int_equal(c.role_widths[AGOQ_ROLE_ATTN_OUT], 0);
    assert_int_equal(c.heartbeat_ms, 500);
    assert_int_equal(c.silent_ms, 2000);
    assert_int_equal(c.prepare_timeout_ms, 60000);
    assert_int_equal(c.dwell_steps, 0);
    assert_int_equal(c.max_sessions, 1);
    assert_int_equal(c.level, LOG_LEVEL_DEBUG);
    assert_true(c.from_file == (1ull << conf_n_options) - 1);
    conf_fini(&c);
}

typedef struct refusal {
    const char *text, *message;
} refusal;

#define T100                                                                                                 \
    "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggggggggghhhhhhhhhhiiiiiiiiiijjjjjjjjjj"
static const refusal refusals[] = {
    {"", "t.yaml:1:1: the file is empty"},
    {"bugdets: []\n", "t.yaml:1:1: unknown key 'bugdets'; did you mean 'budgets'?"},
    {"node_name: n1\n", "t.yaml:1:1: unknown key 'node_name'"}, /* an option that nothing reads is none */
    {"log_level: info\nsokcet: /x\n", "t.yaml:2:1: unknown key 'sokcet'; did you mean 'socket'?"},
    {"job: a\njob: b\n", "t.yaml:2:1: key 'job' is given twice (first in line 1)"},
    {"default_budget: 80\n", "t.yaml:1:17: default_budget: '80' is not a size with a unit"},
    {"default_budget: 010\n", "t.yaml:1:17: default_budget: '010' is not a size"},
    {"default_budget: 72057594037927937B\n", /* more than a message can carry */
     "t.yaml:1:17: default_budget: '72057594037927937B' is out of range (1 to 72057594037927936)"},
    {"default_budget: 010GiB\n", "t.yaml:1:17: default_budget: '010GiB' is not a size"},
    {"default_budget: \"80GB \"\n", "t.yaml:1:17: default_budget: '80GB ' is not a size"},
    {"default_budget: 80GB junk\n", "t.yaml:1:17: default_budget: '80GB junk' is not a size"},
    {"default_budget: 80 GiB\n", "t.yaml:1:17: default_budget: '80 GiB' is not a size"},
    {"default_budget: 1_000GiB\n", "t.yaml:1:17: default_budget: '1_000GiB' is not a size"},
    {"default_budget: +80GiB\n", "t.yaml:1:17: default_budget: '+80GiB' is not a size"},
    {"default_budget: -1GiB\n", "t.yaml:1:17: default_budget: '-1GiB' is not a size"},
    {"default_budget: 8e1GiB\n", "t.yaml:1:17: default_budget: '8e1GiB' is not a size"},
    {"default_budget: 80gib\n", "t.yaml:1:17: default_budget: '80gib' is not a size"},
    {"default_budget: 0B\n", "t.yaml:1:17: default_budget: '0B' is out of range"},
    {"default_budget: 99999999999TiB\n", "t.yaml:1:17: default_budget: '99999999999TiB' is not a size"},
    {"default_budget: 9000000TiB\n", "t.yaml:1:17: default_budget: '9000000TiB' is out of range"},
    {"default_budget: [1GiB]\n", "t.yaml:1:17: default_budget must be a single value, not a list"},
    {"margin: 2\n", "t.yaml:1:9: margin: '2' is not a percentage"},
    {"margin: 91%\n", "t.yaml:1:9: margin: '91%' is out of range"},
    {"node_index: 65536\n", "t.yaml:1:13: node_index: '65536' is out of range (0 to 65535)"},
    {"node_index: 010\n", "t.yaml:1:13: node_index: '010' is not a whole number"},
    {"node_index: 1_000\n", "t.yaml:1:13: node_index: '1_000' is not a whole number"},
    {"node_index: 0x10\n", "t.yaml:1:13: node_index: '0x10' is not a whole number"},
    {"heartbeat: 1000\n", "t.yaml:1:12: heartbeat: '1000' is not a time with a unit"},
    {"heartbeat: 1ms\n", "t.yaml:1:12: heartbeat: '1ms' is out of range (50 to 60000)"},
    {"silent_after: 1s\n", "t.yaml:1:15: silent_after (1000 ms) must be at least twice heartbeat (1000 ms)"},
    {"heartbeat: 5s\n", "t.yaml:1:12: silent_after (3000 ms) must be at least twice heartbeat (5000 ms)"},
    {"socket_mode: 660\n", "t.yaml:1:14: socket_mode: '660' is not a file mode"},
    {"socket_mode: 0680\n", "t.yaml:1:14: socket_mode: '0680' is not a file mode"},
    {"socket_mode: rw\n", "t.yaml:1:14: socket_mode: 'rw' is not a file mode"},
    {"mode: equalise\n",
     "t.yaml:1:7: mode: 'equalise' is not one of budget, equalize; did you mean 'equalize'?"},
    {"mode: x\n", "t.yaml:1:7: mode: 'x' is not one of budget, equalize"},
    {"log_level: 3\n", "t.yaml:1:12: log_level: '3' is not one of error, warn, info, debug"},
    {"socket: \"\"\n", "t.yaml:1:9: socket: is 0 bytes long; 1 to 107 are allowed"},
    {"socket: /" T100 "12345678\n", "t.yaml:1:9: socket: is 109 bytes long; 1 to 107 are allowed"},
    {"socket: \"/a\\nb\"\n", "t.yaml:1:9: socket: holds a control character"},
    {"job: " T100 "\n", "t.yaml:1:6: job: is 100 bytes long; 0 to 63 are allowed"},
    {"job:\n", "t.yaml:1:5: no value here"},
    {"budgets: 80GiB\n", "t.yaml:1:10: budgets must be a list (- value), not a single value"},
    {"budgets: [80GiB]\n", "t.yaml:1:11: this must be a map"},
    {"budgets:\n  - device: x\n", "t.yaml:2:5: a budget needs bytes"},
    {"budgets:\n  - bytes: 1GiB\n", "t.yaml:2:5: a budget names either a device or a stage"},
    {"budgets:\n  - {device: x, stage: 1, bytes: 1GiB}\n", "t.yaml:2:5: a budget names either"},
    {"budgets:\n  - device: x\n    bytes: 80\n", "t.yaml:3:12: bytes: '80' is not a size"},
    {"budgets:\n  - device: x\n    bytes: 0GiB\n", "t.yaml:3:12: bytes: '0GiB' is not a size"},
    {"budgets:\n  - device: x\n    byte: 80GiB\n", "t.yaml:3:5: unknown key 'byte'; did you mean 'bytes'?"},
    {"budgets:\n  - stage: 1024\n    bytes: 1GiB\n", "t.yaml:2:12: stage: '1024' is not a stage (0 to 1023)"},
    {"budgets:\n  - stage: -1\n    bytes: 1GiB\n", "t.yaml:2:12: stage: '-1' is not a stage"},
    {"budgets:\n  - device: \"\"\n    bytes: 1GiB\n", "t.yaml:2:13: device: is 0 bytes long; 1 to 127"},
    {"allowed_widths: {attn_kv: [8]}\n", "t.yaml:1:18: unknown key 'attn_kv'; did you mean 'attn_qkv'?"},
    {"allowed_widths: {attn_qkv: 8}\n", "t.yaml:1:28: attn_qkv must be a list"},
    {"allowed_widths: {attn_qkv: []}\n", "t.yaml:1:28: attn_qkv: no width is allowed"},
    {"allowed_widths: {attn_qkv: [7]}\n", "t.yaml:1:29: attn_qkv: '7' is not a width (4, 5, 6, 8, 16)"},
    {"allowed_widths: {attn_qkv: [4, 16]}\n", "t.yaml:1:28: attn_qkv may not have 4 bits (8 or 16 only)"},
    {"allowed_widths: {attn_out: [6]}\n", "t.yaml:1:28: attn_out may not have 6 bits"},
    {"allowed_widths: [8]\n", "t.yaml:1:17: allowed_widths must be a map"},
    {"- a\n", "t.yaml:1:1: this must be a map"},
    {"a: 1\n---\n", "t.yaml:2:1: a second document"},
};

static void refused_and_nothing_changed(void **state) {
    (void)state;
    conf before;
    conf_default(&before);
    assert_int_equal(parse("budgets: [{stage: 1, bytes: 1GiB}]\nmode: equalize\n", &before), AGOQ_OK);
    conf c = before;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const refusal *r = &refusals[i];
        if (parse(r->text, &c) == AGOQ_OK || strncmp(error, r->message, strlen(r->message))) {
            print_error("'%s':\n  got '%s'\n  not '%s'\n", r->text, error, r->message);
            fail();
        }
        assert_memory_equal(&c, &before, sizeof c);
    }
    /* A wrong line after good ones: the good ones do not stick either. */
    assert_int_equal(parse("budgets: [{stage: 2, bytes: 2GiB}]\nlog_level: debug\nmargin: 2\n", &c),
                     AGOQ_E_FORMAT);
    assert_memory_equal(&c, &before, sizeof c);
    conf_fini(&c);
}

static void an_empty_list_replaces_a_list(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    assert_int_equal(parse("budgets: [{stage: 1, bytes: 1GiB}]\n", &c), AGOQ_OK);
    assert_int_equal(parse("mode: budget\n", &c), AGOQ_OK);
    assert_int_equal(c.n_budgets, 1);
    assert_int_equal(parse("budgets: []\n", &c), AGOQ_OK);
    assert_int_equal(c.n_budgets, 0);
    conf_fini(&c);
}

static char *print(void (*write)(const conf *, FILE *), const conf *c) {
    static char text[16384];
    FILE *f = fmemopen(text, sizeof text, "w");
    assert_non_null(f);
    write(c, f);
    fclose(f);
    return text;
}

static void assert_same(const conf *a, const conf *b) {
    assert_string_equal(a->socket, b->socket);
    assert_string_equal(a->socket_group, b->socket_group);
    assert_int_equal(a->socket_mode, b->socket_mode);
    assert_int_equal(a->margin_ppm, b->margin_ppm);
    assert_true(a->default_budget_bytes == b->default_budget_bytes);
    assert_int_equal(a->n_budgets, b->n_budgets);
    for (uint32_t i = 0; i < a->n_budgets; i++) {
        assert_string_equal(a->budgets[i].device, b->budgets[i].device);
        assert_int_equal(a->budgets[i].stage, b->budgets[i].stage);
        assert_true(a->budgets[i].bytes == b->budgets[i].bytes);
    }
    assert_memory_equal(a->role_widths, b->role_widths, sizeof a->role_widths);
    assert_int_equal(a->mode, b->mode);
    assert_int_equal(a->level, b->level);
    assert_int_equal(a->heartbeat_ms, b->heartbeat_ms);
    assert_int_equal(a->dwell_steps, b->dwell_steps);
    assert_int_equal(a->max_sessions, b->max_sessions);
}

static void printed_loads_to_the_same(void **state) {
    (void)state;
    static const char *const files[] = {
        "log_level: info\n",
        "socket: '/a \"b\" \\c # d: [e]'\nsocket_group: 'null'\njob: '-'\nmargin: 0.0001%\ndefault_budget: "
        "1025B\n",
        "socket_group: '*x'\nmargin: 12.34%\nheartbeat: 1500ms\nsilent_after: 1h\n" /* 1h is out of range */,
        "budgets: [{device: 'a: b', bytes: 3TiB}, {stage: 0, bytes: 1B}]\nallowed_widths: {other: [4, 16]}\n",
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        conf c, again;
        conf_default(&c);
        conf_default(&again);
        assert_int_equal(parse(files[i], &c), i == 2 ? AGOQ_E_FORMAT : AGOQ_OK);
        char *text = print(conf_print, &c);
        if (parse(text, &again) != AGOQ_OK) {
            print_error("%s\n%s", error, text);
            fail();
        }
        assert_same(&c, &again);
        conf_fini(&c);
        conf_fini(&again);
    }
}

static void origin_is_told(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    assert_int_equal(parse("margin: 2%\nbudgets: []\n", &c), AGOQ_OK);
    char *text = print(conf_print, &c);
    assert_non_null(strstr(text, "\nmargin: 2% # file\n"));
    assert_non_null(strstr(text, "\nbudgets: [] # file\n"));
    assert_non_null(strstr(text, "\nallowed_widths: {} # default\n"));
    assert_non_null(strstr(text, "socket: /run/agoq/agoqd.sock # default\n"));
    assert_non_null(strstr(text, "\nsocket_mode: 0660 # default\n"));
    assert_non_null(strstr(text, "\nheartbeat: 1s # default\n"));
    conf_fini(&c);
}

static void write_default(const conf *c, FILE *f) {
    (void)c;
    conf_print_default(f);
}

static void config_file_is_the_table(void **state) {
    (void)state;
    char *text = print(write_default, NULL), file[16384];
    FILE *f = fopen("config/agoqd.yaml", "r");
    assert_non_null(f);
    size_t n = fread(file, 1, sizeof file - 1, f);
    fclose(f);
    file[n] = '\0';
    assert_string_equal(file, text);
    assert_null(strstr(text, "next start")); /* nothing is read again while agoqd runs */
    assert_non_null(strstr(text, "read when agoqd starts"));
    conf c, d;
    conf_default(&c);
    conf_default(&d);
    assert_int_equal(conf_load("config/agoqd.yaml", &c, error, sizeof error), AGOQ_OK);
    assert_same(&c, &d);
    assert_true(c.from_file == (1ull << conf_n_options) - 1); /* every option is in it */
    conf_fini(&c);
    conf_fini(&d);
}

static void files(void **state) {
    (void)state;
    conf c;
    conf_default(&c);
    assert_int_equal(conf_load("/nonexistent/agoqd.yaml", &c, error, sizeof error), AGOQ_E_IO);
    assert_string_equal(error, "/nonexistent/agoqd.yaml: No such file or directory");
    assert_int_equal(conf_load("/", &c, error, sizeof error), AGOQ_E_IO);
    assert_string_equal(error, "/: is a folder, not a file");
    conf_fini(&c);
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    static const char text[] = "budgets: [{stage: 1, bytes: 1GiB}, {device: a, bytes: 2GiB}]\nmargin: 3%\n";
    int failed = 0;
    for (long n = 1;; n++) {
        conf c;
        conf_default(&c);
        mem_fail_after(n);
        agoq_status status = parse(text, &c);
        mem_fail_after(0);
        assert_int_equal(c.n_budgets, status == AGOQ_OK ? 2 : 0);
        conf_fini(&c);
        if (status == AGOQ_OK) break;
        assert_int_equal(status, AGOQ_E_NOMEM);
        assert_string_equal(error, "t.yaml: out of memory");
        failed++;
    }
    assert_true(failed > 15);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(every_option_is_read),
        cmocka_unit_test(refused_and_nothing_changed),
        cmocka_unit_test(an_empty_list_replaces_a_list),
        cmocka_unit_test(printed_loads_to_the_same),
        cmocka_unit_test(origin_is_told),
        cmocka_unit_test(config_file_is_the_table),
        cmocka_unit_test(files),
        cmocka_unit_test(every_failed_allocation_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
