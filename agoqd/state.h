/* What survives a restart: the highest term, the budgets, and the roster of ranks (who runs here, what they
 * run). Small and checksummed. state_encode and state_decode are pure; state_store writes by temporary file,
 * fsync, rename and fsync of the folder, so that a crash or a full disk leaves the old file whole.
 *
 * File, little endian: "AGQS" | u16 version | u64 term | u64 budget version | text job | i32 world, stages,
 * dp, tp | u32 n | n budgets | u32 n | n ranks | SHA-256 of all before. text: u16 length | bytes. When it
 * changes, raise STATE_VERSION and say in docs/PROTOCOL.md what an older file means. */
#ifndef AGOQD_STATE_H
#define AGOQD_STATE_H

#include "agoqd/budgets.h"
#include "agoqd/sessions.h"

#define STATE_VERSION   1
#define STATE_MAX_BYTES (16u << 20)

/* *data is allocated (mem_free). */
AGOQ_MUST_USE agoq_status state_encode(uint64_t term, const budgets *b, const sessions *t, uint8_t **data,
                                       size_t *size);
/* Fills empty *b and *t: ranks that were present are SESSION_EXPECTED. E_FORMAT, E_VERSION, E_NOMEM: both
 * stay empty. */
AGOQ_MUST_USE agoq_status state_decode(const uint8_t *data, size_t size, uint64_t *term, budgets *b,
                                       sessions *t);

AGOQ_MUST_USE agoq_status state_store(const char *folder, const uint8_t *data, size_t size);
/* OK with *data NULL: there is none yet. */
AGOQ_MUST_USE agoq_status state_load(const char *folder, uint8_t **data, size_t *size);

#endif
