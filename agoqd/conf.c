/* See conf.h: the table of options, their defaults, and the reader. Every scalar goes through one function
 * (set_scalar), defaults included, so that a default that the file could not hold cannot exist. */
#include "agoqd/conf.h"

#include <stdarg.h>
#include <string.h>

#include "agoq/agoq.h"
#include "agoqd/conf_table.h"
#include "agoqd/yaml.h"
#include "common/mem.h"
#include "common/try.h"
#include "common/units.h"
#include "proto/wire.h"

#define FIELD(name) offsetof(conf, name), sizeof(((conf *)0)->name)

const char *const conf_planner_names[] = {"budget", "equalize", NULL};
const char *const conf_level_names[] = {"error", "warn", "info", "debug", NULL};
const char *const conf_role_names[] = {
#define ROLE_NAME(id, name, sensitivity, mask) name,
    AGOQ_ROLES(ROLE_NAME)
#undef ROLE_NAME
        NULL};

const conf_option conf_options[] = {
    {"socket", CONF_KIND_TEXT, FIELD(socket), 1, 0, "/run/agoq/agoqd.sock",
     "Unix socket for ranks and agoqctl; at most 107 bytes.", NULL},
    {"socket_mode", CONF_KIND_MODE, FIELD(socket_mode), 0, 0777, "0660",
     "Access to the socket, four octal digits. A process needs write access to connect.", NULL},
    {"socket_group", CONF_KIND_TEXT, FIELD(socket_group), 0, 0, "\"\"",
     "Group that owns the socket; its members may also set budgets. Empty: the daemon's own group.", NULL},
    {"state_dir", CONF_KIND_TEXT, FIELD(state_dir), 1, 0, "/var/lib/agoq",
     "Budgets, terms and the roster of ranks are kept here across restarts.", NULL},
    {"node_index", CONF_KIND_COUNT, FIELD(node_index), 0, 65535, "0",
     "Position of this node in the job's roster; part of every plan id.", NULL},
    {"job", CONF_KIND_TEXT, FIELD(job), 0, 0, "\"\"",
     "Accept ranks of this job only. Empty: the job that comes first.", NULL},
    {"margin", CONF_KIND_PERCENT, FIELD(margin_ppm), 0, 900000, "2%",
     "Part of every budget that plans leave free.", NULL},
    {"default_budget", CONF_KIND_BYTES, FIELD(default_budget_bytes), 1, WIRE_MAX_AMOUNT, "none",
     "Memory budget of a device that no entry of `budgets` names, such as 70GiB.\n"
     "none: no plan is made for it until `agoqctl budget set`.",
     NULL},
    {"budgets", CONF_KIND_BUDGETS, FIELD(budgets), 1, WIRE_MAX_AMOUNT, NULL,
     "Budgets by device (a shell pattern over GPU UUIDs or cpu:HOST:RANK) or by pipeline stage; later "
     "entries win.",
     "  - device: \"GPU-*\"\n    bytes: 70GiB\n  - stage: 0\n    bytes: 64GiB"},
    {"mode", CONF_KIND_PLANNER, FIELD(mode), 0, 0, "budget",
     "budget: fill each device's budget. equalize: no stage above the most loaded one at its least widths.",
     NULL},
    {"allowed_widths", CONF_KIND_WIDTHS, FIELD(role_widths), 0, 0, NULL,
     "Widths in bits that a role may have, from 4, 5, 6, 8, 16 (attn_out, attn_qkv, qk_norm_in: 8, 16).\n"
     "A role that is not named follows what the ranks allow.",
     "  attn_qkv: [8, 16]\n  attn_out: [8, 16]"},
    {"heartbeat", CONF_KIND_MS, FIELD(heartbeat_ms), 50, 60000, "1s", "Ranks report at least this often.",
     NULL},
    {"silent_after", CONF_KIND_MS, FIELD(silent_ms), 100, 600000, "3s",
     "A rank that sends nothing for this long is shown as silent; at least twice the heartbeat.", NULL},
    {"prepare_timeout", CONF_KIND_MS, FIELD(prepare_timeout_ms), 100, 3600000, "10s",
     "A plan that is not held by every rank after this long is withdrawn.", NULL},
    {"dwell_steps", CONF_KIND_COUNT, FIELD(dwell_steps), 0, 1000000, "20",
     "Steps between two widenings that nobody asked for. Shrinking never waits.", NULL},
    {"max_sessions", CONF_KIND_COUNT, FIELD(max_sessions), 1, 65536, "4096",
     "Ranks that the job may have. A warning tells if fewer files than that may be open at once.", NULL},
    {"log_level", CONF_KIND_LEVEL, FIELD(level), 0, 0, "info", "error, warn, info or debug.", NULL},
};
#undef FIELD

