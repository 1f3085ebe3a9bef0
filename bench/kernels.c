/* Speed of the CPU kernels, per operation, format, dtype and instruction set, next to what memcpy does with
 * the same bytes. Everything is validated first, byte for byte, against the scalar reference of the tests.
 * pack and unpack run on a tensor far larger than the caches, by 1, 2 and all threads, each on its range of
 * rows; memcpy by as many. Fused rows and gradients run on a smaller one by one thread. A ratio is (bytes
 * read and written) per second over that of memcpy; the best of several calls. kernels [--rows R] [--commit
 * C] [--out FILE] [--claims FILE]    rows of 8192 in the large tensor Prints a table; --out takes one JSON
 * object a line, --claims what tools/claims.py reads. */
#include "bench/kernels.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { COLS = 8192, CASE_ROWS = 1024, CASE_COLS = 4096, CHECK_ROWS = 33, CHECK_COLS = 1000, MOST = 2048 };

typedef struct result {
    const char *op, *dtype, *level;
    const agoq_format_info *format; /* NULL: the operation has none */
    int threads;
    int64_t rows, cols;
    double bytes, seconds, copy_rate;
} result;

static const struct op_info {
    const char *name;
    int wide, matrices, packed, rest;
} infos[] = {
#define OP_INFO(id, name, wide, matrices, packed, rest) {name, wide, matrices, packed, rest},
    KCASE_OPS(OP_INFO)
#undef OP_INFO
};

static const struct dtype_info {
    const char *name;
    agoq_dtype dtype;
} dtypes[] = {{"bf16", AGOQ_DTYPE_BF16}, {"f32", AGOQ_DTYPE_F32}};

static result results[MOST];
static int n_results;

static double gbps(const result *r) {
    return r->bytes / r->seconds * 1e-9;
}

static double ratio(const result *r) {
    return r->bytes / r->seconds / r->copy_rate;
}

static void say(const result *r) {
    char shape[48];
    snprintf(shape, sizeof shape, "%lldx%lld", (long long)r->rows, (long long)r->cols);
    printf("%-22s %6s %5s %12s %-7s %7d %10.0f %8.2f %8.2f %6.2f\n", r->op, r->format ? r->format->name : "-",
           r->dtype, shape, r->level, r->threads, r->seconds * 1e6, gbps(r), r->copy_rate * 1e-9, ratio(r));
    fflush(stdout);
}

static void keep(result r) {
    if (n_results == MOST) return;
    results[n_results++] = r;
    say(&r);
}

/* Every operation at every format, dtype and level; 0: a kernel is wrong. */
static int validate(void) {
    int right = 1, cases = 0;
    for (int w = 0; w < AGOQ_N_FORMATS * 2; w++) {
        kcase k;
        if (!kcase_make(&k, CHECK_ROWS, CHECK_COLS, agoq_format_at(w / 2)->number, dtypes[w % 2].dtype, 1))
            return 0;
        for (int op = 0; op < KCASE_N_OPS; op++) {
            for (int i = 0; agoqk_cpu_level(i); i++, cases++) {
                if (kcase_agree(&k, agoqk_cpu_level(i), (kcase_op)op)) continue;
                fprintf(stderr, "kernels: %s is wrong in %s, level %s\n", infos[op].name,
                        agoq_format_of(k.format)->name, agoqk_cpu_level_name(i));
                right = 0;
            }
        }
        kcase_free(&k);
    }
    printf("%d operations, formats, dtypes and levels write the bytes of the reference\n", cases);
    return right;
}

/* pack and unpack of one format and dtype, at every level but the plain one, by each number of threads. */
static int measure_large(large *l, int d, const agoq_format_info *format, const int *threads, int n_threads) {
    if (!large_shape(l, dtypes[d].dtype, format->number)) return 0;
    const double bytes = large_bytes(l);
    for (int t = 0; t < n_threads; t++) {
        for (int i = 0; agoqk_cpu_level(i + (i > 0)); i++) {
            double best[3];
            if (!large_time(l, agoqk_cpu_level(i), threads[t], best)) return 0;
            for (int job = LARGE_PACK; job <= LARGE_UNPACK; job++) {
                keep((result){job == LARGE_PACK ? "pack" : "unpack", dtypes[d].name, agoqk_cpu_level_name(i),
                              format, threads[t], l->rows, l->cols, bytes, best[job],
                              bytes / best[LARGE_COPY]});
            }
        }
    }
    return 1;
}

static double case_bytes(const kcase *k, const struct op_info *info) {
    const double n = (double)(k->rows * k->cols), size = k->dtype == AGOQ_DTYPE_F32 ? 4 : 2;
    return n * (size * info->matrices + info->rest) + (double)k->packed[0].layout.bytes * info->packed;
}

