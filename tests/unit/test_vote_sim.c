/* The vote under a bad network and a busy operator, on virtual time: ranks run libagoq/vote.c; a model daemon
 * proposes plans and cuts budgets over links that lose, repeat and reorder; ranks restart (and then all run
 * the blocking vote of S15). On no step may two ranks that are not guarded use different plans, and no rank
 * may use a plan made under a budget that the daemon has called effective since. The same simulation with a
 * rule taken out must fail: that is checked first, since a simulation that cannot fail proves nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "libagoq/vote.h"
#include "planner/plan.h"

enum { MAX_RANKS = 6, STEPS = 120, MAX_PACKETS = 4096, MAX_PLANS = 256, SEEDS = 1500 };

/* Rules taken out, one at a time. */
typedef enum planted {
    PLANTED_NONE,
    PLANTED_APPLY_ON_RECEIPT, /* without S4 */
    PLANTED_VOTE_ON_SEQ,      /* only the low 24 bits of the id are voted on */
    PLANTED_NO_HASH,          /* two plans under one id */
    PLANTED_REPLACE_VOTED,    /* without S3: a plan that is voted on gives way to the next */
    PLANTED_NO_BUDGET_FENCE,  /* without S3: plans of older budgets are stored */
    PLANTED_FORGET_VOTE,      /* without S8's clause: CANCELLED names no running vote */
    PLANTED_NO_FIRST_VOTE,    /* without S15 */
    PLANTED_END
} planted;

typedef enum packet_kind {
    PACKET_PREPARE,
    PACKET_CANCEL,
    PACKET_ABORT,
    PACKET_PREPARED,
    PACKET_CANCELLED
} packet_kind;

typedef struct packet {
    int rank;
    int64_t due;
    packet_kind kind;
    uint64_t id, hash, budget; /* CANCELLED: applied id, voted id */
    uint32_t incarnation;
} packet;

typedef struct sim {
    planted bug;
    uint64_t random;
    int n_ranks;
    vote rank[MAX_RANKS];
    uint64_t words[MAX_RANKS][VOTE_WORDS];
    uint32_t incarnation[MAX_RANKS];
    packet packets[MAX_PACKETS];
    int n_packets;
    int64_t now;
    /* two daemons that may both believe they lead, with terms of their own; one of them owns the budgets */
    uint64_t plan_id[2], plan_hash[2];
    uint32_t seq[2], term[2];
    uint64_t budget, effective; /* versions; effective: no rank may use a plan of an older one */
    int confirmed[MAX_RANKS];
    uint64_t made_under_id[MAX_PLANS], made_under[MAX_PLANS];
    int n_plans;
    /* what was seen */
    int mixed, over_budget, switches, cuts, floors, keeps;
} sim;

static uint32_t dice(sim *s, uint32_t sides) {
    s->random ^= s->random << 13;
    s->random ^= s->random >> 7;
    s->random ^= s->random << 17;
    return (uint32_t)(s->random >> 20) % sides;
}

static uint64_t budget_of(const sim *s, uint64_t id) {
    for (int i = 0; i < s->n_plans; i++) {
        if (s->made_under_id[i] == id) return s->made_under[i];
    }
    return UINT64_MAX; /* the floor plan fits every budget that is not refused */
}

static void post_once(sim *s, packet p, int delay) {
    if (s->n_packets == MAX_PACKETS) return; /* lost */
    p.due = s->now + delay;
    s->packets[s->n_packets++] = p;
}

/* Lost one time in five, twice one time in five, late by up to 40 ticks: so also out of order. */
static void post(sim *s, packet p) {
    const uint32_t luck = dice(s, 5);
    if (luck == 0) return;
    post_once(s, p, (int)dice(s, dice(s, 3) ? 4 : 40));
    if (luck == 1) post_once(s, p, (int)dice(s, 40));
}

static void to_rank(sim *s, int rank, packet_kind kind, uint64_t id, uint64_t hash, uint64_t budget) {
    post(s, (packet){.rank = rank, .kind = kind, .id = id, .hash = hash, .budget = budget});
}

static void rank_hears(sim *s, const packet *p) {
    vote *v = &s->rank[p->rank];
    if (p->kind == PACKET_PREPARE) {
        if (s->bug == PLANTED_APPLY_ON_RECEIPT) {
            v->applied_id = p->id;
            v->applied_hash = p->hash;
            return;
        }
        if (s->bug == PLANTED_REPLACE_VOTED && v->running) v->voted_id = 0;
        if (s->bug == PLANTED_NO_BUDGET_FENCE) v->highest_budget = 0;
        const vote_answer answer = vote_prepare(v, p->id, p->hash, p->budget);
        if (answer == VOTE_STORED || answer == VOTE_KNOWN)
            post(s, (packet){.rank = p->rank, .kind = PACKET_PREPARED, .id = p->id, .hash = p->hash});
    } else if (p->kind == PACKET_CANCEL) {
        vote_heard(v, p->budget, 0);
        if (s->bug == PLANTED_NO_BUDGET_FENCE) vote_withdraw(v, 0, 1);
        const uint64_t voted = v->running && s->bug != PLANTED_FORGET_VOTE ? v->voted_id : 0;
        post(s, (packet){.rank = p->rank,
                         .kind = PACKET_CANCELLED,
                         .id = v->applied_id,
                         .hash = voted,
                         .budget = v->highest_budget,
                         .incarnation = s->incarnation[p->rank]});
    } else {
        vote_withdraw(v, p->id, 0);
    }
}

