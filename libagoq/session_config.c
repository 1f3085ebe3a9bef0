/* Configuration of a session: what the caller says, checked and copied, and what stands in for what is not
 * said. The environment is env.c's. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/sha256.h"
#include "common/try.h"
#include "libagoq/error.h"
#include "libagoq/session.h"

static agoq_status copy_text(char *to, size_t capacity, const char *from, const char *what) {
    const size_t n = strlen(from);
    if (n >= capacity) return error_fail(AGOQ_E_INVAL, "%s is longer than %zu bytes", what, capacity - 1);
    char clean[WIRE_MAX_STRING + 1];
    if (n > WIRE_MAX_STRING || strcmp(wire_text(clean, sizeof clean, from), from) != 0)
        return error_fail(AGOQ_E_INVAL, "%s is not plain UTF-8 text", what);
    memcpy(to, from, n + 1);
    return AGOQ_OK;
}

/* index of n; n = 0 stands for 1. */
static agoq_status place(const char *what, int32_t index, int32_t n, int32_t *to_index, int32_t *to_n) {
    const int32_t size = n == 0 ? 1 : n;
    if (size < 1 || index < 0 || index >= size)
        return error_fail(AGOQ_E_INVAL, "%s %d of %d", what, index, n);
    *to_index = index;
    *to_n = size;
    return AGOQ_OK;
}

static agoq_status fill_sender(link_identity *me, uint32_t seed) {
    if (seed) {
        uint8_t bytes[8], digest[32];
        buf_writer w = {bytes, sizeof bytes, 0, 0};
        buf_put(&w, seed, 4);
        buf_put(&w, (uint32_t)me->rank, 4);
        sha256(bytes, sizeof bytes, digest);
        memcpy(me->sender, digest, sizeof me->sender);
        return AGOQ_OK;
    }
    if (getrandom(me->sender, sizeof me->sender, 0) != (ssize_t)sizeof me->sender)
        return error_fail(AGOQ_E_IO, "no random bytes for the incarnation");
    return AGOQ_OK;
}

static agoq_status fill_identity(const agoq_session_config *c, link_identity *me) {
    AGOQ_TRY(place("rank", c->rank, c->world, &me->rank, &me->world));
    AGOQ_TRY(place("stage", c->stage, c->n_stages, &me->stage, &me->n_stages));
    AGOQ_TRY(place("dp", c->dp, c->n_dp, &me->dp, &me->n_dp));
    AGOQ_TRY(place("tp", c->tp, c->n_tp, &me->tp, &me->n_tp));
    if (me->n_stages > PLAN_MAX_STAGES)
        return error_fail(AGOQ_E_INVAL, "more than %d stages", PLAN_MAX_STAGES);
    /* Every coordinate has a rank; more ranks than coordinates is fine, there are other kinds of parallelism.
     */
    if (me->n_dp > me->world || me->n_tp > me->world ||
        (int64_t)me->n_dp * me->n_tp > me->world / me->n_stages)
        return error_fail(AGOQ_E_INVAL, "%d stages x %d dp x %d tp need more than %d ranks", me->n_stages,
                          me->n_dp, me->n_tp, me->world);
    AGOQ_TRY(copy_text(me->job, sizeof me->job, c->job && c->job[0] ? c->job : "default", "job"));
    char host[HOST_NAME_MAX + 1] = "";
    if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "localhost");
    wire_text(me->host, sizeof me->host, host);
    char device[sizeof me->device + 32];
    snprintf(device, sizeof device, "cpu:%.100s:%d", me->host, me->rank);
    AGOQ_TRY(
        copy_text(me->device, sizeof me->device, c->device && c->device[0] ? c->device : device, "device"));
    if (c->socket) AGOQ_TRY(copy_text(me->socket, sizeof me->socket, c->socket, "socket path"));
    return fill_sender(me, c->incarnation_seed);
}

/* Ranks with other fixed widths must show up as a disagreement: the id is a digest of them, in a term that no
 * daemon uses. */
static uint64_t fixed_id(const uint8_t bits[AGOQ_N_ROLES]) {
    uint8_t digest[32];
    sha256(bits, AGOQ_N_ROLES, digest);
    const uint32_t seq = (uint32_t)digest[0] << 16 | (uint32_t)digest[1] << 8 | digest[2];
    return plan_id_make(0, 0xffff, seq ? seq : 1);
}

static agoq_status fill_source(const agoq_session_config *c, session_setup *setup) {
    setup->source = c->use_fixed_bits ? SOURCE_FIXED
                    : c->plan_file    ? SOURCE_FILE
                    : c->socket       ? SOURCE_DAEMON
                                      : SOURCE_FLOOR;
    if (setup->source != SOURCE_FIXED) return AGOQ_OK;
    for (int role = 0; role < AGOQ_N_ROLES; role++) {
        if (c->fixed_bits[role] && agoq_width_index(c->fixed_bits[role]) < 0)
            return error_fail(AGOQ_E_INVAL, "fixed_bits: %s has no width %u", agoq_role_name(role),
                              c->fixed_bits[role]);
        setup->fixed_bits[role] = c->fixed_bits[role];
    }
    if (c->record_file) return error_fail(AGOQ_E_INVAL, "record_file records plans; fixed_bits is none");
    setup->fixed_id = fixed_id(setup->fixed_bits);
    return AGOQ_OK;
}

agoq_status session_setup_fill(const agoq_session_config *config, session_setup *setup) {
    memset(setup, 0, sizeof *setup);
    if (config->size != sizeof *config)
        return error_fail(config->size ? AGOQ_E_VERSION : AGOQ_E_INVAL,
                          "config.size: use AGOQ_SESSION_CONFIG_INIT");
    if (config->mode < AGOQ_MODE_NORMAL || config->mode > AGOQ_MODE_POISON)
        return error_fail(AGOQ_E_INVAL, "unknown mode %d", (int)config->mode);
    setup->mode = config->mode;
    setup->poison_roles = config->poison_roles;
    if (setup->mode == AGOQ_MODE_POISON && !(setup->poison_roles & ((1u << AGOQ_N_ROLES) - 1)))
        return error_fail(AGOQ_E_INVAL, "mode POISON, and poison_roles names no role");
    AGOQ_TRY(fill_source(config, setup));
    return fill_identity(config, &setup->me);
}
