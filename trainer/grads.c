/* Main gradients: see grads.h. A first micro-batch writes (beta 0) instead of clearing and adding. */
#include "trainer/grads.h"

#include <stdlib.h>
#include <string.h>

agoq_status grads_init(grads *g, const params *p, int fp8, uint64_t seed, uint32_t replica,
                       alloc_stats *mem) {
    *g = (grads){.fp8 = fp8, .params = p, .mem = mem};
    g->key.seed = seed;
    g->key.replica = replica;
    g->list = calloc((size_t)p->n, sizeof *g->list);
    g->started = calloc((size_t)p->n, 1);
    g->scratch = alloc_zero(mem, ALLOC_GRADIENT_WORK, (size_t)p->largest * sizeof(float));
    if (!g->list || !g->started || !g->scratch) return AGOQ_E_NOMEM;
    for (int i = 0; i < p->n; i++) {
        const param *t = &p->list[i];
        grads_tensor *to = &g->list[i];
        if (!fp8 || !t->matrix) {
            to->g32 = alloc_zero(mem, ALLOC_GRADIENTS_FP32, (size_t)t->n * sizeof(float));
            if (!to->g32) return AGOQ_E_NOMEM;
            continue;
        }
        to->g8.n = t->n;
        to->g8.codes = alloc_zero(mem, ALLOC_GRADIENTS, (size_t)t->n);
        to->g8.scales = alloc_zero(mem, ALLOC_GRADIENTS, (size_t)agoq_grad_blocks(t->n) * sizeof(float));
        if (!to->g8.codes || !to->g8.scales) return AGOQ_E_NOMEM;
    }
    return AGOQ_OK;
}

void grads_fini(grads *g) {
    for (int i = 0; g->list && i < g->params->n; i++) {
        alloc_free(g->mem, g->list[i].g32);
        alloc_free(g->mem, g->list[i].g8.codes);
        alloc_free(g->mem, g->list[i].g8.scales);
    }
    alloc_free(g->mem, g->scratch);
    free(g->list);
    free(g->started);
    *g = (grads){0};
}

agoq_status grads_start(grads *g, int64_t step) {
    g->key.step = (uint64_t)step;
    memset(g->started, 0, (size_t)g->params->n);
    for (int i = 0; i < g->params->n; i++) {
        const param *t = &g->params->list[i];
        if (!t->matrix)
            memset(g->list[i].g32, 0, (size_t)t->n * sizeof(float));
        else if (g->fp8) {
            const agoq_status status = agoq_grad_zero(NULL, &g->list[i].g8);
            if (status != AGOQ_OK) return status;
        }
    }
    return AGOQ_OK;
}

void grads_microbatch(grads *g, int microbatch) {
    g->key.microbatch = (uint32_t)microbatch;
}

float *grads_target(grads *g, int index, float *beta) {
    if (!g->params->list[index].matrix) {
        *beta = 1.0f;
        return g->list[index].g32;
    }
    *beta = !g->fp8 && g->started[index] ? 1.0f : 0.0f;
    g->started[index] = 1;
    return g->fp8 ? g->scratch : g->list[index].g32;
}

agoq_status grads_done(grads *g, int index) {
    if (!g->fp8 || !g->params->list[index].matrix) return AGOQ_OK;
    agoq_key key = g->key;
    key.tensor = g->params->list[index].id;
    return agoq_grad_accumulate(NULL, g->scratch, AGOQ_DTYPE_F32, &key, &g->list[index].g8);
}

size_t grads_bytes(const grads *g) {
    return alloc_gradients(g->mem);
}
