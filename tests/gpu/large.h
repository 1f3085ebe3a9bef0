/* Every operation on more than 2^31 elements of bf16. Inputs are a pattern of 64 rows, repeated; what the GPU
 * writes is compared with the CPU in windows of rows: the first ones, those around element 2^31, and the last
 * ones. A window is a small case of its own, whose inputs are what the device held before. The squared norm
 * and the count of blocks are compared whole; the sums of weight and bias by adding, in order, chunks that
 * the pattern makes alike. */
#ifndef TESTS_GPU_LARGE_H
#define TESTS_GPU_LARGE_H

#include "tests/gpu/ops.h"

enum { PERIOD = 64, N_WINDOWS = 3 };
static const int64_t two_31 = INT64_C(1) << 31;

typedef struct window {
    gcase c;
    arena a; /* host memory alone */
} window;

static void window_open(window *w, size_t capacity) {
    memset(w, 0, sizeof *w);
    w->a.capacity = capacity;
    w->a.host = malloc(capacity);
    w->a.back = malloc(capacity);
    if (!w->a.host || !w->a.back) exit(1);
}

static void window_close(window *w) {
    free(w->a.host);
    free(w->a.back);
}

/* Rows [first, first + rows) of `big`, which lies at `device`, into memory of the window. */
static void window_get(const window *w, const gcase *big, const uint8_t *device, uint8_t *into) {
    field from[MOST_FIELDS], to[MOST_FIELDS];
    const int n = case_fields(big, from);
    if (case_fields(&w->c, to) != n) exit(1);
    for (int i = 0; i < n; i++) {
        size_t at, bytes, at_small, bytes_small;
        field_range(big, &from[i], w->c.first_row, w->c.rows, &at, &bytes);
        field_range(&w->c, &to[i], 0, w->c.rows, &at_small, &bytes_small);
        if (bytes > bytes_small) exit(1);
        gpu_must(cudaMemcpy(into + at_small, device + at, bytes, cudaMemcpyDeviceToHost), "download");
    }
}

/* A multiple of 64 rows is one of every block and of the positions of RoPE. */
static void window_place(window *w, const gcase *big, int64_t first, int64_t rows) {
    w->c = *big;
    w->c.rows = rows;
    w->c.first_row = first;
    case_lay_out(big->o, &w->c, &w->a);
    memset(w->a.back, 0xA5, w->a.used);
}

/* Fields that differ between what the CPU made of the inputs and what is on the device now: NULL, or one. */
static const char *window_compare(window *w, const gcase *big, const uint8_t *device) {
    field list[MOST_FIELDS];
    const agoq_exec host = arena_exec(&w->a, 0, w->c.counter);
    const char *differs = NULL;
    if (run_op(&w->c, &host, w->a.host) != AGOQ_OK) return "the CPU refuses";
    memset(w->a.back, 0xA5, w->a.used);
    window_get(w, big, device, w->a.back);
    const int n = case_fields(&w->c, list);
    for (int i = 0; i < n; i++) {
        size_t at, bytes;
        field_range(&w->c, &list[i], 0, w->c.rows, &at, &bytes);
        if (list[i].per == ONCE) continue; /* sums of all rows */
        if (memcmp(w->a.host + at, w->a.back + at, bytes) != 0) differs = list[i].name;
    }
    return differs;
}

/* `bytes` of device memory filled with copies of the first `period` bytes. */
static void repeat(uint8_t *at, size_t period, size_t bytes) {
    for (size_t done = period; done < bytes; done *= 2)
        gpu_must(cudaMemcpyAsync(at + done, at, done < bytes - done ? done : bytes - done,
                                 cudaMemcpyDeviceToDevice, cudaStreamLegacy),
                 "copy");
}

/* The fields of a small case of 64 rows, over and over. */
static void large_fill(const gcase *big, uint8_t *device, arena *small) {
    gcase c = *big;
    field from[MOST_FIELDS], to[MOST_FIELDS];
    c.rows = PERIOD;
    case_lay_out(big->o, &c, small);
    case_fill(&c, small);
    const int n = case_fields(&c, from);
    if (case_fields(big, to) != n) exit(1);
    for (int i = 0; i < n; i++) {
        size_t at, bytes, at_big, bytes_big;
        field_range(&c, &from[i], 0, PERIOD, &at, &bytes);
        field_range(big, &to[i], 0, big->rows, &at_big, &bytes_big);
        gpu_must(cudaMemcpy(device + at_big, small->host + at, bytes, cudaMemcpyHostToDevice), "upload");
        repeat(device + at_big, bytes, bytes_big);
    }
    gpu_must(cudaDeviceSynchronize(), "fill");
}

