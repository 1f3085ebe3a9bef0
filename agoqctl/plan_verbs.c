/* plan show and plan diff: fetch canonical bytes, check them against their hash, decode, show. The tool
 * decodes the bytes that ranks voted on and not a summary of them, so what it prints is what runs. */
#include <string.h>

#include "agoqctl/args.h"
#include "agoqctl/ask.h"
#include "agoqctl/plan_show.h"
#include "agoqctl/render.h"
#include "agoqctl/verbs.h"

/* p stays empty for the floor plan, which has no bytes. */
static int decode(const ctl_args *args, const Agoq__CtlReply *reply, plan *p) {
    const Agoq__CtlPlan *found = reply->plan;
    char id[32];
    if (!found)
        return ctl_fail(args, CTL_FAILED,
                        "the daemon's answer holds no plan. Do the versions match? (agoqctl version)");
    plan_id_format(found->id, id);
    if (!found->id && !found->bytes.len) return CTL_OK;
    if (plan_hash(found->bytes.data, found->bytes.len) != found->hash)
        return ctl_fail(args, CTL_FAILED, "plan %s: its bytes do not match its hash", id);
    agoq_status status = plan_decode(found->bytes.data, found->bytes.len, p);
    if (status == AGOQ_OK) return CTL_OK;
    return ctl_fail(args, CTL_FAILED, "plan %s: %s", id,
                    status == AGOQ_E_NOMEM ? "out of memory" : "its bytes are malformed");
}

static int fetch(const ctl_args *args, ctl_client *client, const char *text, Agoq__Envelope **reply,
                 plan *p) {
    Agoq__CtlPlanGet get = AGOQ__CTL_PLAN_GET__INIT;
    Agoq__CtlRequest request = AGOQ__CTL_REQUEST__INIT;
    request.verb_case = AGOQ__CTL_REQUEST__VERB_PLAN_GET;
    request.plan_get = &get;
    if (text && args_plan_id(text, &get.id))
        return ctl_fail(args, CTL_USAGE,
                        "'%.40s' is not a plan id; they look like 3.0.12 (agoqctl plan history lists them)",
                        text);
    int code = ask(args, client, &request, reply);
    return code == CTL_OK ? decode(args, (*reply)->ctl_reply, p) : code;
}

static void show(const ctl_args *args, const Agoq__CtlPlan *found, const plan *p) {
    char id[32];
    plan_id_format(found->id, id);
    if (args->json) {
        json_writer j;
        json_begin(&j, stdout, "plan show");
        json_plan_id(&j, "id", found->id);
        json_hash(&j, "hash", found->hash);
        json_step(&j, "applied_step", found->applied_step);
        json_text(&j, "why", found->why);
        plan_show_json(&j, p);
        json_end(&j);
        return;
    }
    printf("plan %s", id);
    if (found->hash) printf(", hash %016llx", (unsigned long long)found->hash);
    if (found->applied_step >= 0) printf(", since step %lld", (long long)found->applied_step);
    if (found->why[0]) fputs(": ", stdout);
    render_text(found->why, stdout);
    putchar('\n');
    if (!p->n_stages) puts("the floor plan: every role at its smallest width, until a plan is made");
    plan_show_text(p, stdout);
}

int verb_plan_show(const ctl_args *args) {
    ctl_client *client = NULL;
    Agoq__Envelope *reply = NULL;
    plan p = {0};
    uint64_t id;
    if (args->n_positional && args_plan_id(args->positional[0], &id))
        return ctl_fail(args, CTL_USAGE,
                        "'%.40s' is not a plan id; they look like 3.0.12 (agoqctl plan history lists them)",
                        args->positional[0]);
    int code = ask_open(args, &client);
    if (code != CTL_OK) return code;
    code = fetch(args, client, args->positional[0], &reply, &p);
    if (code == CTL_OK) show(args, reply->ctl_reply->plan, &p);
    plan_fini(&p);
    wire_free(reply);
    client_close(&client);
    return code;
}

int verb_plan_diff(const ctl_args *args) {
    ctl_client *client = NULL;
    Agoq__Envelope *reply[2] = {NULL, NULL};
    plan p[2] = {{0}, {0}};
    int code = ask_open(args, &client);
    for (int i = 0; i < 2 && code == CTL_OK; i++)
        code = fetch(args, client, args->positional[i], &reply[i], &p[i]);
    if (code == CTL_OK && args->json) {
        json_writer j;
        json_begin(&j, stdout, "plan diff");
        json_plan_id(&j, "from", reply[0]->ctl_reply->plan->id);
        json_plan_id(&j, "to", reply[1]->ctl_reply->plan->id);
        (void)plan_diff_json(&j, &p[0], &p[1]);
        json_end(&j);
    } else if (code == CTL_OK) {
        (void)plan_diff_text(&p[0], &p[1], stdout);
    }
    for (int i = 0; i < 2; i++) {
        plan_fini(&p[i]);
        wire_free(reply[i]);
    }
    client_close(&client);
    return code;
}
