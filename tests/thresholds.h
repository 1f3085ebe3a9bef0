/* tests/vectors/thresholds.txt as tables: for each code the last input that still gets it, computed from
 * exact rationals by tools/make_vectors.py. Inputs are walked in the order of an index, so that the expected
 * codes of any range are a few runs: magnitudes for gradient codes, the number line (-0 next to +0) for
 * activations. The oracle thus never rounds, and a code array is compared with it by memcmp. */
#ifndef TESTS_THRESHOLDS_H
#define TESTS_THRESHOLDS_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agoq/codec.h"

enum { THR_CODES = 256, THR_TABLES = 300 };

typedef struct thr_table {
    int fmt;                 /* of activations: AGOQ_FORMAT_*; 0: a gradient */
    agoq_grad_format format; /* of a gradient */
    uint32_t scale;          /* bf16, of activations */
    int32_t random;          /* the 16 random bits; -1: nearest even */
    int n;
    uint32_t end[THR_CODES]; /* index of the last input of each run, ascending */
    uint8_t code[THR_CODES];
} thr_table;

/* Position of a pattern on the number line, and back. */
static inline uint32_t thr_order(uint32_t u) {
    return u >> 31 ? ~u : u | 0x80000000u;
}
static inline uint32_t thr_disorder(uint32_t k) {
    return k >> 31 ? k & 0x7FFFFFFFu : ~k;
}

/* Smallest and largest index of finite activations. */
#define THR_FIRST 0x00800000u
#define THR_LAST  0xFF7FFFFFu

static inline float thr_float(uint32_t u) {
    float x;
    memcpy(&x, &u, sizeof x);
    return x;
}

