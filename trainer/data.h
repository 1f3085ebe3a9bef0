/* Training text: bytes of one file, or of a folder's regular files in order of name. The last 5 % are held
 * out. Which bytes a micro-batch gets depends on (seed, step, micro-batch, replica, sequence) alone: no state
 * to save. */
#ifndef TRAINER_DATA_H
#define TRAINER_DATA_H

#include <stddef.h>
#include <stdint.h>

#define DATA_MAX_BYTES (1u << 30) /* every rank holds the whole text */

typedef struct data {
    uint8_t *bytes;
    size_t n, n_train;
} data;

/* 0, or -1 with a message. At least seq + 1 bytes are needed in each part that is used. */
int data_open(data *d, const char *path, int seq, int held_out_too, char *error, size_t error_bytes);
void data_close(data *d);
/* ids and targets: [n_seqs * seq]; targets are the bytes that follow. */
void data_microbatch(const data *d, uint64_t seed, int64_t step, int microbatch, int replica, int n_seqs,
                     int seq, uint8_t *ids, uint8_t *targets);
/* The same from the held-out tail. */
void data_held_out(const data *d, int64_t microbatch, int n_seqs, int seq, uint8_t *ids, uint8_t *targets);

#endif
