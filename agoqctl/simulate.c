/* See simulate.h: builds the problem, solves it with the daemon's planner, puts AGoQ's own rule beside the
 * answer, and prints both. Text for people, JSON with everything for scripts; the trade-off is that the table
 * names only roles that have a choice, and lists the pinned ones once below. */
#include "agoqctl/simulate.h"

#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqctl/json.h"
#include "agoqctl/render.h"
#include "agoqctl/sim_input.h"
#include "agoqctl/sim_show.h"
#include "common/mem.h"

static int fail(const sim_input *in, int code, const char *text) {
    const ctl_args args = {.json = in->json};
    return ctl_fail(&args, code, "%s", text);
}

/* The rule needs a live micro-batch on every stage; with PLANNER_EQUALIZE and without. */
static agoq_status compare_with_rule(const planner_model_problem *p, sim_answer *answer) {
    agoq_status status = planner_paper_rule(p->live_units, p->problem.n_stages, answer->rule_bits);
    if (status == AGOQ_OK) status = planner_evaluate(&p->problem, answer->rule_bits, answer->rule);
    return status;
}

static agoq_status answer_for(const sim_input *in, planner_model_problem *p, sim_answer *answer) {
    agoq_status status = planner_model_build(&in->model, p);
    if (status != AGOQ_OK) return status;
    answer->rule_bits = mem_zalloc(in->model.run.pp, sizeof *answer->rule_bits);
    answer->rule = mem_zalloc(in->model.run.pp, sizeof *answer->rule);
    if (!answer->rule_bits || !answer->rule) return AGOQ_E_NOMEM;
    status = planner_solve(&p->problem, &answer->result);
    if (status != AGOQ_OK) return status;
    status = planner_model_levers(&in->model, p, &answer->result);
    if (status != AGOQ_OK) return status;
    return compare_with_rule(p, answer);
}

int simulate_main(int argc, char **argv, int json) {
    char error[CTL_MAX_TEXT] = "";
    sim_input in;
    planner_model_problem p = {0};
    sim_answer answer = {0};
    int code = sim_input_read(argc, argv, &in, error, sizeof error);
    in.json |= json;
    if (code != CTL_OK) return fail(&in, code, error);
    if (in.help) {
        sim_input_help(stdout);
        return CTL_OK;
    }
    const agoq_status status = answer_for(&in, &p, &answer);
    if (status == AGOQ_E_LIMIT)
        code = fail(&in, CTL_USAGE, "simulate: too many layers for one plan, or sizes beyond 64 PiB");
    else if (status != AGOQ_OK)
        code = fail(&in, CTL_FAILED, "simulate: out of memory");
    else
        code = answer.result.feasible ? CTL_OK : CTL_INFEASIBLE;
    if (status == AGOQ_OK &&
        (in.json ? sim_show_json(&in, &p, &answer, stdout) : sim_show_text(&in, &p, &answer, stdout)))
        code = fail(&in, CTL_FAILED, "simulate: the answer could not be written");
    mem_free(answer.rule);
    mem_free(answer.rule_bits);
    planner_result_fini(&answer.result);
    planner_model_fini(&p);
    return code;
}
