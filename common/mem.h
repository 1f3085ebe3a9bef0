/* All heap memory of the project goes through here, so that tests can fail the n-th allocation. The
 * trade-off: one process-wide counter (atomic) is touched per allocation; nothing here is on a hot path. */
#ifndef COMMON_MEM_H
#define COMMON_MEM_H

#include <stddef.h>

void *mem_alloc(size_t bytes);                /* NULL on failure; bytes 0 gives a valid pointer */
void *mem_zalloc(size_t count, size_t bytes); /* zeroed; NULL on failure or when the product overflows */
void *mem_realloc(void *p, size_t count, size_t bytes);
char *mem_strdup(const char *s); /* NULL in, NULL out */
void mem_free(void *p);          /* NULL-safe */

/* Tests: the n-th allocation from now fails (1 = the next one), and every later one too; 0 switches it off.
 */
void mem_fail_after(long n);

#endif
