/* QuanGrad between threads: any number of ranks, any count, any workspace, in place or not, against a
 * reference that shares no code with it (tests/quangrad_ref.h). Values, special values, ranks that disagree,
 * and transports that fail. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "common/mem.h"
#include "tests/quangrad_ref.h"
#include "tests/unit/thread_world.h"

/* One set of inputs and everything the ranks made of it. */
typedef struct run {
    int n_ranks, skew;
    int64_t n;
    float multiplier;
    size_t workspace; /* 0: the least, 1: the full, else bytes on top of the least */
    int in_place, no_alloc;
    agoq_grad in[WORLD_MAX], out[WORLD_MAX];
    float *shard[WORLD_MAX];
    uint32_t nonfinite[WORLD_MAX], nonfinite_shard[WORLD_MAX];
    agoq_status reduced[WORLD_MAX], scattered[WORLD_MAX];
    int guards_broken;
} run;

static void run_init_as(run *t, agoq_grad_format format, int n_ranks, int64_t n, float multiplier, int skew) {
    memset(t, 0, sizeof *t);
    t->n_ranks = n_ranks;
    t->n = n;
    t->multiplier = multiplier;
    t->skew = skew;
    for (int r = 0; r < n_ranks; r++) {
        t->in[r] = ref_grad_new_as(format, n, skew);
        t->out[r] = ref_grad_new_as(format, n, (skew * 7 + r) % 16);
        t->shard[r] = malloc((size_t)(n + 1) * sizeof(float));
        assert_non_null(t->shard[r]);
        ref_fill(&t->in[r], r, n);
    }
}

static void run_init(run *t, int n_ranks, int64_t n, float multiplier, int skew) {
    run_init_as(t, AGOQ_GRAD_E4M3, n_ranks, n, multiplier, skew);
}

static void run_fini(run *t) {
    for (int r = 0; r < t->n_ranks; r++) {
        ref_grad_free(&t->in[r], t->skew);
        ref_grad_free(&t->out[r], (t->skew * 7 + r) % 16);
        free(t->shard[r]);
    }
}

static void copy_grad(agoq_grad *to, const agoq_grad *from) {
    if (from->n == 0) return;
    memcpy(to->codes, from->codes, (size_t)from->n);
    memcpy(to->scales, from->scales, (size_t)ref_blocks(from->n) * sizeof *from->scales);
}

static size_t workspace_bytes(const run *t, const agoq_comm *comm) {
    size_t least = agoq_comm_workspace_min(comm);
    return t->workspace == 0   ? least
           : t->workspace == 1 ? agoq_comm_workspace_full(comm, t->n)
                               : least + t->workspace;
}

/* Both collectives on one rank; guard bytes around workspace, output and shard. */
static void reduce_and_scatter(world_rank *self, void *arg) {
    run *t = arg;
    int r = self->rank;
    size_t bytes = workspace_bytes(t, self->comm);
    unsigned char *memory = malloc(bytes + 64), *work = memory + 16 + t->skew % 16;
    int64_t begin, end;
    agoq_shard_range(t->n, t->n_ranks, r, &begin, &end);
    memset(memory, 0x5A, bytes + 64);
    t->out[r].codes[t->n] = 0x5A;
    t->shard[r][end - begin] = 12345;
    if (t->in_place) copy_grad(&t->out[r], &t->in[r]);
    agoq_exec exec = {.device = AGOQ_DEVICE_CPU, .nonfinite = &t->nonfinite_shard[r]};
    if (t->no_alloc && r == 0) mem_fail_after(1);
    t->scattered[r] =
        agoq_reduce_scatter(self->comm, &exec, &t->in[r], t->shard[r], t->multiplier, work, bytes);
    exec.nonfinite = &t->nonfinite[r];
    t->reduced[r] = agoq_all_reduce(self->comm, &exec, t->in_place ? &t->out[r] : &t->in[r], &t->out[r],
                                    t->multiplier, work, bytes);
    int broken = t->out[r].codes[t->n] != 0x5A || t->shard[r][end - begin] != 12345;
    for (unsigned char *p = memory; p < memory + bytes + 64; p++)
        broken |= (p < work || p >= work + bytes) && *p != 0x5A;
    if (broken) t->guards_broken = 1;
    free(memory);
}

