/* The envelope: round trips, and that nothing but a well-formed message of a legal length and cost gets
 * through. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "agoq/format.h"
#include "common/mem.h"
#include "proto/wire.h"

static wire_header header_make(void) {
    wire_header h = {.job = "job", .node = 3, .rank = 2, .seq = 7, .reply_to = 5};
    for (int i = 0; i < 16; i++) h.sender[i] = (uint8_t)(i + 1);
    return h;
}

/* A profile with n items: the message with the largest heap per byte of wire. */
typedef struct profile_store {
    Agoq__Profile profile;
    Agoq__Item items[WIRE_MAX_ITEMS];
    Agoq__Item *pointers[WIRE_MAX_ITEMS];
    uint64_t fixed[2], sizes[3];
    uint32_t live[4];
} profile_store;

static profile_store store;

static Agoq__Profile *profile_make(size_t n_items) {
    Agoq__Profile p = AGOQ__PROFILE__INIT;
    store.profile = p;
    for (size_t i = 0; i < n_items; i++) {
        Agoq__Item item = AGOQ__ITEM__INIT;
        item.layer = (uint32_t)(i / 2);
        item.role = i % 2;
        item.chunk = i % 2;
        item.count = 1;
        item.rows = 2048;
        item.cols = 4096;
        item.widths = 31;
        item.sensitivity = 0.01;
        store.items[i] = item;
        store.pointers[i] = &store.items[i];
    }
    store.fixed[0] = 5;
    store.sizes[0] = store.sizes[1] = store.sizes[2] = 1000;
    memcpy(store.live, (uint32_t[4]){4, 3, 3, 4}, sizeof store.live);
    store.profile.schedule = 2;
    store.profile.n_microbatches = 8;
    store.profile.n_chunks = 2;
    store.profile.n_layers = 4000;
    store.profile.n_items = n_items;
    store.profile.items = store.pointers;
    store.profile.n_fixed_bytes = 2;
    store.profile.fixed_bytes = store.fixed;
    store.profile.n_static_bytes = store.profile.n_workspace_bytes = 3;
    store.profile.static_bytes = store.profile.workspace_bytes = store.sizes;
    store.profile.n_live = 4;
    store.profile.live = store.live;
    return &store.profile;
}

static void encode_profile(size_t n_items, uint8_t **data, size_t *size) {
    wire_header h = header_make();
    assert_int_equal(
        wire_encode(&h, AGOQ__ENVELOPE__BODY_PROFILE, profile_make(n_items), WIRE_MAX_RANK_BYTES, data, size),
        AGOQ_OK);
}

static void round_trip(void **state) {
    (void)state;
    uint8_t *data;
    size_t size;
    encode_profile(3, &data, &size);
    Agoq__Envelope *e = NULL;
    const char *why = NULL;
    assert_int_equal(wire_decode(data, size, WIRE_MAX_RANK_BYTES, &e, &why), AGOQ_OK);
    assert_string_equal(e->job, "job");
    assert_int_equal(e->sender.data[15], 16);
    assert_int_equal(e->node, 3);
    assert_int_equal(e->rank, 2);
    assert_int_equal(e->seq, 7);
    assert_int_equal(e->reply_to, 5);
    assert_int_equal(e->body_case, AGOQ__ENVELOPE__BODY_PROFILE);
    assert_int_equal(e->profile->n_items, 3);
    assert_int_equal(e->profile->items[2]->rows, 2048);
    assert_int_equal(e->profile->live[3], 4);
    wire_free(e);
    assert_int_equal(wire_decode(data, size, size - 1, &e, &why), AGOQ_E_LIMIT);
    mem_free(data);
    wire_header h = header_make();
    uint8_t *untouched = NULL;
    assert_int_equal(wire_encode(&h, AGOQ__ENVELOPE__BODY_PROFILE, profile_make(4096), WIRE_MAX_RANK_BYTES,
                                 &untouched, &size),
                     AGOQ_E_LIMIT);
    assert_null(untouched);
}

static void largest_profile_fits_its_memory_cap(void **state) {
    (void)state;
    uint8_t *data;
    size_t size;
    encode_profile(2000, &data, &size);
    Agoq__Envelope *e = NULL;
    assert_int_equal(wire_decode(data, size, WIRE_MAX_RANK_BYTES, &e, NULL), AGOQ_OK);
    wire_free(e);
    mem_free(data);
}

static void every_truncation_is_refused(void **state) {
    (void)state;
    uint8_t *data;
    size_t size;
    encode_profile(3, &data, &size);
    for (size_t n = 0; n < size; n++) {
        uint8_t *exact = mem_alloc(n); /* its own block, so that a sanitizer sees a read past its end */
        memcpy(exact, data, n);
        Agoq__Envelope *e = NULL;
        const char *why = NULL;
        assert_int_not_equal(wire_decode(exact, n, WIRE_MAX_RANK_BYTES, &e, &why), AGOQ_OK);
        assert_null(e);
        assert_non_null(why);
        mem_free(exact);
    }
    mem_free(data);
}

