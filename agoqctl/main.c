/* agoqctl: the operator's tool. Reads the command line, finds the verb in the table, runs it; its exit code
 * is the contract with scripts (ctl.h). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "agoqctl/args.h"
#include "agoqctl/ctl.h"

/* A file or socket opened later must not become stdout: what is closed is one that takes nothing. */
static void hold_closed(void) {
    for (int fd = 0; fd <= 2; fd++) {
        if (fcntl(fd, F_GETFD) < 0) (void)open("/dev/null", O_RDONLY);
    }
}

int main(int argc, char **argv) {
    hold_closed();
    char error[CTL_MAX_TEXT];
    ctl_args args;
    const char *socket = getenv("AGOQ_SOCKET");
    int code = args_parse(argc, argv, socket && *socket ? socket : "/run/agoq/agoqd.sock", &args, error,
                          sizeof error);
    if (code != CTL_OK) return ctl_fail(&args, code, "%s", error);
    if (args.version) {
        puts("agoqctl " AGOQ_VERSION);
        code = CTL_OK;
    } else if (args.help) {
        args_help(args.verb, args.verb ? NULL : args.positional[0], stdout);
        code = CTL_OK;
    } else {
        code = args.verb->run(&args);
    }
    /* A full disk or a closed pipe must not look like success. */
    if (fflush(stdout) || ferror(stdout)) {
        fputs("agoqctl: the output could not be written\n", stderr);
        code = CTL_FAILED; /* whatever it was: the answer is not there */
    }
    return code;
}
