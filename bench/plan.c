/* How long the planner takes and how good its plans are. Every answer is checked before it is timed: within
 * every budget by planner_measure_plan, which shares no code path with the search, and proved optimal where
 * the figure claims it. Prints tables, then one JSON line per figure. One thread; CPU time of the process,
 * least of many runs, so that what else the machine does counts little.
 *
 *     make build/bench/plan && build/bench/plan            all
 *     build/bench/plan --json > bench/results/planner.json the figures as a result file (date and commit from
 *                                                           the environment: DATE, COMMIT) */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "planner/model.h"
#include "planner/planner.h"

#define STAGES  128u
#define LAYERS  128u
#define SECONDS 2.0 /* of CPU time for each figure: bursts of other work are shorter */

typedef struct figure {
    const char *id, *unit;
    double value;
} figure;

static figure figures[32];
static int n_figures;
static FILE *text; /* where tables go */

static void die(const char *what) {
    fprintf(stderr, "plan: %s\n", what);
    exit(1);
}

static void add_figure(const char *id, double value, const char *unit) {
    figures[n_figures++] = (figure){id, unit, value};
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static uint64_t next_random(uint64_t *seed) {
    uint64_t x = *seed += 0x9e3779b97f4a7c15ull;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ x >> 27) * 0x94d049bb133111ebull;
    return x ^ x >> 31;
}

/* Sum of objectives; dies if a plan is over a budget, and counts the stages that are not proved optimal. */
static double checked(const planner_problem *problem, const planner_result *r, int *open) {
    planner_stage_result *m = calloc(problem->n_stages, sizeof *m);
    if (!m || planner_measure_plan(problem, &r->plan, m) != AGOQ_OK) die("a plan could not be measured");
    for (uint32_t s = 0; s < problem->n_stages; s++) {
        if (m[s].overshoot_bytes || m[s].predicted_peak_bytes != r->stages[s].predicted_peak_bytes)
            die("a plan is over its budget, or predicts other bytes than it has");
        *open += r->stages[s].lower_bound < r->stages[s].objective;
    }
    free(m);
    return r->objective;
}

/* Least CPU time of a solve in seconds. */
static double time_solve(const planner_problem *problem, int *open) {
    double least = INFINITY;
    const double begin = cpu_seconds();
    for (int k = 0; cpu_seconds() - begin < SECONDS; k++) {
        planner_result r;
        const double start = cpu_seconds();
        if (planner_solve(problem, &r) != AGOQ_OK || !r.feasible) die("no plan");
        const double took = cpu_seconds() - start;
        if (k == 0) (void)checked(problem, &r, open);
        if (took < least) least = took;
        planner_result_fini(&r);
    }
    return least;
}

/* A layer of LLaMA3-8B at 8192 tokens: one width a layer (gate and up), or all five tensors. */
static const struct {
    uint8_t role, count;
    int64_t cols;
    uint32_t widths;
    double sensitivity;
} shapes[5] = {{AGOQ_ROLE_MLP_GATE_UP, 2, 14336, 31, 1.08},
               {AGOQ_ROLE_ATTN_NORM_IN, 1, 4096, 31, 0.12},
               {AGOQ_ROLE_MLP_NORM_IN, 1, 4096, 31, 0.13},
               {AGOQ_ROLE_ATTN_OUT, 1, 4096, AGOQ_MASK_8 | AGOQ_MASK_16, 0.74},
               {AGOQ_ROLE_ATTN_QKV, 1, 6144, AGOQ_MASK_8 | AGOQ_MASK_16, 6.3}};

/* 128 stages of 128 layers with different budgets. spread: sensitivities of layers differ by up to this
 * factor (1: alike). Returns seconds of one solve of all stages. */
static double many_stages(uint32_t roles, double spread, int *open) {
    planner_stage *stages = calloc(STAGES, sizeof *stages);
    planner_item *items = calloc((size_t)STAGES * LAYERS * roles, sizeof *items);
    uint32_t live[STAGES];
    static const uint64_t fixed = 0;
    uint64_t seed = 7;
    if (!stages || !items) die("out of memory");
    for (uint32_t s = 0; s < STAGES; s++) {
        planner_item *first = items + (size_t)s * LAYERS * roles;
        uint64_t low = 0, high = 0;
        live[s] = STAGES - s;
        for (uint32_t i = 0; i < LAYERS * roles; i++) {
            const uint32_t k = i % roles;
            const double factor = exp(log(spread) * (double)(next_random(&seed) % 100000) / 1e5);
            first[i] = (planner_item){(uint16_t)(s * LAYERS + i / roles),
                                      shapes[k].role,
                                      0,
                                      shapes[k].count,
                                      8192,
                                      shapes[k].cols,
                                      shapes[k].widths,
                                      shapes[k].sensitivity * factor};
            low += planner_item_bytes(&first[i], shapes[k].widths & 1 ? 4 : 8, 0);
            high += planner_item_bytes(&first[i], 16, 0);
        }
        for (uint32_t i = 1; i < LAYERS * roles; i++) { /* in the order in which daemons hold them */
            for (uint32_t j = i;
                 j && first[j].layer == first[j - 1].layer && first[j].role < first[j - 1].role; j--) {
                const planner_item swap = first[j];
                first[j] = first[j - 1];
                first[j - 1] = swap;
            }
        }
        stages[s] = (planner_stage){.budget_bytes =
                                        live[s] * (low + (high - low) / 1000 * (next_random(&seed) % 700)),
                                    .n_chunks = 1,
                                    .n_items = LAYERS * roles,
                                    .n_live = 1,
                                    .fixed_bytes = &fixed,
                                    .items = first,
                                    .live = &live[s]};
    }
    const planner_problem problem = {.n_stages = STAGES, .stages = stages};
    const double seconds = time_solve(&problem, open);
    free(items);
    free(stages);
    return seconds;
}

