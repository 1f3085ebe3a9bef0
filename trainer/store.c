/* The three save-and-restore paths of store.h. The trade-off: IDENTITY decodes a norm's input and normalises
 * again where BASELINE reads the stored output: slower, and the proof that the packed path loses nothing but
 * bits. */
#include "trainer/store.h"

#include "trainer/try.h"

static agoq_view view_of(ops_mat m) {
    return (agoq_view){m.p, AGOQ_DTYPE_F32, m.rows, m.cols, m.ld};
}

static void count16(store *s, size_t bytes) {
    s->live16 += bytes;
    if (s->live16 > s->step_peak16) s->step_peak16 = s->live16;
}

void *store_raw(store *s, size_t bytes) {
    void *p = alloc_new(s->mem, ALLOC_SAVED, bytes);
    if (p) count16(s, alloc_rounded(bytes));
    return p;
}

void *store_free_raw(store *s, void *p) {
    const size_t before = s->mem->current[ALLOC_SAVED];
    alloc_free(s->mem, p);
    s->live16 -= before - s->mem->current[ALLOC_SAVED];
    return NULL;
}

agoq_status store_free(store *s, store_tensor *t) {
    if (!t->packed.data) return AGOQ_OK;
    agoq_status status = AGOQ_OK;
    if (t->packed_by_agoq && s->session)
        status = agoq_session_released(s->session, t->layer, t->role, &t->packed);
    alloc_free(s->mem, t->packed.data);
    s->live16 -= t->bytes16;
    t->packed.data = NULL;
    return status;
}

agoq_status store_drop(store *s, store_tensor *t) {
    return s->hold ? AGOQ_OK : store_free(s, t);
}

void store_reset_peak(store *s) {
    s->step_peak16 = s->live16;
}

/* ---- BASELINE ---- */

static agoq_status plain_keep(store *s, int layer, int role, ops_mat x, store_tensor *t) {
    *t = (store_tensor){.layer = layer, .role = role};
    t->packed.layout.rows = x.rows;
    t->packed.layout.cols = x.cols;
    t->packed.layout.bits = s->fp32 ? 32 : 16;
    t->packed.layout.bytes = (size_t)(x.rows * x.cols) * (s->fp32 ? 4 : 2);
    t->bytes16 = alloc_rounded((size_t)(x.rows * x.cols) * 2);
    t->packed.data = alloc_new(s->mem, ALLOC_SAVED, t->packed.layout.bytes);
    if (!t->packed.data) return AGOQ_E_NOMEM;
    count16(s, t->bytes16);
    if (!s->fp32) {
        ops_to_bf16(x, t->packed.data);
        return AGOQ_OK;
    }
    for (int64_t r = 0; r < x.rows; r++)
        memcpy((float *)t->packed.data + r * x.cols, x.p + r * x.ld, (size_t)x.cols * 4);
    return AGOQ_OK;
}

static agoq_status plain_fetch(store *s, const store_tensor *t, ops_mat x) {
    if (!s->fp32) {
        ops_from_bf16(t->packed.data, x);
        return AGOQ_OK;
    }
    for (int64_t r = 0; r < x.rows; r++)
        memcpy(x.p + r * x.ld, (const float *)t->packed.data + r * x.cols, (size_t)x.cols * 4);
    return AGOQ_OK;
}

static agoq_status plain_norm(store *s, int layer, int role, ops_mat x, const ops_mat *r, const float *gamma,
                              ops_mat *sum, ops_mat y, store_norm *kept) {
    ops_rmsnorm(x, r, gamma, s->eps, s->round, sum, y);
    TRY(plain_keep(s, layer, role, r ? *sum : x, &kept->in));
    return plain_keep(s, layer, role, y, &kept->out);
}

static agoq_status plain_norm_again(store *s, const store_norm *kept, const float *gamma, ops_mat work,
                                    ops_mat y) {
    (void)gamma, (void)work;
    return plain_fetch(s, &kept->out, y);
}

/* Of BASELINE and IDENTITY: fetch what was kept, then the trainer's own arithmetic. */
static agoq_status own_norm_bwd(store *s, const store_norm *kept, const float *gamma, ops_mat dy,
                                ops_mat work, ops_mat dx, float *dgamma) {
    TRY(s->ops->fetch(s, &kept->in, work));
    ops_rmsnorm_bwd(work, gamma, s->eps, s->round, dy, dx, dgamma);
    return AGOQ_OK;
}

