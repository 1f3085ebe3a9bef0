/* QuanGrad and the vote over real MPI ranks: `quangrad_mpi CASE`, run by tests/system/10-quangrad-mpi.sh for
 * several numbers of ranks. Every rank makes the inputs of all ranks, so each can check the whole result by
 * itself; that all hold the same bytes is checked by MPI as well. Exit status 0 on all ranks: the case holds.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

#include "agoq/agoq_mpi.h"
#include "libagoq/mpi/exchange.h"
#include "libagoq/mpi/transport.h"
#include "tests/quangrad_ref.h"

enum { MAX_RANKS = 16 };

static int rank, size, n_wrong;

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition) && n_wrong++ < 5) {                                                                 \
            fprintf(stderr, "rank %d of %d, line %d: %s: ", rank, size, __LINE__, #condition);               \
            fprintf(stderr, __VA_ARGS__);                                                                    \
            fprintf(stderr, " (%s)\n", agoq_last_error());                                                   \
        }                                                                                                    \
    } while (0)

/* Do all ranks hold these bytes? */
static int same_everywhere(const void *bytes, size_t n) {
    unsigned char *lead = malloc(n + 1);
    if (!lead) abort();
    if (n) memcpy(lead, bytes, n);
    MPI_Bcast(lead, (int)n, MPI_BYTE, 0, MPI_COMM_WORLD);
    int same = n == 0 || memcmp(lead, bytes, n) == 0, all = 0;
    MPI_Allreduce(&same, &all, 1, MPI_INT, MPI_LAND, MPI_COMM_WORLD);
    free(lead);
    return all;
}

static void reduce_one(agoq_comm *comm, agoq_grad_format format, int64_t n, size_t workspace, int in_place) {
    agoq_grad in[MAX_RANKS], out = ref_grad_new_as(format, n, rank % 16),
                             want = ref_grad_new_as(format, n, 0);
    float *sum = malloc((size_t)(n + 1) * sizeof *sum), *shard = malloc((size_t)(n + 1) * sizeof *shard);
    unsigned char *work = malloc(workspace + 1);
    float multiplier = 1.0f / (float)size;
    if (!sum || !shard || !work) abort();
    for (int r = 0; r < size; r++) {
        in[r] = ref_grad_new_as(format, n, 0);
        ref_fill(&in[r], r, n);
    }
    ref_sum(in, size, multiplier, sum);
    ref_encode(sum, &want);
    const agoq_grad *mine = &in[rank];
    agoq_status status = agoq_reduce_scatter(comm, NULL, mine, shard, multiplier, work + 1, workspace);
    CHECK(status == AGOQ_OK, "reduce_scatter n %lld", (long long)n);
    int64_t begin, end, wrong = -1;
    agoq_shard_range(n, size, rank, &begin, &end);
    for (int64_t i = begin; i < end; i++)
        if (!ref_same_float(shard[i - begin], sum[i])) wrong = i;
    CHECK(wrong < 0, "n %lld workspace %zu: shard wrong at %lld", (long long)n, workspace, (long long)wrong);
    if (in_place && n) {
        memcpy(out.codes, mine->codes, (size_t)n);
        memcpy(out.scales, mine->scales, (size_t)ref_blocks(n) * sizeof *out.scales);
    }
    status = agoq_all_reduce(comm, NULL, in_place ? &out : mine, &out, multiplier, work + 1, workspace);
    CHECK(status == AGOQ_OK, "all_reduce n %lld", (long long)n);
    CHECK(ref_first_difference(&out, &want) < 0, "n %lld workspace %zu in place %d: all_reduce wrong at %lld",
          (long long)n, workspace, in_place, (long long)ref_first_difference(&out, &want));
    CHECK(same_everywhere(out.codes, (size_t)n), "codes differ between ranks, n %lld", (long long)n);
    CHECK(same_everywhere(out.scales, (size_t)ref_blocks(n) * sizeof *out.scales), "scales differ, n %lld",
          (long long)n);
    for (int r = 0; r < size; r++) ref_grad_free(&in[r], 0);
    ref_grad_free(&out, rank % 16);
    ref_grad_free(&want, 0);
    free(sum);
    free(shard);
    free(work);
}

