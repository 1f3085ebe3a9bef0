/* The daemon's socket: one ZeroMQ ROUTER on a Unix socket, owned by the event loop's thread. It keeps the
 * traps of libzmq away from the core: a second daemon would steal the path without an error (a lock file
 * stops it), a message may have any number of parts (exactly id + 1 are taken), the file would have the
 * umask's mode. */
#ifndef AGOQD_SERVER_H
#define AGOQD_SERVER_H

#include <stddef.h>
#include <stdint.h>

#include "agoqd/conf.h"
#include "agoqd/peer.h"

typedef struct server server;

/* Locks PATH.lock, binds, sets mode and group. error (any size) says what went wrong and what to do. */
AGOQ_MUST_USE agoq_status server_open(const conf *c, server **out, char *error, size_t error_size);
void server_close(server **s); /* NULL-safe; removes the socket's file */

typedef void (*server_message)(void *user, const peer *from, const uint8_t *data, size_t size);
typedef void (*server_bad)(void *user, const char *why);
/* Waits until a message or `fd` (-1: none) is readable, or timeout_ms. Returns 1 if fd is readable. */
int server_wait(server *s, int fd, int64_t timeout_ms);
/* Hands over at most `most` waiting messages; returns how many. */
int server_drain(server *s, int most, server_message on_message, server_bad on_bad, void *user);
/* 0, or -1: the peer is gone or its queue is full. Never blocks. */
int server_send(server *s, const peer *to, const uint8_t *data, size_t size);
int64_t server_gid(const server *s); /* of socket_group; -1: none */

#endif
