/* Why, in words: what an operator reads beside a plan, an alarm or a refusal. Bounded, one line. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agoqd/core_words.h"
#include "common/role.h"
#include "common/units.h"

static void add(char *text, size_t size, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void add(char *text, size_t size, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, size - used, format, args);
    va_end(args);
}

void words_stage(const merged *m, const planner_result *r, uint32_t s, char *text, size_t size) {
    const planner_stage_result *result = &r->stages[s];
    const merge_stage *made = &m->made[s];
    char budget_text[32], slack[32];
    text[0] = 0;
    if (result->why & PLANNER_WHY_INFEASIBLE) {
        units_format_bytes(result->overshoot_bytes, slack);
        add(text, size, "infeasible: over by %s even at the least widths%s", slack,
            result->why & PLANNER_WHY_STATIC_ALONE ? "; static bytes and workspace alone exceed the budget"
                                                   : "");
    } else if (result->why & PLANNER_WHY_ALL_AT_MAX) {
        add(text, size, "every tensor at its largest width");
    } else if (result->why & PLANNER_WHY_EQUALIZED) {
        add(text, size, "held to the peak of the most loaded stage");
    } else if (m->stages[s].budget_bytes != PLANNER_NO_BUDGET) {
        units_format_bytes(m->stages[s].budget_bytes, budget_text);
        add(text, size, "bound by budget %s", budget_text);
    }
    add(text, size, " (live %u)", made->live_units);
    if (made->above_schedule)
        add(text, size, "; live above schedule: holds %u, formula %u", made->live_units, made->formula_units);
}

void words_plan(const core *c, const merged *m, const plan *current, const planner_result *r, char *text,
                size_t size) {
    const char *cause = c->why.cause[0]                                                    ? c->why.cause
                        : c->count.switches == 0 && c->plan_seq == 0 && c->current_id == 0 ? "first plan"
                        : c->mixed           ? "ranks ran different plans"
                        : c->current_id == 0 ? "ranks are on the floor plan"
                                             : "a better plan is known";
    text[0] = 0;
    add(text, size, "%s", cause);
    const char *separator = ": ";
    for (uint32_t s = 0; s < m->problem.n_stages; s++) {
        char stage[256];
        int first_or_last = s == 0 || s + 1 == m->problem.n_stages;
        int rebudgeted = current && s < current->n_stages &&
                         current->stages[s].budget_version != m->stages[s].budget_version;
        if (!first_or_last && !rebudgeted && !m->made[s].above_schedule)
            continue; /* the ends tell the story; explain has the rest */
        words_stage(m, r, s, stage, sizeof stage);
        if (strlen(text) + strlen(stage) + 24 >= size) return;
        add(text, size, "%sstage %u %s", separator, s, stage);
        separator = "; ";
    }
}

void words_lever(const planner_lever *l, uint32_t stage, char *text, size_t size) {
    planner_lever_text(l, stage, text, size);
}

void words_infeasible(const merged *m, const planner_result *r, char *text, size_t size) {
    text[0] = 0;
    for (uint32_t s = 0; s < m->problem.n_stages; s++) {
        const planner_stage_result *result = &r->stages[s];
        if (!(result->why & PLANNER_WHY_INFEASIBLE)) continue;
        char over[32], has[32], lever[160];
        units_format_bytes(result->overshoot_bytes, over);
        units_format_bytes(m->stages[s].budget_bytes, has);
        add(text, size, "%sno plan fits stage %u in %s: over by %s at the least widths%s",
            text[0] ? "; " : "", s, has, over,
            result->why & PLANNER_WHY_STATIC_ALONE ? ", and no width can help" : "");
        for (uint32_t i = 0; i < result->n_levers && i < 2; i++) {
            words_lever(&result->levers[i], s, lever, sizeof lever);
            units_format_bytes(result->levers[i].saves_bytes, has);
            add(text, size, "%s%s (saves %s%s)", i ? " or " : "; ", lever, has,
                result->levers[i].enough ? ", enough" : "");
        }
    }
}
