/* See budgets.h. */
#include "agoqd/budgets.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "common/mem.h"

void budgets_fini(budgets *t) {
    mem_free(t->list);
    *t = (budgets){0};
}

agoq_status budgets_copy(budgets *to, const budgets *from) {
    budget *list = mem_zalloc(from->n, sizeof *list);
    if (!list) return AGOQ_E_NOMEM;
    if (from->n) memcpy(list, from->list, from->n * sizeof *list);
    *to = (budgets){.list = list, .n = from->n, .version = from->version};
    return AGOQ_OK;
}

budget *budgets_find(const budgets *t, const char *device) {
    for (uint32_t i = 0; i < t->n; i++) {
        if (strcmp(t->list[i].device, device) == 0) return &t->list[i];
    }
    return NULL;
}

uint64_t budgets_configured(const conf *c, const char *device, int32_t stage) {
    uint64_t bytes = c->default_budget_bytes;
    for (uint32_t i = 0; i < c->n_budgets; i++) {
        const conf_budget *b = &c->budgets[i];
        int matches = b->device[0] ? fnmatch(b->device, device, 0) == 0 : b->stage >= 0 && b->stage == stage;
        if (matches) bytes = b->bytes;
    }
    return bytes;
}

uint64_t budgets_next_version(budgets *t) {
    return ++t->version;
}

agoq_status budgets_device(budgets *t, const conf *c, const char *device, int32_t stage, budget **out) {
    uint64_t configured = budgets_configured(c, device, stage);
    if (t->version == 0) t->version = 1;
    budget *b = budgets_find(t, device);
    if (!b) {
        if (t->n >= BUDGETS_MAX) return AGOQ_E_LIMIT;
        budget *list = mem_realloc(t->list, t->n + 1, sizeof *list);
        if (!list) return AGOQ_E_NOMEM;
        t->list = list;
        b = &list[t->n++];
        *b = (budget){.stage = stage,
                      .bytes = configured,
                      .configured_bytes = configured,
                      .effective_bytes = configured,
                      .version = 1,
                      .step_requested = -1,
                      .step_effective = -1,
                      .requested_ms = -1};
        snprintf(b->device, sizeof b->device, "%s", device);
    }
    b->stage = stage;
    if (b->configured_bytes != configured) {
        /* Nobody set another: follow the file, and as with any cut, what runs has to be shown to fit first
         * (S8). */
        if (b->bytes == b->configured_bytes)
            budgets_set(b, configured, budgets_next_version(t), configured == 0, -1, -1);
        b->configured_bytes = configured;
    }
    *out = b;
    return AGOQ_OK;
}

int budgets_forget(budgets *t, int (*in_use)(const void *user, const char *device), const void *user) {
    for (uint32_t i = 0; i < t->n; i++) {
        budget *b = &t->list[i];
        if (b->bytes != b->configured_bytes || b->pending || in_use(user, b->device)) continue;
        memmove(b, b + 1, (t->n - i - 1) * sizeof *b);
        t->n--;
        return 1;
    }
    return 0;
}

void budgets_set(budget *b, uint64_t bytes, uint64_t version, int fits_now, int64_t step, int64_t now) {
    /* While one cut is pending, another request is measured against what ranks are known to keep to. */
    int lowers = b->effective_bytes == 0 || bytes < b->effective_bytes;
    b->bytes = bytes;
    b->version = version;
    b->step_requested = step;
    b->requested_ms = now;
    b->pending = lowers && !fits_now;
    b->step_effective = b->pending ? -1 : step;
    if (!b->pending) b->effective_bytes = bytes;
}

void budgets_effective(budget *b, int64_t step) {
    b->pending = 0;
    b->effective_bytes = b->bytes;
    b->step_effective = step;
}

uint64_t budgets_usable(uint64_t bytes, uint32_t margin_ppm) {
    /* In two parts, so that no product overflows. */
    uint64_t keep = 1000000 - (margin_ppm > 1000000 ? 1000000 : margin_ppm);
    return bytes / 1000000 * keep + bytes % 1000000 * keep / 1000000;
}
