/* See plan_show.h. Layers of one (stage, role) with the same width are told together, as ranges; an
 * interleaved stage holds layers that are not neighbours, so ranges are of layer numbers and not of
 * positions. */
#include "agoqctl/plan_show.h"

#include <string.h>

#include "common/role.h"
#include "common/units.h"

/* Which entries belong together: same stage, role and width; in a diff also the same width in the other plan.
 */
typedef struct group {
    const plan *p, *other; /* other NULL: no diff */
    int stage, role, bits, other_bits;
} group;

static int in_group(const group *g, const plan_entry *e) {
    return e->stage == g->stage && e->role == g->role && e->bits == g->bits &&
           (!g->other || plan_bits(g->other, e->layer, e->role) == g->other_bits);
}

static int group_size(const group *g) {
    int n = 0;
    for (uint32_t i = 0; i < g->p->n_entries; i++) n += in_group(g, &g->p->entries[i]);
    return n;
}

/* "layers 0-1, 4" */
static void print_layers(const group *g, FILE *out) {
    int first = -1, last = -1, n = 0;
    fputs(group_size(g) == 1 ? "layer " : "layers ", out);
    for (uint32_t i = 0; i <= g->p->n_entries; i++) {
        int end = i == g->p->n_entries;
        if (!end && !in_group(g, &g->p->entries[i])) continue;
        int layer = end ? -1 : g->p->entries[i].layer;
        if (first >= 0 && layer == last + 1) {
            last = layer;
            continue;
        }
        if (first >= 0) fprintf(out, first == last ? "%s%d" : "%s%d-%d", n++ ? ", " : "", first, last);
        first = last = layer;
    }
}

static void json_layers(json_writer *j, const group *g) {
    json_array(j, "layers");
    for (uint32_t i = 0; i < g->p->n_entries; i++) {
        if (in_group(g, &g->p->entries[i])) json_uint(j, NULL, g->p->entries[i].layer);
    }
    json_array_end(j);
}

static void print_stage_line(const plan_stage *s, uint32_t index, FILE *out) {
    char budget[32], predicted[32];
    units_format_bytes(s->budget_bytes, budget);
    units_format_bytes(s->predicted_peak_bytes, predicted);
    fprintf(out, "stage %u: predicted peak %s", index, s->predicted_peak_bytes ? predicted : "not known");
    if (s->budget_bytes)
        fprintf(out, ", budget %s (version %llu), %.1f %% used\n", budget,
                (unsigned long long)s->budget_version,
                100.0 * (double)s->predicted_peak_bytes / (double)s->budget_bytes);
    else
        fputs(", no budget\n", out);
}

void plan_show_text(const plan *p, FILE *out) {
    for (uint32_t stage = 0; stage < p->n_stages; stage++) {
        print_stage_line(&p->stages[stage], stage, out);
        for (int role = 0; role < AGOQ_N_ROLES; role++) {
            int n = 0;
            for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
                const int bits = agoq_width_bits(w);
                group g = {.p = p, .stage = (int)stage, .role = role, .bits = bits};
                if (!group_size(&g)) continue;
                if (!n++)
                    fprintf(out, "  %-14s %d (", role_name(role), bits);
                else
                    fprintf(out, ", %d (", bits);
                print_layers(&g, out);
                putc(')', out);
            }
            if (n) putc('\n', out);
        }
    }
}

static void json_stage_figures(json_writer *j, const plan_stage *s) {
    json_bytes(j, "budget_bytes", s->budget_bytes);
    json_uint(j, "budget_version", s->budget_version);
    json_bytes(j, "predicted_bytes", s->predicted_peak_bytes);
}

void plan_show_json(json_writer *j, const plan *p) {
    json_array(j, "stages");
    for (uint32_t stage = 0; stage < p->n_stages; stage++) {
        json_object(j, NULL);
        json_uint(j, "stage", stage);
        json_stage_figures(j, &p->stages[stage]);
        json_object(j, "widths");
        for (int role = 0; role < AGOQ_N_ROLES; role++) {
            int n = 0;
            for (int w = 0; w < AGOQ_N_WIDTHS; w++) {
                const int bits = agoq_width_bits(w);
                group g = {.p = p, .stage = (int)stage, .role = role, .bits = bits};
                if (!group_size(&g)) continue;
                if (!n++) json_array(j, role_name(role));
                json_object(j, NULL);
                json_uint(j, "bits", (uint64_t)bits);
                json_layers(j, &g);
                json_object_end(j);
            }
            if (n) json_array_end(j);
        }
        json_object_end(j);
        json_object_end(j);
    }
    json_array_end(j);
}

