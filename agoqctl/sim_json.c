/* See sim_show.h: the JSON, which says all that the text says and more, and the warnings of both. */
#include <math.h>
#include <string.h>

#include "agoqctl/json.h"
#include "agoqctl/sim_show.h"
#include "common/role.h"

static uint32_t all_roles(const plan *p) {
    uint32_t roles = 0;
    for (uint32_t i = 0; i < p->n_entries; i++) roles |= 1u << p->entries[i].role;
    return roles;
}

void sim_warnings(const sim_input *in, const sim_answer *a, sim_warning_fn say, void *user) {
    const planner_run *r = &in->model.run;
    char text[256];
    if (!a->planned)
        say(user, "this way of counting is a yardstick: no widths are planned, and bytes are those of the "
                  "framework");
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        if (a->result.stages[s].why & PLANNER_WHY_LIVE_ABOVE_SCHEDULE) {
            snprintf(text, sizeof text,
                     "stage %u was seen to hold more than the schedule says: planned for what was seen", s);
            say(user, text);
        }
        if (a->result.stages[s].why & PLANNER_WHY_STATIC_ALONE) {
            snprintf(text, sizeof text,
                     "stage %u: the overshoot is not made of activations: no width can help", s);
            say(user, text);
        }
    }
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
            if (!(a->result.dropped_widths[role] >> w & 1)) continue;
            snprintf(text, sizeof text, "%s: %d bits are never used, a narrower width is as good",
                     role_name(role), agoq_width_bits(w));
            say(user, text);
        }
    }
    if (a->planned && a->result.gap > 0)
        say(user, "the plan is not proved to be the best; gap says how far it may be");
    if (in->model.shape.vocab % (r->tp ? r->tp : 1))
        say(user, "tp does not divide the vocabulary: it is padded");
    if (r->chunks == 1 && !r->layout && in->model.shape.layers % r->pp)
        say(user, "pp does not divide the layers: the first stages hold one more");
    if (r->microbatches < r->pp) say(user, "fewer micro-batches than stages: most of the pipeline is idle");
    if (a->other[SIM_RULE].known && a->result.feasible && !a->other[SIM_RULE].fits)
        say(user, "AGoQ's own widths do not fit here");
}

static void json_widths(json_writer *j, const plan *p, uint32_t stage) {
    const uint32_t roles = all_roles(p);
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

static void json_lever(json_writer *j, const planner_lever *l, int64_t stage) {
    char text[160];
    json_object(j, NULL);
    json_text(j, "lever", planner_lever_name(l->kind));
    if (stage >= 0) {
        planner_lever_text(l, (uint32_t)stage, text, sizeof text);
        json_int(j, "stage", stage);
        json_text(j, "text", text);
    }
    if (l->kind != PLANNER_LEVER_SHARD_OPTIMIZER) json_int(j, "amount", l->amount);
    if (l->kind == PLANNER_LEVER_MOVE_LAYERS) json_int(j, "to", l->to);
    if (l->kind == PLANNER_LEVER_OTHER_SCHEDULE) {
        json_text(j, "schedule", planner_schedule_name((agoq_schedule)l->amount));
        json_int(j, "chunks", l->to);
    }
    json_real(j, "cost_ms", l->cost_ms);
    if (l->kind == PLANNER_LEVER_LOWER_PIN) json_text(j, "role", role_name(l->role));
    json_uint(j, "saves_bytes", l->saves_bytes);
    json_bool(j, "enough", l->enough);
    json_object_end(j);
}

/* Layers of the pieces that this rank's chunks are. */
static void json_layers(json_writer *j, const sim_input *in, uint32_t rank) {
    const planner_model *m = &in->model;
    json_array(j, "layers");
    for (uint32_t c = 0; c < m->run.chunks; c++) {
        const uint32_t piece = planner_model_virtual(m, rank, c), count = planner_model_layers_of(m, piece),
                       first = planner_model_first_layer_of(m, piece);
        for (uint32_t l = 0; l < count; l++) json_uint(j, NULL, first + l);
    }
    json_array_end(j);
}

static void json_row(json_writer *j, const char *key, const uint32_t *row, uint32_t n) {
    json_array(j, key);
    for (uint32_t c = 0; c < n; c++) json_uint(j, NULL, row[c]);
    json_array_end(j);
}

static void json_parts(json_writer *j, const planner_parts *parts) {
    const struct {
        const char *key;
        uint64_t bytes;
    } all[] = {{"params", parts->params},
               {"weight_bytes", parts->weight_bytes},
               {"grad_bytes", parts->grad_bytes},
               {"optimizer_bytes", parts->optimizer_bytes},
               {"layer_bytes", parts->layer_bytes},
               {"logits_bytes", parts->logits_bytes},
               {"receive_bytes", parts->receive_bytes},
               {"gather_bytes", parts->gather_bytes},
               {"exchange_bytes", parts->exchange_bytes},
               {"update_bytes", parts->update_bytes}};
    json_object(j, "parts");
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) json_uint(j, all[i].key, all[i].bytes);
    json_object_end(j);
}