static agoq_status plain_swiglu(store *s, int layer, ops_mat gate, ops_mat up, ops_mat product,
                                store_mlp *kept) {
    ops_swiglu(gate, up, s->round, product);
    TRY(plain_keep(s, layer, AGOQ_ROLE_MLP_GATE_UP, gate, &kept->gate));
    TRY(plain_keep(s, layer, AGOQ_ROLE_MLP_GATE_UP, up, &kept->up));
    return plain_keep(s, layer, AGOQ_ROLE_OTHER, product, &kept->product);
}

/* product: again, or {0}. */
static agoq_status own_swiglu_bwd(store *s, const store_mlp *kept, ops_mat dproduct, ops_mat work,
                                  ops_mat product, ops_mat dgate, ops_mat dup) {
    const ops_mat gate = ops_columns(work, 0, dgate.cols), up = ops_columns(work, dgate.cols, dgate.cols);
    TRY(s->ops->fetch(s, &kept->gate, gate));
    TRY(s->ops->fetch(s, &kept->up, up));
    ops_swiglu_bwd(gate, up, s->round, dproduct, product, dgate, dup);
    return AGOQ_OK;
}

static agoq_status plain_swiglu_bwd(store *s, const store_mlp *kept, ops_mat dproduct, ops_mat work,
                                    ops_mat product, ops_mat dgate, ops_mat dup) {
    TRY(plain_fetch(s, &kept->product, product));
    return own_swiglu_bwd(s, kept, dproduct, work, (ops_mat){0}, dgate, dup);
}

/* ---- agoq, at 16 bits with the trainer's own arithmetic ---- */

/* Allocates a packed tensor at the width of the running step. */
static agoq_status packed_new(store *s, int layer, int role, int64_t rows, int64_t cols, store_tensor *t) {
    const int bits = s->session ? agoq_session_bits(s->session, layer, role) : s->bits[role];
    agoq_layout at16;
    *t = (store_tensor){.layer = layer, .role = role, .packed_by_agoq = 1};
    TRY(agoq_layout_make(16, rows, cols, &at16));
    TRY(agoq_layout_make(bits == 4 ? s->format4 : bits, rows, cols, &t->packed.layout));
    t->packed.data = alloc_new(s->mem, ALLOC_SAVED, t->packed.layout.bytes);
    if (!t->packed.data && s->session) { /* under the guard widths are smaller, from this tensor on */
        TRY(agoq_session_pressure(s->session, "a saved activation could not be allocated"));
        const int least = agoq_session_bits(s->session, layer, role);
        TRY(agoq_layout_make(least == 4 ? s->format4 : least, rows, cols, &t->packed.layout));
        t->packed.data = alloc_new(s->mem, ALLOC_SAVED, t->packed.layout.bytes);
    }
    if (!t->packed.data) return AGOQ_E_NOMEM;
    t->bytes16 = alloc_rounded(at16.bytes);
    count16(s, t->bytes16);
    return AGOQ_OK;
}

static agoq_status packed_saved(store *s, store_tensor *t) {
    return s->session ? agoq_session_saved(s->session, t->layer, t->role, &t->packed) : AGOQ_OK;
}

static agoq_status packed_keep(store *s, int layer, int role, ops_mat x, store_tensor *t) {
    const agoq_view v = view_of(x);
    TRY(dump_tensor(&s->dump, layer, role, x));
    TRY(packed_new(s, layer, role, x.rows, x.cols, t));
    TRY(agoq_pack(NULL, &v, NULL, &t->packed));
    return packed_saved(s, t);
}

static agoq_status packed_fetch(store *s, const store_tensor *t, ops_mat x) {
    (void)s;
    agoq_view v = view_of(x);
    return agoq_unpack(NULL, &t->packed, &v);
}

static agoq_status identity_norm(store *s, int layer, int role, ops_mat x, const ops_mat *r,
                                 const float *gamma, ops_mat *sum, ops_mat y, store_norm *kept) {
    ops_rmsnorm(x, r, gamma, s->eps, s->round, sum, y);
    return packed_keep(s, layer, role, r ? *sum : x, &kept->in);
}

static agoq_status identity_norm_again(store *s, const store_norm *kept, const float *gamma, ops_mat work,
                                       ops_mat y) {
    TRY(packed_fetch(s, &kept->in, work));
    ops_rmsnorm(work, NULL, gamma, s->eps, s->round, NULL, y);
    return AGOQ_OK;
}

static agoq_status identity_swiglu(store *s, int layer, ops_mat gate, ops_mat up, ops_mat product,
                                   store_mlp *kept) {
    ops_swiglu(gate, up, s->round, product);
    TRY(packed_keep(s, layer, AGOQ_ROLE_MLP_GATE_UP, gate, &kept->gate));
    return packed_keep(s, layer, AGOQ_ROLE_MLP_GATE_UP, up, &kept->up);
}

