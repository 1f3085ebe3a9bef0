/* See log.h. */
#include "common/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static log_sink current_sink;
static void *current_user;
static log_level current_level = LOG_LEVEL_INFO;

void log_set_sink(log_sink sink, void *user) {
    current_sink = sink;
    current_user = user;
}

void log_set_level(log_level most) {
    current_level = most;
}

void log_write(log_level level, const char *module, const char *format, ...) {
    if (!current_sink || level > current_level) return;
    int saved_errno = errno;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    current_sink(current_user, level, module, text);
    errno = saved_errno;
}

void log_to_stderr(void *user, log_level level, const char *module, const char *text) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    static const int priorities[] = {3, 4, 6, 7};
    const int *journal = user; /* NULL or 0: a terminal or a file, which wants a time stamp instead */
    if (journal && *journal) {
        fprintf(stderr, "<%d>%s %s %s\n", priorities[level], names[level], module, text);
        return;
    }
    struct timespec now;
    struct tm day;
    char stamp[32];
    clock_gettime(CLOCK_REALTIME, &now);
    gmtime_r(&now.tv_sec, &day);
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%S", &day);
    fprintf(stderr, "%s.%03ldZ %s %s %s\n", stamp, now.tv_nsec / 1000000, names[level], module, text);
}