static void json_stage(json_writer *j, const sim_input *in, const sim_answer *a, uint32_t s) {
    const planner_stage_result *r = &a->result.stages[s], *rule = &a->rule[s];
    const planner_stage *stage = &a->p.stages[s];
    const uint32_t v = stage->n_chunks;
    json_object(j, NULL);
    json_uint(j, "stage", s);
    json_layers(j, in, s);
    json_array(j, "live");
    for (uint32_t k = 0; k < stage->n_live; k++) json_row(j, NULL, stage->live + (size_t)k * v, v);
    json_array_end(j);
    json_uint(j, "live_microbatches", a->p.live_units[s]);
    json_widths(j, &a->result.plan, sim_plan_stage(a, s));
    json_bytes(j, "budget_bytes", stage->budget_bytes == PLANNER_NO_BUDGET ? 0 : stage->budget_bytes);
    json_uint(j, "static_bytes", stage->phase[AGOQ_PHASE_FWD_BWD].static_bytes);
    json_uint(j, "activation_bytes", r->activation_peak_bytes);
    json_uint(j, "transient_bytes", stage->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes);
    json_uint(j, "workspace_bytes", stage->phase[AGOQ_PHASE_FWD_BWD].workspace_bytes);
    json_uint(j, "predicted_peak_bytes", r->predicted_peak_bytes);
    json_text(j, "peak_phase", sim_phases[sim_peak_phase(stage, r)].word);
    json_uint(j, "activation_peak_bytes", r->activation_peak_bytes);
    json_uint(j, "bytes_at_16", r->activation_peak_bytes16);
    if (stage->budget_bytes == PLANNER_NO_BUDGET)
        json_null(j, "slack_bytes");
    else
        json_uint(j, "slack_bytes", r->slack_bytes);
    json_uint(j, "overshoot_bytes", r->overshoot_bytes);
    if (r->binding_live < stage->n_live)
        json_row(j, "binding_vector", stage->live + (size_t)r->binding_live * v, v);
    else
        json_null(j, "binding_vector");
    json_real(j, "bits_mean", r->bits_mean);
    json_real(j, "objective", r->objective);
    json_real(j, "lower_bound", r->lower_bound);
    json_parts(j, &a->p.parts[s]);
    if (a->planned) {
        json_object(j, "rule");
        json_uint(j, "bits", a->rule_bits[s]);
        json_uint(j, "predicted_peak_bytes", rule->predicted_peak_bytes);
        json_uint(j, "activation_peak_bytes", rule->activation_peak_bytes);
        json_real(j, "objective", rule->objective);
        json_object_end(j);
    }
    json_array(j, "why");
    for (const sim_reason *w = sim_reasons; w->bit; w++) {
        if (r->why & w->bit) json_text(j, NULL, w->word);
    }
    json_array_end(j);
    json_array(j, "levers");
    for (uint32_t k = 0; k < r->n_levers; k++) json_lever(j, &r->levers[k], -1);
    json_array_end(j);
    json_object_end(j);
}

