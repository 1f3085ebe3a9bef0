/* QuanGrad when something is wrong: transports that fail, ranks that disagree, bad arguments, no memory; and
 * the shard ranges for sizes that no test can allocate. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "common/mem.h"
#include "tests/quangrad_ref.h"
#include "tests/unit/thread_world.h"

enum { N = 2000 };

/* What each rank calls with, and what it got. */
typedef struct trial {
    int64_t n[WORLD_MAX];
    float multiplier[WORLD_MAX];
    size_t workspace[WORLD_MAX]; /* 0: the full */
    int scatter[WORLD_MAX];
    agoq_grad_format format[WORLD_MAX];
    enum { GOOD, NO_WORKSPACE, NO_IN, NO_OUT, ON_GPU, OTHER_FORMAT, OVERLAP } bad[WORLD_MAX];
    agoq_status got[WORLD_MAX], again[WORLD_MAX];
    char detail[WORLD_MAX][256];
} trial;

static void call(world_rank *self, void *arg) {
    trial *t = arg;
    int r = self->rank;
    agoq_grad in = ref_grad_new_as(t->format[r], t->n[r], 0),
              out = ref_grad_new_as(t->bad[r] == OTHER_FORMAT ? AGOQ_GRAD_INT8 : t->format[r], t->n[r], 0);
    float *shard = malloc(N * 2 * sizeof *shard);
    size_t bytes = t->workspace[r] ? t->workspace[r] : agoq_comm_workspace_full(self->comm, t->n[r]);
    void *work = malloc(bytes);
    ref_fill(&in, r, 3);
    if (t->bad[r]) {
        agoq_grad shifted = {in.codes + 128, in.scales, in.n, in.format};
        const agoq_exec gpu = {.device = AGOQ_DEVICE_CUDA};
        t->got[r] =
            agoq_all_reduce(self->comm, t->bad[r] == ON_GPU ? &gpu : NULL, t->bad[r] == NO_IN ? NULL : &in,
                            t->bad[r] == NO_OUT    ? NULL
                            : t->bad[r] == OVERLAP ? &shifted
                                                   : &out,
                            1, t->bad[r] == NO_WORKSPACE ? NULL : work, bytes);
    } else
        t->got[r] = t->scatter[r]
                        ? agoq_reduce_scatter(self->comm, NULL, &in, shard, t->multiplier[r], work, bytes)
                        : agoq_all_reduce(self->comm, NULL, &in, &out, t->multiplier[r], work, bytes);
    strncpy(t->detail[r], agoq_last_error(), sizeof t->detail[r] - 1);
    agoq_grad small = ref_grad_new(100, 0); /* and the next call */
    t->again[r] = agoq_all_reduce(self->comm, NULL, &small, &small, 1, work, bytes);
    ref_grad_free(&small, 0);
    free(work);
    free(shard);
    ref_grad_free(&in, 0);
    ref_grad_free(&out, 0);
}

static trial trial_of(int n_ranks) {
    trial t = {0};
    for (int r = 0; r < n_ranks; r++) {
        t.n[r] = N;
        t.multiplier[r] = 1;
    }
    return t;
}

static void failing_transport_is_reported(void **state) {
    (void)state;
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++) {
        int fail_at = 1, n_failures = 0;
        for (;; fail_at++) {
            world w;
            trial t = trial_of(n_ranks);
            t.workspace[0] = t.workspace[1] = t.workspace[2] = t.workspace[3] = 1500;
            assert_int_equal(world_run(n_ranks, fail_at, call, &t, &w), 0);
            if (t.got[0] == AGOQ_OK) break;
            n_failures++;
            for (int r = 0; r < n_ranks; r++) {
                assert_int_equal(t.got[r], AGOQ_E_COMM);
                assert_non_null(strstr(t.detail[r], "AGOQ_E_IO"));
                assert_int_equal(t.again[r], AGOQ_E_COMM);
                assert_int_equal(w.ranks[r].n_calls, fail_at); /* a failed communicator is left alone */
            }
        }
        assert_true(n_failures >= 4);
    }
}

