/* See sim_show.h. Widths of a role that differ by layer are shown as runs ("0-3:5 4-7:4"), in the order of
 * layers. */
#include "agoqctl/sim_show.h"

#include <math.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqctl/json.h"
#include "agoqctl/render.h"
#include "common/role.h"
#include "common/units.h"

static const struct {
    uint32_t bit;
    const char *word, *text;
} reasons[] = {
    {PLANNER_WHY_ALL_AT_MAX, "all_at_max", "every width at its best"},
    {PLANNER_WHY_BUDGET_BINDS, "budget_binds", "budget binds"},
    {PLANNER_WHY_EQUALIZED, "equalized", "held to the fullest stage"},
    {PLANNER_WHY_STATIC_ALONE, "static_alone", "weights, optimizer and workspace alone exceed the budget"},
    {PLANNER_WHY_INFEASIBLE, "infeasible", "does not fit at the least widths"}};
#define N_REASONS (sizeof reasons / sizeof *reasons)

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
    const planner_model *m = &in->model;
    uint64_t params = 0;
    char budget[32];
    for (uint32_t s = 0; s < m->run.pp; s++) params += planner_model_params(m, s);
    units_format_bytes(m->run.budget_bytes, budget);
    fputs("model   ", out);
    if (in->name[0]) render_text(in->name, out);
    fprintf(out, "%s%.2f B parameters%s, %u layers, hidden %u, FFN %u, %u/%u heads\n",
            in->name[0] ? ": " : "", (double)params / 1e9, m->run.tp > 1 ? " per tensor-parallel rank" : "",
            m->shape.layers, m->shape.hidden, m->shape.ffn, m->shape.heads, m->shape.kv_heads);
    fprintf(out, "run     pp %u, tp %u%s, dp %u; %s", m->run.pp, m->run.tp,
            m->run.sequence_parallel ? " with sp" : "", m->run.dp, sim_schedule_name(m->run.schedule));
    if (m->run.chunks > 1) fprintf(out, " with %u chunks", m->run.chunks);
    fprintf(out, ", %u micro-batches of %u x %u tokens\n", m->run.microbatches, m->run.microbatch,
            m->run.seq);
    fprintf(out, "state   gradients %s, Adam %s%s\n",
            m->run.grad_bits == 8    ? "fp8"
            : m->run.grad_bits == 16 ? "bf16"
                                     : "fp32",
            m->run.adam8 ? "8-bit" : "fp32", m->run.shard != PLANNER_SHARD_NONE ? ", sharded over dp" : "");
    if (m->run.budget_bytes == PLANNER_NO_BUDGET)
        fputs("budget  none", out);
    else
        fprintf(out, "budget  %s per GPU, %.4g %% of it kept free", budget, m->run.margin_ppm / 1e4);
    fprintf(out, "; mode %s\n\n", m->run.mode == PLANNER_EQUALIZE ? "equalize" : "budget");
}

static const char *why_text(uint32_t why) {
    for (size_t i = 0; i < N_REASONS; i++) {
        if (why & reasons[i].bit) return reasons[i].text;
    }
    return "-";
}

static void add_stage(render_table *t, const planner_model_problem *p, const sim_answer *answer, uint32_t s,
                      uint32_t roles) {
    const planner_stage_result *r = &answer->result.stages[s], *rule = &answer->rule[s];
    const int bad = r->overshoot_bytes != 0, limited = p->stages[s].budget_bytes != PLANNER_NO_BUDGET;
    char text[96], bytes[32];
    render_add(t, RENDER_PLAIN, "%u", s);
    render_add(t, RENDER_PLAIN, "%u", p->live_units[s]);
    render_add_bytes(t, r->activation_peak_bytes);
    render_add_bytes(t, r->predicted_peak_bytes);
    units_format_bytes(bad ? r->overshoot_bytes : r->slack_bytes, bytes);
    if (limited)
        render_add(t, bad ? RENDER_BAD : RENDER_PLAIN, "%s%s", bad ? "-" : "", bytes);
    else
        render_add(t, RENDER_PLAIN, "-");
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        if (!(roles >> role & 1)) continue;
        width_text(&answer->result.plan, s, role, text, sizeof text);
        render_add(t, RENDER_PLAIN, "%s", text);
    }
    render_add(t, RENDER_PLAIN, "%.2f", r->bits_mean);
    render_add(t, rule->overshoot_bytes && limited ? RENDER_BAD : RENDER_PLAIN, "%u%s", answer->rule_bits[s],
               rule->overshoot_bytes && limited ? " (over)" : "");
    if (r->objective > 0)
        render_add(t, RENDER_PLAIN, "%.3g x", rule->objective / r->objective);
    else
        render_add(t, RENDER_PLAIN, "-");
    render_add(t, bad ? RENDER_BAD : RENDER_PLAIN, "%s", why_text(r->why));
}

