/* Canonical bytes of a plan. One writer and one strict reader: what decodes always encodes to the same bytes
 * again, so a hash names exactly one plan. The trade-off: entries are a flat sorted list (6 bytes each)
 * rather than runs of equal widths; the list is validated in one pass, and a plan of 2,730 tensor classes is
 * still only 16 KiB. */
#include "planner/plan.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/mem.h"
#include "common/sha256.h"
#include "common/try.h"

#define HEADER_BYTES 12
#define STAGE_BYTES  24
#define ENTRY_BYTES  6

static const uint8_t magic[4] = {'A', 'G', 'Q', 'P'};

static size_t encoded_size(uint32_t n_stages, uint32_t n_entries) {
    return HEADER_BYTES + STAGE_BYTES * (size_t)n_stages + ENTRY_BYTES * (size_t)n_entries;
}

static int within_caps(uint32_t n_stages, uint32_t n_entries) {
    return n_stages <= PLAN_MAX_STAGES && n_entries <= PLAN_MAX_ENTRIES &&
           encoded_size(n_stages, n_entries) <= PLAN_MAX_BYTES;
}

agoq_status plan_init(plan *p, uint32_t n_stages, uint32_t n_entries) {
    if (!p) return AGOQ_E_INVAL;
    if (!within_caps(n_stages, n_entries)) return AGOQ_E_LIMIT;
    plan_stage *stages = mem_zalloc(n_stages, sizeof *stages);
    plan_entry *entries = mem_zalloc(n_entries, sizeof *entries);
    if (!stages || !entries) {
        mem_free(stages);
        mem_free(entries);
        return AGOQ_E_NOMEM;
    }
    *p = (plan){n_stages, n_entries, stages, entries};
    return AGOQ_OK;
}

void plan_fini(plan *p) {
    if (!p) return;
    mem_free(p->stages);
    mem_free(p->entries);
    *p = (plan){0};
}

agoq_status plan_copy(plan *to, const plan *from) {
    plan copy;
    if (!to || !from) return AGOQ_E_INVAL;
    AGOQ_TRY(plan_init(&copy, from->n_stages, from->n_entries));
    if (from->n_stages) memcpy(copy.stages, from->stages, from->n_stages * sizeof *copy.stages);
    if (from->n_entries) memcpy(copy.entries, from->entries, from->n_entries * sizeof *copy.entries);
    *to = copy;
    return AGOQ_OK;
}

static uint32_t entry_key(const plan_entry *e) {
    return (uint32_t)e->layer << 8 | e->role;
}

int plan_bits(const plan *p, int layer, int role) {
    if (!p || layer < 0 || layer > UINT16_MAX || role < 0 || role > UINT8_MAX) return 0;
    const uint32_t key = (uint32_t)layer << 8 | (uint32_t)role;
    uint32_t low = 0, high = p->n_entries;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t found = entry_key(&p->entries[middle]);
        if (found == key) return p->entries[middle].bits;
        if (found < key)
            low = middle + 1;
        else
            high = middle;
    }
    return 0;
}

/* The one definition of "valid", used by both directions. */
static int entries_valid(const plan *p) {
    for (uint32_t i = 0; i < p->n_entries; i++) {
        const plan_entry *e = &p->entries[i];
        if (e->stage >= p->n_stages || e->role >= AGOQ_N_ROLES || agoq_width_index(e->bits) < 0) return 0;
        if (i && entry_key(&p->entries[i - 1]) >= entry_key(e)) return 0;
    }
    return 1;
}

agoq_status plan_encode(const plan *p, uint8_t *data, size_t capacity, size_t *size) {
    if (!p || !size || (p->n_stages && !p->stages) || (p->n_entries && !p->entries)) return AGOQ_E_INVAL;
    if (!within_caps(p->n_stages, p->n_entries)) return AGOQ_E_LIMIT;
    if (!entries_valid(p)) return AGOQ_E_INVAL;
    *size = encoded_size(p->n_stages, p->n_entries);
    if (!data) return AGOQ_OK;
    if (capacity < *size) return AGOQ_E_LIMIT;
    buf_writer w = {data, capacity, 0, 0};
    buf_put_bytes(&w, magic, sizeof magic);
    buf_put(&w, PLAN_VERSION, 2);
    buf_put(&w, p->n_stages, 2);
    buf_put(&w, p->n_entries, 4);
    for (uint32_t i = 0; i < p->n_stages; i++) {
        buf_put(&w, p->stages[i].budget_bytes, 8);
        buf_put(&w, p->stages[i].budget_version, 8);
        buf_put(&w, p->stages[i].predicted_peak_bytes, 8);
    }
    for (uint32_t i = 0; i < p->n_entries; i++) {
        buf_put(&w, p->entries[i].stage, 2);
        buf_put(&w, p->entries[i].layer, 2);
        buf_put(&w, p->entries[i].role, 1);
        buf_put(&w, p->entries[i].bits, 1);
    }
    return w.bad ? AGOQ_E_LIMIT : AGOQ_OK;
}

agoq_status plan_decode(const uint8_t *data, size_t size, plan *p) {
    if (!data || !p) return AGOQ_E_INVAL;
    uint8_t head[sizeof magic];
    buf_reader r = {data, size, 0, 0};
    buf_get_bytes(&r, head, sizeof head);
    const uint64_t version = buf_get(&r, 2);
    const uint32_t n_stages = (uint32_t)buf_get(&r, 2), n_entries = (uint32_t)buf_get(&r, 4);
    if (r.bad || memcmp(head, magic, sizeof magic) != 0 || version != PLAN_VERSION) return AGOQ_E_FORMAT;
    /* Before anything is allocated: the counts must account for every byte. */
    if (!within_caps(n_stages, n_entries) || encoded_size(n_stages, n_entries) != size) return AGOQ_E_FORMAT;
    plan found;
    AGOQ_TRY(plan_init(&found, n_stages, n_entries));
    for (uint32_t i = 0; i < n_stages; i++) {
        found.stages[i].budget_bytes = buf_get(&r, 8);
        found.stages[i].budget_version = buf_get(&r, 8);
        found.stages[i].predicted_peak_bytes = buf_get(&r, 8);
    }
    for (uint32_t i = 0; i < n_entries; i++) {
        found.entries[i].stage = (uint16_t)buf_get(&r, 2);
        found.entries[i].layer = (uint16_t)buf_get(&r, 2);
        found.entries[i].role = (uint8_t)buf_get(&r, 1);
        found.entries[i].bits = (uint8_t)buf_get(&r, 1);
    }
    if (r.bad || !entries_valid(&found)) {
        plan_fini(&found);
        return AGOQ_E_FORMAT;
    }
    *p = found;
    return AGOQ_OK;
}

uint64_t plan_hash(const uint8_t *data, size_t size) {
    uint8_t digest[32];
    uint64_t hash = 0;
    sha256(data, size, digest);
    for (int i = 0; i < 8; i++) hash = hash << 8 | digest[i];
    return hash ? hash : 1;
}

void plan_id_format(uint64_t id, char text[32]) {
    if (id)
        snprintf(text, 32, "%u.%u.%u", plan_id_term(id), plan_id_node(id), plan_id_seq(id));
    else
        snprintf(text, 32, "floor");
}
