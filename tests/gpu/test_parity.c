/* Every operation on the GPU writes the bytes that the CPU writes: fixed shapes at and around every boundary,
 * then random ones. `small` is for compute-sanitizer, which is slow: a few cases of each operation.
 * usage: test_parity [small | CASES [SEED [OPERATION]]] */
#include "tests/gpu/ops.h"

static const struct {
    int64_t rows, cols;
} shapes[] = {{0, 64},    {3, 0},     {1, 1},     {3, 7},     {2, 8},     {5, 63},   {4, 64},
              {3, 65},    {64, 80},   {33, 128},  {65, 192},  {3, 256},   {2, 300},  {66, 512},
              {7, 1000},  {5, 1024},  {3, 2048},  {34, 4096}, {2, 4100},  {3, 5120}, {2, 8192},
              {9, 11008}, {3, 14336}, {2, 16384}, {2, 33000}, {1, 70001}, {300, 96}};

static uint32_t hash(uint64_t seed) {
    return (uint32_t)(next_random(&seed) >> 32);
}

static gcase make_case(int64_t rows, int64_t cols, uint64_t seed) {
    gcase c;
    memset(&c, 0, sizeof c);
    c.rows = rows, c.cols = cols, c.seed = seed;
    c.dtype = (agoq_dtype)(hash(seed + 1) % 3);
    c.bits = agoq_width_bits((int)(hash(seed + 2) % AGOQ_N_WIDTHS));
    c.pad = hash(seed + 3) % 3 == 0 ? (int64_t)(hash(seed + 4) % 2 ? 3 : 8) : 0;
    c.skew = hash(seed + 5) % 3 == 0 ? (int)(hash(seed + 6) % (16 / elem(c.dtype)) * elem(c.dtype)) : 0;
    c.special = hash(seed + 7) % 3 == 0;
    c.flags = hash(seed + 8);
    c.format = (agoq_grad_format)(hash(seed + 9) % AGOQ_N_GRAD_FORMATS);
    return c;
}

int main(int argc, char **argv) {
    const int small = argc > 1 && strcmp(argv[1], "small") == 0;
    const int n_random = small ? 4 : argc > 1 ? atoi(argv[1]) : 40;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    const char *only = argc > 3 ? argv[3] : "";
    const int n_shapes = (int)(sizeof shapes / sizeof *shapes), turns = small ? 0 : 6;
    const int skip = gpu_open(N_OPS);
    if (skip) return skip;
    arena a;
    arena_open(&a, (size_t)256 << 20);
    for (int o = 0; o < N_OPS; o++) {
        if (!strstr(op_names[o], only)) continue;
        char detail[256] = "";
        int right = 1, n = 0, wrong = 0;
        for (int i = 0; i < n_shapes * turns + n_random; i++) {
            const uint64_t s = seed * 1000003 + (uint64_t)i * 131 + (uint64_t)o;
            const int64_t rows =
                i < n_shapes * turns ? shapes[i % n_shapes].rows : hash(s + 50) % (small ? 40 : 90) + 1;
            const int64_t cols = i < n_shapes * turns ? shapes[i % n_shapes].cols : hash(s + 51) % 3000 + 1;
            gcase c = make_case(rows, cols, s);
            char text[256] = "";
            n++;
            if (case_agree((op)o, &c, &a, text)) continue;
            right = 0;
            if (wrong++ < 6) printf("#   %s\n", text);
            memcpy(detail, text, sizeof detail);
        }
        char name[64];
        snprintf(name, sizeof name, "parity_%s (%d cases)", op_names[o], n);
        if (wrong) printf("#   %d of %d cases differ\n", wrong, n);
        gpu_check(right, name, detail);
    }
    arena_close(&a);
    return gpu_close();
}
