/* agoq: activation and gradient memory for LLM training. The one header that users include; codec.h, format.h
 * and status.h are parts of it.
 *
 * Two layers. The *codec* layer (part 1, codec.h, and 2) is stateless: it packs activations at 4, 5, 6, 8 or
 * 16 bits, fuses that with norms, RoPE and SwiGLU, keeps gradients in 8 bits and reduces them (QuanGrad). The
 * *session* layer (part 3) connects a training rank to agoqd: it reports what the rank holds, receives plans,
 * and switches them at a step boundary that all ranks agree on. Either can be used without the other.
 *
 * One training step with a session:
 *     agoq_step_begin(s, step);                      switches the plan if all ranks hold the same one
 *     for each micro-batch, forward:
 *         agoq_session_microbatch(s, chunk, +1);
 *         bits = agoq_session_bits(s, layer, role);
 *         agoq_layout_make(bits, tokens, hidden, &p.layout); p.data = your allocation of p.layout.bytes;
 *         agoq_norm_fwd_pack(..., &p);  agoq_session_saved(s, layer, role, &p);
 *     backward:
 *         agoq_norm_bwd_packed(..., &p, ...);  agoq_session_released(s, layer, role, &p);  free p.data
 *         agoq_session_microbatch(s, chunk, -1);
 *     agoq_all_reduce(...); optimizer;
 *     agoq_step_end(s, &usage);
 *
 * Rules that hold everywhere. Ownership: tensors and workspaces are the caller's; no pointer is kept after
 * return (with a CUDA stream: after the stream has passed the call). Nothing allocates unless it says so.
 * Nothing prints, exits or reads the environment, except that agoq_session_config_env() reads it when called.
 * Threads: functions without a handle are pure; a handle is used by one thread at a time. Failure: a status
 * is returned, outputs are untouched, agoq_last_error() holds the detail. NULL is legal only where a comment
 * says so. */
#ifndef AGOQ_H
#define AGOQ_H

#include <stddef.h>
#include <stdint.h>

#include "agoq/codec.h"
#include "agoq/format.h"
#include "agoq/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* "AGOQ_E_INVAL", and one sentence. Static strings; never NULL, also for unknown codes. */
AGOQ_API const char *agoq_status_name(agoq_status status);
AGOQ_API const char *agoq_status_text(agoq_status status);
/* Detail of the last failure on this thread; "" if none. Valid until the next failing call on this thread. */
AGOQ_API const char *agoq_last_error(void);
/* For those who write a transport or a binding: makes text the detail of this thread, so that a callback that
 * fails can say why. Copied, cut to a fixed length; NULL: "". */
AGOQ_API void agoq_set_last_error(const char *text);
/* "MAJOR.MINOR.PATCH". */
AGOQ_API const char *agoq_version(void);
/* Name of a role ("mlp_gate_up"); NULL if there is no such role. agoq_role_from_name: -1 if there is none. */
AGOQ_API const char *agoq_role_name(int role);
AGOQ_API int agoq_role_from_name(const char *name);

typedef enum agoq_log_level { AGOQ_LOG_ERROR, AGOQ_LOG_WARN, AGOQ_LOG_INFO, AGOQ_LOG_DEBUG } agoq_log_level;
typedef void (*agoq_log_fn)(void *user, agoq_log_level level, const char *module, const char *text);
/* Sink for the library's messages; the default is none. Process-wide: set it before the first session. fn may
 * be called from the helper thread; NULL removes it. */
AGOQ_API void agoq_set_log(agoq_log_fn fn, void *user);

/* ---- 2. QuanGrad: collectives over coded gradients ---- */

/* Transport under the collectives: every call is collective over all ranks, in bytes, blocking, 64-bit sizes.
 * counts and displacements are arrays of `size` entries. Copied by agoq_comm_new; ctx must outlive the comm.
 * send and recv never overlap; what a rank sends to itself counts. Every message has the length that its
 * receiver expects; recv_bytes and recv_at of all_gather agree on all ranks. A function that fails may say
 * why with agoq_set_last_error(); whatever it returned, the collective returns E_COMM, and so does every
 * later one on that communicator, since its ranks may be out of step. */
typedef struct agoq_transport {
    void *ctx;
    int rank, size;
    agoq_status (*all_to_all)(void *ctx, const void *send, const size_t *send_bytes, const size_t *send_at,
                              void *recv, const size_t *recv_bytes, const size_t *recv_at);
    agoq_status (*all_gather)(void *ctx, const void *send, size_t send_bytes, void *recv,
                              const size_t *recv_bytes, const size_t *recv_at);
    void (*destroy)(void *ctx); /* called once by agoq_comm_free; NULL: nothing to do */
} agoq_transport;