static const plan_stage *stage_or_none(const plan *p, uint32_t stage) {
    static const plan_stage none;
    return stage < p->n_stages ? &p->stages[stage] : &none;
}

static int diff_stages(const plan *a, const plan *b, FILE *out, json_writer *j) {
    uint32_t n_stages = a->n_stages > b->n_stages ? a->n_stages : b->n_stages;
    int n = 0;
    for (uint32_t stage = 0; stage < n_stages; stage++) {
        const plan_stage *x = stage_or_none(a, stage), *y = stage_or_none(b, stage);
        if (!memcmp(x, y, sizeof *x)) continue;
        n++;
        if (j) {
            json_object(j, NULL);
            json_uint(j, "stage", stage);
            json_object(j, "from");
            json_stage_figures(j, x);
            json_object_end(j);
            json_object(j, "to");
            json_stage_figures(j, y);
            json_object_end(j);
            json_object_end(j);
            continue;
        }
        char text[4][32];
        units_format_bytes(x->budget_bytes, text[0]);
        units_format_bytes(y->budget_bytes, text[1]);
        units_format_bytes(x->predicted_peak_bytes, text[2]);
        units_format_bytes(y->predicted_peak_bytes, text[3]);
        fprintf(out, "stage %u: budget %s -> %s, predicted peak %s -> %s\n", stage, text[0], text[1], text[2],
                text[3]);
    }
    return n;
}

static void tell_change(const group *g, int from, int to, FILE *out, json_writer *j) {
    if (j) {
        json_object(j, NULL);
        json_int(j, "stage", g->stage);
        json_text(j, "role", role_name(g->role));
        json_layers(j, g);
        json_bytes(j, "from", (uint64_t)from);
        json_bytes(j, "to", (uint64_t)to);
        json_object_end(j);
        return;
    }
    char old[12] = "-", new[12] = "-";
    if (from) snprintf(old, sizeof old, "%d", from);
    if (to) snprintf(new, sizeof new, "%d", to);
    fprintf(out, "stage %d: %-14s %s -> %s (", g->stage, role_name(g->role), old, new);
    print_layers(g, out);
    fputs(")\n", out);
}

/* Entries of b that differ from a, grouped; then those that only a has. */
static int diff_widths(const plan *a, const plan *b, FILE *out, json_writer *j) {
    uint32_t n_stages = a->n_stages > b->n_stages ? a->n_stages : b->n_stages;
    int n = 0;
    for (uint32_t stage = 0; stage < n_stages; stage++) {
        for (int role = 0; role < AGOQ_N_ROLES; role++) {
            for (int f = -1; f < AGOQ_N_WIDTHS; f++) { /* -1: none */
                const int from = agoq_width_bits(f);
                for (int t = 0; t < AGOQ_N_WIDTHS; t++) {
                    const int to = agoq_width_bits(t);
                    group g = {b, a, (int)stage, role, to, from};
                    if (to == from || !group_size(&g)) continue;
                    tell_change(&g, from, to, out, j);
                    n++;
                }
                group gone = {a, b, (int)stage, role, from, 0};
                if (!from || !group_size(&gone)) continue;
                tell_change(&gone, from, 0, out, j);
                n++;
            }
        }
    }
    return n;
}

int plan_diff_text(const plan *a, const plan *b, FILE *out) {
    int n = diff_stages(a, b, out, NULL);
    n += diff_widths(a, b, out, NULL);
    if (!n) fputs("no difference\n", out);
    return n;
}

int plan_diff_json(json_writer *j, const plan *a, const plan *b) {
    json_array(j, "stages");
    int n = diff_stages(a, b, NULL, j);
    json_array_end(j);
    json_array(j, "widths");
    n += diff_widths(a, b, NULL, j);
    json_array_end(j);
    return n;
}