/* S8: a rank has confirmed a cut once neither its applied plan nor a running vote is of an older budget. */
static void daemon_hears(sim *s, const packet *p) {
    if (p->kind != PACKET_CANCELLED || p->budget < s->budget || p->incarnation != s->incarnation[p->rank])
        return;
    if (budget_of(s, p->id) < s->budget) return;
    if (p->hash && budget_of(s, p->hash) < s->budget) return;
    s->confirmed[p->rank] = 1;
    for (int r = 0; r < s->n_ranks; r++) {
        if (!s->confirmed[r]) return;
    }
    s->effective = s->budget;
}

static void deliver(sim *s) {
    for (int i = 0; i < s->n_packets;) {
        if (s->packets[i].due > s->now) {
            i++;
            continue;
        }
        const packet p = s->packets[i];
        s->packets[i] = s->packets[--s->n_packets];
        if (p.kind >= PACKET_PREPARED)
            daemon_hears(s, &p);
        else
            rank_hears(s, &p);
    }
}

static void daemon_acts(sim *s, int d) {
    const uint32_t what = dice(s, 100);
    if (what < 6 && s->n_plans < MAX_PLANS) { /* a new plan, whether or not the last one was ever applied */
        if (dice(s, 8) == 0) s->term[d]++, s->seq[d] = 0;
        s->plan_id[d] = plan_id_make(2 * s->term[d] + (uint32_t)d, (uint32_t)d, ++s->seq[d]);
        s->plan_hash[d] = 1 + dice(s, 1000);
        s->made_under_id[s->n_plans] = s->plan_id[d];
        s->made_under[s->n_plans++] = s->budget;
    } else if (what < 8) {
        if (s->plan_id[d]) {
            for (int r = 0; r < s->n_ranks; r++) to_rank(s, r, PACKET_ABORT, s->plan_id[d], 0, 0);
        }
    } else if (what < 10 && d == 0) { /* a budget cut: what is prepared under the old one must go */
        s->budget++;
        s->cuts++;
        memset(s->confirmed, 0, sizeof s->confirmed);
    }
    /* Everything repeats until it is out of date. */
    for (int r = 0; r < s->n_ranks; r++) {
        /* Two plans under one id: what a daemon that lost its state could say (S1). */
        const uint64_t twin = s->bug == PLANTED_NO_HASH && dice(s, 2);
        if (s->plan_id[d] && dice(s, 4) == 0)
            to_rank(s, r, PACKET_PREPARE, s->plan_id[d], s->plan_hash[d] + twin, budget_of(s, s->plan_id[d]));
        if (d == 0 && s->budget > 1 && dice(s, 4) == 0) to_rank(s, r, PACKET_CANCEL, 0, 0, s->budget);
    }
}

static uint64_t in_vote(const sim *s, uint64_t id) {
    return s->bug == PLANTED_VOTE_ON_SEQ && id ? plan_id_seq(id) : id;
}

static void say(sim *s, int r) {
    vote_start(&s->rank[r], s->words[r]);
    if (s->bug == PLANTED_VOTE_ON_SEQ) {
        s->words[r][0] = in_vote(s, s->words[r][0]);
        s->words[r][1] = ~s->words[r][0];
        s->words[r][2] = s->words[r][0] != 0;
        s->words[r][3] = ~s->words[r][2];
    }
    if (s->bug == PLANTED_NO_HASH) {
        s->words[r][2] = s->words[r][0] != 0;
        s->words[r][3] = ~s->words[r][2];
    }
}

static void read_vote(sim *s, int r, const uint64_t reduced[VOTE_WORDS]) {
    vote *v = &s->rank[r];
    uint64_t own[VOTE_WORDS];
    memcpy(own, reduced, sizeof own);
    if ((s->bug == PLANTED_VOTE_ON_SEQ || s->bug == PLANTED_NO_HASH) && vote_decide(reduced) == VOTE_SWITCH) {
        /* The planted words say less than the real ones: hand the rank what it would take for agreement. */
        own[0] = v->voted_id, own[1] = ~v->voted_id, own[2] = v->voted_hash, own[3] = ~v->voted_hash;
    }
    const vote_outcome outcome = vote_finish(v, own);
    assert_true(outcome != VOTE_BROKEN || s->bug != PLANTED_NONE);
    s->switches += outcome == VOTE_SWITCH;
    s->keeps += outcome == VOTE_KEEP;
    s->floors += outcome == VOTE_FLOOR;
}