typedef struct agoq_comm agoq_comm;
/* A communicator over a transport (agoq_mpi.h makes one from an MPI_Comm). Allocates. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_comm_new(const agoq_transport *transport, agoq_comm **comm);
AGOQ_API void agoq_comm_free(agoq_comm **comm); /* NULL-safe, sets NULL */
AGOQ_API int agoq_comm_rank(const agoq_comm *comm);
AGOQ_API int agoq_comm_size(const agoq_comm *comm);

/* Elements [*begin, *end) of n that a rank owns: whole blocks, spread evenly; may be empty. */
AGOQ_API void agoq_shard_range(int64_t n, int size, int rank, int64_t *begin, int64_t *end);

/* Workspace for collectives over n elements: with the least, the exchange runs in many small rounds; with the
 * full, in one. Anything between is legal, at any address, if all ranks pass the same size (larger than full
 * counts as full). Same results for every workspace size. One rank alone needs none (NULL, 0), nor does n =
 * 0. */
AGOQ_API size_t agoq_comm_workspace_min(const agoq_comm *comm);
AGOQ_API size_t agoq_comm_workspace_full(const agoq_comm *comm, int64_t n);

/* Collective. out = multiplier * sum over ranks of in, in one format on all ranks, added in fp32 in rank
 * order, the same bytes on all ranks. in and out may be the same buffer. n must agree on all ranks; n = 0 is
 * success. Averaging: multiplier = 1/size. A NaN or Inf on any rank makes its block NaN on all;
 * exec->nonfinite counts them, equal on all ranks. Ranks compare their arguments before anything else is
 * sent: if they disagree on n, format, multiplier, workspace or operation, or if a rank's own arguments are
 * bad (a workspace below the least, a NULL), all of them get E_INVAL, out is as it was, and the communicator
 * can be used again. A rank whose comm is NULL reaches nobody: the others wait for it. E_COMM: the transport
 * failed, out is undefined. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_all_reduce(agoq_comm *comm, const agoq_exec *exec,
                                                   const agoq_grad *in, agoq_grad *out, float multiplier,
                                                   void *workspace, size_t workspace_bytes);
/* Collective. shard: float[end - begin] of agoq_shard_range(n, size, rank): the fp32 sum, never requantized
 * (NULL if it is empty). exec->nonfinite counts the blocks of this shard only. Else as agoq_all_reduce. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_reduce_scatter(agoq_comm *comm, const agoq_exec *exec,
                                                       const agoq_grad *in, float *shard, float multiplier,
                                                       void *workspace, size_t workspace_bytes);

/* ---- 3. Session: ledger, plan, vote ---- */

typedef struct agoq_session agoq_session;

/* NORMAL; IDENTITY: every width is 16 and the caller uses its own arithmetic (must match training without
 * agoq bit for bit); POISON: agoq_session_saved() overwrites what was saved with NaN, so the loss must turn
 * NaN if backward really reads it. */
typedef enum agoq_mode { AGOQ_MODE_NORMAL, AGOQ_MODE_IDENTITY, AGOQ_MODE_POISON } agoq_mode;

/* Strings are copied at open; NULL where not wanted. Source of plans, first that is set: fixed_bits,
 * plan_file, socket; none of them: the floor plan for ever. */
typedef struct agoq_session_config {
    size_t size;                      /* sizeof(agoq_session_config): set by AGOQ_SESSION_CONFIG_INIT */
    const char *socket;               /* path of agoqd's Unix socket */
    const char *plan_file;            /* replay of a record_file; docs/PROTOCOL.md */
    uint8_t fixed_bits[AGOQ_N_ROLES]; /* a width for each role; 0: the role's smallest */
    int use_fixed_bits;               /* 1: fixed_bits is the plan; not with record_file */
    const char *record_file;          /* append (step, id, plan) here at each switch: a plan file */
    const char *job;                  /* job identity, at most 63 bytes; "" and NULL: "default" */
    const char *device;               /* budget domain: GPU UUID; NULL: "cpu:HOST:RANK" */
    int32_t rank, world;              /* of the job */
    int32_t stage, n_stages;          /* pipeline coordinate */
    int32_t dp, n_dp, tp, n_tp;       /* other coordinates */
    agoq_mode mode;
    uint32_t poison_roles;     /* bit per role, mode POISON only */
    uint32_t incarnation_seed; /* 0: random incarnation; tests may fix it */
} agoq_session_config;

