/* See sim_show.h: the text. A table of stages, a bar for each against its budget, what the same job needs
 * otherwise, and what would help. Widths of a role that differ by layer are shown as runs ("0-3:5 4-7:4").
 * The trade-off: the table names only roles that have a choice, and lists the pinned ones once below. */
#include "agoqctl/sim_show.h"

#include <math.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqctl/render.h"
#include "common/role.h"
#include "common/units.h"

const sim_reason sim_reasons[] = {
    {PLANNER_WHY_LIVE_ABOVE_SCHEDULE, "live_above_schedule", "more alive than the schedule says"},
    {PLANNER_WHY_STATIC_ALONE, "static_alone", "weights, optimizer and workspace alone exceed the budget"},
    {PLANNER_WHY_INFEASIBLE, "infeasible", "does not fit at the least widths"},
    {PLANNER_WHY_ALL_AT_MAX, "all_at_max", "every width at its best"},
    {PLANNER_WHY_BUDGET_BINDS, "budget_binds", "budget binds"},
    {PLANNER_WHY_EQUALIZED, "equalized", "held to the fullest stage"},
    {0, NULL, NULL}};

const sim_phase sim_phases[AGOQ_N_PHASES] = {[AGOQ_PHASE_FWD_BWD] = {"fwd_bwd", "forward and backward"},
                                             [AGOQ_PHASE_EXCHANGE] = {"exchange", "exchange of gradients"},
                                             [AGOQ_PHASE_OPTIMIZER] = {"optimizer", "optimizer's step"}};

const char *sim_max_name(int max) {
    static const char *const names[] = {"", "seq", "mbs", "layers"};
    return names[max];
}

uint32_t sim_plan_stage(const sim_answer *a, uint32_t rank) {
    return a->p.problem.same_as ? a->p.problem.same_as[rank] : rank;
}

uint32_t sim_peak_phase(const planner_stage *stage, const planner_stage_result *r) {
    uint32_t most = AGOQ_PHASE_FWD_BWD;
    uint64_t peak = 0;
    for (uint32_t p = 0; p < AGOQ_N_PHASES; p++) {
        const uint64_t sum = stage->phase[p].static_bytes + stage->phase[p].workspace_bytes +
                             (p == AGOQ_PHASE_FWD_BWD ? r->activation_peak_bytes : 0);
        if (sum > peak) most = p;
        if (sum > peak) peak = sum;
    }
    return most;
}

/* Roles of which some tensor may have more than one width. */
static uint32_t chosen_roles(const planner_problem *problem) {
    uint32_t roles = 0;
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        for (uint32_t i = 0; i < problem->stages[s].n_items; i++) {
            const planner_item *item = &problem->stages[s].items[i];
            if (item->widths & (item->widths - 1)) roles |= 1u << item->role;
        }
    }
    return roles;
}

static uint32_t all_roles(const plan *p) {
    uint32_t roles = 0;
    for (uint32_t i = 0; i < p->n_entries; i++) roles |= 1u << p->entries[i].role;
    return roles;
}

/* "6", or "0-3:6 4-7:5"; "-" where the stage has no such role. What does not fit ends in "...". */
static void width_text(const plan *p, uint32_t stage, int role, char *text, size_t size) {
    size_t used = 0;
    int runs = 0, first = -1, last = -1, bits = 0;
    for (uint32_t i = 0; i <= p->n_entries; i++) {
        const plan_entry *e = i < p->n_entries ? &p->entries[i] : NULL;
        if (e && (e->stage != stage || e->role != role)) continue;
        if (e && e->bits == bits) {
            last = e->layer;
            continue;
        }
        if (bits && used + 1 < size) {
            const int n =
                first == last
                    ? snprintf(text + used, size - used, "%s%d:%d", runs ? " " : "", first, bits)
                    : snprintf(text + used, size - used, "%s%d-%d:%d", runs ? " " : "", first, last, bits);
            used += (size_t)n;
            runs++;
        }
        if (!e) break;
        first = last = e->layer;
        bits = e->bits;
    }
    if (runs == 0) snprintf(text, size, "-");
    if (runs == 1) {
        const char *colon = strchr(text, ':');
        memmove(text, colon + 1, strlen(colon));
    }
    if (runs > 1 && used >= size) memcpy(text + size - 4, "...", 4);
}

