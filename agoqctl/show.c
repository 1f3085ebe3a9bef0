/* status, ranks, plan history, plan explain: answers of the daemon as text and as JSON, side by side per verb
 * so that a new field is added to both. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "agoqctl/ask.h"
#include "agoqctl/render.h"
#include "agoqctl/verbs.h"
#include "common/units.h"
#include "planner/plan.h"
#include "planner/planner.h"

#define N_COLUMNS(columns) ((int)(sizeof(columns) / sizeof *(columns)))

/* ---- status ---- */

void show_status_text(const Agoq__CtlStatus *s, int color, FILE *out) {
    char id[32], uptime[32], age[32];
    plan_id_format(s->plan_id, id);
    render_age(s->uptime_ms, uptime);
    render_age(s->plan_age_ms, age);
    fputs("job      ", out);
    render_text(s->job[0] ? s->job : "(none yet)", out);
    fprintf(out, ", term %llu, ", (unsigned long long)s->term);
    if (s->step >= 0)
        fprintf(out, "step %lld\n", (long long)s->step);
    else
        fputs("no step yet\n", out);
    fputs("state    ", out);
    render_colored(s->state, render_state_color(s->state), color, out);
    fprintf(out, ", daemon %llu up %s\n", (unsigned long long)s->pid, uptime);
    fprintf(out, "ranks    %u live, ", s->ranks_live);
    char silent[32];
    snprintf(silent, sizeof silent, "%u silent", s->ranks_silent);
    render_colored(silent, s->ranks_silent ? RENDER_WARN : RENDER_PLAIN, color, out);
    if (s->world)
        fprintf(out, " of %u\n", s->world);
    else
        fputs("\n", out);
    fprintf(out, "plan     %s", id);
    if (s->plan_age_ms) fprintf(out, ", for %s", age);
    if (s->why[0]) fputs(": ", out);
    render_text(s->why, out);
    fprintf(out, "\ncounts   %llu switches, %llu withdrawn plans, %llu refused messages\n",
            (unsigned long long)s->switches, (unsigned long long)s->aborts,
            (unsigned long long)s->rejected_messages);
}

void show_status_json(json_writer *j, const Agoq__CtlStatus *s) {
    json_object(j, "status");
    json_text(j, "job", s->job[0] ? s->job : NULL);
    json_uint(j, "term", s->term);
    json_text(j, "state", s->state);
    json_step(j, "step", s->step);
    json_uint(j, "ranks_live", s->ranks_live);
    json_uint(j, "ranks_silent", s->ranks_silent);
    json_uint(j, "world", s->world);
    json_plan_id(j, "plan_id", s->plan_id);
    json_hash(j, "plan_hash", s->plan_hash);
    json_uint(j, "plan_age_ms", s->plan_age_ms);
    json_text(j, "why", s->why);
    json_uint(j, "uptime_ms", s->uptime_ms);
    json_uint(j, "pid", s->pid);
    json_uint(j, "switches", s->switches);
    json_uint(j, "aborts", s->aborts);
    json_uint(j, "rejected_messages", s->rejected_messages);
    json_object_end(j);
}

int verb_status(const ctl_args *args) {
    Agoq__Envelope *reply = NULL;
    int code = ask_plain(args, AGOQ__CTL_REQUEST__VERB_STATUS, &reply);
    if (code != CTL_OK) return code;
    const Agoq__CtlStatus *status = reply->ctl_reply->status;
    if (!status) {
        code = ctl_fail(args, CTL_FAILED,
                        "the daemon's answer holds no status. Do the versions match? (agoqctl version)");
    } else {
        if (args->json) {
            json_writer j;
            json_begin(&j, stdout, "status");
            show_status_json(&j, status);
            json_end(&j);
        } else {
            show_status_text(status, ctl_use_color(args), stdout);
        }
        code = status->ranks_silent || !strcmp(status->state, "infeasible") ? CTL_FAILED : CTL_OK;
    }
    wire_free(reply);
    return code;
}

/* ---- ranks ---- */

