/* What the parts of agoqctl share: exit codes, the parsed command line, and the one way to end with an error.
 * The tool is a row of verbs (verbs.c), each a function that asks the daemon once or in a loop and shows the
 * answer as text or as JSON; nothing else is kept between them. */
#ifndef AGOQCTL_CTL_H
#define AGOQCTL_CTL_H

#include <stddef.h>
#include <stdint.h>

/* Exit codes; fixed for ever, scripts depend on them. Without --wait, `budget set` ends with OK at *pending*.
 */
enum {
    CTL_OK = 0,
    CTL_FAILED = 1,
    CTL_USAGE = 2,
    CTL_UNREACHABLE = 3,
    CTL_PERMISSION = 4,
    CTL_INFEASIBLE = 5,
    CTL_TIMED_OUT = 6,
    CTL_VERSION_CONFLICT = 7,
    CTL_PARTIAL = 8 /* done, but the answer had no room for all ranks or budgets */
};
const char *ctl_code_name(int code); /* "infeasible"; never NULL */

#define CTL_JSON_VERSION   1
#define CTL_MAX_POSITIONAL 4
#define CTL_MAX_TEXT       2048

typedef struct ctl_verb ctl_verb;

typedef struct ctl_args {
    const ctl_verb *verb;
    const char *socket;  /* never NULL after args_parse */
    uint64_t timeout_ms; /* for one answer; with --wait and watch: for the whole */
    int has_timeout;
    int json, no_color, help, version, once, wait, dry_run;
    int64_t stage; /* -1: not given */
    uint64_t if_version;
    int has_if_version;
    const char *reason; /* NULL: not given */
    const char *positional[CTL_MAX_POSITIONAL];
    int n_positional;
    uint32_t given; /* bit per CTL_OPT_ */
    int rest_argc;  /* for verbs that read their own options: argv of the verb, its name first */
    char **rest_argv;
} ctl_args;

/* Options, by bit. */
enum {
    CTL_OPT_SOCKET = 1,
    CTL_OPT_TIMEOUT = 2,
    CTL_OPT_JSON = 4,
    CTL_OPT_NO_COLOR = 8,
    CTL_OPT_HELP = 16,
    CTL_OPT_ONCE = 32,
    CTL_OPT_WAIT = 64,
    CTL_OPT_DRY_RUN = 128,
    CTL_OPT_STAGE = 256,
    CTL_OPT_IF_VERSION = 512,
    CTL_OPT_REASON = 1024,
    CTL_OPT_VERSION = 2048, /* without a verb */
    CTL_OPT_ANYWHERE = CTL_OPT_SOCKET | CTL_OPT_TIMEOUT | CTL_OPT_JSON | CTL_OPT_NO_COLOR | CTL_OPT_HELP
};

struct ctl_verb {
    const char *group; /* "plan"; NULL: the verb is one word */
    const char *name;
    const char *usage; /* positional arguments */
    const char *help;  /* one line */
    const char *more;  /* further lines of `--help`; NULL: none */
    int min_positional, max_positional;
    uint32_t options; /* CTL_OPT_ beyond those that go anywhere */
    int raw;          /* 1: reads its own options */
    int (*run)(const ctl_args *args);
};

extern const ctl_verb ctl_verbs[]; /* ends with name NULL */

/* Says on stderr "agoqctl: TEXT", with --json also an error object on stdout; returns code. */
int ctl_fail(const ctl_args *args, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* 1: colours are wanted on stdout (a terminal, no NO_COLOR, no --no-color, TERM not dumb). */
int ctl_use_color(const ctl_args *args);

#endif
