/* See simulate.h. Reads what is asked, lets sim_answer.c work it out, and shows it. The trade-off of dry-run:
 * a plan too large for one message is an error there and not in simulate, since only there it has bytes. */
#include "agoqctl/simulate.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agoqctl/ctl.h"
#include "agoqctl/plan_show.h"
#include "agoqctl/sim_show.h"
#include "common/mem.h"

static int fail(const sim_input *in, int code, const char *text) {
    const ctl_args args = {.json = in->json};
    return ctl_fail(&args, code, "%s", text);
}

/* Which of the planner's limits it is. */
static int fail_limit(const sim_input *in) {
    const planner_run *r = &in->model.run;
    const planner_schedule s = {r->schedule, r->pp, r->microbatches, r->chunks, r->group, 0};
    planner_live_set set = {0};
    char why[256];
    const agoq_status status = in->has_ops ? planner_ops_live_all(&in->ops, PLANNER_HELD_TO_WEIGHT, &set)
                                           : planner_schedule_live(&s, PLANNER_HELD_TO_WEIGHT, &set);
    planner_live_set_fini(&set);
    if (status != AGOQ_E_LIMIT) return fail(in, CTL_USAGE, "simulate: sizes beyond 64 PiB");
    snprintf(why, sizeof why,
             "simulate: schedule %s with %u ranks, %u chunks and %u micro-batches is too large: more than %u "
             "operations to lay out, or more than %d live vectors of a rank",
             sim_schedule_name(in), r->pp, r->chunks, r->microbatches, PLANNER_MAX_OPS, PLANNER_MAX_LIVE);
    return fail(in, CTL_USAGE, why);
}

static int fail_status(const sim_input *in, agoq_status status) {
    char why[256] = "simulate: this cannot be planned";
    if (status == AGOQ_E_LIMIT) return fail_limit(in);
    if (status == AGOQ_E_INVAL) {
        char text[224];
        if (planner_model_check(&in->model, text, sizeof text) != AGOQ_OK)
            snprintf(why, sizeof why, "simulate: %s", text);
        return fail(in, CTL_USAGE, why);
    }
    return fail(in, CTL_FAILED, "simulate: out of memory");
}

int simulate_main(int argc, char **argv, int json) {
    char error[CTL_MAX_TEXT] = "";
    static sim_input in; /* large */
    sim_answer answer = {0};
    int code = sim_input_read(argc, argv, &in, error, sizeof error);
    in.json |= json;
    if (code == CTL_OK && !in.help && in.out) {
        snprintf(error, sizeof error, "simulate: --out belongs to `plan dry-run`");
        code = CTL_USAGE;
    }
    if (code != CTL_OK) {
        sim_input_fini(&in);
        return fail(&in, code, error);
    }
    if (in.help) {
        sim_input_help(argv[0], stdout);
        return CTL_OK;
    }
    const agoq_status status = sim_answer_make(&in, &answer);
    if (status != AGOQ_OK) {
        code = fail_status(&in, status);
    } else {
        code = answer.result.feasible && (!in.max || answer.largest) ? CTL_OK : CTL_INFEASIBLE;
        const int bad = in.json ? sim_show_json(&in, &answer, stdout) : sim_show_text(&in, &answer, stdout);
        if (bad) /* main says so of a stdout that takes nothing */
            code = ferror(stdout) ? CTL_FAILED
                                  : fail(&in, CTL_FAILED, "simulate: the answer could not be written");
    }
    sim_answer_fini(&answer);
    sim_input_fini(&in);
    return code;
}

static void print_hex(const uint8_t *data, size_t size, FILE *out) {
    for (size_t i = 0; i < size; i++) fprintf(out, "%02x", data[i]);
}

