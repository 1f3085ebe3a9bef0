/* Memory budgets, one per device, one writer: this daemon (S8). A change gets the next version of one
 * counter, is stored before anyone hears of it, and a lowered one stays *pending* until every rank of the
 * device has shown, after seeing that version, that what it runs and what it may still switch to fits. Pure:
 * storing is the caller's business; it works on a copy (budgets_copy), stores, and only then replaces the
 * original. */
#ifndef AGOQD_BUDGETS_H
#define AGOQD_BUDGETS_H

#include <stdint.h>

#include "agoqd/conf.h"

#define BUDGETS_MAX 8192 /* devices; then budgets_forget makes room */

typedef struct budget {
    char device[128];
    int32_t stage;             /* of the rank that last said HELLO for it */
    uint64_t bytes;            /* wanted; 0: none set, so no plan is made */
    uint64_t configured_bytes; /* what `reset` goes back to */
    uint64_t effective_bytes;  /* what ranks are known to keep to; above `bytes` while pending */
    uint64_t version;
    int pending;
    int64_t step_requested, step_effective; /* -1: unknown */
    int64_t requested_ms;                   /* of this daemon's life; -1: an earlier one */
} budget;

typedef struct budgets {
    budget *list;
    uint32_t n;
    uint64_t version; /* of the newest change; configured budgets have version 1 */
} budgets;

void budgets_fini(budgets *t);
AGOQ_MUST_USE agoq_status budgets_copy(budgets *to, const budgets *from);
budget *budgets_find(const budgets *t, const char *device); /* NULL: not known */

/* What the configuration gives a device of a stage (-1: none). */
uint64_t budgets_configured(const conf *c, const char *device, int32_t stage);
/* The device of a rank: added, or its stage and configured value refreshed; a changed configuration changes
 * the budget unless an operator has set another. *b is set. E_LIMIT, E_NOMEM. */
AGOQ_MUST_USE agoq_status budgets_device(budgets *t, const conf *c, const char *device, int32_t stage,
                                         budget **b);

/* Forgets the oldest device that is not in use and has the budget that the configuration gives it. 0: there
 * is none. Pointers to budgets are void. */
int budgets_forget(budgets *t, int (*in_use)(const void *user, const char *device), const void *user);

/* The next version; every budget that is changed by one request gets the same one. */
uint64_t budgets_next_version(budgets *t);
/* fits_now: every rank of the device already fits `bytes`, so that lowering is effective at once. */
void budgets_set(budget *b, uint64_t bytes, uint64_t version, int fits_now, int64_t step, int64_t now);
void budgets_effective(budget *b, int64_t step);
/* Bytes that a plan may use: budget less margin. */
uint64_t budgets_usable(uint64_t bytes, uint32_t margin_ppm);

#endif
