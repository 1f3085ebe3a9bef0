/* Plan files: what is written reads back; every kind of damaged line is refused with its number; a resumed
 * run replaces the future; no allocation failure leaks or half-succeeds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "common/buf.h"
#include "common/mem.h"
#include "libagoq/planfile.h"

static char folder[64], path[96];

static int make_folder(void **state) {
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/agoq-planfile-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/plan", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    unlink(path);
    return rmdir(folder);
}

static void write_text(const char *text, size_t size) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_int_equal(fwrite(text, 1, size, f), size);
    assert_int_equal(fclose(f), 0);
}

static slot plan_of(uint64_t id, int layers, int bits) {
    plan p;
    uint8_t bytes[4096];
    size_t size;
    slot s;
    assert_int_equal(plan_init(&p, 2, (uint32_t)layers), AGOQ_OK);
    p.stages[0].predicted_peak_bytes = 1000 + (uint64_t)bits;
    for (int i = 0; i < layers; i++)
        p.entries[i] = (plan_entry){0, (uint16_t)i, AGOQ_ROLE_MLP_GATE_UP, (uint8_t)bits};
    assert_int_equal(plan_encode(&p, bytes, sizeof bytes, &size), AGOQ_OK);
    plan_fini(&p);
    assert_int_equal(slot_make(id, plan_hash(bytes, size), bytes, size, &s), AGOQ_OK);
    return s;
}

static void expect_refused(const char *text, size_t size, agoq_status status, const char *where) {
    planfile f = {(void *)1, 77};
    write_text(text, size);
    assert_int_equal(planfile_read(path, &f), status);
    assert_true(f.n == 77);
    if (!strstr(agoq_last_error(), where))
        fail_msg("%s: \"%s\" lacks \"%s\"", text, agoq_last_error(), where);
}

static void round_trip(void **state) {
    (void)state;
    slot floor_plan = {0}, a = plan_of(plan_id_make(1, 2, 3), 4, 6), b = plan_of(UINT64_MAX, 300, 5);
    planfile_writer w;
    planfile f;
    unlink(path);
    assert_int_equal(planfile_writer_open(path, &w), AGOQ_OK);
    assert_true(w.last_step == -1 && w.last_id == 0);
    assert_int_equal(planfile_read(path, &f), AGOQ_OK); /* only the head yet */
    assert_int_equal(f.n, 0);
    assert_null(planfile_at(&f, INT64_MAX));
    planfile_fini(&f);
    assert_int_equal(planfile_append(&w, 0, &a), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 7, &floor_plan), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 8, &b), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 999999999999999999, &a), AGOQ_OK);
    planfile_writer_close(&w);
    planfile_writer_close(&w);
    assert_int_equal(planfile_read(path, &f), AGOQ_OK);
    assert_int_equal(f.n, 4);
    assert_true(f.entries[0].step == 0 && f.entries[1].step == 7 && f.entries[2].step == 8);
    assert_true(f.entries[0].plan.id == a.id && f.entries[0].plan.hash == a.hash);
    assert_int_equal(f.entries[0].plan.size, a.size);
    assert_memory_equal(f.entries[0].plan.bytes, a.bytes, a.size);
    assert_true(f.entries[1].plan.id == 0 && f.entries[1].plan.hash == 0 && f.entries[1].plan.size == 0);
    assert_memory_equal(f.entries[2].plan.bytes, b.bytes, b.size);
    assert_int_equal(plan_bits(&f.entries[2].plan.decoded, 299, AGOQ_ROLE_MLP_GATE_UP), 5);
    assert_ptr_equal(planfile_at(&f, 0), &f.entries[0]);
    assert_ptr_equal(planfile_at(&f, 6), &f.entries[0]);
    assert_ptr_equal(planfile_at(&f, 7), &f.entries[1]);
    assert_ptr_equal(planfile_at(&f, 8), &f.entries[2]);
    assert_ptr_equal(planfile_at(&f, INT64_MAX), &f.entries[3]);
    assert_null(planfile_at(&f, -1));
    planfile_fini(&f);
    slot_fini(&a);
    slot_fini(&b);
}

static void a_resumed_run_replaces_the_future(void **state) {
    (void)state;
    slot a = plan_of(plan_id_make(1, 0, 1), 2, 4), b = plan_of(plan_id_make(1, 0, 2), 2, 8);
    planfile_writer w;
    planfile f;
    unlink(path);
    assert_int_equal(planfile_writer_open(path, &w), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 10, &a), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 20, &b), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 30, &a), AGOQ_OK);
    planfile_writer_close(&w);
    assert_int_equal(planfile_writer_open(path, &w), AGOQ_OK);
    assert_true(w.last_step == 30 && w.last_id == a.id);
    assert_int_equal(planfile_append(&w, 20, &a), AGOQ_OK);
    planfile_writer_close(&w);
    assert_int_equal(planfile_read(path, &f), AGOQ_OK);
    assert_int_equal(f.n, 2);
    assert_true(f.entries[1].step == 20 && f.entries[1].plan.id == a.id);
    planfile_fini(&f);
    slot_fini(&a);
    slot_fini(&b);
}

