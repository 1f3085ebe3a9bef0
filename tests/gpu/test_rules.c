/* What every CUDA operation promises beside its bytes: it only enqueues on the caller's stream (a graph
 * capture would fail on anything else), replays to the same bytes, works on tensors above 2^31 elements, says
 * what it launched, and answers every combination of dtypes and widths with a result or with E_UNSUPPORTED.
 */
#include "tests/gpu/ops.h"

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
        case_lay_out(&c, a);
        case_fill(&c, a);
        const agoq_exec host = arena_exec(a, 0, c.counter), device = arena_exec(a, 1, c.counter);
        cudaGraph_t graph;
        cudaGraphExec_t exec;
        gpu_must(cudaStreamBeginCapture(a->stream, cudaStreamCaptureModeGlobal), "capture");
        const agoq_status status = run_op((op)o, &c, &device, a->device);
        const cudaError_t error = cudaStreamEndCapture(a->stream, &graph);
        if (status != AGOQ_OK || error != cudaSuccess) {
            snprintf(detail, sizeof detail, "%s, %s", agoq_status_name(status), cudaGetErrorString(error));
            right = 0;
        } else {
            gpu_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
            uint8_t *before = malloc(a->used);
            if (!before) exit(1);
            memcpy(before, a->host, a->used);
            right = run_op((op)o, &c, &host, a->host) == AGOQ_OK;
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

/* Every combination of two dtypes of views and two widths: a result or E_UNSUPPORTED, and nothing launched
 * then. */
static void product(arena *a) {
    int n = 0, supported = 0, right = 1;
    char detail[128] = "";
    for (int o = 0; o <= OP_swiglu_bwd_packed; o++) {
        for (int i = 0; i < 3 * 3 * AGOQ_N_WIDTHS * AGOQ_N_WIDTHS; i++) {
            const agoq_dtype d0 = (agoq_dtype)(i % 3), d1 = (agoq_dtype)(i / 3 % 3);
            const int w0 = agoq_width_bits(i / 9 % AGOQ_N_WIDTHS),
                      w1 = agoq_width_bits(i / 9 / AGOQ_N_WIDTHS);
            gcase c = usual(12, AGOQ_DTYPE_F32, 16, 0x60);
            case_lay_out(&c, a);
            memset(a->host, 0, a->used);
            arena_upload(a);
            const agoq_exec e = arena_exec(a, 1, c.counter);
            agoq_view x = view(&c, a->device, 0), y = view(&c, a->device, 3), z = view(&c, a->device, 4);
            agoq_packed p = packed(&c, a->device, 0), q = packed(&c, a->device, 2);
            x.dtype = d0, y.dtype = z.dtype = d1;
            if (agoq_layout_make(w0, c.rows, c.cols, &p.layout) ||
                agoq_layout_make(w1, c.rows, c.cols, &q.layout))
                exit(1);
            const agoq_norm norm = {.eps = 1e-5f};
            const agoq_rope rope = {
                floats_at(a->device, c.table), floats_at(a->device, c.table), 16, NULL, 8, 8, 0};
            agoq_status s = AGOQ_OK;
            switch (o) {
            case OP_pack:
                s = agoq_pack(&e, &x, NULL, &p);
                break;
            case OP_unpack:
                s = agoq_unpack(&e, &p, &y);
                break;
            case OP_norm_fwd_pack:
                s = agoq_norm_fwd_pack(&e, &x, NULL, &norm, NULL, &y, &p);
                break;
            case OP_norm_fwd_packed:
                s = agoq_norm_fwd_packed(&e, &p, &norm, &y);
                break;
            case OP_norm_bwd_packed:
                s = agoq_norm_bwd_packed(&e, &p, &norm, &x, &y, NULL, NULL);
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
            gpu_must(cudaStreamSynchronize(a->stream), "product");
            const int two_dtypes = o != OP_pack && o != OP_unpack && o != OP_norm_fwd_packed && d0 != d1;
            const int two_widths = o >= OP_swiglu_fwd_pack && w0 != w1;
            const agoq_status want = two_dtypes || two_widths ? AGOQ_E_UNSUPPORTED : AGOQ_OK;
            n++, supported += s == AGOQ_OK;
            if (s == want) continue;
            right = 0;
            snprintf(detail, sizeof detail, "%s dtypes %d %d widths %d %d: %s, not %s", op_names[o], (int)d0,
                     (int)d1, w0, w1, agoq_status_name(s), agoq_status_name(want));
        }
    }
    char name[64];
    snprintf(name, sizeof name, "product (%d combinations, %d supported)", n, supported);
    gpu_check(right, name, detail);
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
    gcase c = usual(14, AGOQ_DTYPE_BF16, 4, 0);
    case_lay_out(&c, a);
    case_fill(&c, a);
    arena_upload(a);
    agoq_exec e = arena_exec(a, 1, c.counter);
    const size_t norm = agoq_norm_bwd_workspace(AGOQ_DEVICE_CUDA, c.rows, c.cols);
    const size_t sums = agoq_grad_sqnorm_workspace(AGOQ_DEVICE_CUDA, c.rows * c.cols);
    int right = norm > 0 && sums > 0 && agoq_norm_bwd_workspace(AGOQ_DEVICE_CPU, c.rows, c.cols) == 0;
    e.workspace_bytes = norm - 1;
    right &= run_op(OP_norm_bwd_packed, &c, &e, a->device) == AGOQ_E_INVAL;
    e.workspace_bytes = sums - 1;
    right &= run_op(OP_grad_sqnorm, &c, &e, a->device) == AGOQ_E_INVAL;
    e.workspace = NULL;
    right &= run_op(OP_grad_sqnorm, &c, &e, a->device) == AGOQ_E_INVAL;
    gpu_check(right, "workspace", agoq_last_error());
}

/* More than 2^31 elements: rows are copies of one short tensor, so each must pack to the same bytes, and
 * back. */
static void large(void) {
    const int64_t cols = 4096, rows = (INT64_C(1) << 31) / cols + 5;
    const size_t row = (size_t)cols * 2;
    uint8_t *x, *p_data, *y, *got = malloc(row), *want = malloc(row);
    agoq_packed p;
    if (!got || !want || agoq_layout_make(5, rows, cols, &p.layout) != AGOQ_OK) exit(1);
    if (cudaMalloc((void **)&x, row * (size_t)rows) || cudaMalloc((void **)&y, row * (size_t)rows) ||
        cudaMalloc((void **)&p_data, p.layout.bytes)) {
        printf("skipped: large, not enough device memory\n");
        return;
    }
    uint64_t state = 3;
    uint16_t *h = malloc(row * 64);
    if (!h) exit(1);
    for (size_t i = 0; i < row * 32; i++) h[i] = agoqk_bf16_encode(gauss(&state));
    gpu_must(cudaMemcpy(x, h, row * 64, cudaMemcpyHostToDevice), "upload");
    for (int64_t r = 64; r < rows; r += r < rows - r ? r : rows - r)
        gpu_must(cudaMemcpy(x + row * (size_t)r, x, row * (size_t)(r < rows - r ? r : rows - r),
                            cudaMemcpyDeviceToDevice),
                 "copy");
    p.data = p_data;
    const agoq_exec e = {.device = AGOQ_DEVICE_CUDA};
    const agoq_view vx = {x, AGOQ_DTYPE_BF16, rows, cols, cols};
    agoq_view vy = {y, AGOQ_DTYPE_BF16, rows, cols, cols};
    int right = agoq_pack(&e, &vx, NULL, &p) == AGOQ_OK && agoq_unpack(&e, &p, &vy) == AGOQ_OK;
    gpu_must(cudaDeviceSynchronize(), "large");
    const int64_t rows_to_check[] = {0, 1, rows / 2, rows - 6, rows - 1};
    for (int i = 0; i < 5 && right; i++) { /* against the CPU, row by row */
        const int64_t r = rows_to_check[i];
        agoq_packed q;
        if (agoq_layout_make(5, 1, cols, &q.layout) != AGOQ_OK) exit(1);
        q.data = aligned_alloc(16, q.layout.bytes);
        const agoq_view one = {(uint8_t *)h + row * (size_t)(r % 64), AGOQ_DTYPE_BF16, 1, cols, cols};
        agoq_view back = {want, AGOQ_DTYPE_BF16, 1, cols, cols};
        right = agoq_pack(NULL, &one, NULL, &q) == AGOQ_OK && agoq_unpack(NULL, &q, &back) == AGOQ_OK;
        gpu_must(cudaMemcpy(got, y + row * (size_t)r, row, cudaMemcpyDeviceToHost), "download");
        right = right && memcmp(got, want, row) == 0;
        gpu_must(cudaMemcpy(got, p_data + p.layout.lo_row_bytes * (size_t)r, p.layout.lo_row_bytes,
                            cudaMemcpyDeviceToHost),
                 "download");
        right = right && memcmp(got, q.data, p.layout.lo_row_bytes) == 0;
        free(q.data);
    }
    gpu_check(right, "large_pack_unpack", "a row differs");
    agoq_norm norm = {.eps = 1e-5f};
    right = agoq_norm_fwd_packed(&e, &p, &norm, &vy) == AGOQ_OK;
    gpu_must(cudaDeviceSynchronize(), "large");
    gpu_must(cudaMemcpy(got, y + row * (size_t)(rows - 1), row, cudaMemcpyDeviceToHost), "download");
    gpu_must(cudaMemcpy(want, y + row * (size_t)((rows - 1) % 64), row, cudaMemcpyDeviceToHost), "download");
    gpu_check(right && memcmp(got, want, row) == 0, "large_norm_fwd_packed", "the last row differs");
    const int64_t n = rows * cols;
    agoq_grad g = {p_data, (float *)(void *)y, n, AGOQ_GRAD_E4M3}; /* y is large enough for the scales */
    uint8_t *codes;
    gpu_must(cudaMalloc((void **)&codes, (size_t)n), "cudaMalloc");
    g.codes = codes;
    right = agoq_grad_zero(&e, &g) == AGOQ_OK &&
            agoq_grad_accumulate(&e, x, AGOQ_DTYPE_BF16, NULL, &g) == AGOQ_OK;
    gpu_must(cudaDeviceSynchronize(), "large");
    gpu_must(cudaMemcpy(got, codes + (rows - 1) * cols, (size_t)cols, cudaMemcpyDeviceToHost), "download");
    gpu_must(cudaMemcpy(want, codes + (rows - 1) % 64 * cols, (size_t)cols, cudaMemcpyDeviceToHost),
             "download");
    gpu_check(right && memcmp(got, want, (size_t)cols) == 0, "large_grad_accumulate", "the last row differs");
    gpu_must(cudaFree(codes), "free");
    gpu_must(cudaFree(x), "free");
    gpu_must(cudaFree(y), "free");
    gpu_must(cudaFree(p_data), "free");
    free(h);
    free(got);
    free(want);
}

int main(void) {
    const int skip = gpu_open(N_OPS + 6);
    if (skip) return skip;
    arena a;
    arena_open(&a, (size_t)64 << 20);
    says_what_it_launched(&a);
    captures(&a);
    product(&a);
    workspace(&a);
    arena_close(&a);
    large();
    return gpu_close();
}
