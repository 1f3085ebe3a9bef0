/* One step: forwards and backwards in the schedule's order, exchange, optimizer. The three phases never
 * overlap, so their bytes are measured and reported apart. The trade-off: no overlap of the exchange with the
 * last backwards; on CPUs the ranks share cores anyway, and a phase of its own is what the planner's formula
 * means by one. */
#include "trainer/train.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "trainer/try.h"

static agoq_status init_comms(train *t, MPI_Comm world) {
    MPI_Comm_rank(world, &t->rank);
    MPI_Comm_size(world, &t->world);
    t->stage = t->rank / t->o->par.dp;
    t->replica = t->rank % t->o->par.dp;
    if (MPI_Comm_split(world, t->replica, t->stage, &t->stages) != MPI_SUCCESS) return AGOQ_E_COMM;
    return MPI_Comm_split(world, t->stage, t->replica, &t->replicas) == MPI_SUCCESS ? AGOQ_OK : AGOQ_E_COMM;
}

static agoq_status init_schedule(train *t) {
    const options_parallel *p = &t->o->par;
    const schedule s = {p->schedule, p->pp, p->microbatches, p->chunks};
    const int slots = p->microbatches * p->chunks;
    t->n_ops = 2 * slots;
    t->ops = calloc((size_t)t->n_ops, sizeof *t->ops);
    t->kept = calloc((size_t)slots, sizeof *t->kept);
    t->live = calloc((size_t)p->chunks * 2, sizeof *t->live);
    t->ids = alloc_zero(&t->mem, ALLOC_WORKSPACE, (size_t)t->model.tokens);
    t->targets = alloc_zero(&t->mem, ALLOC_WORKSPACE, (size_t)t->model.tokens);
    if (!t->ops || !t->kept || !t->live || !t->ids || !t->targets) return AGOQ_E_NOMEM;
    t->live_peak = t->live + p->chunks;
    for (int i = 0; i < slots; i++) {
        t->kept[i] = model_kept_new(&t->model, i / p->microbatches);
        if (!t->kept[i]) return AGOQ_E_NOMEM;
    }
    schedule_list(&s, t->stage, t->ops);
    return pipe_init(&t->pipe, t->stages, &s, (int64_t)t->model.tokens * t->o->shape.hidden, t->o->store.fp32,
                     &t->mem);
}

/* Before the first step bytes by phase follow from what is allocated; after it they are measured. */
static agoq_status say_profile(train *t, const uint64_t *measured) {
    agoq_profile *p = &t->profile.said;
    const uint64_t buffers = alloc_buffers(&t->mem),
                   exchange_bytes = alloc_rounded(t->exchange.workspace_bytes);
    uint64_t now[AGOQ_N_PHASES] = {[AGOQ_PHASE_FWD_BWD] = buffers,
                                   [AGOQ_PHASE_EXCHANGE] = buffers + exchange_bytes,
                                   [AGOQ_PHASE_OPTIMIZER] = buffers + (t->optim.zero1 ? exchange_bytes : 0)};
    if (measured) memcpy(now, measured, sizeof now);
    int changed = !measured;
    for (int i = 0; i < AGOQ_N_PHASES; i++) {
        changed |= p->workspace_bytes[i] != now[i] || p->static_bytes[i] != alloc_static(&t->mem);
        p->workspace_bytes[i] = now[i];
        p->static_bytes[i] = alloc_static(&t->mem);
    }
    return changed ? agoq_session_profile(t->session, p) : AGOQ_OK;
}

agoq_status train_init(train *t, const options *o, MPI_Comm world) {
    t->o = o;
    t->mem.limit = (size_t)o->train.memory_limit;
    const uint64_t seed = (uint64_t)o->train.seed;
    TRY(init_comms(t, world));
    TRY(model_init(&t->model, &o->shape, o->par.pp, t->stage, o->par.chunks, seed, !o->store.fp32, &t->mem));
    TRY(grads_init(&t->grads, &t->model.params, o->train.grads == OPTIONS_GRADS_FP8, seed,
                   (uint32_t)t->replica, &t->mem));
    TRY(exchange_init(&t->exchange, world, t->replicas, &t->grads, &t->mem));
    TRY(optim_init(&t->optim, &o->train, o->par.zero1, &t->grads, &t->exchange, &t->mem));
    return init_schedule(t);
}

agoq_status train_attach(train *t, const char *plan_file, const char *record_file) {
    const options *o = t->o;
    const store_kind kind = o->store.baseline                        ? STORE_BASELINE
                            : o->store.mode == OPTIONS_MODE_IDENTITY ? STORE_IDENTITY
                                                                     : STORE_AGOQ;
    if (!o->store.baseline) {
        TRY(plans_open(&t->session, o, t->rank, t->world, t->stage, t->replica, plan_file, record_file));
        TRY(plans_profile_init(&t->profile, o, &t->model));
        TRY(say_profile(t, NULL));
    }
    store_init(&t->store, kind, &t->mem, t->session, o->store.fp32);
    t->store.format4 = o->store.format4;
    return AGOQ_OK;
}

