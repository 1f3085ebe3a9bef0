/* Detail text of the last failure on this thread, for agoq_last_error(). Written by libagoq only: kernels,
 * planner and proto return codes, and whoever calls them says what it was doing. The trade-off: one fixed
 * buffer per thread, so a long text is cut, and reporting an error can never fail itself. */
#ifndef LIBAGOQ_ERROR_H
#define LIBAGOQ_ERROR_H

#include "agoq/status.h"

/* Replaces this thread's detail text. errno is kept. */
void error_set(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* error_set(), then returns status: `return error_fail(AGOQ_E_INVAL, "cols %lld < 0", ...);` */
agoq_status error_fail(agoq_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
