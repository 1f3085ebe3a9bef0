/* `agoqctl simulate`: will this model fit on that cluster? The planner on a described model, without a
 * daemon; and `agoqctl plan dry-run`: the plan that it would make, in the bytes a daemon would send. */
#ifndef AGOQCTL_SIMULATE_H
#define AGOQCTL_SIMULATE_H

/* argv[0] is the verb's name; reads its own options (a further --json among them is harmless). Writes its
 * answer, as JSON if json != 0; returns an exit code of ctl.h. */
int simulate_main(int argc, char **argv, int json);
int simulate_dry_run(int argc, char **argv, int json);

#endif
