/* budget get, set, reset, watch. `set` reads the budgets first, to print old -> new; --wait polls, since the
 * daemon answers every question at once and keeps nothing for a tool that may have gone. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agoqctl/ask.h"
#include "agoqctl/render.h"
#include "agoqctl/verbs.h"
#include "common/clock.h"
#include "common/units.h"

#define POLL_US            100000
#define WAIT_MS            60000 /* of --wait without --timeout */
#define N_COLUMNS(columns) ((int)(sizeof(columns) / sizeof *(columns)))

static const char *device_of(const ctl_args *args) {
    return args->n_positional ? args->positional[0] : "";
}

static void json_budget(json_writer *j, const Agoq__CtlBudget *b) {
    json_object(j, NULL);
    json_text(j, "device", b->device);
    json_step(j, "stage", b->stage);
    json_uint(j, "bytes", b->bytes);
    json_uint(j, "effective_bytes", b->effective_bytes);
    json_uint(j, "configured_bytes", b->configured_bytes);
    json_uint(j, "version", b->version);
    json_text(j, "state", b->state);
    json_step(j, "step_requested", b->step_requested);
    json_step(j, "step_effective", b->step_effective);
    json_object_end(j);
}

static void json_budgets(const char *command, const Agoq__CtlReply *reply) {
    json_writer j;
    json_begin(&j, stdout, command);
    json_array(&j, "budgets");
    for (size_t i = 0; i < reply->n_budgets; i++) json_budget(&j, reply->budgets[i]);
    json_array_end(&j);
    json_end(&j);
}

static int text_budgets(const ctl_args *args, const Agoq__CtlReply *reply) {
    static const char *const columns[] = {"STAGE>",   "BUDGET>", "EFFECTIVE>", "CONFIGURED>",
                                          "VERSION>", "STATE",   "DEVICE"};
    render_table t;
    render_init(&t, columns, N_COLUMNS(columns));
    for (size_t i = 0; i < reply->n_budgets; i++) {
        const Agoq__CtlBudget *b = reply->budgets[i];
        render_add(&t, RENDER_PLAIN, b->stage >= 0 ? "%d" : "-", b->stage);
        render_add_bytes(&t, b->bytes);
        render_add_bytes(&t, b->effective_bytes);
        render_add_bytes(&t, b->configured_bytes);
        render_add(&t, RENDER_PLAIN, "%llu", (unsigned long long)b->version);
        render_add(&t, render_state_color(b->state), "%s", b->state);
        render_add(&t, RENDER_PLAIN, "%s", b->device);
    }
    int status = render_print(&t, ctl_use_color(args), stdout);
    render_fini(&t);
    return status ? ctl_fail(args, CTL_FAILED, "out of memory") : CTL_OK;
}

static int by_stage(const void *x, const void *y) {
    const Agoq__CtlBudget *a = *(Agoq__CtlBudget *const *)x, *b = *(Agoq__CtlBudget *const *)y;
    return a->stage != b->stage ? (a->stage > b->stage) - (a->stage < b->stage)
                                : strcmp(a->device, b->device);
}

static int ask_sorted(const ctl_args *args, ctl_client *client, Agoq__CtlRequest *request,
                      Agoq__Envelope **reply) {
    int code = ask(args, client, request, reply);
    if (code == CTL_OK && (*reply)->ctl_reply->n_budgets)
        qsort((*reply)->ctl_reply->budgets, (*reply)->ctl_reply->n_budgets, sizeof(Agoq__CtlBudget *),
              by_stage);
    return code;
}

static int ask_budgets(const ctl_args *args, ctl_client *client, const char *device, Agoq__Envelope **reply) {
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetGet get = AGOQ__CTL_BUDGET_GET__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_GET;
    request.budget_get = &get;
    get.device = (char *)device;
    get.by_stage = args->stage >= 0;
    get.stage = get.by_stage ? (int32_t)args->stage : 0;
    return ask_sorted(args, client, &request, reply);
}

int verb_budget_get(const ctl_args *args) {
    ctl_client *client = NULL;
    Agoq__Envelope *reply = NULL;
    int code = ask_open(args, &client);
    if (code == CTL_OK) code = ask_budgets(args, client, device_of(args), &reply);
    if (code == CTL_OK && (args->n_positional || args->stage >= 0) && !reply->ctl_reply->n_budgets)
        code = ctl_fail(args, CTL_FAILED,
                        "no such device; `agoqctl budget get` lists those that have connected");
    else if (code == CTL_OK && args->json)
        json_budgets("budget get", reply->ctl_reply);
    else if (code == CTL_OK && !reply->ctl_reply->n_budgets)
        puts("no device has connected yet");
    else if (code == CTL_OK)
        code = text_budgets(args, reply->ctl_reply);
    code = ask_partial(code, reply);
    wire_free(reply);
    client_close(&client);
    return code;
}

/* ---- set and reset ---- */

