/* Values of settings: from text to the field. Numbers are strict everywhere, words are looked up, and what is
 * wrong is said together with what would be right. Lists take at most as many entries as a plan has stages.
 */
#include <stdarg.h>
#include <string.h>

#include "agoqctl/sim_settings.h"
#include "common/file.h"
#include "common/mem.h"
#include "common/units.h"
#include "common/words.h"

#define WHY_SIZE 256

static int no(char *why, const char *format, ...) __attribute__((format(printf, 2, 3)));
static int no(char *why, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(why, WHY_SIZE, format, args);
    va_end(args);
    return -1;
}

static int no_word(char *why, const char *text, const char *const words[]) {
    char all[160] = "";
    size_t n = 0;
    const char *near = words_nearest(text, words);
    for (int i = 0; words[i] && n < sizeof all; i++)
        n += (size_t)snprintf(all + n, sizeof all - n, "%s%s", i ? ", " : "", words[i]);
    return no(why, "'%.40s' is not one of %s%s%s%s", text, all, near ? "; did you mean '" : "",
              near ? near : "", near ? "'?" : "");
}

static int set_word(const sim_setting *s, const char *text, void *field, char *why) {
    const char *words[9] = {0};
    for (int i = 0; i < 8; i++) {
        words[i] = s->words[i];
        if (!words[i] || strcmp(text, words[i]) != 0) continue;
        memcpy(field, &s->values[i], sizeof(int));
        return 0;
    }
    return no_word(why, text, words);
}

/* A file with a list of operations. The pipeline it is for comes with it. */
static int read_operations(const char *path, sim_input *in, char *why) {
    char error[160], *text = NULL;
    const char *what;
    size_t size = 0;
    if (file_read(path, SIM_MAX_LIST_BYTES, &text, &size, &what) != AGOQ_OK)
        return no(why, "%.80s: %.150s", path, what);
    planner_ops_fini(&in->ops);
    const agoq_status status = planner_ops_read(text, size, &in->ops, error, sizeof error);
    mem_free(text);
    if (status == AGOQ_E_FORMAT) return no(why, "%.80s: %.150s", path, error);
    if (status != AGOQ_OK) return no(why, "%.80s: out of memory, or too many operations", path);
    in->has_ops = 1;
    return 0;
}

static int set_schedule(const char *text, sim_input *in, char *why) {
    agoq_schedule kind;
    if (planner_schedule_find(text, &kind) == 0) {
        in->model.run.schedule = kind;
        in->has_ops = 0;
        return 0;
    }
    if (strchr(text, '/') || strchr(text, '.')) {
        char path[SIM_MAX_PATH];
        if (text[0] == '/' || !in->folder[0])
            snprintf(path, sizeof path, "%s", text);
        else if (snprintf(path, sizeof path, "%s/%s", in->folder, text) >= (int)sizeof path)
            return no(why, "the path is too long");
        return read_operations(path, in, why);
    }
    no_word(why, text, planner_schedule_names());
    return -1;
}

/* At least one: what is not wanted is left out. */
static int read_count(const char *text, uint32_t *count, char *why) {
    uint64_t number = 0;
    const int bad = units_parse_uint(text, &number);
    if (bad == UNITS_TOO_LARGE || number > UINT32_MAX)
        return no(why, "%.40s is too large (at most %u)", text, UINT32_MAX);
    if (bad) return no(why, "'%.40s' is not a whole number", text);
    if (!number) return no(why, "0 is none: at least 1");
    *count = (uint32_t)number;
    return 0;
}

static int read_size(const char *text, uint64_t *bytes, char *why) {
    const int bad = units_parse_bytes(text, bytes);
    if (bad == UNITS_TOO_LARGE || (!bad && *bytes == PLANNER_NO_BUDGET))
        return no(why, "%.40s is too large (below 16384 PiB)", text);
    return bad ? no(why, "'%.40s' is not a size such as 80GiB", text) : 0;
}

/* A word of the list: a number of layers, or a module. */
static int add_recompute(const char *word, planner_run *run, char *why) {
    static const char *const words[] = {"none", "full", "norms", "core", "act", "gate-up", "qkv", NULL};
    static const uint32_t bits[] = {0,
                                    0,
                                    PLANNER_RECOMPUTE_NORMS,
                                    PLANNER_RECOMPUTE_CORE,
                                    PLANNER_RECOMPUTE_ACT,
                                    PLANNER_RECOMPUTE_GATE_UP,
                                    PLANNER_RECOMPUTE_QKV};
    int k = 0;
    if (word[0] >= '0' && word[0] <= '9') {
        if (run->recompute_layers) return no(why, "layers are given twice");
        return read_count(word, &run->recompute_layers, why);
    }
    while (words[k] && strcmp(word, words[k]) != 0) k++;
    if (!words[k]) return no_word(why, word, words);
    if (!bits[k]) return no(why, "'%s' stands alone", word);
    if (run->recompute_modules & bits[k]) return no(why, "%s is given twice", word);
    run->recompute_modules |= bits[k];
    return 0;
}

