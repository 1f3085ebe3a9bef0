/* The files of `simulate`: shapes of models (YAML or a Hugging Face config.json), machines, and whole jobs.
 */
#ifndef AGOQCTL_SIM_FILE_H
#define AGOQCTL_SIM_FILE_H

#include "agoqctl/sim_settings.h"
#include "agoqd/yaml.h"

/* All return 0 or an exit code of ctl.h, with a message in error; *given gets the bits of what was said. */

/* A path, or a name of the project's own ("llama3-8b", "h100-80"). */
int sim_file_model(const char *name, sim_input *in, uint64_t *given, char *error, size_t error_size);
/* With gpu_only the machine's size does not count: only what one of its GPUs offers. */
int sim_file_cluster(const char *name, int gpu_only, sim_input *in, uint64_t *given, char *error,
                     size_t error_size);
/* The map of a job. Files that the command line names already are left out. */
typedef struct sim_files {
    const char *job, *model, *cluster, *gpu;
} sim_files;
int sim_file_job(const yaml_node *root, const sim_files *taken, sim_input *in, uint64_t *given, char *error,
                 size_t error_size);

#endif
