/* See yaml.h. libyaml delivers events; this file turns them into a small tree and refuses everything that a
 * configuration has no use for. libyaml's own depth limit (1000) is never reached: the builder stops first.
 */
#include "agoqd/yaml.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <yaml.h>

#include "common/mem.h"

struct yaml_doc {
    char *file;
    yaml_node *root;
    uint32_t n_nodes;
};

typedef struct builder {
    yaml_parser_t parser;
    yaml_doc *doc;
    const char *text; /* the whole file, to find the line of a bad byte */
    size_t size;
    char *error;
    size_t error_size;
} builder;

static agoq_status fail_at(builder *b, agoq_status status, int line, int column, const char *format, ...)
    __attribute__((format(printf, 5, 6)));
static agoq_status fail_at(builder *b, agoq_status status, int line, int column, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(b->error, b->error_size, b->doc->file, line, column, format, args);
    va_end(args);
    return status;
}

static agoq_status fail_mark(builder *b, const yaml_event_t *event, const char *what) {
    return fail_at(b, AGOQ_E_FORMAT, (int)event->start_mark.line + 1, (int)event->start_mark.column + 1, "%s",
                   what);
}

static agoq_status no_memory(builder *b) {
    return fail_at(b, AGOQ_E_NOMEM, 0, 0, "out of memory");
}

/* libyaml gives a byte offset, not a place, for bytes that are not UTF-8 or not allowed in YAML. */
static void place_of_offset(const builder *b, size_t offset, int *line, int *column) {
    *line = *column = 1;
    for (size_t i = 0; i < offset && i < b->size; i++) {
        if (b->text[i] == '\n') {
            *line += 1;
            *column = 1;
        } else {
            *column += 1;
        }
    }
}

static agoq_status parser_failed(builder *b) {
    const yaml_parser_t *p = &b->parser;
    int line = (int)p->problem_mark.line + 1, column = (int)p->problem_mark.column + 1;
    if (p->error == YAML_MEMORY_ERROR) return no_memory(b);
    if (p->error == YAML_READER_ERROR) {
        place_of_offset(b, p->problem_offset, &line, &column);
        return fail_at(b, AGOQ_E_FORMAT, line, column, "%s (byte value 0x%02x)", p->problem,
                       (unsigned)p->problem_value);
    }
    return fail_at(b, AGOQ_E_FORMAT, line, column, "%s%s%s", p->problem ? p->problem : "malformed YAML",
                   p->context ? ", " : "", p->context ? p->context : "");
}

static agoq_status next_event(builder *b, yaml_event_t *event) {
    memset(event, 0, sizeof *event); /* deleting it is then harmless whatever happened */
    return yaml_parser_parse(&b->parser, event) ? AGOQ_OK : parser_failed(b);
}

static void free_tree(yaml_node *node) {
    while (node) {
        yaml_node *next = node->next;
        free_tree(node->child);
        mem_free((char *)node->key);
        mem_free((char *)node->text);
        mem_free(node);
        node = next;
    }
}

static agoq_status copy_text(builder *b, const yaml_event_t *event, const char **text) {
    if (strlen((const char *)event->data.scalar.value) != event->data.scalar.length)
        return fail_mark(b, event, "a NUL character is not allowed in a value");
    *text = mem_strdup((const char *)event->data.scalar.value);
    return *text ? AGOQ_OK : no_memory(b);
}

/* Anchors, tags and unquoted nothing: what an event may not carry. */
static agoq_status check_plain(builder *b, const yaml_event_t *event) {
    const yaml_char_t *anchor = NULL, *tag = NULL;
    if (event->type == YAML_ALIAS_EVENT) return fail_mark(b, event, "aliases (*name) are not allowed");
    if (event->type == YAML_SCALAR_EVENT) {
        static const char *const nothing[] = {"", "~", "null", "Null", "NULL"};
        anchor = event->data.scalar.anchor;
        tag = event->data.scalar.tag;
        for (size_t i = 0; i < sizeof nothing / sizeof *nothing && !anchor && !tag; i++) {
            if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
                !strcmp((const char *)event->data.scalar.value, nothing[i]))
                return fail_mark(b, event, "no value here (write \"\" for an empty text)");
        }
    } else if (event->type == YAML_SEQUENCE_START_EVENT) {
        anchor = event->data.sequence_start.anchor;
        tag = event->data.sequence_start.tag;
    } else if (event->type == YAML_MAPPING_START_EVENT) {
        anchor = event->data.mapping_start.anchor;
        tag = event->data.mapping_start.tag;
    }
    if (anchor) return fail_mark(b, event, "anchors (&name) are not allowed");
    return tag ? fail_mark(b, event, "tags (!name) are not allowed") : AGOQ_OK;
}

