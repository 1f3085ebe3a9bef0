/* Propagation of status codes. The trainer keeps its own copy of this macro because it includes nothing of
 * agoq but the public headers: it is also the example that users copy. */
#ifndef TRAINER_TRY_H
#define TRAINER_TRY_H

#include "agoq/status.h"

#define TRY(expr)                                                                                            \
    do {                                                                                                     \
        const agoq_status try_status = (expr);                                                               \
        if (try_status != AGOQ_OK) return try_status;                                                        \
    } while (0)

#endif