static void run_ranks(run *t) {
    world w;
    assert_int_equal(world_run(t->n_ranks, 0, reduce_and_scatter, t, &w), 0);
    mem_fail_after(0);
    assert_int_equal(t->guards_broken, 0);
    for (int r = 0; r < t->n_ranks; r++) {
        assert_int_equal(t->scattered[r], AGOQ_OK);
        assert_int_equal(t->reduced[r], AGOQ_OK);
    }
}

static void check_against(const run *t, const agoq_grad *want, const float *sum) {
    for (int r = 0; r < t->n_ranks; r++) {
        int64_t begin, end, at = ref_first_difference(&t->out[r], want);
        if (at >= 0 || !ref_same_bytes(&t->out[r], &t->out[0]))
            fail_msg("N %d n %lld workspace %zu in place %d: rank %d differs at %lld", t->n_ranks,
                     (long long)t->n, t->workspace, t->in_place, r, (long long)at);
        agoq_shard_range(t->n, t->n_ranks, r, &begin, &end);
        for (int64_t i = begin; i < end; i++) {
            if (!ref_same_float(t->shard[r][i - begin], sum[i]))
                fail_msg("N %d n %lld workspace %zu: shard of rank %d: [%lld] is %g, not %g", t->n_ranks,
                         (long long)t->n, t->workspace, r, (long long)i, (double)t->shard[r][i - begin],
                         (double)sum[i]);
        }
    }
}

/* Reference, the run, comparison. first: bytes of an earlier run to compare with, or to set. */
static void run_and_check(run *t, agoq_grad *first, int is_first) {
    agoq_grad want = ref_grad_new_as(t->in[0].format, t->n, 0);
    float *sum = malloc((size_t)(t->n + 1) * sizeof *sum);
    ref_sum(t->in, t->n_ranks, t->multiplier, sum);
    ref_encode(sum, &want);
    run_ranks(t);
    check_against(t, &want, sum);
    if (first && is_first) copy_grad(first, &t->out[0]);
    if (first) assert_true(ref_same_bytes(first, &t->out[0]));
    ref_grad_free(&want, 0);
    free(sum);
}

static void every_rank_count_and_workspace(void **state) {
    (void)state;
    static const size_t workspaces[] = {0, 1, 37, 1001, 4567, 1u << 20};
    for (int n_ranks = 1; n_ranks <= WORLD_MAX; n_ranks++) {
        for (int i = 0; i < REF_N_COUNTS; i++) {
            run t;
            run_init(&t, n_ranks, ref_count(i, n_ranks), 1.0f / (float)n_ranks, (n_ranks * 5 + i) % 16);
            agoq_grad first = ref_grad_new(t.n, 0);
            for (size_t v = 0; v < 2 * (sizeof workspaces / sizeof *workspaces); v++) {
                t.workspace = workspaces[v / 2];
                t.in_place = v % 2 == 1;
                run_and_check(&t, &first, v == 0);
            }
            ref_grad_free(&first, 0);
            run_fini(&t);
        }
    }
}

/* The other formats: one round and many, in place and not. */
static void every_format(void **state) {
    (void)state;
    for (int format = AGOQ_GRAD_E5M2; format < AGOQ_N_GRAD_FORMATS; format++) {
        for (int n_ranks = 1; n_ranks <= 5; n_ranks++) {
            for (int i = 0; i < REF_N_COUNTS; i++) {
                run t;
                run_init_as(&t, (agoq_grad_format)format, n_ranks, ref_count(i, n_ranks),
                            1.0f / (float)n_ranks, (n_ranks * 5 + i) % 16);
                agoq_grad first = ref_grad_new_as((agoq_grad_format)format, t.n, 0);
                for (int v = 0; v < 4; v++) {
                    t.workspace = v / 2 ? 37 : 1;
                    t.in_place = v % 2;
                    run_and_check(&t, &first, v == 0);
                }
                ref_grad_free(&first, 0);
                run_fini(&t);
            }
        }
    }
}

