/* See profile.h. */
#include "libagoq/profile.h"

#include <math.h>
#include <string.h>

#include "common/mem.h"
#include "common/try.h"
#include "libagoq/error.h"

#define OBSERVED_MAX_BYTES                                                                                   \
    (OBSERVE_MAX_ROWS * OBSERVE_MAX_CHUNKS * 3 + 64) /* what profile_set_observed can add */

int profile_least_width(uint32_t mask) {
    for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
        if (mask & (1u << i)) return agoq_width_bits(i);
    }
    return 16;
}

uint32_t profile_role_widths(int role) {
    static const uint32_t masks[AGOQ_N_ROLES] = {
#define ROLE_MASK(id, name, sensitivity, mask) mask,
        AGOQ_ROLES(ROLE_MASK)
#undef ROLE_MASK
    };
    return masks[role];
}

static double role_sensitivity(int role) {
    static const double sensitivities[AGOQ_N_ROLES] = {
#define ROLE_SENSITIVITY(id, name, sensitivity, mask) sensitivity,
        AGOQ_ROLES(ROLE_SENSITIVITY)
#undef ROLE_SENSITIVITY
    };
    return sensitivities[role];
}

static agoq_status fill_item(const agoq_profile *from, int i, agoq_item *item) {
    *item = from->items[i];
    if (item->layer < 0 || item->layer >= UINT16_MAX || item->layer >= from->n_layers)
        return error_fail(AGOQ_E_INVAL, "item %d: layer %d of %d", i, item->layer, from->n_layers);
    if (item->role < 0 || item->role >= AGOQ_N_ROLES)
        return error_fail(AGOQ_E_INVAL, "item %d: role %d", i, item->role);
    if (item->chunk < 0 || item->chunk >= from->n_chunks)
        return error_fail(AGOQ_E_INVAL, "item %d: chunk %d of %d", i, item->chunk, from->n_chunks);
    if (item->count < 1 || item->rows < 0 || item->cols < 0)
        return error_fail(AGOQ_E_INVAL, "item %d: negative size, or no tensors", i);
    if (item->widths >= 1u << AGOQ_N_WIDTHS)
        return error_fail(AGOQ_E_INVAL, "item %d: set of widths %u", i, item->widths);
    if (!isfinite(item->sensitivity) || item->sensitivity < 0)
        return error_fail(AGOQ_E_INVAL, "item %d: sensitivity is not a number from 0 up", i);
    if (item->widths == 0) item->widths = profile_role_widths(item->role);
    if (item->sensitivity == 0) item->sensitivity = role_sensitivity(item->role) / from->n_layers;
    return AGOQ_OK;
}

/* A plan has one width for a (layer, role): two items of one pair could not differ. */
static agoq_status check_pairs(const profile *p) {
    uint8_t *seen = mem_zalloc((size_t)p->n_table_layers, AGOQ_N_ROLES);
    if (!seen) return error_fail(AGOQ_E_NOMEM, "profile");
    agoq_status status = AGOQ_OK;
    for (int i = 0; i < p->said.n_items && status == AGOQ_OK; i++) {
        const agoq_item *item = &p->items[i];
        uint8_t *pair = &seen[(size_t)item->layer * AGOQ_N_ROLES + (size_t)item->role];
        if (*pair)
            status = error_fail(AGOQ_E_INVAL, "item %d: layer %d role %s is there twice", i, item->layer,
                                agoq_role_name(item->role));
        *pair = 1;
    }
    mem_free(seen);
    return status;
}

static agoq_status check_numbers(const agoq_profile *from) {
    if (from->size != sizeof *from) return error_fail(AGOQ_E_VERSION, "profile of another size");
    if (from->schedule < AGOQ_SCHEDULE_GPIPE || from->schedule >= AGOQ_N_SCHEDULES)
        return error_fail(AGOQ_E_INVAL, "unknown schedule %d", (int)from->schedule);
    if (from->n_chunks < 1 || from->n_chunks > OBSERVE_MAX_CHUNKS)
        return error_fail(AGOQ_E_INVAL, "%d chunks: 1 to %d", from->n_chunks, OBSERVE_MAX_CHUNKS);
    if (from->n_microbatches < 1 || from->n_layers < 1)
        return error_fail(AGOQ_E_INVAL, "no micro-batches or no layers");
    if (from->n_items < 0 || from->n_items > WIRE_MAX_ITEMS)
        return error_fail(from->n_items < 0 ? AGOQ_E_INVAL : AGOQ_E_LIMIT, "%d items: at most %d",
                          from->n_items, WIRE_MAX_ITEMS);
    if ((from->n_items && !from->items) || !from->fixed_bytes)
        return error_fail(AGOQ_E_INVAL, "items or fixed_bytes is NULL");
    return AGOQ_OK;
}