const size_t conf_n_options = sizeof conf_options / sizeof *conf_options;

#define MAX_SOCKET_PATH 107 /* sun_path, less its NUL */

uint32_t conf_role_limit(int role) {
    int careful = role == AGOQ_ROLE_ATTN_OUT || role == AGOQ_ROLE_ATTN_QKV || role == AGOQ_ROLE_QK_NORM_IN;
    return careful ? AGOQ_MASK_8 | AGOQ_MASK_16 : (1u << AGOQ_N_WIDTHS) - 1;
}

/* ---- scalars ---- */

static int set_text(const conf_option *option, char *field, const char *text, char *why, size_t why_size) {
    size_t length = strlen(text), most = option->size - 1;
    if (!strcmp(option->name, "socket") && most > MAX_SOCKET_PATH) most = MAX_SOCKET_PATH;
    for (size_t i = 0; i < length; i++) {
        if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f) {
            snprintf(why, why_size, "holds a control character");
            return -1;
        }
    }
    if (length < option->min || length > most) {
        snprintf(why, why_size, "is %zu bytes long; %zu to %zu are allowed", length, (size_t)option->min,
                 most);
        return -1;
    }
    memcpy(field, text, length + 1);
    return 0;
}

static int set_mode(const conf_option *option, uint32_t *field, const char *text, char *why,
                    size_t why_size) {
    if (strlen(text) == 4 && text[0] == '0' && strspn(text, "01234567") == 4) {
        uint32_t mode =
            (uint32_t)(text[1] - '0') << 6 | (uint32_t)(text[2] - '0') << 3 | (uint32_t)(text[3] - '0');
        if (mode <= option->max) {
            *field = mode;
            return 0;
        }
    }
    snprintf(why, why_size, "'%.40s' is not a file mode of four octal digits, such as 0660", text);
    return -1;
}

static int set_word(int *field, const char *const names[], const char *text, char *why, size_t why_size) {
    for (int i = 0; names[i]; i++) {
        if (strcmp(names[i], text)) continue;
        *field = i;
        return 0;
    }
    const char *near = yaml_nearest(text, names);
    char list[128] = "";
    for (int i = 0; names[i]; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "", names[i]);
    if (near)
        snprintf(why, why_size, "'%.40s' is not one of %s; did you mean '%s'?", text, list, near);
    else
        snprintf(why, why_size, "'%.40s' is not one of %s", text, list);
    return -1;
}

static int check_number(const conf_option *option, const char *text, int parsed, const char *what,
                        uint64_t value, char *why, size_t why_size) {
    if (parsed) {
        snprintf(why, why_size, "'%.40s' is not %s", text, what);
        return -1;
    }
    if (value < option->min || value > option->max) {
        snprintf(why, why_size, "'%.40s' is out of range (%llu to %llu)", text,
                 (unsigned long long)option->min, (unsigned long long)option->max);
        return -1;
    }
    return 0;
}

static int set_number(const conf_option *option, void *field, const char *text, char *why, size_t why_size) {
    uint64_t value = 0;
    uint32_t ppm = 0;
    int parsed;
    switch (option->kind) {
    case CONF_KIND_COUNT:
        parsed = units_parse_uint(text, &value);
        if (check_number(option, text, parsed, "a whole number", value, why, why_size)) return -1;
        break;
    case CONF_KIND_MS:
        parsed = units_parse_ms(text, &value);
        if (check_number(option, text, parsed, "a time with a unit, such as 500ms or 3s", value, why,
                         why_size))
            return -1;
        break;
    case CONF_KIND_PERCENT:
        parsed = units_parse_ppm(text, &ppm);
        value = ppm;
        if (check_number(option, text, parsed, "a percentage, such as 2%", value, why, why_size)) return -1;
        break;
    default:
        if (!strcmp(text, "none")) {
            memset(field, 0, sizeof(uint64_t));
            return 0;
        }
        parsed = units_parse_bytes(text, &value);
        if (check_number(option, text, parsed, "a size with a unit, such as 80GiB, or none", value, why,
                         why_size))
            return -1;
        memcpy(field, &value, sizeof value);
        return 0;
    }
    uint32_t narrow = (uint32_t)value;
    memcpy(field, &narrow, sizeof narrow);
    return 0;
}