int show_ranks_text(const Agoq__CtlReply *reply, int color, FILE *out) {
    static const char *const columns[] = {"RANK>", "STAGE>", "DP>",    "STATE",      "STEP>",
                                          "PLAN",  "PEAK>",  "SAVED>", "PREDICTED>", "BUDGET>",
                                          "GUARD", "SEEN>",  "DEVICE"};
    render_table t;
    render_init(&t, columns, N_COLUMNS(columns));
    for (size_t i = 0; i < reply->n_ranks; i++) {
        const Agoq__CtlRank *r = reply->ranks[i];
        char id[32], age[32];
        plan_id_format(r->applied_id, id);
        render_age(r->age_ms, age);
        render_add(&t, RENDER_PLAIN, "%d", r->rank);
        render_add(&t, RENDER_PLAIN, "%d", r->stage);
        render_add(&t, RENDER_PLAIN, "%d", r->dp);
        render_add(&t, render_state_color(r->state), "%s", r->state);
        render_add(&t, RENDER_PLAIN, "%lld", (long long)r->step);
        render_add(&t, RENDER_PLAIN, "%s", id);
        render_add_bytes(&t, r->peak_bytes);
        render_add_bytes(&t, r->saved_peak_bytes);
        render_add_bytes(&t, r->predicted_bytes);
        render_add_bytes(&t, r->budget_bytes);
        render_add(&t, r->guarded ? RENDER_BAD : RENDER_PLAIN, "%s", r->guarded ? "yes" : "-");
        render_add(&t, RENDER_PLAIN, "%s", age);
        render_add(&t, RENDER_PLAIN, "%s", r->device);
    }
    int status = render_print(&t, color, out);
    render_fini(&t);
    return status;
}

static void json_rank(json_writer *j, const Agoq__CtlRank *r) {
    json_object(j, NULL);
    json_int(j, "rank", r->rank);
    json_int(j, "stage", r->stage);
    json_int(j, "dp", r->dp);
    json_text(j, "device", r->device);
    json_text(j, "host", r->host);
    json_uint(j, "pid", r->pid);
    json_text(j, "state", r->state);
    json_step(j, "step", r->step);
    json_plan_id(j, "applied_id", r->applied_id);
    json_bytes(j, "peak_bytes", r->peak_bytes);
    json_bytes(j, "saved_peak_bytes", r->saved_peak_bytes);
    json_bytes(j, "predicted_bytes", r->predicted_bytes);
    json_bytes(j, "budget_bytes", r->budget_bytes);
    json_bool(j, "guarded", r->guarded);
    json_uint(j, "age_ms", r->age_ms);
    json_uint(j, "disagreements", r->disagreements);
    json_bytes(j, "reserved_bytes", r->reserved_bytes);
    json_uint(j, "oom_retries", r->oom_retries);
    json_object_end(j);
}

void show_ranks_json(json_writer *j, const Agoq__CtlReply *reply) {
    json_array(j, "ranks");
    for (size_t i = 0; i < reply->n_ranks; i++) json_rank(j, reply->ranks[i]);
    json_array_end(j);
}

int verb_ranks(const ctl_args *args) {
    Agoq__Envelope *reply = NULL;
    int code = ask_plain(args, AGOQ__CTL_REQUEST__VERB_RANKS, &reply);
    if (code != CTL_OK) return code;
    if (args->json) {
        json_writer j;
        json_begin(&j, stdout, "ranks");
        show_ranks_json(&j, reply->ctl_reply);
        json_end(&j);
    } else if (!reply->ctl_reply->n_ranks) {
        puts("no rank has connected yet");
    } else if (show_ranks_text(reply->ctl_reply, ctl_use_color(args), stdout)) {
        code = ctl_fail(args, CTL_FAILED, "out of memory");
    }
    code = ask_partial(code, reply);
    wire_free(reply);
    return code;
}

/* ---- history ---- */

