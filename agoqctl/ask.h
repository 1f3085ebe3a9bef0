/* A verb's question to the daemon, with the failure already told. */
#ifndef AGOQCTL_ASK_H
#define AGOQCTL_ASK_H

#include "agoqctl/client.h"
#include "agoqctl/ctl.h"
#include "agoqctl/json.h"

/* Opens, asks, closes. CTL_OK with *reply (wire_free), or an exit code after the failure was written. */
int ask_once(const ctl_args *args, Agoq__CtlRequest *request, Agoq__Envelope **reply);
/* The same for a question without parameters. */
int ask_plain(const ctl_args *args, Agoq__CtlRequest__VerbCase verb, Agoq__Envelope **reply);
/* The same on an open connection. */
int ask(const ctl_args *args, ctl_client *client, Agoq__CtlRequest *request, Agoq__Envelope **reply);
/* An answer that is not whole is told on stderr and shown all the same (CTL_OK); this is what the tool ends
 * with then. reply may be NULL. */
int ask_partial(int code, const Agoq__Envelope *reply);
/* Opens, or writes the failure. */
int ask_open(const ctl_args *args, ctl_client **client);
/* A stage with its figures and levers, as in `plan explain` and in the failure of an infeasible budget. */
void ask_json_stage(json_writer *j, const Agoq__CtlStageInfo *stage);

#endif