static void show_lever(const planner_lever *l, uint32_t stage, FILE *out) {
    char bytes[32], text[160];
    units_format_bytes(l->saves_bytes, bytes);
    planner_lever_text(l, stage, text, sizeof text);
    fprintf(out, "    %s: saves %s%s", text, bytes, l->enough ? ", enough" : ", not enough alone");
    if (l->cost_ms > 0) fprintf(out, "; about %.2g ms per micro-batch", l->cost_ms);
    fputc('\n', out);
}

static void show_levers(const sim_answer *answer, FILE *out) {
    for (uint32_t s = 0; s < answer->result.plan.n_stages; s++) {
        const planner_stage_result *r = &answer->result.stages[s];
        char bytes[32];
        if (!r->overshoot_bytes) continue;
        units_format_bytes(r->overshoot_bytes, bytes);
        fprintf(out, "stage %u is %s over its budget at the least widths. What would help:\n", s, bytes);
        for (uint32_t k = 0; k < r->n_levers; k++) show_lever(&r->levers[k], s, out);
        if (!r->n_levers) fputs("    nothing that the planner knows\n", out);
    }
}

int sim_show_text(const sim_input *in, const planner_model_problem *p, const sim_answer *answer, FILE *out) {
    const uint32_t roles = chosen_roles(&p->problem), pinned = all_roles(&answer->result.plan) & ~roles;
    const ctl_args plain = {.no_color = 0};
    const char *columns[RENDER_MAX_COLUMNS] = {"STAGE>", "LIVE>", "ACTIVATIONS>", "PREDICTED>", "SLACK>"};
    int n = 5;
    for (int role = 0; role < AGOQ_N_ROLES && n < RENDER_MAX_COLUMNS - 4; role++) {
        if (roles >> role & 1) columns[n++] = role_name(role);
    }
    columns[n++] = "BITS>";
    columns[n++] = "RULE>";
    columns[n++] = "ITS HARM>";
    columns[n++] = "WHY";
    render_table t;
    render_init(&t, columns, n);
    show_case(in, out);
    for (uint32_t s = 0; s < p->problem.n_stages; s++) add_stage(&t, p, answer, s, roles);
    const int failed = render_print(&t, ctl_use_color(&plain), out);
    render_fini(&t);
    fputs("\npinned: ", out);
    for (int role = 0, shown = 0; role < AGOQ_N_ROLES; role++) {
        char text[96];
        if (!(pinned >> role & 1)) continue;
        for (uint32_t s = p->problem.n_stages; s-- > 0;) {
            width_text(&answer->result.plan, s, role, text, sizeof text);
            if (text[0] != '-') break;
        }
        fprintf(out, "%s%s %s", shown++ ? ", " : "", role_name(role), text);
    }
    fputs("\nRULE is AGoQ's width for the stage; ITS HARM its squared error, weighted by sensitivity, over "
          "this plan's.\n\n",
          out);
    show_levers(answer, out);
    fputs(answer->result.feasible ? "it fits\n" : "it does not fit\n", out);
    return failed || ferror(out) ? -1 : 0;
}

static void json_widths(json_writer *j, const plan *p, uint32_t stage, uint32_t roles) {
    json_object(j, "widths");
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        int bits = 0, mixed = 0;
        if (!(roles >> role & 1)) continue;
        for (uint32_t i = 0; i < p->n_entries; i++) {
            const plan_entry *e = &p->entries[i];
            if (e->stage != stage || e->role != role) continue;
            mixed |= bits && bits != e->bits;
            bits = e->bits;
        }
        if (!bits) continue;
        if (!mixed) {
            json_int(j, role_name(role), bits);
            continue;
        }
        json_array(j, role_name(role));
        for (uint32_t i = 0; i < p->n_entries; i++) {
            if (p->entries[i].stage == stage && p->entries[i].role == role)
                json_int(j, NULL, p->entries[i].bits);
        }
        json_array_end(j);
    }
    json_object_end(j);
}

