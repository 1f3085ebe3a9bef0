/* Checks on a YAML tree, with messages that name the place and the nearest valid key. Apart from yaml.c so
 * that the reader itself knows nothing of what a file may say. */
#include "agoqd/yaml.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/words.h"

void yaml_print_error(char *error, size_t error_size, const char *file, int line, int column,
                      const char *format, va_list args) {
    if (!error || !error_size) return;
    int used = line > 0 ? snprintf(error, error_size, "%s:%d:%d: ", file, line, column)
                        : snprintf(error, error_size, "%s: ", file);
    if (used >= 0 && (size_t)used < error_size)
        vsnprintf(error + used, error_size - (size_t)used, format, args);
    for (char *c = error; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
}

agoq_status yaml_fail(const yaml_node *node, char *error, size_t error_size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(error, error_size, node->file, node->line, node->column, format, args);
    va_end(args);
    return AGOQ_E_FORMAT;
}

static agoq_status fail_key(const yaml_node *node, char *error, size_t error_size, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
static agoq_status fail_key(const yaml_node *node, char *error, size_t error_size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    yaml_print_error(error, error_size, node->file, node->key_line, node->key_column, format, args);
    va_end(args);
    return AGOQ_E_FORMAT;
}

agoq_status yaml_expect(const yaml_node *node, yaml_kind kind, const char *what, char *error,
                        size_t error_size) {
    static const char *const names[] = {"a single value", "a map (key: value)", "a list (- value)"};
    if (node->kind == kind) return AGOQ_OK;
    return yaml_fail(node, error, error_size, "%s must be %s, not %s", what, names[kind], names[node->kind]);
}

agoq_status yaml_known_keys(const yaml_node *map, const char *const keys[], char *error, size_t error_size) {
    agoq_status status = yaml_expect(map, YAML_MAP, map->key ? map->key : "this", error, error_size);
    if (status != AGOQ_OK) return status;
    for (const yaml_node *node = map->child; node; node = node->next) {
        size_t i = 0;
        while (keys[i] && strcmp(keys[i], node->key)) i++;
        if (keys[i]) continue;
        const char *near = yaml_nearest(node->key, keys);
        if (near)
            return fail_key(node, error, error_size, "unknown key '%.64s'; did you mean '%s'?", node->key,
                            near);
        char list[512] = "";
        size_t used = 0;
        for (i = 0; keys[i] && used < sizeof list - 1; i++) {
            int n = snprintf(list + used, sizeof list - used, "%s%s", i ? ", " : "", keys[i]);
            used += n > 0 ? (size_t)n : 0;
        }
        return fail_key(node, error, error_size, "unknown key '%.64s'; valid here: %s", node->key, list);
    }
    return AGOQ_OK;
}

const char *yaml_nearest(const char *text, const char *const keys[]) {
    return words_nearest(text, keys);
}