static void show_case(const sim_input *in, FILE *out) {
    static const char *const shards[] = {"", ", ZeRO 1", ", ZeRO 2", ", ZeRO 3", ", distributed optimizer"};
    const planner_model *m = &in->model;
    const planner_run *r = &m->run;
    uint64_t params = 0;
    char budget[32];
    for (uint32_t s = 0; s < r->pp; s++) params += planner_model_params(m, s);
    units_format_bytes(r->budget_bytes, budget);
    fputs("model   ", out);
    if (in->name[0]) render_text(in->name, out);
    fprintf(out, "%s%.2f B parameters%s, %u layers, hidden %u, FFN %u, %u/%u heads\n",
            in->name[0] ? ": " : "", (double)params / 1e9, r->tp > 1 ? " per tensor-parallel rank" : "",
            m->shape.layers, m->shape.hidden, m->shape.ffn, m->shape.heads, m->shape.kv_heads);
    fprintf(out, "run     pp %u, tp %u%s, cp %u, dp %u; %s", r->pp, r->tp,
            r->sequence_parallel ? " with sp" : "", r->cp ? r->cp : 1, r->dp, sim_schedule_name(in));
    if (r->chunks > 1) fprintf(out, " with %u chunks", r->chunks);
    fprintf(out, ", %u micro-batches of %u x %u tokens\n", r->microbatches, r->microbatch, r->seq);
    fprintf(out, "state   gradients %s, Adam %s%s; counted as %s\n",
            r->grad_bits == 8    ? "fp8"
            : r->grad_bits == 16 ? "bf16"
                                 : "fp32",
            r->adam8 ? "8-bit" : "fp32", shards[r->shard],
            in->trainer ? "agoq-train does" : planner_accounting_name(r->accounting));
    if (r->budget_bytes == PLANNER_NO_BUDGET && !r->stage_budgets)
        fputs("budget  none", out);
    else if (r->stage_budgets)
        fprintf(out, "budget  by stage, %.4g %% of it kept free", r->margin_ppm / 1e4);
    else
        fprintf(out, "budget  %s per GPU%s%s, %.4g %% of it kept free", budget, in->gpu[0] ? " of " : "",
                in->gpu, r->margin_ppm / 1e4);
    fprintf(out, "; mode %s, objective %s\n\n", r->mode == PLANNER_EQUALIZE ? "equalize" : "budget",
            in->objective == PLANNER_MINIMAX ? "minimax" : "sum");
}

static const char *why_text(uint32_t why) {
    for (const sim_reason *r = sim_reasons; r->bit; r++) {
        if (why & r->bit) return r->text;
    }
    return "-";
}

static void add_stage(render_table *t, const sim_answer *a, uint32_t s, uint32_t roles) {
    const planner_stage_result *r = &a->result.stages[s];
    const planner_stage *stage = &a->p.stages[s];
    const planner_phase *phase = &stage->phase[AGOQ_PHASE_FWD_BWD];
    const int bad = r->overshoot_bytes != 0, limited = stage->budget_bytes != PLANNER_NO_BUDGET;
    char text[96], bytes[32];
    render_add(t, RENDER_PLAIN, "%u", s);
    render_add(t, RENDER_PLAIN, "%u", a->p.parts[s].layers);
    render_add(t, RENDER_PLAIN, "%u", a->p.live_units[s]);
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        if (!(roles >> role & 1)) continue;
        width_text(&a->result.plan, sim_plan_stage(a, s), role, text, sizeof text);
        render_add(t, RENDER_PLAIN, "%s", text);
    }
    render_add_bytes(t, phase->static_bytes);
    render_add_bytes(t, r->activation_peak_bytes);
    render_add_bytes(t, phase->workspace_bytes);
    render_add_bytes(t, r->predicted_peak_bytes);
    render_add(t, RENDER_PLAIN, "%s", sim_phases[sim_peak_phase(stage, r)].word);
    render_add_bytes(t, limited ? stage->budget_bytes : 0);
    units_format_bytes(bad ? r->overshoot_bytes : r->slack_bytes, bytes);
    if (limited)
        render_add(t, bad ? RENDER_BAD : RENDER_PLAIN, "%s%s", bad ? "-" : "", bytes);
    else
        render_add(t, RENDER_PLAIN, "-");
    render_add(t, RENDER_PLAIN, "%.2f", r->bits_mean);
    render_add(t, bad ? RENDER_BAD : RENDER_PLAIN, "%s", why_text(r->why));
}

/* Where the columns do not add up to the peak. */
static void show_other_phases(const sim_answer *a, FILE *out) {
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        const planner_stage *stage = &a->p.stages[s];
        const planner_stage_result *r = &a->result.stages[s];
        const uint32_t phase = sim_peak_phase(stage, r);
        char fixed[32], own[32], least[32];
        if (phase == AGOQ_PHASE_FWD_BWD) continue;
        const planner_phase *here = &stage->phase[phase], *other = &stage->phase[AGOQ_PHASE_FWD_BWD];
        units_format_bytes(here->static_bytes, fixed);
        units_format_bytes(here->workspace_bytes, own);
        units_format_bytes(other->static_bytes + other->workspace_bytes + r->activation_peak_bytes, least);
        fprintf(out, "stage %u peaks in the %s: %s static and %s of its own; forward and backward take %s\n",
                s, sim_phases[phase].text, fixed, own, least);
    }
}