static gcase large_case(op o, int64_t cols, int bits, uint32_t flags) {
    gcase c = {.cols = cols, .dtype = AGOQ_DTYPE_BF16, .bits = bits, .flags = flags, .seed = 3};
    c.rows = two_31 / cols + PERIOD + 5;
    return c.o = o, c;
}

/* Memory that holds any of the cases; none: NULL. */
typedef struct large_memory {
    uint8_t *device;
    size_t bytes;
    void *workspace;
    size_t workspace_bytes;
    arena small;
    window windows[N_WINDOWS];
} large_memory;

static size_t large_bytes(gcase c) {
    arena ruler = {.capacity = SIZE_MAX};
    case_lay_out(c.o, &c, &ruler);
    return ruler.used;
}

static agoq_exec large_exec(const large_memory *m, const gcase *c) {
    agoq_exec e = {.device = AGOQ_DEVICE_CUDA, .workspace = m->workspace};
    e.workspace_bytes = m->workspace_bytes;
    e.nonfinite = (uint32_t *)(void *)(m->device + c->counter);
    return e;
}

static void large_windows(large_memory *m, gcase c) {
    arena ruler = {.capacity = SIZE_MAX};
    char name[96], detail[128] = "";
    case_lay_out(c.o, &c, &ruler);
    large_fill(&c, m->device, &m->small);
    const int64_t middle = two_31 / c.cols / PERIOD * PERIOD - PERIOD, last = (c.rows - 1) / PERIOD * PERIOD;
    const int64_t first[N_WINDOWS] = {0, middle, last}, rows[N_WINDOWS] = {PERIOD, 2 * PERIOD, c.rows - last};
    for (int i = 0; i < N_WINDOWS; i++) {
        window_place(&m->windows[i], &c, first[i], rows[i]);
        window_get(&m->windows[i], &c, m->device, m->windows[i].a.host);
    }
    const agoq_exec e = large_exec(m, &c);
    const agoq_status s = run_op(&c, &e, m->device);
    const cudaError_t error = cudaDeviceSynchronize();
    int right = s == AGOQ_OK && error == cudaSuccess;
    if (!right) snprintf(detail, sizeof detail, "%s, %s", agoq_status_name(s), cudaGetErrorString(error));
    for (int i = 0; i < N_WINDOWS && error == cudaSuccess; i++) {
        const char *differs = window_compare(&m->windows[i], &c, m->device);
        if (!differs) continue;
        right = 0;
        snprintf(detail, sizeof detail, "rows from %lld: %s", (long long)first[i], differs);
    }
    snprintf(name, sizeof name, "large_%s (%lld columns, %d bits, flags %x)", op_names[c.o],
             (long long)c.cols, c.bits, c.flags);
    gpu_check(right, name, detail);
}

