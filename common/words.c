/* See words.h. Words are short, so three rows of the full table are kept, and longer texts are never taken
 * for typing errors. */
#include "common/words.h"

#include <string.h>
#include <strings.h>

#define MAX_WORD 48 /* longer texts are no typing errors of a word */
#define MIN_PART 4  /* so much of a word's beginning stands for it */

/* Levenshtein distance with a swap of two neighbours as one edit, ASCII case ignored. */
static unsigned distance(const char *a, const char *b) {
    unsigned rows[3][MAX_WORD + 1];
    size_t n = strlen(b);
    for (size_t j = 0; j <= n; j++) rows[0][j] = (unsigned)j;
    unsigned *before = rows[2], *above = rows[0], *row = rows[1];
    for (size_t i = 1; a[i - 1]; i++) {
        row[0] = (unsigned)i;
        for (size_t j = 1; j <= n; j++) {
            unsigned same = (a[i - 1] | 0x20) == (b[j - 1] | 0x20) ? 0 : 1;
            unsigned best = above[j - 1] + same;
            if (above[j] + 1 < best) best = above[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            row[j] = best;
        }
        unsigned *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[n];
}

const char *words_nearest(const char *text, const char *const words[]) {
    size_t length = strlen(text);
    if (!length || length > MAX_WORD) return NULL;
    const char *best = NULL;
    unsigned best_distance = length < 4 ? 1 : length < 8 ? 2 : 3;
    for (size_t i = 0; words[i]; i++) {
        if (strlen(words[i]) > MAX_WORD) continue;
        const int begins = length >= MIN_PART && strncasecmp(text, words[i], length) == 0;
        unsigned d = begins ? 0 : distance(text, words[i]);
        if (d < best_distance || (d == best_distance && !best)) {
            best = words[i];
            best_distance = d;
        }
    }
    return best;
}
