/* agoqctl without a daemon: the command line, the JSON writer, and tables. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "agoqctl/args.h"
#include "agoqctl/json.h"
#include "agoqctl/render.h"
#include "common/mem.h"
#include "planner/plan.h"

static char out[65536], error[600];

static FILE *open_out(void) {
    memset(out, 0, sizeof out);
    FILE *f = fmemopen(out, sizeof out, "w");
    assert_non_null(f);
    return f;
}

/* ---- command line ---- */

#define MAX_WORDS 16
static int parse_words(const char *line, ctl_args *args) {
    static char copy[1024];
    static char *argv[MAX_WORDS + 1];
    int argc = 0;
    snprintf(copy, sizeof copy, "agoqctl|%s", line);
    for (char *word = copy; word && argc < MAX_WORDS;) {
        char *end = strchr(word, '|');
        if (end) *end = '\0';
        argv[argc++] = word;
        word = end ? end + 1 : NULL;
    }
    if (!*line) argc = 1;
    argv[argc] = NULL;
    snprintf(error, sizeof error, "untouched");
    return args_parse(argc, argv, "/default.sock", args, error, sizeof error);
}

static void good_lines(void **state) {
    (void)state;
    ctl_args a;
    assert_int_equal(parse_words("status", &a), CTL_OK);
    assert_string_equal(a.verb->name, "status");
    assert_string_equal(a.socket, "/default.sock");
    assert_int_equal(a.timeout_ms, 3000);
    assert_int_equal(a.stage, -1);
    assert_int_equal(a.json, 0);
    assert_int_equal(
        parse_words(
            "--json|budget|--socket=/x|set|--stage|3|--timeout=1min|70GiB|--wait|--if-version=9|--reason|a b|"
            "--dry-run|--no-color",
            &a),
        CTL_OK);
    assert_string_equal(a.verb->group, "budget");
    assert_string_equal(a.verb->name, "set");
    assert_string_equal(a.socket, "/x");
    assert_int_equal(a.stage, 3);
    assert_int_equal(a.timeout_ms, 60000);
    assert_int_equal(a.has_timeout, 1);
    ctl_args b;
    assert_int_equal(parse_words("top|--timeout|60", &b), CTL_OK);
    assert_int_equal(b.timeout_ms, 60000);
    assert_int_equal(a.n_positional, 1);
    assert_string_equal(a.positional[0], "70GiB");
    assert_int_equal(a.wait && a.json && a.dry_run && a.no_color && a.has_if_version, 1);
    assert_true(a.if_version == 9);
    assert_string_equal(a.reason, "a b");
    assert_int_equal(parse_words("budget|set|--|--odd-device|1GiB", &a), CTL_OK);
    assert_string_equal(a.positional[0], "--odd-device");
    assert_int_equal(parse_words("plan|diff|1.0.2|current", &a), CTL_OK);
    assert_int_equal(parse_words("simulate|--model|x|--json", &a), CTL_OK);
    assert_int_equal(a.json, 1);
    assert_int_equal(a.rest_argc, 4);
    assert_string_equal(a.rest_argv[0], "simulate");
    assert_string_equal(a.rest_argv[2], "x");
    assert_int_equal(parse_words("-h", &a), CTL_OK);
    assert_int_equal(a.help, 1);
    assert_int_equal(parse_words("plan|--help", &a), CTL_OK);
    assert_null(a.verb);
    assert_string_equal(a.positional[0], "plan");
}

static void bad_lines(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {"", "no command; try: agoqctl --help"},
        {"stauts", "unknown command 'stauts'; did you mean 'status'?"},
        {"xyzzy", "unknown command 'xyzzy'; try: agoqctl --help"},
        {"plan", "'plan' needs a command; try: agoqctl plan --help"},
        {"plan|plan", "unknown command 'plan plan'; try: agoqctl --help"},
        {"plan|hsitory", "unknown command 'plan hsitory'; did you mean 'history'?"},
        {"plan|get", "unknown command 'plan get'"}, /* belongs to budget */
        {"get", "unknown command 'get'"},
        {"status|x", "usage: agoqctl status"},
        {"plan|diff|1.0.2", "usage: agoqctl plan diff A B"},
        {"budget|set", "usage: agoqctl budget set DEVICE SIZE"},
        {"config|check", "usage: agoqctl config check FILE"},
        {"status|a|b|c|d|e", "too many words: 'e'"},
        {"status|--jsn", "unknown option '--jsn'; did you mean '--json'?"},
        {"status|-x", "unknown option '-x'"},
        {"status|--json=1", "--json takes no value"},
        {"status|--json|--json", "--json is given twice"},
        {"status|--socket", "--socket needs a value (PATH)"},
        {"status|--socket=", "--socket: the path is empty"},
        {"status|--timeout|3x", "--timeout: '3x' is not a time such as 500ms, 60s or 60"},
        {"status|--timeout|0", "--timeout: '0'"},
        {"status|--timeout|86401", "--timeout: '86401'"},
        {"status|--timeout|0s", "--timeout: '0s'"},
        {"status|--timeout|25h", "--timeout: '25h'"},
        {"status|--timeout|-1s", "--timeout: '-1s'"},
        {"status|--once", "--once does nothing with 'status'"},
        {"--wait|budget|get", "--wait does nothing with 'budget get'"},
        {"plan|explain|--stage|1024", "--stage: '1024' is not a stage (0 to 1023)"},
        {"plan|explain|--stage|01", "--stage: '01' is not a stage"},
        {"plan|explain|--stage=-1", "--stage: '-1' is not a stage"},
        {"budget|set|d|1GiB|--if-version|x", "--if-version: 'x' is not a version"},
        {"\x1b[2J", "unknown command '?[2J'"}, /* nothing of the line reaches the terminal raw */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ctl_args a;
        int code = parse_words(cases[i].line, &a);
        if (code != CTL_USAGE || strncmp(error, cases[i].message, strlen(cases[i].message))) {
            print_error("'%s': code %d, '%s', not '%s'\n", cases[i].line, code, error, cases[i].message);
            fail();
        }
    }
}