static void json_levers(json_writer *j, const planner_stage_result *r) {
    json_array(j, "levers");
    for (uint32_t k = 0; k < r->n_levers; k++) {
        const planner_lever *l = &r->levers[k];
        json_object(j, NULL);
        json_text(j, "lever", planner_lever_name(l->kind));
        if (l->kind != PLANNER_LEVER_SHARD_OPTIMIZER) json_int(j, "amount", l->amount);
        if (l->kind == PLANNER_LEVER_MOVE_LAYERS) json_int(j, "to", l->to);
        if (l->kind == PLANNER_LEVER_OTHER_SCHEDULE) json_int(j, "chunks", l->to);
        json_real(j, "cost_ms", l->cost_ms);
        if (l->kind == PLANNER_LEVER_LOWER_PIN) json_text(j, "role", role_name(l->role));
        json_uint(j, "saves_bytes", l->saves_bytes);
        json_bool(j, "enough", l->enough);
        json_object_end(j);
    }
    json_array_end(j);
}

static void json_stage(json_writer *j, const planner_model_problem *p, const sim_answer *answer, uint32_t s) {
    const planner_stage_result *r = &answer->result.stages[s], *rule = &answer->rule[s];
    const planner_stage *stage = &p->stages[s];
    json_object(j, NULL);
    json_uint(j, "stage", s);
    json_uint(j, "live_microbatches", p->live_units[s]);
    json_bytes(j, "budget_bytes", stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes);
    json_uint(j, "static_bytes", stage->phase[AGOQ_PHASE_FWD_BWD].static_bytes);
    json_uint(j, "workspace_bytes", stage->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes);
    json_uint(j, "predicted_peak_bytes", r->predicted_peak_bytes);
    json_uint(j, "activation_peak_bytes", r->activation_peak_bytes);
    json_uint(j, "bytes_at_16", r->activation_peak_bytes16);
    if (stage->budget_bytes == PLANNER_NO_BUDGET)
        json_null(j, "slack_bytes");
    else
        json_uint(j, "slack_bytes", r->slack_bytes);
    json_uint(j, "overshoot_bytes", r->overshoot_bytes);
    json_real(j, "bits_mean", r->bits_mean);
    json_widths(j, &answer->result.plan, s, all_roles(&answer->result.plan));
    json_real(j, "objective", r->objective);
    json_real(j, "lower_bound", r->lower_bound);
    json_object(j, "rule");
    json_uint(j, "bits", answer->rule_bits[s]);
    json_uint(j, "predicted_peak_bytes", rule->predicted_peak_bytes);
    json_uint(j, "activation_peak_bytes", rule->activation_peak_bytes);
    json_real(j, "objective", rule->objective);
    json_object_end(j);
    json_array(j, "why");
    for (size_t i = 0; i < N_REASONS; i++) {
        if (r->why & reasons[i].bit) json_text(j, NULL, reasons[i].word);
    }
    json_array_end(j);
    json_levers(j, r);
    json_object_end(j);
}

int sim_show_json(const sim_input *in, const planner_model_problem *p, const sim_answer *answer, FILE *out) {
    const planner_model *m = &in->model;
    json_writer j;
    json_begin(&j, out, "simulate");
    json_text(&j, "model", in->name[0] ? in->name : NULL);
    json_text(&j, "schedule", sim_schedule_name(m->run.schedule));
    json_text(&j, "mode", m->run.mode == PLANNER_EQUALIZE ? "equalize" : "budget");
    json_uint(&j, "pp", m->run.pp);
    json_uint(&j, "tp", m->run.tp);
    json_uint(&j, "dp", m->run.dp);
    json_uint(&j, "chunks", m->run.chunks);
    json_uint(&j, "microbatches", m->run.microbatches);
    json_uint(&j, "microbatch_tokens", (uint64_t)m->run.seq * m->run.microbatch);
    json_bool(&j, "feasible", answer->result.feasible);
    json_array(&j, "stages");
    for (uint32_t s = 0; s < p->problem.n_stages; s++) json_stage(&j, p, answer, s);
    json_array_end(&j);
    json_end(&j);
    return j.bad || ferror(out) ? -1 : 0;
}
