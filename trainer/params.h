/* The parameters of one rank: a list of weight tensors, fp32. Each has an id that is the same wherever it
 * lives in the pipeline: random bits and the hash of weights depend on it. */
#ifndef TRAINER_PARAMS_H
#define TRAINER_PARAMS_H

#include "agoq/status.h"
#include "trainer/alloc.h"
#include <stdint.h>

enum { PARAMS_NORMS, PARAMS_QKV, PARAMS_OUT, PARAMS_GU, PARAMS_DOWN, PARAMS_PER_LAYER = 8 };

typedef struct param {
    uint64_t id;
    int64_t rows, cols, n;
    int matrix; /* 0: gains of norms, whose gradients and optimizer state stay fp32 */
    float *w;
} param;

typedef struct params {
    param *list;
    int n, capacity;
    int64_t largest; /* elements of the largest matrix */
} params;

/* Appends; returns its index, -1: no memory. std 0: ones. */
int params_add(params *p, uint64_t id, int64_t rows, int64_t cols, float std, uint64_t seed,
               alloc_stats *mem);
void params_fini(params *p, alloc_stats *mem);
/* Hash of one parameter's bytes; sums over parameters do not depend on where they live. */
uint64_t params_hash(const param *p);

#endif