/* Squared norm and count of blocks: the CPU goes through all of it. */
static void large_whole(large_memory *m, op o) {
    gcase c = large_case(o, 4100, 8, 0);
    arena ruler = {.capacity = SIZE_MAX};
    const int input = o == OP_grad_sqnorm ? 0 : 1;
    const uint32_t nan = 0x7FC00000u;
    case_lay_out(o, &c, &ruler);
    large_fill(&c, m->device, &m->small);
    agoq_grad g = grad(&c, m->device, input), h = g;
    const int64_t blocks = agoq_grad_blocks(g.n), bad[] = {0, two_31 / AGOQ_GRAD_BLOCK, blocks - 1};
    for (int i = 0; i < 3 && o == OP_grad_check_finite; i++)
        gpu_must(cudaMemcpy(g.scales + bad[i], &nan, 4, cudaMemcpyHostToDevice), "upload");
    const agoq_exec e = large_exec(m, &c);
    uint64_t got = 0, want = 0; /* a double, or two counters */
    const agoq_status s = run_op(&c, &e, m->device);
    gpu_must(cudaDeviceSynchronize(), op_names[o]);
    gpu_must(cudaMemcpy(&got, m->device + (input ? c.counter : c.sqnorm), 8, cudaMemcpyDeviceToHost), "sum");
    h.codes = calloc((size_t)g.n, 1);
    h.scales = malloc((size_t)blocks * 4);
    if (!h.codes || !h.scales) exit(1);
    gpu_must(cudaMemcpy(h.scales, g.scales, (size_t)blocks * 4, cudaMemcpyDeviceToHost), "download");
    if (!input) gpu_must(cudaMemcpy(h.codes, g.codes, (size_t)g.n, cudaMemcpyDeviceToHost), "download");
    const agoq_status cpu = input ? agoq_grad_check_finite(NULL, &h, (uint32_t *)&want + 1)
                                  : agoq_grad_sqnorm(NULL, &h, (double *)&want);
    char name[64], detail[96];
    snprintf(name, sizeof name, "large_%s", op_names[o]);
    snprintf(detail, sizeof detail, "%s, %016llx, not %016llx", agoq_status_name(s), (unsigned long long)got,
             (unsigned long long)want);
    gpu_check(s == AGOQ_OK && cpu == AGOQ_OK && got == want && want != 0, name, detail);
    free(h.codes);
    free(h.scales);
}

/* out += sum, cols each. */
static void add_to(float *out, const float *sum, int64_t cols) {
    for (int64_t i = 0; i < cols; i++) out[i] = out[i] + sum[i];
}

/* dweight and dbias: chunks 0 and 1 of 32 rows are those of the pattern, then all others but the last. */
static void large_sums(large_memory *m, int64_t cols) {
    gcase c = large_case(OP_norm_bwd_packed, cols, 5, 1u << 0 | 1u << 1 | 1u << 7 | 1u << 10);
    arena ruler = {.capacity = SIZE_MAX};
    case_lay_out(c.o, &c, &ruler);
    large_fill(&c, m->device, &m->small);
    const int64_t last = (c.rows - 1) / 32;
    const int64_t chunk[N_WINDOWS] = {0, 1, last};
    const size_t bytes = (size_t)cols * 4;
    float *want[2] = {malloc(bytes), malloc(bytes)}, *got = malloc(bytes);
    char name[64], detail[96] = "";
    int right = 1;
    if (!want[0] || !want[1] || !got) exit(1);
    gpu_must(cudaMemcpy(want[0], m->device + c.dweight, bytes, cudaMemcpyDeviceToHost), "download");
    gpu_must(cudaMemcpy(want[1], m->device + c.dbias, bytes, cudaMemcpyDeviceToHost), "download");
    for (int i = 0; i < N_WINDOWS; i++) {
        window *w = &m->windows[i];
        window_place(w, &c, chunk[i] * 32, i < 2 ? 32 : c.rows - last * 32);
        window_get(w, &c, m->device, w->a.host);
        memset(w->a.host + w->c.dweight, 0, bytes);
        memset(w->a.host + w->c.dbias, 0, bytes);
        const agoq_exec host = arena_exec(&w->a, 0, w->c.counter);
        right &= run_op(&w->c, &host, w->a.host) == AGOQ_OK;
    }
    for (int64_t k = 0; k <= last; k++) {
        window *w = &m->windows[k == last ? 2 : k % 2];
        add_to(want[0], floats_at(w->a.host, w->c.dweight), cols);
        add_to(want[1], floats_at(w->a.host, w->c.dbias), cols);
    }
    const agoq_exec e = large_exec(m, &c);
    right &= run_op(&c, &e, m->device) == AGOQ_OK;
    gpu_must(cudaDeviceSynchronize(), "large_sums");
    for (int k = 0; k < 2; k++) {
        gpu_must(cudaMemcpy(got, m->device + (k ? c.dbias : c.dweight), bytes, cudaMemcpyDeviceToHost),
                 "download");
        if (memcmp(got, want[k], bytes) == 0) continue;
        right = 0;
        snprintf(detail, sizeof detail, "%s differs, element 0: %a, not %a", k ? "dbias" : "dweight",
                 (double)got[0], (double)want[k][0]);
    }
    snprintf(name, sizeof name, "large_norm_bwd_sums (%lld columns)", (long long)cols);
    gpu_check(right, name, detail);
    free(want[0]);
    free(want[1]);
    free(got);
}

