/* Names, sentences, the thread's last error and the log bridge: everything of agoq.h that has no handle and
 * no tensor. Codes and roles come from the lists in status.h and format.h, so that adding one edits one line.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "agoq/agoq.h"
#include "common/log.h"
#include "common/role.h"
#include "libagoq/error.h"

enum { LAST_ERROR_BYTES = 512 };

static _Thread_local char last_error[LAST_ERROR_BYTES];
static agoq_log_fn user_log;

const char *agoq_status_name(agoq_status status) {
    switch (status) {
#define AGOQ_STATUS_NAME(id, value, text)                                                                    \
    case AGOQ_##id:                                                                                          \
        return "AGOQ_" #id;
        AGOQ_STATUS(AGOQ_STATUS_NAME)
#undef AGOQ_STATUS_NAME
    }
    return "AGOQ_E_UNKNOWN";
}

const char *agoq_status_text(agoq_status status) {
    switch (status) {
#define AGOQ_STATUS_TEXT(id, value, text)                                                                    \
    case AGOQ_##id:                                                                                          \
        return text;
        AGOQ_STATUS(AGOQ_STATUS_TEXT)
#undef AGOQ_STATUS_TEXT
    }
    return "unknown status code";
}

const char *agoq_version(void) {
    return AGOQ_VERSION;
}

const char *agoq_role_name(int role) {
    return role_name(role);
}

int agoq_role_from_name(const char *name) {
    for (int role = 0; name && role < AGOQ_N_ROLES; role++) {
        if (strcmp(name, agoq_role_name(role)) == 0) return role;
    }
    return -1;
}

const char *agoq_last_error(void) {
    return last_error;
}

/* Through a local copy: an argument may be agoq_last_error() itself. */
static void set_text(const char *format, va_list args) {
    int saved_errno = errno;
    char text[LAST_ERROR_BYTES];
    vsnprintf(text, sizeof text, format, args);
    memcpy(last_error, text, strlen(text) + 1);
    errno = saved_errno;
}

void error_set(const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
}

agoq_status error_fail(agoq_status status, const char *format, ...) {
    va_list args;
    va_start(args, format);
    set_text(format, args);
    va_end(args);
    return status;
}

static void forward_log(void *user, log_level level, const char *module, const char *text) {
    user_log(user, (agoq_log_level)level, module, text);
}

_Static_assert((int)AGOQ_LOG_DEBUG == (int)LOG_LEVEL_DEBUG && (int)AGOQ_LOG_ERROR == (int)LOG_LEVEL_ERROR,
               "the public levels are the internal ones");

/* Every level is handed over: what to drop is the user's choice. */
void agoq_set_log(agoq_log_fn fn, void *user) {
    log_set_sink(NULL, NULL);
    user_log = fn;
    log_set_level(fn ? LOG_LEVEL_DEBUG : LOG_LEVEL_INFO);
    if (fn) log_set_sink(forward_log, user);
}
