/* Speed of the CPU kernels, per operation, width and instruction set. A case is timed only after its output
 * on the first rows was compared, byte for byte, with the scalar reference of the tests. Next to million
 * elements a second stands the share of memcpy: bytes that the operation has to read and write per second,
 * over what memcpy moves in the same run with matrices of the same size. Best of several calls, one thread.
 *   kernels [ROWS COLS]    default: 256 256, then 4096 4096
 * Prints a table for people and then one JSON object a line for programs. What to expect: codecs cost some
 * arithmetic per element, so small matrices, which stay in cache, show less of memcpy's speed than large
 * ones. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/kernels_cases.h"

enum { CHECK_ROWS = 65, MOST_RESULTS = 1024 };

typedef struct result {
    const char *op, *level;
    int bits; /* 0: the operation has no width */
    int64_t rows, cols;
    double melem, share;
} result;

static const struct op_info {
    const char *name;
    int wide, matrices, packed, rest;
} infos[] = {
#define OP_INFO(id, name, wide, matrices, packed, rest) {name, wide, matrices, packed, rest},
    KCASE_OPS(OP_INFO)
#undef OP_INFO
};

static result results[MOST_RESULTS];
static int n_results;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Bytes a second that memcpy reads and writes. */
static double memcpy_speed(kcase *k) {
    const size_t bytes = (size_t)(k->rows * k->cols) * 4;
    double best = 0, spent = 0;
    for (int i = 0; i < 5 || spent < 0.1; i++) {
        const double start = now();
        memcpy(k->out[0].data, k->x.data, bytes);
        const double took = now() - start;
        best = best > 2.0 * (double)bytes / took ? best : 2.0 * (double)bytes / took;
        spent += took;
    }
    return best;
}

/* Seconds of the fastest call; negative when one failed. */
static double fastest(kcase *k, const agoqk_ops *ops, kcase_op op) {
    double best = 1e9, spent = 0;
    kcase_reset(k);
    for (int i = 0; i < 5 || spent < 0.1; i++) {
        const double start = now();
        if (kcase_run(k, ops, op) != AGOQ_OK) return -1;
        const double took = now() - start;
        best = took < best ? took : best;
        spent += took;
    }
    return best;
}

static double bytes_moved(const kcase *k, const struct op_info *info) {
    const double n = (double)(k->rows * k->cols);
    return n * (4 * info->matrices + info->rest) + (double)k->packed[0].layout.bytes * info->packed;
}

/* 0: a kernel is wrong, or there is no memory. */
static int measure(int64_t rows, int64_t cols, int bits, int first_width) {
    kcase k, check;
    if (!kcase_make(&check, rows < CHECK_ROWS ? rows : CHECK_ROWS, cols, bits, AGOQ_DTYPE_F32, 1)) return 0;
    if (!kcase_make(&k, rows, cols, bits, AGOQ_DTYPE_F32, 0)) return 0;
    const double copy = memcpy_speed(&k);
    int right = 1;
    for (int op = 0; right && op < KCASE_N_OPS; op++) {
        if (!infos[op].wide && !first_width) continue;
        for (int i = 0; right && agoqk_cpu_level(i); i++) {
            const agoqk_ops *ops = agoqk_cpu_level(i);
            right = kcase_agree(&check, ops, (kcase_op)op);
            if (!right) fprintf(stderr, "kernels: %s is wrong at %d bits\n", infos[op].name, bits);
            const double took = right ? fastest(&k, ops, (kcase_op)op) : -1;
            if (took < 0 || n_results == MOST_RESULTS) {
                right = 0;
                break;
            }
            results[n_results++] = (result){infos[op].name,
                                            agoqk_cpu_level_name(i),
                                            infos[op].wide ? bits : 0,
                                            rows,
                                            cols,
                                            (double)(rows * cols) / took * 1e-6,
                                            bytes_moved(&k, &infos[op]) / took / copy};
        }
    }
    kcase_free(&k);
    kcase_free(&check);
    return right;
}

int main(int argc, char **argv) {
    const int64_t sizes[2] = {256, 4096};
    int right = 1;
    if (argc != 1 && argc != 3) {
        fprintf(stderr, "usage: kernels [ROWS COLS]\n");
        return 2;
    }
    for (int s = 0; right && s < (argc == 3 ? 1 : 2); s++) {
        const int64_t rows = argc == 3 ? strtoll(argv[1], NULL, 10) : sizes[s];
        const int64_t cols = argc == 3 ? strtoll(argv[2], NULL, 10) : sizes[s];
        if (rows < 1 || cols < 1 || rows > INT64_C(1) << 20 || cols > INT64_C(1) << 20) {
            fprintf(stderr, "kernels: rows and columns are 1 .. 2^20\n");
            return 2;
        }
        for (int w = 0; right && w < AGOQ_N_WIDTHS; w++)
            right = measure(rows, cols, agoq_width_bits(w), w == 0);
    }
    if (!right) {
        fprintf(stderr, "kernels: stopped: wrong output, or out of memory\n");
        return 1;
    }
    printf("%-20s %5s %11s %-7s %10s %8s\n", "operation", "width", "shape", "level", "Melem/s", "memcpy");
    for (int i = 0; i < n_results; i++) {
        const result *r = &results[i];
        char shape[48], width[16] = "-";
        snprintf(shape, sizeof shape, "%lldx%lld", (long long)r->rows, (long long)r->cols);
        if (r->bits) snprintf(width, sizeof width, "%d", r->bits);
        printf("%-20s %5s %11s %-7s %10.0f %7.0f%%\n", r->op, width, shape, r->level, r->melem,
               100 * r->share);
    }
    for (int i = 0; i < n_results; i++) {
        const result *r = &results[i];
        printf("{\"op\":\"%s\",\"width\":%d,\"rows\":%lld,\"cols\":%lld,\"level\":\"%s\",\"melem_s\":%.1f,"
               "\"memcpy_ratio\":%.4f}\n",
               r->op, r->bits, (long long)r->rows, (long long)r->cols, r->level, r->melem, r->share);
    }
    return 0;
}
