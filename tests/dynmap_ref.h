/* The code of the dynamic maps as docs/FORMATS.md says it: how many of the 255 midpoints lie below. What the
 * kernels' bisection and tables are compared with. */
#ifndef TESTS_DYNMAP_REF_H
#define TESTS_DYNMAP_REF_H

static inline int dynmap_code(const float middles[255], float t) {
    int code = 0;
    while (code < 255 && middles[code] < t) code++;
    return code;
}

#endif
