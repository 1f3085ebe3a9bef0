/* What MPI cannot count is refused before anything is allocated or sent: no MPI call is made here, and one on
 * this communicator would abort. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_message_between_stages),
                                       cmocka_unit_test(a_gradient_between_replicas)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
