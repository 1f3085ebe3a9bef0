/* See groups.h. The kernel names one group of a peer, its effective one, and most people who may change
 * budgets have socket_group as a supplementary group only; so the user database is asked. The trade-off: a
 * name service that hangs would hold the daemon up for that long. It is asked only when somebody who is
 * neither root nor the daemon's user, and whose effective group is another, changes a budget. */
#include "agoqd/groups.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/mem.h"

#define MOST_TEXT   (1 << 20) /* of one user's entry */
#define MOST_GROUPS 65536     /* NGROUPS_MAX of Linux */

/* Both the entry and the text it points into; NULL: no such user, or no memory. *text is freed by the caller.
 */
static const struct passwd *find_user(uid_t uid, struct passwd *entry, char **text) {
    for (size_t size = 1024; size <= MOST_TEXT; size *= 4) {
        struct passwd *found = NULL;
        mem_free(*text);
        *text = mem_alloc(size);
        if (!*text) return NULL;
        int error = getpwuid_r(uid, entry, *text, size, &found);
        if (error != ERANGE) return error ? NULL : found;
    }
    return NULL;
}

int groups_has_member(int64_t gid, int64_t uid) {
    if (gid < 0 || gid > UINT32_MAX || uid < 0 || uid > UINT32_MAX) return 0;
    struct passwd entry;
    char *text = NULL;
    gid_t *list = NULL;
    int found = 0;
    const struct passwd *user = find_user((uid_t)uid, &entry, &text);
    for (int room = 64; user && room <= MOST_GROUPS; room *= 4) {
        int n = room;
        mem_free(list);
        list = mem_alloc((size_t)room * sizeof *list);
        if (!list) break;
        if (getgrouplist(user->pw_name, user->pw_gid, list, &n) < 0) continue;
        for (int i = 0; i < n; i++) found |= list[i] == (gid_t)gid;
        break;
    }
    mem_free(list);
    mem_free(text);
    return found;
}
