/* See slot.h. */
#include "libagoq/slot.h"

#include <string.h>

#include "common/mem.h"
#include "common/try.h"

agoq_status slot_make(uint64_t id, uint64_t hash, const uint8_t *bytes, size_t size, slot *out) {
    if (id == 0 || size == 0 || size > PLAN_MAX_BYTES || plan_hash(bytes, size) != hash) return AGOQ_E_FORMAT;
    slot s = {.id = id, .hash = hash, .size = size};
    AGOQ_TRY(plan_decode(bytes, size, &s.decoded));
    s.bytes = mem_alloc(size);
    if (!s.bytes) {
        plan_fini(&s.decoded);
        return AGOQ_E_NOMEM;
    }
    memcpy(s.bytes, bytes, size);
    *out = s;
    return AGOQ_OK;
}

void slot_fini(slot *s) {
    mem_free(s->bytes);
    plan_fini(&s->decoded);
    memset(s, 0, sizeof *s);
}
