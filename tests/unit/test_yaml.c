/* agoqd/yaml: what is refused, and where the message points. Every refusal is checked for its place, since an
 * operator with a long file has nothing else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoqd/yaml.h"
#include "common/mem.h"

static char error[600];

static agoq_status parse(const char *text, size_t size, yaml_doc **doc) {
    *doc = NULL;
    snprintf(error, sizeof error, "untouched");
    return yaml_parse("t.yaml", text, size, doc, error, sizeof error);
}

static void tree_has_texts_and_places(void **state) {
    (void)state;
    static const char text[] = "# comment\n"
                               "a: 010\n"
                               "b:\n"
                               "  - 80GiB\n"
                               "  - {c: '', d: [1, 2]}\n"
                               "\"e f\": |\n"
                               "  two\n"
                               "  lines\n";
    yaml_doc *doc;
    assert_int_equal(parse(text, sizeof text - 1, &doc), AGOQ_OK);
    const yaml_node *root = yaml_root(doc), *b = yaml_get(root, "b");
    assert_int_equal(root->kind, YAML_MAP);
    assert_int_equal(root->n_children, 3);
    assert_string_equal(yaml_get(root, "a")->text, "010"); /* a text, not eight */
    assert_int_equal(b->kind, YAML_LIST);
    assert_int_equal(b->n_children, 2);
    assert_string_equal(b->child->text, "80GiB");
    assert_int_equal(b->child->line, 4);
    assert_int_equal(b->child->column, 5);
    assert_null(b->child->key);
    const yaml_node *inner = b->child->next;
    assert_int_equal(inner->kind, YAML_MAP);
    assert_string_equal(yaml_get(inner, "c")->text, "");
    assert_int_equal(yaml_get(inner, "d")->n_children, 2);
    assert_int_equal(yaml_get(inner, "d")->key_column, 13);
    assert_string_equal(yaml_get(root, "e f")->text, "two\nlines\n");
    assert_null(yaml_get(root, "x"));
    assert_null(yaml_get(b, "a")); /* a list has no keys */
    assert_null(yaml_get(NULL, "a"));
    yaml_unload(&doc);
    assert_null(doc);
    yaml_unload(&doc);
    yaml_unload(NULL);
}

typedef struct refusal {
    const char *text;
    size_t size; /* 0: strlen */
    const char *message;
} refusal;

#define DEEP(open, close)                                                                                    \
    open open open open open open open open open "1" close close close close close close close close close
static const refusal refusals[] = {
    {"", 0, "t.yaml:1:1: the file is empty"},
    {"# only a comment\n", 0, "t.yaml:1:1: the file is empty"},
    {"---\n", 0, "t.yaml:2:1: no value here"},
    {"a: 1\na: 2\n", 0, "t.yaml:2:1: key 'a' is given twice (first in line 1)"},
    {"a: 1\nb:\n  c: 1\n  c: 2\n", 0, "t.yaml:4:3: key 'c' is given twice (first in line 3)"},
    {"a: 1\n---\nb: 2\n", 0, "t.yaml:2:1: a second document"},
    {"a: &x 1\n", 0, "t.yaml:1:4: anchors"},
    {"a: *x\n", 0, "t.yaml:1:4: "},
    {"a: &x [1]\nb: *x\n", 0, "t.yaml:1:4: anchors"},
    {"*x : 1\n", 0, "t.yaml:1:1: "},
    {"a: !!str 80\n", 0, "t.yaml:1:4: tags"},
    {"a: !foo [1]\n", 0, "t.yaml:1:4: tags"},
    {"!!map {a: 1}\n", 0, "t.yaml:1:1: tags"},
    {"!t a: 1\n", 0, "t.yaml:1:1: tags"},
    {"<<: {a: 1}\n", 0, "t.yaml:1:1: merge keys"},
    {"%YAML 1.1\n---\na: 1\n", 0, "t.yaml:1:1: directives"},
    {"%TAG ! tag:x,2000:\n---\na: 1\n", 0, "t.yaml:1:1: directives"},
    {"? [a, b]\n: 1\n", 0, "t.yaml:1:3: a key must be a plain word"},
    {"{a: 1}: 2\n", 0, "t.yaml:1:1: a key must be a plain word"},
    {"a:\nb: 1\n", 0, "t.yaml:1:3: no value here"},
    {"a: ~\n", 0, "t.yaml:1:4: no value here"},
    {"a: null\n", 0, "t.yaml:1:4: no value here"},
    {"a: [1, , 2]\n", 0, "t.yaml:1:8: "},
    {"a: [1, 2\n", 0, "t.yaml:2:1: "},
    {"a: 'x\n", 0, "t.yaml:2:1: "},
    {"a: 1\n\tb: 2\n", 0, "t.yaml:2:1: "},
    {"a: 1\n b: 2\n", 0, "t.yaml:2:"},
    {"a: \"x\\0y\"\n", 0, "t.yaml:1:4: a NUL character"},
    {"\"a\\0b\": 1\n", 0, "t.yaml:1:1: a NUL character"},
    {"a: 1\nb: \0\n", 10, "t.yaml:2:4: control characters are not allowed"},
    {"a: 1\nb: \xff\xfe\n", 0, "t.yaml:2:4: invalid leading UTF-8 octet (byte value 0xff)"},
    {"\xff\xfe"
     "a\0:\0 \0001\0",
     10, "t.yaml:1:1: invalid leading UTF-8"}, /* UTF-16 */
    {"b: \xc3(\n", 0, "t.yaml:1:5: invalid trailing UTF-8"},
    {"b: \xed\xa0\x80\n", 0, "t.yaml:1:4: invalid Unicode"}, /* a surrogate */
    {"a: \x1b[31m\n", 0, "t.yaml:1:4: control characters"},
    {DEEP("[", "]"), 0, "t.yaml:1:9: nested more than 8 deep"},
    {DEEP("{a: ", "}"), 0, "t.yaml:1:33: nested more than 8 deep"},
};

