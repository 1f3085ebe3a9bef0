/* See args.h. Own parser and not getopt: options of the tool are checked against the verb, numbers are
 * strict, and an unknown word gets its nearest neighbour. */
#include "agoqctl/args.h"

#include <stdarg.h>
#include <string.h>

#include "agoqd/yaml.h"
#include "common/units.h"
#include "planner/plan.h"

#define MAX_TIMEOUT_MS (24 * 3600 * 1000)

typedef struct option_row {
    const char *name;
    const char *value; /* NULL: a switch */
    uint32_t bit;
    const char *help;
} option_row;

static const option_row option_rows[] = {
    {"--socket", "PATH", CTL_OPT_SOCKET,
     "daemon's socket (default: $AGOQ_SOCKET, else /run/agoq/agoqd.sock)"},
    {"--timeout", "TIME", CTL_OPT_TIMEOUT, "give up after this long: 500ms, 60s, or seconds (default: 3s)"},
    {"--json", NULL, CTL_OPT_JSON, "JSON on stdout, also for errors"},
    {"--no-color", NULL, CTL_OPT_NO_COLOR, "no colours (also: NO_COLOR in the environment)"},
    {"--help", NULL, CTL_OPT_HELP, "this text"},
    {"--version", NULL, CTL_OPT_VERSION, "the tool's version (`agoqctl version`: the daemon's too)"},
    {"--once", NULL, CTL_OPT_ONCE, "show once and end"},
    {"--wait", NULL, CTL_OPT_WAIT, "end when the budget is effective (default --timeout: 60s; exit 6)"},
    {"--dry-run", NULL, CTL_OPT_DRY_RUN, "say what would happen and change nothing"},
    {"--stage", "N", CTL_OPT_STAGE, "pipeline stage"},
    {"--if-version", "N", CTL_OPT_IF_VERSION, "only if the budget still has this version (exit 7)"},
    {"--reason", "TEXT", CTL_OPT_REASON, "kept in the history"},
    {NULL, NULL, 0, NULL},
};

