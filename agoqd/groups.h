/* Is a user of this machine a member of a group? */
#ifndef AGOQD_GROUPS_H
#define AGOQD_GROUPS_H

#include <stdint.h>

/* 1: gid is the primary group of uid, or one of its supplementary ones, by the user database as it is now. 0:
 * not, or unknown (negative ids too). May ask the network, where users come from there. */
int groups_has_member(int64_t gid, int64_t uid);

#endif
