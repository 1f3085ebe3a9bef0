/* Errors of every format, in percent: sums of micro-batches in 8-bit gradients, activations per format on
 * synthetic data, and on dumps of real ones (agoq-train --dump-activations). Through the public API, except
 * for the fit that CODE4 comes from (codebook.h). Exact sums are kept in double.
 *   accuracy [--elements N] [--dumps DIR] [--out FILE]      FILE: one JSON object a line
 * Real activations are given per role, the squared errors of all dumps of a role added up. */
#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "bench/codebook.h"
#include "tests/accuracy.h"

enum { N_COUNTS = 7, ACT_COLS = 4096 };
static const int formats[] = {4, 5, 6, 8, AGOQ_FORMAT_CODE4};
enum { N_FORMATS = sizeof formats / sizeof *formats };
static FILE *lines;
static codebook fit;

static void fail(const char *what) {
    fprintf(stderr, "accuracy: %s\n", what);
    exit(1);
}

/* ---- gradients ---- */

static void print_way(acc_case kind, acc_way way, int64_t n) {
    acc_result r[N_COUNTS];
    char name[40], staged[24] = "";
    if (acc_accumulate(kind, way, n, r, N_COUNTS) != AGOQ_OK) fail(agoq_last_error());
    const char *rounding = way.stochastic ? "SR" : "RN";
    if (way.staged > 1) snprintf(staged, sizeof staged, ", bf16 x%d", way.staged);
    snprintf(name, sizeof name, "%s %s%s", agoq_grad_format_name(way.format), rounding, staged);
    printf("| %-6s | %-16s |", acc_case_names[kind], name);
    for (int k = 0; k < N_COUNTS; k++) printf(" %5.2f |", 100 * r[k].error);
    const acc_result *last = &r[N_COUNTS - 1];
    printf(" %+.2f |\n", 100 * last->bias);
    fflush(stdout);
    if (!lines) return;
    fprintf(lines,
            "{\"what\":\"accumulate\",\"case\":\"%s\",\"format\":\"%s\",\"rounding\":\"%s\",\"staged\":%d,",
            acc_case_names[kind], agoq_grad_format_name(way.format), rounding, way.staged);
    fprintf(lines, "\"error_percent\":[");
    for (int k = 0; k < N_COUNTS; k++) fprintf(lines, "%s%.4f", k ? "," : "", 100 * r[k].error);
    fprintf(lines, "],\"bias_percent\":%.4f,\"bias_stderr_percent\":%.4f}\n", 100 * last->bias,
            100 * last->bias_error);
}

static void gradients(int64_t n) {
    printf("| case | format | G=1 | 2 | 4 | 8 | 16 | 32 | 64 | bias at 64 |\n");
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    for (int k = 0; k < ACC_N_CASES; k++) {
        for (int f = 0; f < AGOQ_N_GRAD_FORMATS; f++) {
            for (int sr = 0; sr < 2; sr++) print_way((acc_case)k, (acc_way){(agoq_grad_format)f, sr, 1}, n);
        }
        for (int staged = 4; staged <= 8; staged *= 2) {
            for (int sr = 0; sr < 2; sr++) print_way((acc_case)k, (acc_way){AGOQ_GRAD_E4M3, sr, staged}, n);
        }
    }
    printf("\n");
}

/* ---- activations ---- */

/* Sums over the tensors of one row of the table: squares, and squared errors of each format and of the fit.
 */
typedef struct act_row {
    char name[64];
    int n_tensors;
    double elements, norm, error[N_FORMATS], stochastic[N_FORMATS], fit;
} act_row;

static void add_tensor(act_row *row, const float *x, int64_t rows, int64_t cols) {
    static const agoq_key key = {1, 2, 3, 4, 5, 0};
    acc_result r;
    double norm = 0;
    for (int64_t i = 0; i < rows * cols; i++) norm += (double)x[i] * (double)x[i];
    row->n_tensors++, row->elements += (double)(rows * cols), row->norm += norm;
    for (int b = 0; b < N_FORMATS; b++) {
        for (int sr = 0; sr < 2; sr++) {
            if (act_error(x, rows, cols, formats[b], sr ? &key : NULL, &r) != AGOQ_OK)
                fail(agoq_last_error());
            *(sr ? &row->stochastic[b] : &row->error[b]) += r.error * r.error * norm;
        }
    }
    const double e = codebook_error(&fit, x, rows, cols);
    row->fit += e * e * norm;
}

