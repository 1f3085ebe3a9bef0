/* What a checkpoint remembers of the run that wrote it: every option that the next step's numbers depend on,
 * so that a resumed run cannot silently be another one. What only says where plans come from or how fast the
 * same numbers are made (schedule, plan source, memory limit) is left out on purpose. The trade-off: real
 * numbers are kept as their bits and compared exactly. */
#ifndef TRAINER_CHECKPOINT_CONFIG_H
#define TRAINER_CHECKPOINT_CONFIG_H

#include "trainer/options.h"

enum { CHECKPOINT_FIELDS = 27 };

void checkpoint_config_fill(const options *o, int rank, int64_t step, int64_t out[CHECKPOINT_FIELDS]);
/* 0: found is what this run wants; else text names the first difference and both values. */
int checkpoint_config_differs(const int64_t found[CHECKPOINT_FIELDS], const int64_t want[CHECKPOINT_FIELDS],
                              char *text, size_t text_bytes);

#endif