static void refused_with_a_place(void **state) {
    (void)state;
    int n = 0;
    for (const refusal *r = refusals; r < refusals + sizeof refusals / sizeof *refusals; r++, n++) {
        yaml_doc *doc;
        agoq_status status = parse(r->text, r->size ? r->size : strlen(r->text), &doc);
        if (status == AGOQ_OK || strncmp(error, r->message, strlen(r->message))) {
            print_error("case %d: status %d, '%s', expected '%s'\n", n, status, error, r->message);
            fail();
        }
        assert_null(doc);
    }
}

static void limits(void **state) {
    (void)state;
    yaml_doc *doc;
    size_t most = YAML_MAX_BYTES;
    char *text = test_malloc(most + 1);
    memset(text, '#', most + 1);
    memcpy(text, "a: 1\n", 5);
    assert_int_equal(parse(text, most, &doc), AGOQ_OK);
    yaml_unload(&doc);
    assert_int_equal(parse(text, most + 1, &doc), AGOQ_E_LIMIT);
    assert_string_equal(error, "t.yaml: 1048577 bytes, more than the 1048576 allowed");
    /* 1 MiB of brackets: stopped by depth, long before libyaml's own limits. */
    memset(text, '[', most);
    assert_int_equal(parse(text, most, &doc), AGOQ_E_LIMIT);
    /* Values: root and list, then YAML_MAX_NODES - 2 entries are the most. */
    for (int over = 0; over < 2; over++) {
        size_t n = (size_t)sprintf(text, "a: [");
        for (int i = 0; i < YAML_MAX_NODES - 2 + over; i++) n += (size_t)sprintf(text + n, "1,");
        text[n++] = ']';
        assert_int_equal(parse(text, n, &doc), over ? AGOQ_E_LIMIT : AGOQ_OK);
        yaml_unload(&doc);
    }
    for (int over = 0; over < 2; over++) {
        size_t n = 0;
        for (int i = 0; i < YAML_MAX_KEYS + over; i++) n += (size_t)sprintf(text + n, "k%d: 1\n", i);
        assert_int_equal(parse(text, n, &doc), over ? AGOQ_E_LIMIT : AGOQ_OK);
        yaml_unload(&doc);
    }
    test_free(text);
}

static void messages_are_safe_to_print(void **state) {
    (void)state;
    yaml_doc *doc;
    static const char *const keys[] = {"good", NULL};
    static const char text[] = "\"x\\e[2J\\ny\": 1\n";
    assert_int_equal(parse(text, sizeof text - 1, &doc), AGOQ_OK);
    assert_int_equal(yaml_known_keys(yaml_root(doc), keys, error, sizeof error), AGOQ_E_FORMAT);
    assert_string_equal(error, "t.yaml:1:1: unknown key 'x?[2J?y'; valid here: good");
    char tiny[8];
    assert_int_equal(yaml_known_keys(yaml_root(doc), keys, tiny, sizeof tiny), AGOQ_E_FORMAT);
    assert_string_equal(tiny, "t.yaml:");
    assert_int_equal(yaml_known_keys(yaml_root(doc), keys, NULL, 0), AGOQ_E_FORMAT);
    yaml_unload(&doc);
}

static void unknown_keys_and_kinds(void **state) {
    (void)state;
    static const char *const keys[] = {"socket", "state_dir", "heartbeat", "mode", NULL};
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"a: 1\n", "t.yaml:1:1: unknown key 'a'; valid here: socket, state_dir, heartbeat, mode"},
        {"mode: 1\nsokcet: 1\n", "t.yaml:2:1: unknown key 'sokcet'; did you mean 'socket'?"},
        {"State_Dir: 1\n", "t.yaml:1:1: unknown key 'State_Dir'; did you mean 'state_dir'?"},
        {"heart_beat: 1\n", "t.yaml:1:1: unknown key 'heart_beat'; did you mean 'heartbeat'?"},
        {"- a\n", "t.yaml:1:1: this must be a map (key: value), not a list (- value)"},
        {"a\n", "t.yaml:1:1: this must be a map (key: value), not a single value"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        yaml_doc *doc;
        assert_int_equal(parse(cases[i].text, strlen(cases[i].text), &doc), AGOQ_OK);
        assert_int_equal(yaml_known_keys(yaml_root(doc), keys, error, sizeof error), AGOQ_E_FORMAT);
        assert_string_equal(error, cases[i].message);
        yaml_unload(&doc);
    }
}

