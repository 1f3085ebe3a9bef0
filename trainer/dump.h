/* --dump-activations: what agoq packs, as it is before it is packed, written to files during the first
 * micro-batch of one step, to a folder that holds no others. One file per tensor,
 * DIR/ROLE.LAYER.SERIAL.ROWSxCOLS.f32, little-endian floats row by row; bench/accuracy.c reads them. The
 * trade-off: the values are those of the trainer's fp32 buffers, so a file is twice or eight times as large
 * as what training keeps. */
#ifndef TRAINER_DUMP_H
#define TRAINER_DUMP_H

#include <stddef.h>

#include "agoq/status.h"
#include "trainer/ops.h"

typedef struct dump {
    const char *dir; /* NULL: off */
    int serial;
} dump;

/* 0; -1: there are dumps in the folder, of which files of this run could not be told apart. */
int dump_check_folder(const char *path, char *why, size_t size);
/* Does nothing if d is NULL or off. E_IO. */
agoq_status dump_tensor(dump *d, int layer, int role, ops_mat x);

#endif
