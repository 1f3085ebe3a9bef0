/* Strict reader of small YAML files: agoqd.yaml and config/models, config/clusters (agoqctl simulate).
 * One document of maps, lists and scalars; every scalar comes back as its text, so that numbers are read by
 * the strict parsers of common/units.h and never by a YAML library (`010` and `80GB ` would slip through).
 * Refused, each with FILE:LINE:COLUMN: more than YAML_MAX_BYTES, a second document, aliases, anchors, tags,
 * directives, merge keys, duplicate keys, nesting beyond YAML_MAX_DEPTH, NUL, invalid UTF-8, an empty file.
 * The trade-off: the whole tree is built before anything is looked at; the caps keep it small. (Names avoid
 * libyaml's own: yaml_free, yaml_malloc, yaml_parser_..., yaml_document_... .) */
#ifndef AGOQD_YAML_H
#define AGOQD_YAML_H

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "agoq/status.h"

#define YAML_MAX_BYTES (1024 * 1024)
#define YAML_MAX_DEPTH 8
#define YAML_MAX_NODES 65536
#define YAML_MAX_KEYS  1024 /* in one map */

typedef enum yaml_kind { YAML_SCALAR, YAML_MAP, YAML_LIST } yaml_kind;

/* Read-only for users; lives until yaml_unload. */
typedef struct yaml_node yaml_node;
struct yaml_node {
    yaml_kind kind;
    int line, column;         /* of the value, from 1 */
    const char *key;          /* in a map: the key; else NULL */
    int key_line, key_column; /* of the key */
    const char *text;         /* scalar: UTF-8 without NUL; else NULL */
    uint32_t n_children;
    yaml_node *child, *next; /* children of a map or list in the file's order; next sibling */
    const char *file;        /* for messages */
};

typedef struct yaml_doc yaml_doc;

/* E_IO: cannot be read (missing, a folder, not a regular file); E_LIMIT: too large, deep or many; E_FORMAT;
 * E_NOMEM. error says "FILE:LINE:COLUMN: what" ("FILE: what" where there is no place). */
AGOQ_MUST_USE agoq_status yaml_load(const char *path, yaml_doc **doc, char *error, size_t error_size);
/* The same from memory; name stands for the file in messages. */
AGOQ_MUST_USE agoq_status yaml_parse(const char *name, const void *text, size_t size, yaml_doc **doc,
                                     char *error, size_t error_size);
void yaml_unload(yaml_doc **doc); /* NULL-safe, sets NULL */

const yaml_node *yaml_root(const yaml_doc *doc);
/* Value of a key; NULL if map has none (or is not a map). */
const yaml_node *yaml_get(const yaml_node *map, const char *key);
/* E_FORMAT: node is not of this kind; `what` names it in the message ("budgets"). */
AGOQ_MUST_USE agoq_status yaml_expect(const yaml_node *node, yaml_kind kind, const char *what, char *error,
                                      size_t error_size);
/* E_FORMAT: a key that is not in keys (NULL-terminated), with the nearest valid one; or map is not a map. */
AGOQ_MUST_USE agoq_status yaml_known_keys(const yaml_node *map, const char *const keys[], char *error,
                                          size_t error_size);
/* Writes "FILE:LINE:COLUMN: ..." for a node and returns E_FORMAT. */
agoq_status yaml_fail(const yaml_node *node, char *error, size_t error_size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* What every message goes through: line 0 leaves the place out; control characters, which keys and values of
 * a file may hold, become '?', so that they never reach a terminal. */
void yaml_print_error(char *error, size_t error_size, const char *file, int line, int column,
                      const char *format, va_list args) __attribute__((format(printf, 6, 0)));
/* The entry of keys (NULL-terminated) with the least edit distance, if it is close enough to be a typing
 * error; else NULL. */
const char *yaml_nearest(const char *text, const char *const keys[]);

#endif