/* Seeded nonsense made of real words: an answer each time, and a verb whenever it is accepted. */
static void random_lines(void **state) {
    (void)state;
    static const char *const words[] = {
        "status", "plan", "show",         "budget",    "set", "--stage",  "--json", "--", "-",   "--socket",
        "3",      "1GiB", "--timeout=1s", "--timeout", "",    "simulate", "--help", "=",  "--=", "--stage=2"};
    uint32_t seed = 12345;
    int accepted = 0;
    for (int i = 0; i < 20000; i++) {
        char line[512] = "";
        int n = (int)(seed >> 16) % 8;
        for (int w = 0; w <= n; w++) {
            seed = seed * 1664525u + 1013904223u;
            snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", w ? "|" : "",
                     words[(seed >> 16) % 20]);
        }
        ctl_args a;
        int code = parse_words(line, &a);
        assert_true(code == CTL_OK || code == CTL_USAGE);
        if (code != CTL_OK) {
            assert_string_not_equal(error, "untouched");
            continue;
        }
        assert_true(a.verb || a.help);
        accepted++;
    }
    assert_in_range(accepted, 100, 19000);
}

static void plan_ids(void **state) {
    (void)state;
    static const char *const bad[] = {"",
                                      "1",
                                      "1.2",
                                      "1.2.3.4",
                                      "1.2.",
                                      ".1.2",
                                      "01.2.3",
                                      "1.65536.0",
                                      "16777216.0.0",
                                      "1.0.16777216",
                                      "a.b.c",
                                      " 1.2.3",
                                      "1.2.3 ",
                                      "-1.2.3",
                                      "0.0.0",
                                      "floor",
                                      "99999999999999999999.0.0"};
    uint64_t id = 7;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) assert_int_equal(args_plan_id(bad[i], &id), -1);
    assert_int_equal(args_plan_id("16777215.65535.16777215", &id), 0);
    assert_true(id == UINT64_MAX);
    assert_int_equal(args_plan_id("3.0.12", &id), 0);
    assert_true(id == plan_id_make(3, 0, 12));
    assert_int_equal(args_plan_id("current", &id), 0);
    assert_true(id == 0);
}

static void help_names_every_verb_and_option(void **state) {
    (void)state;
    FILE *f = open_out();
    args_help(NULL, NULL, f);
    fclose(f);
    int n = 0;
    for (const ctl_verb *v = ctl_verbs; v->name; v++, n++) {
        char left[64];
        snprintf(left, sizeof left, "  %s%s%s ", v->group ? v->group : "", v->group ? " " : "", v->name);
        assert_non_null(strstr(out, left));
        assert_non_null(v->run);
        assert_non_null(v->help);
    }
    assert_int_equal(n, 16);
    f = open_out();
    args_help(&ctl_verbs[9], NULL, f);
    fclose(f);
    assert_non_null(strstr(out, "usage: agoqctl budget set DEVICE SIZE"));
    assert_non_null(strstr(out, "--if-version N"));
    assert_null(strstr(out, "--once"));
}

/* ---- JSON ---- */

