/* See merge.h. */
#include "agoqd/merge.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "agoq/agoq.h"
#include "common/mem.h"
#include "common/most.h"

void merge_fini(merged *m) {
    for (uint32_t s = 0; m->made && s < m->problem.n_stages; s++) {
        mem_free(m->made[s].items);
        mem_free(m->made[s].fixed_bytes);
        mem_free(m->made[s].live);
    }
    mem_free(m->made);
    mem_free(m->stages);
    *m = (merged){0};
}

/* What a rank still lacks, worst first; MISSING_NOTHING: it is complete. */
enum { MISSING_RANK, MISSING_LIFE, MISSING_PROFILE, MISSING_STEP, MISSING_BUDGET, MISSING_NOTHING };

static int missing_of(const session *s, const budgets *b, merge_purpose purpose) {
    int judge = purpose == MERGE_TO_JUDGE;
    if (s->state == SESSION_NONE) return MISSING_RANK;
    if (judge ? !sessions_present(s) : s->state != SESSION_LIVE) return MISSING_LIFE;
    if (!s->has_held) return MISSING_PROFILE;
    if (judge ? s->held.n_live == 0 : s->held.observed_steps == 0) return MISSING_STEP;
    const budget *device = judge ? NULL : budgets_find(b, s->who.device);
    return !judge && (!device || device->bytes == 0) ? MISSING_BUDGET : MISSING_NOTHING;
}

/* Describes the rank that lacks most; 1: something is missing. */
static int something_missing(const sessions *t, const budgets *b, merge_purpose purpose, char *text,
                             size_t text_size) {
    static const char *const words[] = {"has not connected yet", "", "has not sent its profile yet",
                                        "has not finished its first step yet", "has no budget"};
    if (t->world == 0) {
        snprintf(text, text_size, "no rank has connected yet");
        return 1;
    }
    uint32_t n_missing = 0;
    int worst = MISSING_NOTHING;
    const session *who = NULL;
    for (int32_t i = 0; i < t->world; i++) {
        int missing = missing_of(&t->ranks[i], b, purpose);
        n_missing += missing != MISSING_NOTHING;
        if (missing < worst) {
            worst = missing;
            who = &t->ranks[i];
        }
    }
    if (!who) return 0;
    char name[200] = "";
    if (who->state != SESSION_NONE)
        snprintf(name, sizeof name, " (device %s, stage %d)", who->who.device, who->who.stage);
    snprintf(text, text_size, "rank %d%s %s%s; waiting for %u of %d ranks", who->who.rank, name,
             worst == MISSING_LIFE ? "is " : words[worst],
             worst == MISSING_LIFE ? session_state_name(who->state) : "", n_missing, t->world);
    return 1;
}

/* The widths that the ranks and the operator both allow. 0: none. */
static uint32_t allowed(const planner_item *item, const conf *c) {
    uint32_t operators = c->role_widths[item->role];
    return operators ? item->widths & operators : item->widths;
}

/* Takes over the first rank of a stage. */
static int first_rank(const held *h, merge_stage *made, planner_stage *stage) {
    *stage = held_stage(h);
    size_t n_live = (size_t)h->n_live * h->n_chunks;
    made->items = mem_zalloc(h->n_items, sizeof *made->items);
    made->fixed_bytes = mem_zalloc(h->n_chunks, sizeof *made->fixed_bytes);
    made->live = mem_zalloc(n_live, sizeof *made->live);
    if (!made->items || !made->fixed_bytes || !made->live) return -1;
    memcpy(made->items, h->items, h->n_items * sizeof *made->items);
    memcpy(made->fixed_bytes, h->fixed_bytes, h->n_chunks * sizeof *made->fixed_bytes);
    memcpy(made->live, h->live, n_live * sizeof *made->live);
    stage->items = made->items;
    stage->fixed_bytes = made->fixed_bytes;
    stage->live = made->live;
    made->live_units = h->live_units;
    made->formula_units = h->formula_units;
    made->above_schedule = h->above_schedule;
    return 0;
}

/* Adds the live rows of another rank that no row covers yet. */
static int add_live(const held *h, merge_stage *made, planner_stage *stage) {
    uint32_t n = stage->n_live, chunks = h->n_chunks;
    uint32_t *live = mem_realloc(made->live, (size_t)(n + h->n_live) * chunks, sizeof *live);
    if (!live) return -1;
    for (uint32_t r = 0; r < h->n_live; r++) {
        const uint32_t *row = h->live + (size_t)r * chunks;
        int covered = 0;
        for (uint32_t k = 0; k < n && !covered; k++) {
            uint32_t c = 0;
            while (c < chunks && row[c] <= live[(size_t)k * chunks + c]) c++;
            covered = c == chunks;
        }
        if (!covered) memcpy(live + (size_t)n++ * chunks, row, chunks * sizeof *row);
    }
    made->live = live;
    stage->live = live;
    stage->n_live = n;
    made->above_schedule |= h->above_schedule;
    if (h->live_units > made->live_units) made->live_units = h->live_units;
    return 0;
}

