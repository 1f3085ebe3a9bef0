/* The order of operations of a pipeline rank. Pure: lists only, so that a test can play all ranks against
 * each other. A schedule's live micro-batches follow from its order; nothing here counts them. */
#ifndef TRAINER_SCHEDULE_H
#define TRAINER_SCHEDULE_H

enum { SCHEDULE_FORWARD, SCHEDULE_BACKWARD };

typedef struct schedule_op {
    int what, microbatch, chunk;
} schedule_op;

typedef struct schedule {
    int kind; /* OPTIONS_GPIPE, OPTIONS_1F1B, OPTIONS_INTERLEAVED */
    int pp, microbatches, chunks;
} schedule;

/* Operations of a stage: 2 * microbatches * chunks of them are written. */
void schedule_list(const schedule *s, int stage, schedule_op *ops);
/* Plays all stages with synchronous sends from rings of `slots` per direction (a send into a full ring waits
 * for the receiver). Returns 1 if all finish; else 0: they wait for each other for ever. */
int schedule_completes(const schedule *s, int slots);
/* Fewest slots with which the schedule completes. */
int schedule_slots(const schedule *s);

#endif
