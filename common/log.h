/* One line per event: `level module message key=value ...`. The sink is the only process-wide state of
 * common/ besides the allocator. Without a sink nothing is written: that is the library's default; agoqd
 * installs log_to_stderr. */
#ifndef COMMON_LOG_H
#define COMMON_LOG_H

typedef enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG } log_level;
typedef void (*log_sink)(void *user, log_level level, const char *module, const char *text);

void log_set_sink(log_sink sink, void *user); /* NULL: silent */
void log_set_level(log_level most);           /* messages above are dropped; default INFO */

/* errno is saved and restored. Safe from any thread once the sink is set. */
void log_write(log_level level, const char *module, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Sink for programs: stderr, with journald's <N> priority prefix when the stream goes to the journal. */
void log_to_stderr(void *user, log_level level, const char *module, const char *text);

#endif
