/* What there is to know about each kind of schedule without playing it: names, shapes it exists for, the path
 * of a micro-batch, closed forms. The lists are in schedule_list.c and schedule_vee.c; tests hold the closed
 * forms against them. */
#include "planner/schedule.h"

#include <string.h>

static const char *const names[] = {
#define KIND_NAME(id, name) name,
    AGOQ_SCHEDULES(KIND_NAME)
#undef KIND_NAME
        NULL};

const char *planner_schedule_name(agoq_schedule kind) {
    return (unsigned)kind < AGOQ_N_SCHEDULES ? names[kind] : NULL;
}

const char *const *planner_schedule_names(void) {
    return names;
}

int planner_schedule_find(const char *name, agoq_schedule *kind) {
    for (int i = 0; i < AGOQ_N_SCHEDULES; i++) {
        if (strcmp(names[i], name) != 0) continue;
        *kind = (agoq_schedule)i;
        return 0;
    }
    return -1;
}

planner_route planner_schedule_route(agoq_schedule kind) {
    switch (kind) {
    case AGOQ_SCHEDULE_ZB_V:
    case AGOQ_SCHEDULE_V_HALF:
    case AGOQ_SCHEDULE_V_MIN:
    case AGOQ_SCHEDULE_DUALPIPEV:
        return PLANNER_ROUTE_VEE;
    case AGOQ_SCHEDULE_DUALPIPE:
        return PLANNER_ROUTE_TWO_WAY;
    default:
        return PLANNER_ROUTE_LOOP;
    }
}

uint32_t planner_schedule_chunks(agoq_schedule kind) {
    if (kind == AGOQ_SCHEDULE_INTERLEAVED) return 0;
    return planner_schedule_route(kind) == PLANNER_ROUTE_LOOP ? 1 : 2;
}

const char *planner_schedule_refused(const planner_schedule *s) {
    const uint32_t chunks = planner_schedule_chunks(s->kind), p = s->n_ranks, m = s->n_microbatches;
    if ((unsigned)s->kind >= AGOQ_N_SCHEDULES) return "there is no such schedule";
    if (!p || p > PLAN_MAX_STAGES) return "pipeline ranks must be 1 to 1024";
    if (!m || m > PLANNER_MAX_MICROBATCHES) return "micro-batches must be 1 to 65536";
    if (!s->n_chunks || s->n_chunks > PLANNER_MAX_CHUNKS) return "chunks must be 1 to 64";
    if (chunks == 1 && s->n_chunks != 1) return "this schedule has one chunk on a rank";
    if (chunks == 2 && s->n_chunks != 2) return "this schedule has two chunks on a rank";
    if (s->kind == AGOQ_SCHEDULE_INTERLEAVED) {
        if (s->group && (s->group < p || s->group > PLANNER_MAX_MICROBATCHES))
            return "interleaved: a group has at least as many micro-batches as there are ranks";
        if (s->group && s->n_chunks > 1 && m > s->group && m % s->group && m % s->group < p)
            return "interleaved: the last group of micro-batches is smaller than the number of ranks";
        if (s->ahead > PLANNER_MAX_MICROBATCHES) return "interleaved: too many forwards ahead";
    } else if (s->group || s->ahead) {
        return "only the interleaved schedule has groups and forwards ahead";
    }
    if (s->kind == AGOQ_SCHEDULE_DUALPIPE && (p % 2 || m % 2 || m < 2 * p))
        return "dualpipe needs an even number of ranks and an even number of micro-batches, twice the ranks "
               "or "
               "more";
    if (s->kind == AGOQ_SCHEDULE_DUALPIPEV && m < 2 * p)
        return "dualpipev needs at least twice as many micro-batches as ranks";
    return NULL;
}

uint32_t planner_route_pieces(planner_route route, uint32_t n_ranks, uint32_t n_chunks) {
    return route == PLANNER_ROUTE_TWO_WAY ? n_ranks : n_ranks * n_chunks;
}

uint32_t planner_route_piece(planner_route route, uint32_t n_ranks, uint32_t rank, uint32_t chunk) {
    switch (route) {
    case PLANNER_ROUTE_VEE:
        return chunk ? 2 * n_ranks - 1 - rank : rank;
    case PLANNER_ROUTE_TWO_WAY:
        return chunk ? n_ranks - 1 - rank : rank;
    default:
        return chunk * n_ranks + rank;
    }
}

uint32_t planner_schedule_pieces(const planner_schedule *s) {
    return planner_route_pieces(planner_schedule_route(s->kind), s->n_ranks, s->n_chunks);
}

uint32_t planner_schedule_piece(const planner_schedule *s, uint32_t rank, uint32_t chunk) {
    return planner_route_piece(planner_schedule_route(s->kind), s->n_ranks, rank, chunk);
}

uint32_t planner_schedule_group(const planner_schedule *s) {
    const uint32_t p = s->n_ranks, m = s->n_microbatches;
    uint32_t group = s->group ? s->group : p;
    if (s->group || m <= p || s->n_chunks == 1) return group;
    while (m % group && m % group < p) group++; /* ends at m */
    return group;
}

static uint32_t least(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

/* Few micro-batches: rank r has at most r + 1 of them in both chunks. */
static uint32_t vee_units(uint32_t m, uint32_t rank, uint32_t full) {
    return least(least(2 * m, m + rank + 1), full);
}

uint32_t planner_schedule_units(const planner_schedule *s, uint32_t rank) {
    const uint32_t p = s->n_ranks, m = s->n_microbatches, v = s->n_chunks;
    switch (s->kind) {
    case AGOQ_SCHEDULE_1F1B:
        return least(m, p - rank);
    case AGOQ_SCHEDULE_INTERLEAVED:
        return least(m * v, 2 * (p - rank - 1) + (v - 1) * planner_schedule_group(s) + s->ahead + 1);
    case AGOQ_SCHEDULE_ZB_H1:
        return least(m, p);
    case AGOQ_SCHEDULE_ZB_H2:
        return least(m, 2 * p - 1);
    case AGOQ_SCHEDULE_ZB_V:
        return vee_units(m, rank, 2 * p);
    case AGOQ_SCHEDULE_V_HALF:
        return vee_units(m, rank, (p + 2) / 2 * 2);
    case AGOQ_SCHEDULE_V_MIN:
        return vee_units(m, rank, (p + 4) / 3 * 2 - (p % 3 == 2 && rank == 0));
    case AGOQ_SCHEDULE_DUALPIPE:
        return p + 1;
    case AGOQ_SCHEDULE_DUALPIPEV:
        return 2 * p + 1;
    default:
        return m;
    }
}
