#!/usr/bin/env python3
"""Checks what a demo's report must show; prints `ok NAME` or `not ok NAME: figures` lines.
usage: demo_check.py REPORT.json [--loss-tolerance PERCENT]"""

import json
import sys


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        report = json.load(file)
    tolerance = float(sys.argv[sys.argv.index("--loss-tolerance") + 1]) / 100 if "--loss-tolerance" in sys.argv else 0.02
    failed = 0

    def check(name, condition, detail):
        nonlocal failed
        failed += not condition
        print(f"ok {name}" if condition else f"not ok {name}: {detail}")

    final, first = report["final_loss"], report["loss"]["baseline"][0]
    ratio = final["agoq"] / final["baseline"]
    check("final loss near baseline", abs(ratio - 1) <= tolerance, f"agoq / baseline = {ratio:.4f}")
    check("both losses below 40 % of the first", max(final.values()) < 0.4 * first, f"{final}, first {first:.3f}")
    bits = [row["bits_mean"] for row in report["stages"]]
    check("widths do not decrease towards the last stage", bits == sorted(bits), bits)
    check("the first stage is below 8 bits", bits[0] < 8, bits)
    windows = {"before the cut": report["stages"], "after the cut": report["stages_after_cut"]}
    for name, rows in windows.items():
        check(f"there is a window {name}", len(rows) == report["pp"], f"{len(rows)} stages")
        pairs = [(row["measured_peak_bytes"], row["predicted_peak_bytes"], row["budget_bytes"]) for row in rows]
        check(f"prediction within 5 % above, {name}", all(0.95 * p <= m <= p for m, p, _ in pairs), pairs)
        check(f"measured within budget, {name}", all(m <= b for m, _, b in pairs), pairs)
    check("every step of every rank within its prediction", report["every_step_within_prediction"], "see the rank logs")
    check("no gradient buffer larger than one weight matrix",
          report["largest_grad_buffer_bytes"] <= report["largest_matrix_bytes"],
          f"{report['largest_grad_buffer_bytes']} > {report['largest_matrix_bytes']}")
    check("saved activations at most 0.40", report["saved_bytes_ratio"] <= 0.40, report["saved_bytes_ratio"])
    check("gradients at most 0.27", report["grad_bytes_ratio"] <= 0.27, report["grad_bytes_ratio"])
    check("the cut is in force after at most 3 boundaries", report["cut_boundaries"] is not None
          and report["cut_boundaries"] <= 3, report["cut_boundaries"])
    check("no step with two plans", report["steps_with_two_plans"] == 0, report["steps_with_two_plans"])
    check("at least two plan switches", report["plan_switches"] >= 2, report["plan_switches"])
    whys = [event["why"] for event in report["events"] if event["what"] == "plan"]
    check("every plan says why", whys and all(whys), whys)
    keys = ("steps tokens schedule pp dp microbatches loss final_loss saved_bytes_ratio grad_bytes_ratio plan_switches "
            "steps_with_two_plans cut_boundaries stages stages_after_cut events adam8").split()
    check("the report is complete", all(key in report for key in keys), [key for key in keys if key not in report])
    stage_keys = ("stage live_microbatches bits_mean widths budget_bytes predicted_peak_bytes measured_peak_bytes bytes_at_16").split()
    check("its stages too", all(key in row for rows in windows.values() for row in rows for key in stage_keys), windows)
    check("its events too", report["events"] and all(key in event for event in report["events"]
                                                   for key in ("step", "what", "why", "steps_to_effect")), report["events"])
    if "adam8" in report:
        check("8-bit AdamW trains", report["adam8"]["final_loss"] < 0.75 * first, report["adam8"]["final_loss"])
        check("8-bit AdamW state at most 0.27", report["adam8"]["optimizer_bytes_ratio"] <= 0.27,
              report["adam8"]["optimizer_bytes_ratio"])
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
