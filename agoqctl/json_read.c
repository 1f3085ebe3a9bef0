/* See json_read.h. Recursive descent with a depth count; every read of a byte is behind a bounds check in
 * peek(), which gives 0 at the end (a NUL in the text is no JSON either). */
#include "agoqctl/json_read.h"

#include <stdarg.h>
#include <string.h>

#include "agoqd/yaml.h"

typedef struct reader {
    const char *name, *at, *end;
    int line;
    char *error;
    size_t error_size;
} reader;

typedef struct text {
    char bytes[JSON_READ_MAX_TEXT];
    size_t used;
} text;

static agoq_status fail(reader *r, agoq_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static agoq_status fail(reader *r, agoq_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(r->error, r->error_size, r->name, r->line, 1, format, args);
    va_end(args);
    return status;
}

static char peek(const reader *r) {
    return r->at < r->end ? *r->at : 0;
}

static void skip_space(reader *r) {
    for (;; r->at++) {
        const char c = peek(r);
        if (c == '\n') r->line++;
        if (c != ' ' && c != '\t' && c != '\n' && c != '\r') return;
    }
}

static void put(text *t, char c) {
    if (t && t->used + 1 < sizeof t->bytes) t->bytes[t->used++] = c;
}

/* The code point as UTF-8; a lone surrogate becomes '?'. */
static void put_code(text *t, unsigned code) {
    if (code < 0x80) {
        put(t, code ? (char)code : '?');
    } else if (code < 0x800) {
        put(t, (char)(0xC0 | code >> 6));
        put(t, (char)(0x80 | (code & 0x3F)));
    } else if (code >= 0xD800 && code < 0xE000) {
        put(t, '?');
    } else {
        put(t, (char)(0xE0 | code >> 12));
        put(t, (char)(0x80 | (code >> 6 & 0x3F)));
        put(t, (char)(0x80 | (code & 0x3F)));
    }
}

static int hex_digit(char c) {
    static const char digits[] = "0123456789abcdef0123456789ABCDEF";
    const char *found = c ? strchr(digits, c) : NULL;
    return found ? (int)((found - digits) % 16) : -1;
}

static agoq_status read_escape(reader *r, text *out) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    const char c = peek(r), *known = c ? strchr(names, c) : NULL;
    unsigned code = 0;
    if (!known && c != 'u') return fail(r, AGOQ_E_FORMAT, "unknown escape in a string");
    r->at++;
    if (known) {
        put(out, values[known - names]);
        return AGOQ_OK;
    }
    for (int i = 0; i < 4; i++, r->at++) {
        const int digit = hex_digit(peek(r));
        if (digit < 0) return fail(r, AGOQ_E_FORMAT, "\\u needs four hexadecimal digits");
        code = code * 16 + (unsigned)digit;
    }
    put_code(out, code);
    return AGOQ_OK;
}

/* At the opening quote. */
static agoq_status read_string(reader *r, text *out) {
    r->at++;
    for (;;) {
        const char c = peek(r);
        if (c == '"') break;
        if ((unsigned char)c < 0x20) return fail(r, AGOQ_E_FORMAT, "a string does not end in its line");
        r->at++;
        if (c == '\\') {
            const agoq_status status = read_escape(r, out);
            if (status != AGOQ_OK) return status;
        } else {
            put(out, c);
        }
    }
    r->at++;
    if (out) out->bytes[out->used] = 0;
    return AGOQ_OK;
}

static int digits(reader *r, text *out) {
    int n = 0;
    for (; peek(r) >= '0' && peek(r) <= '9'; n++) put(out, *r->at++);
    return n;
}

static agoq_status read_number(reader *r, text *out) {
    if (peek(r) == '-') put(out, *r->at++);
    const int zero = peek(r) == '0', n = digits(r, out);
    int bad = !n || (zero && n > 1);
    if (peek(r) == '.') {
        put(out, *r->at++);
        bad |= !digits(r, out);
    }
    if (peek(r) == 'e' || peek(r) == 'E') {
        put(out, *r->at++);
        if (peek(r) == '+' || peek(r) == '-') put(out, *r->at++);
        bad |= !digits(r, out);
    }
    if (out) out->bytes[out->used] = 0;
    return bad ? fail(r, AGOQ_E_FORMAT, "not a number") : AGOQ_OK;
}