static agoq_status new_node(builder *b, const yaml_event_t *event, int depth, yaml_node **out) {
    int line = (int)event->start_mark.line + 1, column = (int)event->start_mark.column + 1;
    agoq_status status = check_plain(b, event);
    if (status != AGOQ_OK) return status;
    if (depth > YAML_MAX_DEPTH)
        return fail_at(b, AGOQ_E_LIMIT, line, column, "nested more than %d deep", YAML_MAX_DEPTH);
    if (++b->doc->n_nodes > YAML_MAX_NODES)
        return fail_at(b, AGOQ_E_LIMIT, line, column, "more than %d values", YAML_MAX_NODES);
    yaml_node *node = mem_zalloc(1, sizeof *node);
    if (!node) return no_memory(b);
    node->kind = event->type == YAML_MAPPING_START_EVENT    ? YAML_MAP
                 : event->type == YAML_SEQUENCE_START_EVENT ? YAML_LIST
                                                            : YAML_SCALAR;
    node->line = line;
    node->column = column;
    node->file = b->doc->file;
    *out = node;
    return node->kind == YAML_SCALAR ? copy_text(b, event, &node->text) : AGOQ_OK;
}

/* Reads the key of the next entry into *key and its value's event into *event. *end: the map is over. */
static agoq_status read_key(builder *b, const yaml_node *map, yaml_event_t *event, yaml_node *key, int *end) {
    agoq_status status = next_event(b, event);
    if (status != AGOQ_OK) return status;
    *end = event->type == YAML_MAPPING_END_EVENT;
    if (*end) return AGOQ_OK;
    if (event->type != YAML_SCALAR_EVENT && event->type != YAML_ALIAS_EVENT)
        return fail_mark(b, event, "a key must be a plain word");
    status = check_plain(b, event);
    if (status != AGOQ_OK) return status;
    const char *text = (const char *)event->data.scalar.value;
    if (!strcmp(text, "<<")) return fail_mark(b, event, "merge keys (<<) are not allowed");
    int line = (int)event->start_mark.line + 1, column = (int)event->start_mark.column + 1;
    const yaml_node *before = yaml_get(map, text);
    if (before)
        return fail_at(b, AGOQ_E_FORMAT, line, column, "key '%.64s' is given twice (first in line %d)", text,
                       before->key_line);
    if (map->n_children >= YAML_MAX_KEYS)
        return fail_at(b, AGOQ_E_LIMIT, line, column, "more than %d keys in one map", YAML_MAX_KEYS);
    status = copy_text(b, event, &key->key);
    key->key_line = line;
    key->key_column = column;
    yaml_event_delete(event);
    return status == AGOQ_OK ? next_event(b, event) : status;
}

/* Builds the node that `event` starts (and deletes the event). On failure *out is what was built so far. */
static agoq_status build(builder *b, yaml_event_t *event, int depth, yaml_node **out) {
    agoq_status status = new_node(b, event, depth, out);
    yaml_event_delete(event);
    if (status != AGOQ_OK || (*out)->kind == YAML_SCALAR) return status;
    yaml_node *parent = *out, **tail = &parent->child;
    for (;;) {
        yaml_node key = {0};
        int end = 0;
        if (parent->kind == YAML_MAP) {
            status = read_key(b, parent, event, &key, &end);
        } else {
            status = next_event(b, event);
            end = event->type == YAML_SEQUENCE_END_EVENT;
        }
        if (status != AGOQ_OK || end) {
            yaml_event_delete(event);
            mem_free((char *)key.key);
            return status;
        }
        status = build(b, event, depth + 1, tail);
        if (!*tail) {
            mem_free((char *)key.key);
            return status;
        }
        (*tail)->key = key.key;
        (*tail)->key_line = key.key_line;
        (*tail)->key_column = key.key_column;
        parent->n_children++;
        if (status != AGOQ_OK) return status;
        tail = &(*tail)->next;
    }
}

static agoq_status expect_event(builder *b, yaml_event_type_t type, const char *what) {
    yaml_event_t event;
    agoq_status status = next_event(b, &event);
    if (status == AGOQ_OK && event.type != type) status = fail_mark(b, &event, what);
    yaml_event_delete(&event);
    return status;
}