static int show_table(const sim_answer *a, FILE *out) {
    uint32_t roles = chosen_roles(&a->p.problem), shown = 0;
    const ctl_args plain = {.no_color = 0};
    const char *columns[RENDER_MAX_COLUMNS] = {"STAGE>", "LAYERS>", "LIVE>"};
    static const char *const rest[] = {"STATIC>", "ACTIVATIONS>", "TRANSIENT>", "PEAK>", "IN",
                                       "BUDGET>", "SLACK>",       "BITS>",      "WHY"};
    const int n_rest = sizeof rest / sizeof *rest;
    int n = 3;
    for (int role = 0; role < AGOQ_N_ROLES && n < RENDER_MAX_COLUMNS - n_rest; role++) {
        if (!(roles >> role & 1)) continue;
        columns[n++] = role_name(role);
        shown |= 1u << role;
    }
    for (int i = 0; i < n_rest; i++) columns[n++] = rest[i];
    render_table t;
    render_init(&t, columns, n);
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) add_stage(&t, a, s, shown);
    const int failed = render_print(&t, ctl_use_color(&plain), out);
    render_fini(&t);
    const uint32_t pinned = all_roles(&a->result.plan) & ~shown;
    for (int role = 0, k = 0; role < AGOQ_N_ROLES; role++) {
        char text[96];
        if (!(pinned >> role & 1)) continue;
        for (uint32_t s = a->p.problem.n_stages; s-- > 0;) {
            width_text(&a->result.plan, s, role, text, sizeof text);
            if (text[0] != '-') break;
        }
        fprintf(out, "%s%s %s", k++ ? ", " : "pinned: ", role_name(role), text);
    }
    if (pinned) fputc('\n', out);
    show_other_phases(a, out);
    fputc('\n', out);
    return failed;
}

/* Static '#', activations '=', transient '-', what is left '.', kept free ' '; the bar is as long as the
 * largest budget or peak. */
static void show_bars(const sim_answer *a, FILE *out) {
    enum { WIDTH = 48 };
    double longest = 1;
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        const uint64_t budget = a->p.stages[s].budget_bytes, peak = a->result.stages[s].predicted_peak_bytes;
        if (budget != PLANNER_NO_BUDGET && (double)budget > longest) longest = (double)budget;
        if ((double)peak > longest) longest = (double)peak;
    }
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        const planner_stage_result *r = &a->result.stages[s];
        const planner_stage *stage = &a->p.stages[s];
        const uint32_t most = sim_peak_phase(stage, r);
        const planner_phase *phase = &stage->phase[most];
        const int limited = stage->budget_bytes != PLANNER_NO_BUDGET, alive = most == AGOQ_PHASE_FWD_BWD;
        const double at = (double)phase->static_bytes,
                     act = at + (alive ? (double)r->activation_peak_bytes : 0),
                     all = act + (double)phase->workspace_bytes,
                     room = (double)r->predicted_peak_bytes + (double)r->slack_bytes;
        char bar[WIDTH + 1], peak[32], budget[32];
        for (int i = 0; i < WIDTH; i++) {
            const double here = (i + 0.5) * longest / WIDTH;
            bar[i] = here < at                ? '#'
                     : here < act             ? '='
                     : here < all             ? '-'
                     : limited && here < room ? '.'
                                              : ' ';
        }
        bar[WIDTH] = 0;
        if (limited && (double)stage->budget_bytes < longest)
            bar[(int)((double)stage->budget_bytes * WIDTH / longest)] = '|';
        units_format_bytes(r->predicted_peak_bytes, peak);
        units_format_bytes(stage->budget_bytes, budget);
        fprintf(out, "stage %-3u [%s] %s%s%s%s%s\n", s, bar, peak, limited ? " of " : "",
                limited ? budget : "", alive ? "" : " in the ", alive ? "" : sim_phases[most].text);
    }
    fputs("          # static, = activations, - transient, . room, | budget; each at its peak\n\n", out);
}

static void show_summary(const sim_summary *s, FILE *out) {
    char peak[32], over[32];
    if (!s->known) return;
    units_format_bytes(s->peak_bytes, peak);
    units_format_bytes(s->over_bytes, over);
    fprintf(out, "  %-19s %s on stage %u%s%s%s\n", s->name, peak, s->stage,
            s->fits ? ": fits" : ": does not fit, ", s->fits ? "" : over, s->fits ? "" : " over");
}

