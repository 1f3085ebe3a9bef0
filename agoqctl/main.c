/* agoqctl: the operator's tool. Reads the command line, finds the verb in the table, runs it; its exit code
 * is the contract with scripts (ctl.h). */
#include <stdio.h>
#include <stdlib.h>

#include "agoqctl/args.h"
#include "agoqctl/ctl.h"

int main(int argc, char **argv) {
    char error[CTL_MAX_TEXT];
    ctl_args args;
    const char *socket = getenv("AGOQ_SOCKET");
    int code = args_parse(argc, argv, socket && *socket ? socket : "/run/agoq/agoqd.sock", &args, error,
                          sizeof error);
    if (code != CTL_OK) return ctl_fail(&args, code, "%s", error);
    if (args.help) {
        args_help(args.verb, args.verb ? NULL : args.positional[0], stdout);
        code = CTL_OK;
    } else {
        code = args.verb->run(&args);
    }
    /* A full disk or a closed pipe must not look like success. */
    if (fflush(stdout) || ferror(stdout)) {
        fputs("agoqctl: the output could not be written\n", stderr);
        if (code == CTL_OK) code = CTL_FAILED;
    }
    return code;
}
