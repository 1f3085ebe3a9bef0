/* Bounded little-endian writer and reader for canonical bytes and state files. Both carry a sticky error
 * instead of being checked after every field: check `bad` once at the end. */
#ifndef COMMON_BUF_H
#define COMMON_BUF_H

#include <stddef.h>
#include <stdint.h>

typedef struct buf_writer {
    uint8_t *data; /* may be NULL: then only `used` is computed */
    size_t capacity, used;
    int bad; /* something did not fit */
} buf_writer;

typedef struct buf_reader {
    const uint8_t *data;
    size_t size, at;
    int bad; /* something was cut short */
} buf_reader;

void buf_put(buf_writer *w, uint64_t value, int n_bytes);
void buf_put_bytes(buf_writer *w, const void *bytes, size_t n);
uint64_t buf_get(buf_reader *r, int n_bytes); /* 0 once bad */
void buf_get_bytes(buf_reader *r, void *bytes, size_t n);

/* Lower-case hex. hex has room for 2n+1. hex_decode: 0 ok, -1 malformed or longer than capacity; *n set. */
void buf_hex_encode(const uint8_t *bytes, size_t n, char *hex);
int buf_hex_decode(const char *hex, size_t hex_len, uint8_t *bytes, size_t capacity, size_t *n);

#endif