static void nearest(void **state) {
    (void)state;
    static const char *const keys[] = {"budget", "budgets", "margin", "job", NULL};
    char longest[200];
    memset(longest, 'b', sizeof longest - 1);
    longest[sizeof longest - 1] = '\0';
    assert_string_equal(yaml_nearest("bugdet", keys), "budget"); /* a swap is one edit */
    assert_string_equal(yaml_nearest("budgetss", keys), "budgets");
    assert_string_equal(yaml_nearest("margni", keys), "margin");
    assert_string_equal(yaml_nearest("jbo", keys), "job");
    assert_null(yaml_nearest("xyz", keys));
    assert_null(yaml_nearest("", keys));
    assert_null(yaml_nearest(longest, keys));
}

static char *write_file(const char *name, const void *data, size_t size) {
    static char path[256];
    snprintf(path, sizeof path, "%s/agoq-yaml-%d-%s", P_tmpdir, (int)getpid(), name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, size, f), size);
    fclose(f);
    return path;
}

static void expect_load(const char *path, agoq_status status, const char *end) {
    yaml_doc *doc = NULL;
    assert_int_equal(yaml_load(path, &doc, error, sizeof error), status);
    if (status != AGOQ_OK) {
        assert_int_equal(strncmp(error, path, strlen(path)), 0);
        assert_string_equal(error + strlen(path), end);
    }
    yaml_unload(&doc);
}

static void files(void **state) {
    (void)state;
    char *text = test_calloc(2, YAML_MAX_BYTES);
    char *path = write_file("good", "a: 1\n", 5);
    expect_load(path, AGOQ_OK, "");
    unlink(path);
    expect_load(path, AGOQ_E_IO, ": No such file or directory");
    path = write_file("empty", "", 0);
    expect_load(path, AGOQ_E_FORMAT, ":1:1: the file is empty");
    unlink(path);
    path = write_file("large", text, 2 * YAML_MAX_BYTES);
    expect_load(path, AGOQ_E_LIMIT, ": 2097152 bytes, more than the 1048576 allowed");
    unlink(path);
    expect_load(P_tmpdir, AGOQ_E_IO, ": is a folder, not a file");
    expect_load("/dev/zero", AGOQ_E_IO, ": is not a regular file");
    path = write_file("pipe", "", 0);
    unlink(path);
    assert_int_equal(mkfifo(path, 0600), 0);
    expect_load(path, AGOQ_E_IO, ": is not a regular file"); /* and does not wait for a writer */
    unlink(path);
    test_free(text);
}

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    static const char text[] = "a: 1\nb: [1, {c: d, e: 'f'}]\n\"g\": \"h\"\n";
    int failed = 0;
    for (long n = 1;; n++) {
        yaml_doc *doc = NULL;
        mem_fail_after(n);
        agoq_status status = yaml_parse("t.yaml", text, sizeof text - 1, &doc, error, sizeof error);
        mem_fail_after(0);
        if (status == AGOQ_OK) {
            yaml_unload(&doc);
            break;
        }
        assert_int_equal(status, AGOQ_E_NOMEM);
        assert_string_equal(error, "t.yaml: out of memory");
        assert_null(doc);
        failed++;
    }
    assert_true(failed > 15);
}

/* Every prefix and every single-byte change of a file that uses all the syntax: an answer, never a crash. */
static void prefixes_and_flips(void **state) {
    (void)state;
    static const char text[] =
        "a: &x 1\nb: [1, {c: *x, ? [e] : 'f'}]\n--- !t\n\"g\\0\": |\n  h\n<<: {}\n%YAML";
    char copy[sizeof text];
    yaml_doc *doc;
    for (size_t i = 0; i < sizeof text; i++) {
        if (parse(text, i, &doc) == AGOQ_OK) yaml_unload(&doc);
        for (int c = 0; c < 256; c++) {
            memcpy(copy, text, sizeof text);
            copy[i] = (char)c;
            if (parse(copy, sizeof text - 1, &doc) == AGOQ_OK) yaml_unload(&doc);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tree_has_texts_and_places),
        cmocka_unit_test(refused_with_a_place),
        cmocka_unit_test(limits),
        cmocka_unit_test(messages_are_safe_to_print),
        cmocka_unit_test(unknown_keys_and_kinds),
        cmocka_unit_test(nearest),
        cmocka_unit_test(files),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(prefixes_and_flips),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
