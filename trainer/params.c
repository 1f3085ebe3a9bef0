/* List of weight tensors. Small and dull on purpose: gradients, optimizer, checkpoints and the hash of
 * weights all walk this one list in the same order, so none of them knows the model. */
#include "trainer/params.h"

#include "trainer/ops.h"
#include <stdlib.h>

int params_add(params *p, uint64_t id, int64_t rows, int64_t cols, float std, uint64_t seed,
               alloc_stats *mem) {
    if (p->n == p->capacity) {
        const int capacity = p->capacity ? p->capacity * 2 : 32;
        param *list = realloc(p->list, (size_t)capacity * sizeof *list);
        if (!list) return -1;
        p->list = list;
        p->capacity = capacity;
    }
    if (rows > INT32_MAX / cols) return -1; /* MPI and BLAS count in int */
    param t = {.id = id, .rows = rows, .cols = cols, .n = rows * cols, .matrix = std > 0};
    t.w = alloc_zero(mem, ALLOC_WEIGHTS, (size_t)t.n * sizeof(float));
    if (!t.w) return -1;
    if (t.matrix) ops_normal(seed, id, std, t.w, t.n);
    for (int64_t i = 0; i < t.n && !t.matrix; i++) t.w[i] = 1.0f;
    if (t.matrix && t.n > p->largest) p->largest = t.n;
    p->list[p->n] = t;
    return p->n++;
}

void params_fini(params *p, alloc_stats *mem) {
    for (int i = 0; i < p->n; i++) alloc_free(mem, p->list[i].w);
    free(p->list);
    *p = (params){0};
}

uint64_t params_hash(const param *p) {
    const unsigned char *bytes = (const unsigned char *)p->w;
    uint64_t h = 0xcbf29ce484222325u ^ p->id * 0x9e3779b97f4a7c15u; /* FNV-1a */
    for (size_t i = 0; i < (size_t)p->n * sizeof(float); i++) h = (h ^ bytes[i]) * 0x100000001b3u;
    return h;
}
