/* The CPU kernels are one source compiled once per instruction set: the Makefile passes AGOQK_LEVEL and the
 * flags that go with it, each level gets its own set of names, and kernels/table.c picks a row when a call
 * comes in. Without contraction or reassociation every level writes the same bytes. The trade-off against
 * GCC's target_clones: each file is compiled up to three times, but it works with any compiler and under
 * sanitizers, and a test can run every level that the machine has. */
#ifndef KERNELS_CPU_LEVEL_H
#define KERNELS_CPU_LEVEL_H

#ifndef AGOQK_LEVEL
#define AGOQK_LEVEL base
#endif

#define AGOQK_PASTE(level, name)       agoqk_##level##_##name
#define AGOQK_PASTE_LEVEL(level, name) AGOQK_PASTE(level, name)
/* AGOQK_CPU(pack) is agoqk_base_pack, agoqk_avx2_pack or agoqk_avx512_pack. */
#define AGOQK_CPU(name) AGOQK_PASTE_LEVEL(AGOQK_LEVEL, name)

/* For loops that are specialised by a constant argument. */
#define AGOQK_INLINE static inline __attribute__((always_inline))

/* Codes are read and written as wider integers. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "kernels/cpu needs a little-endian machine"
#endif

#endif
