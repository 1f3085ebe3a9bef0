/* JSON writer: straight to a stream, correct by construction of its commas and escapes. The schema of
 * agoqctl: every document is an object that starts with "version"; keys are the field names of
 * proto/agoq.proto; bytes are integers; 64-bit ids and hashes are strings, since many readers keep numbers in
 * a double; unknown is null, never a sentinel, except the steps of an event: -1 is "not
 * on a step" and "not in effect (yet)". */
#ifndef AGOQCTL_JSON_H
#define AGOQCTL_JSON_H

#include <stdint.h>
#include <stdio.h>

#define JSON_MAX_DEPTH 16

typedef struct json_writer {
    FILE *out;
    int depth;
    int n_at[JSON_MAX_DEPTH + 1]; /* values written at each depth */
    int bad;                      /* nested too deep, or closed too often: nothing more is written */
} json_writer;

void json_init(json_writer *j, FILE *out);
/* key NULL: inside an array, or the whole document. */
void json_object(json_writer *j, const char *key);
void json_array(json_writer *j, const char *key);
void json_object_end(json_writer *j);
void json_array_end(json_writer *j);
void json_text(json_writer *j, const char *key,
               const char *text); /* NULL: null. Bytes that are no UTF-8: U+FFFD */
void json_uint(json_writer *j, const char *key, uint64_t value);
void json_bytes(json_writer *j, const char *key, uint64_t bytes); /* null if 0: not known */
void json_int(json_writer *j, const char *key, int64_t value);
void json_step(json_writer *j, const char *key, int64_t step); /* null if negative: not known */
void json_real(json_writer *j, const char *key, double value); /* null if not finite */
void json_bool(json_writer *j, const char *key, int value);
void json_null(json_writer *j, const char *key);
void json_plan_id(json_writer *j, const char *key, uint64_t id); /* "3.0.12", "floor" */
void json_hash(json_writer *j, const char *key, uint64_t hash);  /* 16 hex digits; null if 0 */
/* {"version": 1, "command": NAME and the closing newline. */
void json_begin(json_writer *j, FILE *out, const char *command);
void json_end(json_writer *j);

#endif