/* Adds a further rank of the stage. -1: no memory, 1: it contradicts the others (text is set). */
static int further_rank(const held *h, int32_t rank, int32_t stage_no, merge_stage *made,
                        planner_stage *stage, char *text, size_t text_size) {
    int same = h->n_chunks == stage->n_chunks && h->n_items == stage->n_items &&
               h->alloc_round_bytes == stage->alloc_round_bytes;
    for (uint32_t i = 0; same && i < h->n_items; i++) {
        const planner_item *a = &made->items[i], *b = &h->items[i];
        same = a->layer == b->layer && a->role == b->role && a->chunk == b->chunk && (a->widths & b->widths);
    }
    if (!same) {
        snprintf(text, text_size,
                 "rank %d does not hold the same layers, roles and widths as the others of stage %d", rank,
                 stage_no);
        return 1;
    }
    for (uint32_t i = 0; i < h->n_items; i++) {
        planner_item *to = &made->items[i];
        const planner_item *from = &h->items[i];
        uint32_t widths = to->widths & from->widths;
        double sensitivity = to->sensitivity > from->sensitivity ? to->sensitivity : from->sensitivity;
        if (planner_item_bytes(from, 16, h->alloc_round_bytes) >
            planner_item_bytes(to, 16, h->alloc_round_bytes))
            *to = *from;
        to->widths = widths;
        to->sensitivity = sensitivity;
    }
    for (uint32_t c = 0; c < h->n_chunks; c++)
        made->fixed_bytes[c] = most_u64(made->fixed_bytes[c], h->fixed_bytes[c]);
    for (int p = 0; p < AGOQ_N_PHASES; p++) {
        planner_phase *to = &stage->phase[p];
        to->static_bytes = most_u64(to->static_bytes, h->phase[p].static_bytes);
        to->workspace_bytes = most_u64(to->workspace_bytes, h->phase[p].workspace_bytes);
    }
    return add_live(h, made, stage);
}

static void take_budget(const budget *b, int32_t rank, merge_stage *made, planner_stage *stage) {
    uint64_t bytes = b && b->bytes ? b->bytes : PLANNER_NO_BUDGET;
    if (made->tightest_rank >= 0 && bytes > stage->budget_bytes) return;
    uint64_t version = b ? b->version : 0;
    int tie = made->tightest_rank >= 0 && bytes == stage->budget_bytes;
    stage->budget_version = tie ? most_u64(stage->budget_version, version) : version;
    stage->budget_bytes = bytes;
    if (!tie) made->tightest_rank = rank;
}

/* Margin such that no more than cap of the budget is used. */
static uint32_t capped_margin(uint64_t budget_bytes, uint32_t margin_ppm, uint64_t cap) {
    if (!cap || budget_bytes == PLANNER_NO_BUDGET || cap >= budgets_usable(budget_bytes, margin_ppm))
        return margin_ppm;
    double keep = (double)cap / (double)budget_bytes * 1e6;
    uint32_t margin = 1000000 - (uint32_t)keep;
    return margin > margin_ppm ? margin : margin_ppm;
}

static merge_status add_rank(const session *s, const budgets *b, merged *out, char *text, size_t text_size) {
    uint32_t no = (uint32_t)s->who.stage;
    merge_stage *made = &out->made[no];
    planner_stage *stage = &out->stages[no];
    int bad = !made->items ? first_rank(&s->held, made, stage)
                           : further_rank(&s->held, s->who.rank, s->who.stage, made, stage, text, text_size);
    if (bad) return bad < 0 ? MERGE_NOMEM : MERGE_CONFLICT;
    take_budget(budgets_find(b, s->who.device), s->who.rank, made, stage);
    return MERGE_OK;
}

static merge_status finish(const conf *c, const uint64_t *caps, merged *out, char *text, size_t text_size) {
    for (uint32_t s = 0; s < out->problem.n_stages; s++) {
        planner_stage *stage = &out->stages[s];
        if (!out->made[s].items) {
            snprintf(text, text_size, "no rank runs stage %u of %u", s, out->problem.n_stages);
            return MERGE_CONFLICT;
        }
        for (uint32_t i = 0; i < stage->n_items; i++) {
            planner_item *item = &out->made[s].items[i];
            item->widths = allowed(item, c);
            if (item->widths) continue;
            snprintf(
                text, text_size,
                "stage %u, layer %u: no width of role %u is allowed by both the ranks and allowed_widths", s,
                item->layer, item->role);
            return MERGE_CONFLICT;
        }
        stage->margin_ppm = capped_margin(stage->budget_bytes, c->margin_ppm, caps ? caps[s] : 0);
    }
    return MERGE_OK;
}

merge_status merge_build(const sessions *t, const budgets *b, const conf *c, const uint64_t *caps,
                         merge_purpose purpose, merged *out, char *text, size_t text_size) {
    *out = (merged){0};
    if (something_missing(t, b, purpose, text, text_size)) return MERGE_WAIT;
    out->stages = mem_zalloc((size_t)t->n_stages, sizeof *out->stages);
    out->made = mem_zalloc((size_t)t->n_stages, sizeof *out->made);
    out->problem =
        (planner_problem){.mode = c->mode, .n_stages = (uint32_t)t->n_stages, .stages = out->stages};
    merge_status status = out->stages && out->made ? MERGE_OK : MERGE_NOMEM;
    for (int32_t s = 0; status == MERGE_OK && s < t->n_stages; s++) out->made[s].tightest_rank = -1;
    for (int32_t i = 0; status == MERGE_OK && i < t->world; i++)
        status = add_rank(&t->ranks[i], b, out, text, text_size);
    if (status == MERGE_OK) status = finish(c, caps, out, text, text_size);
    if (status == MERGE_NOMEM) snprintf(text, text_size, "out of memory");
    if (status != MERGE_OK) merge_fini(out);
    return status;
}
