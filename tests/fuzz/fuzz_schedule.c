/* libFuzzer: operation lists written by hand. What is read plays to its end, so its live rows must be found,
 * and no rank ever holds more than all there is. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "planner/schedule.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char error[160];
    planner_ops ops;
    const agoq_status status = planner_ops_read((const char *)data, size, &ops, error, sizeof error);
    assert(strlen(error) < sizeof error);
    if (status != AGOQ_OK) {
        assert(status != AGOQ_E_FORMAT || strncmp(error, "line ", 5) == 0);
        return 0;
    }
    planner_ops_fault fault;
    assert(planner_ops_check(&ops, &fault) == AGOQ_OK);
    planner_live_set set;
    const agoq_status found = planner_ops_live_all(&ops, PLANNER_HELD_BOTH, &set);
    assert(found == AGOQ_OK || found == AGOQ_E_LIMIT);
    if (found == AGOQ_OK) {
        for (uint32_t r = 0; r < set.n_ranks; r++) {
            for (uint32_t k = set.start[r] * set.n_columns; k < set.start[r + 1] * set.n_columns; k++)
                assert(set.rows[k] <= ops.n_microbatches);
        }
        planner_live_set_fini(&set);
    }
    planner_ops_fini(&ops);
    return 0;
}
