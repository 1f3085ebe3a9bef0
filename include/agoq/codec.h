/* The codec layer of agoq.h, which includes this file: stateless operations on the caller's memory, on the
 * CPU or a GPU. Activations are packed at 4, 5, 6, 8 or 16 bits, alone or fused with norms, RoPE and SwiGLU;
 * gradients are kept in 8 bits; AdamW keeps its state in 8 bits. Bits of every format: docs/FORMATS.md. The
 * same inputs give the same bytes on every device, instruction set and launch shape, but for one thing: which
 * NaN an fp32 output holds, where a norm, SwiGLU, RoPE or a dweight or dbias computed it and no rounding to
 * bf16 follows. NaNs of codes, scales, bf16 and fp16 outputs, and of every other operation are fixed. */
#ifndef AGOQ_CODEC_H
#define AGOQ_CODEC_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/format.h"
#include "agoq/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Activations ---- */

typedef enum agoq_dtype { AGOQ_DTYPE_F32, AGOQ_DTYPE_BF16, AGOQ_DTYPE_F16 } agoq_dtype;
typedef enum agoq_device { AGOQ_DEVICE_CPU, AGOQ_DEVICE_CUDA } agoq_device;

/* Where an operation runs. NULL stands for the CPU. All pointers of the call are then on that device. CUDA
 * operations only enqueue work on the stream: they can be captured in a graph, and none allocates or waits.
 * A CUDA error that was pending before the call (cudaGetLastError) is forgotten, so that it is not taken for
 * the call's own.
 * Not every combination of dtypes and widths has a CUDA kernel: E_UNSUPPORTED says which. Elements of views,
 * of x and grad, and bf16 parameters may lie at any address on the CPU; on CUDA an address that is no
 * multiple of the element's size is E_INVAL (the fault would end the context). Other arrays are aligned to
 * their type on both. What a call passes by value is frozen in a captured graph: key, lr, step,
 * grad_multiplier. Each replay then rounds with the same random bits, so that errors add up instead of
 * cancelling, and Adam corrects its bias for a step long past. So either leave operations with a key, and
 * agoq_adam8_step, outside the graph; or capture once per step value; or set their kernels' parameters anew
 * before each replay (cudaGraphExecUpdate with a fresh capture, or cudaGraphExecKernelNodeSetParams). */
typedef struct agoq_exec {
    agoq_device device;
    void *stream; /* cudaStream_t; NULL: the legacy default stream. Ignored on the CPU */
    /* Counter, on the device, of blocks in which a NaN or Inf was met; NULL: not counted. Calls that run at
     * the same time may share one: it is added to atomically. */
    uint32_t *nonfinite;
    /* Scratch on the device for sums of a fixed order, aligned to 16 bytes: agoq_norm_bwd_workspace and
     * agoq_grad_sqnorm_workspace say how much. Contents do not matter; calls that run at the same time need
     * their own. The CPU needs none. */
    void *workspace;
    size_t workspace_bytes;
} agoq_exec;

/* A matrix of the caller: element (r, c) is at data[r * row_stride + c]. row_stride >= cols, in elements. */
typedef struct agoq_view {
    void *data;
    agoq_dtype dtype;
    int64_t rows, cols, row_stride;
} agoq_view;

/* A packed tensor carries its own width. data: layout.bytes bytes, aligned to AGOQ_PLANE_ALIGN. */
typedef struct agoq_packed {
    agoq_layout layout;
    void *data;
} agoq_packed;

/* agoq_layout_make (format.h) as a symbol of the library, for bindings from other languages. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_layout_fill(int format, int64_t rows, int64_t cols,
                                                    agoq_layout *layout);

/* What the random bits of one stochastic rounding depend on, and nothing else (docs/FORMATS.md, Philox).
 * offset is the index, in the unsharded tensor, of the first element of the call. */
typedef struct agoq_key {
    uint64_t seed, tensor, step;
    uint32_t microbatch, replica;
    int64_t offset;
} agoq_key;

