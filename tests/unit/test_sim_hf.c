/* Hugging Face's config.json and this project's model files: shapes as published, and every kind of file that
 * is none, refused with its line. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "agoqctl/ctl.h"
#include "agoqctl/json_read.h"
#include "agoqctl/sim_hf.h"
#include "agoqctl/sim_input.h"

static const char llama3[] =
    "{\n  \"_name_or_path\": \"meta-llama\\/Meta-Llama-3-8B\",\n  \"architectures\": [\n    "
    "\"LlamaForCausalLM\"\n  ],\n"
    "  \"attention_bias\": false,\n  \"hidden_act\": \"silu\",\n  \"hidden_size\": 4096,\n"
    "  \"initializer_range\": 0.02,\n  \"intermediate_size\": 14336,\n  \"max_position_embeddings\": 8192,\n"
    "  \"model_type\": \"llama\",\n  \"num_attention_heads\": 32,\n  \"num_hidden_layers\": 32,\n"
    "  \"num_key_value_heads\": 8,\n  \"pretraining_tp\": 1,\n  \"rms_norm_eps\": 1e-05,\n"
    "  \"rope_scaling\": null,\n  \"rope_theta\": 500000.0,\n  \"tie_word_embeddings\": false,\n"
    "  \"torch_dtype\": \"bfloat16\",\n  \"vocab_size\": 128256\n}\n";

static const char olmo[] =
    "{\"activation_type\": \"swiglu\", \"architectures\": [\"OLMoForCausalLM\"], \"attention_layer_norm\": "
    "false,"
    "\"d_model\": 2048, \"embedding_size\": 50304, \"layer_norm_with_affine\": false,"
    "\"max_sequence_length\": 2048, \"mlp_hidden_size\": null, \"mlp_ratio\": 8, \"model_type\": \"hf_olmo\","
    "\"multi_query_attention\": false, \"n_heads\": 16, \"n_layers\": 16, \"vocab_size\": 50280,"
    "\"weight_tying\": true, \"rope\": true, \"init_std\": 0.02, \"nested\": {\"hidden_size\": [1, {}]}}";

static const char olmo_hf[] =
    "{\"model_type\": \"olmo\", \"hidden_size\": 2048, \"intermediate_size\": 8192, \"num_attention_heads\": "
    "16,"
    "\"num_key_value_heads\": 16, \"num_hidden_layers\": 16, \"vocab_size\": 50304, \"clip_qkv\": null,"
    "\"tie_word_embeddings\": true, \"max_position_embeddings\": 2048}";

static agoq_status parse(const char *text, planner_shape *shape, char name[64], char error[256]) {
    error[0] = 0;
    return sim_hf_parse("config.json", text, strlen(text), shape, name, error, 256);
}

static uint64_t params(const planner_shape *shape) {
    const planner_model m = {.shape = *shape,
                             .run = {.pp = 1, .tp = 1, .dp = 1, .chunks = 1, .schedule = AGOQ_SCHEDULE_1F1B}};
    return planner_model_params(&m, 0);
}

static void published_files(void **state) {
    (void)state;
    planner_shape s;
    char name[64], error[256];
    assert_int_equal(parse(llama3, &s, name, error), AGOQ_OK);
    assert_string_equal(name, "meta-llama/Meta-Llama-3-8B");
    assert_true(s.hidden == 4096 && s.ffn == 14336 && s.layers == 32 && s.heads == 32 && s.kv_heads == 8);
    assert_true(s.vocab == 128256 && s.max_seq == 8192 && !s.tied && !s.bare_norms && !s.qk_norm);
    assert_int_equal(params(&s), 8030261248);
    static const char *const both[] = {olmo, olmo_hf};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(parse(both[i], &s, name, error), AGOQ_OK);
        assert_true(s.hidden == 2048 && s.ffn == 8192 && s.layers == 16 && s.heads == 16 && s.kv_heads == 16);
        assert_true(s.vocab == 50304 && s.max_seq == 2048 && s.tied && s.bare_norms);
        assert_int_equal(params(&s), 1176764416);
    }
    /* head_dim of its own; no key/value heads: as many as heads. */
    assert_int_equal(
        parse("{\"model_type\":\"qwen3\",\"hidden_size\":1024,\"intermediate_size\":3072,\"head_dim\":128,"
              "\"num_attention_heads\":16,\"num_hidden_layers\":28,\"vocab_size\":151936,"
              "\"tie_word_embeddings\":true}",
              &s, name, error),
        AGOQ_OK);
    assert_true(s.head_dim == 128 && s.kv_heads == 16 && s.qk_norm && s.tied && !s.max_seq);
    assert_string_equal(name, "");
}

