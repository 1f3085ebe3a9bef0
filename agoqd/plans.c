/* See plans.h. */
#include "agoqd/plans.h"

#include <stdio.h>
#include <string.h>

#include "common/mem.h"

static void entry_fini(planned *p) {
    plan_fini(&p->plan);
    mem_free(p->bytes);
    *p = (planned){0};
}

void plans_fini(plans *t) {
    for (uint32_t i = 0; i < PLANS_KEPT; i++) entry_fini(&t->entry[i]);
    t->n = 0;
}

static uint32_t place_of(const plans *t, uint64_t id) {
    uint32_t i = 0;
    while (i < PLANS_KEPT && (!id || t->entry[i].id != id)) i++;
    return i;
}

planned *plans_find(plans *t, uint64_t id) {
    uint32_t i = place_of(t, id);
    return i < PLANS_KEPT ? &t->entry[i] : NULL;
}

const planned *plans_look(const plans *t, uint64_t id) {
    uint32_t i = place_of(t, id);
    return i < PLANS_KEPT ? &t->entry[i] : NULL;
}

agoq_status plans_add(plans *t, uint64_t id, uint64_t hash, const uint8_t *bytes, size_t size,
                      const char *why, planned **out) {
    uint64_t true_hash = plan_hash(bytes, size);
    if (id == 0) return AGOQ_E_INVAL;
    if (hash && hash != true_hash) return AGOQ_E_FORMAT;
    planned *known = plans_find(t, id);
    if (known) {
        if (known->hash != true_hash) return AGOQ_E_STATE;
        *out = known;
        return AGOQ_OK;
    }
    planned p = {.id = id, .hash = true_hash, .size = size, .applied_step = -1, .applied_ms = -1};
    agoq_status status = plan_decode(bytes, size, &p.plan);
    if (status != AGOQ_OK) return status;
    p.bytes = mem_alloc(size);
    if (!p.bytes) {
        entry_fini(&p);
        return AGOQ_E_NOMEM;
    }
    memcpy(p.bytes, bytes, size);
    snprintf(p.why, sizeof p.why, "%s", why);
    for (uint32_t i = 0; i < PLANS_KEPT; i++) {
        planned *place = &t->entry[t->n++ % PLANS_KEPT];
        if (place->id && t->in_use && t->in_use(t->user, place->id)) continue;
        entry_fini(place);
        *place = p;
        *out = place;
        return AGOQ_OK;
    }
    entry_fini(&p);
    return AGOQ_E_LIMIT;
}