/* Encode x into packed->data in packed->layout.format. key NULL: round to nearest even; else stochastically.
 * x must have the layout's shape. E_INVAL, E_UNSUPPORTED. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_pack(const agoq_exec *exec, const agoq_view *x, const agoq_key *key,
                                             agoq_packed *packed);
/* Decode into y (rounded to nearest even for BF16 and F16). */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_unpack(const agoq_exec *exec, const agoq_packed *packed,
                                               agoq_view *y);

/* The same for rows [first, first + x->rows) of a packed tensor: threads, or chunks of a stream, that share
 * one tensor. The bytes are those of one call for the whole; key->offset stays that of the whole tensor.
 * Calls on different rows may run at the same time. On CUDA first is a multiple of 8 (E_UNSUPPORTED). */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_pack_rows(const agoq_exec *exec, const agoq_view *x, int64_t first,
                                                  const agoq_key *key, agoq_packed *packed);
AGOQ_API AGOQ_MUST_USE agoq_status agoq_unpack_rows(const agoq_exec *exec, const agoq_packed *packed,
                                                    int64_t first, agoq_view *y);

typedef enum agoq_norm_kind { AGOQ_NORM_RMS, AGOQ_NORM_LAYER } agoq_norm_kind;

/* A norm over rows: xhat = (x - mean) / sqrt(mean((x - mean)^2) + eps), with mean = 0 for RMS;
 * y = xhat * weight + bias, in fp32 with a fixed order of summation (docs/FORMATS.md). */
typedef struct agoq_norm {
    agoq_norm_kind kind;
    agoq_dtype weight_dtype;   /* of weight and bias */
    const void *weight, *bias; /* [cols] each; NULL: ones, zeros */
    float eps;
    int round_bf16;  /* y, sum and dx take bf16 values whatever their dtype: what is recomputed from stored
                        values then equals what was stored */
    int round_first; /* xhat is rounded to y's dtype (bf16 with round_bf16) before the weight, as LLaMA does;
                        0: only y is rounded, as OLMo2 does */
} agoq_norm;

/* y = norm(x); packs x at the same time. residual and sum, both or neither (NULL): x becomes
 * round(x + residual) in x's dtype, written to sum, and that is normalised and packed. sum may be x or
 * residual. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_norm_fwd_pack(const agoq_exec *exec, const agoq_view *x,
                                                      const agoq_view *residual, const agoq_norm *norm,
                                                      agoq_view *sum, agoq_view *y, agoq_packed *packed);
/* y from packed x: the input of the QKV or FFN1 GEMM, recomputed for its weight gradient. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_norm_fwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                                        const agoq_norm *norm, agoq_view *y);
/* dx (overwritten; may be dy), dweight and dbias (float[cols], added to; NULL: not wanted) from packed x and
 * dy. The statistics of x are recomputed. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_norm_bwd_packed(const agoq_exec *exec, const agoq_packed *packed,
                                                        const agoq_norm *norm, const agoq_view *dy,
                                                        agoq_view *dx, float *dweight, float *dbias);
/* exec->workspace_bytes that agoq_norm_bwd_packed needs if dweight or dbias is wanted. */
AGOQ_API size_t agoq_norm_bwd_workspace(agoq_device device, int64_t rows, int64_t cols);

/* Rotary position embedding of a matrix whose rows are tokens and whose columns are heads of head_dim
 * elements (Q, K, or both side by side: grouped queries need nothing else). */
