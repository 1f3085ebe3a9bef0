/* The one table of options: parsing, defaults, --print-config, the commented default in config/ and the
 * documentation of each option all read these rows. Adding an option: a field in conf.h, a row in conf.c,
 * then `agoqctl config show > config/agoqd.yaml`; tests/unit/test_conf.c fails until that is done. */
#ifndef AGOQD_CONF_TABLE_H
#define AGOQD_CONF_TABLE_H

#include <stddef.h>
#include <stdint.h>

#include "agoqd/conf.h"

typedef enum conf_kind {
    CONF_KIND_TEXT,    /* char[size], no control characters */
    CONF_KIND_MODE,    /* uint32_t: four octal digits */
    CONF_KIND_COUNT,   /* uint32_t in min..max */
    CONF_KIND_MS,      /* uint32_t: milliseconds in min..max, with a unit */
    CONF_KIND_PERCENT, /* uint32_t: ppm in min..max */
    CONF_KIND_BYTES,   /* uint64_t: `none` (0), or min..max with a unit */
    CONF_KIND_PLANNER, /* planner_mode */
    CONF_KIND_LEVEL,   /* log_level */
    CONF_KIND_BUDGETS, /* list of maps */
    CONF_KIND_WIDTHS   /* map of role to list of widths */
} conf_kind;

typedef struct conf_option {
    const char *name;
    conf_kind kind;
    size_t offset, size;      /* of the field */
    uint64_t min, max;        /* numbers: in the field's unit. TEXT: least length */
    const char *default_text; /* as in the file; NULL for lists and maps: empty */
    const char *help;         /* lines of a comment, without '#' */
    const char *example;      /* lists and maps: lines of a comment; NULL: none */
} conf_option;

extern const conf_option conf_options[];
extern const size_t conf_n_options;

/* Names in the order of planner_mode, log_level and agoq_role; NULL-terminated. */
extern const char *const conf_planner_names[];
extern const char *const conf_level_names[];
extern const char *const conf_role_names[];

/* Widths that an operator may allow for a role (set of AGOQ_MASK_*). */
uint32_t conf_role_limit(int role);

#endif
