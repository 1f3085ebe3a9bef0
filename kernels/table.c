/* One row of operations per device; the CPU has one per instruction set (kernels/cpu/level.h), of which the
 * widest that the machine runs is used. Without a CUDA compiler kernels/cuda/none.c gives an empty row:
 * every operation on it is a hole, which the caller reports as unsupported. */
#include "kernels/agoq_kernels.h"

extern const agoqk_ops agoqk_base_ops;

#if defined(__x86_64__)
extern const agoqk_ops agoqk_avx2_ops, agoqk_avx512_ops;

/* Exactly what the Makefile's level_FLAGS let the compiler use. */
static int has_avx2(void) {
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
static int has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

static int always(void) {
    return 1;
}

static const struct cpu_level {
    const char *name;
    const agoqk_ops *ops;
    int (*runs)(void);
} levels[] = {
#if defined(__x86_64__)
    {"avx512", &agoqk_avx512_ops, has_avx512},
    {"avx2", &agoqk_avx2_ops, has_avx2},
#endif
    {"base", &agoqk_base_ops, always},
};

static const struct cpu_level *level_of(int i) {
    for (size_t k = 0; k < sizeof levels / sizeof *levels; k++) {
        if (levels[k].runs() && i-- == 0) return &levels[k];
    }
    return NULL;
}

const agoqk_ops *agoqk_cpu_level(int i) {
    const struct cpu_level *level = level_of(i);
    return level ? level->ops : NULL;
}

const char *agoqk_cpu_level_name(int i) {
    const struct cpu_level *level = level_of(i);
    return level ? level->name : NULL;
}

const agoqk_ops *agoqk_device_ops(agoq_device device) {
    switch (device) {
    case AGOQ_DEVICE_CPU:
        return agoqk_cpu_level(0);
    case AGOQ_DEVICE_CUDA:
        return agoqk_cuda_table();
    }
    return NULL;
}
