/* The planner: a width for every (stage, layer, role) such that each stage fits its budget at the least harm
 * to the gradient. Pure: no I/O, no clock, deterministic, integer bytes; used by agoqd, `agoqctl simulate`
 * and the tests.
 *
 * For every stage: max over phases of static + workspace (+ in the forward/backward phase: max over live
 * vectors of sum over chunks live[c] * (fixed_bytes[c] + packed bytes of the chunk's items)) <= budget * (1 -
 * margin). Objective: minimise sum over items of sensitivity * err(width), err = squared relative error
 * (planner_error). Stages are independent once budgets and live vectors are known, but for those that hold
 * the same tensors (same_as). */
#ifndef PLANNER_PLANNER_H
#define PLANNER_PLANNER_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/agoq.h"
#include "planner/plan.h"

#define PLANNER_MAX_ITEMS     (1u << 20)
#define PLANNER_MAX_CHUNKS    64
#define PLANNER_MAX_LIVE      512 /* room for the live vectors of every schedule here up to p = 64, v = 8 */
#define PLANNER_ALLOC_CACHING UINT64_MAX /* alloc_round_bytes: as PyTorch's caching allocator */
#define PLANNER_NO_BUDGET     UINT64_MAX /* budget_bytes of a stage without one; 0 in the plan bytes */

/* What one micro-batch saves for (layer, role) on one stage: count tensors of rows x cols, packed apart. */
typedef struct planner_item {
    uint16_t layer;
    uint8_t role;
    uint8_t chunk;
    uint32_t count;
    int64_t rows, cols;
    uint32_t widths;    /* set of AGOQ_MASK_*, not empty */
    double sensitivity; /* >= 0; NaN counts as +inf */
} planner_item;

typedef struct planner_phase {
    uint64_t static_bytes, workspace_bytes;
} planner_phase;

/* Squared relative error of each width, by role: what ranks measured in place of planner_error. */
typedef struct planner_errors {
    double of[AGOQ_N_ROLES][AGOQ_N_WIDTHS];
} planner_errors;

typedef struct planner_stage {
    uint64_t budget_bytes, budget_version;
    uint32_t margin_ppm; /* of the budget, kept free */
    planner_phase phase[AGOQ_N_PHASES];
    uint64_t
        alloc_round_bytes; /* every allocation is rounded up to this; 0, 1: exact; PLANNER_ALLOC_CACHING */
    uint32_t n_chunks, n_items, n_live;
    const uint64_t *fixed_bytes; /* [n_chunks] per micro-batch: saved and never packed */
    const planner_item *items;
    const uint32_t *live;         /* n_live rows of n_chunks: live micro-batches at each possible peak */
    const planner_errors *errors; /* NULL: planner_error for every role */
    uint64_t
        layer_static_bytes; /* of static bytes: what one layer's weights and their state take; 0: not known */
} planner_stage;

/* BUDGET: fill each budget. EQUALIZE (AGoQ): no stage above the activation peak of the most loaded stage at
 * its least widths (and never above its budget). */
typedef enum planner_mode { PLANNER_BUDGET, PLANNER_EQUALIZE } planner_mode;

/* SUM: least sum of the stages' harm. MINIMAX: least harm of the worst stage, then least sum. Stages have
 * their own budgets and share no tensor, so the plan that is best for each is best for both; what differs is
 * what the result calls its objective, bound and gap. */
typedef enum planner_objective { PLANNER_SUM, PLANNER_MINIMAX } planner_objective;

typedef struct planner_problem {
    planner_mode mode;
    uint32_t n_stages;
    const planner_stage *stages;
    planner_objective objective;
    const plan *previous; /* equal tensors keep what they had where that costs nothing; may be NULL */
    int hull_only;        /* use only widths on the lower convex hull of the error table */
    /* [n_stages]: the first stage that holds the same tensors, and so runs the same widths (itself: none
     * before it); NULL: no tensor lies on two stages. Plan entries name the first. */
    const uint32_t *same_as;
} planner_problem;

