/* What `simulate` is asked: options and small YAML files over one table of settings, so that a flag, a key
 * and the help text cannot differ. A flag, or a machine named on the line, wins over the job file, that over
 * files of models and machines, those over defaults. */
#ifndef AGOQCTL_SIM_INPUT_H
#define AGOQCTL_SIM_INPUT_H

#include <stddef.h>
#include <stdio.h>

#include "planner/model.h"

#define SIM_MAX_STAGES     1024
#define SIM_MAX_NUMBERS    4096
#define SIM_MAX_PATH       4096
#define SIM_MAX_LIST_BYTES (16 * 1024 * 1024)

enum { SIM_MAX_SEQ = 1, SIM_MAX_MBS, SIM_MAX_LAYERS };

typedef struct sim_stages {
    uint32_t n; /* one above the highest stage given */
    uint64_t bytes[SIM_MAX_STAGES];
    char given[SIM_MAX_STAGES];
} sim_stages;

typedef struct sim_numbers {
    uint32_t n;
    uint32_t value[SIM_MAX_NUMBERS];
} sim_numbers;

/* Not to be copied once read: the model points into it. */
typedef struct sim_input {
    planner_model model;
    uint32_t nodes, gpus_per_node; /* 0: no cluster given */
    int json, help, compare, trainer, caching;
    int max; /* SIM_MAX_*; 0: not asked */
    planner_objective objective;
    sim_stages budgets, extras;
    uint64_t stage_budgets[SIM_MAX_STAGES]; /* of each stage, where some differ */
    sim_numbers layout, observed;
    int has_ops;
    planner_ops ops;           /* has_ops: a list from a file */
    char folder[SIM_MAX_PATH]; /* while the job file is read: where it lies */
    char name[64];             /* of the model; "" if none */
    char gpu[64];              /* of the machine; "" if none */
    const char *out;           /* --out; NULL: none */
} sim_input;

/* 0, or an exit code of ctl.h with a message in error. argv[0] is the verb. Always followed by fini. */
int sim_input_read(int argc, char **argv, sim_input *in, char *error, size_t error_size);
void sim_input_fini(sim_input *in);
/* CTL_USAGE, with a sentence in error. */
int sim_fail(char *error, size_t error_size, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* The job file alone, from memory. */
int sim_input_parse(const char *file, const char *text, size_t size, sim_input *in, char *error,
                    size_t error_size);
void sim_input_help(const char *verb, FILE *out);
/* "1f1b"; "list" for one from a file. */
const char *sim_schedule_name(const sim_input *in);

#endif
