/* Names of roles, for programs that do not link libagoq; there it is agoq_role_name. One expansion of the
 * list. */
#ifndef COMMON_ROLE_H
#define COMMON_ROLE_H

#include <stddef.h>

#include "agoq/format.h"

/* NULL if there is no such role. */
static inline const char *role_name(int role) {
    static const char *const names[] = {
#define ROLE_NAME(id, name, sensitivity, mask) name,
        AGOQ_ROLES(ROLE_NAME)
#undef ROLE_NAME
    };
    return role >= 0 && role < AGOQ_N_ROLES ? names[role] : NULL;
}

#endif
