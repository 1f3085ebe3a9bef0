/* Every operation of the codec layer as a call on one side of a case, host or device; what the bits of a
 * case's flags mean is in the calls. */
#ifndef TESTS_GPU_OPS_H
#define TESTS_GPU_OPS_H

#include "tests/gpu/fill.h"

static agoq_norm norm_of(const gcase *c, uint8_t *base) {
    agoq_norm n = {flag(c, 0) ? AGOQ_NORM_LAYER : AGOQ_NORM_RMS,
                   weight_dtype(c),
                   flag(c, 2) ? NULL : base + c->weight,
                   flag(c, 3) ? base + c->bias : NULL,
                   1e-5f,
                   flag(c, 4),
                   flag(c, 5)};
    return n;
}

/* With a residual, its sum may take the place of either; dx may take that of dy. */
static agoq_status run_norm(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_norm norm = norm_of(c, base);
    const agoq_view x = view(c, base, 0), r = view(c, base, 1), dy = view(c, base, 2);
    agoq_view sum = flag(c, 8) ? view(c, base, flag(c, 9)) : view(c, base, 3), y = view(c, base, 4);
    agoq_view dx = flag(c, 10) ? dy : y;
    agoq_packed in = packed(c, base, 0), out = packed(c, base, 2);
    if (o == OP_norm_fwd_pack)
        return agoq_norm_fwd_pack(e, &x, flag(c, 6) ? &r : NULL, &norm, flag(c, 6) ? &sum : NULL, &y, &out);
    if (o == OP_norm_fwd_packed) return agoq_norm_fwd_packed(e, &in, &norm, &y);
    return agoq_norm_bwd_packed(e, &in, &norm, &dy, &dx, flag(c, 6) ? NULL : floats_at(base, c->dweight),
                                flag(c, 7) ? floats_at(base, c->dbias) : NULL);
}

/* Rows [0, a), [a, b), [b, rows): with flag 1, the second part is left alone. */
static agoq_status run_rows(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_key key = key_of(c);
    const int64_t part = (c->rows / 3 + 7) / 8 * 8;
    agoq_packed in = packed(c, base, 0), out = packed(c, base, 2);
    agoq_status s = AGOQ_OK;
    for (int i = 0; i < 3 && s == AGOQ_OK; i++) {
        const int64_t first = i * part < c->rows ? i * part : c->rows / 8 * 8;
        const int64_t left = c->rows - first;
        if (i == 1 && flag(c, 1)) continue;
        agoq_view v = view(c, base, o == OP_pack_rows ? 0 : 3);
        v.data = (uint8_t *)v.data + (size_t)(first * v.row_stride) * elem(c->dtype);
        v.rows = i < 2 && left > part ? part : left;
        s = o == OP_pack_rows ? agoq_pack_rows(e, &v, first, flag(c, 0) ? &key : NULL, &out)
                              : agoq_unpack_rows(e, &in, first, &v);
    }
    return s;
}

/* Heads of a size that divides the columns. */
static agoq_status run_rope(const gcase *c, const agoq_exec *e, uint8_t *base) {
    static const int sizes[] = {128, 64, 96, 80, 32, 10, 4, 2};
    agoq_rope rope = {floats_at(base, c->table),
                      floats_at(base, c->table) + 16 * (c->cols + 2),
                      16,
                      flag(c, 0) ? (const int32_t *)(void *)(base + c->positions) : NULL,
                      0,
                      0,
                      flag(c, 1)};
    rope.head_dim = (int32_t)(c->cols > 0 && c->cols < 512 ? c->cols : 1);
    for (int i = 7; i >= 0; i--)
        if (c->cols % sizes[i] == 0 && (flag(c, 2) || i < 4 || rope.head_dim == 1)) rope.head_dim = sizes[i];
    rope.rotary = flag(c, 3) ? rope.head_dim / 4 * 2 : rope.head_dim / 2 * 2;
    const agoq_view x = view(c, base, 0);
    agoq_view y = flag(c, 6) ? view(c, base, 0) : view(c, base, 3);
    agoq_packed out = packed(c, base, 2);
    return agoq_rope_apply(e, &x, &rope, flag(c, 4), &y, flag(c, 5) ? &out : NULL);
}

static agoq_status run_swiglu(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_view g = view(c, base, 0), u = view(c, base, 1), d = view(c, base, 2);
    agoq_view out[3] = {view(c, base, 3), view(c, base, 4), view(c, base, 5)};
    const agoq_packed pg = packed(c, base, 0), pu = packed(c, base, 1);
    agoq_packed qg = packed(c, base, 2), qu = packed(c, base, 3);
    if (o == OP_swiglu_fwd_pack) return agoq_swiglu_fwd_pack(e, &g, &u, flag(c, 4), &out[0], &qg, &qu);
    return agoq_swiglu_bwd_packed(e, &pg, &pu, flag(c, 4), &d, flag(c, 0) ? NULL : &out[0], &out[1], &out[2]);
}

