/* What a run leaves behind: LOGDIR/rank-R.jsonl, one JSON object per line, and rank 0's progress line. A loss
 * that is not a number is written as null (JSON has no NaN). Losses have 17 digits, so that equal text means
 * equal bits. */
#ifndef TRAINER_RUNLOG_H
#define TRAINER_RUNLOG_H

#include <stdio.h>

#include "trainer/model.h"

typedef struct runlog {
    FILE *file; /* NULL: no log */
    int rank, progress;
    int failed;         /* a line is missing: the disk is full */
    uint64_t plan_hash; /* last written with its widths */
    int had_plan;
} runlog;

typedef struct runlog_step {
    int64_t step, wall_ms;
    int n_steps;
    double loss, tokens_per_s;
    uint64_t plan_id, plan_hash, predicted_bytes;
    int guard;
    size_t peak_bytes, saved_peak_bytes, saved16_peak_bytes;
    size_t weights_bytes, grad_bytes, optimizer_bytes, workspace_bytes;
    const int *live; /* [n_chunks] at the peak of their sum */
    int n_chunks;
} runlog_step;

/* 0, or -1 with errno set. resume: lines are appended. */
int runlog_open(runlog *l, const char *dir, int rank, int resume);
/* -1: the log lacks lines; stderr said so when the first was lost. */
int runlog_close(runlog *l);
void runlog_first(runlog *l, const model *m, const options *o, int replica);
/* session NULL: no plan. */
void runlog_write(runlog *l, const runlog_step *s, const model *m, agoq_session *session);
/* Of mem: what its counters say of gradients that are not FP8. */
void runlog_last(runlog *l, uint64_t weights_hash, const alloc_stats *mem, size_t largest_matrix, double loss,
                 double eval);
void runlog_progress(const runlog_step *s);

#endif
