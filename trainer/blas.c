/* See blas.h. The trade-off: a second exec at start-up on machines whose CPU this OpenBLAS does not know,
 * against a variable that every user would have to know about. */
#include "trainer/blas.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void openblas_set_num_threads(int n);
char *openblas_get_corename(void);

void blas_setup(char **argv) {
    openblas_set_num_threads(1);
#if defined(__x86_64__)
    static const char *const old[] = {"Prescott", "Core2",  "Penryn", "Dunnington",
                                      "Nehalem",  "Katmai", "Generic"};
    const char *core = openblas_get_corename();
    __builtin_cpu_init();
    if (getenv("OPENBLAS_CORETYPE") || !__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return;
    for (size_t i = 0; core && i < sizeof old / sizeof old[0]; i++) {
        if (strcmp(core, old[i]) != 0) continue;
        const int wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
        if (setenv("OPENBLAS_CORETYPE", wide ? "SkylakeX" : "Haswell", 1) == 0) execv("/proc/self/exe", argv);
        return; /* slower, and still right */
    }
#else
    (void)argv;
#endif
}
