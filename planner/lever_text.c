/* Levers in words: one place, so that the daemon and the tool say the same. */
#include <stdio.h>

#include "common/role.h"
#include "planner/schedule.h"

/* A lever may come from elsewhere, with numbers that name nothing. */
static const char *known(const char *name, const char *otherwise) {
    return name ? name : otherwise;
}

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

void planner_lever_text(const planner_lever *l, uint32_t stage, char *text, size_t size) {
    const char *s = l->amount == 1 ? "" : "s";
    switch (l->kind) {
    case PLANNER_LEVER_RECOMPUTE_LAYERS:
        snprintf(text, size, "recompute %s%d layer%s of stage %u",
                 l->to == PLANNER_LEVER_ALL && l->amount > 1 ? "all " : "", l->amount, s, stage);
        return;
    case PLANNER_LEVER_MOVE_LAYERS:
        snprintf(text, size, "move %d layer%s from stage %u to stage %d", l->amount, s, stage, l->to);
        return;
    case PLANNER_LEVER_FEWER_LIVE:
        snprintf(text, size, "hold %d micro-batch%s less on stage %u", l->amount, l->amount == 1 ? "" : "es",
                 stage);
        return;
    case PLANNER_LEVER_LOWER_PIN:
        snprintf(text, size, "allow %s at %d bits", known(role_name(l->role), "a role"), l->amount);
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
        snprintf(text, size, "schedule %s with %d chunk%s",
                 known(planner_schedule_name((agoq_schedule)l->amount), "another"), l->to,
                 l->to == 1 ? "" : "s");
        return;
    case PLANNER_LEVER_EXPANDABLE_SEGMENTS:
        snprintf(text, size, "use expandable segments, which need a margin of only %.4g %%", l->amount / 1e4);
        return;
    default:
        snprintf(text, size, "-");
    }
}