void train_fini(train *t) {
    agoq_session_close(&t->session);
    plans_profile_fini(&t->profile);
    pipe_fini(&t->pipe);
    for (int i = 0; t->kept && i < t->o->par.microbatches * t->o->par.chunks; i++)
        model_kept_delete(t->kept[i]);
    free(t->kept);
    free(t->ops);
    free(t->live);
    alloc_free(&t->mem, t->ids);
    alloc_free(&t->mem, t->targets);
    optim_fini(&t->optim);
    exchange_fini(&t->exchange);
    grads_fini(&t->grads);
    model_fini(&t->model);
    data_close(&t->text);
    MPI_Comm_free(&t->stages);
    MPI_Comm_free(&t->replicas);
}

static agoq_status count_live(train *t, int chunk, int delta) {
    int sum = 0, peak = 0;
    t->live[chunk] += delta;
    for (int c = 0; c < t->model.n_chunks; c++) {
        sum += t->live[c];
        peak += t->live_peak[c];
    }
    if (sum > peak) memcpy(t->live_peak, t->live, (size_t)t->model.n_chunks * sizeof *t->live);
    return t->session ? agoq_session_microbatch(t->session, chunk, delta) : AGOQ_OK;
}

static model_kept *kept_of(const train *t, const schedule_op *op) {
    return t->kept[op->chunk * t->o->par.microbatches + op->microbatch];
}

static agoq_status forward(train *t, int64_t step, const schedule_op *op, double *loss) {
    const options_shape *s = &t->o->shape;
    const model_chunk *c = &t->model.chunks[op->chunk];
    TRY(pipe_receive(&t->pipe, op, t->model.work.x));
    if (c->has_embed || c->has_head)
        data_microbatch(&t->text, (uint64_t)t->o->train.seed, step, op->microbatch, t->replica, s->mb_size,
                        s->seq, t->ids, t->targets);
    TRY(count_live(t, op->chunk, +1));
    const options_files *f = &t->o->files;
    const int dumps = step == f->dump_step && op->microbatch == 0 && t->replica == 0;
    t->store.dump.dir = dumps ? f->dump_activations : NULL;
    TRY(model_forward(&t->model, op->chunk, t->ids, t->targets, &t->store, kept_of(t, op), loss));
    return pipe_send(&t->pipe, op, t->model.work.x);
}

static agoq_status release_held(train *t) {
    if (!t->held) return AGOQ_OK;
    const schedule_op *op = t->held;
    t->held = NULL;
    TRY(model_release(&t->model, op->chunk, &t->store, kept_of(t, op)));
    return count_live(t, op->chunk, -1);
}

static agoq_status backward(train *t, const schedule_op *op, float scale) {
    const int hold = t->o->par.hold_extra == t->stage;
    TRY(pipe_receive(&t->pipe, op, t->model.work.x));
    grads_microbatch(&t->grads, op->microbatch);
    t->store.hold = hold;
    TRY(model_backward(&t->model, op->chunk, scale, &t->store, kept_of(t, op), &t->grads));
    TRY(pipe_send(&t->pipe, op, t->model.work.x));
    if (!hold) return count_live(t, op->chunk, -1);
    TRY(release_held(t));
    t->held = op;
    return AGOQ_OK;
}

static agoq_status run_schedule(train *t, int64_t step, double *loss) {
    const double n = (double)t->model.tokens * t->o->par.microbatches;
    TRY(grads_start(&t->grads, step));
    memset(t->live_peak, 0, (size_t)t->model.n_chunks * sizeof *t->live);
    for (int i = 0; i < t->n_ops; i++) {
        if (t->ops[i].what == SCHEDULE_FORWARD)
            TRY(forward(t, step, &t->ops[i], loss));
        else
            TRY(backward(t, &t->ops[i], (float)(1.0 / n)));
    }
    TRY(release_held(t));
    *loss /= n * t->o->par.dp;
    return pipe_flush(&t->pipe);
}

/* Buffers' peak of the phase that ends; the next one starts. */
static uint64_t end_phase(train *t) {
    const uint64_t peak = t->mem.phase_peak_buffers;
    alloc_phase(&t->mem);
    return peak;
}