static void what_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", "config.json:1:1: not a JSON object"},
        {"[]", "config.json:1:1: not a JSON object"},
        {"{}", "config.json: hidden_size is missing: is this a model's config.json?"},
        {"{\"num_attention_heads\": 0}", "config.json:1:1: num_attention_heads is 0, and must be at least 1"},
        {"{\"num_key_value_heads\": 0}", "config.json:1:1: num_key_value_heads is 0, and must be at least 1"},
        {"{\"num_hidden_layers\": 0}", "config.json:1:1: num_hidden_layers is 0, and must be at least 1"},
        {"{\"head_dim\": 0}", "config.json:1:1: head_dim is 0, and must be at least 1"},
        {"{\"hidden_size\": 4096}", "config.json: intermediate_size is missing (found hidden_size)"},
        {"{\"d_model\": 64, \"n_layers\": 2, \"n_heads\": 2, \"vocab_size\": 9}",
         "config.json: mlp_hidden_size and mlp_ratio are missing, or too large"},
        {"{\n\n\"hidden_size\": \"4096\"}", "config.json:3:1: hidden_size is not a whole number below 2^32"},
        {"{\"hidden_size\": 4096.0}", "config.json:1:1: hidden_size is not a whole number below 2^32"},
        {"{\"hidden_size\": -1}", "config.json:1:1: hidden_size is not a whole number below 2^32"},
        {"{\"hidden_size\": 4294967296}", "config.json:1:1: hidden_size is not a whole number below 2^32"},
        {"{\"hidden_size\": 1,\n\"hidden_size\": 1}", "config.json:2:1: \"hidden_size\" is given twice"},
        {"{\"tie_word_embeddings\": 1}", "config.json:1:1: tie_word_embeddings is neither true nor false"},
        {"{\"hidden_size\": 012}", "config.json:1:1: not a number"},
        {"{\"a\": 1.}", "config.json:1:1: not a number"},
        {"{\"a\": 1e}", "config.json:1:1: not a number"},
        {"{\"a\": tru}", "config.json:1:1: no JSON value here"},
        {"{\"a\": \"\\x\"}", "config.json:1:1: unknown escape in a string"},
        {"{\"a\": \"\\u12g4\"}", "config.json:1:1: \\u needs four hexadecimal digits"},
        {"{\"a\": \"b\nc\"}", "config.json:1:1: a string does not end in its line"},
        {"{\"a\" 1}", "config.json:1:1: ':' is missing"},
        {"{\"a\": 1 \"b\": 2}", "config.json:1:1: ',' or '}' is missing"},
        {"{\"a\": [1 2]}", "config.json:1:1: ',' or ']' is missing"},
        {"{\"a\": 1,}", "config.json:1:1: a key is missing here"},
        {"{} x", "config.json:1:1: something follows the object"},
        {"{\"model_type\": \"mixtral\", \"hidden_size\": 1}",
         "config.json: model_type 'mixtral' is not of the LLaMA family (llama, mistral, olmo, olmo2, qwen2, "
         "qwen3)"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        planner_shape s;
        char name[64], error[256];
        assert_int_equal(parse(cases[i].text, &s, name, error), AGOQ_E_FORMAT);
        assert_string_equal(error, cases[i].says);
    }
}

