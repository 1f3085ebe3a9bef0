/* See policy.h. */
#include "agoqd/policy.h"

policy_answer policy_decide(policy *p, const policy_input *in, int64_t now) {
    if (in->same_bytes) {
        p->windows = 0;
        return POLICY_KEEP;
    }
    if (in->must || in->asked) {
        p->windows = 0;
        return POLICY_PROPOSE;
    }
    double gain = in->objective_now - in->objective_new;
    if (!(gain > in->objective_now * (POLICY_GAIN_PPM / 1e6))) {
        p->windows = 0;
        return POLICY_KEEP;
    }
    if (in->free_ppm <= POLICY_FREE_PPM) {
        p->windows = 0;
        return POLICY_LATER;
    }
    if (p->windows == 0 || now - p->window_ms >= POLICY_WINDOW_MS) {
        p->windows++;
        p->window_ms = now;
    }
    if (p->windows < POLICY_WINDOWS || in->steps_since_switch < (int64_t)in->dwell_steps) return POLICY_LATER;
    p->windows = 0;
    return POLICY_STEP;
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
        int next = agoq_width_bits(i);
        if ((widths >> i & 1) && next > bits && next <= most) return (uint8_t)next;
    }
    return (uint8_t)most;
}

void policy_step(const planner_problem *problem, const plan *from, plan *to) {
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