typedef struct agoq_rope {
    const float *cos, *sin; /* [n_positions][rotary / 2] each, row-major */
    int64_t n_positions;
    const int32_t *positions; /* [rows]; NULL: row r is at position r % n_positions */
    int32_t head_dim, rotary; /* rotary: even, <= head_dim; the other elements of a head pass through */
    int interleaved;          /* pairs (2i, 2i + 1); 0: pairs (i, i + rotary / 2), as in Hugging Face */
} agoq_rope;
/* y = x rotated (backward != 0: rotated back, the gradient); y may be x. packed (NULL: not wanted) takes y as
 * it is stored. A position outside the tables makes the rotated elements of its row NaN. Here and elsewhere
 * views are the same or do not overlap; more than that cannot be checked. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_rope_apply(const agoq_exec *exec, const agoq_view *x,
                                                   const agoq_rope *rope, int backward, agoq_view *y,
                                                   agoq_packed *packed);

/* product = silu(gate) * up; packs gate and up. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_swiglu_fwd_pack(const agoq_exec *exec, const agoq_view *gate,
                                                        const agoq_view *up, int round_bf16,
                                                        agoq_view *product, agoq_packed *packed_gate,
                                                        agoq_packed *packed_up);
/* dgate and dup from packed gate and up and dproduct; product (NULL: not wanted) for the weight gradient of
 * FFN2. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_swiglu_bwd_packed(const agoq_exec *exec,
                                                          const agoq_packed *packed_gate,
                                                          const agoq_packed *packed_up, int round_bf16,
                                                          const agoq_view *dproduct, agoq_view *product,
                                                          agoq_view *dgate, agoq_view *dup);

/* ---- Gradients ---- */

/* How a gradient is coded; one byte per element and one fp32 scale per block in each. E4M3 is the default;
 * E5M2 has half its precision and a wider range inside a block; INT8 is four times as accurate on blocks
 * without outliers and drops what is 254 times smaller than the largest element. */
#define AGOQ_GRAD_FORMATS(X)                                                                                 \
    X(E4M3, "e4m3")                                                                                          \
    X(E5M2, "e5m2")                                                                                          \
    X(INT8, "int8")

typedef enum agoq_grad_format {
#define AGOQ_GRAD_FORMAT_ENUM(id, name) AGOQ_GRAD_##id,
    AGOQ_GRAD_FORMATS(AGOQ_GRAD_FORMAT_ENUM)
#undef AGOQ_GRAD_FORMAT_ENUM
        AGOQ_N_GRAD_FORMATS
} agoq_grad_format;
AGOQ_API const char *agoq_grad_format_name(agoq_grad_format format); /* NULL: there is no such format */

/* Gradient of n elements: block b holds elements [128 b, 128 b + 128). Both arrays are the caller's. Storage
 * is the wire format of the collectives. */
typedef struct agoq_grad {
    uint8_t *codes; /* n bytes */
    float *scales;  /* agoq_grad_blocks(n) */
    int64_t n;
    agoq_grad_format format;
} agoq_grad;

AGOQ_API int64_t agoq_grad_blocks(int64_t n);
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_zero(const agoq_exec *exec, agoq_grad *grad);
/* grad += x, x of x_dtype[grad->n]: decode, add in fp32, encode. key NULL: nearest (stagnates over many
 * micro-batches: docs/FORMATS.md), else stochastic. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_accumulate(const agoq_exec *exec, const void *x,
                                                        agoq_dtype x_dtype, const agoq_key *key,
                                                        agoq_grad *grad);
/* One tensor of a list: its gradient, what is added, and the key of its random bits. */
typedef struct agoq_grad_term {
    agoq_grad grad;
    const void *x;
    agoq_key key;
} agoq_grad_term;
/* The same for n_terms tensors of one dtype and one format, on CUDA in one launch per 64 of them. stochastic
 * 0: nearest, keys are not read. terms is host memory and may be reused after return. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_accumulate_list(const agoq_exec *exec,
                                                             const agoq_grad_term *terms, int n_terms,
                                                             agoq_dtype x_dtype, int stochastic);
/* out[i] = multiplier * grad[begin + i] for 0 <= i < count. begin need not be a multiple of the block. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_read(const agoq_exec *exec, const agoq_grad *grad, int64_t begin,
                                                  int64_t count, float multiplier, float *out);
/* *sqnorm (double, on the device of exec) += sum of squares, in a fixed order of summation. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_sqnorm(const agoq_exec *exec, const agoq_grad *grad,
                                                    double *sqnorm);
/* exec->workspace_bytes that agoq_grad_sqnorm needs. */
AGOQ_API size_t agoq_grad_sqnorm_workspace(agoq_device device, int64_t n);
/* *blocks (on the device of exec) += number of blocks that hold a NaN or Inf, atomically. Reads the scales
 * alone. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_check_finite(const agoq_exec *exec, const agoq_grad *grad,
                                                          uint32_t *blocks);
/* out = multiplier * sum over i of in[i], added in fp32 in the order i = 0 .. n_in-1: the local step of
 * QuanGrad, for callers with their own transport. Exactly one of out8 (encoded to nearest) and out32
 * (float[n]) is not NULL. out8 may be one of in; in and out8 have one format. in itself is host memory. On
 * CUDA n_in is at most 1024 (E_UNSUPPORTED): the addresses travel with the launch. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_grad_reduce(const agoq_exec *exec, const agoq_grad *in, int n_in,
                                                    float multiplier, agoq_grad *out8, float *out32);

/* ---- Optimizer ---- */