static void bounds(void **state) {
    (void)state;
    static char deep[200], large[JSON_READ_MAX_BYTES + 1];
    planner_shape s;
    char name[64], error[256];
    for (int depth = 1; depth <= 60; depth++) {
        int n = snprintf(deep, sizeof deep, "{\"a\":");
        for (int i = 0; i < depth; i++) deep[n++] = '[';
        for (int i = 0; i < depth; i++) deep[n++] = ']';
        snprintf(deep + n, sizeof deep - (size_t)n, "}");
        assert_int_equal(parse(deep, &s, name, error),
                         depth > JSON_READ_MAX_DEPTH ? AGOQ_E_LIMIT : AGOQ_E_FORMAT /* no hidden_size */);
    }
    memset(large, ' ', sizeof large);
    assert_int_equal(sim_hf_parse("f", large, sizeof large, &s, name, error, sizeof error), AGOQ_E_LIMIT);
    assert_int_equal(sim_hf_load("/", &s, name, error, sizeof error), AGOQ_E_IO);
    assert_int_equal(sim_hf_load("/none/config.json", &s, name, error, sizeof error), AGOQ_E_IO);
    assert_string_equal(error, "/none/config.json: No such file or directory");
}

/* Cut at every byte, and with every byte replaced: an answer and a message, and nothing read beyond the end
 * (sanitizers watch; the copy is exact). */
static void cut_and_spoiled(void **state) {
    (void)state;
    planner_shape s;
    char name[64], error[256], copy[sizeof olmo];
    for (size_t n = 0; n < sizeof olmo - 1; n++) {
        memcpy(copy, olmo, n);
        assert_int_not_equal(sim_hf_parse("f", copy, n, &s, name, error, sizeof error), AGOQ_OK);
    }
    static const char spoil[] = {0, '"', '\\', '{', '}', '[', ',', '9', '\n', (char)0xFF};
    for (size_t at = 0; at < sizeof olmo - 1; at++) {
        for (size_t k = 0; k < sizeof spoil; k++) {
            memcpy(copy, olmo, sizeof olmo);
            copy[at] = spoil[k];
            error[0] = 0;
            if (sim_hf_parse("f", copy, sizeof olmo - 1, &s, name, error, sizeof error) != AGOQ_OK)
                assert_int_equal(strncmp(error, "f:", 2), 0);
        }
    }
}

static void models_of_the_project(void **state) {
    (void)state;
    static const struct {
        const char *file;
        uint64_t params;
    } files[] = {{"llama1-7b", 6738415616}, {"llama1-13b", 13015864320}, {"llama1-30b", 32528943616},
                 {"llama2-7b", 6738415616}, {"llama2-13b", 13015864320}, {"llama2-70b", 68976648192},
                 {"llama3-8b", 8030261248}, {"llama3-70b", 70553706496}, {"codellama-34b", 33743970304},
                 {"olmo-1b", 1176764416}};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[96], error[256] = "";
        snprintf(path, sizeof path, "config/models/%s.yaml", files[i].file);
        char verb[] = "simulate", model[] = "--model", budget[] = "--budget", size[] = "80GiB";
        char *argv[] = {verb, model, path, budget, size, NULL};
        static sim_input in;
        assert_int_equal(sim_input_read(5, argv, &in, error, sizeof error), CTL_OK);
        assert_string_equal(in.name, files[i].file);
        assert_int_equal(planner_model_params(&in.model, 0), files[i].params);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_files), cmocka_unit_test(what_is_refused),
                                       cmocka_unit_test(bounds), cmocka_unit_test(cut_and_spoiled),
                                       cmocka_unit_test(models_of_the_project)};
    return cmocka_run_group_tests_name("config.json", tests, NULL, NULL);
}