static void reduce(const sim *s, uint64_t reduced[VOTE_WORDS]) {
    memset(reduced, 0xff, VOTE_WORDS * sizeof *reduced);
    for (int r = 0; r < s->n_ranks; r++) {
        for (int i = 0; i < VOTE_WORDS; i++) {
            if (s->words[r][i] < reduced[i]) reduced[i] = s->words[r][i];
        }
    }
}

/* A rank dies; the job comes back with a new communicator: every rank abandons its vote and runs a blocking
 * one. */
static void restart_rank(sim *s) {
    const int dead = (int)dice(s, (uint32_t)s->n_ranks);
    uint64_t reduced[VOTE_WORDS];
    memset(&s->rank[dead], 0, sizeof s->rank[dead]);
    s->incarnation[dead]++;
    s->confirmed[dead] = s->effective == s->budget; /* it starts on the floor plan */
    for (int r = 0; r < s->n_ranks; r++) {
        if (s->rank[r].running) (void)vote_finish(&s->rank[r], NULL);
        if (s->bug != PLANTED_NO_FIRST_VOTE) say(s, r);
    }
    if (s->bug == PLANTED_NO_FIRST_VOTE) return;
    reduce(s, reduced);
    for (int r = 0; r < s->n_ranks; r++) read_vote(s, r, reduced);
}

static void look(sim *s) {
    for (int r = 0; r < s->n_ranks; r++) {
        const vote *v = &s->rank[r];
        s->mixed += v->applied_id != s->rank[0].applied_id || v->applied_hash != s->rank[0].applied_hash;
        s->over_budget += budget_of(s, v->applied_id) < s->effective;
    }
}

static void run(sim *s, uint64_t seed, planted bug) {
    memset(s, 0, sizeof *s);
    s->bug = bug;
    s->random = seed * 0x9e3779b97f4a7c15ull + 1;
    for (int i = 0; i < 8; i++) (void)dice(s, 2);
    s->n_ranks = 2 + (int)dice(s, MAX_RANKS - 1);
    s->budget = s->effective = 1;
    s->term[0] = s->term[1] = 1;
    for (int step = 0; step < STEPS; step++) {
        uint64_t reduced[VOTE_WORDS];
        const int restarted = step > 0 && dice(s, 60) == 0;
        if (restarted) restart_rank(s);
        reduce(s, reduced);
        /* Ranks pass the boundary at different times: messages arrive in between. */
        const uint32_t first = dice(s, (uint32_t)s->n_ranks);
        uint64_t next[MAX_RANKS][VOTE_WORDS];
        for (int k = 0; k < s->n_ranks; k++) {
            const int r = (int)((first + (uint32_t)k) % (uint32_t)s->n_ranks);
            if (s->rank[r].running) read_vote(s, r, reduced);
            say(s, r);
            memcpy(next[r], s->words[r], sizeof next[r]);
            if (dice(s, 3) == 0) {
                s->now++;
                deliver(s);
            }
        }
        memcpy(s->words, next, sizeof next);
        for (uint32_t ticks = 1 + dice(s, 8); ticks; ticks--) {
            s->now++;
            daemon_acts(s, 0);
            if (dice(s, 3) == 0) daemon_acts(s, 1);
            deliver(s);
            look(s);
        }
    }
}

static void taking_a_rule_out_breaks_it(void **state) {
    (void)state;
    static sim s;
    for (int bug = PLANTED_NONE + 1; bug < PLANTED_END; bug++) {
        int mixed = 0, over_budget = 0;
        for (uint64_t seed = 1; seed <= 200; seed++) {
            run(&s, seed, (planted)bug);
            mixed += s.mixed != 0;
            over_budget += s.over_budget != 0;
        }
        print_message("rule %d taken out: mixed in %d, over budget in %d of 200 runs\n", bug, mixed,
                      over_budget);
        const int budget_rule = bug == PLANTED_NO_BUDGET_FENCE || bug == PLANTED_FORGET_VOTE;
        assert_true(budget_rule ? over_budget > 0 : mixed > 0);
    }
}

static void no_two_ranks_ever_use_different_plans(void **state) {
    (void)state;
    static sim s;
    long switches = 0, floors = 0, keeps = 0, cuts = 0, effective = 0;
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run(&s, seed, PLANTED_NONE);
        if (s.mixed) fail_msg("seed %d: two ranks used different plans", (int)seed);
        if (s.over_budget)
            fail_msg("seed %d: a plan of an older budget was used after the cut took effect", (int)seed);
        switches += s.switches;
        floors += s.floors;
        keeps += s.keeps;
        cuts += s.cuts;
        effective += s.effective > 1;
    }
    print_message(
        "%d runs: %ld switches, %ld kept, %ld to the floor, %ld budget cuts, effective in %ld runs\n", SEEDS,
        switches, keeps, floors, cuts, effective);
    /* It is a test only if all of this happens, often. */
    assert_true(switches > SEEDS && floors > SEEDS / 10 && cuts > SEEDS && effective > SEEDS / 10);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taking_a_rule_out_breaks_it),
        cmocka_unit_test(no_two_ranks_ever_use_different_plans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
