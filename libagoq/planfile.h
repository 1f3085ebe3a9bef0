/* Plan files: which plan is in force from which step. Written while a session records, read to replay it
 * without a daemon. Text, one line per switch, so that people can read and diff them (normative:
 * docs/PROTOCOL.md): agoq-plan-file 1 STEP ID HASH PLAN        decimal, 16 and 16 lower-case hex digits, hex
 * of the canonical bytes STEP 0000000000000000 0000000000000000 -                   the floor plan At step s
 * the line with the largest STEP <= s applies; before the first, the floor plan. A line whose STEP is not
 * above those before it replaces them from its step on: a run that resumed from a checkpoint appends to the
 * same file. The trade-off: plans are spelled out at every switch (up to 120 KiB of hex), but a file needs no
 * other file. */
#ifndef LIBAGOQ_PLANFILE_H
#define LIBAGOQ_PLANFILE_H

#include "libagoq/slot.h"

#define PLANFILE_MAX_BYTES   (64u << 20)
#define PLANFILE_MAX_ENTRIES 65536

typedef struct planfile_entry {
    int64_t step;
    slot plan; /* id 0: floor */
} planfile_entry;

typedef struct planfile {
    planfile_entry *entries; /* steps strictly increasing */
    size_t n;
} planfile;

/* E_IO, E_FORMAT (agoq_last_error names the line), E_VERSION, E_LIMIT, E_NOMEM. */
AGOQ_MUST_USE agoq_status planfile_read(const char *path, planfile *out);
void planfile_fini(planfile *f);
/* NULL: the floor plan, because no entry applies yet. */
const planfile_entry *planfile_at(const planfile *f, int64_t step);

/* A file opened to append. fd -1: none. */
typedef struct planfile_writer {
    int fd;
    int failed;        /* a line could not be written: nothing more is recorded */
    int64_t last_step; /* of the last line; -1: no line */
    uint64_t last_id;
} planfile_writer;

/* Creates the file, or continues one that planfile_read accepts. */
AGOQ_MUST_USE agoq_status planfile_writer_open(const char *path, planfile_writer *w);
/* One line in one write(). */
AGOQ_MUST_USE agoq_status planfile_append(planfile_writer *w, int64_t step, const slot *which);
void planfile_writer_close(planfile_writer *w);

#endif
