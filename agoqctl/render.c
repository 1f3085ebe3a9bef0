/* See render.h. */
#include "agoqctl/render.h"

#include <stdarg.h>
#include <string.h>

#include "common/mem.h"
#include "common/units.h"

static const char *const color_codes[] = {"", "\033[32m", "\033[33m", "\033[31m"};

static char *format_cell(const char *format, va_list args) {
    char text[1100]; /* the longest text of the wire, and a little */
    vsnprintf(text, sizeof text, format, args);
    for (char *c = text; *c; c++) {
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    }
    return mem_strdup(text);
}

/* Terminal columns: every UTF-8 sequence counts as one. */
static int width_of(const char *text) {
    int n = 0;
    for (; *text; text++) n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Headers keep their '>' mark; what is printed goes without. */
static int header_length(const char *header) {
    size_t n = strlen(header);
    return (int)(n && header[n - 1] == '>' ? n - 1 : n);
}

void render_init(render_table *t, const char *const columns[], int n_columns) {
    memset(t, 0, sizeof *t);
    t->n_columns = n_columns < RENDER_MAX_COLUMNS ? n_columns : RENDER_MAX_COLUMNS;
    for (int i = 0; i < t->n_columns; i++) {
        t->headers[i] = columns[i];
        t->right[i] = columns[i][header_length(columns[i])] == '>';
    }
}

void render_fini(render_table *t) {
    for (size_t i = 0; i < t->n_cells; i++) mem_free(t->cells[i].text);
    mem_free(t->cells);
    memset(t, 0, sizeof *t);
}

void render_add(render_table *t, render_color color, const char *format, ...) {
    if (t->no_memory) return;
    if (t->n_cells == t->capacity) {
        size_t capacity = t->capacity ? 2 * t->capacity : 64;
        render_cell *cells = mem_realloc(t->cells, capacity, sizeof *cells);
        if (!cells) {
            t->no_memory = 1;
            return;
        }
        t->cells = cells;
        t->capacity = capacity;
    }
    va_list args;
    va_start(args, format);
    char *text = format_cell(format, args);
    va_end(args);
    t->no_memory = !text;
    if (text) t->cells[t->n_cells++] = (render_cell){text, color};
}

void render_add_bytes(render_table *t, uint64_t bytes) {
    char text[32] = "-";
    if (bytes) units_format_bytes(bytes, text);
    render_add(t, RENDER_PLAIN, "%s", text);
}

static void print_padded(const char *text, int length, int width, int right, int last, FILE *out) {
    if (right && width > length) fprintf(out, "%*s", width - length, "");
    fputs(text, out);
    if (!right && !last && width > length) fprintf(out, "%*s", width - length, "");
    if (!last) fputs("  ", out);
}

int render_print(const render_table *t, int color, FILE *out) {
    int width[RENDER_MAX_COLUMNS] = {0};
    for (int i = 0; i < t->n_columns; i++) width[i] = header_length(t->headers[i]);
    for (size_t i = 0; i < t->n_cells; i++) {
        int n = width_of(t->cells[i].text), column = (int)(i % (size_t)t->n_columns);
        if (n > width[column]) width[column] = n;
    }
    for (int i = 0; i < t->n_columns; i++) {
        char header[64];
        snprintf(header, sizeof header, "%.*s", header_length(t->headers[i]), t->headers[i]);
        print_padded(header, header_length(t->headers[i]), width[i], t->right[i], i + 1 == t->n_columns, out);
    }
    putc('\n', out);
    for (size_t i = 0; i < t->n_cells; i++) {
        int column = (int)(i % (size_t)t->n_columns), last = column + 1 == t->n_columns;
        const render_cell *cell = &t->cells[i];
        if (color) fputs(color_codes[cell->color], out);
        print_padded(cell->text, width_of(cell->text), width[column], t->right[column], last, out);
        if (color && cell->color) fputs("\033[0m", out);
        if (last || i + 1 == t->n_cells) putc('\n', out);
    }
    return t->no_memory ? -1 : 0;
}

render_color render_state_color(const char *state) {
    static const char *const good[] = {"live", "effective", "idle", "armed", NULL};
    static const char *const bad[] = {"gone", "infeasible", NULL};
    for (int i = 0; good[i]; i++) {
        if (!strcmp(state, good[i])) return RENDER_GOOD;
    }
    for (int i = 0; bad[i]; i++) {
        if (!strcmp(state, bad[i])) return RENDER_BAD;
    }
    return RENDER_WARN;
}

void render_age(uint64_t ms, char text[32]) {
    unsigned long long s = ms / 1000;
    if (ms < 1000)
        snprintf(text, 32, "%llu ms", (unsigned long long)ms);
    else if (s < 120)
        snprintf(text, 32, "%llu s", s);
    else if (s < 7200)
        snprintf(text, 32, "%llu min %llu s", s / 60, s % 60);
    else
        snprintf(text, 32, "%llu h %llu min", s / 3600, s / 60 % 60);
}

void render_text(const char *text, FILE *out) {
    for (; *text; text++)
        putc((unsigned char)*text < 0x20 && *text != '\n' ? '?' : *text == 0x7f ? '?' : *text, out);
}

void render_colored(const char *text, render_color color, int use_color, FILE *out) {
    if (use_color) fputs(color_codes[color], out);
    render_text(text, out);
    if (use_color && color) fputs("\033[0m", out);
}
