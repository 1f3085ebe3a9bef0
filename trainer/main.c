/* agoq-train: a LLaMA trainer on agoq's public API. Rank = stage * dp + replica. Exit codes: 0 done, 1
 * failed, 2 wrong usage or data. Whatever can be wrong before the first step is agreed on by all ranks, said
 * once by rank 0 and ends the run in order; a failure inside a step aborts the job, since other ranks may be
 * waiting for this one. */
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "agoq/agoq_mpi.h"
#include "trainer/blas.h"
#include "trainer/train.h"

/* The worst code of all ranks; the lowest rank that has it says why. */
static int agree(int code, const char *why) {
    struct {
        int code, minus_rank;
    } mine = {code, 0}, worst;
    int rank;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    mine.minus_rank = rank;
    MPI_Allreduce(&mine, &worst, 1, MPI_2INT, MPI_MAXLOC, MPI_COMM_WORLD);
    if (worst.code && worst.minus_rank == rank) {
        fprintf(stderr, "agoq-train: %s\n", why);
        fflush(stderr);
    }
    return worst.code;
}

static void fatal(const train *t, const char *what, agoq_status status) {
    const char *detail = t->o->store.baseline ? "" : agoq_last_error();
    fprintf(stderr, "agoq-train: rank %d: %s: %s%s%s\n", t->rank, what, agoq_status_text(status),
            *detail ? ": " : "", detail);
    fflush(stderr);
    /* The daemon must hear of the memory guard, or the next start gets the same plan: time for one message.
     */
    if (status == AGOQ_E_NOMEM && t->session) nanosleep(&(struct timespec){.tv_nsec = 600000000}, NULL);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static void describe(const options *o, int rank) {
    const int n = o->par.pp * o->par.chunks, more = o->shape.layers % n;
    if (rank == 0 && more)
        printf("%d layers over %d pipeline chunks: the first %d hold %d, the others %d\n", o->shape.layers, n,
               more, o->shape.layers / n + 1, o->shape.layers / n);
}

static int check_world(const options *o, char *why, size_t size) {
    int world;
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (world == o->par.pp * o->par.dp) return 0;
    snprintf(why, size, "--pp %d x --dp %d needs %d MPI ranks, but there are %d", o->par.pp, o->par.dp,
             o->par.pp * o->par.dp, world);
    return 2;
}

/* Weights of the newest checkpoint; *first is the step to go on with. */
static int resume(train *t, int64_t *first, char *plan_file, size_t plan_bytes, char *why, size_t size) {
    const checkpoint c = {t->o, t->o->files.checkpoint_dir, t->rank, &t->model.params, &t->optim};
    const int64_t step = checkpoint_latest(c.dir, why, size);
    const int given =
        t->o->store.fixed_bits || t->o->store.plan_file || t->o->store.socket || getenv("AGOQ_SOCKET");
    if (step > t->o->train.steps) {
        snprintf(why, size, "--steps %d is before the checkpoint's step %" PRId64, t->o->train.steps, step);
        return 2;
    }
    if (step < 0 || checkpoint_read(&c, step, why, size)) return 1;
    *first = step;
    if (given || t->o->store.baseline || !checkpoint_plan(c.dir, step, plan_file, plan_bytes)) *plan_file = 0;
    return 0;
}

static int save(train *t, int64_t step, const char *record, char *why, size_t size) {
    const checkpoint c = {t->o, t->o->files.checkpoint_dir, t->rank, &t->model.params, &t->optim};
    int code = agree(checkpoint_write(&c, step, record, why, size) ? 1 : 0, why);
    if (code) return code;
    return agree(t->rank == 0 && checkpoint_publish(&c, step, why, size) ? 1 : 0, why);
}

static int finish_run(train *t) {
    uint64_t hash;
    double eval = -1;
    const char *what = "evaluation";
    agoq_status status = t->o->train.eval ? train_eval(t, &eval) : AGOQ_OK;
    if (status == AGOQ_OK) {
        what = "hash of the weights";
        status = train_weights_hash(t, &hash);
    }
    if (status != AGOQ_OK) {
        fatal(t, what, status);
        return 1;
    }
    runlog_last(&t->log, hash, &t->mem, alloc_rounded((size_t)t->model.params.largest * sizeof(float)),
                t->last_loss, eval);
    if (t->rank == 0) {
        printf("done: loss %.4f", t->last_loss);
        if (t->o->train.eval) printf(", held-out loss %.4f", eval);
        printf(", weights %016" PRIx64 "\n", hash);
    }
    return 0;
}

static int run(train *t, char *why, size_t size) {
    const options *o = t->o;
    char plan_file[PATH_MAX] = "", record[PATH_MAX] = "";
    int64_t first = 0;
    int code = agree(o->files.resume ? resume(t, &first, plan_file, sizeof plan_file, why, size) : 0, why);
    if (code) return code;
    if (first >= o->train.stop_at) {
        if (t->rank == 0) printf("nothing to do: the checkpoint is at step %" PRId64 "\n", first);
        return 0;
    }
    int no_dump = 0;
    if (o->files.dump_activations && first > o->files.dump_step) {
        no_dump = 1;
        snprintf(why, size, "--dump-step %d is before step %" PRId64 ", where the checkpoint goes on",
                 o->files.dump_step, first);
    } else if (o->files.dump_activations) {
        no_dump = dump_check_folder(o->files.dump_activations, why, size);
    }
    if ((code = agree(no_dump ? 2 : 0, why))) return code;
    if (o->store.record_plan)
        snprintf(record, sizeof record, "%s", o->store.record_plan);
    else if (o->files.checkpoint_every && !o->store.baseline && !o->store.fixed_bits &&
             checkpoint_folder(o->files.checkpoint_dir) == 0)
        snprintf(record, sizeof record, "%s/plans", o->files.checkpoint_dir);
    agoq_status status = train_attach(t, *plan_file ? plan_file : NULL, *record ? record : NULL);
    if (status != AGOQ_OK)
        snprintf(why, size, "agoq session: %s: %s", agoq_status_text(status),
                 t->o->store.baseline ? "" : agoq_last_error());
    code = agree(status == AGOQ_OK ? 0 : status == AGOQ_E_INVAL ? 2 : 1, why);
    if (code) return code;
    if (t->session && (status = agoq_session_attach_mpi(t->session, MPI_COMM_WORLD)) != AGOQ_OK)
        fatal(t, "attaching the vote", status);
    const int failed = runlog_open(&t->log, o->files.log_dir, t->rank, o->files.resume);
    if (failed) snprintf(why, size, "log: %s: cannot be written", o->files.log_dir);
    if ((code = agree(failed ? 1 : 0, why))) return code;
    runlog_first(&t->log, &t->model, o, t->replica);
    for (int64_t step = first; step < o->train.stop_at; step++) {
        const char *what;
        if ((status = train_step(t, step, &what)) != AGOQ_OK) fatal(t, what, status);
        const int every = o->files.checkpoint_every;
        if (every && (step + 1) % every == 0 &&
            (code = save(t, step + 1, *record ? record : NULL, why, size)))
            return code;
    }
    return finish_run(t);
}

static int start(const options *o) {
    char why[512] = "";
    int rank, code = agree(check_world(o, why, sizeof why), why);
    train t = {0};
    if (code) return code;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int bad = data_open(&t.text, o->files.data, o->shape.seq, o->train.eval > 0, why, sizeof why);
    if ((code = agree(bad ? 2 : 0, why))) return code;
    describe(o, rank);
    const agoq_status status = train_init(&t, o, MPI_COMM_WORLD);
    snprintf(why, sizeof why, "cannot start: %s",
             status == AGOQ_E_NOMEM ? "out of memory" : agoq_status_text(status));
    if ((code = agree(status == AGOQ_OK ? 0 : 1, why))) return code;
    code = run(&t, why, sizeof why);
    if (runlog_close(&t.log)) snprintf(why, sizeof why, "the log in %s is not complete", o->files.log_dir);
    if (!code) code = agree(t.log.failed ? 1 : 0, why);
    train_fini(&t);
    return code;
}

int main(int argc, char **argv) {
    options o;
    char why[512] = "";
    int provided, code, rank;
    blas_setup(argv);
    MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &provided);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int parsed = options_parse(argc, argv, &o, why, sizeof why);
    if (parsed == OPTIONS_HELP) {
        if (rank == 0) options_help(stdout);
        code = 0;
    } else if (parsed == OPTIONS_BAD || (!o.store.baseline && plans_check(&o, why, sizeof why))) {
        code = agree(2, why);
    } else {
        code = start(&o);
    }
    MPI_Finalize();
    return code;
}
