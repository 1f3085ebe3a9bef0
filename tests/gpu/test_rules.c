/* What every CUDA operation promises beside its bytes: it only enqueues on the caller's stream (a graph
 * capture would fail on anything else), replays to the same bytes, works on tensors above 2^31 elements
 * (large.h), says what it launched, and answers every combination of dtypes, widths and formats with a result
 * or with E_UNSUPPORTED and no work on the stream. */
#include "tests/gpu/large.h"

static gcase usual(uint64_t seed, agoq_dtype dtype, int bits, uint32_t flags) {
    gcase c = {.rows = 70, .cols = 1096, .dtype = dtype, .bits = bits, .flags = flags, .seed = seed};
    return c;
}

/* Captured, then replayed twice from the same inputs: the bytes of the CPU both times. */
static void captures(arena *a) {
    for (int o = 0; o < N_OPS; o++) {
        gcase c = usual(11, AGOQ_DTYPE_BF16, 5, 0x2B);
        char name[64], detail[128] = "";
        int right = 1;
        case_lay_out((op)o, &c, a);
        case_fill(&c, a);
        const agoq_exec host = arena_exec(a, 0, c.counter), device = arena_exec(a, 1, c.counter);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        gpu_must(cudaStreamBeginCapture(a->stream, cudaStreamCaptureModeGlobal), "capture");
        const agoq_status status = run_op(&c, &device, a->device);
        const cudaError_t error = cudaStreamEndCapture(a->stream, &graph);
        if (status != AGOQ_OK || error != cudaSuccess) {
            snprintf(detail, sizeof detail, "%s, %s", agoq_status_name(status), cudaGetErrorString(error));
            right = 0;
        } else {
            gpu_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
            uint8_t *before = malloc(a->used);
            if (!before) exit(1);
            memcpy(before, a->host, a->used);
            right = run_op(&c, &host, a->host) == AGOQ_OK;
            for (int turn = 0; turn < 2 && right; turn++) {
                gpu_must(cudaMemcpyAsync(a->device, before, a->used, cudaMemcpyHostToDevice, a->stream),
                         "upload");
                gpu_must(cudaGraphLaunch(exec, a->stream), "graph");
                const int64_t at = arena_compare(a);
                right = at == -1;
                if (!right)
                    snprintf(detail, sizeof detail, "replay %d differs at byte %lld", turn, (long long)at);
            }
            free(before);
            gpu_must(cudaGraphExecDestroy(exec), "graph");
            gpu_must(cudaGraphDestroy(graph), "graph");
        }
        snprintf(name, sizeof name, "capture_%s", op_names[o]);
        gpu_check(right, name, detail);
    }
}

/* ---- every combination: a result, or a refusal that leaves the stream alone ---- */

typedef struct tally {
    int n, supported, right;
    char detail[192];
} tally;

static void ask(arena *a) {
    gpu_must(cudaStreamBeginCapture(a->stream, cudaStreamCaptureModeRelaxed), "capture");
}

/* The call since ask() gave `want`, and what it put on the stream is nothing unless that is OK, and then runs
 * without an error. */
static void answered(tally *t, arena *a, agoq_status want, agoq_status got, const char *what) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    size_t nodes = 0;
    gpu_must(cudaStreamEndCapture(a->stream, &graph), "capture");
    gpu_must(cudaGraphGetNodes(graph, NULL, &nodes), "nodes");
    if (nodes > 0) {
        gpu_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
        gpu_must(cudaGraphLaunch(exec, a->stream), what);
        gpu_must(cudaStreamSynchronize(a->stream), what);
        gpu_must(cudaGraphExecDestroy(exec), "graph");
    }
    gpu_must(cudaGraphDestroy(graph), "graph");
    t->n++, t->supported += got == AGOQ_OK;
    if (got == want && (nodes > 0) == (got == AGOQ_OK)) return;
    t->right = 0;
    snprintf(t->detail, sizeof t->detail, "%s: %s, not %s, %zu nodes", what, agoq_status_name(got),
             agoq_status_name(want), nodes);
}

static void tally_close(const tally *t, const char *of) {
    char name[96];
    snprintf(name, sizeof name, "product of %s (%d combinations, %d supported)", of, t->n, t->supported);
    gpu_check(t->right && t->supported > 0, name, t->detail);
}

