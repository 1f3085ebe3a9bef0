/* See hysteresis.h. */
#include "planner/hysteresis.h"

const planner_switch_rules planner_switch_defaults = {.windows = 3,
                                                      .window_ms = 1000,
                                                      .free_ppm = 100000,
                                                      .gain_ppm = 50000,
                                                      .full_ppm = 970000,
                                                      .dwell_steps = 20};

static planner_switch start_again(planner_switch_state *state, planner_switch answer) {
    state->windows = 0;
    return answer;
}

planner_switch planner_switch_decide(planner_switch_state *state, const planner_switch_rules *rules,
                                     const planner_switch_input *in, int64_t now_ms) {
    if (in->same_bytes) return start_again(state, PLANNER_SWITCH_KEEP);
    if (in->must || in->asked || (in->shrinks && in->peak_ppm > rules->full_ppm))
        return start_again(state, PLANNER_SWITCH_NOW);
    const double gain = in->objective_now - in->objective_new;
    if (!(gain > in->objective_now * (rules->gain_ppm / 1e6))) return start_again(state, PLANNER_SWITCH_KEEP);
    if (in->free_ppm <= rules->free_ppm) return start_again(state, PLANNER_SWITCH_LATER);
    if (state->windows == 0 || now_ms - state->window_ms >= rules->window_ms) {
        state->windows++;
        state->window_ms = now_ms;
    }
    if (state->windows < rules->windows || in->steps_since_switch < (int64_t)rules->dwell_steps)
        return PLANNER_SWITCH_LATER;
    return start_again(state, PLANNER_SWITCH_STEP);
}

static uint32_t widths_of(const planner_problem *problem, const plan_entry *e) {
    if (e->stage >= problem->n_stages) return 0;
    const planner_stage *stage = &problem->stages[e->stage];
    for (uint32_t i = 0; i < stage->n_items; i++) {
        if (stage->items[i].layer == e->layer && stage->items[i].role == e->role)
            return stage->items[i].widths;
    }
    return 0;
}

static uint8_t next_width(uint32_t widths, int bits, int most) {
    for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
        const int next = agoq_width_bits(i);
        if ((widths >> i & 1) && next > bits && next <= most) return (uint8_t)next;
    }
    return (uint8_t)most;
}

void planner_switch_limit(const planner_problem *problem, const plan *from, plan *to) {
    if (from->n_entries != to->n_entries) return;
    for (uint32_t i = 0; i < to->n_entries; i++) {
        if (from->entries[i].layer != to->entries[i].layer || from->entries[i].role != to->entries[i].role)
            return;
    }
    for (uint32_t i = 0; i < to->n_entries; i++) {
        plan_entry *e = &to->entries[i];
        if (e->bits > from->entries[i].bits)
            e->bits = next_width(widths_of(problem, e), from->entries[i].bits, e->bits);
    }
}