static int measure_cases(int d, const agoq_format_info *format, int first) {
    kcase k;
    if (!kcase_make(&k, CASE_ROWS, CASE_COLS, format->number, dtypes[d].dtype, 0)) return 0;
    const double copy_rate = copy_speed(&k);
    int right = 1;
    for (int op = KCASE_PACK_SR; right && op < KCASE_N_OPS; op++) {
        if (op == KCASE_UNPACK || (!infos[op].wide && !first)) continue;
        for (int i = 0; right && agoqk_cpu_level(i); i++) {
            const double took = case_time(&k, agoqk_cpu_level(i), (kcase_op)op);
            right = took > 0;
            keep((result){infos[op].name, dtypes[d].name, agoqk_cpu_level_name(i),
                          infos[op].wide ? format : NULL, 1, k.rows, k.cols, case_bytes(&k, &infos[op]), took,
                          copy_rate});
        }
    }
    kcase_free(&k);
    return right;
}

static int write_lines(const char *path, const char *commit) {
    FILE *file = fopen(path, "w");
    for (int i = 0; file && i < n_results; i++) {
        const result *r = &results[i];
        fprintf(file,
                "{\"op\":\"%s\",\"format\":\"%s\",\"shape\":[%lld,%lld],\"dtype\":\"%s\",\"device\":\"cpu\","
                "\"level\":\"%s\",\"threads\":%d,\"bytes\":%.0f,\"us\":%.1f,\"gbps\":%.2f,\"copy_gbps\":%.2f,"
                "\"ratio\":%.4f,\"commit\":\"%s\"}\n",
                r->op, r->format ? r->format->name : "none", (long long)r->rows, (long long)r->cols, r->dtype,
                r->level, r->threads, r->bytes, r->seconds * 1e6, gbps(r), r->copy_rate * 1e-9, ratio(r),
                commit);
    }
    return file && fclose(file) == 0;
}

/* Least ratio of one thread with bf16 input over the formats of less than 16 bits; 1e9: not measured. */
static double least(const char *level, const char *op) {
    double found = 1e9;
    for (int i = 0; i < n_results; i++) {
        const result *r = &results[i];
        const int fits = r->threads == 1 && r->format && r->format->bits < 16 && !strcmp(r->dtype, "bf16") &&
                         !strcmp(r->level, level) && !strcmp(r->op, op);
        if (fits && ratio(r) < found) found = ratio(r);
    }
    return found;
}

static void write_figure(FILE *file, const char *id, double value, const char *end) {
    fprintf(file, "  {\n   \"id\": \"%s\",\n   \"value\": %.4f,\n   \"unit\": \"ratio\"\n  }%s\n", id, value,
            end);
}

static int write_claims(const char *path, const char *commit) {
    char date[16];
    const time_t now = time(NULL);
    struct tm utc;
    strftime(date, sizeof date, "%Y-%m-%d", gmtime_r(&now, &utc));
    FILE *file = fopen(path, "w");
    if (!file) return 0;
    const double pack = least("avx2", "pack"), unpack = least("avx2", "unpack");
    fprintf(file, "{\n \"gpu\": null,\n \"date\": \"%s\",\n \"commit\": \"%s\",\n", date, commit);
    fprintf(file, " \"command\": \"make bench\",\n \"figures\": [\n");
    write_figure(file, "cpu_pack_vs_memcpy_min", pack < unpack ? pack : unpack, ",");
    write_figure(file, "cpu_pack_only_vs_memcpy_min", pack, ",");
    write_figure(file, "cpu_unpack_only_vs_memcpy_min", unpack, "");
    fprintf(file, " ]\n}\n");
    return fclose(file) == 0;
}

static int measure_all(int64_t rows) {
    const int all = (int)sysconf(_SC_NPROCESSORS_ONLN), threads[] = {1, 2, all};
    large l;
    if (!large_make(&l, rows, COLS)) return 0;
    int right = 1;
    for (int i = 0; right && i < AGOQ_N_FORMATS * 2; i++)
        right = measure_large(&l, i % 2, agoq_format_at(i / 2), threads, all > 2 ? 3 : all);
    large_free(&l);
    for (int i = 0; right && i < AGOQ_N_FORMATS * 2; i++)
        right = measure_cases(i % 2, agoq_format_at(i / 2), i / 2 == 0);
    return right;
}

int main(int argc, char **argv) {
    const char *out = NULL, *claims = NULL, *commit = "unknown";
    long long rows = 32768;
    for (int i = 1; i < argc; i += 2) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (value && !strcmp(argv[i], "--rows")) {
            rows = strtoll(value, NULL, 10);
        } else if (value && !strcmp(argv[i], "--out")) {
            out = value;
        } else if (value && !strcmp(argv[i], "--claims")) {
            claims = value;
        } else if (value && !strcmp(argv[i], "--commit")) {
            commit = value;
        } else {
            rows = 0;
        }
    }
    if (rows < 64 || rows > 1 << 20) {
        fprintf(stderr, "usage: kernels [--rows 64..1048576] [--commit C] [--out FILE] [--claims FILE]\n");
        return 2;
    }
    if (!validate()) return 1;
    printf("%-22s %6s %5s %12s %-7s %7s %10s %8s %8s %6s\n", "operation", "format", "dtype", "shape", "level",
           "threads", "us", "GB/s", "memcpy", "ratio");
    if (!measure_all(rows)) {
        fprintf(stderr, "kernels: a call failed, or there is no memory\n");
        return 1;
    }
    if ((out && !write_lines(out, commit)) || (claims && !write_claims(claims, commit))) {
        fprintf(stderr, "kernels: cannot write the results\n");
        return 1;
    }
    return 0;
}
