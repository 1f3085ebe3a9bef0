/* Formats, widths, roles and the layout of a packed tensor (normative text: docs/FORMATS.md).
 *
 * A width is named by its bits: 4, 5, 6, 8 are block formats (64 elements of one row share a signed bf16
 * scale), 16 is bf16. Plans speak of widths. A format says what the codes of a width stand for; it has a
 * number, which is the width itself for the format that a width has by default. One layout struct computes
 * size *and* addresses for host, device and planner; there is no second expression for the size of a packed
 * tensor anywhere. The trade-off: rows are padded to whole 32-bit words per plane (at most 3 bytes + 3 bytes
 * a row), so that a row is addressable without looking at any other. */
#ifndef AGOQ_FORMAT_H
#define AGOQ_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AGOQ_BLOCK       64 /* elements of a row that share one activation scale; the last block may be short */
#define AGOQ_GRAD_BLOCK  128 /* elements that share one gradient scale */
#define AGOQ_PLANE_ALIGN 16  /* every plane and the scale array start at a multiple of this */

/* Columns: id, number, name, bits of an element: in all, in the low plane, in the high plane. 16 has one
 * plane of bf16 and no scales. AGOQ_WIDTHS: the format of each width. */
#define AGOQ_WIDTHS(X)                                                                                       \
    X(INT4, 4, "int4", 4, 4, 0)                                                                              \
    X(INT5, 5, "int5", 5, 4, 1)                                                                              \
    X(INT6, 6, "int6", 6, 4, 2)                                                                              \
    X(INT8, 8, "int8", 8, 8, 0)                                                                              \
    X(BF16, 16, "bf16", 16, 16, 0)
/* And those that a caller may pack a width in instead. Numbers are 64 k + bits. */
#define AGOQ_FORMATS(X)                                                                                      \
    AGOQ_WIDTHS(X)                                                                                           \
    X(CODE4, 68, "code4", 4, 4, 0) /* 16 levels that are denser around zero: 9 % less error than INT4 */

enum {
#define AGOQ_FORMAT_ENUM(id, number, name, bits, lo, hi) AGOQ_FORMAT_##id = number,
    AGOQ_FORMATS(AGOQ_FORMAT_ENUM)
#undef AGOQ_FORMAT_ENUM
#define AGOQ_FORMAT_COUNT(id, number, name, bits, lo, hi) +1
        AGOQ_N_FORMATS = 0 AGOQ_FORMATS(AGOQ_FORMAT_COUNT)
#undef AGOQ_FORMAT_COUNT
};

/* A set of widths: bit i of the mask stands for the i-th row of AGOQ_WIDTHS. */
enum {
#define AGOQ_WIDTH_INDEX(id, ...) AGOQ_WIDTH_INDEX_##id,
    AGOQ_WIDTHS(AGOQ_WIDTH_INDEX)
#undef AGOQ_WIDTH_INDEX
        AGOQ_N_WIDTHS,
    AGOQ_MASK_4 = 1 << AGOQ_WIDTH_INDEX_INT4,
    AGOQ_MASK_5 = 1 << AGOQ_WIDTH_INDEX_INT5,
    AGOQ_MASK_6 = 1 << AGOQ_WIDTH_INDEX_INT6,
    AGOQ_MASK_8 = 1 << AGOQ_WIDTH_INDEX_INT8,
    AGOQ_MASK_16 = 1 << AGOQ_WIDTH_INDEX_BF16
};

/* Tensor classes of a decoder layer, each planned on its own. Columns: id, name on wire and in files, first
 * sensitivity (squared gradient error per squared relative error, whole model, measured on a 25 M model),
 * default set of widths. attn_out is never below 8; attn_qkv is 16, or 8 where the user allows it. */
#define AGOQ_ROLES(X)                                                                                        \
    X(ATTN_NORM_IN, "attn_norm_in", 0.12, 31)                                                                \
    X(MLP_NORM_IN, "mlp_norm_in", 0.13, 31)                                                                  \
    X(MLP_GATE_UP, "mlp_gate_up", 1.08, 31)                                                                  \
    X(ATTN_OUT, "attn_out", 0.74, AGOQ_MASK_8)                                                               \
    X(ATTN_QKV, "attn_qkv", 6.3, AGOQ_MASK_16)                                                               \
    X(FINAL_NORM_IN, "final_norm_in", 0.23, AGOQ_MASK_8)                                                     \
    X(QK_NORM_IN, "qk_norm_in", 6.3, AGOQ_MASK_16)                                                           \
    X(LINEAR_IN, "linear_in", 0.29, AGOQ_MASK_8)                                                             \
    X(OTHER, "other", 1.0, AGOQ_MASK_16)

typedef enum agoq_role {
#define AGOQ_ROLE_ENUM(id, name, sensitivity, mask) AGOQ_ROLE_##id,
    AGOQ_ROLES(AGOQ_ROLE_ENUM)
#undef AGOQ_ROLE_ENUM
        AGOQ_N_ROLES
} agoq_role;