/* Two dtypes of views, two widths, three types of weight. */
static void ask_activations(tally *t, arena *a, const gcase *c, int i) {
    const op o = c->o;
    const agoq_dtype d0 = (agoq_dtype)(i % 3), d1 = (agoq_dtype)(i / 3 % 3), dw = (agoq_dtype)(i / 9 % 3);
    const int w0 = agoq_format_at(i / 27 % AGOQ_N_FORMATS)->number,
              w1 = agoq_format_at(i / 27 / AGOQ_N_FORMATS)->number;
    const agoq_exec e = arena_exec(a, 1, c->counter);
    agoq_view x = view(c, a->device, 0), y = view(c, a->device, 3), z = view(c, a->device, 4);
    agoq_packed p = packed(c, a->device, 0), q = packed(c, a->device, 2);
    x.dtype = d0, y.dtype = z.dtype = d1;
    if (agoq_layout_make(w0, c->rows, c->cols, &p.layout) ||
        agoq_layout_make(w1, c->rows, c->cols, &q.layout))
        exit(1);
    const agoq_norm norm = {AGOQ_NORM_RMS, dw, a->device + c->weight, a->device + c->bias, 1e-5f, 0, 0};
    const agoq_rope rope = {
        floats_at(a->device, c->table), floats_at(a->device, c->table), 16, NULL, 8, 8, 0};
    agoq_status s;
    ask(a);
    switch (o) {
    case OP_pack:
        s = agoq_pack(&e, &x, NULL, &p);
        break;
    case OP_unpack:
        s = agoq_unpack(&e, &p, &y);
        break;
    case OP_pack_rows:
        s = agoq_pack_rows(&e, &x, 0, NULL, &p);
        break;
    case OP_unpack_rows:
        s = agoq_unpack_rows(&e, &p, 0, &y);
        break;
    case OP_norm_fwd_pack:
        s = agoq_norm_fwd_pack(&e, &x, NULL, &norm, NULL, &y, &p);
        break;
    case OP_norm_fwd_packed:
        s = agoq_norm_fwd_packed(&e, &p, &norm, &y);
        break;
    case OP_norm_bwd_packed:
        s = agoq_norm_bwd_packed(&e, &p, &norm, &x, &y, floats_at(a->device, c->dweight), NULL);
        break;
    case OP_rope:
        s = agoq_rope_apply(&e, &x, &rope, 0, &y, &p);
        break;
    case OP_swiglu_fwd_pack:
        s = agoq_swiglu_fwd_pack(&e, &x, &x, 0, &y, &p, &q);
        break;
    default:
        s = agoq_swiglu_bwd_packed(&e, &p, &q, 0, &x, NULL, &y, &z);
        break;
    }
    const int two_dtypes = (o >= OP_norm_fwd_pack && o != OP_norm_fwd_packed) && d0 != d1;
    const int two_widths = o >= OP_swiglu_fwd_pack && w0 != w1;
    char what[96];
    snprintf(what, sizeof what, "%s dtypes %d %d, weight %d, widths %d %d", op_names[o], (int)d0, (int)d1,
             (int)dw, w0, w1);
    answered(t, a, two_dtypes || two_widths ? AGOQ_E_UNSUPPORTED : AGOQ_OK, s, what);
}

/* Every operation on gradients and of Adam: formats, dtypes, what is wanted (flags of ops.h). */
static void ask_gradients(tally *t, arena *a, gcase c, int i) {
    c.dtype = (agoq_dtype)(i % 3);
    c.format = (agoq_grad_format)(i / 3 % AGOQ_N_GRAD_FORMATS);
    c.flags = (uint32_t)(i / 9);
    const agoq_exec e = arena_exec(a, 1, c.counter);
    char what[96];
    ask(a);
    const agoq_status s = run_op(&c, &e, a->device);
    snprintf(what, sizeof what, "%s dtype %d format %d flags %x", op_names[c.o], (int)c.dtype, (int)c.format,
             c.flags);
    answered(t, a, AGOQ_OK, s, what);
}

/* As many inputs as a launch has addresses for, and one more. */
static void ask_inputs(tally *t, arena *a) {
    static agoq_grad in[1025];
    gcase c = usual(16, AGOQ_DTYPE_BF16, 8, 0);
    case_lay_out(OP_grad_reduce, &c, a);
    const agoq_exec e = arena_exec(a, 1, c.counter);
    for (int i = 0; i < 1025; i++) in[i] = grad(&c, a->device, i % N_GRADS);
    for (int n = 1024; n <= 1025; n++) {
        ask(a);
        const agoq_status s = agoq_grad_reduce(&e, in, n, 1.0f, NULL, floats_at(a->device, c.flat));
        answered(t, a, n == 1024 ? AGOQ_OK : AGOQ_E_UNSUPPORTED, s, "inputs of grad_reduce");
    }
}

static void product(arena *a) {
    tally t = {.right = 1}, u = {.right = 1};
    gpu_must(cudaMemset(a->device, 0, a->capacity), "memset");
    gpu_must(cudaDeviceSynchronize(), "memset"); /* the stream does not wait for the legacy one */
    for (int o = 0; o <= OP_swiglu_bwd_packed; o++) {
        const int weights = o >= OP_norm_fwd_pack && o <= OP_norm_bwd_packed;
        gcase c = usual(12, AGOQ_DTYPE_F32, 16, 0); /* room for every dtype and width */
        case_lay_out((op)o, &c, a);
        for (int i = 0; i < 27 * AGOQ_N_FORMATS * AGOQ_N_FORMATS; i++)
            if (weights || i / 9 % 3 == 0) ask_activations(&t, a, &c, i);
    }
    tally_close(&t, "activations");
    for (int o = OP_grad_zero; o < N_OPS; o++) {
        gcase c = usual(15, AGOQ_DTYPE_F32, 8, 0);
        case_lay_out((op)o, &c, a);
        for (int i = 0; i < 3 * 3 * 16; i++) ask_gradients(&u, a, c, i);
    }
    ask_inputs(&u, a);
    tally_close(&u, "gradients and Adam");
}