/* Fewer rounds with more memory, and not one byte more on the wire than the formats need. */
static void wire_bytes_are_those_of_the_formats(void **state) {
    (void)state;
    for (int n_ranks = 2; n_ranks <= 5; n_ranks++) {
        run t;
        world w;
        run_init(&t, n_ranks, 128 * 60, 1, 0);
        t.workspace = 1;
        assert_int_equal(world_run(n_ranks, 0, reduce_and_scatter, &t, &w), 0);
        /* reduce-scatter and all-reduce: three half-exchanges, each (N-1)/N of the tensor; N = 2: the last
         * two are one */
        size_t each = (size_t)(n_ranks - 1) * (size_t)(60 / n_ranks) * 132;
        size_t headers = 2 * 24 * (size_t)(n_ranks - 1);
        for (int r = 0; r < n_ranks; r++) {
            assert_int_equal(w.ranks[r].received, 3 * each + headers);
            assert_int_equal(w.ranks[r].n_calls, n_ranks == 2 ? 6 : 8);
        }
        run_fini(&t);
    }
}

static void nothing_is_allocated(void **state) {
    (void)state;
    run t;
    run_init(&t, 3, 5000, 1, 1);
    t.no_alloc = 1;
    run_and_check(&t, NULL, 0);
    run_fini(&t);
}

typedef struct error {
    double relative, bias;
} error;

static void add_error(double got, double want, double sums[3]) {
    sums[0] += (got - want) * (got - want);
    sums[1] += want * want;
    sums[2] += got * want;
}

static error error_of(const double sums[3]) {
    return (error){sqrt(sums[0] / sums[1]), sums[2] / sums[1] - 1};
}

/* Gaussian data. One rounding of E4M3 is 2.57 %, two are 3.64 %, and a rounding shifts by -0.06 %. Against
 * what ranks had before they stored it in FP8, a shard has seen one and a reduced gradient two; against what
 * they stored, none and one: the exchange itself adds nothing, whatever the number of ranks. */
static void errors_are_one_and_two_roundings(void **state) {
    (void)state;
    enum { N = 128 * 1024 };
    static const int sizes[] = {2, 3, 4, 8};
    double *exact = malloc(N * sizeof *exact), *stored = malloc(N * sizeof *stored);
    float *x = malloc(N * sizeof *x);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        run t;
        run_init(&t, sizes[k], N, 1.0f / (float)sizes[k], 0);
        t.workspace = 1;
        for (int i = 0; i < N; i++) exact[i] = stored[i] = 0;
        for (int r = 0; r < t.n_ranks; r++) {
            uint64_t seed = 77 + (uint64_t)r;
            for (int i = 0; i < N; i++) exact[i] += (double)(x[i] = ref_gauss(&seed)) / t.n_ranks;
            ref_encode(x, &t.in[r]);
            for (int i = 0; i < N; i++) stored[i] += (double)ref_at(&t.in[r], i) / t.n_ranks;
        }
        run_ranks(&t);
        double reduced[3] = {0}, reduced_stored[3] = {0}, shards[3] = {0}, shards_stored[3] = {0};
        for (int r = 0; r < t.n_ranks; r++) {
            int64_t begin, end;
            agoq_shard_range(N, t.n_ranks, r, &begin, &end);
            for (int64_t i = begin; i < end; i++) {
                double ar = (double)ref_at(&t.out[r], i);
                double rs = (double)t.shard[r][i - begin];
                add_error(ar, exact[i], reduced);
                add_error(ar, stored[i], reduced_stored);
                add_error(rs, exact[i], shards);
                add_error(rs, stored[i], shards_stored);
            }
        }
        error ar = error_of(reduced), ar_stored = error_of(reduced_stored);
        error rs = error_of(shards), rs_stored = error_of(shards_stored);
        printf("N %d, %% (bias): all-reduce %.3f (%+.3f), of the exchange %.3f (%+.3f), reduce-scatter %.3f "
               "(%+.3f)\n",
               t.n_ranks, 100 * ar.relative, 100 * ar.bias, 100 * ar_stored.relative, 100 * ar_stored.bias,
               100 * rs.relative, 100 * rs.bias);
        assert_true(ar.relative <= 0.037 && fabs(ar.bias) <= 0.002);
        assert_true(ar_stored.relative <= 0.026 && fabs(ar_stored.bias) <= 0.001);
        assert_true(rs.relative <= 0.026 && rs.relative > 0.02 && fabs(rs.bias) <= 0.001);
        assert_true(rs_stored.relative <= 1e-6 && fabs(rs_stored.bias) <= 1e-6);
        run_fini(&t);
    }
    free(exact);
    free(stored);
    free(x);
}