static double percent(const act_row *row, double error) {
    return 100 * sqrt(error / row->norm);
}

static void print_row(const act_row *row, const char *what) {
    printf("| %-16s |", row->name);
    for (int b = 0; b < N_FORMATS; b++) printf(" %5.2f |", percent(row, row->error[b]));
    printf(" %5.2f |", percent(row, row->stochastic[0]));
    printf(" %5.2f | %5.2f |\n", percent(row, row->stochastic[N_FORMATS - 1]), percent(row, row->fit));
    if (!lines) return;
    fprintf(lines, "{\"what\":\"%s\",\"case\":\"%s\",\"tensors\":%d,\"elements\":%.0f,\"error_percent\":{",
            what, row->name, row->n_tensors, row->elements);
    for (int b = 0; b < N_FORMATS; b++)
        fprintf(lines, "\"%s\":%.4f,\"%s_sr\":%.4f,", agoq_format_of(formats[b])->name,
                percent(row, row->error[b]), agoq_format_of(formats[b])->name,
                percent(row, row->stochastic[b]));
    fprintf(lines, "\"fit\":%.4f}}\n", percent(row, row->fit));
}

static void head(const char *first) {
    printf("| %s | INT4 | INT5 | INT6 | INT8 | CODE4 | INT4 SR | CODE4 SR | fit |\n", first);
    printf("| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
}

static void synthetic(int64_t n) {
    const int64_t rows = n / ACT_COLS > 0 ? n / ACT_COLS : 1;
    float *x = malloc((size_t)(rows * ACT_COLS) * sizeof *x);
    if (!x) fail("no memory");
    head("data");
    for (int k = 0; k < ACT_N_CASES; k++) {
        act_row row = {.n_tensors = 0};
        snprintf(row.name, sizeof row.name, "%s", act_case_names[k]);
        act_fill((act_case)k, x, rows, ACT_COLS);
        add_tensor(&row, x, rows, ACT_COLS);
        print_row(&row, "synthetic");
    }
    printf("\n");
    free(x);
}

/* ROLE.LAYER.INDEX.ROWSxCOLS.f32: little-endian floats, row-major. 0: not such a name, or another role. */
static int add_dump(const char *dir, const char *name, const char *role, act_row *row) {
    char path[4096];
    long long rows, cols;
    const size_t n = strlen(role);
    if (strncmp(name, role, n) || sscanf(name + n, ".%*d.%*d.%lldx%lld.f32", &rows, &cols) != 2) return 0;
    if (rows < 1 || cols < 1 || rows > (1 << 24) || cols > (1 << 24)) fail(name);
    float *x = malloc((size_t)(rows * cols) * sizeof *x);
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "rb");
    if (!x || !file || fread(x, sizeof *x, (size_t)(rows * cols), file) != (size_t)(rows * cols)) fail(path);
    fclose(file);
    add_tensor(row, x, rows, cols);
    free(x);
    return 1;
}

static void dumps(const char *dir) {
    int found = 0;
    head("role");
    for (int k = 0; k < AGOQ_N_ROLES; k++) {
        act_row row = {.n_tensors = 0};
        DIR *folder = opendir(dir);
        if (!folder) fail(dir);
        snprintf(row.name, sizeof row.name, "%s", agoq_role_name(k));
        for (const struct dirent *e; (e = readdir(folder));)
            add_dump(dir, e->d_name, agoq_role_name(k), &row);
        closedir(folder);
        if (row.n_tensors) print_row(&row, "dump");
        found += row.n_tensors;
    }
    if (!found) fail("no dumps in the folder");
}

int main(int argc, char **argv) {
    int64_t n = 262144;
    const char *folder = NULL;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && strcmp(argv[i], "--elements") == 0 && atoll(value) >= ACC_ROW) {
            n = atoll(value);
        } else if (value && strcmp(argv[i], "--dumps") == 0) {
            folder = value;
        } else if (value && strcmp(argv[i], "--out") == 0 && (lines = fopen(value, "w"))) {
            continue;
        } else {
            fail("usage: accuracy [--elements N, at least 4096] [--dumps DIR] [--out FILE]");
        }
    }
    fit = codebook_fit();
    printf("fit, in eighths of d:");
    for (int c = CODEBOOK_LEVELS - 1; c >= 0; c--) printf(" %.2f", -64 * (double)fit.level[c]);
    printf("\n");
    gradients(n);
    synthetic(16 * n);
    if (folder) dumps(folder);
    return lines && fclose(lines) ? 1 : 0;
}
