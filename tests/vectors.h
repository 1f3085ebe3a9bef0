/* Reads the lines of tests/vectors/ (described at the top of tools/make_vectors.py) and hands each, split
 * into fields, to the check of its kind, once per row of operations that this machine has. A line of an
 * unknown kind fails, and so does a kind that was met too seldom: a truncated file cannot pass. The
 * trade-off: lists live in a few static buffers, so a program reads one line at a time. */
#ifndef TESTS_VECTORS_H
#define TESTS_VECTORS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/agoq_kernels.h"
#include "kernels/format/half.h"

enum { VEC_MOST = 2048, VEC_FIELDS = 16, VEC_LISTS = 8 };

typedef struct vec_list {
    size_t n;
    uint32_t v[VEC_MOST];
} vec_list;

/* The row of operations that is being checked. */
static const agoqk_ops *vec_ops;

typedef struct vec_kind {
    const char *name;
    void (*check)(char **field);
    int fields, at_least;
} vec_kind;

static inline uint32_t vec_hex(const char *text) {
    char *end;
    const unsigned long x = strtoul(text, &end, 16);
    assert_true(end != text && *end == 0 && x <= UINT32_MAX);
    return (uint32_t)x;
}

static inline int vec_count(const char *text) {
    char *end;
    const long x = strtol(text, &end, 10);
    assert_true(end != text && *end == 0 && x >= 0 && x <= INT32_MAX);
    return (int)x;
}

/* A list into buffer `slot`; "-" is empty. */
static inline const vec_list *vec_parse(const char *text, int slot) {
    static vec_list lists[VEC_LISTS];
    vec_list *list = &lists[slot];
    list->n = 0;
    if (strcmp(text, "-") == 0) return list;
    for (char *end; *text; text = *end ? end + 1 : end) {
        assert_true(list->n < VEC_MOST);
        list->v[list->n++] = (uint32_t)strtoul(text, &end, 16);
        assert_true(end != text && (*end == ',' || *end == 0));
    }
    return list;
}

static inline const vec_list *vec_parse_n(const char *text, int slot, size_t n) {
    const vec_list *list = vec_parse(text, slot);
    assert_int_equal(list->n, n);
    return list;
}

/* "rn" gives NULL. */
static inline const agoq_key *vec_key(const char *text, agoq_key *key) {
    unsigned long long seed, tensor, step, microbatch, replica, offset;
    if (strcmp(text, "rn") == 0) return NULL;
    const int n =
        sscanf(text, "%llx:%llx:%llx:%llx:%llx:%llx", &seed, &tensor, &step, &microbatch, &replica, &offset);
    assert_int_equal(n, 6);
    *key = (agoq_key){seed, tensor, step, (uint32_t)microbatch, (uint32_t)replica, (int64_t)offset};
    return key;
}

static inline agoq_dtype vec_dtype(const char *text) {
    if (strcmp(text, "f32") == 0) return AGOQ_DTYPE_F32;
    if (strcmp(text, "bf16") == 0) return AGOQ_DTYPE_BF16;
    assert_string_equal(text, "f16");
    return AGOQ_DTYPE_F16;
}

static inline agoq_grad_format vec_grad_format(const char *text) {
    if (strcmp(text, "e4m3") == 0) return AGOQ_GRAD_E4M3;
    if (strcmp(text, "e5m2") == 0) return AGOQ_GRAD_E5M2;
    assert_string_equal(text, "int8");
    return AGOQ_GRAD_INT8;
}

static inline uint32_t vec_nonfinite(const vec_list *x) {
    uint32_t any = 0;
    for (size_t i = 0; i < x->n; i++) any |= (x->v[i] & AGOQK_INF_BITS) == AGOQK_INF_BITS;
    return any;
}

static inline int vec_split(char *line, char *field[VEC_FIELDS]) {
    int n = 0;
    for (char *word = strtok(line, " \n"); word; word = strtok(NULL, " \n")) {
        if (strcmp(word, "=") == 0) continue;
        assert_true(n < VEC_FIELDS);
        field[n++] = word;
    }
    return n;
}

static inline void vec_check_line(const char *at, char *line, const vec_kind *kinds, int n_kinds, int *seen) {
    char *field[VEC_FIELDS];
    const int n_fields = vec_split(line, field);
    int k = 0;
    while (k < n_kinds && strcmp(kinds[k].name, field[0])) k++;
    if (k == n_kinds) fail_msg("%s: unknown kind %s", at, field[0]);
    print_message("%s: %s\n", at, kinds[k].name); /* the last one printed failed */
    assert_int_equal(n_fields, kinds[k].fields);
    kinds[k].check(field);
    seen[k]++;
}

/* Every line of one file, at every level; kinds are those of this file. */
static inline void vec_check_file(const char *path, const vec_kind *kinds, int n_kinds) {
    char *line = NULL, at[128];
    size_t size = 0;
    for (int level = 0; (vec_ops = agoqk_cpu_level(level)); level++) {
        int seen[VEC_FIELDS] = {0};
        FILE *file = fopen(path, "r");
        if (!file) fail_msg("cannot open %s (tests run from the root of the repository)", path);
        for (int n = 1; getline(&line, &size, file) > 0; n++) {
            assert_non_null(strchr(line, '\n'));
            snprintf(at, sizeof at, "%s %s:%d", agoqk_cpu_level_name(level), path, n);
            if (line[0] != '#') vec_check_line(at, line, kinds, n_kinds, seen);
        }
        fclose(file);
        for (int k = 0; k < n_kinds; k++) {
            if (seen[k] < kinds[k].at_least)
                fail_msg("%s: only %d lines of %s", path, seen[k], kinds[k].name);
        }
    }
    free(line);
}

#endif
