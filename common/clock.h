/* Time. Policies never call this: they are given `now`, so that tests run on virtual time. */
#ifndef COMMON_CLOCK_H
#define COMMON_CLOCK_H

#include <stdint.h>

int64_t clock_ms(void);      /* CLOCK_MONOTONIC */
int64_t clock_us(void);      /* CLOCK_MONOTONIC */
int64_t clock_wall_ms(void); /* for log lines and history only */

#endif