static uint64_t random_state = 88172645463325252ull;
static uint64_t random_next(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state;
}

static void garbage_never_passes_and_never_crashes(void **state) {
    (void)state;
    uint8_t *good, bytes[512];
    size_t size;
    encode_profile(3, &good, &size);
    assert_in_range(size, 1, sizeof bytes);
    int passed = 0;
    for (int i = 0; i < 100000; i++) {
        size_t n = random_next() % sizeof bytes;
        if (i % 2) { /* a good message with a few bytes changed gets much deeper */
            n = size;
            memcpy(bytes, good, size);
            for (int k = 0; k < 3; k++) bytes[random_next() % size] = (uint8_t)random_next();
        } else {
            for (size_t k = 0; k < n; k++) bytes[k] = (uint8_t)random_next();
        }
        Agoq__Envelope *e = NULL;
        if (wire_decode(bytes, n, WIRE_MAX_RANK_BYTES, &e, NULL) == AGOQ_OK) {
            assert_true(i % 2); /* changed numbers can be legal, pure noise cannot */
            assert_null(wire_check(e));
            wire_free(e);
            passed++;
        }
    }
    assert_in_range(passed, 1, 49999);
    mem_free(good);
}

static void amplification_is_capped(void **state) {
    (void)state;
    size_t n = 2 << 20, at = 0;
    uint8_t *bytes = mem_alloc(n + 16);
    bytes[at++] = 0x9a; /* field 19 (profile), length-delimited */
    bytes[at++] = 0x01;
    for (size_t v = n, i = 0; i < 4; i++, v >>= 7) bytes[at++] = (uint8_t)((v & 0x7f) | (i < 3 ? 0x80 : 0));
    for (size_t i = 0; i < n; i += 2) { /* items, each empty */
        bytes[at + i] = 0x2a;
        bytes[at + i + 1] = 0;
    }
    Agoq__Envelope *e = NULL;
    const char *why = NULL;
    assert_int_equal(wire_decode(bytes, at + n, WIRE_MAX_RANK_BYTES, &e, &why), AGOQ_E_LIMIT);
    assert_string_equal(why, "message too long");
    assert_int_equal(wire_decode(bytes, at + n, 4 << 20, &e, &why), AGOQ_E_LIMIT);
    assert_string_equal(why, "message needs too much memory");
    mem_free(bytes);
}

static void every_failed_allocation_is_reported(void **state) {
    (void)state;
    uint8_t *data;
    size_t size;
    encode_profile(3, &data, &size);
    int n = 1;
    for (;; n++) {
        assert_in_range(n, 1, 200);
        Agoq__Envelope *e = NULL;
        mem_fail_after(n);
        agoq_status status = wire_decode(data, size, WIRE_MAX_RANK_BYTES, &e, NULL);
        mem_fail_after(0);
        if (status == AGOQ_OK) {
            wire_free(e);
            break;
        }
        assert_int_equal(status, AGOQ_E_NOMEM);
        assert_null(e);
    }
    assert_in_range(n, 10, 200); /* the sweep really met the allocations */
    wire_header h = header_make();
    Agoq__Ack ack = AGOQ__ACK__INIT;
    uint8_t *out = NULL;
    size_t out_size;
    mem_fail_after(1);
    assert_int_equal(wire_encode(&h, AGOQ__ENVELOPE__BODY_ACK, &ack, 1000, &out, &out_size), AGOQ_E_NOMEM);
    mem_fail_after(0);
    assert_null(out);
    mem_free(data);
}

/* Packs without any check, so that wrong envelopes can be made. */
static size_t pack_raw(Agoq__Envelope *e, uint8_t *bytes) {
    return agoq__envelope__pack(e, bytes);
}

static Agoq__Envelope envelope_make(wire_header *h, Agoq__Bye *bye) {
    Agoq__Envelope e = AGOQ__ENVELOPE__INIT;
    e.magic = WIRE_MAGIC;
    e.major = WIRE_MAJOR;
    e.job = h->job;
    e.sender.data = h->sender;
    e.sender.len = 16;
    e.rank = h->rank;
    e.seq = h->seq;
    e.body_case = AGOQ__ENVELOPE__BODY_BYE;
    e.bye = bye;
    return e;
}