/* Columns that make whole vectors of whole rows, columns that do not, and rows that no block of threads
 * holds; a low plane of more than 2^31 bytes, and high planes. Flags (ops.h) of pack, and of the rest: norms
 * without sums, which large_sums has, with a residual; RoPE in place and packed. */
static const struct {
    int64_t cols;
    int bits;
    uint32_t pack, fused;
} large_shapes[] = {{4096, 8, 0x0, 0x6B}, {4100, 5, 0x0, 0x6A}, {16384, 6, 0x1, 0x6B}};

/* Gradients to nearest and stochastically, both outputs of reduce, and two kinds of step. */
static const struct {
    op o;
    uint32_t flags;
} large_grads[] = {{OP_grad_zero, 0x00},       {OP_grad_accumulate, 0x00},
                   {OP_grad_accumulate, 0x01}, {OP_grad_accumulate_list, 0x00},
                   {OP_grad_read, 0x20},       {OP_grad_reduce, 0x26},
                   {OP_grad_reduce, 0x20},     {OP_adam8_step, 0x05},
                   {OP_adam8_step, 0x0A},      {OP_adam8_init, 0x00}};
enum { N_LARGE_SHAPES = 3, N_LARGE_GRADS = sizeof large_grads / sizeof *large_grads };
enum { LARGE_TESTS = N_LARGE_SHAPES * (OP_swiglu_bwd_packed + 2) + N_LARGE_GRADS + 2 };

static int large_open(large_memory *m) {
    memset(m, 0, sizeof *m);
    size_t host = 0;
    for (int i = 0; i < N_LARGE_SHAPES; i++)
        for (int o = 0; o < N_OPS; o++) {
            const gcase c = large_case((op)o, large_shapes[i].cols, 16, 0);
            const size_t bytes = large_bytes(c),
                         work = agoq_norm_bwd_workspace(AGOQ_DEVICE_CUDA, c.rows, c.cols),
                         sums = agoq_grad_sqnorm_workspace(AGOQ_DEVICE_CUDA, c.rows * c.cols);
            gcase w = c;
            w.rows = 2 * PERIOD;
            m->bytes = bytes > m->bytes ? bytes : m->bytes;
            m->workspace_bytes = work > m->workspace_bytes ? work : m->workspace_bytes;
            m->workspace_bytes = sums > m->workspace_bytes ? sums : m->workspace_bytes;
            host = large_bytes(w) > host ? large_bytes(w) : host;
        }
    if (cudaMalloc((void **)&m->device, m->bytes) || cudaMalloc(&m->workspace, m->workspace_bytes)) {
        printf("skipped: large, not enough device memory, %d tests\n", LARGE_TESTS);
        (void)cudaGetLastError();
        return -1;
    }
    for (int i = 0; i < N_WINDOWS; i++) window_open(&m->windows[i], host);
    m->small.capacity = host;
    m->small.host = malloc(host);
    if (!m->small.host) exit(1);
    return 0;
}

static void large(void) {
    large_memory m;
    if (large_open(&m) != 0) return;
    for (int i = 0; i < N_LARGE_SHAPES; i++) {
        for (int o = 0; o <= OP_swiglu_bwd_packed; o++) {
            const uint32_t flags = o <= OP_unpack_rows ? large_shapes[i].pack : large_shapes[i].fused;
            large_windows(&m, large_case((op)o, large_shapes[i].cols, large_shapes[i].bits, flags));
        }
        large_sums(&m, large_shapes[i].cols);
    }
    for (int i = 0; i < N_LARGE_GRADS; i++)
        large_windows(&m, large_case(large_grads[i].o, 4100, 8, large_grads[i].flags));
    large_whole(&m, OP_grad_sqnorm);
    large_whole(&m, OP_grad_check_finite);
    for (int i = 0; i < N_WINDOWS; i++) window_close(&m.windows[i]);
    free(m.small.host);
    gpu_must(cudaFree(m.device), "free");
    gpu_must(cudaFree(m.workspace), "free");
}

#endif