/* 8-bit AdamW state of n parameters: block 256, dynamic maps (docs/FORMATS.md), fp32 absmax: 2.03 bytes
 * each. */
typedef struct agoq_adam8 {
    uint8_t *m, *v;             /* n codes each */
    float *m_absmax, *v_absmax; /* ceil(n / 256) each */
    int64_t n;
} agoq_adam8;

typedef struct agoq_adam_params {
    float lr, beta1, beta2, eps, weight_decay;
    int64_t step;          /* 1-based, for bias correction */
    float grad_multiplier; /* applied to every gradient element first: clipping, averaging */
} agoq_adam_params;
/* Refused: a beta outside [0, 1), a step below 1, a negative eps, and lr, eps, weight_decay or
 * grad_multiplier that is NaN or infinite (so a clipping factor from a norm that is NaN ends here). With eps
 * 0 a parameter whose gradients were all 0 becomes NaN. lr 1e-3, betas 0.9 and 0.999, eps 1e-8, weight decay
 * 0.01, step 1, multiplier 1: those of bitsandbytes. */
#define AGOQ_ADAM_PARAMS_INIT                                                                                \
    { 1e-3f, 0.9f, 0.999f, 1e-8f, 1e-2f, 1, 1.0f }

/* Parameters of n elements, updated in place. master alone: fp32 training. master and bf16: bf16 takes the
 * rounded master (nearest even). bf16 alone: its value is read, stepped in fp32, and rounded with key
 * (stochastically; key NULL: to nearest, which loses steps below half a unit of a parameter). */
typedef struct agoq_adam_target {
    float *master;       /* [n]; NULL: none */
    void *bf16;          /* [n]; NULL: none. One of the two is given */
    const agoq_key *key; /* host memory; read only if master is NULL */
} agoq_adam_target;

/* The gradient of a step: exactly one of the two is not NULL. */
typedef struct agoq_adam_source {
    const agoq_grad *grad8; /* host struct */
    const void *grad;       /* [n] of dtype */
    agoq_dtype dtype;
} agoq_adam_source;

AGOQ_API int64_t agoq_adam8_blocks(int64_t n);
/* The state before step 1: m = v = 0. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_adam8_init(const agoq_exec *exec, agoq_adam8 *state);
/* One AdamW step of state->n parameters. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_adam8_step(const agoq_exec *exec, const agoq_adam_params *adam,
                                                   const agoq_adam_source *source,
                                                   const agoq_adam_target *target, agoq_adam8 *state);

/* What the last CUDA operation of this thread launched, one line per kernel, none after the last line:
 *     pack: pack_dense bf16 4 bits, grid 8192 x 1, block 256 x 1, shared 0
 * operation, kernel, dtype, width, shape, bytes of shared memory. The first 16 launches of an operation are
 * kept. Writes at most capacity bytes with a final NUL and returns the length it wanted, as snprintf does. 0:
 * it launched no kernel (nothing to do, memory only set, no kernel for it), or there was none yet. */
AGOQ_API size_t agoq_last_launch(char *text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