static agoq_status fill(const agoq_profile *from, profile *p) {
    p->said = *from;
    p->items = mem_zalloc((size_t)from->n_items, sizeof *p->items);
    p->fixed_bytes = mem_zalloc((size_t)from->n_chunks, sizeof *p->fixed_bytes);
    p->live = mem_zalloc((size_t)from->n_chunks * OBSERVE_MAX_ROWS, sizeof *p->live);
    if (!p->items || !p->fixed_bytes || !p->live) return error_fail(AGOQ_E_NOMEM, "profile");
    p->said.items = p->items;
    p->said.fixed_bytes = p->fixed_bytes;
    memcpy(p->fixed_bytes, from->fixed_bytes, (size_t)from->n_chunks * sizeof *p->fixed_bytes);
    for (int i = 0; i < from->n_items; i++) {
        AGOQ_TRY(fill_item(from, i, &p->items[i]));
        if (p->items[i].layer >= p->n_table_layers) p->n_table_layers = p->items[i].layer + 1;
    }
    AGOQ_TRY(check_pairs(p));
    const wire_header trial = {.job = "trial", .rank = 0, .seq = UINT64_MAX, .reply_to = UINT64_MAX};
    uint8_t *data;
    size_t size;
    const agoq_status status = profile_encode(p, &trial, &data, &size);
    if (status != AGOQ_OK) return error_fail(status, "profile is too large, or a size in it is");
    mem_free(data);
    if (size > WIRE_MAX_RANK_BYTES - OBSERVED_MAX_BYTES)
        return error_fail(AGOQ_E_LIMIT, "profile has too many items");
    return AGOQ_OK;
}

agoq_status profile_copy(const agoq_profile *from, profile *out) {
    AGOQ_TRY(check_numbers(from));
    profile p = {0};
    const agoq_status status = fill(from, &p);
    if (status == AGOQ_OK)
        *out = p;
    else
        profile_fini(&p);
    return status;
}

void profile_fini(profile *p) {
    mem_free(p->items);
    mem_free(p->fixed_bytes);
    mem_free(p->live);
    memset(p, 0, sizeof *p);
}

const char *profile_refuses(const profile *p, const plan *which, const agoq_item **item) {
    for (int i = 0; i < p->said.n_items; i++) {
        *item = &p->items[i];
        const int bits = plan_bits(which, p->items[i].layer, p->items[i].role);
        if (bits == 0) return "the plan lacks a tensor class of this rank";
        if (!(p->items[i].widths & (1u << agoq_width_index(bits))))
            return "the plan has a width that is not allowed";
    }
    *item = NULL;
    return NULL;
}

void profile_set_observed(profile *p, const observe *seen) {
    const size_t n = (size_t)p->said.n_chunks;
    for (uint32_t i = 0; i < seen->n_rows; i++) memcpy(p->live + i * n, seen->rows[i], n * sizeof *p->live);
    p->n_live_rows = seen->n_rows;
    p->observed_steps = seen->steps;
}

agoq_status profile_encode(const profile *p, const wire_header *header, uint8_t **data, size_t *size) {
    const size_t n = (size_t)p->said.n_items;
    Agoq__Profile m = AGOQ__PROFILE__INIT;
    Agoq__Item *items = mem_zalloc(n, sizeof *items), **pointers = mem_zalloc(n, sizeof(Agoq__Item *));
    agoq_status status = AGOQ_E_NOMEM;
    if (items && pointers) {
        for (size_t i = 0; i < n; i++) {
            const agoq_item *from = &p->items[i];
            agoq__item__init(&items[i]);
            items[i].layer = (uint32_t)from->layer;
            items[i].role = (uint32_t)from->role;
            items[i].chunk = (uint32_t)from->chunk;
            items[i].count = (uint32_t)from->count;
            items[i].rows = (uint64_t)from->rows;
            items[i].cols = (uint64_t)from->cols;
            items[i].widths = from->widths;
            items[i].sensitivity = from->sensitivity;
            pointers[i] = &items[i];
        }
        uint64_t fixed_phases[2][AGOQ_N_PHASES];
        memcpy(fixed_phases[0], p->said.static_bytes, sizeof fixed_phases[0]);
        memcpy(fixed_phases[1], p->said.workspace_bytes, sizeof fixed_phases[1]);
        m.schedule = (uint32_t)p->said.schedule;
        m.n_microbatches = (uint32_t)p->said.n_microbatches;
        m.n_chunks = (uint32_t)p->said.n_chunks;
        m.n_layers = (uint32_t)p->said.n_layers;
        m.n_items = n;
        m.items = pointers;
        m.n_fixed_bytes = (size_t)p->said.n_chunks;
        m.fixed_bytes = p->fixed_bytes;
        m.alloc_round_bytes = p->said.alloc_round_bytes;
        m.n_static_bytes = m.n_workspace_bytes = AGOQ_N_PHASES;
        m.static_bytes = fixed_phases[0];
        m.workspace_bytes = fixed_phases[1];
        m.n_live = (size_t)p->n_live_rows * m.n_chunks;
        m.live = p->live;
        m.observed_steps = p->observed_steps;
        status = wire_encode(header, AGOQ__ENVELOPE__BODY_PROFILE, &m, WIRE_MAX_RANK_BYTES, data, size);
    }
    mem_free(items);
    mem_free(pointers);
    return status;
}
