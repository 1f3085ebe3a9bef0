/* agoqctl: plans and their differences as text and as JSON; above all the ranges of layers, which are not
 * neighbours on an interleaved stage. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "agoqctl/json.h"
#include "agoqctl/plan_show.h"
#include "planner/plan.h"

static char out[65536];

static FILE *open_out(void) {
    memset(out, 0, sizeof out);
    FILE *f = fmemopen(out, sizeof out, "w");
    assert_non_null(f);
    return f;
}

/* Stage 0 holds layers 0, 1, 4 (interleaved), stage 1 layers 2, 3. */
static plan make_plan(void) {
    plan p;
    assert_int_equal(plan_init(&p, 2, 10), AGOQ_OK);
    static const uint8_t bits[] = {4, 4, 6, 6, 4};
    for (uint32_t layer = 0; layer < 5; layer++) {
        uint16_t stage = layer == 2 || layer == 3;
        p.entries[2 * layer] = (plan_entry){stage, (uint16_t)layer, AGOQ_ROLE_MLP_GATE_UP, bits[layer]};
        p.entries[2 * layer + 1] =
            (plan_entry){stage, (uint16_t)layer, AGOQ_ROLE_ATTN_OUT, layer == 1 ? 16 : 8};
    }
    p.stages[0] = (plan_stage){1 << 20, 3, 1 << 19};
    return p;
}

static void plan_text_and_json(void **state) {
    (void)state;
    plan p = make_plan();
    FILE *f = open_out();
    plan_show_text(&p, f);
    fclose(f);
    assert_string_equal(out, "stage 0: predicted peak 512.00 KiB, budget 1.00 MiB (version 3), 50.0 % used\n"
                             "  mlp_gate_up    4 (layers 0-1, 4)\n"
                             "  attn_out       8 (layers 0, 4), 16 (layer 1)\n"
                             "stage 1: predicted peak not known, no budget\n"
                             "  mlp_gate_up    6 (layers 2-3)\n"
                             "  attn_out       8 (layers 2-3)\n");
    json_writer j;
    f = open_out();
    json_init(&j, f);
    json_object(&j, NULL);
    plan_show_json(&j, &p);
    json_end(&j);
    fclose(f);
    assert_non_null(strstr(out, "\"budget_bytes\": 1048576,"));
    assert_non_null(strstr(out, "\"predicted_bytes\": null,"));
    assert_non_null(
        strstr(out, "\"attn_out\": [\n          {\n            \"bits\": 8,\n            \"layers\": [\n"
                    "              0,\n              4\n            ]\n          },"));
    plan_fini(&p);
}

static void plan_differences(void **state) {
    (void)state;
    plan a = make_plan(), b = make_plan(), none = {0};
    FILE *f = open_out();
    assert_int_equal(plan_diff_text(&a, &b, f), 0);
    fclose(f);
    assert_string_equal(out, "no difference\n");
    b.stages[0].budget_bytes = 1 << 19;
    b.entries[0].bits = b.entries[2].bits = 5;
    b.entries[8].bits = 6;
    f = open_out();
    assert_int_equal(plan_diff_text(&a, &b, f), 3);
    fclose(f);
    assert_string_equal(out,
                        "stage 0: budget 1.00 MiB -> 512.00 KiB, predicted peak 512.00 KiB -> 512.00 KiB\n"
                        "stage 0: mlp_gate_up    4 -> 5 (layers 0-1)\n"
                        "stage 0: mlp_gate_up    4 -> 6 (layer 4)\n");
    f = open_out();
    assert_int_equal(plan_diff_text(&none, &a, f), 1 + 5);
    fclose(f);
    assert_non_null(strstr(out, "stage 1: mlp_gate_up    - -> 6 (layers 2-3)\n"));
    f = open_out();
    assert_int_equal(plan_diff_text(&a, &none, f), 1 + 5);
    fclose(f);
    assert_non_null(strstr(out, "stage 1: mlp_gate_up    6 -> - (layers 2-3)\n"));
    plan_fini(&a);
    plan_fini(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plan_text_and_json),
        cmocka_unit_test(plan_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