static void time_stages(void) {
    static const double spreads[] = {1, 3, 50};
    fprintf(text, "%u stages of %u layers, widths 4 5 6 8 16, one row of live counts\n", STAGES, LAYERS);
    fprintf(text, "  %-22s %-26s %12s %12s %8s\n", "tensors of a stage", "sensitivities of layers",
            "ms in all", "us a stage", "proved");
    for (uint32_t roles = 1; roles <= 5; roles += 4) {
        double ms[3];
        for (int i = 0; i < 3; i++) {
            int open = 0;
            ms[i] = 1e3 * many_stages(roles, spreads[i], &open);
            char name[32];
            snprintf(name, sizeof name, i ? "all different, %g-fold" : "alike", spreads[i]);
            fprintf(text, "  %-22u %-26s %12.3f %12.2f %5d/%u\n", LAYERS * roles, name, ms[i],
                    1e3 * ms[i] / STAGES, (int)STAGES - open, STAGES);
            if (open && roles == 1) die("not proved optimal");
        }
        add_figure(roles == 1 ? "plan_128x128x5_ms" : "plan_640_us_per_stage",
                   roles == 1 ? ms[0] : 1e3 * ms[0] / STAGES, roles == 1 ? "ms" : "us");
        const double slower = ms[1] > ms[2] ? ms[1] : ms[2];
        add_figure(roles == 1 ? "plan_128x128x5_distinct_ms" : "plan_640_distinct_us_per_stage",
                   roles == 1 ? slower : 1e3 * slower / STAGES, roles == 1 ? "ms" : "us");
    }
}

static planner_model llama(int big) {
    planner_model m = {
        .shape = {.hidden = 4096, .ffn = 14336, .layers = 32, .heads = 32, .kv_heads = 8, .vocab = 128256},
        .run = {.seq = 4096,
                .microbatch = 1,
                .microbatches = 8,
                .pp = 4,
                .tp = 1,
                .dp = 1,
                .chunks = 2,
                .schedule = AGOQ_SCHEDULE_INTERLEAVED,
                .grad_bits = 8,
                .qkv_bits = 16,
                .budget_bytes = PLANNER_NO_BUDGET}};
    if (big) {
        m.shape = (planner_shape){
            .hidden = 5120, .ffn = 13824, .layers = 40, .heads = 40, .kv_heads = 40, .vocab = 32000};
    }
    return m;
}

static void time_interleaved(void) {
    fprintf(
        text,
        "\n32 ranks, interleaved, 128 layers, 64 micro-batches: lists, live vectors and plan, end to end\n");
    fprintf(text, "  %8s %12s %12s %12s %10s %10s\n", "chunks", "live rows", "end to end", "solve alone",
            "proved", "gap");
    double worst = 0;
    for (uint32_t v = 2; v <= 4; v *= 2) {
        planner_model m = llama(0);
        m.shape.layers = 128;
        m.run.pp = 32;
        m.run.chunks = v;
        m.run.microbatches = 64;
        double least = INFINITY, alone = INFINITY, gap = 0;
        uint32_t rows = 0;
        int open = 0;
        const double begin = cpu_seconds();
        for (int k = 0; cpu_seconds() - begin < SECONDS; k++) {
            planner_model_problem p;
            planner_result r;
            const double start = cpu_seconds();
            if (planner_model_build(&m, &p) != AGOQ_OK) die("no problem");
            for (uint32_t s = 0; s < 32; s++)
                p.stages[s].budget_bytes =
                    p.stages[s].phase[0].static_bytes + p.stages[s].phase[0].workspace_bytes +
                    ((uint64_t)p.live_units[s] * m.shape.layers / 32 / v + 3) * 4096 * (44000 + 150 * s);
            const double middle = cpu_seconds();
            if (planner_solve(&p.problem, &r) != AGOQ_OK || !r.feasible) die("no plan");
            const double end = cpu_seconds();
            if (end - start < least) least = end - start;
            if (end - middle < alone) alone = end - middle;
            if (k == 0) {
                (void)checked(&p.problem, &r, &open);
                gap = r.gap;
                for (uint32_t s = 0; s < 32; s++) rows += p.stages[s].n_live;
            }
            planner_result_fini(&r);
            planner_model_fini(&p);
        }
        fprintf(text, "  %8u %12u %9.3f ms %9.3f ms %7d/32 %9.2g\n", v, rows, 1e3 * least, 1e3 * alone,
                32 - open, gap);
        if (least > worst) worst = least;
    }
    add_figure("plan_interleaved32_ms", 1e3 * worst, "ms");
}