static void json_summary(json_writer *j, const sim_summary *s) {
    if (!s->known) return;
    json_object(j, NULL);
    json_text(j, "name", s->name);
    json_bool(j, "fits", s->fits);
    json_uint(j, "stage", s->stage);
    json_uint(j, "predicted_peak_bytes", s->peak_bytes);
    json_uint(j, "overshoot_bytes", s->over_bytes);
    json_real(j, "error", s->error);
    json_real(j, "bits_mean", s->bits_mean);
    json_object_end(j);
}

static void json_case(json_writer *j, const sim_input *in) {
    const planner_run *r = &in->model.run;
    json_text(j, "model", in->name[0] ? in->name : NULL);
    json_text(j, "gpu", in->gpu[0] ? in->gpu : NULL);
    json_text(j, "schedule", sim_schedule_name(in));
    json_text(j, "accounting", planner_accounting_name(r->accounting));
    json_uint(j, "pp", r->pp);
    json_uint(j, "tp", r->tp);
    json_uint(j, "cp", r->cp ? r->cp : 1);
    json_uint(j, "dp", r->dp);
    json_uint(j, "chunks", r->chunks);
    json_uint(j, "microbatches", r->microbatches);
    json_uint(j, "microbatch_tokens", (uint64_t)r->seq * r->microbatch);
    json_uint(j, "seq", r->seq);
    json_uint(j, "layers", in->model.shape.layers);
}

static void say_json(void *user, const char *text) {
    json_text(user, NULL, text);
}

int sim_show_json(const sim_input *in, const sim_answer *a, FILE *out) {
    uint64_t hash = 0;
    json_writer j;
    json_begin(&j, out, "simulate");
    json_bool(&j, "feasible", a->result.feasible);
    json_text(&j, "mode", in->model.run.mode == PLANNER_EQUALIZE ? "equalize" : "budget");
    json_real(&j, "objective", a->result.objective);
    json_text(&j, "objective_kind", in->objective == PLANNER_MINIMAX ? "minimax" : "sum");
    json_real(&j, "lower_bound", a->result.lower_bound);
    json_real(&j, "gap", a->result.gap);
    json_real(&j, "solve_ms", a->solve_ms);
    if (a->planned && planner_result_hash(&a->result, &hash) == AGOQ_OK)
        json_hash(&j, "plan_hash", hash);
    else
        json_null(&j, "plan_hash");
    json_case(&j, in);
    if (in->max) {
        json_object(&j, "max");
        json_text(&j, "what", sim_max_name(in->max));
        json_uint(&j, "largest", a->largest);
        json_uint(&j, "step", a->unit);
        json_uint(&j, "next_stage", a->next_stage);
        json_text(&j, "limit", a->limit);
        json_object_end(&j);
    }
    json_array(&j, "stages");
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) json_stage(&j, in, a, s);
    json_array_end(&j);
    json_array(&j, "others");
    for (int i = 0; i < SIM_N_OTHERS; i++) json_summary(&j, &a->other[i]);
    json_array_end(&j);
    if (in->compare && a->planned) {
        json_array(&j, "compare");
        for (int i = 0; i < SIM_N_COMPARED; i++) json_summary(&j, &a->compared[i]);
        json_array_end(&j);
    }
    json_array(&j, "levers");
    for (uint32_t s = 0; s < a->p.problem.n_stages; s++) {
        for (uint32_t k = 0; k < a->result.stages[s].n_levers; k++)
            json_lever(&j, &a->result.stages[s].levers[k], s);
    }
    json_array_end(&j);
    json_array(&j, "warnings");
    sim_warnings(in, a, say_json, &j);
    json_array_end(&j);
    json_end(&j);
    return j.bad || ferror(out) ? -1 : 0;
}