static agoq_status read_document(builder *b) {
    yaml_event_t event;
    agoq_status status = expect_event(b, YAML_STREAM_START_EVENT, "malformed YAML");
    if (status != AGOQ_OK) return status;
    status = next_event(b, &event);
    if (status == AGOQ_OK) {
        if (event.type == YAML_STREAM_END_EVENT)
            status = fail_at(b, AGOQ_E_FORMAT, 1, 1, "the file is empty");
        else if (event.data.document_start.version_directive ||
                 event.data.document_start.tag_directives.start !=
                     event.data.document_start.tag_directives.end)
            status = fail_mark(b, &event, "directives (%YAML, %TAG) are not allowed");
    }
    yaml_event_delete(&event);
    if (status != AGOQ_OK) return status;
    status = next_event(b, &event);
    if (status == AGOQ_OK) status = build(b, &event, 1, &b->doc->root);
    if (status != AGOQ_OK) return status;
    status = expect_event(b, YAML_DOCUMENT_END_EVENT, "malformed YAML");
    if (status != AGOQ_OK) return status;
    return expect_event(b, YAML_STREAM_END_EVENT, "a second document (---) is not allowed");
}

agoq_status yaml_parse(const char *name, const void *text, size_t size, yaml_doc **doc, char *error,
                       size_t error_size) {
    builder b = {.text = text, .size = size, .error = error, .error_size = error_size};
    yaml_doc blank = {.file = (char *)name};
    b.doc = &blank;
    if (size > YAML_MAX_BYTES)
        return fail_at(&b, AGOQ_E_LIMIT, 0, 0, "%zu bytes, more than the %d allowed", size, YAML_MAX_BYTES);
    yaml_doc *fresh = mem_zalloc(1, sizeof *fresh);
    if (fresh) fresh->file = mem_strdup(name);
    if (!fresh || !fresh->file || !yaml_parser_initialize(&b.parser)) {
        yaml_unload(&fresh);
        return no_memory(&b);
    }
    b.doc = fresh;
    yaml_parser_set_encoding(&b.parser, YAML_UTF8_ENCODING); /* else a BOM could switch to UTF-16 */
    yaml_parser_set_input_string(&b.parser, text, size);
    agoq_status status = read_document(&b);
    yaml_parser_delete(&b.parser);
    if (status != AGOQ_OK) {
        yaml_unload(&fresh);
        return status;
    }
    *doc = fresh;
    return AGOQ_OK;
}

static agoq_status read_file(builder *b, int fd, char **text, size_t *size) {
    struct stat st;
    if (fstat(fd, &st)) return fail_at(b, AGOQ_E_IO, 0, 0, "%s", strerror(errno));
    if (S_ISDIR(st.st_mode)) return fail_at(b, AGOQ_E_IO, 0, 0, "is a folder, not a file");
    if (!S_ISREG(st.st_mode)) return fail_at(b, AGOQ_E_IO, 0, 0, "is not a regular file");
    if (st.st_size > YAML_MAX_BYTES)
        return fail_at(b, AGOQ_E_LIMIT, 0, 0, "%lld bytes, more than the %d allowed", (long long)st.st_size,
                       YAML_MAX_BYTES);
    size_t capacity = (size_t)st.st_size;
    *text = mem_alloc(capacity);
    if (!*text) return no_memory(b);
    for (*size = 0; *size < capacity;) {
        ssize_t got = read(fd, *text + *size, capacity - *size);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return fail_at(b, AGOQ_E_IO, 0, 0, "%s", strerror(errno));
        if (got == 0) break;
        *size += (size_t)got;
    }
    return AGOQ_OK;
}

agoq_status yaml_load(const char *path, yaml_doc **doc, char *error, size_t error_size) {
    yaml_doc blank = {.file = (char *)path};
    builder b = {.doc = &blank, .error = error, .error_size = error_size};
    int fd =
        open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* O_NONBLOCK: a pipe without a writer must not hang */
    if (fd < 0) return fail_at(&b, AGOQ_E_IO, 0, 0, "%s", strerror(errno));
    char *text = NULL;
    size_t size = 0;
    agoq_status status = read_file(&b, fd, &text, &size);
    close(fd);
    if (status == AGOQ_OK) status = yaml_parse(path, text, size, doc, error, error_size);
    mem_free(text);
    return status;
}

void yaml_unload(yaml_doc **doc) {
    if (!doc || !*doc) return;
    free_tree((*doc)->root);
    mem_free((*doc)->file);
    mem_free(*doc);
    *doc = NULL;
}

const yaml_node *yaml_root(const yaml_doc *doc) {
    return doc->root;
}

const yaml_node *yaml_get(const yaml_node *map, const char *key) {
    if (!map || map->kind != YAML_MAP) return NULL;
    for (const yaml_node *node = map->child; node; node = node->next) {
        if (node->key && !strcmp(node->key, key)) return node;
    }
    return NULL;
}