static int64_t wall_ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void log_step(train *t, int64_t step, int64_t started_ms, double took,
                     const uint64_t buffers[AGOQ_N_PHASES]) {
    agoq_plan_state plan = {0};
    uint64_t workspace = 0;
    if (t->session) agoq_session_state(t->session, &plan);
    for (int i = 0; i < AGOQ_N_PHASES; i++) workspace = buffers[i] > workspace ? buffers[i] : workspace;
    const runlog_step s = {
        .step = step,
        .wall_ms = started_ms,
        .n_steps = t->o->train.steps,
        .loss = t->last_loss,
        .tokens_per_s = (double)t->model.tokens * t->o->par.microbatches * t->o->par.dp / took,
        .plan_id = plan.plan_id,
        .plan_hash = plan.plan_hash,
        .predicted_bytes = plan.predicted_bytes,
        .guard = plan.guarded,
        .peak_bytes = t->mem.step_peak_total,
        .saved_peak_bytes = t->mem.step_peak[ALLOC_SAVED],
        .saved16_peak_bytes = t->store.step_peak16,
        .weights_bytes = t->mem.current[ALLOC_WEIGHTS],
        .grad_bytes = grads_bytes(&t->grads),
        .optimizer_bytes = t->mem.current[ALLOC_OPTIMIZER],
        .workspace_bytes = (size_t)workspace,
        .live = t->live_peak,
        .n_chunks = t->model.n_chunks,
    };
    runlog_write(&t->log, &s, &t->model, t->session);
    if (t->log.progress && ((step + 1) % 10 == 0 || step + 1 == t->o->train.stop_at)) runlog_progress(&s);
}

static agoq_status update(train *t, int64_t step, const char **what, uint64_t buffers[AGOQ_N_PHASES],
                          double sums[2]) {
    *what = "exchange of gradients";
    TRY(exchange_open(&t->exchange));
    TRY(optim_reduce(&t->optim, &t->grads, &t->exchange, &sums[1]));
    if (!t->optim.zero1) exchange_close(&t->exchange);
    TRY(exchange_sum(&t->exchange, sums, 2));
    buffers[AGOQ_PHASE_EXCHANGE] = end_phase(t);
    *what = "optimizer";
    const double norm = sqrt(sums[1]), clip = t->o->train.clip;
    const float multiplier = clip > 0 && !(norm <= clip) ? (float)(clip / norm) : 1.0f;
    TRY(optim_step(&t->optim, &t->grads, &t->exchange, step, multiplier));
    exchange_close(&t->exchange);
    buffers[AGOQ_PHASE_OPTIMIZER] = end_phase(t);
    return AGOQ_OK;
}

agoq_status train_step(train *t, int64_t step, const char **what) {
    const int64_t started_ms = wall_ms();
    const double started = seconds();
    uint64_t buffers[AGOQ_N_PHASES];
    double sums[2] = {0, 0}; /* loss, squared norm of the gradient */
    *what = "agoq_step_begin";
    if (t->session) TRY(agoq_step_begin(t->session, step));
    alloc_step(&t->mem);
    alloc_phase(&t->mem);
    store_reset_peak(&t->store);
    *what = "forward and backward";
    TRY(run_schedule(t, step, &sums[0]));
    buffers[AGOQ_PHASE_FWD_BWD] = end_phase(t);
    TRY(update(t, step, what, buffers, sums));
    t->last_loss = sums[0];
    log_step(t, step, started_ms, seconds() - started, buffers);
    *what = "agoq_step_end";
    if (!t->session) return AGOQ_OK;
    const agoq_usage usage = {.peak_bytes = t->mem.step_peak_total,
                              .saved_peak_bytes = t->mem.step_peak[ALLOC_SAVED],
                              .reserved_bytes = t->mem.step_peak_total};
    TRY(agoq_step_end(t->session, &usage));
    return say_profile(t, buffers);
}

agoq_status train_eval(train *t, double *loss) {
    const options_shape *s = &t->o->shape;
    const int n = t->o->train.eval;
    double sum[1] = {0};
    store plain;
    store_init(&plain, STORE_BASELINE, &t->mem, NULL, t->o->store.fp32);
    for (int i = 0; i < n; i++) {
        for (int c = 0; c < t->model.n_chunks; c++) {
            const schedule_op op = {SCHEDULE_FORWARD, i % t->o->par.microbatches, c};
            TRY(pipe_receive(&t->pipe, &op, t->model.work.x));
            data_held_out(&t->text, (int64_t)i * t->o->par.dp + t->replica, s->mb_size, s->seq, t->ids,
                          t->targets);
            TRY(model_loss(&t->model, c, t->ids, t->targets, &plain, kept_of(t, &op), sum));
            TRY(pipe_send(&t->pipe, &op, t->model.work.x));
        }
    }
    TRY(pipe_flush(&t->pipe));
    TRY(exchange_sum(&t->exchange, sum, 1));
    *loss = sum[0] / ((double)t->model.tokens * n * t->o->par.dp);
    return AGOQ_OK;
}

agoq_status train_weights_hash(train *t, uint64_t *hash) {
    *hash = 0;
    for (int i = 0; i < t->model.params.n && t->replica == 0; i++)
        *hash += params_hash(&t->model.params.list[i]);
    return exchange_sum_u64(&t->exchange, hash);
}
