/* libFuzzer: a configuration from memory. Whatever is accepted must be printed to a file that is accepted too
 * and says the same; everything else must be refused with a message. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "agoqd/conf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int condition, const char *what, const char *detail) {
    if (condition) return;
    fprintf(stderr, "%s: %s\n", what, detail);
    abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char error[512] = "", *first = NULL, *second = NULL;
    size_t first_size = 0, second_size = 0;
    conf c, again;
    conf_default(&c);
    conf_default(&again);
    if (conf_parse("f", data, size, &c, error, sizeof error) == AGOQ_OK) {
        FILE *out = open_memstream(&first, &first_size);
        c.from_file = 0;
        conf_print(&c, out);
        fclose(out);
        must(conf_parse("printed", first, first_size, &again, error, sizeof error) == AGOQ_OK, error, first);
        out = open_memstream(&second, &second_size);
        again.from_file = 0;
        conf_print(&again, out);
        fclose(out);
        must(first_size == second_size && !memcmp(first, second, first_size), "not the same", second);
    } else {
        must(!strncmp(error, "f:", 2), "no message", error);
    }
    free(first);
    free(second);
    conf_fini(&c);
    conf_fini(&again);
    return 0;
}
