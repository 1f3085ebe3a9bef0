/* libFuzzer: the job file of simulate. What is refused has a message; what is accepted is a model, and if it
 * is small enough to be planned in no time, its plan keeps every budget or says that it does not. */
#include <stdlib.h>
#include <string.h>

#include "agoqctl/ctl.h"
#include "agoqctl/sim_answer.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition) {
    if (!condition) abort();
}

static void plan_it(const sim_input *in) {
    sim_answer a = {0};
    const agoq_status status = sim_answer_plan(in, &a);
    must(status == AGOQ_OK || status == AGOQ_E_LIMIT || status == AGOQ_E_INVAL);
    for (uint32_t s = 0; status == AGOQ_OK && s < in->model.run.pp; s++) {
        const planner_stage_result *r = &a.result.stages[s];
        must(r->overshoot_bytes || r->predicted_peak_bytes <= a.p.stages[s].budget_bytes);
        must(!a.result.feasible || !r->overshoot_bytes);
    }
    sim_answer_fini(&a);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static sim_input in;
    char error[512] = "";
    const int code = sim_input_parse("job", (const char *)data, size, &in, error, sizeof error);
    must(code == CTL_OK ? !error[0] : error[0] != 0);
    if (code == CTL_OK) {
        char why[256] = "";
        const planner_run *r = &in.model.run;
        must(planner_model_check(&in.model, why, sizeof why) == AGOQ_OK);
        if ((uint64_t)r->pp * r->chunks * r->microbatches <= 512 && in.model.shape.layers <= 64) plan_it(&in);
    }
    sim_input_fini(&in);
    return 0;
}