/* One good line, then the same line damaged in every field. */
static void malformed_lines(void **state) {
    (void)state;
    slot a = plan_of(plan_id_make(1, 0, 1), 2, 4);
    char hex[512], good[768], text[2048];
    buf_hex_encode(a.bytes, a.size, hex);
    const unsigned long long id = a.id, hash = a.hash;
    snprintf(good, sizeof good, "5 %016llx %016llx %s\n", id, hash, hex);
    snprintf(text, sizeof text, "agoq-plan-file 1\n%s", good);
    planfile f;
    write_text(text, strlen(text));
    assert_int_equal(planfile_read(path, &f), AGOQ_OK);
    planfile_fini(&f);
#define ZERO16 "0000000000000000"
    const struct {
        const char *format, *where; /* %1$llx id, %2$llx hash, %3$s plan */
    } bad[] = {
        {"\n", "bad step"},
        {"5\n", "bad step"},
        {" 5 %1$016llx %2$016llx %3$s\n", "bad step"},
        {"-5 %1$016llx %2$016llx %3$s\n", "bad step"},
        {"+5 %1$016llx %2$016llx %3$s\n", "bad step"},
        {"05 %1$016llx %2$016llx %3$s\n", "bad step"},
        {"5x %1$016llx %2$016llx %3$s\n", "bad step"},
        {"1000000000000000000 %1$016llx %2$016llx %3$s\n", "bad step"},
        {"5 %1$llx %2$016llx %3$s\n", "bad plan id"},
        {"5 %1$016llX0 %2$016llx %3$s\n", "bad plan id"},
        {"5 g%1$015llx %2$016llx %3$s\n", "bad plan id"},
        {"5  %1$016llx %2$016llx %3$s\n", "bad plan id"},
        {"5 %1$016llx\n", "bad plan id"},
        {"5 %1$016llx 0%2$016llx %3$s\n", "bad hash"},
        {"5 %1$016llx %2$016llx\n", "bad hash"},
        {"5 %1$016llx %2$016llx \n", "malformed"},
        {"5 %1$016llx %2$016llx -\n", "without a plan"},
        {"5 " ZERO16 " %2$016llx -\n", "without a plan"},
        {"5 " ZERO16 " " ZERO16 " %3$s\n", "without a plan id"},
        {"5 " ZERO16 " " ZERO16 " --\n", "without a plan id"},
        {"5 %1$016llx %1$016llx %3$s\n", "malformed"},
        {"5 %1$016llx %2$016llx %3$s0\n", "not hex"},
        {"5 %1$016llx %2$016llx %3$s00\n", "malformed"},
        {"5 %1$016llx %2$016llx %3$s \n", "not hex"},
        {"5 %1$016llx %2$016llx %3$s\r\n", "not hex"},
        {"5 %1$016llx %2$016llx A%3$s\n", "not hex"},
        {"5 %1$016llx %2$016llx %3$s", "cut short"},
        {"5", "cut short"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        int n = snprintf(text, sizeof text, "agoq-plan-file 1\n%s", good);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#pragma GCC diagnostic ignored "-Wformat-extra-args"
        n += snprintf(text + n, sizeof text - (size_t)n, bad[i].format, id, hash, hex);
#pragma GCC diagnostic pop
        assert_true((size_t)n < sizeof text);
        char where[64];
        snprintf(where, sizeof where, "plan:3: ");
        expect_refused(text, (size_t)n, AGOQ_E_FORMAT, where);
        expect_refused(text, (size_t)n, AGOQ_E_FORMAT, bad[i].where);
    }
    /* A NUL is not the end of a line. */
    const int n = snprintf(text, sizeof text, "agoq-plan-file 1\n%s", good);
    text[n - 1] = 0;
    expect_refused(text, (size_t)n, AGOQ_E_FORMAT, "plan:2: ");
    slot_fini(&a);
}

/* S1, whether the lines follow each other, stand apart, or the first was taken back. */
static void one_id_for_two_contents(void **state) {
    (void)state;
    static const struct {
        int n, steps[3], which[3];
        const char *where;
    } cases[] = {
        {2, {1, 2}, {0, 1}, "plan:3: "},
        {3, {1, 2, 3}, {0, 2, 1}, "plan:4: "},
        {3, {5, 6, 5}, {0, 2, 1}, "plan:4: "},
        {3, {1, 2, 3}, {0, 2, 0}, NULL},
    };
    slot plans[3] = {plan_of(plan_id_make(1, 0, 1), 2, 4), plan_of(plan_id_make(1, 0, 1), 2, 5),
                     plan_of(plan_id_make(1, 0, 2), 2, 5)};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        planfile_writer w;
        planfile f = {(void *)1, 77};
        unlink(path);
        assert_int_equal(planfile_writer_open(path, &w), AGOQ_OK);
        for (int k = 0; k < cases[i].n; k++)
            assert_int_equal(planfile_append(&w, cases[i].steps[k], &plans[cases[i].which[k]]), AGOQ_OK);
        planfile_writer_close(&w);
        assert_int_equal(planfile_read(path, &f), cases[i].where ? AGOQ_E_FORMAT : AGOQ_OK);
        if (!cases[i].where)
            planfile_fini(&f);
        else if (f.n != 77 || !strstr(agoq_last_error(), cases[i].where))
            fail_msg("case %zu: %s", i, agoq_last_error());
    }
    for (int i = 0; i < 3; i++) slot_fini(&plans[i]);
}

