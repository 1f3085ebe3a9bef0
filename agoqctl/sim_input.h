/* What `simulate` is asked: options and small YAML files over one table of settings, so that a flag, a key
 * and the help text cannot differ. */
#ifndef AGOQCTL_SIM_INPUT_H
#define AGOQCTL_SIM_INPUT_H

#include <stddef.h>
#include <stdio.h>

#include "planner/model.h"

typedef struct sim_input {
    planner_model model;
    uint32_t nodes, gpus_per_node; /* 0: no cluster given */
    int json, help;
    char name[64]; /* of the model; "" if none */
} sim_input;

/* 0, or an exit code of ctl.h with a message in error. argv[0] is the verb. */
int sim_input_read(int argc, char **argv, sim_input *in, char *error, size_t error_size);
void sim_input_help(FILE *out);
const char *sim_schedule_name(agoq_schedule schedule);

#endif
