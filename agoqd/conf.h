/* Configuration of agoqd: one flat struct with every default in one place (conf_default), filled from a
 * strict YAML file (conf_load) and printed back as a file that loads to the same struct (conf_print). The
 * trade-off: fixed-size strings and one small heap array, so that no handler ever meets a missing value.
 * Strings are bounded and NUL-terminated. */
#ifndef AGOQD_CONF_H
#define AGOQD_CONF_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "agoq/format.h"
#include "common/log.h"
#include "planner/planner.h"

#define CONF_MAX_PATH    512
#define CONF_MAX_NAME    64
#define CONF_MAX_BUDGETS 1024

/* A configured budget: for devices that match a glob (fnmatch), or for every device of a pipeline stage. */
typedef struct conf_budget {
    char device[128]; /* glob; "": by stage */
    int32_t stage;    /* -1: by device */
    uint64_t bytes;
} conf_budget;

typedef struct conf {
    char socket[CONF_MAX_PATH];       /* path of the Unix socket */
    uint32_t socket_mode;             /* 0660 */
    char socket_group[CONF_MAX_NAME]; /* "": as created; members may also set budgets */
    char state_dir[CONF_MAX_PATH];
    uint32_t node_index;           /* position in the roster; goes into plan ids */
    char job[64];                  /* accept this job only; "": whichever job comes first */
    uint32_t margin_ppm;           /* of every budget, kept free */
    uint64_t default_budget_bytes; /* for devices that no entry of `budgets` matches; 0: no plan until one is
                                      set */
    conf_budget *budgets;          /* [n_budgets], later entries win */
    uint32_t n_budgets;
    planner_mode mode;
    uint32_t role_widths[AGOQ_N_ROLES]; /* set of AGOQ_MASK_* that the operator allows; 0: as the ranks say */
    uint32_t heartbeat_ms;              /* ranks report at least this often: 1000 */
    uint32_t silent_ms;                 /* no traffic for this long: silent: 3000 */
    uint32_t prepare_timeout_ms;        /* a plan cycle that takes longer is aborted: 10000 */
    uint32_t dwell_steps;               /* between unsolicited growths: 20 */
    uint32_t max_sessions;              /* ranks that the job may have: 4096 */
    log_level level;                    /* info */
    uint64_t from_file;                 /* bit i: row i of the table (conf_table.h) was set by a file */
} conf;

/* Every default; conf_fini is due afterwards (also after a failed conf_load). */
void conf_default(conf *c);
/* Reads `path` over the defaults that *c already holds. E_IO: cannot be read; E_FORMAT: error holds
 * "FILE:LINE:COLUMN: what is wrong", with the nearest valid key for an unknown one. */
AGOQ_MUST_USE agoq_status conf_load(const char *path, conf *c, char *error, size_t error_size);
/* The same from memory; name stands for the file in messages. A file that fails leaves *c as it was. */
AGOQ_MUST_USE agoq_status conf_parse(const char *name, const void *text, size_t size, conf *c, char *error,
                                     size_t error_size);
/* A file that loads to the same struct; each value with its origin (default, file) in a comment. */
void conf_print(const conf *c, FILE *out);
/* The commented default: config/agoqd.yaml. */
void conf_print_default(FILE *out);
void conf_fini(conf *c);

#endif