/* A plan file (docs/PROTOCOL.md) with this plan from step 0 on: whole, or what was there before. */
static int write_plan_file(const sim_input *in, const uint8_t *data, size_t size) {
    char why[CTL_MAX_TEXT], name[SIM_MAX_PATH];
    const mode_t mask = umask(0);
    umask(mask);
    struct stat st;
    int fd = -1;
    if (lstat(in->out, &st) == 0 && !S_ISREG(st.st_mode)) { /* a rename would replace it */
        snprintf(why, sizeof why, "simulate: %.1024s: is not a regular file", in->out);
        return fail(in, CTL_FAILED, why);
    }
    int bad = snprintf(name, sizeof name, "%s.XXXXXX", in->out) >= (int)sizeof name;
    if (bad) errno = ENAMETOOLONG;
    if (!bad) bad = (fd = mkstemp(name)) < 0;
    FILE *f = bad ? NULL : fdopen(fd, "w");
    if (!bad && !f) bad = 1;
    if (f) {
        fprintf(f, "agoq-plan-file 1\n0 %016" PRIx64 " %016" PRIx64 " ", plan_id_make(0, 0, 1),
                plan_hash(data, size));
        print_hex(data, size, f);
        fputc('\n', f);
        bad = ferror(f) || fflush(f) || fchmod(fd, 0666 & ~mask) || fsync(fd);
        const int why_not = errno;
        if (fclose(f) && !bad)
            bad = 1;
        else
            errno = why_not;
        if (!bad) bad = rename(name, in->out) != 0;
    }
    if (!bad) return CTL_OK;
    const int why_not = errno;
    if (fd >= 0) unlink(name);
    errno = why_not;
    snprintf(why, sizeof why, "simulate: %.1024s: %s", in->out, strerror(errno));
    return fail(in, CTL_FAILED, why);
}

static void show_plan(const sim_input *in, const sim_answer *a, const uint8_t *data, size_t size) {
    const plan *p = &a->result.plan;
    if (in->json) {
        json_writer j;
        char *hex = mem_alloc(2 * size + 1);
        json_begin(&j, stdout, "plan dry-run");
        json_bool(&j, "feasible", a->result.feasible);
        json_hash(&j, "hash", plan_hash(data, size));
        json_uint(&j, "size", size);
        for (size_t i = 0; hex && i < size; i++) snprintf(hex + 2 * i, 3, "%02x", data[i]);
        json_text(&j, "bytes", hex);
        plan_show_json(&j, p);
        json_end(&j);
        mem_free(hex);
        return;
    }
    printf("plan dry-run, hash %016" PRIx64 ", %zu bytes: %s\n", plan_hash(data, size), size,
           a->result.feasible ? "fits" : "does not fit even at the least widths");
    plan_show_text(p, stdout);
}

static int dry_run(const sim_input *in, sim_answer *a) {
    size_t size = 0;
    const agoq_status status = sim_answer_plan(in, a);
    if (status != AGOQ_OK) return fail_status(in, status);
    if (!a->planned)
        return fail(in, CTL_USAGE, "plan dry-run: this way of counting is a yardstick and has no plan");
    uint8_t *data = mem_alloc(PLAN_MAX_BYTES);
    if (!data) return fail(in, CTL_FAILED, "simulate: out of memory");
    int code = a->result.feasible ? CTL_OK : CTL_INFEASIBLE;
    if (plan_encode(&a->result.plan, data, PLAN_MAX_BYTES, &size) != AGOQ_OK)
        code = fail(in, CTL_USAGE, "plan dry-run: the plan is too large for one message (60 KiB)");
    else if (in->out && code == CTL_OK && write_plan_file(in, data, size) != CTL_OK)
        code = CTL_FAILED;
    else
        show_plan(in, a, data, size);
    if (in->out && code == CTL_INFEASIBLE)
        fprintf(stderr, "agoqctl: plan dry-run: it does not fit, so %s is not written\n", in->out);
    mem_free(data);
    return code;
}

int simulate_dry_run(int argc, char **argv, int json) {
    char error[CTL_MAX_TEXT] = "";
    static sim_input in; /* large */
    sim_answer answer = {0};
    int code = sim_input_read(argc, argv, &in, error, sizeof error);
    in.json |= json;
    if (code == CTL_OK && !in.help && (in.max || in.compare)) {
        snprintf(error, sizeof error, "plan dry-run: --%s belongs to `simulate`", in.max ? "max" : "compare");
        code = CTL_USAGE;
    }
    if (code != CTL_OK) {
        sim_input_fini(&in);
        return fail(&in, code, error);
    }
    if (in.help)
        sim_input_help("dry-run", stdout);
    else
        code = dry_run(&in, &answer);
    sim_answer_fini(&answer);
    sim_input_fini(&in);
    return code;
}