static void reduce_all(agoq_comm *comm) {
    for (int i = 0; i < REF_N_COUNTS; i++) {
        int64_t n = ref_count(i, size);
        size_t least = agoq_comm_workspace_min(comm), full = agoq_comm_workspace_full(comm, n);
        reduce_one(comm, AGOQ_GRAD_E4M3, n, least, 1);
        reduce_one(comm, AGOQ_GRAD_E4M3, n, full < least + 1337 ? full : least + 1337, 0);
        for (int format = 0; format < AGOQ_N_GRAD_FORMATS; format++)
            reduce_one(comm, (agoq_grad_format)format, n, full, (i + format) % 2);
    }
    reduce_one(comm, AGOQ_GRAD_INT8, 300001, agoq_comm_workspace_full(comm, 300001),
               0); /* beyond MPI's eager messages */
}

static void case_grid(void) {
    agoq_comm *comm = NULL;
    CHECK(agoq_comm_from_mpi(MPI_COMM_WORLD, &comm) == AGOQ_OK, "comm_from_mpi");
    if (!comm) return;
    CHECK(agoq_comm_rank(comm) == rank && agoq_comm_size(comm) == size, "rank and size");
    reduce_all(comm);
    agoq_comm_free(&comm);
}

/* The same with a limit of few bytes per MPI call in place of 2 GiB - 1. */
static void case_split(void) {
    static const size_t limits[] = {7, 1000, 4096};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        agoq_transport transport;
        agoq_comm *comm = NULL;
        CHECK(mpi_transport_make(MPI_COMM_WORLD, limits[i], &transport) == AGOQ_OK, "transport");
        CHECK(agoq_comm_new(&transport, &comm) == AGOQ_OK, "comm_new");
        if (!comm) return;
        if (limits[i] == 7)
            reduce_one(comm, AGOQ_GRAD_E5M2, 2000, agoq_comm_workspace_full(comm, 2000), 0);
        else
            reduce_all(comm);
        agoq_comm_free(&comm);
    }
    /* Pieces tile a message: each in range, none empty before the last, together the whole. */
    static const size_t totals[] = {0, 1, 6, 7, 8, 13, 14, 15, ((size_t)1 << 33) + 5, SIZE_MAX};
    for (size_t i = 0; i < sizeof totals / sizeof *totals; i++) {
        size_t limit = totals[i] < 100         ? 7
                       : totals[i] == SIZE_MAX ? SIZE_MAX / 3
                                               : INT_MAX,
               at = 0, offset, bytes;
        for (size_t piece = 0; (bytes = mpi_piece(totals[i], limit, piece, &offset)) != 0; piece++) {
            CHECK(offset == at && bytes <= limit, "piece %zu of %zu", piece, totals[i]);
            at += bytes;
        }
        CHECK(at == totals[i], "pieces of %zu end at %zu", totals[i], at);
    }
}

/* One rank calls with another n or format: every rank is told, none waits for ever. For 2 ranks or more. */
static void case_mismatch(void) {
    for (int kind = 0; kind < 4; kind++) { /* 3: another format */
        agoq_comm *comm = NULL;
        CHECK(agoq_comm_from_mpi(MPI_COMM_WORLD, &comm) == AGOQ_OK, "comm_from_mpi");
        if (!comm) return;
        int64_t n = 128 * (int64_t)size * (kind == 2 ? 20000 : 3) - 9; /* 2: longer than MPI sends at once */
        if (rank == size - 1 && kind < 3) n = kind == 2 ? n / 2 : n + (kind ? 128 * (int64_t)size : 1);
        agoq_grad g = ref_grad_new_as(kind == 3 && rank == size - 1 ? AGOQ_GRAD_E5M2 : AGOQ_GRAD_E4M3, n, 0);
        ref_fill(&g, rank, n);
        size_t bytes = agoq_comm_workspace_full(comm, 2 * n);
        void *work = malloc(bytes);
        agoq_status status = agoq_all_reduce(comm, NULL, &g, &g, 1, work, bytes);
        CHECK(status == AGOQ_E_INVAL && agoq_last_error()[0] != 0, "status %d", (int)status);
        free(work);
        ref_grad_free(&g, 0);
        agoq_comm_free(&comm);
        MPI_Barrier(MPI_COMM_WORLD);
    }
    /* The transport itself tells when less came than was expected. */
    agoq_transport t;
    unsigned char send[4 * MAX_RANKS] = {0}, recv[8 * MAX_RANKS];
    size_t send_bytes[MAX_RANKS], recv_bytes[MAX_RANKS], at[MAX_RANKS];
    for (int r = 0; r < size; r++) {
        send_bytes[r] = r == rank ? 0 : 4;
        recv_bytes[r] = r == rank ? 0 : 8;
        at[r] = 4 * (size_t)r;
    }
    CHECK(mpi_transport_make(MPI_COMM_WORLD, INT_MAX, &t) == AGOQ_OK, "transport");
    CHECK(t.all_to_all(t.ctx, send, send_bytes, at, recv, recv_bytes, at) == AGOQ_E_COMM, "a short message");
    t.destroy(t.ctx);
}

