/* Checkpoints that resume bit for bit. DIR/step-N/rank-R.bin holds one rank's weights and optimizer state,
 * DIR/step-N/plan the plans up to then (rank 0's record), DIR/latest names N. Every file is written beside
 * its place, synced and renamed, its folder is synced, and `latest` moves only after all ranks are done: a
 * kill at any moment leaves the previous checkpoint whole. The trade-off: one file per rank, so the same pp x
 * dp and shape are needed to resume (checked, not converted). */
#ifndef TRAINER_CHECKPOINT_H
#define TRAINER_CHECKPOINT_H

#include "trainer/model.h"
#include "trainer/optim.h"

typedef struct checkpoint {
    const options *o;
    const char *dir;
    int rank;
    const params *params;
    optim *optim;
} checkpoint;

/* Makes the folder if it is not there. 0, or -1 with errno. */
int checkpoint_folder(const char *dir);
/* This rank's file of a checkpoint after `step` steps. 0, or -1 with a message. */
int checkpoint_write(const checkpoint *c, int64_t step, const char *plan_record, char *error,
                     size_t error_bytes);
/* Rank 0, after all ranks have written. */
int checkpoint_publish(const checkpoint *c, int64_t step, char *error, size_t error_bytes);
/* Steps done by the newest checkpoint; -1 with a message. */
int64_t checkpoint_latest(const char *dir, char *error, size_t error_bytes);
int checkpoint_read(const checkpoint *c, int64_t step, char *error, size_t error_bytes);
/* Path of the plan record in a checkpoint; 0 if there is none. */
int checkpoint_plan(const char *dir, int64_t step, char *path, size_t path_bytes);

#endif
