/* What the files of planner/ share: bytes and peaks of a stage under given widths. Items are always in the
 * caller's order here; bits[i] is the width of items[i]. */
#ifndef PLANNER_INTERNAL_H
#define PLANNER_INTERNAL_H

#include "planner/knap.h"
#include "planner/planner.h"

#define PLANNER_BYTES_LIMIT ((uint64_t)1 << 56) /* no sum below may pass this: 64 PiB on one GPU */

/* E_INVAL: inconsistent; E_LIMIT: sizes that could overflow. */
AGOQ_MUST_USE agoq_status planner_stage_check(const planner_stage *stage);
/* Its parts: without items; one item, without sizes; sums over live rows with these bytes in the chunks. */
AGOQ_MUST_USE agoq_status planner_check_scalars(const planner_stage *stage);
AGOQ_MUST_USE agoq_status planner_item_check(const planner_stage *stage, const planner_item *item);
AGOQ_MUST_USE agoq_status planner_check_rows(const planner_stage *stage, const uint64_t *chunk);

/* Budget less margin; PLANNER_BYTES_LIMIT * 16 without a budget. */
uint64_t planner_available(const planner_stage *stage);
/* Width with the least bytes. */
uint8_t planner_least_bits(const planner_stage *stage, const planner_item *item);
void planner_least(const planner_stage *stage, uint8_t *bits);
int planner_allows(const planner_item *item, int bits);
/* The allowed width nearest to bits from below, else the least allowed one. */
uint8_t planner_nearest_bits(const planner_item *item, int bits);
int planner_has_choice(const planner_item *item); /* more than one width */

/* Per chunk: fixed bytes and items. */
void planner_chunk_bytes(const planner_stage *stage, const uint8_t *bits, uint64_t chunk[PLANNER_MAX_CHUNKS]);
/* Largest of the live rows, and which one binds (may be NULL). */
uint64_t planner_rows_peak(const planner_stage *stage, const uint64_t *chunk, uint32_t *binding);
uint64_t planner_activation_peak(const planner_stage *stage, const uint8_t *bits, uint32_t *binding);
/* Over all phases, with this much activation memory in the forward/backward phase. */
uint64_t planner_total_peak(const planner_stage *stage, uint64_t activation_bytes);
/* Peaks, slack or overshoot, objective, mean width; lower_bound is set to the objective. Zeroes the rest. */
void planner_measure(const planner_stage *stage, const uint8_t *bits, planner_stage_result *result);

/* Items of a stage that differ at most in layer, role and sensitivity. */
typedef struct planner_class {
    uint64_t bytes[AGOQ_N_WIDTHS]; /* of one item */
    const double *error;           /* [AGOQ_N_WIDTHS] */
    double worst;                  /* largest error of its widths */
    double sum, least_sensitivity; /* sum: of the finite ones */
    int64_t rows, cols;
    uint32_t widths, all_widths, tensors, n; /* widths: less what the hull dropped; n: items */
    uint32_t taken[AGOQ_N_WIDTHS];           /* items by width */
    uint32_t n_kinds, n_infinite;            /* n_infinite: items with an infinite sensitivity */
    uint8_t parted;                          /* some of its kinds are classes of their own in the knapsack */
    uint8_t chunk, least;                    /* least: index of the width of least bytes */
} planner_class;

/* Those of a class that have the same sensitivity, too. */
typedef struct planner_kind {
    double sensitivity;
    uint32_t of, n;                /* of: its class */
    uint32_t item;                 /* of the knapsack */
    uint32_t taken[AGOQ_N_WIDTHS]; /* items by width, where `whole` is 0 */
    uint8_t whole;                 /* 1 + index of the width that all take; 0: they differ */
    uint8_t alone; /* idem, of the problem being solved: the only width worth having; 0: there is a choice */
} planner_kind;