static void wall_time(uint64_t wall_ms, char text[32]) {
    time_t seconds = (time_t)(wall_ms / 1000);
    struct tm tm;
    char day[24] = "-";
    if (wall_ms && gmtime_r(&seconds, &tm)) strftime(day, sizeof day, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(text, 32, wall_ms ? "%s.%03uZ" : "%s", day, (unsigned)(wall_ms % 1000));
}

static int history_text(const Agoq__CtlReply *reply, int color) {
    static const char *const columns[] = {"TIME", "STEP>", "WHAT", "PLAN", "EFFECT>", "WHY"};
    render_table t;
    render_init(&t, columns, N_COLUMNS(columns));
    for (size_t i = 0; i < reply->n_events; i++) {
        const Agoq__CtlEvent *e = reply->events[i];
        char when[32], id[32];
        wall_time(e->wall_ms, when);
        plan_id_format(e->plan_id, id);
        render_add(&t, RENDER_PLAIN, "%s", when);
        if (e->step >= 0)
            render_add(&t, RENDER_PLAIN, "%lld", (long long)e->step);
        else
            render_add(&t, RENDER_PLAIN, "-");
        render_add(&t, !strcmp(e->what, "alarm") ? RENDER_BAD : RENDER_PLAIN, "%s", e->what);
        render_add(&t, RENDER_PLAIN, "%s", e->plan_id ? id : "-");
        if (e->steps_to_effect >= 0)
            render_add(&t, RENDER_PLAIN, "%lld steps", (long long)e->steps_to_effect);
        else
            render_add(&t, RENDER_PLAIN, "-");
        render_add(&t, RENDER_PLAIN, "%s", e->why);
    }
    int status = render_print(&t, color, stdout);
    render_fini(&t);
    return status;
}

int verb_plan_history(const ctl_args *args) {
    Agoq__Envelope *reply = NULL;
    int code = ask_plain(args, AGOQ__CTL_REQUEST__VERB_HISTORY, &reply);
    if (code != CTL_OK) return code;
    const Agoq__CtlReply *r = reply->ctl_reply;
    if (args->json) {
        json_writer j;
        json_begin(&j, stdout, "plan history");
        json_array(&j, "events");
        for (size_t i = 0; i < r->n_events; i++) {
            const Agoq__CtlEvent *e = r->events[i];
            json_object(&j, NULL);
            json_uint(&j, "wall_ms", e->wall_ms);
            json_int(&j, "step", e->step);
            json_text(&j, "what", e->what);
            json_text(&j, "why", e->why);
            json_plan_id(&j, "plan_id", e->plan_id);
            json_int(&j, "steps_to_effect", e->steps_to_effect);
            json_bytes(&j, "ms_to_effect", e->ms_to_effect);
            json_object_end(&j);
        }
        json_array_end(&j);
        json_end(&j);
    } else if (!r->n_events) {
        puts("nothing has happened yet");
    } else if (history_text(r, ctl_use_color(args))) {
        code = ctl_fail(args, CTL_FAILED, "out of memory");
    }
    wire_free(reply);
    return code;
}

/* ---- explain ---- */

static void line_bytes(const char *name, uint64_t bytes) {
    char text[32] = "not known";
    if (bytes) units_format_bytes(bytes, text);
    printf("  %-22s %s\n", name, text);
}

static void explain_text(const Agoq__CtlStageInfo *s, int color) {
    printf("stage %u: ", s->stage);
    render_colored(s->why_text[0] ? s->why_text : "no reason recorded",
                   s->why & PLANNER_WHY_INFEASIBLE ? RENDER_BAD : RENDER_PLAIN, color, stdout);
    putchar('\n');
    line_bytes("budget", s->budget_bytes);
    line_bytes("predicted peak", s->predicted_bytes);
    line_bytes("measured peak", s->measured_peak_bytes);
    line_bytes("saved activations", s->activation_bytes);
    line_bytes("the same at 16 bits", s->activation_bytes16);
    if (!s->overshoot_bytes) line_bytes("unused", s->slack_bytes);
    if (s->bits_mean > 0) printf("  %-22s %.2f bits", "mean planned width", s->bits_mean);
    if (s->bits_mean > 0 && s->paper_bits) printf(" (the paper's rule: %u)", s->paper_bits);
    if (s->bits_mean > 0) putchar('\n');
    for (size_t i = 0; s->n_chunks && i + s->n_chunks <= s->n_live; i += s->n_chunks) {
        printf("  %-22s", i ? "" : "live micro-batches");
        for (size_t c = 0; c < s->n_chunks; c++) printf("%s%u", c ? " + " : " ", s->live[i + c]);
        putchar('\n');
    }
    if (s->overshoot_bytes) line_bytes("too much by", s->overshoot_bytes);
    for (size_t i = 0; i < s->n_levers; i++) {
        char saves[32];
        units_format_bytes(s->levers[i]->saves_bytes, saves);
        printf("  %-22s ", i ? "" : "what would help");
        render_text(s->levers[i]->text, stdout);
        printf(": %s%s\n", saves, s->levers[i]->enough ? ", enough alone" : "");
    }
}

int verb_plan_explain(const ctl_args *args) {
    Agoq__CtlExplain explain = AGOQ__CTL_EXPLAIN__INIT;
    explain.stage = (int32_t)args->stage;
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_EXPLAIN;
    request.explain = &explain;
    Agoq__Envelope *reply = NULL;
    int code = ask_once(args, &request, &reply);
    if (code != CTL_OK) return code;
    const Agoq__CtlReply *r = reply->ctl_reply;
    if (args->json) {
        json_writer j;
        json_begin(&j, stdout, "plan explain");
        json_array(&j, "stages");
        for (size_t i = 0; i < r->n_stages; i++) ask_json_stage(&j, r->stages[i]);
        json_array_end(&j);
        json_end(&j);
    } else if (!r->n_stages) {
        puts("no plan has been made yet");
    }
    for (size_t i = 0; !args->json && i < r->n_stages; i++) explain_text(r->stages[i], ctl_use_color(args));
    wire_free(reply);
    return code;
}
