/* The in-band vote: which plan a rank may hold, vote for, and apply (safety rules S3, S4, S5 and S15 of
 * docs/PROTOCOL.md). Pure: no I/O, clock, memory or locks, so that the simulation in
 * tests/unit/test_vote_sim.c runs the code that trains.
 *
 * A vote is six 64-bit words, reduced by MIN over all ranks: {P, ~P, H, ~H, A, ~A}, P and H the prepared plan
 * (0: none), A the applied one. MIN over a word and its complement gives minimum and maximum at once, hence
 * "all equal". The trade-off: unanimity or nothing, so one rank without the plan costs every rank one more
 * step on the old one. */
#ifndef LIBAGOQ_VOTE_H
#define LIBAGOQ_VOTE_H

#include <stdint.h>

#define VOTE_WORDS 6

typedef struct vote {
    uint64_t prepared_id, prepared_hash, prepared_budget; /* at most one prepared plan; id 0: none */
    uint64_t applied_id, applied_hash;                    /* 0: the floor plan */
    uint64_t highest_budget, highest_term;                /* seen in any message */
    uint64_t voted_id, voted_hash;                        /* of the running vote */
    int running;                                          /* started and not read yet */
    int drop; /* the prepared plan was withdrawn while it was voted on: goes once the vote is read */
} vote;

typedef enum vote_answer {
    VOTE_STORED,     /* is now the prepared plan; an older one that was not voted on is gone */
    VOTE_KNOWN,      /* is prepared or applied already */
    VOTE_BUSY,       /* a running vote is on another plan, or on this one and it was withdrawn */
    VOTE_OLD_BUDGET, /* made under a budget version below the highest seen */
    VOTE_OLD_TERM,
    VOTE_SAME_ID /* that id is known with another hash */
} vote_answer;

typedef enum vote_outcome {
    VOTE_SWITCH, /* the prepared plan is now the applied one, on every rank */
    VOTE_KEEP,
    VOTE_FLOOR, /* ranks disagree on what is applied: all are now on the floor plan */
    VOTE_BROKEN /* the reduction gave what it cannot give: nothing changed */
} vote_outcome;

/* S5 on reduced words, and nothing else. */
vote_outcome vote_decide(const uint64_t reduced[VOTE_WORDS]);

/* PREPARE arrived. id and hash are not 0, hash is already verified against the bytes. */
vote_answer vote_prepare(vote *v, uint64_t id, uint64_t hash, uint64_t budget_version);
/* The daemon told its budget version and term: a prepared plan made under less is withdrawn. */
void vote_heard(vote *v, uint64_t budget_version, uint64_t term);
/* CANCEL or ABORT of `id`, or of any plan. A plan that is voted on stays until the vote is read. */
void vote_withdraw(vote *v, uint64_t id, int any);

/* Starts a vote on what is held now. No vote may be running. */
void vote_start(vote *v, uint64_t words[VOTE_WORDS]);
/* Reads the running vote. reduced NULL: it was lost; nothing changes but that the plan is free again. */
vote_outcome vote_finish(vote *v, const uint64_t reduced[VOTE_WORDS]);
/* A rank without a communicator: the prepared plan, if any, becomes the applied one. VOTE_SWITCH or
 * VOTE_KEEP. */
vote_outcome vote_alone(vote *v);

#endif