/* Bits of the width with this index in AGOQ_WIDTHS, or 0 when there is no such index. */
static inline int agoq_width_bits(int index) {
    static const int of[AGOQ_N_WIDTHS] = {
#define AGOQ_WIDTH_BITS(id, number, name, bits, lo, hi) bits,
        AGOQ_WIDTHS(AGOQ_WIDTH_BITS)
#undef AGOQ_WIDTH_BITS
    };
    return index >= 0 && index < AGOQ_N_WIDTHS ? of[index] : 0;
}

/* Index of a width in AGOQ_WIDTHS, or -1 when no such width exists. */
static inline int agoq_width_index(int bits) {
    int index = AGOQ_N_WIDTHS - 1;
    while (index >= 0 && agoq_width_bits(index) != bits) index--;
    return index;
}

/* One row of AGOQ_FORMATS. */
typedef struct agoq_format_info {
    int32_t number;
    const char *name;
    int32_t bits, lo_bits, hi_bits;
} agoq_format_info;

/* The format with this index in AGOQ_FORMATS, or NULL when there is no such index. */
static inline const agoq_format_info *agoq_format_at(int index) {
    static const agoq_format_info of[AGOQ_N_FORMATS] = {
#define AGOQ_FORMAT_INFO(id, number, name, bits, lo, hi) {number, name, bits, lo, hi},
        AGOQ_FORMATS(AGOQ_FORMAT_INFO)
#undef AGOQ_FORMAT_INFO
    };
    return index >= 0 && index < AGOQ_N_FORMATS ? &of[index] : (const agoq_format_info *)0;
}

/* The format with this number, or NULL. */
static inline const agoq_format_info *agoq_format_of(int number) {
    for (int i = 0; i < AGOQ_N_FORMATS; i++) {
        if (agoq_format_at(i)->number == number) return agoq_format_at(i);
    }
    return (const agoq_format_info *)0;
}

/* Plane word rule: a plane of k bits per element (k = 1, 2, 4, 8, 16) is made of 32-bit little-endian words,
 * each holding 32/k consecutive elements of a row; element j of a word sits at bit k*(j/2) + 16*(j%2), so
 * that masking a shifted word yields the pair (2i, 2i+1) in its two halves. Rows start on a word; unused bits
 * are zero. For k = 16 the rule gives plain little-endian order. */
typedef struct agoq_layout {
    int32_t format;         /* AGOQ_FORMAT_* */
    int32_t bits;           /* per element: 4, 5, 6, 8 or 16 */
    int32_t lo_bits;        /* bits per element in the low plane: 4, 8 or 16 */
    int32_t hi_bits;        /* bits per element in the high plane: 0, 1 or 2 */
    int64_t rows, cols;     /* shape of the tensor, elements */
    int64_t blocks_per_row; /* ceil(cols / AGOQ_BLOCK); 0 for width 16 */
    size_t lo_row_bytes;    /* row r of the low plane starts at r * lo_row_bytes */
    size_t hi_row_bytes;
    size_t hi_offset;    /* high plane, from the start of the packed tensor; the low plane is at 0 */
    size_t scale_offset; /* rows * blocks_per_row bf16 scales, row-major */
    size_t bytes;        /* whole packed tensor, a multiple of AGOQ_PLANE_ALIGN */
} agoq_layout;

/* Fills *out. format: AGOQ_FORMAT_*, which for the format that a width has by default is the width. rows and
 * cols may be 0 (bytes is then 0). E_INVAL: unknown format or a negative size; E_LIMIT: the size does not fit
 * 63 bits. Pure, any thread. */
static inline agoq_status agoq_layout_make(int format, int64_t rows, int64_t cols, agoq_layout *out) {
    const agoq_format_info *info = agoq_format_of(format);
    if (!info || rows < 0 || cols < 0 || !out) return AGOQ_E_INVAL;
    if (cols > INT64_MAX / 64 || (cols && rows > INT64_MAX / 8 / (cols + 64))) return AGOQ_E_LIMIT;
    agoq_layout l;
    l.format = format;
    l.bits = info->bits;
    l.lo_bits = info->lo_bits;
    l.hi_bits = info->hi_bits;
    l.rows = rows;
    l.cols = cols;
    l.blocks_per_row = format == AGOQ_FORMAT_BF16 ? 0 : (cols + AGOQ_BLOCK - 1) / AGOQ_BLOCK;
    l.lo_row_bytes = (size_t)((cols * l.lo_bits + 31) / 32) * 4;
    l.hi_row_bytes = (size_t)((cols * l.hi_bits + 31) / 32) * 4;
    const size_t mask = AGOQ_PLANE_ALIGN - 1;
    l.hi_offset = ((size_t)rows * l.lo_row_bytes + mask) & ~mask;
    l.scale_offset = (l.hi_offset + (size_t)rows * l.hi_row_bytes + mask) & ~mask;
    l.bytes = (l.scale_offset + (size_t)(rows * l.blocks_per_row) * 2 + mask) & ~mask;
    *out = l;
    return AGOQ_OK;
}

#ifdef __cplusplus
}
#endif

#endif
