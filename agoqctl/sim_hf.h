/* Shape of a model from Hugging Face's config.json: the LLaMA family (llama, mistral, qwen2, qwen3, olmo,
 * olmo2) and OLMo's own older keys. Refused with a sentence: other model types, and whatever is missing. */
#ifndef AGOQCTL_SIM_HF_H
#define AGOQCTL_SIM_HF_H

#include <stddef.h>

#include "planner/model.h"

/* shape is complete (max_seq 0 if the file does not say); name: what the file calls itself, "" if nothing.
 * E_IO, E_FORMAT, E_LIMIT, E_NOMEM with "FILE:LINE: what" in error; *shape is then undefined. */
AGOQ_MUST_USE agoq_status sim_hf_load(const char *path, planner_shape *shape, char name[64], char *error,
                                      size_t error_size);
AGOQ_MUST_USE agoq_status sim_hf_parse(const char *file, const char *text, size_t size, planner_shape *shape,
                                       char name[64], char *error, size_t error_size);

#endif
