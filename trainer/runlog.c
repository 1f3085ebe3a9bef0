/* The run's log: see runlog.h. Written with plain stdio and flushed per line, so that a killed run leaves
 * whole lines. A line that cannot be written is said once, when it happens, and remembered for the end of the
 * run: training is worth more than its log, and a log with a hole is worth a status that is not 0. */
#include "trainer/runlog.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <string.h>
#include <sys/stat.h>

int runlog_open(runlog *l, const char *dir, int rank, int resume) {
    char path[PATH_MAX];
    *l = (runlog){.rank = rank, .progress = rank == 0};
    if (!dir) return 0;
    if (mkdir(dir, 0777) && errno != EEXIST) return -1;
    if (snprintf(path, sizeof path, "%s/rank-%d.jsonl", dir, rank) >= (int)sizeof path) {
        errno = ENAMETOOLONG;
        return -1;
    }
    l->file = fopen(path, resume ? "a" : "w");
    return l->file ? 0 : -1;
}

static void check_written(runlog *l, int bad) {
    if (!bad || l->failed) return;
    fprintf(stderr, "agoq-train: rank %d: the log cannot be written: %s; training goes on without\n", l->rank,
            strerror(errno));
    fflush(stderr);
    l->failed = 1;
}

static void end_line(runlog *l) {
    errno = 0;
    check_written(l, fflush(l->file) != 0 || ferror(l->file));
}

int runlog_close(runlog *l) {
    if (l->file) check_written(l, fclose(l->file) != 0);
    l->file = NULL;
    return l->failed ? -1 : 0;
}

static void put_number(FILE *f, const char *name, double x) {
    if (isfinite(x))
        fprintf(f, ",\"%s\":%.17g", name, x);
    else
        fprintf(f, ",\"%s\":null", name);
}

void runlog_first(runlog *l, const model *m, const options *o, int replica) {
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved"};
    if (!l->file) return;
    fprintf(l->file, "{\"rank\":%d,\"stage\":%d,\"dp\":%d,\"layers\":[", l->rank, m->stage, replica);
    const char *comma = "";
    for (int c = 0; c < m->n_chunks; c++) {
        for (int i = 0; i < m->chunks[c].n_layers; i++, comma = ",")
            fprintf(l->file, "%s%d", comma, m->chunks[c].first_layer + i);
    }
    fprintf(l->file,
            "],\"schedule\":\"%s\",\"pp\":%d,\"n_dp\":%d,\"chunks\":%d,\"microbatches\":%d,\"mb_size\":%d,",
            schedules[o->par.schedule], o->par.pp, o->par.dp, o->par.chunks, o->par.microbatches,
            o->shape.mb_size);
    fprintf(l->file,
            "\"seq\":%d,\"hidden\":%d,\"ffn\":%d,\"steps\":%d,\"seed\":%" PRId64
            ",\"baseline\":%d,\"fp8_grads\":%d,\"adam8\":%d,\"zero1\":%d}\n",
            o->shape.seq, o->shape.hidden, o->shape.ffn, o->train.steps, o->train.seed, o->store.baseline,
            o->train.grads == OPTIONS_GRADS_FP8, o->train.adam == OPTIONS_ADAM_8BIT, o->par.zero1);
    end_line(l);
}

static void put_bits(FILE *f, const model *m, agoq_session *session) {
    static const int roles[] = {AGOQ_ROLE_ATTN_NORM_IN, AGOQ_ROLE_ATTN_QKV, AGOQ_ROLE_ATTN_OUT,
                                AGOQ_ROLE_MLP_NORM_IN, AGOQ_ROLE_MLP_GATE_UP};
    fprintf(f, ",\"bits\":{");
    for (size_t r = 0; r < sizeof roles / sizeof roles[0]; r++) {
        const char *comma = "";
        fprintf(f, "%s\"%s\":[", r ? "," : "", agoq_role_name(roles[r]));
        for (int c = 0; c < m->n_chunks; c++) {
            for (int i = 0; i < m->chunks[c].n_layers; i++, comma = ",")
                fprintf(f, "%s%d", comma, agoq_session_bits(session, m->chunks[c].layers[i].index, roles[r]));
        }
        fprintf(f, "]");
    }
    if (m->chunks[m->n_chunks - 1].has_head)
        fprintf(f, ",\"%s\":[%d]", agoq_role_name(AGOQ_ROLE_FINAL_NORM_IN),
                agoq_session_bits(session, m->shape.layers - 1, AGOQ_ROLE_FINAL_NORM_IN));
    fprintf(f, "}");
}

