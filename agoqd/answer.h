/* What agoqctl asks, answered at once from what is known. */
#ifndef AGOQD_ANSWER_H
#define AGOQD_ANSWER_H

#include "agoqd/core_state.h"

void answer_request(core *c, const Agoq__Envelope *e, const peer *from, int64_t now);

#endif