static void ranks_that_disagree_find_out(void **state) {
    (void)state;
    enum { COUNT, TAIL, EMPTY, MULTIPLIER, WORKSPACE, FORMAT, OPERATION, N_KINDS };
    for (int n_ranks = 2; n_ranks <= 5; n_ranks++) {
        for (int kind = 0; kind < N_KINDS; kind++) {
            world w;
            trial t = trial_of(n_ranks);
            int odd = n_ranks - 1;
            switch (kind) {
            case COUNT:
                t.n[odd] = N + 500;
                break;
            case TAIL:
                t.n[odd] = N + 1;
                break; /* as many blocks */
            case EMPTY:
                t.n[odd] = 0;
                break;
            case MULTIPLIER:
                t.multiplier[odd] = 2;
                break;
            case WORKSPACE:
                t.workspace[odd] = 1800;
                break;
            case FORMAT:
                t.format[odd] = AGOQ_GRAD_E5M2;
                break;
            default:
                t.scatter[odd] = 1;
                break;
            }
            assert_int_equal(world_run(n_ranks, 0, call, &t, &w), 0);
            for (int r = 0; r < n_ranks; r++) {
                assert_int_equal(t.got[r], AGOQ_E_INVAL);
                assert_non_null(strstr(t.detail[r], "different arguments"));
                assert_int_equal(t.again[r], AGOQ_OK); /* all of them know, so they are in step */
            }
        }
    }
}

/* One rank's arguments are bad: it says so, the others are told, nobody waits. */
static void a_rank_that_refuses_tells_the_others(void **state) {
    (void)state;
    static const int64_t counts[] = {0, 50, N}; /* 50: only rank 0 owns something */
    for (int n_ranks = 2; n_ranks <= 5; n_ranks++) {
        for (int kind = NO_WORKSPACE; kind <= OVERLAP; kind++) {
            for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) { /* 0, 50, 2000 */
                world w;
                trial t = trial_of(n_ranks);
                int odd = n_ranks - 1;
                const int64_t n = counts[i];
                for (int r = 0; r < n_ranks; r++) t.n[r] = n;
                t.bad[odd] = kind;
                if ((kind == NO_WORKSPACE && n == 0) || (kind == OVERLAP && n < N)) continue; /* legal */
                assert_int_equal(world_run(n_ranks, 0, call, &t, &w), 0);
                for (int r = 0; r < n_ranks; r++) {
                    assert_int_equal(t.got[r],
                                     r == odd && kind == ON_GPU ? AGOQ_E_UNSUPPORTED : AGOQ_E_INVAL);
                    if (r != odd) assert_non_null(strstr(t.detail[r], "refused"));
                    if (r == odd && kind == NO_WORKSPACE) assert_non_null(strstr(t.detail[r], "workspace"));
                    assert_int_equal(t.again[r], AGOQ_OK);
                }
            }
        }
    }
    for (int n_ranks = 2; n_ranks <= 4; n_ranks++) { /* all of them */
        world w;
        trial t = trial_of(n_ranks);
        for (int r = 0; r < n_ranks; r++) t.bad[r] = NO_OUT;
        assert_int_equal(world_run(n_ranks, 0, call, &t, &w), 0);
        for (int r = 0; r < n_ranks; r++) assert_true(t.got[r] == AGOQ_E_INVAL && t.again[r] == AGOQ_OK);
    }
}

static agoq_status must_not_run(void *ctx, const void *send, const size_t *send_bytes, const size_t *send_at,
                                void *recv, const size_t *recv_bytes, const size_t *recv_at) {
    (void)send, (void)send_bytes, (void)send_at, (void)recv, (void)recv_bytes, (void)recv_at;
    ++*(int *)ctx;
    return AGOQ_OK;
}

static agoq_status must_not_gather(void *ctx, const void *send, size_t send_bytes, void *recv,
                                   const size_t *recv_bytes, const size_t *recv_at) {
    return must_not_run(ctx, send, &send_bytes, NULL, recv, recv_bytes, recv_at);
}

