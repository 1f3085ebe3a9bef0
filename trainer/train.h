/* The training loop of one rank. Everything a rank has is in this struct; main.c builds it in order and takes
 * it down in the reverse order. */
#ifndef TRAINER_TRAIN_H
#define TRAINER_TRAIN_H

#include "trainer/checkpoint.h"
#include "trainer/data.h"
#include "trainer/optim.h"
#include "trainer/pipe.h"
#include "trainer/runlog.h"
#include "trainer/plans.h"

typedef struct train {
    const options *o;
    int rank, world, stage, replica;
    MPI_Comm stages, replicas; /* pipeline of this replica; replicas of this stage */
    alloc_stats mem;
    data text;
    model model;
    store store;
    grads grads;
    exchange exchange;
    optim optim;
    pipe_link pipe;
    agoq_session *session; /* NULL: baseline */
    plans_profile profile;
    schedule_op *ops;
    int n_ops;
    model_kept **kept; /* [chunk * microbatches + microbatch] */
    uint8_t *ids, *targets;
    int *live, *live_peak;
    const schedule_op *held; /* --hold-extra: backward is done, memory is not yet freed */
    runlog log;
    double last_loss;
} train;

/* Collective; message on failure. Returns AGOQ_OK or what failed. */
agoq_status train_init(train *t, const options *o, MPI_Comm world);
/* The session and the path of saved tensors; collective only in what agoq_session_attach_mpi adds (main.c).
 */
agoq_status train_attach(train *t, const char *plan_file, const char *record_file);
void train_fini(train *t);
/* Steps [first, last). On failure *what names the part. */
agoq_status train_step(train *t, int64_t step, const char **what);
/* Mean loss over the held-out tail; collective. */
agoq_status train_eval(train *t, double *loss);
agoq_status train_weights_hash(train *t, uint64_t *hash);

#endif
