/* The settings of `simulate`: one table for flags, keys of files and the help text, so that they cannot
 * differ. */
#ifndef AGOQCTL_SIM_SETTINGS_H
#define AGOQCTL_SIM_SETTINGS_H

#include "agoqctl/sim_input.h"

typedef enum sim_kind {
    KIND_COUNT,
    KIND_BYTES,
    KIND_PERCENT,
    KIND_WORD,
    KIND_SWITCH,
    KIND_SCHEDULE,  /* a name, or a file with a list of operations */
    KIND_RECOMPUTE, /* none, full, a number of layers, or modules */
    KIND_STAGES,    /* 0=70GiB,3=60GiB; in a file a map */
    KIND_NUMBERS    /* 4,5,5,4; in a file a list */
} sim_kind;
typedef enum sim_place { PLACE_MODEL = 1, PLACE_CLUSTER = 2, PLACE_FLAG = 4, PLACE_JOB = 8 } sim_place;
#define PLACE_ANY (PLACE_MODEL | PLACE_CLUSTER | PLACE_FLAG | PLACE_JOB)

typedef struct sim_setting {
    const char *key; /* in a file; the flag is --key with '-' for '_' */
    sim_kind type;
    int places;
    size_t at; /* of its field in sim_input */
    const char *help;
    const char *words[8]; /* KIND_WORD */
    int values[8];
} sim_setting;

#define SIM_MAX_SETTINGS 64 /* a set of them fits a uint64_t */
extern const sim_setting sim_settings[];
extern const size_t sim_n_settings;

/* 0; -1: text is no value of this setting, and why says what is one, with the nearest word. */
int sim_setting_set(const sim_setting *s, const char *text, sim_input *in, char why[256]);
const sim_setting *sim_setting_find(const char *key, int places); /* NULL: none */
/* A key and its bit in a set of settings. */
static inline uint64_t sim_setting_bit(const sim_setting *s) {
    return 1ull << (s - sim_settings);
}
/* "--kv-heads" from "kv_heads"; what a value looks like ("N", "SIZE", "a|b"). */
void sim_setting_flag(const sim_setting *s, char text[40]);
void sim_setting_value(const sim_setting *s, char text[96]);

#endif