/* One rank's workspace is missing, the others' messages are longer than what MPI sends at once: all are told.
 */
static void case_refuse(void) {
    const int64_t n = 1 << 23;
    agoq_comm *comm = NULL;
    CHECK(agoq_comm_from_mpi(MPI_COMM_WORLD, &comm) == AGOQ_OK, "comm_from_mpi");
    if (!comm) return;
    agoq_grad g = ref_grad_new(n, 0);
    size_t bytes = agoq_comm_workspace_full(comm, n);
    void *work = malloc(bytes);
    ref_fill(&g, rank, n);
    agoq_status status = agoq_all_reduce(comm, NULL, &g, &g, 1, rank ? work : NULL, bytes);
    CHECK(status == AGOQ_E_INVAL, "status %d", (int)status);
    CHECK(agoq_all_reduce(comm, NULL, &g, &g, 1, work, bytes) == AGOQ_OK, "the next call");
    free(work);
    ref_grad_free(&g, 0);
    agoq_comm_free(&comm);
}

/* Elements 0 .. 127 of block b on a rank: cheap, and different for every block and rank. */
static void huge_block(int64_t b, int from, uint8_t codes[128], float *scale) {
    for (int64_t i = 0; i < 128; i++) codes[i] = (uint8_t)(0x38 + (b * 5 + i * 3 + from) % 70);
    *scale = 1.0f / (float)(1 + (b + from) % 1000);
}

/* More than 2^31 elements: displacements above 2 GiB, and with the full workspace messages above it (2
 * ranks). */
static void case_huge(void) {
    const int64_t n = (1ll << 31) + 128 * 1000 + 77, n_blocks = ref_blocks(n);
    agoq_comm *comm = NULL;
    agoq_grad g = ref_grad_new(n, 0);
    for (int64_t b = 0; b < n_blocks; b++) {
        uint8_t codes[128];
        huge_block(b, rank, codes, &g.scales[b]);
        memcpy(g.codes + 128 * b, codes, (size_t)(n - 128 * b < 128 ? n - 128 * b : 128));
    }
    CHECK(agoq_comm_from_mpi(MPI_COMM_WORLD, &comm) == AGOQ_OK, "comm_from_mpi");
    if (!comm) return;
    size_t bytes = size == 2 ? agoq_comm_workspace_full(comm, n) : (size_t)256 << 20;
    void *work = malloc(bytes);
    CHECK(work && agoq_all_reduce(comm, NULL, &g, &g, 1, work, bytes) == AGOQ_OK, "all_reduce");
    for (int64_t b = 0; b < n_blocks; b += b < 1000 || b > n_blocks - 3000 ? 1 : 1009) {
        uint8_t codes[MAX_RANKS][128], want_codes[128];
        float scales[MAX_RANKS], sum[128], want_scale;
        agoq_grad in[MAX_RANKS],
            want = {want_codes, &want_scale, n - 128 * b < 128 ? n - 128 * b : 128, AGOQ_GRAD_E4M3};
        for (int r = 0; r < size; r++) {
            huge_block(b, r, codes[r], &scales[r]);
            in[r] = (agoq_grad){codes[r], &scales[r], want.n, AGOQ_GRAD_E4M3};
        }
        ref_sum(in, size, 1, sum);
        ref_encode(sum, &want);
        const agoq_grad got = {g.codes + 128 * b, g.scales + b, want.n, AGOQ_GRAD_E4M3};
        CHECK(ref_first_difference(&got, &want) < 0, "block %lld", (long long)b);
    }
    free(work);
    ref_grad_free(&g, 0);
    agoq_comm_free(&comm);
}

