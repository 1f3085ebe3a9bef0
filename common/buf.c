/* See buf.h. */
#include "common/buf.h"

#include <string.h>

void buf_put(buf_writer *w, uint64_t value, int n_bytes) {
    uint8_t bytes[8];
    for (int i = 0; i < n_bytes; i++) bytes[i] = (uint8_t)(value >> (8 * i));
    buf_put_bytes(w, bytes, (size_t)n_bytes);
}

void buf_put_bytes(buf_writer *w, const void *bytes, size_t n) {
    if (w->data && (w->used > w->capacity || n > w->capacity - w->used)) w->bad = 1;
    if (w->data && !w->bad && n) memcpy(w->data + w->used, bytes, n);
    w->used += n;
}

uint64_t buf_get(buf_reader *r, int n_bytes) {
    uint8_t bytes[8] = {0};
    buf_get_bytes(r, bytes, (size_t)n_bytes);
    uint64_t value = 0;
    for (int i = 0; i < n_bytes; i++) value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

void buf_get_bytes(buf_reader *r, void *bytes, size_t n) {
    if (r->bad || n > r->size - r->at) {
        r->bad = 1;
        memset(bytes, 0, n);
        return;
    }
    memcpy(bytes, r->data + r->at, n);
    r->at += n;
}

void buf_hex_encode(const uint8_t *bytes, size_t n, char *hex) {
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; i++) {
        hex[2 * i] = digits[bytes[i] >> 4];
        hex[2 * i + 1] = digits[bytes[i] & 15];
    }
    hex[2 * n] = 0;
}

static int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

int buf_hex_decode(const char *hex, size_t hex_len, uint8_t *bytes, size_t capacity, size_t *n) {
    if (hex_len % 2 || hex_len / 2 > capacity) return -1;
    for (size_t i = 0; i < hex_len / 2; i++) {
        int high = hex_value(hex[2 * i]), low = hex_value(hex[2 * i + 1]);
        if (high < 0 || low < 0) return -1;
        bytes[i] = (uint8_t)(high << 4 | low);
    }
    *n = hex_len / 2;
    return 0;
}
