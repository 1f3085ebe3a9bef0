/* A whole small file in memory, for readers of what operators wrote. */
#ifndef COMMON_FILE_H
#define COMMON_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/status.h"

/* *text is mem_free's, with a 0 behind its *size bytes. E_IO: *why is what the system says, or that it is no
 * regular file; E_LIMIT: more than `most` bytes; E_NOMEM. *why is always set then, and valid until the next
 * call of strerror. */
AGOQ_MUST_USE agoq_status file_read(const char *path, size_t most, char **text, size_t *size,
                                    const char **why);

#endif
