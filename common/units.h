/* Strict numbers with units, for configuration and the command line: `80GiB`, `70%`, `500ms`, `12`. No sign,
 * no leading zero, no exponent, no junk, no silent overflow; decimal fractions only with a unit (`1.5GiB`).
 * Everything returns 0 on success, UNITS_TOO_LARGE for a
 * number beyond what the output holds (or 100 %), and -1 for what is none, leaving the output untouched. */
#ifndef COMMON_UNITS_H
#define COMMON_UNITS_H

#include <stddef.h>
#include <stdint.h>

#define UNITS_TOO_LARGE (-2)

int units_parse_uint(const char *text, uint64_t *value);
int units_parse_bytes(const char *text, uint64_t *bytes); /* B, KiB .. PiB (and KB .. PB: powers of 1000) */
int units_parse_ms(const char *text, uint64_t *ms);       /* ms, s, min, h */
int units_parse_ppm(const char *text, uint32_t *ppm);     /* `12.5%` -> 125000; 0 to 100 % */
/* "3.41 MiB"; text has room for 32 bytes. */
void units_format_bytes(uint64_t bytes, char text[32]);

#endif