/* Memory for one stage after another, none with more than `most` items; kinds.c. */
typedef struct planner_space {
    planner_class *classes;
    planner_kind *kinds;
    planner_item *items; /* in (layer, role) order */
    uint32_t *kind_of;   /* [n_items] */
    uint32_t *slots;     /* hash tables of kinds and of classes, n_slots each */
    uint8_t *bits;       /* [n_items] */
    knap_class *options; /* of the knapsack */
    uint8_t *width;      /* [AGOQ_N_WIDTHS] of each of these: indices of widths */
    knap_item *knap_items;
    uint32_t *taken, *rows;
    int64_t *coef, *capacity;
    uint32_t n_classes, n_kinds, n_slots;
    knap_space knap;
} planner_space;
AGOQ_MUST_USE agoq_status planner_space_init(planner_space *space, uint32_t most_items, uint32_t most_rows,
                                             size_t most_cells);
void planner_space_fini(planner_space *space);
/* Checks as planner_stage_check does, and sorts the items into classes and kinds. hull_only: widths above the
 * lower convex hull of the error table are taken out of classes. dropped: [AGOQ_N_ROLES], sets of widths are
 * added.
 */
AGOQ_MUST_USE agoq_status planner_kinds_make(planner_space *space, const planner_stage *stage, int hull_only,
                                             uint8_t *dropped);
/* Bytes of each chunk with every kind at its least width. */
void planner_kinds_least(const planner_space *space, const planner_stage *stage, uint64_t *chunk);
/* As planner_measure, from kinds and what they take. */
void planner_kinds_measure(planner_space *space, const planner_stage *stage, planner_stage_result *result);

typedef struct planner_bound {
    int proved;         /* the answer is optimal */
    int best_possible;  /* no width could be better, whatever the budget */
    double lower_bound; /* of the objective; says nothing where a sensitivity is infinite */
    double relaxed;     /* idem, before any search */
    uint64_t work;
} planner_bound;

/* What each kind takes for the least harm whose activations take at most room_bytes, which the least widths
 * do not exceed. */
AGOQ_MUST_USE agoq_status planner_stage_solve(planner_space *space, const planner_stage *stage,
                                              uint64_t room_bytes, planner_bound *bound);
/* space->bits from what the kinds take: among equal items those that had more keep more, then lower layers
 * have more. previous may be NULL. */
void planner_spread(planner_space *space, const planner_stage *stage, const plan *previous);

/* Row of the error table for a role. */
const double *planner_errors_of(const planner_stage *stage, int role);
double planner_item_error(const planner_stage *stage, const planner_item *item, int bits);
/* Widths of the set that lie above the lower convex hull of the table (bits stored per element, error); or
 * only those that a narrower width equals or betters. */
uint32_t planner_above_hull(const double *error, uint32_t widths, int dominated_only);

/* planner_solve without levers, for a problem with same_as (groups.c), and for one without. */
AGOQ_MUST_USE agoq_status planner_solve_groups(const planner_problem *problem, planner_result *result);
AGOQ_MUST_USE agoq_status planner_solve_apart(const planner_problem *problem, planner_result *result);
/* Objective, bound, gap and worst stage from those of the stages. */
void planner_sum_up(const planner_problem *problem, planner_result *result);
/* Levers of every stage that does not fit even at its least widths. */
AGOQ_MUST_USE agoq_status planner_levers(const planner_problem *problem, planner_result *result);
/* Replaces a lever of the same kind; leaves out what saves nothing. */
void planner_lever_add(planner_stage_result *result, planner_lever lever);
/* Those that are enough first, each part by cost, then by kind. */
void planner_levers_sort(planner_stage_result *result);
/* Predicted peak of a stage at its least widths. */
uint64_t planner_least_peak(const planner_stage *stage);
/* What a lever's time is estimated with: products and copies of a current training GPU. */
#define PLANNER_LEVER_FLOPS 4e14  /* a second, bf16, as reached in training */
#define PLANNER_LEVER_HOST  25e9  /* bytes a second each way to host memory */
#define PLANNER_LEVER_LINK  200e9 /* bytes a second to a GPU of the same node */

#endif
