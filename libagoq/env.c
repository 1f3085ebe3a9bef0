/* The environment as a source of configuration: the only place of the library that reads it, and only when
 * called. A variable that is empty or malformed counts as not set; what the caller has set is never touched.
 */
#include <stdlib.h>

#include "agoq/agoq.h"
#include "common/units.h"

static const char *text_of(const char *name) {
    const char *text = getenv(name);
    return text && text[0] ? text : NULL;
}

static int number_of(const char *name, int32_t *value) {
    const char *text = text_of(name);
    uint64_t number;
    if (!text || units_parse_uint(text, &number) != 0 || number > INT32_MAX) return -1;
    *value = (int32_t)number;
    return 0;
}

void agoq_session_config_env(agoq_session_config *config) {
    static const char *const launchers[][2] = {{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
                                               {"SLURM_PROCID", "SLURM_NTASKS"},
                                               {"RANK", "WORLD_SIZE"}};
    if (!config) return;
    if (!config->socket) config->socket = text_of("AGOQ_SOCKET");
    if (!config->plan_file) config->plan_file = text_of("AGOQ_PLAN_FILE");
    if (!config->job) config->job = text_of("AGOQ_JOB");
    for (size_t i = 0; i < sizeof launchers / sizeof *launchers; i++) {
        int32_t rank, world;
        if (number_of(launchers[i][0], &rank) != 0 || number_of(launchers[i][1], &world) != 0) continue;
        if (rank >= world) continue;
        /* A world that the caller set, and that is another, is not this launcher's. */
        if (config->world != 0 && config->world != world) continue;
        if (config->rank == 0) config->rank = rank;
        config->world = world;
        return;
    }
}