/* Every field is named, so that neither C nor C++ compilers warn about those that are not. */
#define AGOQ_SESSION_CONFIG_INIT                                                                             \
    { sizeof(agoq_session_config), 0, 0, {0}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, AGOQ_MODE_NORMAL, 0, 0 }

/* Fills what the environment says (AGOQ_SOCKET, AGOQ_PLAN_FILE, AGOQ_JOB, and rank and world from Open MPI,
 * Slurm or torchrun) where config still has NULL or 0. The strings point into the environment. The only
 * getenv of the library. */
AGOQ_API void agoq_session_config_env(agoq_session_config *config);

/* Opens a session; starts one helper thread if the daemon is the source of plans. Does not wait for it.
 * Allocates. E_INVAL, E_NOMEM, E_IO, or E_FORMAT, E_VERSION, E_LIMIT (plan file, record file). */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_open(const agoq_session_config *config,
                                                     agoq_session **session);
/* Says BYE, joins the helper thread (at most 200 ms), frees. NULL-safe, idempotent, sets NULL. In a forked
 * child it only frees the child's memory. */
AGOQ_API void agoq_session_close(agoq_session **session);

/* All-reduce MIN of six 64-bit words over all ranks of the job. start must not block; buf stays valid and
 * untouched until finish returns. Both are called only from the thread that calls agoq_step_begin. */
typedef struct agoq_vote_comm {
    void *ctx;
    agoq_status (*start)(void *ctx, uint64_t buf[6]);
    agoq_status (*finish)(void *ctx);
    /* NULL: nothing to do. Called at close and when replaced, also while a vote is under way; buf is gone
     * after it. */
    void (*destroy)(void *ctx);
} agoq_vote_comm;
/* Collective, between steps: runs one blocking vote (after every build or rebuild of the communicator).
 * Without a communicator a rank switches alone at its next step boundary. On failure comm stays the caller's.
 * E_COMM: the vote failed; no plan is switched until an attach succeeds. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_attach(agoq_session *session, const agoq_vote_comm *comm);

/* Pipeline schedules: X(id, name). Their numbers follow from the order here (docs/PROTOCOL.md): new ones go
 * to the end. */
#define AGOQ_SCHEDULES(X)                                                                                    \
    X(GPIPE, "gpipe")                                                                                        \
    X(1F1B, "1f1b")                                                                                          \
    X(INTERLEAVED, "interleaved")                                                                            \
    X(ZB_H1, "zb-h1")                                                                                        \
    X(ZB_H2, "zb-h2")                                                                                        \
    X(ZB_V, "zb-v")                                                                                          \
    X(V_HALF, "v-half")                                                                                      \
    X(V_MIN, "v-min")                                                                                        \
    X(DUALPIPE, "dualpipe")                                                                                  \
    X(DUALPIPEV, "dualpipev")

typedef enum agoq_schedule {
#define AGOQ_SCHEDULE_ENUM(id, name) AGOQ_SCHEDULE_##id,
    AGOQ_SCHEDULES(AGOQ_SCHEDULE_ENUM)
#undef AGOQ_SCHEDULE_ENUM
        AGOQ_N_SCHEDULES
} agoq_schedule;
/* Phases of a step that never coincide: their bytes are not added up. */
enum { AGOQ_PHASE_FWD_BWD, AGOQ_PHASE_EXCHANGE, AGOQ_PHASE_OPTIMIZER, AGOQ_N_PHASES };

/* What one micro-batch saves for (layer, role): count tensors of rows x cols. */
typedef struct agoq_item {
    int32_t layer; /* global index */
    int32_t role;  /* agoq_role */
    int32_t chunk; /* model chunk on this rank, 0 .. n_chunks-1 */
    int32_t count;
    int64_t rows, cols;
    uint32_t widths;    /* set of AGOQ_MASK_*; 0: the role's default */
    double sensitivity; /* 0: the role's default divided by the number of layers */
} agoq_item;

