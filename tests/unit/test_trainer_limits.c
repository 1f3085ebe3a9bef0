/* What MPI cannot count is refused before anything is allocated or sent: no MPI call is made here, and one on
 * this communicator would abort. And what a disk does not take leaves nothing behind. */
#include <dirent.h>
#include <limits.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
#include <cmocka.h>

#include "agoq/agoq.h"
#include "trainer/dump.h"
#include "trainer/exchange.h"
#include "trainer/options.h"
#include "trainer/pipe.h"

static void a_message_between_stages(void **state) {
    (void)state;
    alloc_stats mem = {.limit = 1};
    const schedule s = {OPTIONS_1F1B, 2, 4, 1};
    pipe_link p;
    const int64_t too_many = (int64_t)INT_MAX / 4 + 1;
    assert_int_equal(pipe_init(&p, MPI_COMM_NULL, &s, too_many, 1, &mem), AGOQ_E_UNSUPPORTED);
    pipe_fini(&p);
}

static void a_gradient_between_replicas(void **state) {
    (void)state;
    alloc_stats mem = {.limit = 1};
    param list[2] = {{.n = 10}, {.n = (int64_t)INT_MAX + 1}};
    const params all = {.list = list, .n = 2};
    const grads g = {.params = &all};
    exchange x;
    assert_int_equal(exchange_init(&x, MPI_COMM_NULL, MPI_COMM_NULL, &g, &mem), AGOQ_E_UNSUPPORTED);
    exchange_fini(&x);
}

static int count_files(const char *path) {
    int n = 0;
    DIR *folder = opendir(path);
    assert_non_null(folder);
    for (const struct dirent *e; (e = readdir(folder));) n += e->d_name[0] != '.';
    closedir(folder);
    return n;
}

/* A limit on the size of files stands for a disk that is full. */
static void a_dump_on_a_full_disk(void **state) {
    (void)state;
    static float x[64 * 64];
    char dir[] = "/tmp/agoq-dump-XXXXXX", why[256] = "", path[128];
    assert_non_null(mkdtemp(dir));
    dump d = {.dir = dir};
    struct rlimit was;
    assert_int_equal(dump_check_folder(dir, why, sizeof why), 0);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &was), 0);
    const struct rlimit small = {4096, was.rlim_max};
    void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    const agoq_status status = dump_tensor(&d, 0, AGOQ_ROLE_ATTN_OUT, ops_mat_of(x, 64, 64));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &was), 0);
    signal(SIGXFSZ, handler);
    assert_int_equal(status, AGOQ_E_IO);
    assert_non_null(strstr(agoq_last_error(), "attn_out.0.0.64x64.f32: File too large"));
    assert_int_equal(count_files(dir), 0);
    assert_int_equal(dump_tensor(&d, 3, AGOQ_ROLE_MLP_NORM_IN, ops_mat_of(x, 64, 64)), AGOQ_OK);
    assert_int_equal(count_files(dir), 1);
    assert_int_equal(dump_check_folder(dir, why, sizeof why), -1);
    assert_non_null(strstr(why, "mlp_norm_in.3.1.64x64.f32 of another run"));
    snprintf(path, sizeof path, "%s/mlp_norm_in.3.1.64x64.f32", dir);
    assert_int_equal(unlink(path) | rmdir(dir), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_message_between_stages),
                                       cmocka_unit_test(a_gradient_between_replicas),
                                       cmocka_unit_test(a_dump_on_a_full_disk)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
