/* What is kept from forward to backward, and how. One table of operations with three rows:
 *   BASELINE  no agoq call; keeps what a good fused 16-bit trainer keeps: norm inputs and outputs, Q, K, V,
 * O, gate, up and the product, as bf16 (or fp32 in the test-only mode), with the trainer's own arithmetic;
 *   IDENTITY  the agoq path at 16 bits with the trainer's own arithmetic: norm outputs and the product are
 * recomputed. Must match BASELINE bit for bit, which shows that recomputing from stored values equals
 * storing; AGOQ      fused agoq operations at the widths of the plan. Every kept tensor is an allocation of
 * its own, freed after its use in backward. */
#ifndef TRAINER_STORE_H
#define TRAINER_STORE_H

#include "agoq/agoq.h"
#include "trainer/alloc.h"
#include "trainer/dump.h"
#include "trainer/ops.h"

typedef enum store_kind { STORE_BASELINE, STORE_IDENTITY, STORE_AGOQ } store_kind;

/* A kept tensor; it carries its own shape and width. packed.data NULL: nothing is kept. */
typedef struct store_tensor {
    agoq_packed packed;
    int layer, role;
    int packed_by_agoq;
    size_t bytes16; /* counted bytes at 16 bits */
} store_tensor;

typedef struct store_norm {
    store_tensor in, out; /* out: BASELINE only */
} store_norm;

typedef struct store_mlp {
    store_tensor gate, up, product; /* product: BASELINE only */
} store_mlp;

struct store_ops;
typedef struct store {
    const struct store_ops *ops;
    alloc_stats *mem;
    agoq_session *session; /* NULL: widths come from bits[] (tests) and no ledger is kept */
    uint8_t bits[AGOQ_N_ROLES];
    int format4; /* AGOQ_FORMAT_* of tensors of 4 bits; INT4 unless it is set */
    int fp32;    /* BASELINE: keep floats */
    int round;   /* results of operations are bf16 values */
    int hold;    /* 1: store_drop keeps everything until store_free (an extra live micro-batch) */
    float eps;
    dump dump;                  /* while on: what is packed is also written to files */
    size_t live16, step_peak16; /* counted bytes at 16 bits of what is kept */
} store;

void store_init(store *s, store_kind kind, alloc_stats *mem, agoq_session *session, int fp32);

struct store_ops {
    const char *name;
    agoq_status (*keep)(store *s, int layer, int role, ops_mat x, store_tensor *t);
    agoq_status (*fetch)(store *s, const store_tensor *t, ops_mat x);
    /* y = norm(x), or with r: sum = round(x + r), y = norm(sum); keeps what backward needs. */
    agoq_status (*norm)(store *s, int layer, int role, ops_mat x, const ops_mat *r, const float *gamma,
                        ops_mat *sum, ops_mat y, store_norm *kept);
    /* y again: the input of the linear after the norm. work is scratch of its shape. */
    agoq_status (*norm_again)(store *s, const store_norm *kept, const float *gamma, ops_mat work, ops_mat y);
    /* dx, and dgamma added to. */
    agoq_status (*norm_bwd)(store *s, const store_norm *kept, const float *gamma, ops_mat dy, ops_mat work,
                            ops_mat dx, float *dgamma);
    agoq_status (*swiglu)(store *s, int layer, ops_mat gate, ops_mat up, ops_mat product, store_mlp *kept);
    /* product again, dgate and dup. work holds [gate | up]. */
    agoq_status (*swiglu_bwd)(store *s, const store_mlp *kept, ops_mat dproduct, ops_mat work,
                              ops_mat product, ops_mat dgate, ops_mat dup);
};

/* Memory that is kept as it is (log-sum-exp, token ids); NULL: none left. store_free_raw returns NULL, for
 * the pointer. */
void *store_raw(store *s, size_t bytes);
void *store_free_raw(store *s, void *p);

/* End of a tensor's use in backward: freed, unless s->hold. store_free frees in any case. Both are
 * idempotent. */
agoq_status store_drop(store *s, store_tensor *t);
agoq_status store_free(store *s, store_tensor *t);
void store_reset_peak(store *s);

#endif