/* The rule's plan and ours, both with `percent` of stage 0's activation peak under the rule for every stage.
 */
static void paper_case(int big, double ratio[2]) {
    planner_model m = llama(big);
    planner_model_problem p;
    planner_stage_result rule[4];
    uint8_t bits[4];
    if (planner_model_build(&m, &p) != AGOQ_OK) die("no problem");
    for (int s = 0; s < 4; s++)
        memset(p.stages[s].phase, 0, sizeof p.stages[s].phase); /* activations alone */
    if (planner_paper_rule(p.live_units, 4, bits) != AGOQ_OK ||
        planner_evaluate(&p.problem, bits, rule) != AGOQ_OK)
        die("no rule");
    const uint64_t peak = rule[0].predicted_peak_bytes;
    double total = 0, others = 0;
    for (int s = 0; s < 4; s++) {
        total += rule[s].objective;
        others += s ? rule[s].objective : 0;
    }
    fprintf(text,
            "\n%s, p 4, v 2, m 8, 4096 tokens, same formats, pins and sensitivities; budget of every "
            "stage: stage 0's peak under the rule, %.1f MiB\n"
            "  %-8s %-6s %5s %10s %12s   %12s %10s %10s   %12s %10s\n",
            big ? "LLaMA2-13B" : "LLaMA3-8B", (double)peak / 1048576, "stage", "live", "rule", "rule MiB",
            "rule error", "exact: error", "mean bits", "MiB", "+5 %: error", "mean bits");
    planner_result r[2];
    for (int k = 0; k < 2; k++) {
        int open = 0;
        for (int s = 0; s < 4; s++) p.stages[s].budget_bytes = k ? peak + peak / 20 : peak;
        if (planner_solve(&p.problem, &r[k]) != AGOQ_OK || !r[k].feasible) die("no plan");
        (void)checked(&p.problem, &r[k], &open);
        if (open) die("a plan of the paper's setting is not proved optimal");
    }
    for (int s = 0; s < 4; s++)
        fprintf(text, "  %-8d %-6u %5u %10.1f %12.4g   %12.4g %10.2f %10.1f   %12.4g %10.2f\n", s,
                p.live_units[s], bits[s], (double)rule[s].predicted_peak_bytes / 1048576, rule[s].objective,
                r[0].stages[s].objective, r[0].stages[s].bits_mean,
                (double)r[0].stages[s].predicted_peak_bytes / 1048576, r[1].stages[s].objective,
                r[1].stages[s].bits_mean);
    double relaxed[2] = {0};
    for (int s = 0; s < 4; s++) {
        relaxed[0] += s ? r[0].stages[s].relaxed_bound : 0;
        relaxed[1] += r[1].stages[s].relaxed_bound;
    }
    ratio[0] = others / (r[0].objective - r[0].stages[0].objective);
    ratio[1] = total / r[1].objective;
    fprintf(text,
            "  error on stages 1-3: %.3f times lower (bound of the relaxation %.3f); in all with 5 %% more "
            "budget: %.3f times lower (bound %.3f)\n",
            ratio[0], others / relaxed[0], ratio[1], total / relaxed[1]);
    planner_result_fini(&r[0]);
    planner_result_fini(&r[1]);
    planner_model_fini(&p);
}

static void print_json(int whole) {
    const char *date = getenv("DATE"), *commit = getenv("COMMIT");
    if (whole)
        printf("{\n \"gpu\": null,\n \"date\": \"%s\",\n \"commit\": \"%s\",\n \"command\": "
               "\"build/bench/plan --json\",\n \"figures\": [",
               date ? date : "", commit ? commit : "");
    for (int i = 0; i < n_figures; i++)
        printf(whole ? "%s\n  {\"id\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}"
                     : "%s{\"id\": \"%s\", \"value\": %.4g, \"unit\": \"%s\"}\n",
               whole && i ? "," : "", figures[i].id, figures[i].value, figures[i].unit);
    if (whole) printf("\n ]\n}\n");
}

int main(int argc, char **argv) {
    const int json = argc > 1 && strcmp(argv[1], "--json") == 0;
    double ratio[2];
    text = json ? stderr : stdout;
    time_stages();
    time_interleaved();
    paper_case(1, ratio);
    add_figure("plan_paper_setting_error_ratio", ratio[0], "ratio");
    add_figure("plan_5pct_error_ratio", ratio[1], "ratio");
    paper_case(0, ratio);
    add_figure("plan_llama3_8b_error_ratio", ratio[0], "ratio");
    add_figure("plan_llama3_8b_5pct_error_ratio", ratio[1], "ratio");
    if (!json) printf("\n");
    print_json(json);
    return 0;
}
