/* The trainer's side of an agoq session: opens it from the options, attaches the vote, and tells what this
 * rank holds. With --baseline there is no session (handle NULL) and none of these makes an agoq call. */
#ifndef TRAINER_PLANS_H
#define TRAINER_PLANS_H

#include "agoq/agoq.h"
#include "trainer/model.h"
#include "trainer/options.h"

typedef struct plans_profile {
    agoq_profile said;
    agoq_item *items;
    uint64_t *fixed_bytes;
} plans_profile;

/* error[] says what is wrong with --fixed-bits or --poison-roles; 0 if nothing is. */
int plans_check(const options *o, char *error, size_t error_bytes);
/* What a micro-batch keeps, by layer and role, from the model's shapes. Bytes by phase are the caller's. */
agoq_status plans_profile_init(plans_profile *p, const options *o, const model *m);
void plans_profile_fini(plans_profile *p);
/* plan_file and record_file override the options' where not NULL (checkpoints). */
agoq_status plans_open(agoq_session **out, const options *o, int rank, int world, int stage, int replica,
                       const char *plan_file, const char *record_file);

#endif