void runlog_write(runlog *l, const runlog_step *s, const model *m, agoq_session *session) {
    FILE *f = l->file;
    int live = 0;
    if (!f) return;
    fprintf(f, "{\"step\":%" PRId64 ",\"wall_ms\":%" PRId64, s->step, s->wall_ms);
    if (s->plan_id) {
        fprintf(f, ",\"plan\":\"%u.%u.%u\"", (unsigned)(s->plan_id >> 40),
                (unsigned)(s->plan_id >> 24 & 0xffff), (unsigned)(s->plan_id & 0xffffff));
    } else {
        fprintf(f, ",\"plan\":\"%s\"", session ? "floor" : "none");
    }
    fprintf(f, ",\"plan_hash\":\"%016" PRIx64 "\",\"guard\":%d", s->plan_hash, s->guard);
    put_number(f, "loss", s->loss);
    fprintf(f, ",\"peak_bytes\":%zu,\"saved_peak_bytes\":%zu,\"saved16_peak_bytes\":%zu", s->peak_bytes,
            s->saved_peak_bytes, s->saved16_peak_bytes);
    fprintf(f, ",\"weights_bytes\":%zu,\"grad_bytes\":%zu,\"optimizer_bytes\":%zu,\"workspace_bytes\":%zu",
            s->weights_bytes, s->grad_bytes, s->optimizer_bytes, s->workspace_bytes);
    fprintf(f, ",\"predicted_bytes\":%" PRIu64 ",\"live\":[", s->predicted_bytes);
    for (int c = 0; c < s->n_chunks; c++) {
        fprintf(f, "%s%d", c ? "," : "", s->live[c]);
        live += s->live[c];
    }
    fprintf(f, "],\"live_peak\":%d,\"tokens_per_s\":%.1f", live, s->tokens_per_s);
    const uint64_t key = s->plan_hash ^ s->plan_id * 2 ^ (uint64_t)s->guard;
    if (session && (!l->had_plan || key != l->plan_hash)) {
        put_bits(f, m, session);
        l->plan_hash = key;
        l->had_plan = 1;
    }
    fputs("}\n", f);
    end_line(l);
}

void runlog_last(runlog *l, uint64_t weights_hash, const alloc_stats *mem, size_t largest_matrix, double loss,
                 double eval) {
    if (!l->file) return;
    fprintf(l->file,
            "{\"done\":1,\"weights_hash\":\"%016" PRIx64
            "\",\"largest_grad_buffer_bytes\":%zu,\"fp32_grad_peak_bytes\":%zu,\"largest_matrix_bytes\":%zu",
            weights_hash, mem->fp32_grad_largest, mem->fp32_grad_peak, largest_matrix);
    put_number(l->file, "final_loss", loss);
    if (eval >= 0 || eval != eval) put_number(l->file, "eval_loss", eval);
    fputs("}\n", l->file);
    end_line(l);
}

void runlog_progress(const runlog_step *s) {
    const double mib = 1024.0 * 1024.0;
    printf("step %" PRId64 "/%d loss %.3f %.1fk tok/s peak %.1f MiB saved %.2f MiB (16-bit %.2f)\n",
           s->step + 1, s->n_steps, s->loss, s->tokens_per_s / 1000.0, (double)s->peak_bytes / mib,
           (double)s->saved_peak_bytes / mib, (double)s->saved16_peak_bytes / mib);
    fflush(stdout);
}
