/* One row of operations per device. The CUDA row stays empty until kernels/cuda has kernels: every operation
 * on it is then a hole, which the caller reports as unsupported. */
#include "kernels/agoq_kernels.h"

static const agoqk_ops no_ops;

const agoqk_ops *agoqk_device_ops(agoq_device device) {
    switch (device) {
    case AGOQ_DEVICE_CPU:
        return &agoqk_ops_cpu;
    case AGOQ_DEVICE_CUDA:
        return &no_ops;
    }
    return NULL;
}
