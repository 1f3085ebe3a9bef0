/* Pipeline schedules as full operation lists, and the live micro-batches that follow from them. Nothing is
 * assumed about a schedule that its list does not say: formulas are held against the lists by tests.
 *
 * How a planner or `agoqctl simulate` uses this:
 *     planner_schedule s = {.kind = AGOQ_SCHEDULE_V_HALF, .n_ranks = 8, .n_microbatches = 32, .n_chunks = 2};
 *     if ((why = planner_schedule_refused(&s))) say why;
 *     planner_schedule_live(&s, PLANNER_HELD_TO_WEIGHT, &set);   the rows of all ranks
 *     rank r: rows set.rows + set.start[r] * set.n_columns, set.start[r + 1] - set.start[r] of them
 * Which layers a rank holds: the model is cut into planner_schedule_pieces(&s) consecutive pieces, and chunk
 * c of rank r is piece planner_schedule_piece(&s, r, c). Loop: c p + r. V: r and 2p - 1 - r, so rank 0 holds
 * the embedding and the head. DualPipe: p pieces only; rank r holds r and p - 1 - r, so every piece (its
 * weights, gradients and optimizer state) is held by two ranks, the first for the first half of the
 * micro-batches, the other for the second half: twice the weights of a p-stage pipeline per rank. DualPipeV
 * has 2p pieces on p ranks, each held once (the "2x" of its authors counts pieces). Layers of a piece: the
 * caller's choice.
 *
 * One item of a live row counts the micro-batches held of one chunk. PLANNER_HELD_TO_WEIGHT is safe for every
 * tensor: held from its forward until its weight gradient (or its undivided backward) is done. Schedules that
 * split the backward free what no weight gradient needs (Q, K, V, log-sum-exp) already after the
 * input half: PLANNER_HELD_BOTH gives 2 n_chunks columns, c for tensors held to the weight gradient and
 * n_chunks + c for tensors held to the input gradient only, so a problem with 2 n_chunks chunks plans both.
 *
 * Pure; deterministic; memory and time are bounded by the limits below, and V-Half and V-Min by 280 ranks or
 * so (E_LIMIT): all their ranks are laid out together. */
#ifndef PLANNER_SCHEDULE_H
#define PLANNER_SCHEDULE_H

#include "planner/planner.h"

#define PLANNER_MAX_MICROBATCHES 65536u
#define PLANNER_MAX_OPS          (1u << 22) /* of all ranks together: 32 MiB */

typedef struct planner_schedule {
    agoq_schedule kind;
    uint32_t n_ranks, n_microbatches;
    uint32_t n_chunks; /* interleaved: any; the kinds on 2 chunks: 2; else 1 */
    uint32_t group; /* interleaved: micro-batches that pass a chunk in a row, at least n_ranks; 0: the least
                       that exists, n_ranks where that divides the micro-batches */
    uint32_t ahead; /* interleaved: forwards more before the first backward; 1 with Megatron's
                       overlap_moe_expert_parallel_comm */
} planner_schedule;

typedef enum planner_op_kind {
    PLANNER_OP_FORWARD,
    PLANNER_OP_BACKWARD, /* input and weight gradient at once */
    PLANNER_OP_INPUT,    /* the halves of it */
    PLANNER_OP_WEIGHT,
    PLANNER_OP_NONE /* in no list */
} planner_op_kind;

typedef struct planner_op {
    uint32_t microbatch;
    uint16_t chunk;
    uint16_t kind; /* planner_op_kind */
} planner_op;

/* Path of a micro-batch through (rank, chunk). TWO_WAY: one half of the micro-batches passes the ranks
 * upwards in chunk 0, the other downwards in chunk 1. */
typedef enum planner_route { PLANNER_ROUTE_LOOP, PLANNER_ROUTE_VEE, PLANNER_ROUTE_TWO_WAY } planner_route;

typedef struct planner_ops {
    planner_route route;
    uint32_t n_ranks, n_microbatches, n_chunks;
    uint32_t *start; /* [n_ranks + 1]: rank r does ops[start[r]] .. ops[start[r + 1] - 1], in this order */
    planner_op *ops;
} planner_ops;

