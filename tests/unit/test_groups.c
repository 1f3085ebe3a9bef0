/* agoqd/groups and who may change a budget. The user database is played here: getpwuid_r and getgrouplist of
 * this program are found before those of the C library. */
#include "agoqd/groups.h"
#include "core_ask.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>

static size_t needs_text; /* bytes that the entry of user 1001 takes */
static int n_groups;      /* of user 1001: 500, 501, ...; its primary group is 100 */

int getpwuid_r(uid_t uid, struct passwd *entry, char *text, size_t size, struct passwd **found) {
    *found = NULL;
    if (uid == 1002) return EIO;
    if (uid != 1001) return 0;
    if (size < needs_text) return ERANGE;
    strcpy(text, "ann");
    *entry = (struct passwd){.pw_name = text, .pw_uid = uid, .pw_gid = 100};
    *found = entry;
    return 0;
}

int getgrouplist(const char *user, gid_t group, gid_t *list, int *n) {
    int room = *n;
    assert_string_equal(user, "ann");
    *n = n_groups + 1;
    if (room > 0) list[0] = group;
    for (int i = 1; i < room && i <= n_groups; i++) list[i] = (gid_t)(499 + i);
    return room < n_groups + 1 ? -1 : n_groups + 1;
}

static void primary_and_supplementary(void **state) {
    (void)state;
    static const int counts[] = {3, 63, 64, 5000};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        n_groups = counts[i];
        needs_text = i % 2 ? 300000 : 10;
        assert_int_equal(groups_has_member(100, 1001), 1);
        assert_int_equal(groups_has_member(500, 1001), 1);
        assert_int_equal(groups_has_member(499 + n_groups, 1001), 1);
        assert_int_equal(groups_has_member(500 + n_groups, 1001), 0);
        assert_int_equal(groups_has_member(0, 1001), 0);
    }
}

static void who_is_unknown_is_no_member(void **state) {
    (void)state;
    n_groups = 3;
    needs_text = 10;
    assert_int_equal(groups_has_member(100, 1000), 0);
    assert_int_equal(groups_has_member(100, 1002), 0); /* the database fails */
    assert_int_equal(groups_has_member(-1, 1001), 0);
    assert_int_equal(groups_has_member(500, -1), 0);
    assert_int_equal(groups_has_member(500 + (1ll << 32), 1001), 0);
    assert_int_equal(groups_has_member(500, 1001 + (1ll << 32)), 0);
    needs_text = 1 << 30;
    assert_int_equal(groups_has_member(500, 1001), 0); /* an entry without end */
    needs_text = 10;
    for (long n = 1; n <= 2; n++) {
        mem_fail_after(n);
        assert_int_equal(groups_has_member(500, 1001), 0);
        mem_fail_after(0);
    }
}

static uint32_t set_as(world *w, int64_t uid, int64_t gid) {
    Agoq__CtlRequest q = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetSet set = AGOQ__CTL_BUDGET_SET__INIT;
    q.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_SET;
    q.budget_set = &set;
    set.device = (char *)"GPU-0";
    set.stage = -1;
    set.bytes = 5000000;
    return world_ask_as(w, &q, uid, gid)->code;
}

static void who_may_change_a_budget(void **state) {
    (void)state;
    n_groups = 3;
    needs_text = 10;
    world *w = world_new(2, 2);
    world_join(w);
    assert_int_equal(set_as(w, 1001, 100), 4); /* no socket_group */
    w->core->io.gid = 501;
    assert_int_equal(set_as(w, 1001, 100), 0); /* a supplementary member */
    assert_int_equal(set_as(w, 1003, 501), 0); /* newgrp: the kernel names it */
    assert_int_equal(set_as(w, 1003, 100), 4);
    assert_int_equal(set_as(w, -1, -1), 4);
    assert_int_equal(set_as(w, 0, 0), 0);
    w->core->io.gid = 600;
    assert_int_equal(set_as(w, 1001, 100), 4);
    world_free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(primary_and_supplementary),
        cmocka_unit_test(who_is_unknown_is_no_member),
        cmocka_unit_test(who_may_change_a_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
