/* The table of verbs: help, usage, allowed options and function of each. Also the verbs that need no daemon.
 */
#include "agoqctl/verbs.h"

#include <stdlib.h>
#include <string.h>

#include "agoqctl/ask.h"
#include "agoqctl/simulate.h"
#include "agoqd/conf.h"

const ctl_verb ctl_verbs[] = {
    {NULL, "status", "", "one screen: job, plan, ranks; exit 1 if a rank is silent or the plan is infeasible",
     NULL, 0, 0, 0, 0, verb_status},
    {NULL, "top", "", "status and ranks, again every second",
     "On a terminal the screen is redrawn and q quits; elsewhere it is printed once.", 0, 0, CTL_OPT_ONCE, 0,
     verb_top},
    {NULL, "ranks", "", "what every rank holds", NULL, 0, 0, 0, 0, verb_ranks},
    {"plan", "show", "[ID]", "widths, budget and prediction of each stage",
     "ID is TERM.NODE.SEQ, as in the history; without one the current plan is shown.", 0, 1, 0, 0,
     verb_plan_show},
    {"plan", "diff", "A B", "what differs between two plans", "A and B are plan ids or `current`.", 2, 2, 0,
     0, verb_plan_diff},
    {"plan", "history", "", "plans, budgets and alarms, with why", NULL, 0, 0, 0, 0, verb_plan_history},
    {"plan", "explain", "[--stage N]", "what binds each stage, and what would relax it", NULL, 0, 0,
     CTL_OPT_STAGE, 0, verb_plan_explain},
    {"plan", "dry-run", "[JOB.yaml] [options]", "the plan that simulate would make; needs no daemon", NULL, 0,
     0, 0, 1, verb_plan_dry_run},
    {"budget", "get", "[DEVICE]", "budgets of all devices, or of one", NULL, 0, 1, CTL_OPT_STAGE, 0,
     verb_budget_get},
    {"budget", "set", "DEVICE SIZE | --stage N SIZE", "change a budget now",
     "SIZE has a unit, such as 70GiB. Ends when the daemon has stored it (pending); with --wait when every "
     "rank that it\n"
     "concerns fits it (effective). A budget that no plan can meet is refused and changes nothing (exit 5).",
     1, 2, CTL_OPT_STAGE | CTL_OPT_IF_VERSION | CTL_OPT_REASON | CTL_OPT_WAIT | CTL_OPT_DRY_RUN, 0,
     verb_budget_set},
    {"budget", "reset", "DEVICE | --stage N", "back to the configured budget", NULL, 0, 1,
     CTL_OPT_STAGE | CTL_OPT_IF_VERSION | CTL_OPT_REASON | CTL_OPT_WAIT | CTL_OPT_DRY_RUN, 0,
     verb_budget_reset},
    {"budget", "watch", "[DEVICE]", "print budgets whenever one changes, until interrupted or --timeout",
     NULL, 0, 1, CTL_OPT_STAGE | CTL_OPT_ONCE, 0, verb_budget_watch},
    {NULL, "simulate", "[JOB.yaml] [options]", "will this model fit on that cluster? Needs no daemon", NULL,
     0, 0, 0, 1, verb_simulate},
    {"config", "check", "FILE", "read a configuration of agoqd as the daemon would", NULL, 1, 1, 0, 0,
     verb_config_check},
    {"config", "show", "[FILE]", "every option's value and origin; without FILE the commented default", NULL,
     0, 1, 0, 0, verb_config_show},
    {NULL, "version", "", "versions of this tool and of the daemon, if one answers", NULL, 0, 0, 0, 0,
     verb_version},
    {NULL, NULL, NULL, NULL, NULL, 0, 0, 0, 0, NULL},
};

volatile sig_atomic_t verbs_stop;

static void on_signal(int number) {
    (void)number;
    verbs_stop = 1;
}

void verbs_catch_signals(void) {
    /* Once: a second signal ends a tool whose terminal takes no output any more. */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESETHAND};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int verb_simulate(const ctl_args *args) {
    return simulate_main(args->rest_argc, args->rest_argv, args->json);
}

int verb_plan_dry_run(const ctl_args *args) {
    return simulate_dry_run(args->rest_argc, args->rest_argv, args->json);
}

int verb_config_check(const ctl_args *args) {
    char error[CTL_MAX_TEXT] = "";
    conf c;
    conf_default(&c);
    agoq_status status = conf_load(args->positional[0], &c, error, sizeof error);
    conf_fini(&c);
    if (status != AGOQ_OK) return ctl_fail(args, CTL_FAILED, "%s", error);
    if (!args->json) {
        printf("%s: ok\n", args->positional[0]);
        return CTL_OK;
    }
    json_writer j;
    json_begin(&j, stdout, "config check");
    json_text(&j, "file", args->positional[0]);
    json_bool(&j, "ok", 1);
    json_end(&j);
    return CTL_OK;
}

int verb_config_show(const ctl_args *args) {
    const char *file = args->positional[0];
    char error[CTL_MAX_TEXT] = "", *text = NULL;
    size_t size = 0;
    conf c;
    conf_default(&c);
    agoq_status status = file ? conf_load(file, &c, error, sizeof error) : AGOQ_OK;
    FILE *out = status == AGOQ_OK ? open_memstream(&text, &size) : NULL;
    if (out && file) conf_print(&c, out);
    if (out && !file) conf_print_default(out);
    conf_fini(&c);
    int code = CTL_OK;
    if (!out || fclose(out)) {
        code = ctl_fail(args, CTL_FAILED, "%s", status == AGOQ_OK ? "out of memory" : error);
    } else if (args->json) {
        json_writer j;
        json_begin(&j, stdout, "config show");
        json_text(&j, "file", file);
        json_text(&j, "text", text);
        json_end(&j);
    } else {
        fputs(text, stdout);
    }
    free(text); /* open_memstream's own */
    return code;
}

int verb_version(const ctl_args *args) {
    char error[CTL_MAX_TEXT] = "";
    Agoq__Envelope *reply = NULL;
    ctl_client *client = NULL;
    /* No daemon is no failure here: the tool's own version is what was asked for first. */
    int code = client_open(args->socket, &client, error, sizeof error);
    if (code == CTL_OK)
        code = client_ask_plain(client, AGOQ__CTL_REQUEST__VERB_VERSION, args->timeout_ms, &reply, error,
                                sizeof error);
    const char *daemon = code == CTL_OK ? reply->ctl_reply->daemon_version : NULL;
    if (args->json) {
        json_writer j;
        json_begin(&j, stdout, "version");
        json_text(&j, "agoqctl", AGOQ_VERSION);
        json_text(&j, "agoqd", daemon);
        json_text(&j, "agoqd_error", daemon ? NULL : error);
        json_object(&j, "protocol");
        json_uint(&j, "major", WIRE_MAJOR);
        json_uint(&j, "minor", WIRE_MINOR);
        json_object_end(&j);
        json_end(&j);
    } else {
        printf("agoqctl %s, protocol %d.%d\n", AGOQ_VERSION, WIRE_MAJOR, WIRE_MINOR);
        if (daemon)
            printf("agoqd   %s\n", daemon);
        else
            printf("agoqd   not reached: %s\n", error);
    }
    wire_free(reply);
    client_close(&client);
    return CTL_OK;
}
