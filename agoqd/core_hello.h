/* HELLO: who may come in, and what is learned from it. */
#ifndef AGOQD_CORE_HELLO_H
#define AGOQD_CORE_HELLO_H

#include "agoqd/core_state.h"

void core_hello(core *c, const Agoq__Envelope *e, const peer *from, int64_t now);

#endif
