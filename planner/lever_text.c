/* Levers in words: one place, so that the daemon and the tool say the same. */
#include <stdio.h>

#include "planner/planner.h"

static const char *const names[PLANNER_N_LEVERS] = {[PLANNER_LEVER_RECOMPUTE_LAYERS] = "recompute_layers",
                                                    [PLANNER_LEVER_MOVE_LAYERS] = "move_layers",
                                                    [PLANNER_LEVER_FEWER_LIVE] = "fewer_live",
                                                    [PLANNER_LEVER_LOWER_PIN] = "lower_pin",
                                                    [PLANNER_LEVER_SHARD_OPTIMIZER] = "shard_optimizer",
                                                    [PLANNER_LEVER_RECOMPUTE_GATE_UP] = "recompute_gate_up",
                                                    [PLANNER_LEVER_OFFLOAD_LAYERS] = "offload_layers",
                                                    [PLANNER_LEVER_CHUNK_LOSS] = "chunk_loss",
                                                    [PLANNER_LEVER_RAISE_TP] = "raise_tp",
                                                    [PLANNER_LEVER_RAISE_CP] = "raise_cp",
                                                    [PLANNER_LEVER_OTHER_SCHEDULE] = "other_schedule",
                                                    [PLANNER_LEVER_EXPANDABLE_SEGMENTS] =
                                                        "expandable_segments"};

const char *planner_lever_name(planner_lever_kind kind) {
    return (unsigned)kind < PLANNER_N_LEVERS ? names[kind] : NULL;
}

static const char *role_of(int role) {
    static const char *const roles[AGOQ_N_ROLES] = {
#define ROLE_NAME(id, name, sensitivity, mask) name,
        AGOQ_ROLES(ROLE_NAME)
#undef ROLE_NAME
    };
    return role >= 0 && role < AGOQ_N_ROLES ? roles[role] : "a role";
}

static const char *schedule_of(int schedule) {
    static const char *const schedules[] = {
#define SCHEDULE_NAME(id, name) name,
        AGOQ_SCHEDULES(SCHEDULE_NAME)
#undef SCHEDULE_NAME
    };
    const int n = (int)(sizeof schedules / sizeof *schedules);
    return schedule >= 0 && schedule < n ? schedules[schedule] : "another";
}

void planner_lever_text(const planner_lever *l, uint32_t stage, char *text, size_t size) {
    const char *s = l->amount == 1 ? "" : "s";
    switch (l->kind) {
    case PLANNER_LEVER_RECOMPUTE_LAYERS:
        snprintf(text, size, "recompute %d layer%s of stage %u", l->amount, s, stage);
        return;
    case PLANNER_LEVER_MOVE_LAYERS:
        snprintf(text, size, "move %d layer%s from stage %u to stage %d", l->amount, s, stage, l->to);
        return;
    case PLANNER_LEVER_FEWER_LIVE:
        snprintf(text, size, "hold %d micro-batch%s less on stage %u", l->amount, l->amount == 1 ? "" : "es",
                 stage);
        return;
    case PLANNER_LEVER_LOWER_PIN:
        snprintf(text, size, "allow %s at %d bits", role_of(l->role), l->amount);
        return;
    case PLANNER_LEVER_SHARD_OPTIMIZER:
        snprintf(text, size, "shard the optimizer over dp ranks");
        return;
    case PLANNER_LEVER_RECOMPUTE_GATE_UP:
        snprintf(text, size, "recompute gate and up of %d layer%s of stage %u", l->amount, s, stage);
        return;
    case PLANNER_LEVER_OFFLOAD_LAYERS:
        snprintf(text, size, "offload %d layer%s of stage %u to host memory", l->amount, s, stage);
        return;
    case PLANNER_LEVER_CHUNK_LOSS:
        snprintf(text, size, "compute the loss in %d parts", l->amount);
        return;
    case PLANNER_LEVER_RAISE_TP:
        snprintf(text, size, "raise tp to %d", l->amount);
        return;
    case PLANNER_LEVER_RAISE_CP:
        snprintf(text, size, "raise cp to %d", l->amount);
        return;
    case PLANNER_LEVER_OTHER_SCHEDULE:
        snprintf(text, size, "schedule %s with %d chunk%s", schedule_of(l->amount), l->to,
                 l->to == 1 ? "" : "s");
        return;
    case PLANNER_LEVER_EXPANDABLE_SEGMENTS:
        snprintf(text, size, "use expandable segments, which need a margin of only %.4g %%", l->amount / 1e4);
        return;
    default:
        snprintf(text, size, "-");
    }
}
