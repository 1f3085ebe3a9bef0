/* Every operation on the GPU writes the bytes that the CPU writes: fixed shapes at and around every boundary,
 * norms of whole rows in every combination, then random ones. `small` is for compute-sanitizer, which is
 * slow: a few cases of each operation. usage: test_parity [small | CASES [SEED [OPERATION]]] */
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
    c.bits = agoq_format_at((int)(hash(seed + 2) % AGOQ_N_FORMATS))->number;
    c.pad = hash(seed + 3) % 3 == 0 ? (int64_t)(hash(seed + 4) % 2 ? 3 : 8) : 0;
    c.skew = hash(seed + 5) % 3 == 0 ? (int)(hash(seed + 6) % (16 / elem(c.dtype)) * elem(c.dtype)) : 0;
    c.special = hash(seed + 7) % 3 == 0;
    c.flags = hash(seed + 8);
    c.format = (agoq_grad_format)(hash(seed + 9) % AGOQ_N_GRAD_FORMATS);
    const int extreme = (int)(hash(seed + 10) % (2 * N_EXTREMES));
    c.extreme = extreme < N_EXTREMES ? extreme : NOT_EXTREME;
    return c;
}

/* The norms of rows that have kernels of their own: bf16 without gaps, every width, both kinds (LayerNorm
 * with its bias), no weight and each type of it, one row, a last chunk that is not whole, more than one
 * chunk. In turn: what is wanted beside the result, what is in place, rounding, extremes. */
static gcase whole_norm(int i) {
    static const int64_t cols[] = {1024, 4096, 5120, 8192}, rows[] = {37, 1, 67, 32, 33};
    gcase c = make_case(rows[i % 5], cols[i % 4], 77 + (uint64_t)i);
    const int layer = i / 4 % 2, weight = i / 8 % 4;
    c.dtype = AGOQ_DTYPE_BF16;
    c.bits = agoq_format_at(i / 32 % AGOQ_N_FORMATS)->number;
    c.pad = c.skew = 0;
    c.extreme = i % 3 == 0 ? i / 3 % N_EXTREMES : NOT_EXTREME;
    c.special = i % 7 == 0;
    c.flags &= ~(1u << 0 | 1u << 1 | 1u << 2 | 1u << 3 | 1u << 7 | 1u << 11 | 1u << 12 | 1u << 13);
    c.flags |= (layer ? 1u << 0 | 1u << 3 | 1u << 7 : 0) | (weight == 0 ? 1u << 2 : 0) |
               (weight >= 2 ? 1u << 1 : 0) | (weight == 3 ? 1u << 11 : 0);
    return c;
}
enum { WHOLE_NORMS = 4 * 2 * 4 * AGOQ_N_FORMATS };

static int is_norm(op o) {
    return o >= OP_norm_fwd_pack && o <= OP_norm_bwd_packed;
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
        const int fixed = n_shapes * turns, norms = !is_norm((op)o) ? 0 : small ? 2 : WHOLE_NORMS;
        for (int i = 0; i < fixed + n_random + norms; i++) {
            const uint64_t s = seed * 1000003 + (uint64_t)i * 131 + (uint64_t)o;
            const int64_t rows = i < fixed ? shapes[i % n_shapes].rows : hash(s + 50) % (small ? 40 : 90) + 1;
            const int64_t cols = i < fixed ? shapes[i % n_shapes].cols : hash(s + 51) % 3000 + 1;
            gcase c = i < fixed + n_random ? make_case(rows, cols, s)
                                           : whole_norm((i - fixed - n_random) * (small ? 5 : 1));
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
