/* See ask.h. Failures are told here and nowhere else: text on stderr, and with --json an error object on
 * stdout, so that a script finds the levers of an infeasible budget without reading prose. */
#include "agoqctl/ask.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agoqctl/render.h"
#include "common/units.h"
#include "planner/planner.h"

const char *ctl_code_name(int code) {
    static const char *const names[] = {"ok",          "failed",           "usage",
                                        "unreachable", "permission",       "infeasible",
                                        "timed_out",   "version_conflict", "partial"};
    return code >= 0 && code < (int)(sizeof names / sizeof *names) ? names[code] : "failed";
}

int ctl_use_color(const ctl_args *args) {
    const char *no_color = getenv("NO_COLOR"), *term = getenv("TERM");
    if (args->no_color || args->json || (no_color && *no_color)) return 0;
    return isatty(STDOUT_FILENO) && term && strcmp(term, "dumb") != 0;
}

void ask_json_stage(json_writer *j, const Agoq__CtlStageInfo *stage) {
    json_object(j, NULL);
    json_uint(j, "stage", stage->stage);
    json_text(j, "why_text", stage->why_text);
    json_uint(j, "why", stage->why);
    json_bool(j, "infeasible", (stage->why & PLANNER_WHY_INFEASIBLE) != 0);
    json_bytes(j, "budget_bytes", stage->budget_bytes);
    json_bytes(j, "predicted_bytes", stage->predicted_bytes);
    json_bytes(j, "measured_peak_bytes", stage->measured_peak_bytes);
    json_uint(j, "slack_bytes", stage->slack_bytes);
    json_uint(j, "overshoot_bytes", stage->overshoot_bytes);
    json_uint(j, "activation_bytes", stage->activation_bytes);
    json_uint(j, "activation_bytes16", stage->activation_bytes16);
    json_real(j, "bits_mean", stage->bits_mean);
    json_bytes(j, "paper_bits", stage->paper_bits);
    json_real(j, "objective", stage->objective);
    json_real(j, "lower_bound", stage->lower_bound);
    json_uint(j, "n_chunks", stage->n_chunks);
    json_array(j, "live");
    for (size_t i = 0; i < stage->n_live; i++) json_uint(j, NULL, stage->live[i]);
    json_array_end(j);
    json_array(j, "levers");
    for (size_t i = 0; i < stage->n_levers; i++) {
        json_object(j, NULL);
        json_text(j, "text", stage->levers[i]->text);
        json_uint(j, "saves_bytes", stage->levers[i]->saves_bytes);
        json_bool(j, "enough", stage->levers[i]->enough);
        json_object_end(j);
    }
    json_array_end(j);
    json_object_end(j);
}

static void print_levers(const Agoq__CtlStageInfo *stage) {
    char over[32], saves[32];
    if (!stage->overshoot_bytes && !stage->n_levers) return;
    units_format_bytes(stage->overshoot_bytes, over);
    fprintf(stderr, "  stage %u: %s too much\n", stage->stage, over);
    for (size_t i = 0; i < stage->n_levers; i++) {
        units_format_bytes(stage->levers[i]->saves_bytes, saves);
        fputs("    - ", stderr);
        render_text(stage->levers[i]->text, stderr);
        fprintf(stderr, ": %s%s\n", saves, stage->levers[i]->enough ? ", enough alone" : "");
    }
}

static int tell(const ctl_args *args, int code, const char *text, const Agoq__CtlReply *reply) {
    fputs("agoqctl: ", stderr);
    render_text(text, stderr);
    putc('\n', stderr);
    for (size_t i = 0; reply && i < reply->n_stages; i++) print_levers(reply->stages[i]);
    if (!args->json) return code;
    json_writer j;
    char command[40];
    snprintf(command, sizeof command, "%s%s%s", args->verb && args->verb->group ? args->verb->group : "",
             args->verb && args->verb->group ? " " : "", args->verb ? args->verb->name : "");
    json_begin(&j, stdout, args->verb ? command : NULL);
    json_object(&j, "error");
    json_int(&j, "code", code);
    json_text(&j, "name", ctl_code_name(code));
    json_text(&j, "text", text);
    json_array(&j, "stages");
    for (size_t i = 0; reply && i < reply->n_stages; i++) ask_json_stage(&j, reply->stages[i]);
    json_array_end(&j);
    json_object_end(&j);
    json_end(&j);
    return code;
}

int ctl_fail(const ctl_args *args, int code, const char *format, ...) {
    char text[CTL_MAX_TEXT];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return tell(args, code, text, NULL);
}

int ask_open(const ctl_args *args, ctl_client **client) {
    char error[CTL_MAX_TEXT];
    int code = client_open(args->socket, client, error, sizeof error);
    return code == CTL_OK ? CTL_OK : tell(args, code, error, NULL);
}

static uint64_t patience(const ctl_args *args) {
    return args->wait ? 3000 : args->timeout_ms;
}

static int judge(const ctl_args *args, int code, const char *error, Agoq__Envelope **reply) {
    if (code == CTL_OK) return CTL_OK;
    if (code == CTL_PARTIAL) {
        if (!args->wait) fprintf(stderr, "agoqctl: %s\n", error);
        return CTL_OK;
    }
    tell(args, code, error,
         *reply && (*reply)->body_case == AGOQ__ENVELOPE__BODY_CTL_REPLY ? (*reply)->ctl_reply : NULL);
    wire_free(*reply);
    *reply = NULL;
    return code;
}

int ask(const ctl_args *args, ctl_client *client, Agoq__CtlRequest *request, Agoq__Envelope **reply) {
    char error[CTL_MAX_TEXT];
    int code = client_ask(client, request, patience(args), reply, error, sizeof error);
    return judge(args, code, error, reply);
}

int ask_plain(const ctl_args *args, Agoq__CtlRequest__VerbCase verb, Agoq__Envelope **reply) {
    char error[CTL_MAX_TEXT];
    ctl_client *client = NULL;
    int code = ask_open(args, &client);
    if (code != CTL_OK) return code;
    code = client_ask_plain(client, verb, patience(args), reply, error, sizeof error);
    client_close(&client);
    return judge(args, code, error, reply);
}

int ask_partial(int code, const Agoq__Envelope *reply) {
    return code == CTL_OK && reply && reply->ctl_reply->code == CTL_PARTIAL ? CTL_PARTIAL : code;
}

int ask_once(const ctl_args *args, Agoq__CtlRequest *request, Agoq__Envelope **reply) {
    ctl_client *client = NULL;
    int code = ask_open(args, &client);
    if (code != CTL_OK) return code;
    code = ask(args, client, request, reply);
    client_close(&client);
    return code;
}
