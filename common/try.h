/* Propagation of status codes: the only two control-flow macros of the project. */
#ifndef COMMON_TRY_H
#define COMMON_TRY_H

#include "agoq/status.h"

#define AGOQ_TRY(expr)                                                                                       \
    do {                                                                                                     \
        agoq_status try_status = (expr);                                                                     \
        if (try_status != AGOQ_OK) return try_status;                                                        \
    } while (0)

/* Needs a variable `status` and a label `out` in the function. */
#define AGOQ_TRY_OUT(expr)                                                                                   \
    do {                                                                                                     \
        status = (expr);                                                                                     \
        if (status != AGOQ_OK) goto out;                                                                     \
    } while (0)

#endif
