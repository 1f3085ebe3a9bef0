/* libFuzzer: a config.json from memory. What is refused has a message; what is accepted has a whole shape. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "agoqctl/sim_hf.h"
#include "tests/model_cases.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[512] = "", name[64];
    planner_shape s;
    if (sim_hf_parse("f", (const char *)data, size, &s, name, error, sizeof error) != AGOQ_OK) {
        if (strncmp(error, "f:", 2)) abort();
        return 0;
    }
    if (!s.hidden || !s.layers || !s.heads || !s.kv_heads || !s.vocab || !memchr(name, 0, sizeof name))
        abort();
    const planner_model m = model_of_shape(&s);
    char why[256] = "";
    planner_model_problem p;
    if (planner_model_check(&m, why, sizeof why) != AGOQ_OK) {
        if (!why[0] || planner_model_build(&m, &p) != AGOQ_E_INVAL) abort();
    } else if (planner_model_build(&m, &p) == AGOQ_OK) {
        planner_model_fini(&p);
    }
    return 0;
}