static inline uint32_t thr_bits(float x) {
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

/* "A,B,.." into out; the number of entries, or -1. */
static inline int thr_list(const char *text, uint32_t out[THR_CODES]) {
    int n = 0;
    for (char *end; *text && *text != '\n'; text = *end == ',' ? end + 1 : end) {
        if (n == THR_CODES) return -1;
        out[n++] = (uint32_t)strtoul(text, &end, 16);
        if (end == text) return -1;
    }
    return n;
}

static inline int thr_parse_grad(char *name, char *random, const char *list, thr_table *t) {
    static const char *const names[] = {"e4m3", "e5m2", "int8"};
    int f = 0;
    while (f < 3 && strcmp(names[f], name)) f++;
    if (f == 3) return 0;
    t->fmt = 0;
    t->format = (agoq_grad_format)f;
    t->random = strcmp(random, "rn") ? (int32_t)strtol(random, NULL, 16) : -1;
    t->n = thr_list(list, t->end);
    for (int i = 0; i < t->n; i++) t->code[i] = (uint8_t)i;
    return t->n > 0;
}

static inline int thr_parse_int(char *fmt, char *scale, char *random, const char *list, thr_table *t) {
    uint32_t last[THR_CODES];
    t->fmt = atoi(fmt);
    t->scale = (uint32_t)strtoul(scale, NULL, 16);
    t->random = strcmp(random, "rn") ? (int32_t)strtol(random, NULL, 16) : -1;
    t->n = thr_list(list, last);
    const agoq_format_info *info = agoq_format_of(t->fmt);
    if (!info || info->bits > 8 || t->n != 1 << info->bits) return 0;
    for (int i = 0; i < t->n; i++) {
        const int code =
            t->scale >> 15 ? t->n - 1 - i : i; /* codes fall along the line if the scale is negative */
        t->end[i] = thr_order(last[code]);
        t->code[i] = (uint8_t)code;
    }
    return 1;
}

/* Largest bf16 inputs by the mantissa of the scale: of the INT formats |x| that rounds to at most a level; of
 * CODE4, of x above zero and below, whose code is at most so far from 8. */
typedef struct thr_bf16 {
    uint16_t ints[128][128], code4[128][2][8];
} thr_bf16;

/* All tables but the bf16 ones, which go to *bf16; NULL if the file is not as it should be. The caller frees.
 */
static inline thr_table *thr_read(int *n_tables, thr_bf16 *bf16) {
    thr_table *tables = malloc(THR_TABLES * sizeof *tables);
    FILE *file = fopen("tests/vectors/thresholds.txt", "r");
    char *line = NULL, *rest;
    size_t size = 0;
    int n = 0, good = tables && file, n_bf16 = 0, n_code4 = 0;
    while (good && getline(&line, &size, file) > 0) {
        if (line[0] == '#') continue;
        char *kind = strtok_r(line, " \n", &rest), *word[4] = {NULL};
        const int n_words = strcmp(kind, "int") == 0 ? 4 : 2;
        for (int i = 0; i < n_words; i++) word[i] = strtok_r(NULL, " \n", &rest);
        good = word[n_words - 1] != NULL && n < THR_TABLES;
        const int is_code4 = strcmp(kind, "code4") == 0;
        if (good && (is_code4 || strcmp(kind, "bf16") == 0)) {
            const int mantissa = (int)(strtoul(word[0], NULL, 16) & 0x7F), entries = is_code4 ? 16 : 128;
            uint32_t last[THR_CODES];
            uint16_t *to = is_code4 ? bf16->code4[mantissa][0] : bf16->ints[mantissa];
            good = thr_list(word[1], last) == entries;
            for (int i = 0; good && i < entries; i++) to[i] = (uint16_t)last[i];
            *(is_code4 ? &n_code4 : &n_bf16) += 1;
        } else if (good) {
            thr_table *t = &tables[n++];
            good = n_words == 4 ? thr_parse_int(word[0], word[1], word[2], word[3], t)
                                : thr_parse_grad(kind, word[0], word[1], t);
        }
    }
    free(line);
    if (file) fclose(file);
    *n_tables = n;
    if (good && n_bf16 == 128 && n_code4 == 128) return tables;
    free(tables);
    return NULL;
}

/* Codes of inputs first .. first + n - 1. `run` is where the last call ended, 0 before the first; calls
 * ascend. */
static inline void thr_expect(const thr_table *t, uint32_t first, int n, int *run, uint8_t *codes) {
    for (uint64_t at = first, end = (uint64_t)first + (uint64_t)n; at < end;) {
        while (t->end[*run] < at) ++*run;
        const uint64_t stop = t->end[*run] + (uint64_t)1 < end ? t->end[*run] + (uint64_t)1 : end;
        memset(codes + (at - first), t->code[*run], (size_t)(stop - at));
        at = stop;
    }
}

/* A table's code of one input. */
static inline uint8_t thr_code(const thr_table *t, uint32_t index) {
    int run = 0;
    uint8_t code;
    thr_expect(t, index, 1, &run, &code);
    return code;
}

/* An entry of the tables, which belong to a scale in [1, 2), moved by d's exponent. A bf16 of 8 bits scales
 * exactly; among subnormals fewer patterns exist, so the largest that is not above counts. */
static inline uint32_t thr_last_bf16(uint16_t entry, uint16_t d) {
    const double least = ldexp((double)thr_float((uint32_t)entry << 16), (d >> 7 & 0xFF) - 127);
    if (least >= 0x1.fep127) return 0x7F7F;
    if (least >= 0x1p-126) return thr_bits((float)least) >> 16;
    return (uint32_t)(least * 0x1p133); /* subnormals are multiples of 2^-133 */
}

enum { THR_BF16 = 0x7F80 }; /* finite magnitudes */

/* Codes by scale d of all finite bf16 inputs of one sign; negative: not that of d, so that codes fall. */
static inline void thr_expect_bf16(const thr_bf16 *table, int fmt, uint16_t d, int negative, uint8_t *codes) {
    const int half = 1 << (agoq_format_of(fmt)->bits - 1), most = negative ? half : half - 1;
    const uint16_t *entries =
        fmt == AGOQ_FORMAT_CODE4 ? table->code4[d & 0x7F][negative] : table->ints[d & 0x7F];
    uint32_t at = 0;
    for (int level = 0; at < THR_BF16; level++) {
        const uint32_t end = level >= most ? THR_BF16 : thr_last_bf16(entries[level], d) + 1;
        memset(codes + at, negative ? half - level : half + level, end - at);
        at = end;
    }
}

#endif
