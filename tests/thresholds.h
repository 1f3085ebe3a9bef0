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
    int bits;                /* width of activations; 0: a gradient */
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
    t->bits = 0;
    t->format = (agoq_grad_format)f;
    t->random = strcmp(random, "rn") ? (int32_t)strtol(random, NULL, 16) : -1;
    t->n = thr_list(list, t->end);
    for (int i = 0; i < t->n; i++) t->code[i] = (uint8_t)i;
    return t->n > 0;
}

static inline int thr_parse_int(char *bits, char *scale, char *random, const char *list, thr_table *t) {
    uint32_t last[THR_CODES];
    t->bits = atoi(bits);
    t->scale = (uint32_t)strtoul(scale, NULL, 16);
    t->random = strcmp(random, "rn") ? (int32_t)strtol(random, NULL, 16) : -1;
    t->n = thr_list(list, last);
    if (t->n != 1 << t->bits) return 0;
    for (int i = 0; i < t->n; i++) {
        const int code =
            t->scale >> 15 ? t->n - 1 - i : i; /* codes fall along the line if the scale is negative */
        t->end[i] = thr_order(last[code]);
        t->code[i] = (uint8_t)code;
    }
    return 1;
}

/* All tables but the bf16 ones, which go to bf16[mantissa of the scale][level]; NULL if the file is not as it
 * should be. The caller frees. */
static inline thr_table *thr_read(int *n_tables, uint16_t bf16[128][128]) {
    thr_table *tables = malloc(THR_TABLES * sizeof *tables);
    FILE *file = fopen("tests/vectors/thresholds.txt", "r");
    char *line = NULL, *rest;
    size_t size = 0;
    int n = 0, good = tables && file, n_bf16 = 0;
    while (good && getline(&line, &size, file) > 0) {
        if (line[0] == '#') continue;
        char *kind = strtok_r(line, " \n", &rest), *word[4] = {NULL};
        const int n_words = strcmp(kind, "int") == 0 ? 4 : 2;
        for (int i = 0; i < n_words; i++) word[i] = strtok_r(NULL, " \n", &rest);
        good = word[n_words - 1] != NULL && n < THR_TABLES;
        if (good && strcmp(kind, "bf16") == 0) {
            uint32_t last[THR_CODES];
            good = thr_list(word[1], last) == 128;
            uint16_t *to = bf16[strtoul(word[0], NULL, 16) & 0x7F];
            for (int i = 0; good && i < 128; i++) to[i] = (uint16_t)last[i];
            n_bf16++;
        } else if (good) {
            thr_table *t = &tables[n++];
            good = n_words == 4 ? thr_parse_int(word[0], word[1], word[2], word[3], t)
                                : thr_parse_grad(kind, word[0], word[1], t);
        }
    }
    free(line);
    if (file) fclose(file);
    *n_tables = n;
    if (good && n_bf16 == 128) return tables;
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

/* Largest bf16 magnitude that rounds to at most `level` by d: that of d's mantissa, moved by d's exponent. A
 * bf16 of 8 bits scales exactly; among subnormals fewer patterns exist, so the largest that is not above
 * counts. */
static inline uint32_t thr_last_bf16(uint16_t table[128][128], uint16_t d, int level) {
    const double least =
        ldexp((double)thr_float((uint32_t)table[d & 0x7F][level] << 16), (d >> 7 & 0xFF) - 127);
    if (least >= 0x1.fep127) return 0x7F7F;
    if (least >= 0x1p-126) return thr_bits((float)least) >> 16;
    return (uint32_t)(least * 0x1p133); /* subnormals are multiples of 2^-133 */
}

enum { THR_BF16 = 0x7F80 }; /* finite magnitudes */

/* Codes of all finite bf16 magnitudes, or of their negatives. */
static inline void thr_expect_bf16(const uint32_t last[128], int bits, int negative, uint8_t *codes) {
    const int half = 1 << (bits - 1), most = negative ? half : half - 1;
    uint32_t at = 0;
    for (int level = 0; at < THR_BF16; level++) {
        const uint32_t end = level >= most ? THR_BF16 : last[level] + 1;
        memset(codes + at, negative ? half - level : half + level, end - at);
        at = end;
    }
}

#endif