/* "1f1b"; NULL if there is no such schedule. */
const char *planner_schedule_name(agoq_schedule kind);
/* All names, NULL-terminated, in the order of agoq_schedule. */
const char *const *planner_schedule_names(void);
/* 0; -1: unknown name. */
int planner_schedule_find(const char *name, agoq_schedule *kind);
/* Chunks that a rank must have; 0: any number (interleaved). */
uint32_t planner_schedule_chunks(agoq_schedule kind);
/* NULL; or why this schedule does not exist, a static sentence. */
const char *planner_schedule_refused(const planner_schedule *s);

/* Interleaved: the group, chosen if it is 0. The last group may be smaller, but not than n_ranks: with three
 * chunks or more the ranks would wait for each other for ever (unless it is the only group). */
uint32_t planner_schedule_group(const planner_schedule *s);
planner_route planner_schedule_route(agoq_schedule kind);
/* Pieces of the model, and the one that a rank's chunk is; of a route, and of a schedule's. */
uint32_t planner_route_pieces(planner_route route, uint32_t n_ranks, uint32_t n_chunks);
uint32_t planner_route_piece(planner_route route, uint32_t n_ranks, uint32_t rank, uint32_t chunk);
uint32_t planner_schedule_pieces(const planner_schedule *s);
uint32_t planner_schedule_piece(const planner_schedule *s, uint32_t rank, uint32_t chunk);
/* Closed form of the largest row sum (PLANNER_HELD_TO_WEIGHT) of a rank. Equal to what the lists
 * give, but for v-min with few micro-batches, where it may be one above (p = 5, m = 3). */
uint32_t planner_schedule_units(const planner_schedule *s, uint32_t rank);

/* The lists of all ranks. E_INVAL: refused; E_LIMIT; E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_ops_make(const planner_schedule *s, planner_ops *out);
void planner_ops_fini(planner_ops *ops);

/* A list written by hand (# starts a comment):
 *     ranks 2
 *     microbatches 2
 *     chunks 1                  may be left out: 1
 *     route loop                or vee, two-way; may be left out: loop
 *     rank 0: F0 F1 B0 I1 W1    F forward, B backward, I its input half, W its weight half; F3.1: chunk 1
 *     rank 1: F0 B0 F1 B1       a rank may be continued on a further line
 * Checks it as planner_ops_check does. E_FORMAT: error has "line N: what is wrong"; E_LIMIT, E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_ops_read(const char *text, size_t size, planner_ops *out, char *error,
                                           size_t error_size);

typedef struct planner_ops_fault {
    uint32_t rank, at; /* at: index among the operations of the rank; their number if one is missing */
    const char *what;  /* a static sentence */
    planner_op op;     /* the one that is wrong or missing; none: kind PLANNER_OP_NONE */
} planner_ops_fault;

/* Plays the lists: every micro-batch goes forwards once and backwards once through every chunk of its path
 * (whole, or input half then weight half), and no rank waits for ever. E_INVAL: no, *fault says where.
 * E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_ops_check(const planner_ops *ops, planner_ops_fault *fault);

typedef enum planner_held { PLANNER_HELD_TO_WEIGHT, PLANNER_HELD_BOTH } planner_held;

/* Pareto-maximal rows of one rank, in descending lexicographic order; at most max_rows, or E_LIMIT. The list
 * must have passed planner_ops_check. */
AGOQ_MUST_USE agoq_status planner_ops_live(const planner_ops *ops, uint32_t rank, planner_held held,
                                           uint32_t *rows, uint32_t max_rows, uint32_t *n_rows);

typedef struct planner_live_set {
    uint32_t n_ranks, n_columns;
    uint32_t *start; /* [n_ranks + 1], in rows */
    uint32_t *rows;
} planner_live_set;

/* Live rows of all ranks, at most PLANNER_MAX_LIVE each. Micro-batches that show nothing new are left out of
 * the play, so the time does not grow with their number. E_INVAL: refused; E_LIMIT; E_NOMEM. */
AGOQ_MUST_USE agoq_status planner_schedule_live(const planner_schedule *s, planner_held held,
                                                planner_live_set *out);
/* The same for lists from a file. */
AGOQ_MUST_USE agoq_status planner_ops_live_all(const planner_ops *ops, planner_held held,
                                               planner_live_set *out);
void planner_live_set_fini(planner_live_set *set);

#endif
