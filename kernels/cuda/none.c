/* In place of kernels/cuda where no CUDA compiler was found: every operation on that device is a hole. */
#include "kernels/agoq_kernels.h"

static const agoqk_ops no_ops;

const agoqk_ops *agoqk_cuda_table(void) {
    return &no_ops;
}

const char *agoqk_device_error(void) {
    return "the operation failed";
}

size_t agoqk_last_launch(char *text, size_t capacity) {
    if (capacity) text[0] = 0;
    return 0;
}
