/* Every schedule for p <= 16, m <= 64, v <= 4, closed form against simulation, and a few with so many
 * micro-batches that most are left out of the play. */
#include "tests/unit/schedule_cases.h"

static void every_shape(void **state) {
    (void)state;
    /* Of 1024 pairs of p and m: all for the four kinds of one chunk and for zb-v, v-half, v-min; 192 for
     * dualpipe, 768 for dualpipev; all, with 4 numbers of chunks, for interleaved without a group and with a
     * forward ahead, and 5069 of the 8192 with groups of p + 1 and p + 4. */
    const uint32_t n = case_sweep(16, 64, 4, 1);
    assert_int_equal(n, 7 * 1024 + 192 + 768 + 2 * 4 * 1024 + 5069);
}

static void many_microbatches(void **state) {
    (void)state;
    static const uint32_t ranks[] = {1, 2, 3, 8, 17, 32}, microbatches[] = {193, 300, 512};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        for (size_t j = 0; j < sizeof microbatches / sizeof *microbatches; j++) {
            for (int kind = 0; kind < AGOQ_N_SCHEDULES; kind++) {
                for (uint32_t v = 1; v <= 8; v++) {
                    const planner_schedule s = {(agoq_schedule)kind, ranks[i], microbatches[j], v, 0, 0};
                    if (!planner_schedule_refused(&s)) case_check(&s, 0);
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_shape), cmocka_unit_test(many_microbatches)};
    return cmocka_run_group_tests_name("schedule_sweep", tests, NULL, NULL);
}