static int bad(char *error, size_t error_size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static int bad(char *error, size_t error_size, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(error, error_size, format, args);
    va_end(args);
    for (char *c = error; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    return CTL_USAGE;
}

static int set_option(ctl_args *args, const option_row *row, const char *value, char *error,
                      size_t error_size) {
    uint64_t number;
    if (args->given & row->bit) return bad(error, error_size, "%s is given twice", row->name);
    args->given |= row->bit;
    switch (row->bit) {
    case CTL_OPT_SOCKET:
        if (!*value) return bad(error, error_size, "--socket: the path is empty");
        args->socket = value;
        return CTL_OK;
    case CTL_OPT_TIMEOUT:
        /* A plain number counts seconds, as timeout(1) and its like take it. */
        if (!units_parse_uint(value, &number))
            args->timeout_ms = number <= MAX_TIMEOUT_MS / 1000 ? number * 1000 : 0;
        else if (units_parse_ms(value, &args->timeout_ms))
            args->timeout_ms = 0;
        if (!args->timeout_ms || args->timeout_ms > MAX_TIMEOUT_MS)
            return bad(error, error_size, "--timeout: '%.40s' is not a time such as 500ms, 60s or 60", value);
        args->has_timeout = 1;
        return CTL_OK;
    case CTL_OPT_STAGE:
        if (units_parse_uint(value, &number) || number >= PLAN_MAX_STAGES)
            return bad(error, error_size, "--stage: '%.40s' is not a stage (0 to %d)", value,
                       PLAN_MAX_STAGES - 1);
        args->stage = (int64_t)number;
        return CTL_OK;
    case CTL_OPT_IF_VERSION:
        if (units_parse_uint(value, &args->if_version))
            return bad(error, error_size, "--if-version: '%.40s' is not a version (a whole number)", value);
        args->has_if_version = 1;
        return CTL_OK;
    case CTL_OPT_REASON:
        args->reason = value;
        return CTL_OK;
    case CTL_OPT_JSON:
        args->json = 1;
        return CTL_OK;
    case CTL_OPT_NO_COLOR:
        args->no_color = 1;
        return CTL_OK;
    case CTL_OPT_HELP:
        args->help = 1;
        return CTL_OK;
    case CTL_OPT_VERSION:
        args->version = 1;
        return CTL_OK;
    case CTL_OPT_ONCE:
        args->once = 1;
        return CTL_OK;
    case CTL_OPT_WAIT:
        args->wait = 1;
        return CTL_OK;
    default:
        args->dry_run = 1;
        return CTL_OK;
    }
}

/* `--name`, `--name VALUE` and `--name=VALUE`. *i is moved past what was used. */
static int read_option(int argc, char **argv, int *i, ctl_args *args, char *error, size_t error_size) {
    const char *text = argv[*i];
    const char *equals = strchr(text, '=');
    size_t length = equals ? (size_t)(equals - text) : strlen(text);
    if (!strcmp(text, "-h")) {
        args->help = 1;
        return CTL_OK;
    }
    for (const option_row *row = option_rows; row->name; row++) {
        if (strlen(row->name) != length || strncmp(row->name, text, length)) continue;
        if (!row->value)
            return equals ? bad(error, error_size, "%s takes no value", row->name)
                          : set_option(args, row, NULL, error, error_size);
        if (equals) return set_option(args, row, equals + 1, error, error_size);
        if (*i + 1 >= argc) return bad(error, error_size, "%s needs a value (%s)", row->name, row->value);
        return set_option(args, row, argv[++*i], error, error_size);
    }
    const char *names[sizeof option_rows / sizeof *option_rows];
    size_t n = 0;
    for (const option_row *row = option_rows; row->name; row++) names[n++] = row->name;
    names[n] = NULL;
    const char *near = yaml_nearest(text, names);
    return bad(error, error_size, "unknown option '%.64s'%s%s%s", text, near ? "; did you mean '" : "",
               near ? near : "", near ? "'?" : "");
}

static int is_group(const char *word) {
    for (const ctl_verb *verb = ctl_verbs; verb->name; verb++) {
        if (verb->group && !strcmp(verb->group, word)) return 1;
    }
    return 0;
}

static const ctl_verb *find_verb(const char *group, const char *name) {
    for (const ctl_verb *verb = ctl_verbs; verb->name; verb++) {
        if (!verb->group == !group && (!group || !strcmp(verb->group, group)) && !strcmp(verb->name, name))
            return verb;
    }
    return NULL;
}

static int unknown_verb(const char *group, const char *word, char *error, size_t error_size) {
    const char *names[64];
    size_t n = 0;
    for (const ctl_verb *verb = ctl_verbs; verb->name && n < 63; verb++) {
        if (group && verb->group && !strcmp(group, verb->group)) names[n++] = verb->name;
        if (!group) names[n++] = verb->group ? verb->group : verb->name;
    }
    names[n] = NULL;
    const char *near = yaml_nearest(word, names);
    return bad(error, error_size, "unknown command '%s%s%.64s'%s%s%s", group ? group : "", group ? " " : "",
               word, near ? "; did you mean '" : "; try: agoqctl --help", near ? near : "", near ? "'?" : "");
}

/* Positional words after the verb; the options given so far must be the verb's own. */
static int check_verb(const ctl_args *args, char *error, size_t error_size) {
    const ctl_verb *verb = args->verb;
    const char *group = verb->group ? verb->group : "", *space = verb->group ? " " : "";
    for (const option_row *row = option_rows; row->name; row++) {
        if (args->given & row->bit & ~(verb->options | CTL_OPT_ANYWHERE))
            return bad(error, error_size, "%s does nothing with '%s%s%s'", row->name, group, space,
                       verb->name);
    }
    if (args->n_positional < verb->min_positional || args->n_positional > verb->max_positional)
        return bad(error, error_size, "usage: agoqctl %s%s%s %s", group, space, verb->name, verb->usage);
    return CTL_OK;
}

int args_parse(int argc, char **argv, const char *default_socket, ctl_args *args, char *error,
               size_t error_size) {
    memset(args, 0, sizeof *args);
    args->socket = default_socket;
    args->timeout_ms = 3000;
    args->stage = -1;
    const char *group = NULL;
    int only_words = 0;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        if (args->verb && args->verb->raw) {
            if (!strcmp(word, "--json")) args->json = 1;
            continue;
        }
        if (!only_words && !strcmp(word, "--")) {
            only_words = 1;
        } else if (!only_words && word[0] == '-' && word[1]) {
            int code = read_option(argc, argv, &i, args, error, error_size);
            if (code != CTL_OK) return code;
        } else if (args->verb) {
            if (args->n_positional == CTL_MAX_POSITIONAL)
                return bad(error, error_size, "too many words: '%.64s'", word);
            args->positional[args->n_positional++] = word;
        } else if (!group && is_group(word)) {
            group = word;
        } else {
            args->verb = find_verb(group, word);
            if (!args->verb) return unknown_verb(group, word, error, error_size);
            args->rest_argc = argc - i;
            args->rest_argv = argv + i;
        }
    }
    if (args->help) {
        if (!args->verb) args->positional[0] = group;
        return CTL_OK;
    }
    if (args->version && !args->verb && !group) return CTL_OK;
    if (!args->verb)
        return group ? bad(error, error_size, "'%s' needs a command; try: agoqctl %s --help", group, group)
                     : bad(error, error_size, "no command; try: agoqctl --help");
    return args->verb->raw ? CTL_OK : check_verb(args, error, error_size);
}

int args_plan_id(const char *text, uint64_t *id) {
    static const uint64_t most[] = {0xffffff, 0xffff, 0xffffff};
    uint64_t part[3];
    if (!strcmp(text, "current")) {
        *id = 0;
        return 0;
    }
    for (int i = 0; i < 3; i++) {
        char number[16];
        size_t n = strcspn(text, ".");
        if (n >= sizeof number || (i < 2) != (text[n] == '.')) return -1;
        memcpy(number, text, n);
        number[n] = '\0';
        if (units_parse_uint(number, &part[i]) || part[i] > most[i]) return -1;
        text += n + (i < 2);
    }
    *id = plan_id_make((uint32_t)part[0], (uint32_t)part[1], (uint32_t)part[2]);
    return *id ? 0 : -1;
}

static void print_options(uint32_t bits, FILE *out) {
    for (const option_row *row = option_rows; row->name; row++) {
        char left[40];
        if (!(row->bit & bits)) continue;
        snprintf(left, sizeof left, "%s%s%s", row->name, row->value ? " " : "", row->value ? row->value : "");
        fprintf(out, "  %-20s %s\n", left, row->help);
    }
}

void args_help(const ctl_verb *verb, const char *group, FILE *out) {
    if (verb) {
        fprintf(out, "usage: agoqctl %s%s%s %s\n\n%s.\n", verb->group ? verb->group : "",
                verb->group ? " " : "", verb->name, verb->usage, verb->help);
        if (verb->more) fprintf(out, "%s\n", verb->more);
        fputs("\noptions:\n", out);
        print_options(verb->options | CTL_OPT_ANYWHERE, out);
        return;
    }
    fprintf(out, "usage: agoqctl %s%s[options]\n\n", group ? group : "COMMAND", group ? " COMMAND " : " ");
    if (!group)
        fputs("Shows and steers agoqd, which plans the activation memory of a training job.\n\n", out);
    fputs("commands:\n", out);
    for (const ctl_verb *row = ctl_verbs; row->name; row++) {
        char left[64];
        if (group && (!row->group || strcmp(row->group, group))) continue;
        snprintf(left, sizeof left, "%s%s%s %s", row->group ? row->group : "", row->group ? " " : "",
                 row->name, row->usage);
        fprintf(out, "  %-40s %s\n", left, row->help);
    }
    fputs("\noptions of every command (`agoqctl COMMAND --help` lists the others):\n", out);
    print_options(CTL_OPT_ANYWHERE | (group ? 0 : CTL_OPT_VERSION), out);
    if (!group)
        fputs("\nexit codes: 0 ok, 1 failed, 2 usage, 3 daemon unreachable, 4 permission, 5 infeasible, 6 "
              "timed out,\n"
              "            7 version conflict, 8 partial (more ranks or budgets than one answer holds)\n",
              out);
}
