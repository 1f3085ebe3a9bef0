/* The word that was meant: every reader of words (files, command lines) names the nearest valid one in its
 * error. */
#ifndef COMMON_WORDS_H
#define COMMON_WORDS_H

/* The entry of words (NULL-terminated) with the least edit distance, if it is close enough to be a typing
 * error; else NULL. */
const char *words_nearest(const char *text, const char *const words[]);

#endif
