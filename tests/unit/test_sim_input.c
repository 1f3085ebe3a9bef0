/* What simulate is asked: every kind of wrong input is refused with the sentence that says what is wrong and
 * what was meant; files and flags say the same; --max is the largest that fits, and not one step more. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "agoqctl/ctl.h"
#include "agoqctl/sim_answer.h"

static char error[512];
static sim_input in;

static int read_words(const char *line) {
    static char text[2048];
    char *argv[64] = {text};
    int argc = 1;
    snprintf(text, sizeof text, "simulate|%s", line);
    for (char *c = text; *c; c++) {
        if (*c != '|') continue;
        *c = 0;
        argv[argc++] = c + 1;
    }
    error[0] = 0;
    return sim_input_read(argc, argv, &in, error, sizeof error);
}

#define LLAMA "--model|llama3-8b|--budget|80GiB|"

static void wrong_lines(void **state) {
    (void)state;
    static const struct {
        const char *line, *message;
    } cases[] = {
        {LLAMA "--microbatch|3", "simulate: unknown option '--microbatch'; did you mean --microbatches?"},
        {LLAMA "--xyzzy|3", "simulate: unknown option '--xyzzy' (see --help)"},
        {LLAMA "--kv_heads|3", "simulate: unknown option '--kv_heads'; did you mean --kv-heads?"},
        {"--model|lama3-8b|--budget|1GiB", "simulate: no model 'lama3-8b'; did you mean 'llama3-8b'?"},
        {"--model|llama3-8b|--gpu|h100-8", "simulate: no GPU 'h100-8'; did you mean 'h100-80'?"},
        {LLAMA "--schedule|intreleaved", "simulate: --schedule: 'intreleaved' is not one of gpipe, 1f1b, "},
        {LLAMA "--schedule|./none.ops", "simulate: --schedule: ./none.ops: No such file or directory"},
        {LLAMA "--zero|4", "simulate: --zero: '4' is not one of 0, 1, 2, 3, dist"},
        {LLAMA "--mode|equalise",
         "simulate: --mode: 'equalise' is not one of budget, equalize; did you mean"},
        {LLAMA "--recompute|norms,gate-ip", "simulate: --recompute: 'gate-ip' is not one of none, full, "},
        {LLAMA "--pp|4|--budget-stage|4=1GiB", "simulate: budget_stage: stage 4, but the last one is 3"},
        {LLAMA "--budget-stage|0=1GiB,0=2GiB", "simulate: --budget-stage: stage 0 is given twice"},
        {LLAMA "--budget-stage|0:1GiB", "simulate: --budget-stage: '0:1GiB' is not a list such as"},
        {LLAMA "--layout|4,x", "simulate: --layout: '4,x' is not a list of whole numbers"},
        {LLAMA "--pp|2|--layout|4,4,4", "simulate: the layout has 3 numbers, the model is cut into 2 pieces"},
        {LLAMA "--pp|2|--layout|16,15", "simulate: the layout has 31 layers, the model 32"},
        {LLAMA "--pp|2|--observed-live|1", "simulate: observed_live has 1 numbers for 2 stages"},
        {LLAMA "--tp|3", "simulate: tp 3 does not divide the 32 heads"},
        {LLAMA "--pp|33", "simulate: pp 33 is more than the 32 layers"},
        {LLAMA "--pp|4|--vpp|3|--schedule|interleaved", "simulate: pp 4 with 3 chunks cuts the model in 12"},
        {LLAMA "--microbatches|0", "simulate: --microbatches: 0 is none: at least 1"},
        {"--model|llama3-8b|--budget|1GiB|--context|2GiB", "simulate: the budget of stage 0"},
        {"--model|llama3-8b|--budget|0B", "simulate: --budget: 0 is no budget"},
        {"--model|llama3-8b", "simulate: --budget SIZE, --gpu NAME or --cluster FILE is missing"},
        {"--model|llama3-8b|--max|seq", "simulate: --max needs a budget"},
        {"--budget|1GiB", "simulate: --hidden is missing: give a --model, or all of the shape"},
        {LLAMA "--json=1", "simulate: unknown option '--json=1'"},
        {LLAMA "--sp=1", "simulate: --sp takes no value"},
        {LLAMA "--pp", "simulate: --pp needs a value"},
        {LLAMA "--pp|2|--pp=2", "simulate: --pp is given twice"},
        {LLAMA "--gpu|h200|--cluster|h200", "simulate: --cluster and --gpu: give one of them"},
        {LLAMA "--max|layers|--layout|32", "simulate: --max layers and a layout"},
        {LLAMA "--workspace|agoq-train|--tp|2", "simulate: workspace agoq-train: it has neither tp nor cp"},
        {LLAMA "--accounting|hf-eager|--storage|plan", "simulate: accounting hf-eager knows 16 bits only"},
        {LLAMA "--caching-allocator|--alloc-round|64B", "simulate: alloc_round and caching_allocator"},
        {LLAMA "--pp|0", "simulate: --pp: 0 is none"},
        {LLAMA "--vpp|0", "simulate: --vpp: 0 is none"},
        {LLAMA "--loss-chunks|0", "simulate: --loss-chunks: 0 is none"},
        {LLAMA "--group|0", "simulate: --group: 0 is none"},
        {LLAMA "--pp|4294967295", "simulate: pp is 4294967295, and must be 1 to 1024"},
        {LLAMA "--tp|4294967295|--max|seq", "simulate: tp is 4294967295, and must be 1 to 1024"},
        {LLAMA "--microbatches|1048576", "simulate: microbatches is 1048576, and must be 1 to 65536"},
        {"--model|llama3-8b|--cluster|h100-80|--pp|16",
         "simulate: pp * tp is 16, more than the cluster's 8 GPUs"},
        {LLAMA "--seq|1099511627776", "simulate: --seq: 1099511627776 is too large (at most 4294967295)"},
        {LLAMA "--seq|99999999999999999999", "simulate: --seq: 99999999999999999999 is too large"},
        {LLAMA "--context|99999999999GiB", "simulate: --context: 99999999999GiB is too large"},
        {LLAMA "--extra-stage|0=99999PiB", "simulate: --extra-stage: 99999PiB is too large"},
        {LLAMA "--extra-stage|4096=1GiB", "simulate: --extra-stage: stage 4096 is too large"},
        {LLAMA "--layout|4,4294967296", "simulate: --layout: 4294967296 is too large"},
        {LLAMA "--margin|101%", "simulate: --margin: 101% is more than 100 %"},
        {LLAMA "--account-bits|5", "simulate: account_bits is for yardsticks"},
        {LLAMA "--recompute|100", "simulate: recompute 100, but no rank has more than 32 layers"},
        {LLAMA "--recompute|17|--pp|2", "simulate: recompute 17, but no rank has more than 16 layers"},
        {LLAMA "--recompute|norms,norms", "simulate: --recompute: norms is given twice"},
        {LLAMA "--recompute|2,3", "simulate: --recompute: layers are given twice"},
        {LLAMA "--recompute|act,full", "simulate: --recompute: 'full' stands alone"},
        {"a.yaml|b.yaml", "simulate: one job file, not also 'b.yaml'"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int code = read_words(cases[i].line);
        if (code != CTL_USAGE || strncmp(error, cases[i].message, strlen(cases[i].message)) != 0) {
            print_error("'%s': code %d, '%s', not '%s'\n", cases[i].line, code, error, cases[i].message);
            fail();
        }
        sim_input_fini(&in);
    }
}

static int parse(const char *text) {
    error[0] = 0;
    return sim_input_parse("job", text, strlen(text), &in, error, sizeof error);
}

static void wrong_files(void **state) {
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"model: llama3-8b\nbudgt: 80GiB\n", "job:2:1: unknown key 'budgt'"},
        {"model: llama3-8b\nbudget: 80\n", "job:2:9: budget: '80' is not a size such as 80GiB"},
        {"model: [a]\n", "job:1:8: model"},
        {"model: llama3-8b\nbudget: 80GiB\npp: 04\n", "job:3:5: pp: '04' is not a whole number"},
        {"model: llama3-8b\nbudget: 80GiB\nsp: yes\n", "job:3:5: sp: 'yes' is not true or false"},
        {"model: llama3-8b\nbudget: 80GiB\nlayout: {0: 3}\n", "job:3:9: "},
        {"model: llama3-8b\nbudget_stage: [1GiB]\nbudget: 80GiB\n", "job:2:15: "},
        {"model: llama3-8b\nbudget_stage: {0: 1XiB}\nbudget: 80GiB\n",
         "job:2:15: budget_stage: '1XiB' is not a size"},
        {"gpu: h200\ncluster: h200\nmodel: llama3-8b\n", "job:1:6: a cluster and a gpu: give one of them"},
        {"model: llama3-8b\nbudget: 80GiB\nschedule: 1f1\n", "job:3:11: schedule: '1f1' is not one of gpipe"},
        {"- a\n", "job:1:1: "},
        {"", "job"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int code = parse(cases[i].text);
        if (code != CTL_USAGE || strncmp(error, cases[i].message, strlen(cases[i].message)) != 0) {
            print_error("%s: code %d, '%s', not '%s'\n", cases[i].text, code, error, cases[i].message);
            fail();
        }
        sim_input_fini(&in);
    }
}

static void files_and_flags_agree(void **state) {
    (void)state;
    assert_int_equal(
        parse("model: llama3-8b\npp: 4\nvpp: 2\nschedule: interleaved\nmicrobatches: 8\ntp: 2\nsp: true\n"
              "budget: 70GiB\nbudget_stage: {0: 60GiB, 3: 50GiB}\nlayout: [3, 5, 4, 4, 4, 4, 4, 4]\n"
              "recompute: norms,act\nzero: dist\nmargin: 5%\n"),
        CTL_OK);
    static planner_model file;
    file = in.model;
    assert_int_equal(in.stage_budgets[0], 60ull << 30);
    assert_int_equal(in.stage_budgets[1], 70ull << 30);
    assert_int_equal(in.stage_budgets[3], 50ull << 30);
    assert_int_equal(in.layout.value[1], 5);
    assert_int_equal(in.model.run.recompute_modules, PLANNER_RECOMPUTE_NORMS | PLANNER_RECOMPUTE_ACT);
    assert_int_equal(
        read_words("--model|llama3-8b|--pp=4|--vpp|2|--schedule|interleaved|--microbatches|8|--tp|2|--sp|"
                   "--budget|70GiB|--budget-stage|0=60GiB|--budget-stage|3=50GiB|--layout|3,5,4,4,4,4,4,4|"
                   "--recompute|norms,act|--zero|dist|--margin|5%"),
        CTL_OK);
    assert_memory_equal(&file.run, &in.model.run, sizeof file.run);
    assert_memory_equal(&file.shape, &in.model.shape, sizeof file.shape);
}

static void flags_win(void **state) {
    (void)state;
    const char *path = "tests/planner/cases/08-megatron-bridge-3107.yaml";
    char line[256];
    snprintf(line, sizeof line, "%s|--vpp|10|--gpu|h200|--seq|4096", path);
    assert_int_equal(read_words(line), CTL_OK);
    assert_int_equal(in.model.run.chunks, 10);
    assert_int_equal(in.model.run.seq, 4096);
    assert_int_equal(in.model.run.tp, 4);
    assert_string_equal(in.gpu, "h200");
    assert_true(in.model.run.budget_bytes > 130ull << 30);
    assert_int_equal(in.nodes, 0);
    assert_string_equal(in.name, "llama3-70b");
}

static int fits(const char *line) {
    sim_answer a = {0};
    assert_int_equal(read_words(line), CTL_OK);
    assert_int_equal(sim_answer_make(&in, &a), AGOQ_OK);
    const int feasible = a.result.feasible;
    sim_answer_fini(&a);
    sim_input_fini(&in);
    return feasible;
}

static void largest_that_fits(void **state) {
    (void)state;
    static const struct {
        const char *line, *what;
        uint32_t unit;
    } cases[] = {
        {"--model|llama3-8b|--gpu|h100-80|--pp|4|--dp|8|--zero|1", "seq", 128},
        {"--model|llama2-13b|--gpu|a100-80|--pp|4|--dp|8|--zero|1", "mbs", 1},
        {"--model|llama3-8b|--gpu|h200|--pp|3|--dp|8|--zero|1", "layers", 1},
        {"--model|llama3-8b|--gpu|h200|--pp|4|--vpp|2|--schedule|interleaved|--dp|8|--zero|1", "layers", 8},
        {"--model|llama3-70b|--gpu|h200|--pp|4|--tp|4|--cp|2|--sp|--dp|8|--zero|3", "seq", 1024}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[256];
        sim_answer a = {0};
        snprintf(line, sizeof line, "%s|--max|%s", cases[i].line, cases[i].what);
        assert_int_equal(read_words(line), CTL_OK);
        assert_int_equal(sim_answer_make(&in, &a), AGOQ_OK);
        const unsigned long long largest = a.largest;
        assert_int_equal(a.unit, cases[i].unit);
        assert_true(largest > 0 && a.result.feasible && largest % a.unit == 0);
        sim_answer_fini(&a);
        sim_input_fini(&in);
        snprintf(line, sizeof line, "%s|--%s|%llu", cases[i].line, cases[i].what, largest);
        assert_true(fits(line));
        snprintf(line, sizeof line, "%s|--%s|%llu", cases[i].line, cases[i].what, largest + cases[i].unit);
        assert_false(fits(line));
    }
    sim_answer a = {0};
    assert_int_equal(read_words("--model|llama3-70b|--budget|2GiB|--max|seq"), CTL_OK);
    assert_int_equal(sim_answer_make(&in, &a), AGOQ_OK);
    assert_int_equal(a.largest, 0);
    assert_false(a.result.feasible);
    sim_answer_fini(&a);
}

/* The two modes, and what stands beside them. */
static void compared(void **state) {
    (void)state;
    sim_answer a = {0};
    assert_int_equal(
        read_words("--model|llama2-13b|--pp|4|--vpp|2|--schedule|interleaved|--microbatches|8|--tp|8|--seq|"
                   "16384|--budget|30GiB|--compare|--zero|1|--dp|4"),
        CTL_OK);
    assert_int_equal(sim_answer_make(&in, &a), AGOQ_OK);
    const sim_summary *rule = &a.compared[0], *equalize = &a.compared[5], *budget = &a.compared[6];
    assert_true(a.result.feasible && budget->fits && equalize->fits);
    assert_true(budget->error == a.result.objective);
    assert_true(budget->error <= equalize->error && equalize->error < rule->error);
    for (int i = 1; i < 4; i++) {
        assert_true(a.compared[i].error > a.compared[i + 1].error);
        assert_true(a.compared[i].most_bytes < a.compared[i + 1].most_bytes);
    }
    assert_true(a.other[SIM_AT_16].most_bytes > budget->most_bytes || !a.other[SIM_AT_16].fits);
    assert_true(a.other[SIM_RECOMPUTED].most_bytes < a.other[SIM_AT_16].most_bytes);
    sim_answer_fini(&a);
}

