/* Checkpoint files: what is synced before a checkpoint counts, and what a record of plans that cannot be read
 * means. The rest, over MPI, is in tests/system/40-trainer.sh. */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <cmocka.h>

#include "trainer/checkpoint.h"

static int folders_synced, files_synced, folder_sync_fails;

/* In place of the C library's: counts, and fails on demand. */
int fsync(int fd) {
    struct stat s;
    assert_int_equal(fstat(fd, &s), 0);
    if (S_ISDIR(s.st_mode)) {
        folders_synced++;
        if (folder_sync_fails) {
            errno = EIO;
            return -1;
        }
    } else {
        files_synced++;
    }
    return (int)syscall(SYS_fsync, fd);
}

typedef struct fixture {
    char dir[64], record[PATH_MAX], error[256];
    options o;
    alloc_stats mem;
    params params;
    optim optim;
    optim_state state;
    float m[8], v[8];
    checkpoint c;
} fixture;

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    snprintf(f->dir, sizeof f->dir, "/tmp/agoq-checkpoint-XXXXXX");
    if (!mkdtemp(f->dir) || params_add(&f->params, 7, 2, 4, 1.0f, 1, &f->mem) != 0) return -1;
    f->state = (optim_state){.n = 8, .m = f->m, .v = f->v};
    f->optim = (optim){.list = &f->state, .n = 1};
    f->c = (checkpoint){&f->o, f->dir, 0, &f->params, &f->optim};
    snprintf(f->record, sizeof f->record, "%s/plans", f->dir);
    folders_synced = files_synced = folder_sync_fails = 0;
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", f->dir);
    params_fini(&f->params, &f->mem);
    const int rc = system(command);
    free(f);
    return rc;
}

/* A file that was renamed is only found after a crash if its folder was synced as well. */
static void every_rename_is_synced(void **state) {
    fixture *f = *state;
    assert_int_equal(checkpoint_write(&f->c, 3, NULL, f->error, sizeof f->error), 0);
    assert_true(files_synced == 1 && folders_synced == 1);
    assert_int_equal(checkpoint_publish(&f->c, 3, f->error, sizeof f->error), 0);
    assert_true(files_synced == 2 && folders_synced == 2);
    assert_true(checkpoint_latest(f->dir, f->error, sizeof f->error) == 3);
    assert_int_equal(checkpoint_read(&f->c, 3, f->error, sizeof f->error), 0);
    folder_sync_fails = 1;
    assert_int_equal(checkpoint_publish(&f->c, 4, f->error, sizeof f->error), -1);
    assert_non_null(strstr(f->error, "cannot be written"));
}

/* Only a record that is not there means that no plan was ever switched to. */
static void a_record_that_cannot_be_read_is_an_error(void **state) {
    fixture *f = *state;
    char path[PATH_MAX];
    assert_int_equal(checkpoint_write(&f->c, 3, f->record, f->error, sizeof f->error), 0);
    assert_false(checkpoint_plan(f->dir, 3, path, sizeof path));
    FILE *record = fopen(f->record, "w");
    fputs("agoq-plan-file 1\n", record);
    fclose(record);
    assert_int_equal(checkpoint_write(&f->c, 4, f->record, f->error, sizeof f->error), 0);
    assert_true(checkpoint_plan(f->dir, 4, path, sizeof path));
    strcat(f->record, "/plans"); /* below a file: ENOTDIR, also for root */
    assert_int_equal(checkpoint_write(&f->c, 5, f->record, f->error, sizeof f->error), -1);
    assert_non_null(strstr(f->error, "Not a directory"));
    assert_int_equal(checkpoint_write(&f->c, 6, f->dir, f->error, sizeof f->error),
                     -1); /* opens, but no read */
}

static void a_folder_with_too_long_a_name_is_refused(void **state) {
    fixture *f = *state;
    char *deep = malloc(PATH_MAX);
    snprintf(deep, PATH_MAX, "%s", f->dir);
    memset(deep + strlen(deep), '/', PATH_MAX - 1 - strlen(deep));
    deep[PATH_MAX - 1] = 0;
    assert_true(checkpoint_latest(deep, f->error, sizeof f->error) == -1);
    assert_non_null(strstr(f->error, "too long"));
    free(deep);
}

int main(void) {
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {CASE(every_rename_is_synced),
                                       CASE(a_record_that_cannot_be_read_is_an_error),
                                       CASE(a_folder_with_too_long_a_name_is_refused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
