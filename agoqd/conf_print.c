/* The table of options as text: --print-config, with the origin of every value, and the commented default
 * file. Apart from conf.c because only these two outputs know how a value is written. */
#include "agoqd/conf.h"

#include <string.h>

#include "agoqd/conf_table.h"

/* Double quotes where a plain scalar could be taken for something else. */
static void print_text(FILE *out, const char *text) {
    size_t plain = strspn(text, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-");
    static const char *const words[] = {"null", "Null", "NULL"};
    int quote = text[plain] != '\0' || !text[0] || text[0] == '-' || text[0] == '.';
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) quote |= !strcmp(text, words[i]);
    if (!quote) {
        fputs(text, out);
        return;
    }
    putc('"', out);
    for (; *text; text++) {
        if (*text == '"' || *text == '\\') putc('\\', out);
        putc(*text, out);
    }
    putc('"', out);
}

/* Exact: the largest unit that divides the value. */
static void print_bytes(FILE *out, uint64_t bytes) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    size_t i = 0;
    for (; bytes && bytes % 1024 == 0 && i + 1 < sizeof names / sizeof *names; i++) bytes /= 1024;
    fprintf(out, "%llu%s", (unsigned long long)bytes, names[i]);
}

static void print_ppm(FILE *out, uint32_t ppm) {
    char digits[8];
    snprintf(digits, sizeof digits, "%04u", ppm % 10000);
    size_t n = 4;
    while (n && digits[n - 1] == '0') n--;
    fprintf(out, "%u%s%.*s%%", ppm / 10000, n ? "." : "", (int)n, digits);
}

static void print_scalar(const conf_option *option, const conf *c, FILE *out) {
    const void *field = (const char *)c + option->offset;
    uint32_t number = 0;
    uint64_t bytes = 0;
    switch (option->kind) {
    case CONF_KIND_TEXT:
        print_text(out, field);
        return;
    case CONF_KIND_PLANNER:
        fputs(conf_planner_names[c->mode], out);
        return;
    case CONF_KIND_LEVEL:
        fputs(conf_level_names[c->level], out);
        return;
    case CONF_KIND_BYTES:
        memcpy(&bytes, field, sizeof bytes);
        if (bytes)
            print_bytes(out, bytes);
        else
            fputs("none", out);
        return;
    default:
        memcpy(&number, field, sizeof number);
        break;
    }
    if (option->kind == CONF_KIND_MODE) fprintf(out, "%04o", number);
    if (option->kind == CONF_KIND_COUNT) fprintf(out, "%u", number);
    if (option->kind == CONF_KIND_PERCENT) print_ppm(out, number);
    if (option->kind == CONF_KIND_MS)
        fprintf(out, number % 1000 ? "%ums" : "%us", number % 1000 ? number : number / 1000);
}

static void print_budgets(const conf *c, const char *origin, FILE *out) {
    fprintf(out, "budgets:%s # %s\n", c->n_budgets ? "" : " []", origin);
    for (uint32_t i = 0; i < c->n_budgets; i++) {
        if (c->budgets[i].device[0]) {
            fputs("  - device: ", out);
            print_text(out, c->budgets[i].device);
        } else {
            fprintf(out, "  - stage: %d", c->budgets[i].stage);
        }
        fputs("\n    bytes: ", out);
        print_bytes(out, c->budgets[i].bytes);
        putc('\n', out);
    }
}

static void print_widths(const conf *c, const char *origin, FILE *out) {
    int any = 0;
    for (int role = 0; role < AGOQ_N_ROLES; role++) any |= c->role_widths[role] != 0;
    fprintf(out, "allowed_widths:%s # %s\n", any ? "" : " {}", origin);
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        if (!c->role_widths[role]) continue;
        fprintf(out, "  %s: [", conf_role_names[role]);
        const char *comma = "";
        for (int i = 0; i < AGOQ_N_WIDTHS; i++) {
            if (!(c->role_widths[role] & 1u << i)) continue;
            fprintf(out, "%s%d", comma, agoq_width_bits(i));
            comma = ", ";
        }
        fputs("]\n", out);
    }
}

void conf_print(const conf *c, FILE *out) {
    for (size_t i = 0; i < conf_n_options; i++) {
        const conf_option *option = &conf_options[i];
        const char *origin = c->from_file & 1ull << i ? "file" : "default";
        if (option->kind == CONF_KIND_BUDGETS) {
            print_budgets(c, origin, out);
        } else if (option->kind == CONF_KIND_WIDTHS) {
            print_widths(c, origin, out);
        } else {
            fprintf(out, "%s: ", option->name);
            print_scalar(option, c, out);
            fprintf(out, " # %s\n", origin);
        }
    }
}

static void print_comment(FILE *out, const char *lines) {
    for (const char *line = lines; *line;) {
        size_t n = strcspn(line, "\n");
        fprintf(out, "# %.*s\n", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

void conf_print_default(FILE *out) {
    fputs("# Configuration of agoqd. Every line that sets something holds the default; delete what you do "
          "not change.\n"
          "# The file is read when agoqd starts; budgets are changed while it runs with agoqctl budget set.\n"
          "# Numbers carry their unit (80GiB, 500ms, 2%) and are refused otherwise. Check with: agoqctl "
          "config check FILE\n",
          out);
    for (size_t i = 0; i < conf_n_options; i++) {
        const conf_option *option = &conf_options[i];
        putc('\n', out);
        print_comment(out, option->help);
        if (option->default_text) {
            fprintf(out, "%s: %s\n", option->name, option->default_text);
            continue;
        }
        fprintf(out, "%s: %s\n", option->name, option->kind == CONF_KIND_BUDGETS ? "[]" : "{}");
        if (option->example) {
            fprintf(out, "# Example:\n# %s:\n", option->name);
            print_comment(out, option->example);
        }
    }
}
