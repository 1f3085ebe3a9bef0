/* One stage for GPUs that share a plan (planner_share). Exact, not only safe: the room that widths may use is
 * the least over the members of what each member's own phase leaves, so it is written as one budget and one
 * static size per phase that leave just that. */
#include <math.h>
#include <string.h>

#include "common/try.h"
#include "planner/internal.h"

static int same_tensor(const planner_item *a, const planner_item *b) {
    return a->layer == b->layer && a->role == b->role && a->chunk == b->chunk;
}

static agoq_status share_items(const planner_stage *members, uint32_t n_members, planner_item *items) {
    for (uint32_t i = 0; i < members[0].n_items; i++) {
        items[i] = members[0].items[i];
        for (uint32_t m = 1; m < n_members; m++) {
            const planner_item *other = &members[m].items[i];
            if (!same_tensor(&items[i], other)) return AGOQ_E_INVAL;
            const uint32_t widths = items[i].widths & other->widths;
            const double mine = items[i].sensitivity, theirs = other->sensitivity;
            const double sensitivity = isnan(mine) || mine >= theirs ? mine : theirs;
            if (!widths) return AGOQ_E_INVAL;
            /* The larger one stands for both, if it is the larger one at every width. */
            const planner_item old = items[i];
            if (planner_item_bytes(other, 16, 0) > planner_item_bytes(&old, 16, 0)) items[i] = *other;
            for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
                const int bits = agoq_width_bits(w);
                const uint64_t kept = planner_item_bytes(&items[i], bits, 0);
                if (planner_item_bytes(other, bits, 0) > kept || planner_item_bytes(&old, bits, 0) > kept)
                    return AGOQ_E_INVAL;
            }
            items[i].widths = widths;
            items[i].sensitivity = sensitivity;
        }
    }
    return AGOQ_OK;
}

/* The least room of a phase over the members, as budget - room: what the shared stage calls static. */
static void share_phase(const planner_stage *members, uint32_t n_members, int p, planner_stage *out) {
    int64_t least = INT64_MAX;
    for (uint32_t m = 0; m < n_members; m++) {
        const planner_phase *phase = &members[m].phase[p];
        const int64_t room =
            (int64_t)planner_available(&members[m]) - (int64_t)(phase->static_bytes + phase->workspace_bytes);
        if (room < least) least = room;
    }
    out->phase[p] = (planner_phase){(uint64_t)((int64_t)planner_available(out) - least), 0};
}

agoq_status planner_share(const planner_stage *members, uint32_t n_members, planner_item *items,
                          uint64_t *fixed, uint32_t *live, planner_stage *out) {
    if (!members || !n_members || !out) return AGOQ_E_INVAL;
    planner_stage s = members[0];
    s.n_live = 0;
    s.margin_ppm = 0;
    for (uint32_t m = 0; m < n_members; m++) {
        AGOQ_TRY(planner_stage_check(&members[m]));
        if (members[m].n_items != s.n_items || members[m].n_chunks != s.n_chunks) return AGOQ_E_INVAL;
        if (s.n_live + members[m].n_live > PLANNER_MAX_LIVE) return AGOQ_E_LIMIT;
        if (members[m].n_live)
            memcpy(live + (size_t)s.n_live * s.n_chunks, members[m].live,
                   (size_t)members[m].n_live * s.n_chunks * sizeof *live);
        s.n_live += members[m].n_live;
        for (uint32_t c = 0; c < s.n_chunks; c++) {
            if (!m || members[m].fixed_bytes[c] > fixed[c]) fixed[c] = members[m].fixed_bytes[c];
        }
        const int coarser = members[m].alloc_round_bytes > s.alloc_round_bytes;
        if (coarser) s.alloc_round_bytes = members[m].alloc_round_bytes;
        if (members[m].layer_static_bytes > s.layer_static_bytes)
            s.layer_static_bytes = members[m].layer_static_bytes;
    }
    AGOQ_TRY(share_items(members, n_members, items));
    s.budget_bytes = PLANNER_NO_BUDGET;
    for (uint32_t m = 0; m < n_members; m++) {
        const uint64_t usable = planner_available(&members[m]);
        if (members[m].budget_bytes != PLANNER_NO_BUDGET && usable < s.budget_bytes) s.budget_bytes = usable;
    }
    for (int p = 0; p < AGOQ_N_PHASES; p++) share_phase(members, n_members, p, &s);
    s.fixed_bytes = fixed;
    s.items = items;
    s.live = live;
    *out = s;
    return AGOQ_OK;
}
