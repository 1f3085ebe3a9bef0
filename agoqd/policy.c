/* See policy.h. */
#include "agoqd/policy.h"

policy_answer policy_decide(policy *p, const policy_input *in, int64_t now) {
    planner_switch_rules rules = planner_switch_defaults;
    rules.dwell_steps = in->dwell_steps;
    const planner_switch_input input = {.same_bytes = in->same_bytes,
                                        .must = in->must,
                                        .asked = in->asked,
                                        .shrinks = in->shrinks,
                                        .peak_ppm = in->peak_ppm,
                                        .free_ppm = in->free_ppm,
                                        .objective_now = in->objective_now,
                                        .objective_new = in->objective_new,
                                        .steps_since_switch = in->steps_since_switch};
    return (policy_answer)planner_switch_decide(p, &rules, &input, now);
}

void policy_step(const planner_problem *problem, const plan *from, plan *to) {
    planner_switch_limit(problem, from, to);
}
