/* Who is at the other end of a connection: the ROUTER's id, and what the kernel says about the process (-1:
 * unknown). */
#ifndef AGOQD_PEER_H
#define AGOQD_PEER_H

#include <stdint.h>

#define PEER_MAX_ID 64

typedef struct peer {
    uint8_t id[PEER_MAX_ID];
    uint32_t id_len;
    int64_t uid, gid, pid;
} peer;

#endif