static int set_recompute(const char *text, planner_run *run, char *why) {
    run->recompute_layers = strcmp(text, "full") == 0 ? PLANNER_ALL_LAYERS : 0;
    run->recompute_modules = 0;
    if (run->recompute_layers || strcmp(text, "none") == 0) return 0;
    for (const char *at = text;; at++) {
        char word[16];
        const size_t n = strcspn(at, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < 15 ? n : 15), at);
        if (add_recompute(word, run, why)) return -1;
        at += n;
        if (!*at) return 0;
    }
}

/* One entry of "0=70GiB,3=60GiB" after the other; a stage given twice is an error. */
static int set_stages(const char *text, sim_stages *to, char *why) {
    for (const char *at = text;; at++) {
        char stage[16], size[32];
        const size_t n = strcspn(at, "=,"), rest = at[n] == '=' ? strcspn(at + n + 1, ",") : 0;
        uint64_t number;
        snprintf(stage, sizeof stage, "%.*s", (int)(n < 15 ? n : 15), at);
        snprintf(size, sizeof size, "%.*s", (int)(rest < 31 ? rest : 31), at[n] == '=' ? at + n + 1 : "");
        const int bad = units_parse_uint(stage, &number);
        if (at[n] != '=' || bad == -1) return no(why, "'%.60s' is not a list such as 0=70GiB,3=60GiB", text);
        if (bad || number >= SIM_MAX_STAGES)
            return no(why, "stage %s is too large (at most %d)", stage, SIM_MAX_STAGES - 1);
        if (read_size(size, &to->bytes[number], why)) return -1;
        if (to->given[number]) return no(why, "stage %s is given twice", stage);
        to->given[number] = 1;
        if (number >= to->n) to->n = (uint32_t)number + 1;
        at += n + rest + (at[n] == '=');
        if (!*at) return 0;
    }
}

static int set_numbers(const char *text, sim_numbers *to, char *why) {
    to->n = 0;
    for (const char *at = text;; at++) {
        char word[16];
        const size_t n = strcspn(at, ",");
        uint64_t number;
        snprintf(word, sizeof word, "%.*s", (int)(n < 15 ? n : 15), at);
        const int bad = units_parse_uint(word, &number);
        if (bad == -1) return no(why, "'%.60s' is not a list of whole numbers such as 4,5,5,4", text);
        if (bad || number > UINT32_MAX) return no(why, "%s is too large (at most %u)", word, UINT32_MAX);
        if (to->n == SIM_MAX_NUMBERS) return no(why, "more than %d numbers", SIM_MAX_NUMBERS);
        to->value[to->n++] = (uint32_t)number;
        at += n;
        if (!*at) return 0;
    }
}

int sim_setting_set(const sim_setting *s, const char *text, sim_input *in, char why[256]) {
    char *field = (char *)in + s->at;
    uint64_t number;
    uint32_t ppm, count;
    int bad;
    switch (s->type) {
    case KIND_COUNT:
        if (read_count(text, &count, why)) return -1;
        memcpy(field, &count, sizeof count);
        return 0;
    case KIND_BYTES:
        if (read_size(text, &number, why)) return -1;
        memcpy(field, &number, sizeof number);
        return 0;
    case KIND_PERCENT:
        bad = units_parse_ppm(text, &ppm);
        if (bad == UNITS_TOO_LARGE) return no(why, "%.40s is more than 100 %%", text);
        if (bad) return no(why, "'%.40s' is not a percentage such as 10%%", text);
        memcpy(field, &ppm, sizeof ppm);
        return 0;
    case KIND_SWITCH:
        if (strcmp(text, "true") != 0 && strcmp(text, "false") != 0)
            return no(why, "'%.40s' is not true or false", text);
        memcpy(field, &(int){text[0] == 't'}, sizeof(int));
        return 0;
    case KIND_WORD:
        return set_word(s, text, field, why);
    case KIND_SCHEDULE:
        return set_schedule(text, in, why);
    case KIND_RECOMPUTE:
        return set_recompute(text, &in->model.run, why);
    case KIND_STAGES:
        return set_stages(text, (sim_stages *)(void *)field, why);
    case KIND_NUMBERS:
        return set_numbers(text, (sim_numbers *)(void *)field, why);
    }
    return -1;
}
