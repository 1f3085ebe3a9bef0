/* Operation lists written by hand: what is written is read back, every mistake is named with its line, and no
 * text does harm. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "common/mem.h"
#include "planner/schedule.h"

enum { TEXT = 1 << 16 };
static char text[TEXT];

static size_t write_ops(const planner_ops *ops) {
    static const char *const routes[] = {"loop", "vee", "two-way"};
    size_t n =
        (size_t)snprintf(text, TEXT, "# made\nranks %u\nmicrobatches %u\n\nchunks %u # each\nroute %s\n",
                         ops->n_ranks, ops->n_microbatches, ops->n_chunks, routes[ops->route]);
    for (uint32_t r = ops->n_ranks; r-- > 0;) { /* in any order */
        for (uint32_t k = ops->start[r]; k < ops->start[r + 1]; k++) {
            const planner_op *op = &ops->ops[k];
            if ((k - ops->start[r]) % 7 == 0)
                n += (size_t)snprintf(text + n, TEXT - n, "\r\nrank %u:", r); /* continued */
            n += (size_t)snprintf(text + n, TEXT - n, "\t%c%u", "FBIW"[op->kind], op -> microbatch);
            if (op->chunk || k % 3 == 0) n += (size_t)snprintf(text + n, TEXT - n, ".%u", op->chunk);
        }
    }
    assert_true(n < TEXT - 1);
    return n;
}

static void written_lists_are_read_back(void **state) {
    (void)state;
    for (int kind = 0; kind < AGOQ_N_SCHEDULES; kind++) {
        const uint32_t v = planner_schedule_chunks((agoq_schedule)kind);
        const planner_schedule s = {(agoq_schedule)kind, 4, 12, v ? v : 3, 0, 0};
        char error[160];
        planner_ops ops, again;
        planner_live_set all, expected;
        assert_int_equal(planner_ops_make(&s, &ops), AGOQ_OK);
        const size_t n = write_ops(&ops);
        if (planner_ops_read(text, n, &again, error, sizeof error) != AGOQ_OK) fail_msg("%s", error);
        assert_string_equal(error, "");
        assert_int_equal(again.route, planner_schedule_route(s.kind));
        assert_memory_equal(again.start, ops.start, 5 * sizeof *ops.start);
        assert_memory_equal(again.ops, ops.ops, ops.start[4] * sizeof *ops.ops);
        assert_int_equal(planner_ops_live_all(&again, PLANNER_HELD_BOTH, &all), AGOQ_OK);
        assert_int_equal(planner_schedule_live(&s, PLANNER_HELD_BOTH, &expected), AGOQ_OK);
        assert_int_equal(all.start[4], expected.start[4]);
        assert_memory_equal(all.rows, expected.rows, all.start[4] * all.n_columns * sizeof *all.rows);
        planner_live_set_fini(&all);
        planner_live_set_fini(&expected);
        planner_ops_fini(&ops);
        planner_ops_fini(&again);
    }
}

#define HEAD "ranks 2\nmicrobatches 2\n"

