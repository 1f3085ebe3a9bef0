/* What test_accuracy.c can only see with an uncertainty near 0.1 %: the sum of 64 stochastically rounded
 * micro-batches of each kind is neither too small nor too large, by less than 0.1 %. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "tests/accuracy.h"

static void sums_have_no_bias(void **state) {
    enum { N_COUNTS = 7 };
    (void)state;
    for (int k = 0; k < ACC_N_CASES; k++) {
        acc_result r[N_COUNTS];
        assert_int_equal(acc_accumulate((acc_case)k, (acc_way){AGOQ_GRAD_E4M3, 1, 1}, 1 << 22, r, N_COUNTS),
                         AGOQ_OK);
        const double bias = 100 * r[N_COUNTS - 1].bias, sure = 100 * r[N_COUNTS - 1].bias_error;
        print_message("%s: bias %+.4f (%.4f) %%\n", acc_case_names[k], bias, sure);
        assert_true(fabs(bias) < 0.1 && sure < 0.03);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums_have_no_bias)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