/* Rows of a packed tensor from where its parts are not aligned as a whole tensor's: refused. The CPU takes
 * them. */
static void rows_between(arena *a) {
    tally t = {.right = 1};
    gcase c = usual(17, AGOQ_DTYPE_BF16, 5, 0);
    case_lay_out(OP_pack_rows, &c, a);
    case_fill(&c, a);
    arena_upload(a);
    gpu_must(cudaStreamSynchronize(a->stream), "upload");
    const agoq_exec e = arena_exec(a, 1, c.counter);
    for (int first = 0; first <= 16; first++) {
        const agoq_status want = first % 8 ? AGOQ_E_UNSUPPORTED : AGOQ_OK;
        agoq_view x = view(&c, a->device, 0), y = view(&c, a->host, 0);
        agoq_packed p = packed(&c, a->device, 2), q = packed(&c, a->host, 2);
        x.rows = y.rows = 3;
        for (int back = 0; back < 2; back++) {
            char what[64];
            snprintf(what, sizeof what, "%s from %d", op_names[back ? OP_unpack_rows : OP_pack_rows], first);
            ask(a);
            answered(&t, a, want,
                     back ? agoq_unpack_rows(&e, &p, first, &x) : agoq_pack_rows(&e, &x, first, NULL, &p),
                     what);
            const agoq_status cpu =
                back ? agoq_unpack_rows(NULL, &q, first, &y) : agoq_pack_rows(NULL, &y, first, NULL, &q);
            if (cpu == AGOQ_OK) continue;
            t.right = 0;
            snprintf(t.detail, sizeof t.detail, "%s on the CPU: %s", what, agoq_status_name(cpu));
        }
    }
    gpu_check(t.right, "rows_between", t.detail);
}

static void says_what_it_launched(arena *a) {
    gcase c = usual(13, AGOQ_DTYPE_BF16, 4, 0);
    char detail[256], text[256] = "";
    const int same = case_agree(OP_pack, &c, a, detail);
    const size_t n = agoq_last_launch(text, sizeof text);
    gpu_check(same && n == strlen(text) && strstr(text, "pack") && strstr(text, "grid"), "last_launch", text);
}

/* A workspace that is too small is refused before anything is launched. */
static void workspace(arena *a) {
    tally t = {.right = 1};
    gcase c = usual(14, AGOQ_DTYPE_BF16, 4, 0);
    const size_t norm = agoq_norm_bwd_workspace(AGOQ_DEVICE_CUDA, c.rows, c.cols);
    const size_t sums = agoq_grad_sqnorm_workspace(AGOQ_DEVICE_CUDA, c.rows * c.cols);
    const int right = norm > 0 && sums > 0 && agoq_norm_bwd_workspace(AGOQ_DEVICE_CPU, c.rows, c.cols) == 0;
    for (int i = 0; i < 8; i++) { /* one byte less, as many as needed, none, not aligned */
        case_lay_out(i < 4 ? OP_norm_bwd_packed : OP_grad_sqnorm, &c, a);
        agoq_exec e = arena_exec(a, 1, c.counter);
        e.workspace_bytes = (i < 4 ? norm : sums) - (i % 4 == 0);
        if (i % 4 == 2) e.workspace = NULL;
        if (i % 4 == 3) e.workspace = (char *)e.workspace + 8;
        ask(a);
        answered(&t, a, i % 4 == 1 ? AGOQ_OK : AGOQ_E_INVAL, run_op(&c, &e, a->device), op_names[c.o]);
    }
    gpu_check(right && t.right, "workspace", t.detail);
}

/* What went wrong before, was handled and is still pending is not this call's. */
static void pending_error(arena *a) {
    gcase c = usual(15, AGOQ_DTYPE_BF16, 4, 0);
    char detail[256] = "cudaMalloc of 2^60 bytes succeeded";
    void *much = NULL;
    const int refused = cudaMalloc(&much, (size_t)1 << 60) != cudaSuccess;
    gpu_check(refused && case_agree(OP_pack, &c, a, detail), "pending_error", detail);
}

int main(void) {
    const int skip = gpu_open(N_OPS + 6 + LARGE_TESTS);
    if (skip) return skip;
    arena a;
    arena_open(&a, (size_t)64 << 20);
    says_what_it_launched(&a);
    captures(&a);
    product(&a);
    rows_between(&a);
    workspace(&a);
    pending_error(&a);
    arena_close(&a);
    large();
    return gpu_close();
}
