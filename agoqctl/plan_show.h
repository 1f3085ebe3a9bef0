/* Plans as text and JSON, from their canonical bytes alone. */
#ifndef AGOQCTL_PLAN_SHOW_H
#define AGOQCTL_PLAN_SHOW_H

#include <stdio.h>

#include "agoqctl/json.h"
#include "planner/plan.h"

/* Per stage: budget, prediction, widths by role with equal layers together: "mlp_gate_up  4 (layers 0-1), 6
 * (layer 2)". */
void plan_show_text(const plan *p, FILE *out);
void plan_show_json(json_writer *j, const plan *p); /* "stages": [...] */
/* What turns a into b; returns the number of differences (0: "no difference" is written). */
int plan_diff_text(const plan *a, const plan *b, FILE *out);
int plan_diff_json(json_writer *j, const plan *a, const plan *b); /* "stages": [...], "widths": [...] */

#endif