static void mistakes_are_named(void **state) {
    (void)state;
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"", "line 1: there are no operations"},
        {"ranks 2\n\n# nothing\n", "there are no operations"},
        {"ranks 2\nmicrobatchs 4\n", "line 2: unknown word 'microbatchs'; did you mean 'microbatches'?"},
        {"ranks 2\nsomething 4\n",
         "line 2: unknown word 'something': ranks, microbatches, chunks, route or rank"},
        {"ranks\n", "line 1: 'ranks' needs a value"},
        {"ranks 0\n", "line 1: ranks: '0' is no number from 1 to 1024"},
        {"ranks 1025\n", "line 1: ranks: '1025' is no number from 1 to 1024"},
        {"ranks 4x\n", "line 1: ranks: '4x' is no number"},
        {"ranks -1\n", "line 1: ranks: '-1' is no number"},
        {"microbatches 99999999999999999999999\n", "line 1: microbatches: "},
        {"chunks 65\n", "line 1: chunks: '65' is no number from 1 to 64"},
        {"ranks 2 3\n", "line 1: one value is enough for 'ranks'"},
        {"ranks 2\nranks 2\n", "line 2: 'ranks' is given twice"},
        {"route loops\n", "line 1: unknown route 'loops'; did you mean 'loop'?"},
        {"route spiral-way-down\n", "line 1: unknown route 'spiral-way-down': loop, vee or two-way"},
        {"rank 0: F0\n", "line 1: 'ranks' must be given before the first rank"},
        {"ranks 1\nrank 0: F0\n", "line 2: 'microbatches' must be given before the first rank"},
        {HEAD "route vee\nrank 0: F0\n", "line 4: route vee needs 'chunks 2'"},
        {HEAD "rank 0: F0\nchunks 2\n", "line 4: 'chunks' must stand before the first rank"},
        {HEAD "rank\n", "line 3: 'rank' needs a number and ':'"},
        {HEAD "rank 0 F0\n", "line 3: '0' is no rank, such as '0:'"},
        {HEAD "rank 2: F0\n", "line 3: rank 2: ranks are 0 to 1"},
        {HEAD "rank 0: F0 X1\n", "line 3: 'X1' is no operation"},
        {HEAD "rank 0: F\n", "line 3: 'F' is no operation"},
        {HEAD "rank 0: F0.\n", "line 3: 'F0.' is no operation"},
        {HEAD "rank 0: F0.0.0\n", "line 3: 'F0.0.0' is no operation"},
        {HEAD "rank 0: f0\n", "line 3: 'f0' is no operation"},
        {HEAD "rank 0: F2\n", "line 3: 'F2': micro-batches are 0 to 1"},
        {HEAD "rank 0: F0.1\n", "line 3: 'F0.1': chunks are 0 to 0"},
        {HEAD "rank 0: F\x01\n", "line 3: 'F?' is no operation"},
        /* Lists that do not play: the line of the operation. */
        {HEAD "rank 0: F0 F1 B0 B1\nrank 1: F0 B0 F1\n rank 1: F1 B1\n",
         "line 5: rank 1, operation 4: a second forward"},
        {HEAD "rank 0: F0 F1\nrank 0: B0 B0\nrank 1: F0 B0 F1 B1\n",
         "line 4: rank 0, operation 4: a second backward"},
        {HEAD "rank 0: B0 F0 F1 B1\nrank 1: F0 B0 F1 B1\n",
         "line 3: rank 0, operation 1: backward before forward"},
        {HEAD "rank 0: F0 F1 W0 I0 B1\nrank 1: F0 B0 F1 B1\n",
         "line 3: rank 0, operation 3: weight half before the input half"},
        {HEAD "rank 0: F0 F1 I0 W0 W0 B1\nrank 1: F0 B0 F1 B1\n",
         "line 3: rank 0, operation 5: a second weight half"},
        {HEAD "rank 0: F0 B0 F1 B1\nrank 1: F0 F1\nrank 1: B0 B1\n",
         "line 3: rank 0, operation 2: the rank waits for ever"},
        {HEAD "rank 0: F0 F1 I0 B1 W0\nrank 1: F0 B0 F1 I1\n",
         "line 4: rank 1, operation 5: a weight half is missing: W1"},
        {HEAD "rank 0: F0 B0\nrank 1: F0 B0\n", "line 3: rank 0, operation 3: a forward is missing: F1"},
        {HEAD "rank 0: F0 B0 F1 B1\nrank 1: F0 B0 F1\n",
         "line 4: rank 1, operation 4: a backward is missing: B1"},
        {HEAD "rank 0: F0 B0 F1\nrank 1: F0 B0 F1 B1\n",
         "line 3: rank 0, operation 4: a backward is missing: B1"},
        {HEAD "rank 0: F0 B0 F1 B1\nrank 1: F0 I0 F1\n", "rank 1, operation 4: a weight half is missing: W0"},
        {HEAD "chunks 2\nrank 0: F0 F1 F0.1 F1.1 B0.1 B1.1 B0 B1\nrank 1: F0 F1 F0.1 B0.1 B0 B1\n",
         "line 5: rank 1, operation 7: a forward is missing: F1.1"},
        {"ranks 2\nmicrobatches 2\nchunks 2\nroute two-way\nrank 0: F0 F1.1 B1 B0\nrank 1: F1.1 F0 B1.1 B0\n",
         "line 5: rank 0, operation 3: this micro-batch does not pass this chunk"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char error[160];
        planner_ops ops;
        const agoq_status status =
            planner_ops_read(cases[i].text, strlen(cases[i].text), &ops, error, sizeof error);
        if (status != AGOQ_E_FORMAT || !strstr(error, cases[i].error))
            fail_msg("case %zu: status %d, '%s', not '%s'", i, status, error, cases[i].error);
        assert_int_equal(planner_ops_read(cases[i].text, strlen(cases[i].text), &ops, NULL, 0),
                         AGOQ_E_FORMAT);
        char small[8]; /* cut, and ended */
        assert_int_equal(planner_ops_read(cases[i].text, strlen(cases[i].text), &ops, small, sizeof small),
                         AGOQ_E_FORMAT);
        assert_int_equal(strlen(small), 7);
    }
}

static void no_text_does_harm(void **state) {
    (void)state;
    const planner_schedule s = {AGOQ_SCHEDULE_V_HALF, 2, 4, 2, 0, 0};
    planner_ops made, ops;
    char error[160];
    uint32_t seed = 7, good = 0;
    assert_int_equal(planner_ops_make(&s, &made), AGOQ_OK);
    const size_t n = write_ops(&made);
    for (int round = 0; round < 20000; round++) {
        static char copy[TEXT];
        memcpy(copy, text, n);
        for (int k = round % 3; k >= 0; k--) {
            seed = seed * 1664525u + 1013904223u;
            copy[(seed >> 8) % n] = "0123456789.FBIW: \nrankx\0#"[(seed >> 3) % 26];
        }
        char *exact = malloc(n); /* its end is the end of the memory: sanitizers see a step too far */
        assert_non_null(exact);
        memcpy(exact, copy, n);
        const size_t cut = round % 5 ? n : (size_t)round % n;
        const agoq_status status = planner_ops_read(exact, cut, &ops, error, sizeof error);
        free(exact);
        if (status == AGOQ_OK) {
            planner_ops_fini(&ops);
            good++;
        } else {
            assert_int_equal(status, AGOQ_E_FORMAT);
            assert_int_equal(strncmp(error, "line ", 5), 0);
        }
    }
    assert_in_range(good, 1, 15000);
    agoq_status status = AGOQ_E_NOMEM;
    for (long at = 1; status != AGOQ_OK; at++) {
        mem_fail_after(at);
        status = planner_ops_read(text, n, &ops, error, sizeof error);
        mem_fail_after(0);
        if (status != AGOQ_OK) assert_int_equal(status, AGOQ_E_NOMEM);
        assert_true(at < 50);
    }
    planner_ops_fini(&ops);
    planner_ops_fini(&made);
    assert_int_equal(planner_ops_read(NULL, 0, &ops, NULL, 0), AGOQ_E_INVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(written_lists_are_read_back),
        cmocka_unit_test(mistakes_are_named),
        cmocka_unit_test(no_text_does_harm),
    };
    return cmocka_run_group_tests_name("schedule_file", tests, NULL, NULL);
}
