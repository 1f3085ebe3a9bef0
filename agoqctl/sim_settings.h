/* The settings of `simulate`: one table for flags, keys of files and the help text, so that they cannot
 * differ. */
#ifndef AGOQCTL_SIM_SETTINGS_H
#define AGOQCTL_SIM_SETTINGS_H

#include "agoqctl/sim_input.h"

typedef enum sim_kind { KIND_COUNT, KIND_BYTES, KIND_PERCENT, KIND_WORD, KIND_SWITCH } sim_kind;
typedef enum sim_place { PLACE_MODEL = 1, PLACE_CLUSTER = 2, PLACE_FLAG = 4 } sim_place;

typedef struct sim_setting {
    const char *key; /* in a file; the flag is --key with '-' for '_' */
    sim_kind type;
    int places;
    size_t at;            /* of its field in sim_input */
    const char *words[4]; /* KIND_WORD */
    int values[4];
    const char *help;
} sim_setting;

#define SIM_MAX_SETTINGS 64 /* a set of them fits a uint64_t */
extern const sim_setting sim_settings[];
extern const size_t sim_n_settings;

/* 0; -1: text is no value of this setting. */
int sim_setting_set(const sim_setting *s, const char *text, sim_input *in);
void sim_setting_describe(const sim_setting *s, char text[64]);   /* what its values are */
const sim_setting *sim_setting_find(const char *key, int places); /* NULL: none */

#endif
