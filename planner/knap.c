/* knap_solve: bound, search, result; and the memory that is kept between calls. */
#include "planner/knap.h"

#include <string.h>

#include "common/mem.h"
#include "common/try.h"

/* With fewer items the other search is done before curves are made. */
#define CURVES_FROM 16u

void *knap_reserve(knap_space *space, int which, size_t n, size_t size) {
    knap_buffer *b = &space->buffer[which];
    size_t bytes = b->bytes ? b->bytes : 512;
    if (n > SIZE_MAX / 4 / size) return NULL;
    if (b->data && n * size <= b->bytes) return b->data;
    while (bytes < n * size) bytes *= 2;
    void *data = mem_realloc(b->data, bytes, 1);
    if (!data) return NULL;
    *b = (knap_buffer){data, bytes};
    return data;
}

void knap_space_fini(knap_space *space) {
    for (int i = 0; i < KNAP_BUFFERS; i++) mem_free(space->buffer[i].data);
    *space = (knap_space){0};
}

/* Not proved to be the best: then at least no worse than what the caller suggests. */
static void try_hints(knap_search *s) {
    const knap_problem *p = s->problem;
    for (uint32_t h = 0; h < p->n_hints; h++) {
        int64_t cost = 0;
        int fits = 1;
        for (uint32_t i = 0; i < p->n_items; i++)
            cost += p->items[i].count * knap_cost(&p->items[i], p->items[i].of->hint[h]);
        for (uint32_t r = 0; r < p->n_rows && fits; r++) {
            int64_t used = 0;
            for (uint32_t i = 0; i < p->n_items; i++) {
                const knap_item *item = &p->items[i];
                used += p->coef[(size_t)r * p->n_dims + item->of->dim] * item->count *
                        item->of->weight[item->of->hint[h]];
            }
            fits = used <= p->capacity[r];
        }
        if (!fits || cost >= s->best) continue;
        s->best = cost;
        memset(s->taken, 0, (size_t)p->n_items * KNAP_OPTIONS * sizeof *s->taken);
        for (uint32_t i = 0; i < p->n_items; i++)
            s->taken[(size_t)i * KNAP_OPTIONS + p->items[i].of->hint[h]] = p->items[i].count;
    }
}

agoq_status knap_solve(const knap_problem *problem, knap_space *space, uint32_t *taken, knap_result *result) {
    if (!problem || !space || !taken || !result || !problem->n_rows || !problem->n_dims) return AGOQ_E_INVAL;
    if (problem->n_dims > KNAP_MAX_DIMS) return AGOQ_E_LIMIT;
    knap_search s = {.problem = problem, .space = space, .taken = taken};
    int64_t lower_bound = 0;
    int done = 0;
    if (problem->n_rows == 1 && problem->n_items >= CURVES_FROM) AGOQ_TRY(knap_curves(&s, &done));
    if (done) {
        lower_bound = s.best;
    } else {
        AGOQ_TRY(knap_multipliers(&s));
        AGOQ_TRY(problem->n_rows == 1 ? knap_one_row(&s, &lower_bound) : knap_many_rows(&s, &lower_bound));
    }
    if (lower_bound < s.best && problem->n_rows > 1) {
        /* Not proved: better multipliers are worth their time now. */
        int64_t second = 0;
        s.patient = 1;
        AGOQ_TRY(knap_multipliers(&s));
        AGOQ_TRY(knap_many_rows(&s, &second));
        if (second > lower_bound) lower_bound = second;
    }
    if (lower_bound < s.best) try_hints(&s);
    result->cost = s.best;
    result->lower_bound = lower_bound < s.best ? lower_bound : s.best;
    result->root = s.dual.root;
    result->work = s.work;
    result->shift = s.dual.shift;
    memcpy(result->price, s.dual.price, sizeof result->price);
    return AGOQ_OK;
}