/* Why a stage got what it got; bits of a mask. */
enum {
    PLANNER_WHY_BUDGET_BINDS = 1, /* the budget stopped a further upgrade */
    PLANNER_WHY_ALL_AT_MAX = 2,   /* every item has its largest width */
    PLANNER_WHY_LIVE_ABOVE_SCHEDULE =
        4, /* observed live counts exceed the schedule's formula, and were used (set by callers) */
    PLANNER_WHY_EQUALIZED = 8,
    PLANNER_WHY_INFEASIBLE = 16,
    PLANNER_WHY_STATIC_ALONE =
        32 /* infeasible, and no width could help: static + workspace exceed the budget */
};

/* New kinds go last: names and numbers are shown to users. */
typedef enum planner_lever_kind {
    PLANNER_LEVER_RECOMPUTE_LAYERS,    /* amount: layers that keep only their input; to: PLANNER_LEVER_ALL
                                          where a stage has no more */
    PLANNER_LEVER_MOVE_LAYERS,         /* amount: layers, to stage `to` */
    PLANNER_LEVER_FEWER_LIVE,          /* amount: micro-batches less alive */
    PLANNER_LEVER_LOWER_PIN,           /* role: the pinned role; amount: the width it would need */
    PLANNER_LEVER_SHARD_OPTIMIZER,     /* saves_bytes: with the optimizer sharded over DP */
    PLANNER_LEVER_RECOMPUTE_GATE_UP,   /* amount: layers whose gate and up are computed again */
    PLANNER_LEVER_OFFLOAD_LAYERS,      /* amount: layers whose saved tensors wait in host memory */
    PLANNER_LEVER_CHUNK_LOSS,          /* amount: parts of the cross-entropy */
    PLANNER_LEVER_RAISE_TP,            /* amount: tensor-parallel ranks */
    PLANNER_LEVER_RAISE_CP,            /* amount: context-parallel ranks */
    PLANNER_LEVER_OTHER_SCHEDULE,      /* amount: agoq_schedule; to: its chunks */
    PLANNER_LEVER_EXPANDABLE_SEGMENTS, /* amount: the margin that is enough with them, ppm */
    PLANNER_N_LEVERS
} planner_lever_kind;

typedef struct planner_lever {
    planner_lever_kind kind;
    int32_t amount, to, role;
    uint64_t saves_bytes; /* on the stage that overshoots */
    int enough;           /* 1: removes the whole overshoot by itself */
    double cost_ms;       /* estimated: added to each micro-batch on this stage (see levers.c); 0: none */
} planner_lever;

#define PLANNER_MAX_LEVERS 16
#define PLANNER_LEVER_ALL  INT32_MAX

typedef struct planner_stage_result {
    uint64_t predicted_peak_bytes;  /* max over phases */
    uint64_t activation_peak_bytes; /* saved activations alone */
    uint64_t activation_peak_bytes16;
    uint64_t slack_bytes;          /* budget * (1 - margin) - predicted; 0 if infeasible */
    uint64_t overshoot_bytes;      /* infeasible: the least possible */
    uint32_t binding_live;         /* row of `live` that binds */
    uint32_t why;                  /* PLANNER_WHY_* */
    double objective, lower_bound; /* of this stage; equal when proved optimal */
    double relaxed_bound; /* by Lagrangian relaxation alone: what no plan can beat, not even in fractions */
    double bits_mean;     /* by elements, over items with more than one width allowed; 0 if there is none */
    uint32_t n_levers;
    planner_lever levers[PLANNER_MAX_LEVERS];
} planner_stage_result;

typedef struct planner_result {
    int feasible;
    plan plan; /* all items of all stages; the all-minimum plan where a stage is infeasible */
    planner_stage_result *stages;       /* [n_stages] */
    double objective, lower_bound, gap; /* of the problem's objective; gap: relative, 0 when proved */
    uint32_t worst_stage;
    /* By role, widths that no item of it was given a chance to use: with hull_only those above the hull, else
     * those with no less error than a narrower width. */
    uint8_t dropped_widths[AGOQ_N_ROLES];
} planner_result;

/* OK also when infeasible (look at result->feasible). E_INVAL: inconsistent problem, or a (layer, role) pair
 * that occurs twice outside of same_as; E_NOMEM; E_LIMIT: more than PLANNER_MAX_ITEMS items or other caps (a
 * plan of more than PLAN_MAX_ENTRIES is solved, but plan_encode refuses it). Does not depend on the order of
 * items. Ties: fewer distinct widths, then equal tensors as in the previous plan, then more for lower layers.
 * objective is +inf where any sensitivity is. Where gap is 0 the plan is optimal to 2^-50 of the harm at
 * least widths (with hull_only: among plans of these widths). */
