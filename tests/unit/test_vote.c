/* The vote: S5 on every combination of three ranks' small words, against a definition that looks at the ranks
 * themselves; then what a rank may hold while a vote runs (S3, S4). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "libagoq/vote.h"
#include "planner/plan.h"

#define N_RANKS 3

static void reduce(uint64_t into[VOTE_WORDS], const uint64_t words[VOTE_WORDS]) {
    for (int i = 0; i < VOTE_WORDS; i++) {
        if (words[i] < into[i]) into[i] = words[i];
    }
}

static void reduce_all(const vote *ranks, int n, uint64_t reduced[VOTE_WORDS]) {
    memset(reduced, 0xff, VOTE_WORDS * sizeof *reduced);
    for (int r = 0; r < n; r++) {
        vote copy = ranks[r];
        uint64_t words[VOTE_WORDS];
        vote_start(&copy, words);
        reduce(reduced, words);
    }
}

/* Rule S5 in its own words: looks at the ranks, not at minima. */
static vote_outcome expected(const vote *ranks, int n) {
    int same_plan = ranks[0].prepared_id != 0, same_applied = 1;
    for (int r = 1; r < n; r++) {
        same_plan &=
            ranks[r].prepared_id == ranks[0].prepared_id && ranks[r].prepared_hash == ranks[0].prepared_hash;
        same_applied &= ranks[r].applied_id == ranks[0].applied_id;
    }
    return same_plan ? VOTE_SWITCH : same_applied ? VOTE_KEEP : VOTE_FLOOR;
}

/* One rank's words from a number below 27: P, H and A each among three values. */
static vote rank_from(int code) {
    static const uint64_t ids[3] = {0, 5, UINT64_MAX}, hashes[3] = {0, 9, UINT64_MAX};
    const int p = code % 3;
    /* No plan has no hash; the two hashes of a plan differ in the last bit only. */
    const uint64_t hash = p == 0 ? 0 : code / 3 % 3 == 2 ? UINT64_MAX : hashes[1] + (uint64_t)(code / 3 % 3);
    return (vote){.prepared_id = ids[p], .prepared_hash = hash, .applied_id = ids[code / 9]};
}

static void every_combination_of_three_ranks(void **state) {
    (void)state;
    int seen[4] = {0};
    for (int code = 0; code < 27 * 27 * 27; code++) {
        const vote ranks[N_RANKS] = {rank_from(code % 27), rank_from(code / 27 % 27), rank_from(code / 729)};
        uint64_t reduced[VOTE_WORDS];
        reduce_all(ranks, N_RANKS, reduced);
        const vote_outcome outcome = vote_decide(reduced);
        assert_int_equal(outcome, expected(ranks, N_RANKS));
        seen[outcome]++;
    }
    assert_true(seen[VOTE_SWITCH] > 0 && seen[VOTE_KEEP] > 0 && seen[VOTE_FLOOR] > 0);
}

static void all_ranks_agree_and_move_together(void **state) {
    (void)state;
    for (int code = 0; code < 27 * 27 * 27; code++) {
        vote ranks[N_RANKS] = {rank_from(code % 27), rank_from(code / 27 % 27), rank_from(code / 729)};
        const vote before[N_RANKS] = {ranks[0], ranks[1], ranks[2]};
        uint64_t reduced[VOTE_WORDS], words[VOTE_WORDS];
        reduce_all(ranks, N_RANKS, reduced);
        for (int r = 0; r < N_RANKS; r++) {
            vote_start(&ranks[r], words);
            const vote_outcome outcome = vote_finish(&ranks[r], reduced);
            assert_int_equal(outcome, expected(before, N_RANKS));
            assert_int_equal(ranks[r].running, 0);
            if (outcome == VOTE_SWITCH) assert_int_equal(ranks[r].prepared_id, 0);
        }
        for (int r = 1; r < N_RANKS; r++) assert_true(ranks[r].applied_id == ranks[0].applied_id);
    }
}