/* Two communicators at once, over a subset of the ranks, and a communicator whose owner freed it. */
static void case_comms(void) {
    MPI_Comm half;
    agoq_comm *a = NULL, *b = NULL;
    MPI_Comm_split(MPI_COMM_WORLD, rank % 2, -rank, &half);
    CHECK(agoq_comm_from_mpi(half, &a) == AGOQ_OK, "comm of a half");
    CHECK(agoq_comm_from_mpi(MPI_COMM_WORLD, &b) == AGOQ_OK, "comm of all");
    MPI_Comm_free(&half);
    int world_rank = rank, world_size = size;
    CHECK(agoq_comm_size(a) == (world_size + 1 - rank % 2) / 2, "size of a half");
    reduce_one(b, AGOQ_GRAD_E4M3, 1000, agoq_comm_workspace_full(b, 1000), 0);
    agoq_comm_free(&b);
    agoq_grad g = ref_grad_new(500, 0);
    size_t bytes = agoq_comm_workspace_full(a, 500);
    void *work = malloc(bytes + 1);
    ref_fill(&g, 0, 1);
    float before = ref_decode(g.codes[0], g.scales[0]);
    CHECK(agoq_all_reduce(a, NULL, &g, &g, 1, work, bytes) == AGOQ_OK, "all_reduce in a half");
    float want = before * (float)agoq_comm_size(a), got = ref_decode(g.codes[0], g.scales[0]);
    CHECK(fabsf(got - want) <= 0.07f * fabsf(want), "%g, not %g", (double)got, (double)want);
    free(work);
    ref_grad_free(&g, 0);
    agoq_comm_free(&a);
    CHECK(agoq_comm_from_mpi(MPI_COMM_NULL, &a) == AGOQ_E_INVAL && !a, "null communicator");
    CHECK(agoq_comm_from_mpi(MPI_COMM_WORLD, NULL) == AGOQ_E_INVAL, "NULL out");
    CHECK(agoq_session_attach_mpi(NULL, MPI_COMM_WORLD) == AGOQ_E_INVAL, "NULL session");
    rank = world_rank;
}

/* Sessions with a fixed plan attach, vote at every step, and close with a vote under way. */
static void case_vote(void) {
    agoq_session_config config;
    memset(&config, 0, sizeof config);
    config.size = sizeof config;
    config.use_fixed_bits = 1;
    config.rank = rank;
    config.world = size;
    agoq_session *session = NULL;
    CHECK(agoq_session_open(&config, &session) == AGOQ_OK, "open");
    if (!session) return;
    CHECK(agoq_session_attach_mpi(session, MPI_COMM_WORLD) == AGOQ_OK, "attach");
    agoq_plan_state state, *s = &state;
    for (int64_t step = 0; step < 20; step++) {
        CHECK(agoq_step_begin(session, step) == AGOQ_OK, "step_begin %lld", (long long)step);
        CHECK(agoq_step_end(session, NULL) == AGOQ_OK, "step_end");
        agoq_session_state(session, s);
        CHECK(same_everywhere(&s->plan_id, sizeof s->plan_id), "plan ids differ");
        CHECK(s->disagreements == 0, "disagreements");
    }
    /* Again: the old communicator is replaced while its vote is under way. */
    CHECK(agoq_session_attach_mpi(session, MPI_COMM_WORLD) == AGOQ_OK, "attach again");
    CHECK(agoq_step_begin(session, 20) == AGOQ_OK, "step_begin after it");
    agoq_session_close(&session);
}

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(void);
    } cases[] = {{"grid", case_grid},    {"split", case_split}, {"mismatch", case_mismatch},
                 {"comms", case_comms},  {"vote", case_vote},   {"huge", case_huge},
                 {"refuse", case_refuse}};
    agoq_comm *early = NULL;
    int before_init = agoq_comm_from_mpi(MPI_COMM_NULL, &early);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    CHECK(before_init == AGOQ_E_STATE, "before MPI_Init");
    int known = size <= MAX_RANKS ? 0 : -1;
    for (size_t i = 0; argc == 2 && !known && i < sizeof cases / sizeof *cases; i++) {
        if (strcmp(argv[1], cases[i].name)) continue;
        cases[i].run();
        known = 1;
    }
    int bad = n_wrong || known != 1, any = 1;
    MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_LOR, MPI_COMM_WORLD);
    MPI_Finalize();
    return any;
}