/* An FP8-rounded 1/3 would be 3 % off. */
static void averages_exactly(void **state) {
    (void)state;
    run t;
    run_init(&t, 3, 300, 1.0f / 3, 0);
    for (int r = 0; r < 3; r++) {
        for (int i = 0; i < 300; i++) t.in[r].codes[i] = 0x7E; /* 448 */
        for (int b = 0; b < 3; b++) t.in[r].scales[b] = 1.0f / 64;
    }
    run_and_check(&t, NULL, 0);
    for (int i = 0; i < 300; i++) {
        float mean = ref_at(&t.out[2], i);
        assert_true(fabsf(mean - 7) <= 7 * 0x1p-22f);
    }
    run_fini(&t);
}

static void set_block(agoq_grad *g, int64_t b, uint8_t code, float scale) {
    for (int64_t i = 128 * b; i < 128 * (b + 1) && i < g->n; i++) g->codes[i] = code;
    g->scales[b] = scale;
}

static void special_values(void **state) {
    (void)state;
    enum { ZERO, TINY, HUGE_SUM, OVERFLOW, NAN_SCALE, NAN_CODE, CANCEL, MINUS_ZERO, PLAIN, N_KINDS };
    for (int n_ranks = 1; n_ranks <= 5; n_ranks++) {
        run t;
        /* twice: with every kind in the middle of a shard, and at the end */
        run_init(&t, n_ranks, 128 * 2 * N_KINDS - 5, 1, 3);
        int last = n_ranks - 1;
        for (int b = 0; b < 2 * N_KINDS; b++) {
            for (int r = 0; r < n_ranks; r++) {
                agoq_grad *g = &t.in[r];
                switch (b % N_KINDS) {
                case ZERO:
                    set_block(g, b, 0, 0);
                    break;
                case TINY:
                    set_block(g, b, 0x7E, r ? 0 : 0x1p-126f);
                    break;
                case HUGE_SUM:
                    set_block(g, b, 0x7E, 1e38f / 448 / (float)n_ranks);
                    break;
                case OVERFLOW:
                    set_block(g, b, 0x7E, 3e38f / 448);
                    break;
                case NAN_SCALE:
                    if (r == last) g->scales[b] = NAN;
                    break;
                case NAN_CODE:
                    if (r == last) g->codes[128 * b + 9] = 0xFF;
                    break;
                case CANCEL:
                    set_block(g, b, r % 2 ? 0xFE : 0x7E, r == last && r % 2 == 0 ? 0 : 2);
                    break;
                case MINUS_ZERO:
                    g->codes[128 * b] = 0x80;
                    break;
                default:
                    break;
                }
            }
        }
        for (int in_place = 0; in_place < 2; in_place++) {
            t.workspace = in_place ? 1 : 0;
            t.in_place = in_place;
            memset(t.nonfinite, 0, sizeof t.nonfinite);
            memset(t.nonfinite_shard, 0, sizeof t.nonfinite_shard);
            run_and_check(&t, NULL, 0);
            uint32_t in_shards = 0;
            for (int r = 0; r < n_ranks; r++) {
                assert_int_equal(t.nonfinite[r], n_ranks == 1 ? 4 : 6);
                in_shards += t.nonfinite_shard[r];
                assert_true(isnan(t.out[r].scales[NAN_SCALE]) && isnan(t.out[r].scales[NAN_CODE + N_KINDS]));
                assert_true(t.out[r].scales[ZERO] == 0);
            }
            assert_int_equal(in_shards, n_ranks == 1 ? 4 : 6);
        }
        run_fini(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_rank_count_and_workspace),
        cmocka_unit_test(every_format),
        cmocka_unit_test(wire_bytes_are_those_of_the_formats),
        cmocka_unit_test(nothing_is_allocated),
        cmocka_unit_test(errors_are_one_and_two_roundings),
        cmocka_unit_test(averages_exactly),
        cmocka_unit_test(special_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
