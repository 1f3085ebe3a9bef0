/* Command line of agoqctl. Options may stand anywhere; which verb knows which option is in the table of
 * verbs, so that an option that would have no effect is an error and not ignored. */
#ifndef AGOQCTL_ARGS_H
#define AGOQCTL_ARGS_H

#include <stdio.h>

#include "agoqctl/ctl.h"

/* CTL_OK, or CTL_USAGE with a message in error. default_socket: used without --socket (not copied). With
 * args->help set the rest of the line has not been checked; args->verb is then NULL or the verb asked about.
 * Pointers go into argv. */
int args_parse(int argc, char **argv, const char *default_socket, ctl_args *args, char *error,
               size_t error_size);
/* "3.0.12", "floor" (0) or "current" (0): 0 and *id, else -1. */
int args_plan_id(const char *text, uint64_t *id);
/* Help for a verb, a group of verbs ("plan"), or all (both NULL). */
void args_help(const ctl_verb *verb, const char *group, FILE *out);

#endif