static void show_totals(const sim_answer *a, FILE *out) {
    double fixed = 0, act = 0, peaks = 0;
    char text[3][32];
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        fixed += (double)a->p.stages[s].phase[AGOQ_PHASE_FWD_BWD].static_bytes;
        act += (double)a->result.stages[s].activation_peak_bytes;
        peaks += (double)a->result.stages[s].predicted_peak_bytes;
    }
    units_format_bytes((uint64_t)fixed, text[0]);
    units_format_bytes((uint64_t)act, text[1]);
    units_format_bytes((uint64_t)peaks, text[2]);
    fprintf(out, "in all stages: %s static, %s activations, peaks of %s; error %.4g", text[0], text[1],
            text[2], a->result.objective);
    if (a->result.gap > 0)
        fprintf(out, ", at most %.2g %% above the best", 100 * a->result.gap);
    else if (a->planned)
        fputs(", proved least", out);
    fputs("\n", out);
    int n = 0;
    for (int i = 0; i < SIM_N_OTHERS; i++) n += a->other[i].known;
    if (n) fputs("the same job with\n", out);
    for (int i = 0; i < SIM_N_OTHERS; i++) show_summary(&a->other[i], out);
    fputc('\n', out);
}

static int show_compared(const sim_answer *a, FILE *out) {
    static const char *const columns[] = {"PLAN",  "FITS",   "STAGE>",        "ITS PEAK>",
                                          "BITS>", "ERROR>", "OVER BUDGET'S>"};
    const ctl_args plain = {.no_color = 0};
    const double budget = a->compared[SIM_N_COMPARED - 1].error;
    render_table t;
    render_init(&t, columns, 7);
    for (int i = 0; i < SIM_N_COMPARED; i++) {
        const sim_summary *s = &a->compared[i];
        render_add(&t, RENDER_PLAIN, "%s", s->name);
        render_add(&t, s->fits ? RENDER_GOOD : RENDER_BAD, "%s", s->fits ? "yes" : "no");
        render_add(&t, RENDER_PLAIN, "%u", s->stage);
        render_add_bytes(&t, s->peak_bytes);
        render_add(&t, RENDER_PLAIN, "%.2f", s->bits_mean);
        render_add(&t, RENDER_PLAIN, "%.4g", s->error);
        if (budget > 0)
            render_add(&t, RENDER_PLAIN, "%.3g x", s->error / budget);
        else
            render_add(&t, RENDER_PLAIN, "-");
    }
    const int failed = render_print(&t, ctl_use_color(&plain), out);
    render_fini(&t);
    fputs("ERROR: squared relative error, weighted by sensitivity, of all stages; STAGE: the fullest\n\n",
          out);
    return failed;
}

static void show_lever(const planner_lever *l, uint32_t stage, FILE *out) {
    char bytes[32], text[160];
    units_format_bytes(l->saves_bytes, bytes);
    planner_lever_text(l, stage, text, sizeof text);
    fprintf(out, "    %s: saves %s%s", text, bytes, l->enough ? ", enough" : ", not enough alone");
    if (l->cost_ms > 0) fprintf(out, "; about %.2g ms per micro-batch", l->cost_ms);
    fputc('\n', out);
}

static void show_levers(const sim_answer *a, FILE *out) {
    for (uint32_t s = 0; s < a->result.plan.n_stages; s++) {
        const planner_stage_result *r = &a->result.stages[s];
        char bytes[32];
        if (!r->overshoot_bytes) continue;
        units_format_bytes(r->overshoot_bytes, bytes);
        fprintf(out, "stage %u is %s over its budget at the least widths%s. What would help:\n", s, bytes,
                r->why & PLANNER_WHY_STATIC_ALONE ? " (without any activation it is too: no width can help)"
                                                  : "");
        for (uint32_t k = 0; k < r->n_levers; k++) show_lever(&r->levers[k], s, out);
        if (!r->n_levers) fputs("    nothing that the planner knows\n", out);
    }
}

static void show_max(const sim_input *in, const sim_answer *a, FILE *out) {
    static const char *const units[] = {"", "tokens", "sequences", "layers"};
    if (!in->max) return;
    fprintf(out, "largest %s that fits: %llu %s", sim_max_name(in->max), (unsigned long long)a->largest,
            units[in->max]);
    if (a->unit > 1) fprintf(out, " (in steps of %u)", a->unit);
    if (a->limit)
        fprintf(out, "; %s\n\n", a->limit);
    else
        fprintf(out, "; stage %u has no room for the next\n\n", a->next_stage);
}

static void say_warning(void *user, const char *text) {
    fprintf(user, "warning: %s\n", text);
}

int sim_show_text(const sim_input *in, const sim_answer *a, FILE *out) {
    show_case(in, out);
    show_max(in, a, out);
    int failed = show_table(a, out);
    show_bars(a, out);
    show_totals(a, out);
    if (in->compare && a->planned) failed |= show_compared(a, out);
    show_levers(a, out);
    sim_warnings(in, a, say_warning, out);
    fputs(a->result.feasible ? "it fits\n" : "it does not fit\n", out);
    return failed || ferror(out) ? -1 : 0;
}
