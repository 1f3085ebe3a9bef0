/* What cannot be, each with the sentence that an operator reads. Checked once, before anything is computed,
 * so that no function of the model meets a zero divisor or a stage without layers. The trade-off: what a
 * framework refuses by habit (a vocabulary that tp does not divide, fewer micro-batches than stages) is let
 * through; only what has no meaning is stopped. */
#include <stdarg.h>
#include <stdio.h>

#include "planner/model_internal.h"

#define MAX_DIMENSION (1u << 20)
#define MAX_LAYERS    1024u

typedef struct reason {
    char *text;
    size_t size;
} reason;

static agoq_status no(reason r, const char *format, ...) __attribute__((format(printf, 2, 3)));
static agoq_status no(reason r, const char *format, ...) {
    va_list args;
    va_start(args, format);
    if (r.text && r.size) (void)vsnprintf(r.text, r.size, format, args);
    va_end(args);
    return AGOQ_E_INVAL;
}

static agoq_status check_sizes(const planner_model *m, reason r) {
    const struct {
        const char *name;
        uint32_t value, most;
    } sizes[] = {{"hidden", m->shape.hidden, MAX_DIMENSION},
                 {"ffn", m->shape.ffn, MAX_DIMENSION},
                 {"layers", m->shape.layers, MAX_LAYERS},
                 {"heads", m->shape.heads, MAX_DIMENSION},
                 {"kv_heads", m->shape.kv_heads, MAX_DIMENSION},
                 {"vocab", m->shape.vocab, MAX_DIMENSION},
                 {"pp", m->run.pp, PLAN_MAX_STAGES}, /* defaults of what follows are made from these */
                 {"tp", m->run.tp, 1024},
                 {"cp", m->run.cp ? m->run.cp : 1, 1024},
                 {"dp", m->run.dp, MAX_DIMENSION},
                 {"vpp", m->run.chunks, PLANNER_MAX_CHUNKS},
                 {"seq", m->run.seq, 1u << 24},
                 {"mbs", m->run.microbatch, MAX_DIMENSION},
                 {"microbatches", m->run.microbatches, PLANNER_MAX_MICROBATCHES}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        if (!sizes[i].value || sizes[i].value > sizes[i].most)
            return no(r, "%s is %u, and must be 1 to %u", sizes[i].name, sizes[i].value, sizes[i].most);
    }
    if (m->shape.head_dim > MAX_DIMENSION) return no(r, "head_dim is %u, beyond 1048576", m->shape.head_dim);
    return AGOQ_OK;
}

static agoq_status check_heads(const planner_model *m, reason r) {
    const planner_shape *s = &m->shape;
    const uint32_t tp = m->run.tp, cp = m->run.cp ? m->run.cp : 1;
    if (!s->head_dim && s->hidden % s->heads)
        return no(r, "%u heads do not divide hidden %u: give head_dim", s->heads, s->hidden);
    if (s->heads % s->kv_heads)
        return no(r, "kv_heads %u does not divide the %u heads", s->kv_heads, s->heads);
    if (s->heads % tp) return no(r, "tp %u does not divide the %u heads", tp, s->heads);
    if (s->ffn % tp) return no(r, "tp %u does not divide ffn %u", tp, s->ffn);
    if (s->hidden % tp) return no(r, "tp %u does not divide hidden %u", tp, s->hidden);
    if (s->kv_heads % tp && tp % s->kv_heads)
        return no(r, "of tp %u and kv_heads %u one must divide the other", tp, s->kv_heads);
    if (m->run.seq % cp) return no(r, "cp %u does not divide seq %u", cp, m->run.seq);
    if (m->run.sequence_parallel && m->run.seq / cp % tp)
        return no(r, "with sequence parallelism tp %u must divide the %u tokens of a rank", tp,
                  m->run.seq / cp);
    return AGOQ_OK;
}

static agoq_status check_layout(const planner_model *m, reason r) {
    const planner_run *run = &m->run;
    const uint32_t n = planner_model_n_virtual(m), layers = m->shape.layers;
    uint64_t sum = 0;
    if (run->pp > layers && !run->layout) return no(r, "pp %u is more than the %u layers", run->pp, layers);
    if (!run->layout) {
        if (n > layers)
            return no(r, "pp %u with %u chunks is more than the %u layers", run->pp, run->chunks, layers);
        if (run->chunks > 1 && layers % n)
            return no(r,
                      "pp %u with %u chunks cuts the model in %u, which does not divide the %u layers: "
                      "other chunks, or a layout",
                      run->pp, run->chunks, n, layers);
        return AGOQ_OK;
    }
    for (uint32_t k = 0; k < n; k++) sum += run->layout[k];
    if (sum != layers)
        return no(r, "the layout has %llu layers, the model %u", (unsigned long long)sum, layers);
    return AGOQ_OK;
}