/* MIN(x) above MAX(x), or a decision on words that this rank never said. */
static void a_broken_reduction_changes_nothing(void **state) {
    (void)state;
    vote v = {.prepared_id = 5, .prepared_hash = 9, .applied_id = 3, .applied_hash = 4};
    uint64_t words[VOTE_WORDS];
    static const uint64_t wrong[][VOTE_WORDS] = {{6, ~5ull, 9, ~9ull, 3, ~3ull},
                                                 {5, ~5ull, 9, ~8ull, 3, ~3ull},
                                                 {0, ~0ull, 0, ~0ull, 4, ~3ull},
                                                 {7, ~7ull, 9, ~9ull, 3, ~3ull},
                                                 {5, ~5ull, 8, ~8ull, 3, ~3ull},
                                                 {0, ~0ull, 0, ~0ull, 8, ~8ull},
                                                 {~0ull, ~0ull, ~0ull, ~0ull, ~0ull, ~0ull}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        vote_start(&v, words);
        assert_int_equal(vote_finish(&v, wrong[i]), VOTE_BROKEN);
        assert_true(v.applied_id == 3 && v.applied_hash == 4 && v.prepared_id == 5 && !v.running);
    }
    vote_start(&v, words);
    assert_int_equal(vote_finish(&v, NULL), VOTE_KEEP);
    assert_true(v.applied_id == 3 && v.prepared_id == 5 && !v.running && v.voted_id == 0);
}

#define ID(term, seq) plan_id_make(term, 0, seq)

static void prepare_holds_one_plan(void **state) {
    (void)state;
    vote v = {0};
    uint64_t words[VOTE_WORDS];
    assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 1), VOTE_STORED);
    assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 1), VOTE_KNOWN);
    assert_int_equal(vote_prepare(&v, ID(1, 1), 12, 1), VOTE_SAME_ID);
    assert_int_equal(vote_prepare(&v, ID(1, 2), 22, 1), VOTE_STORED); /* not voted on yet: replaced */
    assert_true(v.prepared_id == ID(1, 2) && v.prepared_hash == 22);
    vote_start(&v, words);
    assert_true(words[0] == ID(1, 2) && words[1] == ~ID(1, 2) && words[2] == 22 && words[4] == 0);
    assert_int_equal(vote_prepare(&v, ID(1, 3), 33, 1), VOTE_BUSY);
    assert_int_equal(vote_prepare(&v, ID(1, 2), 22, 1), VOTE_KNOWN);
    assert_int_equal(vote_finish(&v, words), VOTE_SWITCH); /* alone in the world: its own words */
    assert_true(v.applied_id == ID(1, 2) && v.applied_hash == 22 && v.prepared_id == 0);
    assert_int_equal(vote_prepare(&v, ID(1, 2), 22, 1), VOTE_KNOWN); /* a late copy */
    assert_true(v.prepared_id == 0);
    assert_int_equal(vote_prepare(&v, ID(1, 2), 23, 1), VOTE_SAME_ID);
    vote_start(&v, words); /* a vote on no plan keeps nobody busy */
    assert_int_equal(vote_prepare(&v, ID(1, 3), 33, 1), VOTE_STORED);
    assert_int_equal(vote_finish(&v, words), VOTE_KEEP);
    assert_true(v.prepared_id == ID(1, 3) && v.applied_id == ID(1, 2));
}

static void older_budgets_and_terms_are_refused(void **state) {
    (void)state;
    vote v = {0};
    vote_heard(&v, 7, 3);
    assert_int_equal(vote_prepare(&v, ID(3, 1), 1, 6), VOTE_OLD_BUDGET);
    assert_int_equal(vote_prepare(&v, ID(2, 1), 1, 7), VOTE_OLD_TERM);
    assert_true(v.prepared_id == 0);
    assert_int_equal(vote_prepare(&v, ID(4, 1), 1, 8), VOTE_STORED);
    assert_true(v.highest_budget == 8 && v.highest_term == 4);
    assert_int_equal(vote_prepare(&v, ID(3, 9), 1, 8), VOTE_OLD_TERM);
    vote_heard(&v, 2, 1); /* old news */
    assert_true(v.highest_budget == 8 && v.highest_term == 4 && v.prepared_id == ID(4, 1));
    vote_heard(&v, 9, 4); /* the budget changed: what was made under the old one goes */
    assert_true(v.prepared_id == 0);
    assert_int_equal(vote_prepare(&v, ID(4, 2), 1, 9), VOTE_STORED);
    vote_heard(&v, 9, 5);
    assert_true(v.prepared_id == 0);
}

