/* A plan and its canonical bytes: what is hashed, voted on, replayed and shown. Widths for every (stage,
 * layer, role) and what each stage will use at most, predicted before the plan's first step. The id is not
 * part of the bytes: two plans with the same content have the same hash and different ids.
 *
 * Canonical bytes, little endian (normative: docs/PROTOCOL.md). When this changes, raise PLAN_VERSION, keep
 * the old decoder for replay, and extend tests/unit/test_plan.c: "AGQP" | u16 version | u16 n_stages | u32
 * n_entries per stage:  u64 budget_bytes | u64 budget_version | u64 predicted_peak_bytes per entry:  u16
 * stage | u16 layer | u8 role | u8 bits          sorted by (layer, role), each pair once */
#ifndef PLANNER_PLAN_H
#define PLANNER_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/format.h"

#define PLAN_VERSION     1
#define PLAN_MAX_STAGES  1024
#define PLAN_MAX_ENTRIES 8192 /* canonical bytes stay below 64 KiB less the envelope: 6 bytes an entry */
#define PLAN_MAX_BYTES   (60 * 1024)

typedef struct plan_stage {
    uint64_t budget_bytes, budget_version,
        predicted_peak_bytes; /* the tightest rank of the stage; 0: no budget known */
} plan_stage;

typedef struct plan_entry {
    uint16_t stage, layer;
    uint8_t role, bits;
} plan_entry;

typedef struct plan {
    uint32_t n_stages, n_entries;
    plan_stage *stages;
    plan_entry *entries;
} plan;

/* Allocates zeroed arrays. plan_fini frees them and zeroes the struct; safe on a zeroed struct. */
AGOQ_MUST_USE agoq_status plan_init(plan *p, uint32_t n_stages, uint32_t n_entries);
void plan_fini(plan *p);
AGOQ_MUST_USE agoq_status plan_copy(plan *to, const plan *from); /* inits *to */

/* Width of (layer, role); 0 if the plan has no such entry. */
int plan_bits(const plan *p, int layer, int role);

/* Encode: *size is set; data NULL or too small: E_LIMIT (data NULL: OK, size only). Sorts nothing: entries
 * must be in order, else E_INVAL. Decode: full validation (sizes, order, known roles and widths, stage <
 * n_stages): E_FORMAT. */
AGOQ_MUST_USE agoq_status plan_encode(const plan *p, uint8_t *data, size_t capacity, size_t *size);
AGOQ_MUST_USE agoq_status plan_decode(const uint8_t *data, size_t size, plan *p);

/* First 8 bytes (big endian) of SHA-256 over the canonical bytes; a 0 becomes 1, since 0 means "none". */
uint64_t plan_hash(const uint8_t *data, size_t size);

/* Plan id: term:24 | node:16 | seq:24. 0 is the floor plan. */
static inline uint64_t plan_id_make(uint32_t term, uint32_t node, uint32_t seq) {
    return (uint64_t)(term & 0xffffff) << 40 | (uint64_t)(node & 0xffff) << 24 | (seq & 0xffffff);
}
static inline uint32_t plan_id_term(uint64_t id) {
    return (uint32_t)(id >> 40);
}
static inline uint32_t plan_id_node(uint64_t id) {
    return (uint32_t)(id >> 24) & 0xffff;
}
static inline uint32_t plan_id_seq(uint64_t id) {
    return (uint32_t)id & 0xffffff;
}
/* "TERM.NODE.SEQ", or "floor". text has room for 32 bytes. */
void plan_id_format(uint64_t id, char text[32]);

#endif
