/* GPipe, 1F1B and interleaved 1F1B (Megatron-LM's order: arXiv 2104.04473). Backwards of a chunk run in the
 * order of its forwards in all three, so that gradients are added in one order and the schedules agree to the
 * last bit. The price for GPipe is none: its live count is all micro-batches anyway. */
#include "trainer/schedule.h"

#include <stdlib.h>

#include "trainer/options.h"

static int least(int a, int b) {
    return a < b ? a : b;
}

static schedule_op nth(const schedule *s, int what, int k) {
    const int group = s->pp * s->chunks, in = k % group / s->pp;
    if (s->kind != OPTIONS_INTERLEAVED) return (schedule_op){what, k, 0};
    return (schedule_op){what, k / group * s->pp + k % s->pp,
                         what == SCHEDULE_FORWARD ? in : s->chunks - 1 - in};
}

static int warm_up(const schedule *s, int stage) {
    const int all = s->microbatches * s->chunks;
    if (s->kind == OPTIONS_GPIPE) return all;
    if (s->kind == OPTIONS_1F1B) return least(all, s->pp - stage - 1);
    return least(all, 2 * (s->pp - stage - 1) + (s->chunks - 1) * s->pp);
}

void schedule_list(const schedule *s, int stage, schedule_op *ops) {
    const int all = s->microbatches * s->chunks, ahead = warm_up(s, stage);
    int n = 0;
    for (int k = 0; k < ahead; k++) ops[n++] = nth(s, SCHEDULE_FORWARD, k);
    for (int k = ahead; k < all; k++) {
        ops[n++] = nth(s, SCHEDULE_FORWARD, k);
        ops[n++] = nth(s, SCHEDULE_BACKWARD, k - ahead);
    }
    for (int k = all - ahead; k < all; k++) ops[n++] = nth(s, SCHEDULE_BACKWARD, k);
}

/* State of the play: per rank its list and position, whether its input was taken, and what is in its two
 * rings. */
typedef struct player {
    schedule_op *ops;
    int at, took, in_ring[2];
} player;

typedef struct play {
    const schedule *s;
    int slots;
    player *ranks;
    char *sent; /* [2][microbatch][virtual stage]: the message that enters this virtual stage was sent, not
                   yet taken */
} play;

static char *message(const play *p, int what, int microbatch, int virtual_stage) {
    const int n_virtual = p->s->pp * p->s->chunks;
    return &p->sent[(what * p->s->microbatches + microbatch) * n_virtual + virtual_stage];
}

/* One attempt of a rank to go on. */
static int advance(play *p, int rank) {
    player *me = &p->ranks[rank];
    const int pp = p->s->pp, n_virtual = pp * p->s->chunks, n = 2 * p->s->microbatches * p->s->chunks;
    if (me->at == n) return 0;
    const schedule_op *op = &me->ops[me->at];
    const int at = op->chunk * pp + rank, step = op->what == SCHEDULE_FORWARD ? 1 : -1;
    const int from = at - step, to = at + step;
    int moved = 0;
    if (!me->took) {
        if (from >= 0 && from < n_virtual) {
            char *m = message(p, op->what, op->microbatch, at);
            if (!*m) return 0;
            *m = 0;
            p->ranks[from % pp].in_ring[op->what]--;
        }
        me->took = moved = 1;
    }
    if (to >= 0 && to < n_virtual) {
        if (me->in_ring[op->what] == p->slots) return moved;
        me->in_ring[op->what]++;
        *message(p, op->what, op->microbatch, to) = 1;
    }
    me->took = 0;
    me->at++;
    return 1;
}

int schedule_completes(const schedule *s, int slots) {
    const int n = 2 * s->microbatches * s->chunks;
    play p = {s, slots, calloc((size_t)s->pp, sizeof(player)),
              calloc((size_t)(2 * s->microbatches * s->pp * s->chunks), 1)};
    int ok = p.ranks && p.sent, moved = 1, done = 0;
    for (int r = 0; ok && r < s->pp; r++) {
        p.ranks[r].ops = calloc((size_t)n, sizeof(schedule_op));
        if (!p.ranks[r].ops)
            ok = 0;
        else
            schedule_list(s, r, p.ranks[r].ops);
    }
    while (ok && moved) {
        moved = 0;
        for (int r = 0; r < s->pp; r++) moved |= advance(&p, r);
    }
    for (int r = 0; ok && r < s->pp; r++) done += p.ranks[r].at == n;
    for (int r = 0; p.ranks && r < s->pp; r++) free(p.ranks[r].ops);
    free(p.ranks);
    free(p.sent);
    return ok && done == s->pp;
}

int schedule_slots(const schedule *s) {
    int slots = 1;
    while (slots < s->microbatches * s->chunks && !schedule_completes(s, slots)) slots++;
    return slots;
}