/* Two ranks hold the same layers: one width for both, and the smaller of their budgets holds. */
static void two_ways(void **state) {
    (void)state;
    sim_answer a = {0};
    assert_int_equal(
        read_words(
            "--model|llama3-8b|--pp|4|--tp|4|--schedule|dualpipe|--microbatches|8|--mbs|4|--budget|60GiB|"
            "--budget-stage|0=45GiB,2=38GiB"),
        CTL_OK);
    assert_int_equal(sim_answer_make(&in, &a), AGOQ_OK);
    assert_true(a.result.feasible);
    assert_int_equal(a.result.plan.n_stages, 4);
    double sum = 0;
    for (uint32_t s = 0; s < 4; s++) {
        const planner_stage_result *r = &a.result.stages[s], *other = &a.result.stages[3 - s];
        assert_int_equal(r->activation_peak_bytes, other->activation_peak_bytes);
        assert_true((double)r->predicted_peak_bytes <= 0.9 * (double)a.p.stages[s].budget_bytes);
        assert_int_equal(a.result.plan.stages[s].predicted_peak_bytes, r->predicted_peak_bytes);
        assert_true(r->bits_mean > 4 && r->bits_mean < 16);
        sum += r->objective;
    }
    assert_true(sum > 0.999999 * a.result.objective && sum < 1.000001 * a.result.objective);
    /* 32 layers with 5 roles and the end of the model, each once. */
    assert_int_equal(a.result.plan.n_entries, 32 * 5 + 1);
    uint64_t hash;
    assert_int_equal(planner_result_hash(&a.result, &hash), AGOQ_OK);
    sim_answer_fini(&a);
    sim_input_fini(&in);
    assert_int_equal(read_words(LLAMA "--pp|4|--schedule|dualpipe|--recompute|3"), CTL_USAGE);
    assert_non_null(strstr(error, "would recompute different ones"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(wrong_lines),       cmocka_unit_test(wrong_files),
        cmocka_unit_test(flags_win),         cmocka_unit_test(files_and_flags_agree),
        cmocka_unit_test(largest_that_fits), cmocka_unit_test(compared),
        cmocka_unit_test(two_ways)};
    return cmocka_run_group_tests_name("input of simulate", tests, NULL, NULL);
}
