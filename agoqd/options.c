/* See options.h. */
#include "agoqd/options.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void usage(FILE *out) {
    fputs("usage: agoqd [--config FILE] [--socket PATH] [--state-dir DIR] [--job[=NAME]] [--foreground]\n"
          "             [--check-config | --print-config | --version | --help]\n"
          "Plans activation and gradient memory for the training ranks on this node.\n"
          "  --config FILE     read FILE (YAML); without it every option has its default\n"
          "  --check-config    read the configuration, say what is wrong, exit\n"
          "  --print-config    print the configuration in effect, exit\n"
          "  --socket PATH     Unix socket for ranks and agoqctl\n"
          "  --state-dir DIR   where budgets and terms are kept\n"
          "  --job[=NAME]      serve one job only: NAME, or $AGOQ_JOB, or the first that connects\n"
          "  --foreground      changes nothing: agoqd always stays in the foreground and logs to stderr\n",
          out);
}

static int set_path(char *to, size_t size, const char *value, const char *option) {
    if (strlen(value) < size && value[0]) {
        snprintf(to, size, "%s", value);
        return 0;
    }
    fprintf(stderr, "agoqd: --%s: a path of 1 to %zu bytes is needed\n", option, size - 1);
    return EXIT_USAGE;
}

static int set_job(options *o, conf *c, const char *name) {
    if (!name) name = getenv("AGOQ_JOB");
    o->one_job = 1;
    if (name && strlen(name) < sizeof c->job) {
        snprintf(c->job, sizeof c->job, "%s", name);
        return 0;
    }
    if (name) fprintf(stderr, "agoqd: a job's name has at most 63 bytes\n");
    return name ? EXIT_USAGE : 0;
}

/* Options that override the file are applied after it: pass 0 finds the file, pass 1 the rest. -1: go on. */
static int parse(int argc, char **argv, int pass, options *o, conf *c) {
    static const struct option list[] = {
        {"config", required_argument, NULL, 'c'}, {"check-config", no_argument, NULL, 'C'},
        {"print-config", no_argument, NULL, 'P'}, {"foreground", no_argument, NULL, 'f'},
        {"socket", required_argument, NULL, 's'}, {"state-dir", required_argument, NULL, 'd'},
        {"job", optional_argument, NULL, 'j'},    {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},         {NULL, 0, NULL, 0}};
    optind = 1;
    opterr = pass == 0;
    int bad = 0;
    for (int option; !bad && (option = getopt_long(argc, argv, "c:fh", list, NULL)) != -1;) {
        switch (option) {
        case 'c':
            o->config = optarg;
            break;
        case 'C':
            o->check = 1;
            break;
        case 'P':
            o->print = 1;
            break;
        case 'f':
            break;
        case 's':
            bad = pass ? set_path(c->socket, sizeof c->socket, optarg, "socket") : 0;
            break;
        case 'd':
            bad = pass ? set_path(c->state_dir, sizeof c->state_dir, optarg, "state-dir") : 0;
            break;
        case 'j':
            bad = pass ? set_job(o, c, optarg) : 0;
            break;
        case 'V':
            puts("agoqd " AGOQ_VERSION);
            return EXIT_SUCCESS;
        case 'h':
            usage(stdout);
            return EXIT_SUCCESS;
        default:
            usage(stderr);
            return EXIT_USAGE;
        }
    }
    if (!bad && optind < argc) {
        fprintf(stderr, "agoqd: unexpected argument %s\n", argv[optind]);
        return EXIT_USAGE;
    }
    return bad ? bad : -1;
}

int options_read(int argc, char **argv, options *o, conf *c) {
    char error[1024];
    *o = (options){0};
    int code = parse(argc, argv, 0, o, c);
    if (code < 0 && o->config && conf_load(o->config, c, error, sizeof error) != AGOQ_OK) {
        fprintf(stderr, "agoqd: %s\n", error);
        code = OPTIONS_EXIT_CONFIG;
    }
    return code < 0 ? parse(argc, argv, 1, o, c) : code;
}
