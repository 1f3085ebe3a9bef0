/* The model of one pipeline rank: parameters, chunks of layers, workspace, and forward and backward of one
 * micro-batch through one chunk. Knows nothing of MPI, schedules or optimizers, so that tests run it alone.
 *
 * Layers are spread over pp x v virtual stages (virtual stage c * pp + s is chunk c of stage s): each has
 * layers / (pp x v), and the first layers % (pp x v) of them one more. The first holds the embedding, the
 * last the final norm, the head and the loss. Weights start from (seed, tensor id), wherever they live. */
#ifndef TRAINER_MODEL_H
#define TRAINER_MODEL_H

#include "trainer/alloc.h"
#include "trainer/attention.h"
#include "trainer/grads.h"
#include "trainer/options.h"
#include "trainer/params.h"
#include "trainer/store.h"

typedef struct model_layer {
    int index;                     /* in the whole model */
    int norms, qkv, out, gu, down; /* parameters; norms = [attention gamma | mlp gamma] */
} model_layer;

typedef struct model_chunk {
    int first_layer, n_layers, has_embed, has_head;
    int embed, final_norm, head; /* parameters, or -1 */
    model_layer *layers;
} model_chunk;

/* What one micro-batch keeps of one layer. */
typedef struct model_layer_kept {
    store_norm attn_norm, mlp_norm;
    store_tensor qkv, o;
    store_mlp mlp;
    float *lse;
} model_layer_kept;

typedef struct model_kept {
    uint8_t *ids, *targets;
    store_norm final_norm;
    model_layer_kept *layers; /* [n_layers of the chunk] */
} model_kept;

/* Buffers of operations in flight, allocated once. `x` is the stream: input and output of a chunk, in both
 * directions. */
typedef struct model_work {
    ops_mat x, sum, n, r, dn, o, qkv, dqkv, gu, dgu, prod, dprod, logits;
    float *attention, *rope;
} model_work;

typedef struct model {
    options_shape shape;
    int pp, stage, n_chunks, tokens, round;
    params params;
    model_chunk *chunks;
    model_work work;
    attention_shape attention;
    alloc_stats *mem;
} model;

/* The layers of a virtual stage. */
void model_spread(int layers, int virtual_stages, int virtual_stage, int *first, int *count);
agoq_status model_init(model *m, const options_shape *shape, int pp, int stage, int n_chunks, uint64_t seed,
                       int round, alloc_stats *mem);
void model_fini(model *m);

/* Zeroed room for what micro-batches of a chunk keep. */
model_kept *model_kept_new(const model *m, int chunk);
void model_kept_delete(model_kept *kept);

/* The stream is in work.x (a first chunk makes it from ids, [tokens]); a last chunk adds the summed loss of
 * targets. */
agoq_status model_forward(model *m, int chunk, const uint8_t *ids, const uint8_t *targets, store *s,
                          model_kept *kept, double *loss);
/* The stream's gradient is in work.x (a last chunk makes it: scale * d(summed loss)). Frees what was kept, or
 * with s->hold keeps it until model_release. */
agoq_status model_backward(model *m, int chunk, float scale, store *s, model_kept *kept, grads *g);
agoq_status model_release(model *m, int chunk, store *s, model_kept *kept);
/* Forward alone: what it kept is freed at once. */
agoq_status model_loss(model *m, int chunk, const uint8_t *ids, const uint8_t *targets, store *s,
                       model_kept *kept, double *loss);

/* In layer.c. */
agoq_status layer_forward(model *m, const model_layer *l, store *s, model_layer_kept *kept);
agoq_status layer_backward(model *m, const model_layer *l, store *s, model_layer_kept *kept, grads *g);
agoq_status layer_release(store *s, model_layer_kept *kept);

#endif
