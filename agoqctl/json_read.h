/* Strict reader of one JSON object from memory (RFC 8259): members of the outermost object are handed over
 * one by one, what is nested in them is checked and passed over. For Hugging Face's config.json, where a YAML
 * reader would stumble over null, tabs and escapes. Bounds: JSON_READ_MAX_BYTES, JSON_READ_MAX_DEPTH; no
 * allocation. The trade-off: no tree, so whoever needs nested values needs another reader. */
#ifndef AGOQCTL_JSON_READ_H
#define AGOQCTL_JSON_READ_H

#include <stddef.h>

#include "agoq/status.h"

#define JSON_READ_MAX_BYTES (1024 * 1024)
#define JSON_READ_MAX_DEPTH 32
#define JSON_READ_MAX_TEXT  256 /* of a key or value that is handed over; longer ones are cut */

typedef enum json_kind { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_LIST, JSON_OBJECT } json_kind;

/* text: as written for numbers and true/false, unescaped for strings, "" for the rest; valid during the call.
 * A status other than OK ends the reading and is returned (the callback then wrote the message). */
typedef agoq_status (*json_member_fn)(void *user, const char *key, json_kind kind, const char *text,
                                      int line);

/* E_FORMAT: not JSON, or not an object; E_LIMIT: too large or too deep; error says "NAME:LINE: what". */
AGOQ_MUST_USE agoq_status json_read_object(const char *name, const char *text, size_t size,
                                           json_member_fn member, void *user, char *error, size_t error_size);

#endif