/* Two ranks hold each layer, in chunks that they number the other way round. */
static agoq_status check_two_way(const planner_model *m, reason r) {
    const uint32_t pp = m->run.pp;
    if (planner_model_route(m) != PLANNER_ROUTE_TWO_WAY) return AGOQ_OK;
    if (pp % 2) return no(r, "two ways through the pipeline need an even number of ranks, not %u", pp);
    for (uint32_t s = 0; s < pp; s++) {
        const uint32_t here = planner_model_recomputed(m, s), there = planner_model_recomputed(m, pp - 1 - s);
        if (here != there || (here && here < planner_model_rank_layers(m, s)))
            return no(r,
                      "ranks %u and %u hold the same layers and would recompute different ones: all, none "
                      "or modules",
                      s, pp - 1 - s);
    }
    return AGOQ_OK;
}

static agoq_status check_schedule(const planner_model *m, reason r) {
    const planner_run *run = &m->run;
    if (run->no_live) {
        if ((unsigned)run->route > PLANNER_ROUTE_TWO_WAY) return no(r, "unknown route");
        if (run->route != PLANNER_ROUTE_LOOP && run->chunks != 2)
            return no(r, "that route has 2 chunks on every rank, not %u", run->chunks);
        return AGOQ_OK;
    }
    const planner_schedule s = {run->schedule, run->pp, run->microbatches, run->chunks, run->group, 0};
    const char *why = planner_schedule_refused(&s);
    return why ? no(r, "%s", why) : AGOQ_OK;
}

static agoq_status check_formats(const planner_model *m, reason r) {
    const planner_run *run = &m->run;
    const int bits = run->account_bits;
    if (run->grad_bits != 8 && run->grad_bits != 16 && run->grad_bits != 32)
        return no(r, "gradients are fp8, bf16 or fp32");
    if (run->qkv_bits != 8 && run->qkv_bits != 16) return no(r, "Q, K, V are kept at 16 or 8 bits");
    if ((unsigned)run->shard > PLANNER_SHARD_DISTRIBUTED) return no(r, "unknown kind of sharding");
    if ((unsigned)run->accounting >= PLANNER_N_ACCOUNTINGS) return no(r, "unknown accounting");
    if ((unsigned)run->storage > PLANNER_STORE_COAT_OWN) return no(r, "unknown storage");
    const int paper =
        run->accounting == PLANNER_ACCOUNT_PAPER || run->accounting == PLANNER_ACCOUNT_PAPER_SCALES;
    if (run->storage > PLANNER_STORE_16 && !paper) return no(r, "COAT is counted as in the paper only");
    if (run->storage == PLANNER_STORE_PLAN &&
        (run->accounting == PLANNER_ACCOUNT_HF_EAGER || run->accounting == PLANNER_ACCOUNT_MEGATRON))
        return no(r, "accounting %s knows 16 bits only", planner_accounting_name(run->accounting));
    if (bits && agoq_width_index(bits) < 0) return no(r, "%d is no width", bits);
    if (run->recompute_modules > 31) return no(r, "unknown module to recompute");
    if (paper && run->recompute_modules) return no(r, "the paper's table knows no recomputed modules");
    if (m->shape.no_gate && paper) return no(r, "the paper's table is for gated layers");
    return AGOQ_OK;
}

static agoq_status check_machine(const planner_model *m, reason r) {
    const planner_run *run = &m->run;
    if (run->margin_ppm > 1000000) return no(r, "the margin is above 100 %%");
    if ((unsigned)run->mode > PLANNER_EQUALIZE) return no(r, "unknown mode");
    for (uint32_t s = 0; s < run->pp; s++) {
        const uint64_t budget = run->stage_budgets ? run->stage_budgets[s] : run->budget_bytes;
        if (budget <= run->context_bytes)
            return no(r, "the budget of stage %u (%llu bytes) is not above the context (%llu bytes)", s,
                      (unsigned long long)budget, (unsigned long long)run->context_bytes);
    }
    return AGOQ_OK;
}

agoq_status planner_model_check(const planner_model *m, char *why, size_t why_size) {
    static agoq_status (*const checks[])(const planner_model *, reason) = {
        check_sizes, check_heads, check_schedule, check_layout, check_two_way, check_formats, check_machine};
    const reason r = {why, why_size};
    if (!m) return no(r, "no model");
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        const agoq_status status = checks[i](m, r);
        if (status != AGOQ_OK) return status;
    }
    return AGOQ_OK;
}
