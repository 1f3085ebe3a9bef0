/* libFuzzer entry: any bytes go in; what decodes must pass the rules and encode back to the very same bytes.
 * Build: clang -fsanitize=fuzzer,address,undefined (make fuzz). */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/mem.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Agoq__Envelope *e = NULL;
    const char *why = NULL;
    if (wire_decode(data, size, WIRE_MAX_CTL_BYTES, &e, &why) != AGOQ_OK) {
        assert(!e && why);
        return 0;
    }
    assert(!wire_check(e));
    uint8_t *again = mem_alloc(size);
    assert(again && agoq__envelope__pack(e, again) == size);
    Agoq__Envelope *twice = NULL; /* the order of fields may differ the first time, never the second */
    assert(wire_decode(again, size, WIRE_MAX_CTL_BYTES, &twice, &why) == AGOQ_OK);
    uint8_t *third = mem_alloc(size);
    assert(third && agoq__envelope__pack(twice, third) == size && memcmp(again, third, size) == 0);
    mem_free(third);
    mem_free(again);
    wire_free(twice);
    wire_free(e);
    return 0;
}