/* 0, or -1 with *why; the field is then untouched. */
static int set_scalar(const conf_option *option, conf *c, const char *text, char *why, size_t why_size) {
    void *field = (char *)c + option->offset;
    int word = 0;
    switch (option->kind) {
    case CONF_KIND_TEXT:
        return set_text(option, field, text, why, why_size);
    case CONF_KIND_MODE:
        return set_mode(option, field, text, why, why_size);
    case CONF_KIND_PLANNER:
        if (set_word(&word, conf_planner_names, text, why, why_size)) return -1;
        c->mode = (planner_mode)word;
        return 0;
    case CONF_KIND_LEVEL:
        if (set_word(&word, conf_level_names, text, why, why_size)) return -1;
        c->level = (log_level)word;
        return 0;
    default:
        return set_number(option, field, text, why, why_size);
    }
}

/* ---- lists and maps ---- */

static agoq_status read_budget(const yaml_node *node, conf_budget *budget, char *error, size_t error_size) {
    static const char *const keys[] = {"device", "stage", "bytes", NULL};
    AGOQ_TRY(yaml_known_keys(node, keys, error, error_size));
    const yaml_node *device = yaml_get(node, "device"), *stage = yaml_get(node, "stage");
    const yaml_node *bytes = yaml_get(node, "bytes");
    if (!device == !stage)
        return yaml_fail(node, error, error_size, "a budget names either a device or a stage");
    if (!bytes) return yaml_fail(node, error, error_size, "a budget needs bytes, such as bytes: 70GiB");
    AGOQ_TRY(yaml_expect(bytes, YAML_SCALAR, "bytes", error, error_size));
    if (units_parse_bytes(bytes->text, &budget->bytes) || !budget->bytes || budget->bytes > WIRE_MAX_AMOUNT)
        return yaml_fail(bytes, error, error_size, "bytes: '%.40s' is not a size with a unit, such as 80GiB",
                         bytes->text);
    budget->stage = -1;
    if (stage) {
        uint64_t index;
        AGOQ_TRY(yaml_expect(stage, YAML_SCALAR, "stage", error, error_size));
        if (units_parse_uint(stage->text, &index) || index >= PLAN_MAX_STAGES)
            return yaml_fail(stage, error, error_size, "stage: '%.40s' is not a stage (0 to %d)", stage->text,
                             PLAN_MAX_STAGES - 1);
        budget->stage = (int32_t)index;
        return AGOQ_OK;
    }
    static const conf_option row = {.name = "device", .size = sizeof budget->device, .min = 1};
    char why[160];
    AGOQ_TRY(yaml_expect(device, YAML_SCALAR, "device", error, error_size));
    if (set_text(&row, budget->device, device->text, why, sizeof why))
        return yaml_fail(device, error, error_size, "device: %s", why);
    return AGOQ_OK;
}

static agoq_status read_budgets(const yaml_node *list, conf *c, char *error, size_t error_size) {
    AGOQ_TRY(yaml_expect(list, YAML_LIST, "budgets", error, error_size));
    if (list->n_children > CONF_MAX_BUDGETS)
        return yaml_fail(list, error, error_size, "budgets: more than %d entries", CONF_MAX_BUDGETS);
    conf_budget *budgets = mem_zalloc(list->n_children + 1, sizeof *budgets);
    if (!budgets) {
        snprintf(error, error_size, "%s: out of memory", list->file);
        return AGOQ_E_NOMEM;
    }
    uint32_t n = 0;
    agoq_status status = AGOQ_OK;
    for (const yaml_node *node = list->child; node && status == AGOQ_OK; node = node->next)
        status = read_budget(node, &budgets[n++], error, error_size);
    if (status != AGOQ_OK) {
        mem_free(budgets);
        return status;
    }
    mem_free(c->budgets);
    c->budgets = budgets;
    c->n_budgets = n;
    return AGOQ_OK;
}