/* All ranks called with the same bad arguments: they hear from each other what they say themselves. */
static agoq_status all_refuse(void *ctx, const void *send, const size_t *send_bytes, const size_t *send_at,
                              void *recv, const size_t *recv_bytes, const size_t *recv_at) {
    for (int r = 0; r < 3; r++) {
        assert_int_equal(send_bytes[r], r == 1 ? 0 : 24); /* no data */
        assert_int_equal(recv_bytes[r], send_bytes[r]);
        memcpy((unsigned char *)recv + recv_at[r], (const unsigned char *)send + send_at[r], send_bytes[r]);
    }
    ++*(int *)ctx;
    return AGOQ_OK;
}

static void count_destroy(void *ctx) {
    *(int *)ctx += 100;
}

#define REFUSED(call) assert_int_equal(call, AGOQ_E_INVAL)

static void bad_arguments_are_refused(void **state) {
    (void)state;
    int calls = 0;
    agoq_transport t = {&calls, 1, 3, all_refuse, must_not_gather, count_destroy}, bad;
    agoq_comm *comm = NULL;
    REFUSED(agoq_comm_new(NULL, &comm));
    REFUSED(agoq_comm_new(&t, NULL));
    bad = t, bad.rank = 3;
    REFUSED(agoq_comm_new(&bad, &comm));
    bad = t, bad.size = 0;
    REFUSED(agoq_comm_new(&bad, &comm));
    bad = t, bad.all_gather = NULL;
    REFUSED(agoq_comm_new(&bad, &comm));
    assert_null(comm);
    assert_int_equal(agoq_comm_new(&t, &comm), AGOQ_OK);
    assert_int_equal(agoq_comm_rank(comm), 1);
    assert_int_equal(agoq_comm_size(comm), 3);
    size_t least = agoq_comm_workspace_min(comm), full = agoq_comm_workspace_full(comm, N);
    assert_true(least > 0 && least < full);
    agoq_grad in = ref_grad_new(N, 0), out = ref_grad_new(N, 0), copy = ref_grad_new(N, 0), g;
    float shard[N];
    ref_fill(&in, 0, 0);
    void *work = malloc(full);
    REFUSED(agoq_all_reduce(NULL, NULL, &in, &out, 1, work, full));
    REFUSED(agoq_all_reduce(comm, NULL, NULL, &out, 1, work, full));
    REFUSED(agoq_all_reduce(comm, NULL, &in, NULL, 1, work, full));
    REFUSED(agoq_all_reduce(comm, NULL, &in, &out, 1, NULL, full));
    REFUSED(agoq_all_reduce(comm, NULL, &in, &out, 1, work, least - 1));
    REFUSED(agoq_reduce_scatter(comm, NULL, &in, shard, 1, work, least - 1));
    REFUSED(agoq_reduce_scatter(comm, NULL, &in, NULL, 1, work, full));
    g = out, g.n = N - 1;
    REFUSED(agoq_all_reduce(comm, NULL, &in, &g, 1, work, full));
    g = in, g.n = -1;
    REFUSED(agoq_reduce_scatter(comm, NULL, &g, shard, 1, work, full));
    g = in, g.scales = NULL;
    REFUSED(agoq_reduce_scatter(comm, NULL, &g, shard, 1, work, full));
    g = in, g.scales = (float *)(void *)((unsigned char *)in.scales + 1);
    REFUSED(agoq_all_reduce(comm, NULL, &g, &out, 1, work, full));
    REFUSED(
        agoq_reduce_scatter(comm, NULL, &in, (float *)(void *)((unsigned char *)shard + 2), 1, work, full));
    g = in, g.format = AGOQ_N_GRAD_FORMATS;
    REFUSED(agoq_all_reduce(comm, NULL, &g, &out, 1, work, full));
    REFUSED(agoq_reduce_scatter(comm, NULL, &g, shard, 1, work, full));
    agoq_exec exec = {.nonfinite = (uint32_t *)(void *)(shard + 1)};
    exec.nonfinite = (uint32_t *)(void *)((unsigned char *)exec.nonfinite + 2);
    REFUSED(agoq_all_reduce(comm, &exec, &in, &out, 1, work, full));
    REFUSED(agoq_reduce_scatter(comm, &exec, &in, shard, 1, work, full));
    g = out, g.codes = in.codes + 128;
    REFUSED(agoq_all_reduce(comm, NULL, &in, &g, 1, work, full));
    assert_true(agoq_last_error()[0] != 0);
    exec = (agoq_exec){.device = AGOQ_DEVICE_CUDA};
    assert_int_equal(agoq_all_reduce(comm, &exec, &in, &out, 1, work, full), AGOQ_E_UNSUPPORTED);
    assert_true(ref_same_bytes(&out, &copy)); /* both as they were made */
    assert_int_equal(calls, 17);              /* once for each refusal with a communicator */
    agoq_comm_free(&comm);
    assert_int_equal(calls, 117);
    assert_null(comm);
    agoq_comm_free(&comm);
    agoq_comm_free(NULL);
    free(work);
    ref_grad_free(&in, 0);
    ref_grad_free(&out, 0);
    ref_grad_free(&copy, 0);
}

