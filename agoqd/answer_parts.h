/* Parts of the answers to agoqctl. A reply is a tree of protobuf structs in one arena that is freed at once;
 * strings are made legal on the way in. Once a piece could not be had, the arena is `bad` and the whole reply
 * becomes an error. */
#ifndef AGOQD_ANSWER_PARTS_H
#define AGOQD_ANSWER_PARTS_H

#include "agoqd/core_budget.h"

typedef struct answer_block answer_block;
typedef struct answer_arena {
    answer_block *blocks;
    int bad;
} answer_arena;

void *answer_alloc(answer_arena *a, size_t bytes); /* zeroed; NULL: bad is set */
char *answer_text(answer_arena *a, const char *text);
void answer_free(answer_arena *a);

void answer_status(const core *c, answer_arena *a, int64_t now, Agoq__CtlReply *reply);
void answer_ranks(const core *c, answer_arena *a, int64_t now, Agoq__CtlReply *reply);
void answer_plan(const core *c, answer_arena *a, uint64_t id, Agoq__CtlReply *reply);
void answer_events(const core *c, answer_arena *a, Agoq__CtlReply *reply);
/* Which budgets an answer is about. */
typedef struct answer_which {
    const core_budget_request
        *changed;       /* those that this request names, and nothing below; NULL: look below */
    const char *device; /* "": all */
    int32_t stage;      /* -1: all */
    uint64_t since;     /* version of the last change, at least */
    int pending_first;
} answer_which;
/* As many as fit; if that is not all and nothing else is wrong, the code is 8. */
void answer_budgets(const core *c, answer_arena *a, const budgets *list, const answer_which *which,
                    Agoq__CtlReply *reply);
/* Stages of a problem and its solution; stage -1: all. With `current` every figure is of the plan that runs,
 * as long as all ranks run the same one. Nothing in the reply points into m or r. */
void answer_stages(const core *c, answer_arena *a, const merged *m, const planner_result *r, int32_t stage,
                   int current, Agoq__CtlReply *reply);

#endif
