/* See history.h. */
#include "agoqd/history.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "common/log.h"

const char *history_what_name(history_what what) {
    static const char *const names[] = {"start", "rank", "plan", "budget", "alarm"};
    return names[what];
}

history_event *history_add(history *h, history_what what, int64_t wall_ms, int64_t step, const char *format,
                           ...) {
    history_event *e = &h->event[h->n++ % HISTORY_KEPT];
    *e = (history_event){.what = what, .wall_ms = wall_ms, .step = step, .steps_to_effect = -1};
    va_list args;
    va_start(args, format);
    vsnprintf(e->why, sizeof e->why, format, args);
    va_end(args);
    log_write(what == HISTORY_ALARM ? LOG_LEVEL_WARN : LOG_LEVEL_INFO, history_what_name(what),
              "%s step=%" PRId64, e->why, step);
    return e;
}

const history_event *history_at(const history *h, uint32_t i) {
    uint64_t first = h->n > HISTORY_KEPT ? h->n - HISTORY_KEPT : 0;
    return first + i < h->n ? &h->event[(first + i) % HISTORY_KEPT] : NULL;
}

history_event *history_budget(history *h, uint64_t version) {
    for (uint64_t i = h->n; i > 0 && h->n - i < HISTORY_KEPT; i--) {
        history_event *e = &h->event[(i - 1) % HISTORY_KEPT];
        if (e->what == HISTORY_BUDGET && e->budget_version == version) return e;
    }
    return NULL;
}