static void json_document(void **state) {
    (void)state;
    json_writer j;
    FILE *f = open_out();
    json_begin(&j, f, "x");
    json_text(&j, "t", "a\"\\\b\n\t\x7f\xc3\xa9\xf0\x9f\x98\x80");
    json_text(&j, "bad", "\xff|\xc0\xaf|\xed\xa0\x80|\xf4\x90\x80\x80|\xe2\x82"); /* no UTF-8 */
    json_text(&j, "none", NULL);
    json_uint(&j, "u", UINT64_MAX);
    json_int(&j, "i", INT64_MIN);
    json_real(&j, "r", 0.5);
    json_real(&j, "nan", NAN);
    json_real(&j, "inf", -INFINITY);
    json_bool(&j, "b", 7);
    json_bytes(&j, "n", 0);
    json_plan_id(&j, "p", plan_id_make(3, 0, 12));
    json_plan_id(&j, "floor", 0);
    json_hash(&j, "h", 0xabc);
    json_hash(&j, "h0", 0);
    json_array(&j, "a");
    json_array_end(&j);
    json_array(&j, "aa");
    json_uint(&j, NULL, 1);
    json_object(&j, NULL);
    json_object_end(&j);
    json_array_end(&j);
    json_end(&j);
    fclose(f);
    assert_string_equal(
        out,
        "{\n  \"version\": 1,\n  \"command\": \"x\",\n"
        "  \"t\": \"a\\\"\\\\\\u0008\\u000a\\u0009\\u007f\xc3\xa9\xf0\x9f\x98\x80\",\n"
        "  \"bad\": \"\\ufffd|\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd|\\ufffd\\ufffd\\ufffd\\ufffd|"
        "\\ufffd\\ufffd\",\n"
        "  \"none\": null,\n  \"u\": 18446744073709551615,\n  \"i\": -9223372036854775808,\n"
        "  \"r\": 0.5,\n  \"nan\": null,\n  \"inf\": null,\n  \"b\": true,\n  \"n\": null,\n"
        "  \"p\": \"3.0.12\",\n  \"floor\": \"floor\",\n  \"h\": \"0000000000000abc\",\n  \"h0\": null,\n"
        "  \"a\": [],\n  \"aa\": [\n    1,\n    {}\n  ]\n}\n");
}

static void json_nesting_is_bounded(void **state) {
    (void)state;
    json_writer j;
    FILE *f = open_out();
    json_init(&j, f);
    for (int i = 0; i < JSON_MAX_DEPTH; i++) json_array(&j, NULL);
    assert_int_equal(j.bad, 0);
    json_array(&j, NULL);
    assert_int_equal(j.bad, 1);
    json_init(&j, f);
    json_array_end(&j);
    assert_int_equal(j.bad, 1);
    fclose(f);
}

/* ---- tables ---- */

static void table(void **state) {
    (void)state;
    static const char *const columns[] = {"N>", "NAME", "BYTES>", "LAST"};
    for (int color = 0; color < 2; color++) {
        render_table t;
        render_init(&t, columns, 4);
        render_add(&t, RENDER_PLAIN, "%d", 7);
        render_add(&t, RENDER_GOOD, "%s", "live");
        render_add_bytes(&t, 3ull << 19);
        render_add(&t, RENDER_PLAIN, "a\x1b[1mb\n");
        render_add(&t, RENDER_PLAIN, "%d", 1234);
        render_add(&t, RENDER_PLAIN, "\xc3\xa9\xc3\xa9"); /* two columns wide */
        render_add_bytes(&t, 0);
        render_add(&t, RENDER_BAD, "x");
        FILE *f = open_out();
        assert_int_equal(render_print(&t, color, f), 0);
        fclose(f);
        render_fini(&t);
        assert_string_equal(
            out, color ? "   N  NAME     BYTES  LAST\n   7  \033[32mlive  \033[0m1.50 MiB  a?[1mb?\n"
                         "1234  \xc3\xa9\xc3\xa9           -  \033[31mx\033[0m\n"
                       : "   N  NAME     BYTES  LAST\n   7  live  1.50 MiB  a?[1mb?\n"
                         "1234  \xc3\xa9\xc3\xa9           -  x\n");
    }
}

static void table_without_memory(void **state) {
    (void)state;
    static const char *const columns[] = {"A"};
    int failed = 0;
    for (long n = 1; n < 100; n++) {
        render_table t;
        render_init(&t, columns, 1);
        mem_fail_after(n);
        for (int i = 0; i < 70; i++) render_add(&t, RENDER_PLAIN, "%d", i);
        mem_fail_after(0);
        FILE *f = open_out();
        int status = render_print(&t, 0, f);
        fclose(f);
        render_fini(&t);
        failed += status != 0;
        if (!status) break;
    }
    assert_int_equal(failed, 72); /* 70 texts and two growths */
}

static void ages(void **state) {
    (void)state;
    char text[32];
    render_age(999, text);
    assert_string_equal(text, "999 ms");
    render_age(119999, text);
    assert_string_equal(text, "119 s");
    render_age(7199000, text);
    assert_string_equal(text, "119 min 59 s");
    render_age(7500000, text);
    assert_string_equal(text, "2 h 5 min");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(good_lines),
        cmocka_unit_test(bad_lines),
        cmocka_unit_test(random_lines),
        cmocka_unit_test(plan_ids),
        cmocka_unit_test(help_names_every_verb_and_option),
        cmocka_unit_test(json_document),
        cmocka_unit_test(json_nesting_is_bounded),
        cmocka_unit_test(table),
        cmocka_unit_test(table_without_memory),
        cmocka_unit_test(ages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