static void no_memory_is_reported(void **state) {
    (void)state;
    int calls = 0, n_failed = 0;
    agoq_transport t = {&calls, 0, 4, must_not_run, must_not_gather, count_destroy};
    agoq_comm *comm = NULL;
    for (long n = 1;; n++) {
        mem_fail_after(n);
        agoq_status status = agoq_comm_new(&t, &comm);
        mem_fail_after(0);
        if (status == AGOQ_OK) break;
        assert_int_equal(status, AGOQ_E_NOMEM);
        assert_null(comm);
        assert_int_equal(calls, 0); /* the context is still the caller's */
        n_failed++;
    }
    assert_true(n_failed >= 2);
    agoq_comm_free(&comm);
}

static void one_rank_needs_nothing(void **state) {
    (void)state;
    int calls = 0;
    agoq_transport t = {&calls, 0, 1, must_not_run, must_not_gather, NULL};
    agoq_comm *comm = NULL;
    assert_int_equal(agoq_comm_new(&t, &comm), AGOQ_OK);
    assert_int_equal(agoq_comm_workspace_full(comm, N), 0);
    agoq_grad in = ref_grad_new(N, 1), nothing = {.format = in.format};
    ref_fill(&in, 0, 0);
    float before = ref_decode(in.codes[5], in.scales[0]);
    assert_int_equal(agoq_all_reduce(comm, NULL, &in, &in, -2, NULL, 0), AGOQ_OK);
    assert_true(fabsf(ref_decode(in.codes[5], in.scales[0]) + 2 * before) <= 1e-5f * fabsf(before));
    assert_int_equal(agoq_all_reduce(comm, NULL, &nothing, &nothing, 1, NULL, 0), AGOQ_OK);
    assert_int_equal(agoq_reduce_scatter(comm, NULL, &nothing, NULL, 1, NULL, 0), AGOQ_OK);
    assert_int_equal(calls, 0);
    agoq_comm_free(&comm);
    ref_grad_free(&in, 1);
}

/* Whole blocks, in order, without gap or overlap, none more than a block above another. */
static void shards_cover_everything_once(void **state) {
    (void)state;
    static const int64_t counts[] = {
        0, 1, 127, 128, 129, 1000, 1ll << 31, (1ll << 40) + 5, INT64_MAX, INT64_MAX - 127};
    static const int sizes[] = {1, 2, 3, 7, 8, 1000, 65537};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            int64_t at = 0, least = INT64_MAX, most = 0;
            for (int r = 0; r < sizes[k]; r++) {
                int64_t begin, end;
                agoq_shard_range(counts[i], sizes[k], r, &begin, &end);
                assert_true(begin == at && end >= begin && (end % 128 == 0 || end == counts[i]));
                int64_t blocks = (end - begin) / 128 + ((end - begin) % 128 != 0);
                least = blocks < least ? blocks : least;
                most = blocks > most ? blocks : most;
                at = end;
            }
            assert_true(at == counts[i] && most - least <= 1);
        }
    }
    int64_t begin = 3, end = 4;
    agoq_shard_range(1000, 4, 4, &begin, &end);
    assert_true(begin == 0 && end == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(failing_transport_is_reported),
        cmocka_unit_test(ranks_that_disagree_find_out),
        cmocka_unit_test(a_rank_that_refuses_tells_the_others),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(no_memory_is_reported),
        cmocka_unit_test(one_rank_needs_nothing),
        cmocka_unit_test(shards_cover_everything_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
