/* QuanGrad over MPI against MPI_Allreduce of the same gradient in FP32, in one run on the same ranks. A size
 * is timed only after its result was compared with the reference of the tests, byte for byte on sampled
 * blocks, and found equal on all ranks. Times are medians of the slowest rank, over ITERATIONS alternating
 * calls. mpirun -n N quangrad_mpi [MOST_ELEMENTS [JSON_FILE]] What to expect: fewer bytes for more
 * arithmetic. It pays where the network, not the processor, is the limit; ranks that share one memory mostly
 * measure the arithmetic. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

#include "agoq/agoq_mpi.h"
#include "tests/quangrad_ref.h"

enum { ITERATIONS = 9, MAX_RANKS = 64, SAMPLE_STRIDE = 61 };

typedef struct bench {
    int rank, size;
    int64_t n;
    agoq_comm *comm;
    agoq_grad in, out;
    float *plain, *plain_sum, *shard;
    void *work;
    size_t work_bytes;
} bench;

typedef enum operation { ALL_REDUCE, REDUCE_SCATTER, PLAIN, N_WHAT } operation;

static void die(const char *text) {
    fprintf(stderr, "quangrad_mpi: %s (%s)\n", text, agoq_last_error());
    MPI_Abort(MPI_COMM_WORLD, 1);
}

static agoq_status run(bench *b, operation what) {
    float mean = 1.0f / (float)b->size;
    switch (what) {
    case ALL_REDUCE:
        return agoq_all_reduce(b->comm, NULL, &b->in, &b->out, mean, b->work, b->work_bytes);
    case REDUCE_SCATTER:
        return agoq_reduce_scatter(b->comm, NULL, &b->in, b->shard, mean, b->work, b->work_bytes);
    default:
        break;
    }
    MPI_Allreduce(b->plain, b->plain_sum, (int)b->n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    return AGOQ_OK;
}

static void fill_block(agoq_grad *g, int rank, int64_t block) {
    uint64_t state = (uint64_t)rank << 40 | (uint64_t)block;
    float x[128];
    for (int i = 0; i < 128; i++) x[i] = ref_gauss(&state);
    ref_encode(x, g);
}

static agoq_grad block_of(const agoq_grad *g, int64_t block) {
    int64_t left = g->n - 128 * block;
    return (agoq_grad){g->codes + 128 * block, g->scales + block, left < 128 ? left : 128, AGOQ_GRAD_E4M3};
}

/* 1 on all ranks, or 0 on all. */
static int is_right(bench *b) {
    int right = run(b, ALL_REDUCE) == AGOQ_OK && run(b, REDUCE_SCATTER) == AGOQ_OK, all = 0;
    int64_t begin, end;
    agoq_shard_range(b->n, b->size, b->rank, &begin, &end);
    for (int64_t k = b->rank % SAMPLE_STRIDE; right && k < ref_blocks(b->n); k += SAMPLE_STRIDE) {
        static uint8_t codes[MAX_RANKS + 1][128];
        static float scales[MAX_RANKS + 1];
        agoq_grad in[MAX_RANKS], got = block_of(&b->out, k),
                                 want = {codes[MAX_RANKS], &scales[MAX_RANKS], got.n};
        float sum[128];
        for (int r = 0; r < b->size; r++) {
            in[r] = (agoq_grad){codes[r], &scales[r], got.n, AGOQ_GRAD_E4M3};
            fill_block(&in[r], r, k);
        }
        ref_sum(in, b->size, 1.0f / (float)b->size, sum);
        ref_encode(sum, &want);
        right = ref_first_difference(&got, &want) < 0;
        for (int64_t i = 0; i < got.n; i++) {
            int64_t at = 128 * k + i - begin;
            if (at >= 0 && at < end - begin) right &= ref_same_float(b->shard[at], sum[i]);
        }
    }
    uint64_t mix = 0, lowest, highest;
    for (int64_t i = 0; i < b->n; i++) mix = mix * 0x9E3779B97F4A7C15u + b->out.codes[i];
    MPI_Allreduce(&mix, &lowest, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
    MPI_Allreduce(&mix, &highest, 1, MPI_UINT64_T, MPI_MAX, MPI_COMM_WORLD);
    right &= lowest == highest;
    MPI_Allreduce(&right, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    return all;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Alternating, so that whatever else the machine does meets all of them alike. */
static void measure(bench *b, double median[N_WHAT]) {
    double seconds[N_WHAT][ITERATIONS];
    for (int i = 0; i < ITERATIONS; i++) {
        for (int w = 0; w < N_WHAT; w++) {
            MPI_Barrier(MPI_COMM_WORLD);
            double start = MPI_Wtime();
            if (run(b, (operation)w) != AGOQ_OK) die("a collective failed");
            double took = MPI_Wtime() - start;
            MPI_Allreduce(&took, &seconds[w][i], 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        }
    }
    for (int w = 0; w < N_WHAT; w++) {
        qsort(seconds[w], ITERATIONS, sizeof seconds[w][0], by_value);
        median[w] = seconds[w][ITERATIONS / 2];
    }
}

static void bench_size(bench *b, int64_t n, FILE *json) {
    b->n = n;
    b->in = ref_grad_new(n, 0);
    b->out = ref_grad_new(n, 0);
    b->work_bytes = agoq_comm_workspace_full(b->comm, n);
    b->work = malloc(b->work_bytes + 1);
    b->plain = malloc((size_t)n * sizeof(float));
    b->plain_sum = malloc((size_t)n * sizeof(float));
    b->shard = malloc((size_t)n * sizeof(float));
    if (!b->work || !b->plain || !b->plain_sum || !b->shard) die("out of memory");
    for (int64_t k = 0; k < ref_blocks(n); k++) {
        agoq_grad block = block_of(&b->in, k);
        fill_block(&block, b->rank, k);
    }
    for (int64_t i = 0; i < n; i++) b->plain[i] = ref_decode(b->in.codes[i], b->in.scales[i / 128]);
    if (!is_right(b)) die("the result is wrong: nothing is timed");
    double t[N_WHAT];
    measure(b, t);
    if (b->rank == 0) {
        printf("%12lld %12.3f %12.3f %12.3f %9.2fx\n", (long long)n, 1e3 * t[ALL_REDUCE],
               1e3 * t[REDUCE_SCATTER], 1e3 * t[PLAIN], t[PLAIN] / t[ALL_REDUCE]);
        fflush(stdout);
    }
    if (b->rank == 0 && json)
        fprintf(json,
                "{\"bench\": \"quangrad_mpi\", \"ranks\": %d, \"elements\": %lld, \"all_reduce_s\": %.9f, "
                "\"reduce_scatter_s\": %.9f, \"mpi_allreduce_f32_s\": %.9f, \"ratio\": %.4f}\n",
                b->size, (long long)n, t[ALL_REDUCE], t[REDUCE_SCATTER], t[PLAIN], t[PLAIN] / t[ALL_REDUCE]);
    ref_grad_free(&b->in, 0);
    ref_grad_free(&b->out, 0);
    free(b->work);
    free(b->plain);
    free(b->plain_sum);
    free(b->shard);
}

int main(int argc, char **argv) {
    bench b = {0};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &b.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &b.size);
    if (b.size > MAX_RANKS) die("too many ranks");
    int64_t most = argc > 1 ? strtoll(argv[1], NULL, 10) : 1 << 24;
    if (most < 1 || most > 1 << 30) die("usage: quangrad_mpi [MOST_ELEMENTS up to 2^30 [JSON_FILE]]");
    FILE *json = argc > 2 && b.rank == 0 ? fopen(argv[2], "a") : NULL;
    if (argc > 2 && b.rank == 0 && !json) die("the JSON file cannot be written");
    if (agoq_comm_from_mpi(MPI_COMM_WORLD, &b.comm) != AGOQ_OK) die("no communicator");
    if (b.rank == 0)
        printf("%d ranks, milliseconds\n%12s %12s %12s %12s %10s\n", b.size, "elements", "all_reduce",
               "red.scatter", "MPI f32", "f32/ours");
    for (int64_t n = 1024; n <= most; n *= 8) bench_size(&b, n, json);
    if (json && fclose(json)) die("the JSON file cannot be written");
    agoq_comm_free(&b.comm);
    MPI_Finalize();
    return 0;
}