AGOQ_MUST_USE agoq_status planner_solve(const planner_problem *problem, planner_result *result);
void planner_result_fini(planner_result *result);
/* Hash of the canonical bytes; E_LIMIT: the plan is too large to be encoded. */
AGOQ_MUST_USE agoq_status planner_result_hash(const planner_result *result, uint64_t *hash);

/* One stage for a group of GPUs that share a plan: the members' items are the same tensors (same order,
 * layer, role, chunk), perhaps of different sizes and with different widths allowed; budgets, static and
 * workspace bytes may differ. What fits *out fits every member. The arrays of *out are the caller's: items
 * [n_items], fixed [n_chunks], live [sum of the members' n_live * n_chunks]. E_INVAL: not the same tensors,
 * or a tensor with no width in common, or larger on one member at one width
 * and on another at another; E_LIMIT: more than PLANNER_MAX_LIVE rows. */
AGOQ_MUST_USE agoq_status planner_share(const planner_stage *members, uint32_t n_members, planner_item *items,
                                        uint64_t *fixed, uint32_t *live, planner_stage *out);

/* "recompute_layers" etc.; NULL: no such kind. And a sentence without a full stop; role names as in
 * AGOQ_ROLES. */
const char *planner_lever_name(planner_lever_kind kind);
void planner_lever_text(const planner_lever *lever, uint32_t stage, char *text, size_t size);

/* AGoQ's own rule on the same formats and pins, for comparison: live units N of each stage (largest live row
 * sum), ideal width 4 * N_0 / N_i, taken to the nearest of 4, 5, 6, 8 (halfway and 7.x up). bits: [n_stages].
 */
AGOQ_MUST_USE agoq_status planner_paper_rule(const uint32_t *live_units, uint32_t n_stages, uint8_t *bits);
/* Bytes and objective of the plan in which every item of stage i has bits[i], or where that is not allowed
 * the nearest allowed width below it, or its least one (so pinned items have their only width); fills
 * predicted and activation peaks and the objective of each stage. */
AGOQ_MUST_USE agoq_status planner_evaluate(const planner_problem *problem, const uint8_t *bits,
                                           planner_stage_result *stages);

/* Peaks, slack or overshoot, objective and mean width of the plan p as it is (NULL: the floor plan), whether
 * it fits or not; of the reasons only ALL_AT_MAX. An item that p does not have counts 16 bits, as ranks do.
 * E_INVAL, E_LIMIT, E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_measure_plan(const planner_problem *problem, const plan *p,
                                               planner_stage_result *stages);

/* Squared relative error of a width on near-Gaussian data, block 64, signed scale, all levels. 0 for an
 * unknown width. */
double planner_error(int bits);
/* Bytes that `count` tensors of an item take at a width, allocator rounding included. */
uint64_t planner_item_bytes(const planner_item *item, int bits, uint64_t alloc_round_bytes);
/* What an allocator takes for so many bytes (alloc_round_bytes of a stage). UINT64_MAX: does not fit. */
uint64_t planner_alloc_rounded(uint64_t bytes, uint64_t alloc_round_bytes);

/* Live micro-batches. Writes Pareto-maximal vectors of (live per chunk) of a pipeline rank: rows of n_chunks,
 * at most max_rows of them, *n_rows set, from the schedule's own operation order (planner/schedule.h has
 * more: groups, all ranks at once, lists from files). Activations count until their weight gradient. E_INVAL:
 * the schedule does not exist for this shape (planner_schedule_refused); E_LIMIT: more rows; E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_live(agoq_schedule schedule, uint32_t n_stages, uint32_t stage,
                                       uint32_t n_microbatches, uint32_t n_chunks, uint32_t *rows,
                                       uint32_t max_rows, uint32_t *n_rows);
/* Largest sum over chunks of any row. */
uint32_t planner_live_units(const uint32_t *rows, uint32_t n_rows, uint32_t n_chunks);

#endif