/* Gradient 1 has a NaN in special cases. */
static agoq_status run_grad(op o, const gcase *c, const agoq_exec *e, uint8_t *base) {
    const int64_t n = c->rows * c->cols, skip = n > 300 && !flag(c, 5) ? 77 : 0;
    agoq_grad in[N_GRADS] = {grad(c, base, 0), grad(c, base, 1), grad(c, base, 2)}, g = grad(c, base, 3);
    const agoq_key key = key_of(c);
    const void *x = base + c->view[0]; /* dense where there is no padding; elsewhere what lies there */
    agoq_grad_term terms[N_TERMS];
    switch (o) {
    case OP_grad_zero:
        return agoq_grad_zero(e, &g);
    case OP_grad_accumulate:
        return agoq_grad_accumulate(e, x, c->dtype, flag(c, 0) ? &key : NULL, &g);
    case OP_grad_accumulate_list: /* pieces of one gradient, more than one launch holds, some of them empty */
        for (int i = 0; i < N_TERMS; i++) {
            const int64_t blocks = agoq_grad_blocks(n), from = blocks * i / N_TERMS,
                          to = blocks * (i + 1) / N_TERMS;
            const int64_t end = to * 128 < n ? to * 128 : n;
            terms[i].grad = (agoq_grad){g.codes + from * 128, g.scales + from, end - from * 128, c->format};
            terms[i].x = (const uint8_t *)x + (size_t)(from * 128) * elem(c->dtype);
            terms[i].key = key;
            terms[i].key.tensor = (uint64_t)i;
        }
        return agoq_grad_accumulate_list(e, terms, N_TERMS, c->dtype, flag(c, 0));
    case OP_grad_read:
        return agoq_grad_read(e, &in[flag(c, 6)], skip, n - skip, 0.25f, floats_at(base, c->flat));
    case OP_grad_sqnorm:
        return agoq_grad_sqnorm(e, &in[flag(c, 6)], (double *)(void *)(base + c->sqnorm));
    case OP_grad_check_finite:
        return agoq_grad_check_finite(e, &in[1], (uint32_t *)(void *)(base + c->counter) + 1);
    default:
        return agoq_grad_reduce(e, in, 1 + (int)(c->flags % 3), 1.0f / 3.0f,
                                flag(c, 2) ? flag(c, 3) ? &in[0] : &g : NULL,
                                flag(c, 2) ? NULL : floats_at(base, c->flat));
    }
}

static agoq_status run_adam(const gcase *c, const agoq_exec *e, uint8_t *base) {
    const agoq_adam_params adam = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 12, 0.5f};
    const agoq_grad g = grad(c, base, 1);
    const agoq_key key = key_of(c);
    const agoq_adam_source source = {flag(c, 0) ? &g : NULL, flag(c, 0) ? NULL : base + c->view[0], c->dtype};
    const agoq_adam_target target = {flag(c, 1) ? NULL : floats_at(base, c->master),
                                     flag(c, 1) || flag(c, 2) ? base + c->bf16 : NULL,
                                     flag(c, 3) ? &key : NULL};
    agoq_adam8 state = {base + c->m, base + c->v, floats_at(base, c->m_top), floats_at(base, c->v_top),
                        c->rows * c->cols};
    if (c->o == OP_adam8_init) return agoq_adam8_init(e, &state);
    return agoq_adam8_step(e, &adam, &source, &target, &state);
}

static agoq_status run_op(const gcase *c, const agoq_exec *e, uint8_t *base) {
    const op o = c->o;
    const agoq_view x = view(c, base, 0);
    agoq_view y = view(c, base, 3);
    agoq_packed in = packed(c, base, 0), out = packed(c, base, 2);
    const agoq_key key = key_of(c);
    if (o == OP_pack) return agoq_pack(e, &x, flag(c, 0) ? &key : NULL, &out);
    if (o == OP_unpack) return agoq_unpack(e, &in, &y);
    if (o <= OP_unpack_rows) return run_rows(o, c, e, base);
    if (o <= OP_norm_bwd_packed) return run_norm(o, c, e, base);
    if (o == OP_rope) return run_rope(c, e, base);
    if (o <= OP_swiglu_bwd_packed) return run_swiglu(o, c, e, base);
    if (o <= OP_grad_reduce) return run_grad(o, c, e, base);
    return run_adam(c, e, base);
}

/* 1: both sides returned the same status and, if it is OK, the same bytes. Else detail says what. */
static int case_agree(op o, gcase *c, arena *a, char detail[256]) {
    field list[MOST_FIELDS], *f = list;
    case_lay_out(o, c, a);
    case_fill(c, a);
    arena_upload(a);
    const agoq_exec host = arena_exec(a, 0, c->counter), device = arena_exec(a, 1, c->counter);
    const agoq_status want = run_op(c, &host, a->host), got = run_op(c, &device, a->device);
    const int64_t at = want == got ? arena_compare(a) : -2;
    if (at == -1) return 1;
    const int n = case_fields(c, list);
    for (int i = 0; i < n && at >= 0; i++)
        if (list[i].at <= (size_t)at) f = list + i;
    snprintf(detail, 256,
             "%s %lld x %lld pad %lld skew %d dtype %d bits %d flags %x special %d extreme %d format %d: "
             "status %s, %s%s, byte %lld of %s: host %02x device %02x",
             op_names[o], (long long)c->rows, (long long)c->cols, (long long)c->pad, c->skew, (int)c->dtype,
             c->bits, c->flags, c->special, c->extreme, (int)c->format, agoq_status_name(want),
             agoq_status_name(got), got ? agoq_last_error() : "",
             (long long)(at < 0 ? at : at - (int64_t)f->at), at < 0 ? "-" : f->name, at < 0 ? 0 : a->host[at],
             at < 0 ? 0 : a->back[at]);
    return 0;
}

#endif