/* ---- AGOQ: fused ---- */

static agoq_norm norm_of(const store *s, const float *gamma) {
    return (agoq_norm){.kind = AGOQ_NORM_RMS, .weight = gamma, .eps = s->eps, .round_bf16 = s->round};
}

static agoq_status fused_norm(store *s, int layer, int role, ops_mat x, const ops_mat *r, const float *gamma,
                              ops_mat *sum, ops_mat y, store_norm *kept) {
    const agoq_view vx = view_of(x), vr = view_of(r ? *r : x);
    agoq_view vy = view_of(y), vsum = view_of(sum ? *sum : y);
    TRY(packed_new(s, layer, role, x.rows, x.cols, &kept->in));
    const agoq_norm norm = norm_of(s, gamma);
    TRY(agoq_norm_fwd_pack(NULL, &vx, r ? &vr : NULL, &norm, r ? &vsum : NULL, &vy, &kept->in.packed));
    TRY(dump_tensor(&s->dump, layer, role, r ? *sum : x));
    return packed_saved(s, &kept->in);
}

static agoq_status fused_norm_again(store *s, const store_norm *kept, const float *gamma, ops_mat work,
                                    ops_mat y) {
    (void)work;
    agoq_view vy = view_of(y);
    const agoq_norm norm = norm_of(s, gamma);
    return agoq_norm_fwd_packed(NULL, &kept->in.packed, &norm, &vy);
}

static agoq_status fused_norm_bwd(store *s, const store_norm *kept, const float *gamma, ops_mat dy,
                                  ops_mat work, ops_mat dx, float *dgamma) {
    (void)work;
    const agoq_view vdy = view_of(dy);
    agoq_view vdx = view_of(dx);
    const agoq_norm norm = norm_of(s, gamma);
    return agoq_norm_bwd_packed(NULL, &kept->in.packed, &norm, &vdy, &vdx, dgamma, NULL);
}

static agoq_status fused_swiglu(store *s, int layer, ops_mat gate, ops_mat up, ops_mat product,
                                store_mlp *kept) {
    const agoq_view vg = view_of(gate), vu = view_of(up);
    agoq_view vp = view_of(product);
    TRY(packed_new(s, layer, AGOQ_ROLE_MLP_GATE_UP, gate.rows, gate.cols, &kept->gate));
    TRY(packed_new(s, layer, AGOQ_ROLE_MLP_GATE_UP, up.rows, up.cols, &kept->up));
    TRY(agoq_swiglu_fwd_pack(NULL, &vg, &vu, s->round, &vp, &kept->gate.packed, &kept->up.packed));
    TRY(dump_tensor(&s->dump, layer, AGOQ_ROLE_MLP_GATE_UP, gate));
    TRY(dump_tensor(&s->dump, layer, AGOQ_ROLE_MLP_GATE_UP, up));
    TRY(packed_saved(s, &kept->gate));
    return packed_saved(s, &kept->up);
}

static agoq_status fused_swiglu_bwd(store *s, const store_mlp *kept, ops_mat dproduct, ops_mat work,
                                    ops_mat product, ops_mat dgate, ops_mat dup) {
    (void)work;
    const agoq_view vd = view_of(dproduct);
    agoq_view vp = view_of(product), vdg = view_of(dgate), vdu = view_of(dup);
    return agoq_swiglu_bwd_packed(NULL, &kept->gate.packed, &kept->up.packed, s->round, &vd, &vp, &vdg, &vdu);
}

static const struct store_ops table[] = {
    [STORE_BASELINE] = {"baseline", plain_keep, plain_fetch, plain_norm, plain_norm_again, own_norm_bwd,
                        plain_swiglu, plain_swiglu_bwd},
    [STORE_IDENTITY] = {"identity", packed_keep, packed_fetch, identity_norm, identity_norm_again,
                        own_norm_bwd, identity_swiglu, own_swiglu_bwd},
    [STORE_AGOQ] = {"agoq", packed_keep, packed_fetch, fused_norm, fused_norm_again, fused_norm_bwd,
                    fused_swiglu, fused_swiglu_bwd},
};

void store_init(store *s, store_kind kind, alloc_stats *mem, agoq_session *session, int fp32) {
    *s = (store){
        .ops = &table[kind], .mem = mem, .session = session, .fp32 = fp32, .round = !fp32, .eps = 1e-5f};
    s->format4 = AGOQ_FORMAT_INT4;
    memset(s->bits, 16, sizeof s->bits);
}