static int take_word(reader *r, const char *word, text *out) {
    const size_t n = strlen(word);
    if ((size_t)(r->end - r->at) < n || memcmp(r->at, word, n) != 0) return 0;
    r->at += n;
    for (size_t i = 0; out && i < n; i++) put(out, word[i]);
    if (out) out->bytes[out->used] = 0;
    return 1;
}

/* A key, its colon, and the space behind it. */
static agoq_status read_key(reader *r, text *out) {
    if (peek(r) != '"') return fail(r, AGOQ_E_FORMAT, "a key is missing here");
    const agoq_status status = read_string(r, out);
    if (status != AGOQ_OK) return status;
    skip_space(r);
    if (peek(r) != ':') return fail(r, AGOQ_E_FORMAT, "':' is missing");
    r->at++;
    skip_space(r);
    return AGOQ_OK;
}

static agoq_status read_value(reader *r, int depth, text *out, json_kind *kind);

/* Members of an object, or values of a list, which are passed over. */
static agoq_status skip_inside(reader *r, int depth, int object) {
    const char close = object ? '}' : ']';
    json_kind ignored;
    r->at++;
    skip_space(r);
    if (peek(r) == close) {
        r->at++;
        return AGOQ_OK;
    }
    for (;;) {
        agoq_status status = AGOQ_OK;
        skip_space(r);
        if (object) {
            status = read_key(r, NULL);
        }
        if (status == AGOQ_OK) status = read_value(r, depth + 1, NULL, &ignored);
        if (status != AGOQ_OK) return status;
        skip_space(r);
        const char c = peek(r);
        if (c != ',' && c != close) return fail(r, AGOQ_E_FORMAT, "',' or '%c' is missing", close);
        r->at++;
        if (c == close) return AGOQ_OK;
    }
}

static agoq_status read_value(reader *r, int depth, text *out, json_kind *kind) {
    if (depth > JSON_READ_MAX_DEPTH)
        return fail(r, AGOQ_E_LIMIT, "nested more than %d deep", JSON_READ_MAX_DEPTH);
    skip_space(r);
    const char c = peek(r);
    if (out) *out = (text){.used = 0};
    if (c == '{' || c == '[') {
        *kind = c == '{' ? JSON_OBJECT : JSON_LIST;
        return skip_inside(r, depth, c == '{');
    }
    if (c == '"') {
        *kind = JSON_STRING;
        return read_string(r, out);
    }
    if (take_word(r, "null", NULL)) {
        *kind = JSON_NULL;
        return AGOQ_OK;
    }
    *kind = JSON_BOOL;
    if (take_word(r, "true", out) || take_word(r, "false", out)) return AGOQ_OK;
    *kind = JSON_NUMBER;
    if (c == '-' || (c >= '0' && c <= '9')) return read_number(r, out);
    return fail(r, AGOQ_E_FORMAT, c ? "no JSON value here" : "the text ends too early");
}

static agoq_status read_members(reader *r, json_member_fn member, void *user) {
    text key, value;
    json_kind kind;
    r->at++;
    skip_space(r);
    if (peek(r) == '}') {
        r->at++;
        return AGOQ_OK;
    }
    for (;;) {
        skip_space(r);
        key.used = 0;
        agoq_status status = read_key(r, &key);
        const int line = r->line;
        if (status == AGOQ_OK) status = read_value(r, 1, &value, &kind);
        if (status == AGOQ_OK) status = member(user, key.bytes, kind, value.bytes, line);
        if (status != AGOQ_OK) return status;
        skip_space(r);
        const char c = peek(r);
        if (c != ',' && c != '}') return fail(r, AGOQ_E_FORMAT, "',' or '}' is missing");
        r->at++;
        if (c == '}') return AGOQ_OK;
    }
}

agoq_status json_read_object(const char *name, const char *bytes, size_t size, json_member_fn member,
                             void *user, char *error, size_t error_size) {
    reader r = {name, bytes, bytes + size, 1, error, error_size};
    if (size > JSON_READ_MAX_BYTES)
        return fail(&r, AGOQ_E_LIMIT, "%zu bytes, more than the %d allowed", size, JSON_READ_MAX_BYTES);
    skip_space(&r);
    if (peek(&r) != '{') return fail(&r, AGOQ_E_FORMAT, "not a JSON object");
    const agoq_status status = read_members(&r, member, user);
    if (status != AGOQ_OK) return status;
    skip_space(&r);
    return r.at < r.end ? fail(&r, AGOQ_E_FORMAT, "something follows the object") : AGOQ_OK;
}
