/* See wire.h. Decoding goes from cheap to dear: length, then unpacking under a capped allocator, then magic
 * and version, then every field. protobuf-c alone would take a 2 MiB message to 104 MiB of heap, and keeps
 * strings with a NUL inside; the cap stops the first. The second, repeated singular fields, two bodies in one
 * envelope and over-long varints all pack again to another length than they came in, so that one comparison
 * refuses them: only the canonical length is accepted (unknown fields of a newer minor are kept by protobuf-c
 * and counted). */
#include "proto/wire.h"

#include <string.h>

#include "common/mem.h"

#define MAX_ALLOC_BYTES (4u << 20)
#define MIN_ALLOC_BYTES 4096u /* fixed part: a tiny message may need a whole struct */

/* Bytes handed out and not yet returned, of one decode. Each block remembers its size in front of it. */
typedef struct capped {
    size_t used, limit;
    int hit_limit, hit_memory;
} capped;

#define BLOCK_HEADER 16

static void *capped_alloc(void *user, size_t bytes) {
    capped *cap = user;
    if (bytes > cap->limit - cap->used) {
        cap->hit_limit = 1;
        return NULL;
    }
    uint8_t *block = mem_alloc(bytes + BLOCK_HEADER);
    if (!block) {
        cap->hit_memory = 1;
        return NULL;
    }
    memcpy(block, &bytes, sizeof bytes);
    cap->used += bytes;
    return block + BLOCK_HEADER;
}

static void capped_free(void *user, void *p) {
    if (!p) return;
    capped *cap = user; /* NULL in wire_free: nobody counts any more */
    uint8_t *block = (uint8_t *)p - BLOCK_HEADER;
    if (cap) {
        size_t bytes;
        memcpy(&bytes, block, sizeof bytes);
        cap->used -= bytes;
    }
    mem_free(block);
}

static agoq_status refuse(const char **why, const char *text, agoq_status status) {
    if (why) *why = text;
    return status;
}

agoq_status wire_decode(const uint8_t *data, size_t size, size_t max_bytes, Agoq__Envelope **envelope,
                        const char **why) {
    if ((!data && size) || !envelope) return refuse(why, "no buffer", AGOQ_E_INVAL);
    if (size > max_bytes) return refuse(why, "message too long", AGOQ_E_LIMIT);
    if (size == 0) return refuse(why, "empty message", AGOQ_E_FORMAT);
    capped cap = {.limit = MIN_ALLOC_BYTES + 8 * size};
    if (cap.limit > MAX_ALLOC_BYTES) cap.limit = MAX_ALLOC_BYTES;
    ProtobufCAllocator allocator = {capped_alloc, capped_free, &cap};
    Agoq__Envelope *e = agoq__envelope__unpack(&allocator, size, data);
    if (!e && cap.hit_memory) return refuse(why, "out of memory", AGOQ_E_NOMEM);
    if (!e && cap.hit_limit) return refuse(why, "message needs too much memory", AGOQ_E_LIMIT);
    if (!e) return refuse(why, "not an envelope", AGOQ_E_FORMAT);
    const char *bad = NULL;
    agoq_status status = AGOQ_E_FORMAT;
    if (e->magic != WIRE_MAGIC) {
        bad = "wrong magic";
    } else if (e->major != WIRE_MAJOR) {
        bad = "other major version";
        status = AGOQ_E_VERSION;
    } else if (agoq__envelope__get_packed_size(e) != size) {
        bad = "not in canonical form";
    } else {
        bad = wire_check(e);
    }
    if (bad) {
        wire_free(e);
        return refuse(why, bad, status);
    }
    *envelope = e;
    return AGOQ_OK;
}

void wire_free(Agoq__Envelope *envelope) {
    if (!envelope) return;
    ProtobufCAllocator allocator = {capped_alloc, capped_free, NULL};
    agoq__envelope__free_unpacked(envelope, &allocator);
}

agoq_status wire_encode(const wire_header *header, Agoq__Envelope__BodyCase which, void *body,
                        size_t max_bytes, uint8_t **data, size_t *size) {
    if (!header || !body || !data || !size) return AGOQ_E_INVAL;
    wire_header h = *header; /* protobuf-c wants non-const pointers */
    h.job[WIRE_MAX_JOB] = 0;
    Agoq__Envelope e = AGOQ__ENVELOPE__INIT;
    e.magic = WIRE_MAGIC;
    e.major = WIRE_MAJOR;
    e.minor = WIRE_MINOR;
    e.job = h.job;
    e.sender.data = h.sender;
    e.sender.len = sizeof h.sender;
    e.node = h.node;
    e.rank = h.rank;
    e.seq = h.seq;
    e.reply_to = h.reply_to;
    e.body_case = which;
    e.hello = body; /* any member of the union */
    if (wire_check(&e)) return AGOQ_E_INVAL;
    size_t need = agoq__envelope__get_packed_size(&e);
    if (need > max_bytes) return AGOQ_E_LIMIT;
    uint8_t *bytes = mem_alloc(need);
    if (!bytes) return AGOQ_E_NOMEM;
    *size = agoq__envelope__pack(&e, bytes);
    *data = bytes;
    return AGOQ_OK;
}

int wire_utf8_length(const char *text) {
    const uint8_t *s = (const uint8_t *)text;
    if (s[0] < 0x80) return 1;
    if (s[0] < 0xc2 || s[0] > 0xf4) return 0;
    if ((s[1] & 0xc0) != 0x80) return 0;
    if (s[0] < 0xe0) return 2;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0)) return 0; /* over-long; surrogates */
    if ((s[2] & 0xc0) != 0x80) return 0;
    if (s[0] < 0xf0) return 3;
    if ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90))
        return 0; /* over-long; above U+10FFFF */
    return (s[3] & 0xc0) == 0x80 ? 4 : 0;
}

char *wire_text(char *to, size_t capacity, const char *src) {
    if (capacity == 0) return to;
    size_t room = capacity - 1 < WIRE_MAX_STRING ? capacity - 1 : WIRE_MAX_STRING, used = 0;
    for (const char *s = src ? src : ""; *s;) {
        int length = wire_utf8_length(s);
        int plain = length > 1 || (length == 1 && (uint8_t)*s >= 0x20 && *s != 0x7f);
        size_t step = length > 0 ? (size_t)length : 1, out = plain ? step : 1;
        if (used + out > room) break;
        if (plain) {
            memcpy(to + used, s, step);
        } else {
            to[used] = '?';
        }
        used += out;
        s += step;
    }
    to[used] = 0;
    return to;
}
