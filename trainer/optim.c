/* AdamW over the list of parameters: see optim.h. Gains of norms are never sharded, packed or decayed. */
#include "trainer/optim.h"

#include <math.h>
#include <stdlib.h>

#include "trainer/ops.h"
#include "trainer/try.h"

static agoq_status state_init(optim_state *s, int adam8, alloc_stats *mem) {
    if (!adam8) {
        s->m = alloc_zero(mem, ALLOC_OPTIMIZER, (size_t)s->n * sizeof(float));
        s->v = alloc_zero(mem, ALLOC_OPTIMIZER, (size_t)s->n * sizeof(float));
        return s->m && s->v ? AGOQ_OK : AGOQ_E_NOMEM;
    }
    const size_t absmax_bytes = (size_t)agoq_adam8_blocks(s->n) * sizeof(float);
    s->a8.n = s->n;
    s->a8.m = alloc_zero(mem, ALLOC_OPTIMIZER, (size_t)s->n);
    s->a8.v = alloc_zero(mem, ALLOC_OPTIMIZER, (size_t)s->n);
    s->a8.m_absmax = alloc_zero(mem, ALLOC_OPTIMIZER, absmax_bytes);
    s->a8.v_absmax = alloc_zero(mem, ALLOC_OPTIMIZER, absmax_bytes);
    if (!s->a8.m || !s->a8.v || !s->a8.m_absmax || !s->a8.v_absmax) return AGOQ_E_NOMEM;
    return agoq_adam8_init(NULL, &s->a8);
}

agoq_status optim_init(optim *o, const options_train *train, int zero1, const grads *g, const exchange *x,
                       alloc_stats *mem) {
    *o = (optim){.train = train,
                 .zero1 = zero1,
                 .adam8 = train->adam == OPTIONS_ADAM_8BIT,
                 .n = g->params->n,
                 .mem = mem};
    o->list = calloc((size_t)o->n, sizeof *o->list);
    if (!o->list) return AGOQ_E_NOMEM;
    for (int i = 0; i < o->n; i++) {
        const param *t = &g->params->list[i];
        optim_state *s = &o->list[i];
        s->n = t->n;
        if (zero1 && t->matrix) {
            int64_t end;
            exchange_shard(x, t->n, x->dp_rank, &s->begin, &end);
            s->n = end - s->begin;
        }
        TRY(state_init(s, o->adam8 && t->matrix, mem));
    }
    return AGOQ_OK;
}

void optim_fini(optim *o) {
    for (int i = 0; o->list && i < o->n; i++) {
        optim_state *s = &o->list[i];
        void *all[] = {s->m, s->v, s->a8.m, s->a8.v, s->a8.m_absmax, s->a8.v_absmax};
        for (size_t k = 0; k < sizeof all / sizeof all[0]; k++) alloc_free(o->mem, all[k]);
    }
    free(o->list);
    *o = (optim){0};
}

OPS_WIDE static double sum_of_squares(const float *x, int64_t n) {
    double lane[8] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        for (int l = 0; l < 8; l++) lane[l] += (double)x[i + l] * (double)x[i + l];
    }
    for (; i < n; i++) sum += (double)x[i] * (double)x[i];
    for (int l = 0; l < 8; l++) sum += lane[l];
    return sum;
}

static int sharded(const optim *o, const grads *g, int i) {
    return o->zero1 && g->params->list[i].matrix;
}

agoq_status optim_reduce(optim *o, grads *g, exchange *x, double *sqnorm) {
    for (int i = 0; i < o->n; i++) {
        if (sharded(o, g, i)) {
            if (o->train->clip <= 0) continue; /* nobody asks for the norm */
            /* For its norm only: optim_step reduces again, since a kept fp32 shard would be a gradient
             * buffer. */
            TRY(exchange_reduce_scatter(x, g, i, g->scratch));
            *sqnorm += sum_of_squares(g->scratch, o->list[i].n);
            continue;
        }
        double own = 0;
        TRY(exchange_all_reduce(x, g, i));
        if (g->fp8 && g->params->list[i].matrix)
            TRY(agoq_grad_sqnorm(NULL, &g->list[i].g8, &own));
        else
            own = sum_of_squares(g->list[i].g32, g->params->list[i].n);
        if (x->dp_rank == 0) *sqnorm += own; /* replicas hold the same */
    }
    return AGOQ_OK;
}

OPS_WIDE static void adamw(const agoq_adam_params *a, const float *grad, int64_t n, float *w, float *m,
                           float *v) {
    const float c1 = (float)(1.0 / (1.0 - pow((double)a->beta1, (double)a->step)));
    const float c2 = (float)(1.0 / (1.0 - pow((double)a->beta2, (double)a->step)));
    const float keep = 1.0f - a->lr * a->weight_decay, b1 = a->beta1, b2 = a->beta2;
    for (int64_t i = 0; i < n; i++) {
        const float d = grad[i] * a->grad_multiplier;
        m[i] = b1 * m[i] + (1.0f - b1) * d;
        v[i] = b2 * v[i] + (1.0f - b2) * d * d;
        w[i] = w[i] * keep - a->lr * (m[i] * c1) / (sqrtf(v[i] * c2) + a->eps);
    }
}

agoq_status optim_step(optim *o, grads *g, exchange *x, int64_t step, float multiplier) {
    for (int i = 0; i < o->n; i++) {
        const param *t = &g->params->list[i];
        optim_state *s = &o->list[i];
        const agoq_adam_params a = {.lr = (float)options_rate(o->train, step),
                                    .beta1 = 0.9f,
                                    .beta2 = 0.95f,
                                    .eps = 1e-8f,
                                    .weight_decay = t->matrix ? (float)o->train->weight_decay : 0,
                                    .step = step + 1,
                                    .grad_multiplier = multiplier};
        const int eight = o->adam8 && t->matrix, fp8 = g->fp8 && t->matrix;
        const float *grad = g->list[i].g32;
        if (sharded(o, g, i)) {
            TRY(exchange_reduce_scatter(x, g, i, g->scratch));
            grad = g->scratch;
        } else if (fp8 && !eight) {
            TRY(agoq_grad_read(NULL, &g->list[i].g8, 0, t->n, 1.0f, g->scratch));
            grad = g->scratch;
        }
        if (eight) {
            const agoq_adam_source source = {grad ? NULL : &g->list[i].g8, grad, AGOQ_DTYPE_F32};
            const agoq_adam_target target = {.master = t->w + s->begin};
            TRY(agoq_adam8_step(NULL, &a, &source, &target, &s->a8));
        } else {
            adamw(&a, grad, s->n, t->w + s->begin, s->m, s->v);
        }
        if (sharded(o, g, i)) TRY(exchange_gather(x, t->w, t->n));
    }
    return AGOQ_OK;
}
