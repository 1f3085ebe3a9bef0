/* Text tables: columns as wide as their widest cell, numbers to the right, colours that do not count as
 * width. */
#ifndef AGOQCTL_RENDER_H
#define AGOQCTL_RENDER_H

#include <stdint.h>
#include <stdio.h>

#define RENDER_MAX_COLUMNS 20

typedef enum render_color { RENDER_PLAIN, RENDER_GOOD, RENDER_WARN, RENDER_BAD } render_color;

typedef struct render_cell {
    char *text;
    render_color color;
} render_cell;

typedef struct render_table {
    int n_columns;
    const char *headers[RENDER_MAX_COLUMNS];
    int right[RENDER_MAX_COLUMNS];
    render_cell *cells;
    size_t n_cells, capacity;
    int no_memory; /* sticky: the table is then printed as far as it goes, and render_print fails */
} render_table;

/* columns: "RANK>", "DEVICE", ...: a closing '>' puts the column to the right. The texts must outlive the
 * table; at most RENDER_MAX_COLUMNS. */
void render_init(render_table *t, const char *const columns[], int n_columns);
void render_fini(render_table *t);
/* Cells fill rows from left to right. Control characters become '?'. */
void render_add(render_table *t, render_color color, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void render_add_bytes(render_table *t, uint64_t bytes); /* "3.41 MiB"; 0: "-" */
/* 0, or -1 after a failed allocation. */
int render_print(const render_table *t, int color, FILE *out);

/* A state word's colour: live, effective, idle good; silent, pending, preparing, ... warn; gone, infeasible
 * bad. */
render_color render_state_color(const char *state);
/* "12 s", "3 min", "2 h 5 min". */
void render_age(uint64_t ms, char text[32]);
/* Text from elsewhere: control characters become '?'. */
void render_text(const char *text, FILE *out);
void render_colored(const char *text, render_color color, int use_color, FILE *out);

#endif
