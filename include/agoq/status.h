/* Status codes: one list makes the enum, the names and the sentences (libagoq/status.c), and later the Python
 * exceptions. Values are fixed for ever; new ones go at the end. Every function that can fail returns one, is
 * marked AGOQ_MUST_USE, and leaves its outputs untouched on failure. */
#ifndef AGOQ_STATUS_H
#define AGOQ_STATUS_H

#define AGOQ_STATUS(X)                                                                                       \
    X(OK, 0, "success")                                                                                      \
    X(E_INVAL, 1, "an argument is wrong (NULL, bad size, unknown width, role or type)")                      \
    X(E_NOMEM, 2, "out of memory")                                                                           \
    X(E_UNSUPPORTED, 3, "this combination of device, operation and format does not exist")                   \
    X(E_IO, 4, "a file or socket operation failed")                                                          \
    X(E_FORMAT, 5, "malformed data: a file, message or plan fails validation")                               \
    X(E_UNREACHABLE, 6, "the daemon cannot be reached")                                                      \
    X(E_REFUSED, 7, "the daemon refused; the reason is in agoq_last_error()")                                \
    X(E_STATE, 8, "the call does not fit the state of the handle (closed, forked, out of order)")            \
    X(E_COMM, 9, "the communicator of the ranks failed")                                                     \
    X(E_TIMEOUT, 10, "timed out")                                                                            \
    X(E_INFEASIBLE, 11, "no assignment of widths meets the budget")                                          \
    X(E_VERSION, 12, "versions do not match (protocol, file, or compare-and-set)")                           \
    X(E_CUDA, 13, "a CUDA call failed")                                                                      \
    X(E_LIMIT, 14, "a documented limit was exceeded")

#if defined(__GNUC__)
#define AGOQ_API __attribute__((visibility("default")))
#else
#define AGOQ_API
#endif

typedef enum agoq_status {
#define AGOQ_STATUS_ENUM(id, value, text) AGOQ_##id = value,
    AGOQ_STATUS(AGOQ_STATUS_ENUM)
#undef AGOQ_STATUS_ENUM
} agoq_status;

#if defined(__GNUC__)
#define AGOQ_MUST_USE __attribute__((warn_unused_result))
#else
#define AGOQ_MUST_USE
#endif

#endif