typedef struct agoq_profile {
    size_t size; /* sizeof(agoq_profile) */
    agoq_schedule schedule;
    int32_t n_microbatches, n_chunks, n_layers; /* n_layers: of the whole model */
    int32_t n_items;
    const agoq_item *items;
    const uint64_t *fixed_bytes; /* [n_chunks]: saved per micro-batch and not packed (log-sum-exp, ids) */
    uint64_t alloc_round_bytes; /* the caller's allocator rounds every allocation up to this; 0 or 1: exact */
    uint64_t static_bytes[AGOQ_N_PHASES]; /* weights, gradients, optimizer, present in that phase */
    uint64_t
        workspace_bytes[AGOQ_N_PHASES]; /* peak of everything else but saved activations, in that phase */
} agoq_profile;
/* Says what this rank holds; copied. Call before the first step and whenever it changes. Each (layer, role)
 * once. The session adds the observed live micro-batches. Does no I/O. Allocates. E_INVAL: it contradicts
 * itself, or fixed_bits; E_FORMAT: the plan file does not fit it; E_LIMIT: more than a message holds;
 * E_NOMEM. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_profile(agoq_session *session, const agoq_profile *profile);

/* Bytes counted by the caller's allocator during one step. peak: the most at any one time, everything
 * included. */
typedef struct agoq_usage {
    uint64_t peak_bytes, saved_peak_bytes, reserved_bytes;
    uint32_t oom_retries;
} agoq_usage;

/* Step boundary: with a communicator completes the vote started at the previous boundary and starts the next
 * (48 bytes, not waited for); without one does no I/O. step: not below the last. E_STATE: a saved activation
 * is live, or the last step has not ended; nothing has happened. E_COMM: a vote failed; the step has begun
 * with the plan that was in force, and so do all later ones until agoq_session_attach. Ranks on fixed_bits or
 * a plan file vote too, so that a rank with another source is counted as a disagreement; their source stays
 * what it is. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_step_begin(agoq_session *session, int64_t step);
AGOQ_API AGOQ_MUST_USE agoq_status agoq_step_end(agoq_session *session,
                                                 const agoq_usage *usage); /* usage: NULL ok */

/* A micro-batch of a chunk enters (+1, before its forward) or leaves (-1, after its backward). */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_microbatch(agoq_session *session, int chunk, int delta);
/* Width for (layer, role) in the running step: plan, guard and mode applied. 16 for a pair that no plan
 * knows. Never fails. */
AGOQ_API int agoq_session_bits(const agoq_session *session, int layer, int role);
/* Ledger: a packed tensor exists from saved to released. In mode POISON saved overwrites packed->data (host
 * memory). */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_saved(agoq_session *session, int layer, int role,
                                                      agoq_packed *packed);
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_released(agoq_session *session, int layer, int role,
                                                         const agoq_packed *packed);
/* Memory pressure (an allocation failed, or the caller sees little left): from now until the next plan switch
 * every width is min(plan, floor), at once and on this rank alone; the daemon is told and proposes a plan
 * that fits. */
AGOQ_API AGOQ_MUST_USE agoq_status agoq_session_pressure(agoq_session *session, const char *why);

/* The plan in force. id 0 is the floor plan. */
typedef struct agoq_plan_state {
    uint64_t plan_id, plan_hash;
    int64_t since_step;
    int guarded;              /* 1: the memory guard overrides the plan on this rank */
    int connected;            /* 1: the daemon answered within the last 3 s */
    uint64_t predicted_bytes; /* for this rank's stage, from the plan bytes; 0: the plan predicts nothing */
    uint64_t switches, disagreements;
} agoq_plan_state;
AGOQ_API void agoq_session_state(const agoq_session *session, agoq_plan_state *state);
AGOQ_API agoq_mode agoq_session_mode(const agoq_session *session);

/* Ledger of one (layer, role), bytes; layer or role -1: the sum (peak: the peak of the sum). */
typedef struct agoq_ledger_entry {
    uint64_t live_bytes, peak_bytes;     /* as packed */
    uint64_t live_bytes16, peak_bytes16; /* what the same tensors would have cost at 16 bits */
    uint64_t live_tensors;
} agoq_ledger_entry;
AGOQ_API void agoq_session_ledger(const agoq_session *session, int layer, int role, agoq_ledger_entry *entry);
AGOQ_API void agoq_session_reset_peaks(agoq_session *session);
/* Human-readable report: per role and in all, bits, live, peak, at 16 bits, ratio; predicted against
 * measured. Writes at most capacity bytes with a final NUL and returns the length it wanted, as snprintf
 * does. */
AGOQ_API size_t agoq_session_report(const agoq_session *session, char *text, size_t capacity);

#ifdef __cplusplus
}
#endif

#endif