static const Agoq__CtlBudget *find(const Agoq__CtlReply *reply, const char *device) {
    for (size_t i = 0; reply && i < reply->n_budgets; i++) {
        if (!strcmp(reply->budgets[i]->device, device)) return reply->budgets[i];
    }
    return NULL;
}

static void tell_changes(const ctl_args *args, const Agoq__CtlReply *before, const Agoq__CtlReply *now) {
    for (size_t i = 0; i < now->n_budgets; i++) {
        const Agoq__CtlBudget *b = now->budgets[i], *old = find(before, b->device);
        char from[32] = "none", to[32] = "none";
        if (old && old->bytes) units_format_bytes(old->bytes, from);
        if (b->bytes) units_format_bytes(b->bytes, to);
        render_text(b->device, stdout);
        if (b->stage >= 0) printf(" (stage %d)", b->stage);
        printf(": %s -> %s, version %llu, ", from, to, (unsigned long long)b->version);
        render_colored(args->dry_run ? "not stored (dry run)" : b->state, render_state_color(b->state),
                       ctl_use_color(args), stdout);
        putchar('\n');
    }
    for (size_t i = 0; args->dry_run && i < now->n_stages; i++) {
        const Agoq__CtlStageInfo *s = now->stages[i];
        char predicted[32];
        units_format_bytes(s->predicted_bytes, predicted);
        printf("stage %u: predicted peak %s, mean width %.2f bits", s->stage, predicted, s->bits_mean);
        if (s->why_text[0]) fputs(": ", stdout);
        render_text(s->why_text, stdout);
        putchar('\n');
    }
}

static void json_changes(const ctl_args *args, const char *command, const Agoq__CtlReply *before,
                         const Agoq__CtlReply *now) {
    json_writer j;
    json_begin(&j, stdout, command);
    json_bool(&j, "dry_run", args->dry_run);
    json_array(&j, "budgets");
    for (size_t i = 0; i < now->n_budgets; i++) json_budget(&j, now->budgets[i]);
    json_array_end(&j);
    json_array(&j, "before");
    for (size_t i = 0; i < now->n_budgets; i++) {
        const Agoq__CtlBudget *old = find(before, now->budgets[i]->device);
        if (old) json_budget(&j, old);
    }
    json_array_end(&j);
    json_array(&j, "stages");
    for (size_t i = 0; i < now->n_stages; i++) ask_json_stage(&j, now->stages[i]);
    json_array_end(&j);
    json_end(&j);
}

/* -1: a newer version replaced ours; 1: all effective; 0: not yet. `now` tells what is pending first, so what
 * it has no room for is effective. */
static int progress(const Agoq__CtlReply *mine, const Agoq__CtlReply *now) {
    int all = now->n_budgets > 0;
    for (size_t i = 0; i < mine->n_budgets; i++) {
        const Agoq__CtlBudget *b = find(now, mine->budgets[i]->device);
        if (b && b->version > mine->budgets[i]->version) return -1;
        if (!b && now->code != CTL_PARTIAL) all = 0;
    }
    for (size_t i = 0; i < now->n_budgets; i++) all &= !strcmp(now->budgets[i]->state, "effective");
    return all;
}

/* Asks until the budgets of *reply are effective; *reply is replaced by the last answer. */
static int wait_effective(const ctl_args *args, ctl_client *client, const char *device, Agoq__Envelope *mine,
                          Agoq__Envelope **last) {
    uint64_t timeout_ms = args->has_timeout ? args->timeout_ms : WAIT_MS;
    int64_t deadline = clock_ms() + (int64_t)timeout_ms;
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    Agoq__CtlBudgetWait wait = AGOQ__CTL_BUDGET_WAIT__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_WAIT;
    request.budget_wait = &wait;
    wait.version = mine->ctl_reply->n_budgets ? mine->ctl_reply->budgets[0]->version : 0;
    wait.device = (char *)device;
    wait.by_stage = args->stage >= 0;
    wait.stage = wait.by_stage ? (int32_t)args->stage : 0;
    for (;;) {
        wire_free(*last);
        *last = NULL;
        int code = ask_sorted(args, client, &request, last);
        if (code != CTL_OK) return code;
        int done = progress(mine->ctl_reply, (*last)->ctl_reply);
        if (done > 0) return CTL_OK;
        if (done < 0)
            return ctl_fail(
                args, CTL_VERSION_CONFLICT,
                "the budget was set again by someone else while waiting. See: agoqctl plan history");
        if (verbs_stop || clock_ms() >= deadline)
            return ctl_fail(
                args, CTL_TIMED_OUT,
                "the budget is stored but still pending after %llu ms; it becomes effective when every rank "
                "that it concerns fits it. See: agoqctl ranks",
                (unsigned long long)timeout_ms);
        usleep(POLL_US);
    }
}

/* Only the devices of `mine`, in their latest state. The arrays of `last` stay its own. */
static void keep_mine(const Agoq__CtlReply *mine, Agoq__CtlReply *last) {
    size_t n = 0;
    for (size_t i = 0; i < last->n_budgets; i++) {
        Agoq__CtlBudget *b = last->budgets[i];
        if (!find(mine, b->device)) continue;
        last->budgets[i] = last->budgets[n];
        last->budgets[n++] = b;
    }
    last->n_budgets = n;
}

