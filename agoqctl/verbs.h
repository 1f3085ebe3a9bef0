/* The functions behind the table of verbs; each returns an exit code after writing everything it has to say.
 */
#ifndef AGOQCTL_VERBS_H
#define AGOQCTL_VERBS_H

#include <signal.h>
#include <stdio.h>

#include "agoqctl/ctl.h"
#include "agoqctl/json.h"
#include "proto/wire.h"

int verb_status(const ctl_args *args);
int verb_ranks(const ctl_args *args);
int verb_top(const ctl_args *args);
int verb_plan_show(const ctl_args *args);
int verb_plan_diff(const ctl_args *args);
int verb_plan_history(const ctl_args *args);
int verb_plan_explain(const ctl_args *args);
int verb_budget_get(const ctl_args *args);
int verb_budget_set(const ctl_args *args);
int verb_budget_reset(const ctl_args *args);
int verb_budget_watch(const ctl_args *args);
int verb_plan_dry_run(const ctl_args *args);
int verb_simulate(const ctl_args *args);
int verb_config_check(const ctl_args *args);
int verb_config_show(const ctl_args *args);
int verb_version(const ctl_args *args);

/* Parts that `top` puts together. 0, or -1 when out of memory. */
void show_status_text(const Agoq__CtlStatus *status, int color, FILE *out);
int show_ranks_text(const Agoq__CtlReply *reply, int color, FILE *out);
void show_status_json(json_writer *j, const Agoq__CtlStatus *status);
void show_ranks_json(json_writer *j, const Agoq__CtlReply *reply);
/* A set signal (INT, TERM) asks loops to end. */
extern volatile sig_atomic_t verbs_stop;
void verbs_catch_signals(void);

#endif
