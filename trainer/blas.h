/* OpenBLAS set up for many single-threaded ranks on one machine. */
#ifndef TRAINER_BLAS_H
#define TRAINER_BLAS_H

/* Call first in main. OpenBLAS picks its kernels when it is loaded, by CPU model; a release older than the
 * CPU falls back to SSE3 code, four times slower than what the CPU can do. Then this sets OPENBLAS_CORETYPE
 * (unless the user did) and starts the program again, once. */
void blas_setup(char **argv);

#endif