static int change(const ctl_args *args, const char *command, Agoq__CtlBudgetSet *set) {
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_BUDGET_SET;
    request.budget_set = set;
    set->stage = (int32_t)args->stage;
    set->if_version = args->if_version;
    set->has_if_version = args->has_if_version;
    set->why = (char *)(args->reason ? args->reason : "");
    set->dry_run = args->dry_run;
    ctl_client *client = NULL;
    Agoq__Envelope *before = NULL, *now = NULL, *last = NULL;
    int code = ask_open(args, &client);
    if (code == CTL_OK) code = ask_budgets(args, client, set->device, &before);
    if (code == CTL_OK) code = ask(args, client, &request, &now);
    if (code == CTL_OK && args->wait && !args->dry_run) {
        verbs_catch_signals();
        code = wait_effective(args, client, set->device, now, &last);
    }
    if (code == CTL_OK) {
        Agoq__CtlReply *shown = now->ctl_reply;
        size_t n_last = last ? last->ctl_reply->n_budgets : 0;
        if (last) keep_mine(now->ctl_reply, shown = last->ctl_reply);
        if (args->json)
            json_changes(args, command, before->ctl_reply, shown);
        else
            tell_changes(args, before->ctl_reply, shown);
        if (last) last->ctl_reply->n_budgets = n_last; /* wire_free frees them all */
    }
    code = ask_partial(code, now);
    wire_free(before);
    wire_free(now);
    wire_free(last);
    client_close(&client);
    return code;
}

int verb_budget_set(const ctl_args *args) {
    Agoq__CtlBudgetSet set = AGOQ__CTL_BUDGET_SET__INIT;
    int has_stage = args->stage >= 0;
    if (args->n_positional != (has_stage ? 1 : 2))
        return ctl_fail(args, CTL_USAGE,
                        has_stage ? "with --stage only the size is given: agoqctl budget set --stage N SIZE"
                                  : "usage: agoqctl budget set DEVICE SIZE, or --stage N SIZE");
    const char *size = args->positional[has_stage ? 0 : 1];
    set.device = (char *)(has_stage ? "" : args->positional[0]);
    const int bad = units_parse_bytes(size, &set.bytes);
    if (bad == UNITS_TOO_LARGE) return ctl_fail(args, CTL_USAGE, "%.40s is too large", size);
    if (bad || !set.bytes)
        return ctl_fail(args, CTL_USAGE, "'%.40s' is not a size with a unit, such as 70GiB", size);
    return change(args, "budget set", &set);
}

int verb_budget_reset(const ctl_args *args) {
    Agoq__CtlBudgetSet set = AGOQ__CTL_BUDGET_SET__INIT;
    if ((args->stage >= 0) == (args->n_positional == 1))
        return ctl_fail(args, CTL_USAGE, "usage: agoqctl budget reset DEVICE, or --stage N");
    set.device = (char *)(args->n_positional ? args->positional[0] : "");
    set.reset = 1;
    return change(args, "budget reset", &set);
}

/* ---- watch ---- */

static int same_budget(const Agoq__CtlBudget *a, const Agoq__CtlBudget *b) {
    return b && a->version == b->version && a->bytes == b->bytes &&
           a->effective_bytes == b->effective_bytes && a->stage == b->stage && !strcmp(a->state, b->state);
}

static int changed(const Agoq__CtlReply *a, const Agoq__CtlReply *b) {
    if (!a || a->n_budgets != b->n_budgets) return 1;
    for (size_t i = 0; i < b->n_budgets; i++) {
        if (!same_budget(b->budgets[i], find(a, b->budgets[i]->device))) return 1;
    }
    return 0;
}

int verb_budget_watch(const ctl_args *args) {
    int64_t deadline = args->has_timeout ? clock_ms() + (int64_t)args->timeout_ms : INT64_MAX;
    ctl_args each = *args;
    each.timeout_ms = 3000;
    ctl_client *client = NULL;
    Agoq__Envelope *shown = NULL;
    int code = ask_open(args, &client);
    verbs_catch_signals();
    while (code == CTL_OK) {
        Agoq__Envelope *now = NULL;
        code = ask_budgets(&each, client, device_of(args), &now);
        if (code != CTL_OK) break;
        if (changed(shown ? shown->ctl_reply : NULL, now->ctl_reply)) {
            if (args->json)
                json_budgets("budget watch", now->ctl_reply);
            else
                code = text_budgets(args, now->ctl_reply);
            fflush(stdout);
        }
        wire_free(shown);
        shown = now;
        if (args->once || verbs_stop || clock_ms() >= deadline) break;
        usleep(5 * POLL_US);
    }
    code = ask_partial(code, shown);
    wire_free(shown);
    client_close(&client);
    return code;
}
