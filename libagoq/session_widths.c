/* Which width a tensor class has now: the plan in force, then the memory guard, then the mode. The trade-off:
 * the table is rebuilt whole at each change (some microseconds for a stage), so that the lookup per tensor is
 * one load. */
#include "libagoq/session.h"

/* Smallest width of a tensor class; 0 when nobody has said that it exists. Without a profile any layer may
 * exist. */
static int least_width(const agoq_session *s, int layer, int role) {
    if (!s->mail->has_profile) return profile_least_width(profile_role_widths(role));
    return layer < s->widths.n_layers ? s->widths.least[(size_t)layer * AGOQ_N_ROLES + (size_t)role] : 0;
}

int session_width(const agoq_session *s, int layer, int role) {
    if (s->setup.mode == AGOQ_MODE_IDENTITY) return 16;
    const int least = least_width(s, layer, role);
    int bits = 0;
    if (s->setup.source == SOURCE_FIXED)
        bits = s->setup.fixed_bits[role] ? s->setup.fixed_bits[role] : least;
    else if (s->current->id)
        bits = plan_bits(&s->current->decoded, layer, role);
    else
        bits = least;
    if (bits == 0) bits = 16;
    return s->guarded && least && least < bits ? least : bits;
}

void session_widths_rebuild(agoq_session *s) {
    for (int layer = 0; layer < s->widths.n_layers; layer++) {
        for (int role = 0; role < AGOQ_N_ROLES; role++)
            s->widths.bits[(size_t)layer * AGOQ_N_ROLES + (size_t)role] =
                (uint8_t)session_width(s, layer, role);
    }
}

int agoq_session_bits(const agoq_session *session, int layer, int role) {
    if (!session || layer < 0 || role < 0 || role >= AGOQ_N_ROLES) return 16;
    if (layer < session->widths.n_layers)
        return session->widths.bits[(size_t)layer * AGOQ_N_ROLES + (size_t)role];
    return session_width(session, layer, role);
}
