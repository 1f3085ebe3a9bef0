/* The CUDA kernels against the device's own copy: validates each operation against the CPU, byte for byte,
 * then times replays of a CUDA graph over buffers that do not fit the L2 cache, and reports the median. Bytes
 * are what has to move: every input read once, every output written once. A table, JSON lines, and with --out
 * a result file for tools/claims.py. usage: gpu [--out FILE] [--commit ID] [--only TEXT] */
#include <time.h>

#include "tests/gpu/ops.h"

enum { REPLAYS = 15, MOST_SETS = 32, MOST_ROWS = 160 };

typedef struct bench_case {
    const char *name, *format;
    op o;
    int64_t rows, cols;
    int bits; /* of a packed tensor its AGOQ_FORMAT_* */
    uint32_t flags;
    double dense, packs; /* bytes per element apart from packed tensors; packed tensors that move */
    const char *claim;   /* the least ratio of all cases with this id is the figure; NULL: none */
} bench_case;

typedef struct result {
    const bench_case *c;
    double bytes, us;
} result;

static result results[MOST_ROWS];
static int n_results;
static double copy_gbps;

#define TOKENS 8192
#define MI     (INT64_C(1) << 20)
#define PACKS(o, bytes, claim)                                                                               \
    {#o, "int4", OP_##o, 64 * MI / 4096, 4096, 4, 0, bytes, 1, claim},                                       \
        {#o, "int5", OP_##o, 64 * MI / 4096, 4096, 5, 0, bytes, 1, claim},                                   \
        {#o, "int6", OP_##o, 64 * MI / 4096, 4096, 6, 0, bytes, 1, claim},                                   \
        {#o, "int8", OP_##o, 64 * MI / 4096, 4096, 8, 0, bytes, 1, claim},                                   \
        {#o, "code4", OP_##o, 64 * MI / 4096, 4096, AGOQ_FORMAT_CODE4, 0, bytes, 1, NULL},                   \
        {#o, "bf16", OP_##o, 64 * MI / 4096, 4096, 16, 0, bytes, 1, NULL},                                   \
        {#o "_256Mi", "int4", OP_##o, 256 * MI / 4096, 4096, 4, 0, bytes, 1, claim},                         \
        {#o "_4Mi", "int4", OP_##o, MI * 4 / 4096, 4096, 4, 0, bytes, 1, #o "_4mi_vs_copy"}, {               \
#o "_4Mi", "int8", OP_##o, MI * 4 / 4096, 4096, 8, 0, bytes, 1, #o "_4mi_vs_copy"                    \
    }
#define WIDTHS(name, o, rows, cols, flags, bytes, packs, claim)                                              \
    {name, "int4", o, rows, cols, 4, flags, bytes, packs, claim},                                            \
        {name, "code4", o, rows, cols, AGOQ_FORMAT_CODE4, flags, bytes, packs, NULL}, {                      \
        name, "int8", o, rows, cols, 8, flags, bytes, packs, claim                                           \
    }
#define SIZES(name, o, flags, bytes, claim)                                                                  \
    WIDTHS(name, o, TOKENS, 4096, flags, bytes, 1, claim),                                                   \
        WIDTHS(name, o, TOKENS, 5120, flags, bytes, 1, claim),                                               \
        WIDTHS(name, o, TOKENS, 8192, flags, bytes, 1, claim)
#define GRAD_ROWS (128 * MI / 4096)
/* bytes per element of a coded gradient, and of its Adam state */
#define G8 (1 + 4.0 / 128)
#define A8 (2 + 8.0 / 256)

static const bench_case cases[] = {
    PACKS(pack, 2, "pack_vs_copy_min"),
    {"pack_4Mi: a copy of as many bytes", "bf16", OP_pack, 648, 4096, 16, 0, 2, 1, NULL},
    {"pack_sr", "int4", OP_pack, 64 * MI / 4096, 4096, 4, 1, 2, 1, NULL},
    PACKS(unpack, 2, "unpack_vs_copy_min"),
    SIZES("rmsnorm_fwd_pack", OP_norm_fwd_pack, 16 + 2, 4, "rmsnorm_fwd_pack_vs_copy"),
    SIZES("rmsnorm_fwd_pack+residual", OP_norm_fwd_pack, 16 + 2 + 64, 8, "rmsnorm_fwd_pack_vs_copy"),
    WIDTHS("layernorm_fwd_pack", OP_norm_fwd_pack, TOKENS, 4096, 16 + 1 + 2 + 8, 4, 1, NULL),
    SIZES("rmsnorm_fwd_packed", OP_norm_fwd_packed, 16 + 2, 2, "rmsnorm_fwd_packed_vs_copy"),
    SIZES("rmsnorm_bwd_packed", OP_norm_bwd_packed, 16 + 2, 4, "rmsnorm_bwd_packed_vs_copy"),
    WIDTHS("layernorm_bwd_packed", OP_norm_bwd_packed, TOKENS, 4096, 16 + 1 + 2 + 8 + 128, 4, 1, NULL),
    WIDTHS("swiglu_fwd_pack", OP_swiglu_fwd_pack, TOKENS, 14336, 16, 6, 2, "swiglu_fwd_pack_vs_copy"),
    WIDTHS("swiglu_bwd_packed", OP_swiglu_bwd_packed, TOKENS, 14336, 16, 8, 2, "swiglu_bwd_packed_vs_copy"),
    {"rope", "bf16", OP_rope, TOKENS, 4096, 16, 0, 4, 0, NULL},
    {"rope+pack", "int8", OP_rope, TOKENS, 4096, 8, 32, 4, 1, NULL},
    {"grad_accumulate", "e4m3", OP_grad_accumulate, GRAD_ROWS, 4096, 4, 1, 2 + 2 * G8, 0,
     "grad_accumulate_vs_copy"},
    {"grad_accumulate_nearest", "e4m3", OP_grad_accumulate, GRAD_ROWS, 4096, 4, 0, 2 + 2 * G8, 0, NULL},
    {"grad_accumulate", "e5m2", OP_grad_accumulate, GRAD_ROWS, 4096, 5, 1, 2 + 2 * G8, 0, NULL},
    {"grad_accumulate", "int8", OP_grad_accumulate, GRAD_ROWS, 4096, 6, 1, 2 + 2 * G8, 0, NULL},
    {"grad_accumulate_list_70", "e4m3", OP_grad_accumulate_list, GRAD_ROWS, 4096, 4, 1, 2 + 2 * G8, 0, NULL},
    {"grad_read", "e4m3", OP_grad_read, GRAD_ROWS, 4096, 4, 32, 4 + G8, 0, NULL},
    {"grad_read at an odd element", "e4m3", OP_grad_read, GRAD_ROWS, 4096, 4, 0, 4 + G8, 0, NULL},
    {"grad_sqnorm", "e4m3", OP_grad_sqnorm, GRAD_ROWS, 4096, 4, 0, G8, 0, NULL},
    {"grad_reduce_3", "e4m3", OP_grad_reduce, GRAD_ROWS, 4096, 4, 2 + 4 + 24, 4 * G8, 0, NULL},
    {"adam8_step master", "e4m3", OP_adam8_step, GRAD_ROWS, 4096, 4, 1, G8 + 2 * A8 + 8, 0, "adam8_vs_copy"},
    {"adam8_step master+bf16", "bf16", OP_adam8_step, GRAD_ROWS, 4096, 4, 4, 2 + 2 * A8 + 10, 0,
     "adam8_vs_copy"},
    {"adam8_step bf16 sr", "bf16", OP_adam8_step, GRAD_ROWS, 4096, 4, 2 + 8, 2 + 2 * A8 + 4, 0,
     "adam8_vs_copy"},
};

/* One set of buffers on the device: as in a test's arena, but only what the operation touches, without a
 * host. */
static size_t lay_out(const bench_case *b, gcase *c) {
    const int64_t n = b->rows * b->cols;
    agoq_layout l;
    size_t at = 0;
    memset(c, 0, sizeof *c);
    c->rows = b->rows, c->cols = b->cols, c->bits = b->bits, c->flags = b->flags, c->dtype = AGOQ_DTYPE_BF16;
    c->seed = 1, c->o = b->o;
    if (!of_activations(b->o)) c->format = (agoq_grad_format)(b->bits - 4); /* bits say the format there */
    if (agoq_layout_make(b->bits, b->rows, b->cols, &l) != AGOQ_OK) exit(1);
#define TAKE(field, bytes) c->field = at, at += ((size_t)(bytes) + 255) / 256 * 256
    if (of_activations(b->o)) {
        for (int i = 0; i < N_VIEWS; i++) TAKE(view[i], n * 2);
        for (int i = 0; i < N_PACKED; i++) TAKE(packed[i], l.bytes);
    } else {
        TAKE(view[0], n * 2);
        for (int i = 0; i <= N_GRADS; i++) {
            TAKE(codes[i], n);
            TAKE(scales[i], n / 32);
        }
        TAKE(master, n * 4);
        c->flat = c->master;
        TAKE(bf16, n * 2);
        TAKE(m, n);
        TAKE(v, n);
        TAKE(m_top, n / 64);
        TAKE(v_top, n / 64);
    }
    TAKE(weight, b->cols * 4);
    TAKE(bias, b->cols * 4);
    TAKE(dweight, b->cols * 4);
    TAKE(dbias, b->cols * 4);
    TAKE(table, (b->cols + 2) * 128);
    TAKE(positions, b->rows * 4);
    TAKE(sqnorm, 8);
    TAKE(counter, 8);
#undef TAKE
    return at;
}

/* Random bf16 data made on the host once and copied everywhere; then the operation's coded inputs from it. */
static void fill(const gcase *c, const bench_case *b, uint8_t *base, const uint16_t *random, size_t n_random,
                 const agoq_exec *e) {
    const size_t n = (size_t)(b->rows * b->cols);
    for (int i = 0; i < (of_activations(b->o) ? 3 : 1); i++) {
        for (size_t at = 0; at < n; at += n_random)
            gpu_must(cudaMemcpy(base + c->view[i] + at * 2, random,
                                (n - at < n_random ? n - at : n_random) * 2, cudaMemcpyDeviceToDevice),
                     "fill");
    }
    if (of_activations(b->o)) {
        for (int i = 0; i < 2; i++) {
            const agoq_view v = view(c, base, i);
            agoq_packed p = packed(c, base, i);
            if (agoq_pack(e, &v, NULL, &p) != AGOQ_OK) exit(1);
        }
        gpu_must(cudaMemcpy(base + c->table, random, (size_t)(b->cols + 2) * 128, cudaMemcpyDeviceToDevice),
                 "fill");
        return;
    }
    for (int i = 0; i <= N_GRADS; i++) {
        agoq_grad g = grad(c, base, i);
        if (agoq_grad_zero(e, &g) != AGOQ_OK) exit(1);
        if (agoq_grad_accumulate(e, base + c->view[0], AGOQ_DTYPE_BF16, NULL, &g) != AGOQ_OK) exit(1);
    }
    agoq_grad g = grad(c, base, 0);
    if (agoq_grad_read(e, &g, 0, (int64_t)n, 1.0f, floats_at(base, c->master)) != AGOQ_OK) exit(1);
    gpu_must(cudaMemcpy(base + c->bf16, base + c->view[0], n * 2, cudaMemcpyDeviceToDevice), "fill");
    gpu_must(cudaMemset(base + c->m, 0x6E, n), "fill"); /* codes and absolute maxima of a running optimizer */
    gpu_must(cudaMemcpy(base + c->v, base + c->codes[0], n, cudaMemcpyDeviceToDevice), "fill");
    gpu_must(cudaMemset(base + c->m_top, 0x3C, n / 64), "fill");
    gpu_must(cudaMemset(base + c->v_top, 0x38, n / 64), "fill");
}

static int ascending(const void *a, const void *b) {
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Microseconds of one of the `launches` in a graph: median over replays. */
static double replay(cudaGraph_t graph, cudaStream_t stream, int launches) {
    cudaGraphExec_t exec;
    cudaEvent_t start, stop;
    float ms[REPLAYS];
    gpu_must(cudaGraphInstantiate(&exec, graph, 0), "graph");
    gpu_must(cudaEventCreate(&start), "event");
    gpu_must(cudaEventCreate(&stop), "event");
    for (int i = -2; i < REPLAYS; i++) {
        gpu_must(cudaEventRecord(start, stream), "event");
        gpu_must(cudaGraphLaunch(exec, stream), "graph");
        gpu_must(cudaEventRecord(stop, stream), "event");
        gpu_must(cudaEventSynchronize(stop), "kernel");
        if (i >= 0) gpu_must(cudaEventElapsedTime(&ms[i], start, stop), "event");
    }
    qsort(ms, REPLAYS, sizeof *ms, ascending);
    gpu_must(cudaGraphExecDestroy(exec), "graph");
    gpu_must(cudaEventDestroy(start), "event");
    gpu_must(cudaEventDestroy(stop), "event");
    return (double)ms[REPLAYS / 2] * 1e3 / launches;
}

/* The better of two ways to copy 1 GiB inside the device: memcpy on a stream, and the library's own copy
 * (width 16 of a bf16 tensor), bytes read and written. A memcpy captured in a graph is slower than either. */
static double measure_copy(cudaStream_t stream) {
    const size_t bytes = (size_t)1 << 30;
    uint8_t *a, *b;
    cudaGraph_t graph;
    cudaEvent_t start, stop;
    float best = 1e9f, ms;
    gpu_must(cudaMalloc((void **)&a, bytes), "cudaMalloc");
    gpu_must(cudaMalloc((void **)&b, bytes), "cudaMalloc");
    gpu_must(cudaMemset(a, 0x5A, bytes), "memset");
    gpu_must(cudaEventCreate(&start), "event");
    gpu_must(cudaEventCreate(&stop), "event");
    for (int i = -2; i < REPLAYS; i++) {
        gpu_must(cudaEventRecord(start, stream), "event");
        for (int k = 0; k < 4; k++)
            gpu_must(cudaMemcpyAsync(b, a, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
        gpu_must(cudaEventRecord(stop, stream), "event");
        gpu_must(cudaEventSynchronize(stop), "copy");
        gpu_must(cudaEventElapsedTime(&ms, start, stop), "event");
        if (i >= 0 && ms < best) best = ms;
    }
    agoq_packed p = {.data = b};
    const agoq_view v = {a, AGOQ_DTYPE_BF16, (int64_t)bytes / 8192, 4096, 4096};
    const agoq_exec e = {.device = AGOQ_DEVICE_CUDA, .stream = stream};
    if (agoq_layout_make(16, v.rows, v.cols, &p.layout) != AGOQ_OK) exit(1);
    gpu_must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < 4; i++)
        if (agoq_pack(&e, &v, NULL, &p) != AGOQ_OK) exit(1);
    gpu_must(cudaStreamEndCapture(stream, &graph), "capture");
    const double own = replay(graph, stream, 4), driver = (double)best * 1e3 / 4;
    printf("copy of 1 GiB: memcpy %.0f GB/s, own %.0f GB/s\n", 2.0 * (double)bytes / driver * 1e-3,
           2.0 * (double)bytes / own * 1e-3);
    gpu_must(cudaGraphDestroy(graph), "graph");
    gpu_must(cudaEventDestroy(start), "event");
    gpu_must(cudaEventDestroy(stop), "event");
    gpu_must(cudaFree(a), "free");
    gpu_must(cudaFree(b), "free");
    return 2.0 * (double)bytes / (own < driver ? own : driver) * 1e-3;
}

/* 0: an operation is wrong or failed. */
static int measure(const bench_case *b, arena *check, const uint16_t *random, size_t n_random) {
    const size_t L2_4 = (size_t)256 << 20;
    gcase small = {
        .rows = 67, .cols = b->cols, .dtype = AGOQ_DTYPE_BF16, .bits = b->bits, .flags = b->flags, .seed = 9};
    char detail[256];
    if (!of_activations(b->o)) small.format = (agoq_grad_format)(b->bits - 4);
    if (!case_agree(b->o, &small, check, detail)) {
        printf("%s is wrong: %s\n", b->name, detail);
        return 0;
    }
    gcase c;
    const size_t bytes = lay_out(b, &c);
    const double moved =
        (double)(b->rows * b->cols) *
        (b->dense + (b->packs > 0 ? b->packs * (b->bits % 64 + (b->bits != 16) * 0.25) / 8 : 0));
    int sets = (int)((double)L2_4 / moved) + 1;
    sets = sets > MOST_SETS ? MOST_SETS : sets < 2 ? 2 : sets;
    uint8_t *memory;
    gpu_must(cudaMalloc((void **)&memory, bytes * (size_t)sets), "cudaMalloc");
    agoq_exec e = arena_exec(check, 1, 0);
    e.nonfinite = NULL;
    for (int i = 0; i < sets; i++) fill(&c, b, memory + (size_t)i * bytes, random, n_random, &e);
    gpu_must(cudaStreamSynchronize(check->stream), "fill");
    cudaGraph_t graph;
    int right = 1;
    gpu_must(cudaStreamBeginCapture(check->stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < sets * 2 && right; i++)
        right = run_op(&c, &e, memory + (size_t)(i % sets) * bytes) == AGOQ_OK;
    gpu_must(cudaStreamEndCapture(check->stream, &graph), "capture");
    if (right && n_results < MOST_ROWS)
        results[n_results++] = (result){b, moved, replay(graph, check->stream, sets * 2)};
    else
        printf("%s failed: %s\n", b->name, agoq_last_error());
    gpu_must(cudaGraphDestroy(graph), "graph");
    gpu_must(cudaFree(memory), "free");
    return right;
}

static double ratio_of(const result *r) {
    return r->bytes / r->us * 1e-3 / copy_gbps;
}

static void print_row(FILE *f, const result *r, const char *gpu, const char *commit, const char *end) {
    fprintf(f,
            "{\"op\":\"%s\",\"format\":\"%s\",\"shape\":[%lld,%lld],\"dtype\":\"bf16\",\"device\":\"%s\","
            "\"bytes\":%.0f,"
            "\"us\":%.2f,\"gbps\":%.0f,\"copy_gbps\":%.0f,\"ratio\":%.4f,\"commit\":\"%s\"}%s\n",
            r->c->name, r->c->format, (long long)r->c->rows, (long long)r->c->cols, gpu, r->bytes, r->us,
            r->bytes / r->us * 1e-3, copy_gbps, ratio_of(r), commit, end);
}

/* The least ratio of each claim. */
static void print_figures(FILE *f) {
    int first = 1;
    for (int i = 0; i < n_results; i++) {
        const char *id = results[i].c->claim;
        double least = ratio_of(&results[i]);
        int seen = 0;
        for (int k = 0; id && k < n_results; k++) {
            if (!results[k].c->claim || strcmp(results[k].c->claim, id)) continue;
            seen |= k < i;
            if (ratio_of(&results[k]) < least) least = ratio_of(&results[k]);
        }
        if (!id || seen) continue;
        fprintf(f, "%s    {\"id\": \"%s\", \"value\": %.3f, \"unit\": \"ratio\"}", first ? "" : ",\n", id,
                least);
        first = 0;
    }
}

static void write_file(const char *path, const char *gpu, const char *commit) {
    char date[16];
    const time_t now = time(NULL);
    strftime(date, sizeof date, "%Y-%m-%d", gmtime(&now));
    FILE *f = fopen(path, "w");
    if (!f) exit(1);
    fprintf(f,
            "{\n  \"gpu\": \"%s\",\n  \"date\": \"%s\",\n  \"commit\": \"%s\",\n  \"command\": \"make "
            "bench-gpu\",\n  \"figures\": [\n",
            gpu, date, commit);
    print_figures(f);
    fprintf(f, "\n  ],\n  \"rows\": [\n");
    for (int i = 0; i < n_results; i++) {
        fprintf(f, "    ");
        print_row(f, &results[i], gpu, commit, i + 1 < n_results ? "," : "");
    }
    fprintf(f, "  ]\n}\n");
    if (fclose(f)) exit(1);
}

int main(int argc, char **argv) {
    const char *out = NULL, *commit = "unknown", *only = "";
    for (int i = 1; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--out") == 0)
            out = argv[i + 1];
        else if (strcmp(argv[i], "--commit") == 0)
            commit = argv[i + 1];
        else if (strcmp(argv[i], "--only") == 0)
            only = argv[i + 1];
        else
            argc = 0;
    }
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: gpu [--out FILE] [--commit ID] [--only TEXT]\n");
        return 2;
    }
    const int n_cases = (int)(sizeof cases / sizeof *cases), skip = gpu_open(n_cases);
    if (skip) return skip;
    struct cudaDeviceProp p;
    gpu_must(cudaGetDeviceProperties(&p, 0), "device");
    arena check;
    arena_open(&check, (size_t)256 << 20);
    const size_t n_random = (size_t)4 << 20;
    uint16_t *host = malloc(n_random * 2), *random;
    if (!host) return 1;
    uint64_t state = 1;
    for (size_t i = 0; i < n_random; i++) host[i] = agoqk_bf16_encode(gauss(&state));
    gpu_must(cudaMalloc((void **)&random, n_random * 2), "cudaMalloc");
    gpu_must(cudaMemcpy(random, host, n_random * 2, cudaMemcpyHostToDevice), "copy");
    copy_gbps = measure_copy(check.stream);
    int right = 1;
    for (int i = 0; i < n_cases; i++) {
        if (strncmp(cases[i].name, only, strlen(only)) == 0)
            right &= measure(&cases[i], &check, random, n_random);
    }
    printf("copy: %.0f GB/s\n%-34s %6s %13s %10s %8s %8s\n", copy_gbps, "operation", "format", "shape", "us",
           "GB/s", "of copy");
    for (int i = 0; i < n_results; i++) {
        const result *r = &results[i];
        char shape[32];
        snprintf(shape, sizeof shape, "%lldx%lld", (long long)r->c->rows, (long long)r->c->cols);
        printf("%-34s %6s %13s %10.2f %8.0f %7.1f%%\n", r->c->name, r->c->format, shape, r->us,
               r->bytes / r->us * 1e-3, 100 * ratio_of(r));
    }
    if (out)
        write_file(out, p.name, commit);
    else
        for (int i = 0; i < n_results; i++) print_row(stdout, &results[i], p.name, commit, "");
    free(host);
    gpu_must(cudaFree(random), "free");
    arena_close(&check);
    return right ? 0 : 1;
}