static void malformed_heads_and_files(void **state) {
    (void)state;
    static const struct {
        const char *text;
        agoq_status status;
    } bad[] = {{"", AGOQ_E_FORMAT},
               {"agoq-plan-file 1", AGOQ_E_FORMAT},
               {"agoq-plan-file 2\n", AGOQ_E_VERSION},
               {"agoq-plan-file 1 \n", AGOQ_E_VERSION},
               {" agoq-plan-file 1\n", AGOQ_E_FORMAT},
               {"something else\n", AGOQ_E_FORMAT}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        /* A head that is cut short has the right name and no version. */
        const agoq_status status = i == 1 ? AGOQ_E_VERSION : bad[i].status;
        expect_refused(bad[i].text, strlen(bad[i].text), status, ":1: ");
    }
    planfile f;
    planfile_writer w = {.fd = -7};
    unlink(path);
    assert_int_equal(planfile_read(path, &f), AGOQ_E_IO);
    assert_int_equal(planfile_read(folder, &f), AGOQ_E_IO);
    assert_int_equal(planfile_writer_open(folder, &w), AGOQ_E_IO);
    assert_int_equal(mkfifo(path, 0600), 0); /* must not wait for a writer */
    assert_int_equal(planfile_read(path, &f), AGOQ_E_IO);
    unlink(path);
    write_text("not a plan file\n", 16); /* recording must not append to just any file */
    assert_int_equal(planfile_writer_open(path, &w), AGOQ_E_FORMAT);
    assert_int_equal(w.fd, -7);
    write_text("", 0);
    assert_int_equal(truncate(path, (off_t)PLANFILE_MAX_BYTES + 1), 0); /* sparse */
    assert_int_equal(planfile_read(path, &f), AGOQ_E_LIMIT);
}

static void too_many_entries(void **state) {
    (void)state;
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fprintf(file, "agoq-plan-file 1\n");
    for (int i = 0; i <= PLANFILE_MAX_ENTRIES; i++) fprintf(file, "%d " ZERO16 " " ZERO16 " -\n", i);
    fclose(file);
    planfile f;
    assert_int_equal(planfile_read(path, &f), AGOQ_E_LIMIT);
    assert_non_null(strstr(agoq_last_error(), "plan:65538: "));
}

/* A full disk in the middle of a line: the file stays readable, the writer says so once and stops. */
static void half_a_line_is_taken_back(void **state) {
    (void)state;
    slot a = plan_of(plan_id_make(1, 0, 1), 300, 4);
    planfile_writer w;
    planfile f;
    struct rlimit before, small;
    unlink(path);
    assert_int_equal(planfile_writer_open(path, &w), AGOQ_OK);
    assert_int_equal(planfile_append(&w, 1, &a), AGOQ_OK);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = (rlim_t)(2 * a.size + 500);
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_equal(planfile_append(&w, 2, &a), AGOQ_E_IO);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    signal(SIGXFSZ, old);
    assert_true(w.failed && w.last_step == 1);
    planfile_writer_close(&w);
    assert_int_equal(planfile_read(path, &f), AGOQ_OK);
    assert_int_equal(f.n, 1);
    planfile_fini(&f);
    slot_fini(&a);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    slot a = plan_of(plan_id_make(1, 0, 1), 2, 4);
    planfile_writer w;
    planfile f;
    unlink(path);
    assert_int_equal(planfile_writer_open(path, &w), AGOQ_OK);
    for (int i = 0; i < 20; i++) assert_int_equal(planfile_append(&w, i, &a), AGOQ_OK);
    int n = 0;
    for (agoq_status status = AGOQ_E_NOMEM; status != AGOQ_OK; n++) {
        f = (planfile){NULL, 77};
        mem_fail_after(n + 1);
        status = planfile_read(path, &f);
        mem_fail_after(0);
        assert_true(status == AGOQ_OK || (status == AGOQ_E_NOMEM && f.n == 77));
    }
    assert_true(n > 60); /* three for each plan at least */
    planfile_fini(&f);
    mem_fail_after(1);
    assert_int_equal(planfile_append(&w, 30, &a), AGOQ_E_NOMEM);
    mem_fail_after(0);
    planfile_writer_close(&w);
    slot_fini(&a);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(a_resumed_run_replaces_the_future),
        cmocka_unit_test(malformed_lines),
        cmocka_unit_test(one_id_for_two_contents),
        cmocka_unit_test(malformed_heads_and_files),
        cmocka_unit_test(too_many_entries),
        cmocka_unit_test(half_a_line_is_taken_back),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