static void a_plan_that_is_voted_on_stays_until_the_vote_is_read(void **state) {
    (void)state;
    static const uint64_t nobody_else[VOTE_WORDS] = {0, ~0ull, 0, ~0ull, 0, ~0ull};
    for (int how = 0; how < 4; how++) {
        for (int agreed = 0; agreed < 2; agreed++) {
            vote v = {0};
            uint64_t words[VOTE_WORDS];
            assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 1), VOTE_STORED);
            vote_start(&v, words);
            if (how == 0) vote_withdraw(&v, ID(1, 1), 0);
            if (how == 1) vote_withdraw(&v, 0, 1);
            if (how == 2) vote_heard(&v, 2, 0);
            if (how == 3) vote_heard(&v, 0, 2);
            assert_true(v.prepared_id == ID(1, 1));
            assert_int_equal(vote_prepare(&v, ID(2, 2), 22, 2), VOTE_BUSY);
            /* Asked for again meanwhile: it will be gone, so the answer cannot be "prepared". */
            if (how < 2) assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 2), VOTE_OLD_TERM);
            const vote_outcome outcome = vote_finish(&v, agreed ? words : nobody_else);
            assert_int_equal(outcome, agreed ? VOTE_SWITCH : VOTE_KEEP);
            assert_true(v.applied_id == (agreed ? ID(1, 1) : 0) && v.prepared_id == 0 && v.drop == 0);
            assert_int_equal(vote_prepare(&v, ID(2, 2), 22, 2), VOTE_STORED);
        }
    }
    vote v = {0};
    uint64_t words[VOTE_WORDS];
    assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 1), VOTE_STORED);
    vote_start(&v, words);
    vote_withdraw(&v, ID(1, 1), 0);
    assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 1), VOTE_BUSY);
    vote_withdraw(&v, ID(1, 9), 0); /* somebody else's */
    assert_int_equal(vote_finish(&v, NULL), VOTE_KEEP);
    assert_true(v.prepared_id == 0);
    vote_withdraw(&v, 0, 1); /* nothing there */
    assert_true(v.prepared_id == 0 && v.drop == 0);
}

static void a_disagreement_ends_on_the_floor_plan(void **state) {
    (void)state;
    vote a = {.applied_id = 3, .applied_hash = 4}, b = {0};
    const vote both[2] = {a, b};
    uint64_t reduced[VOTE_WORDS], words[VOTE_WORDS];
    reduce_all(both, 2, reduced);
    vote_start(&a, words);
    vote_start(&b, words);
    assert_int_equal(vote_finish(&a, reduced), VOTE_FLOOR);
    assert_int_equal(vote_finish(&b, reduced), VOTE_FLOOR);
    assert_true(a.applied_id == 0 && a.applied_hash == 0 && b.applied_id == 0);
}

static void a_rank_alone_switches_at_its_boundary(void **state) {
    (void)state;
    vote v = {0};
    assert_int_equal(vote_alone(&v), VOTE_KEEP);
    assert_int_equal(vote_prepare(&v, ID(1, 1), 11, 1), VOTE_STORED);
    assert_true(v.applied_id == 0);
    assert_int_equal(vote_alone(&v), VOTE_SWITCH);
    assert_true(v.applied_id == ID(1, 1) && v.applied_hash == 11 && v.prepared_id == 0);
    assert_int_equal(vote_alone(&v), VOTE_KEEP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_combination_of_three_ranks),
        cmocka_unit_test(all_ranks_agree_and_move_together),
        cmocka_unit_test(a_broken_reduction_changes_nothing),
        cmocka_unit_test(prepare_holds_one_plan),
        cmocka_unit_test(older_budgets_and_terms_are_refused),
        cmocka_unit_test(a_plan_that_is_voted_on_stays_until_the_vote_is_read),
        cmocka_unit_test(a_disagreement_ends_on_the_floor_plan),
        cmocka_unit_test(a_rank_alone_switches_at_its_boundary),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
