/* libFuzzer: the command line of agoqctl, words separated by NUL. Whatever is refused has a message. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "agoqctl/args.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static char text[4096];
    char *argv[66], error[512] = "", name[] = "agoqctl";
    int argc = 1;
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = 0;
    argv[0] = name;
    for (size_t at = 0; at < size && argc < 65; at += strlen(text + at) + 1) argv[argc++] = text + at;
    argv[argc] = NULL;
    ctl_args args;
    if (args_parse(argc, argv, "/run/agoqd.sock", &args, error, sizeof error) != CTL_OK) assert(error[0]);
    uint64_t id;
    (void)args_plan_id(text, &id);
    return 0;
}
