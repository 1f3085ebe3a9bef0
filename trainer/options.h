/* What the user may ask of the trainer: one table in options.c makes the parser, the defaults, the ranges and
 * --help. The trade-off: options reach modules as plain nested structs, so that tests can fill them without a
 * command line. */
#ifndef TRAINER_OPTIONS_H
#define TRAINER_OPTIONS_H

#include <stdint.h>
#include <stdio.h>

enum { OPTIONS_VOCAB = 256 }; /* byte-level tokens */

typedef struct options_shape {
    int hidden, ffn, layers, heads, kv_heads, seq;
    int mb_size; /* sequences in a micro-batch */
} options_shape;

enum { OPTIONS_GPIPE, OPTIONS_1F1B, OPTIONS_INTERLEAVED };
enum { OPTIONS_GRADS_AUTO, OPTIONS_GRADS_FP32, OPTIONS_GRADS_FP8 };
enum { OPTIONS_ADAM_FP32, OPTIONS_ADAM_8BIT };
enum { OPTIONS_MODE_NORMAL, OPTIONS_MODE_IDENTITY, OPTIONS_MODE_POISON };
enum { OPTIONS_LR_COSINE, OPTIONS_LR_CONSTANT };

typedef struct options_parallel {
    int pp, dp, schedule, chunks, microbatches;
    int zero1;
    int hold_extra; /* stage that keeps one micro-batch more alive; -1: none */
} options_parallel;

typedef struct options_train {
    int steps, stop_at, warmup, lr_schedule, grads, adam, eval;
    int64_t seed;
    double lr, weight_decay, clip;
    int64_t memory_limit;
} options_train;

typedef struct options_store {
    int baseline, fp32, mode, qkv_bits;
    int format4; /* AGOQ_FORMAT_* that activations of 4 bits take */
    const char *poison_roles, *fixed_bits, *plan_file, *record_plan, *socket, *job;
} options_store;

typedef struct options_files {
    const char *data, *log_dir, *checkpoint_dir, *dump_activations;
    int checkpoint_every, resume, dump_step;
} options_files;

typedef struct options {
    options_shape shape;
    options_parallel par;
    options_train train;
    options_store store;
    options_files files;
} options;

enum { OPTIONS_OK, OPTIONS_HELP, OPTIONS_BAD };

/* Fills defaults, parses, checks everything that needs no file and no other rank. OPTIONS_BAD: error[] says
 * what and which option. Strings point into argv. */
int options_parse(int argc, char **argv, options *o, char *error, size_t error_bytes);
void options_help(FILE *to);
/* Learning rate of a step (0-based). */
double options_rate(const options_train *train, int64_t step);

#endif