static agoq_status read_widths(const yaml_node *map, conf *c, char *error, size_t error_size) {
    AGOQ_TRY(yaml_known_keys(map, conf_role_names, error, error_size));
    for (const yaml_node *role = map->child; role; role = role->next) {
        int index = 0;
        uint32_t mask = 0;
        while (strcmp(conf_role_names[index], role->key)) index++;
        AGOQ_TRY(yaml_expect(role, YAML_LIST, role->key, error, error_size));
        if (!role->child) return yaml_fail(role, error, error_size, "%s: no width is allowed", role->key);
        for (const yaml_node *width = role->child; width; width = width->next) {
            uint64_t bits;
            AGOQ_TRY(yaml_expect(width, YAML_SCALAR, role->key, error, error_size));
            if (units_parse_uint(width->text, &bits) || bits > 16 || agoq_width_index((int)bits) < 0)
                return yaml_fail(width, error, error_size, "%s: '%.40s' is not a width (4, 5, 6, 8, 16)",
                                 role->key, width->text);
            mask |= 1u << agoq_width_index((int)bits);
        }
        for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
            if (mask & ~conf_role_limit(index) & 1u << i)
                return yaml_fail(role, error, error_size, "%s may not have %d bits (8 or 16 only)", role->key,
                                 agoq_width_bits(i));
        }
        c->role_widths[index] = mask;
    }
    return AGOQ_OK;
}

/* ---- whole files ---- */

static agoq_status read_root(const yaml_node *root, conf *c, char *error, size_t error_size) {
    const char *keys[sizeof conf_options / sizeof *conf_options + 1];
    for (size_t i = 0; i < conf_n_options; i++) keys[i] = conf_options[i].name;
    keys[conf_n_options] = NULL;
    AGOQ_TRY(yaml_known_keys(root, keys, error, error_size));
    for (size_t i = 0; i < conf_n_options; i++) {
        const conf_option *option = &conf_options[i];
        const yaml_node *node = yaml_get(root, option->name);
        if (!node) continue;
        if (option->kind == CONF_KIND_BUDGETS) {
            AGOQ_TRY(read_budgets(node, c, error, error_size));
        } else if (option->kind == CONF_KIND_WIDTHS) {
            AGOQ_TRY(read_widths(node, c, error, error_size));
        } else {
            char why[240];
            AGOQ_TRY(yaml_expect(node, YAML_SCALAR, option->name, error, error_size));
            if (set_scalar(option, c, node->text, why, sizeof why))
                return yaml_fail(node, error, error_size, "%s: %s", option->name, why);
        }
        c->from_file |= 1ull << i;
    }
    if (c->silent_ms < 2 * c->heartbeat_ms) {
        const yaml_node *node = yaml_get(root, "silent_after");
        return yaml_fail(node ? node : yaml_get(root, "heartbeat"), error, error_size,
                         "silent_after (%u ms) must be at least twice heartbeat (%u ms)", c->silent_ms,
                         c->heartbeat_ms);
    }
    return AGOQ_OK;
}

/* Into a copy, so that a file that fails changes nothing. */
static agoq_status apply(const yaml_doc *doc, conf *c, char *error, size_t error_size) {
    conf fresh = *c;
    fresh.budgets = NULL;
    fresh.n_budgets = 0;
    agoq_status status = read_root(yaml_root(doc), &fresh, error, error_size);
    if (status != AGOQ_OK) {
        mem_free(fresh.budgets);
        return status;
    }
    if (!fresh.budgets) {
        fresh.budgets = c->budgets;
        fresh.n_budgets = c->n_budgets;
    } else {
        mem_free(c->budgets);
    }
    *c = fresh;
    return AGOQ_OK;
}

agoq_status conf_parse(const char *name, const void *text, size_t size, conf *c, char *error,
                       size_t error_size) {
    yaml_doc *doc = NULL;
    AGOQ_TRY(yaml_parse(name, text, size, &doc, error, error_size));
    agoq_status status = apply(doc, c, error, error_size);
    yaml_unload(&doc);
    return status;
}

agoq_status conf_load(const char *path, conf *c, char *error, size_t error_size) {
    yaml_doc *doc = NULL;
    AGOQ_TRY(yaml_load(path, &doc, error, error_size));
    agoq_status status = apply(doc, c, error, error_size);
    yaml_unload(&doc);
    return status;
}

void conf_default(conf *c) {
    memset(c, 0, sizeof *c);
    for (size_t i = 0; i < conf_n_options; i++) {
        const char *text = conf_options[i].default_text;
        char why[240];
        /* A default that its own row refuses would be a mistake in the table; test_conf.c looks for one. */
        if (text) (void)set_scalar(&conf_options[i], c, strcmp(text, "\"\"") ? text : "", why, sizeof why);
    }
}

void conf_fini(conf *c) {
    mem_free(c->budgets);
    memset(c, 0, sizeof *c);
}
