/* From what single ranks hold to one planner problem: all ranks of a stage run one plan, so a stage has the
 * least budget and the most bytes of its ranks. What one layer's weights take of a rank's static bytes no
 * rank says: layer_static_bytes stays 0, and the lever that moves layers takes an equal share. Also says what
 * is still missing, or which ranks contradict each other, in words that `agoqctl status` shows. */
#ifndef AGOQD_MERGE_H
#define AGOQD_MERGE_H

#include "agoqd/budgets.h"
#include "agoqd/sessions.h"

typedef enum merge_status {
    MERGE_OK,
    MERGE_WAIT,     /* a rank, its profile, its first step or a budget is missing */
    MERGE_CONFLICT, /* ranks contradict each other, or the configuration them */
    MERGE_NOMEM
} merge_status;

/* What a merged stage was made of, for the words around a plan. */
typedef struct merge_stage {
    planner_item *items;
    uint64_t *fixed_bytes;
    uint32_t *live;
    uint32_t live_units, formula_units;
    int above_schedule;
    int32_t tightest_rank; /* whose budget it is */
} merge_stage;

typedef struct merged {
    planner_problem problem;
    planner_stage *stages; /* [n_stages]: problem.stages */
    merge_stage *made;     /* [n_stages] */
} merged;

typedef enum merge_purpose {
    MERGE_TO_PLAN, /* every rank live, with its first step observed and a budget */
    MERGE_TO_JUDGE /* what is known is enough: silent ranks count, a missing budget is unlimited */
} merge_purpose;

/* caps: [n_stages] bytes that the memory guard allows below the budget, 0: none; may be NULL. text is set
 * unless MERGE_OK. need_budgets 0: a missing budget is unlimited instead of a reason to wait. */
merge_status merge_build(const sessions *t, const budgets *b, const conf *c, const uint64_t *caps,
                         merge_purpose purpose, merged *out, char *text, size_t text_size);
void merge_fini(merged *m);

#endif
