/* What the entry points of the codec layer check before they hand over to the kernel table. Each failure sets
 * the thread's last error; `name` is the argument's name in it. */
#ifndef LIBAGOQ_CODEC_CHECK_H
#define LIBAGOQ_CODEC_CHECK_H

#include "agoq/agoq.h"
#include "kernels/agoq_kernels.h"

/* *exec NULL becomes the CPU. */
agoq_status codec_ops_of(const agoq_exec **exec, const agoqk_ops **ops);
agoq_status codec_check_exec(const agoq_exec *exec); /* what codec_ops_of checks; NULL passes */
agoq_status codec_no_kernel(const char *operation);
/* What a kernel returned, with a text if it failed. */
agoq_status codec_done(const char *operation, agoq_status status);

int codec_aligned(const void *p, size_t to);
/* Elements lie at any address on the CPU, else at a multiple of their size. exec NULL: the CPU. */
agoq_status codec_check_elements(const agoq_exec *exec, const void *p, agoq_dtype dtype, const char *name);
agoq_status codec_check_view(const agoq_exec *exec, const agoq_view *v, const char *name);
agoq_status codec_check_shape(const agoq_exec *exec, const agoq_view *v, int64_t rows, int64_t cols,
                              const char *name);
/* n elements of dtype, as a view of one row. */
agoq_status codec_check_flat(const agoq_exec *exec, const void *p, agoq_dtype dtype, int64_t n,
                             const char *name);
/* The layout is data of the caller: every field must be what agoq_layout_make gives. */
agoq_status codec_check_packed(const agoq_packed *p, const char *name);
agoq_status codec_check_packed_shape(const agoq_packed *p, int64_t rows, int64_t cols, const char *name);
/* n elements of dtype, aligned to one of them on every device. */
agoq_status codec_check_array(const void *p, agoq_dtype dtype, int64_t n, const char *name);
agoq_status codec_check_floats(const void *p, int64_t n, const char *name);
agoq_status codec_check_key(const agoq_key *key); /* NULL passes */
agoq_status codec_check_grad(const agoq_grad *g, const char *name);
/* exec->workspace holds `bytes` and is aligned. */
agoq_status codec_check_workspace(const agoq_exec *exec, size_t bytes);

#endif
