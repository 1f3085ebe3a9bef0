/* The command line of agoqd. Options win over the file that --config names, in any order. */
#ifndef AGOQD_OPTIONS_H
#define AGOQD_OPTIONS_H

#include "agoqd/conf.h"

#define EXIT_USAGE          2
#define OPTIONS_EXIT_CONFIG 42 /* a restart cannot help: RestartPreventExitStatus in the unit */

typedef struct options {
    const char *config;
    int check, print, one_job;
} options;

/* -1: go on. Else the exit status; what had to be said was said. c holds the defaults before. */
int options_read(int argc, char **argv, options *o, conf *c);

#endif
