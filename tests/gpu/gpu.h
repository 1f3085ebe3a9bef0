/* What the GPU tests share: a device or a reason to skip, and a count of checks. These programs link the
 * codec layer statically and need nothing but a driver, so that they can be built on one machine and run on
 * another. They print `ok NAME`, `not ok NAME: detail` and `skipped: why` lines; without a device everything
 * is skipped, nothing passes. */
#ifndef TESTS_GPU_GPU_H
#define TESTS_GPU_GPU_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agoq/agoq.h"

static int gpu_passed, gpu_failed;

static void gpu_check(int right, const char *name, const char *detail) {
    if (right) {
        gpu_passed++;
        printf("ok %s\n", name);
    } else {
        gpu_failed++;
        printf("not ok %s: %s\n", name, detail);
    }
    fflush(stdout);
}

/* 0: there is a device. Else prints that all `n` tests are skipped and returns 77. */
static int gpu_open(int n) {
    int count = 0;
    const cudaError_t error = cudaGetDeviceCount(&count);
    if (error == cudaSuccess && count > 0) {
        struct cudaDeviceProp p;
        if (cudaGetDeviceProperties(&p, 0) == cudaSuccess)
            printf("# %s, compute capability %d.%d\n", p.name, p.major, p.minor);
        return 0;
    }
    printf("skipped: no GPU (%s), %d tests\n", cudaGetErrorString(error), n);
    return 77;
}

static int gpu_close(void) {
    printf("%d passed, %d failed\n", gpu_passed, gpu_failed);
    return gpu_failed || !gpu_passed;
}

/* For calls that cannot fail in a working test. */
static void gpu_must(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return;
    printf("not ok %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

#endif