static agoq_status decode_of(Agoq__Envelope *e, const char **why) {
    uint8_t bytes[512];
    Agoq__Envelope *out = NULL;
    agoq_status status = wire_decode(bytes, pack_raw(e, bytes), WIRE_MAX_RANK_BYTES, &out, why);
    wire_free(out);
    return status;
}

static void envelope_rules(void **state) {
    (void)state;
    wire_header h = header_make();
    Agoq__Bye bye = AGOQ__BYE__INIT;
    bye.reason = (char *)"done";
    const char *why = NULL;
    Agoq__Envelope e = envelope_make(&h, &bye);
    assert_int_equal(decode_of(&e, &why), AGOQ_OK);
    e.minor = 9; /* newer minors are welcome */
    assert_int_equal(decode_of(&e, &why), AGOQ_OK);
    e.major = 2;
    assert_int_equal(decode_of(&e, &why), AGOQ_E_VERSION);
    e.magic = 1; /* not ours at all: no word about versions */
    assert_int_equal(decode_of(&e, &why), AGOQ_E_FORMAT);
    assert_string_equal(why, "wrong magic");
#define BREAKS(field, value, text)                                                                           \
    e = envelope_make(&h, &bye);                                                                             \
    e.field = value;                                                                                         \
    assert_int_equal(decode_of(&e, &why), AGOQ_E_FORMAT);                                                    \
    assert_string_equal(why, text)
    BREAKS(job, (char *)"", "job name");
    BREAKS(job, (char *)"0123456789012345678901234567890123456789012345678901234567890123", "job name");
    BREAKS(sender.len, 15, "sender is not 16 bytes");
    BREAKS(node, 65536, "node index");
    BREAKS(rank, -2, "rank");
    BREAKS(seq, 0, "sequence number");
    BREAKS(body_case, AGOQ__ENVELOPE__BODY__NOT_SET, "no known body");
#undef BREAKS
}

static void smuggled_bytes_are_refused(void **state) {
    (void)state;
    wire_header h = header_make();
    Agoq__Bye bye = AGOQ__BYE__INIT;
    bye.reason = (char *)"done";
    Agoq__Envelope e = envelope_make(&h, &bye), *out = NULL;
    uint8_t bytes[512];
    const char *why = NULL;
    size_t n = pack_raw(&e, bytes);
    bytes[n - 2] = 0; /* "do\0e": a NUL inside the string */
    assert_int_equal(wire_decode(bytes, n, 1000, &out, &why), AGOQ_E_FORMAT);
    assert_string_equal(why, "not in canonical form");
    n = pack_raw(&e, bytes);
    memcpy(bytes + n, "\xe2\x01\x00", 3); /* a second body (ack, field 28) after the first */
    assert_int_equal(wire_decode(bytes, n + 3, 1000, &out, &why), AGOQ_E_FORMAT);
    n = pack_raw(&e, bytes);
    memcpy(bytes + n, "\x18\x80\x00", 3); /* minor = 0 as an over-long varint */
    assert_int_equal(wire_decode(bytes, n + 3, 1000, &out, &why), AGOQ_E_FORMAT);
    n = pack_raw(&e, bytes);
    memcpy(bytes + n, "\xf8\x7f\x07", 3); /* field 2047, unknown: from a newer minor */
    assert_int_equal(wire_decode(bytes, n + 3, 1000, &out, &why), AGOQ_OK);
    wire_free(out);
}

static void text_is_made_legal(void **state) {
    (void)state;
    char to[16];
    assert_string_equal(wire_text(to, sizeof to, NULL), "");
    assert_string_equal(wire_text(to, sizeof to, "a\nb\x7f\xff"), "a?b??");
    assert_string_equal(wire_text(to, sizeof to,
                                  "gr\xc3\xb6\xc3\x9f"
                                  "e"),
                        "gr\xc3\xb6\xc3\x9f"
                        "e");
    assert_string_equal(wire_text(to, sizeof to, "0123456789012\xc3\xb6"), "0123456789012\xc3\xb6");
    assert_string_equal(wire_text(to, sizeof to, "01234567890123\xc3\xb6"),
                        "01234567890123"); /* not cut in two */
    assert_string_equal(wire_text(to, sizeof to, "\xc3"), "?");
    assert_string_equal(wire_text(to, sizeof to, "\xed\xa0\x80"), "???"); /* a surrogate */
    char one[1];
    assert_string_equal(wire_text(one, 1, "abc"), "");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(round_trip),
        cmocka_unit_test(largest_profile_fits_its_memory_cap),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(garbage_never_passes_and_never_crashes),
        cmocka_unit_test(amplification_is_capped),
        cmocka_unit_test(every_failed_allocation_is_reported),
        cmocka_unit_test(envelope_rules),
        cmocka_unit_test(smuggled_bytes_are_refused),
        cmocka_unit_test(text_is_made_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
