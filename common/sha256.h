/* SHA-256 (FIPS 180-4), one-shot. Own code because plan hashes are the only use and a crypto library would be
 * the largest dependency of the client; checked against the standard's vectors. */
#ifndef COMMON_SHA256_H
#define COMMON_SHA256_H

#include <stddef.h>
#include <stdint.h>

void sha256(const void *data, size_t n, uint8_t digest[32]);

#endif
