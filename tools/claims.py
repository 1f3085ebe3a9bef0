#!/usr/bin/env python3
"""bench/results/claims.json from result files; never edited by hand. README and docs quote only what stands there.

usage: claims.py                       rebuild claims.json from every other bench/results/*.json
       claims.py --check               fail if it is not what the result files give
       claims.py demo REPORT.json      make bench/results/demo.json from a demo's report
       claims.py accuracy LINES        make bench/results/accuracy.json from what bench/accuracy --out wrote

A result file is {"gpu", "date", "commit", "command", "figures": [{"id", "value", "unit"}]}; gpu is null for CPU runs."""

import datetime
import glob
import json
import os
import re
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RESULTS = os.path.join(ROOT, "bench", "results")
CLAIMS = os.path.join(RESULTS, "claims.json")


def build():
    claims = []
    for path in sorted(glob.glob(os.path.join(RESULTS, "*.json"))):
        if os.path.basename(path) == "claims.json":
            continue
        with open(path, encoding="utf-8") as file:
            result = json.load(file)
        for figure in result["figures"]:
            claims.append({"id": figure["id"], "value": figure["value"], "unit": figure["unit"], "gpu": result["gpu"],
                           "date": result["date"], "commit": result["commit"], "command": result["command"],
                           "file": os.path.relpath(path, ROOT)})
    ids = [claim["id"] for claim in claims]
    doubled = sorted({i for i in ids if ids.count(i) > 1})
    if doubled:
        sys.exit(f"claimed twice: {', '.join(doubled)}")
    return json.dumps(claims, indent=1) + "\n"


def record_demo(path):
    with open(path, encoding="utf-8") as file:
        report = json.load(file)
    worst = max(row["measured_peak_bytes"] / row["predicted_peak_bytes"] for row in report["stages"] + report["stages_after_cut"])
    least = min(row["measured_peak_bytes"] / row["predicted_peak_bytes"] for row in report["stages"] + report["stages_after_cut"])
    figures = [("demo.final_loss_ratio", report["final_loss"]["agoq"] / report["final_loss"]["baseline"], "ratio"),
               ("demo.saved_bytes_ratio", report["saved_bytes_ratio"], "ratio"),
               ("demo.grad_bytes_ratio", report["grad_bytes_ratio"], "ratio"),
               ("demo.cut_boundaries", report["cut_boundaries"], "steps"),
               ("demo.steps_with_two_plans", report["steps_with_two_plans"], "steps"),
               ("demo.measured_over_predicted_max", worst, "ratio"), ("demo.measured_over_predicted_min", least, "ratio")]
    if "adam8" in report:
        figures.append(("demo.adam8_bytes_ratio", report["adam8"]["optimizer_bytes_ratio"], "ratio"))
    write_result("demo.json", "make demo", figures)


def write_result(name, command, figures, rows=None):
    commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "--short=12", "HEAD"], check=True, capture_output=True,
                            text=True).stdout.strip()
    result = {"gpu": None, "date": datetime.date.today().isoformat(), "commit": commit, "command": command,
              "figures": [{"id": i, "value": round(v, 4), "unit": u} for i, v, u in figures]}
    with open(os.path.join(RESULTS, name), "w", encoding="utf-8") as file:
        text = json.dumps(result, indent=1)
        if rows:  # one a line
            text = text[:-2] + ',\n "rows": [\n  ' + ",\n  ".join(json.dumps(row) for row in rows) + "\n ]\n}"
        file.write(text + "\n")


def record_accuracy(path):
    """Figures: what no test holds, sums of 64 micro-batches as they are used and real activations. Rows: all that was
    measured, for tools/tables.py."""
    figures = []
    with open(path, encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    for row in rows:
        name, staged = row["case"], row.get("staged", 1)
        if row["what"] == "accumulate":
            way = f"{row['format']}_{row['rounding'].lower()}" + (f"_bf16x{staged}" if staged > 1 else "")
            if way in ("e4m3_rn", "e4m3_sr", "e5m2_sr", "int8_sr"):
                figures.append((f"accuracy.bias64.{name}.{way}", row["bias_percent"], "percent"))
            if way != "e5m2_rn" and way != "int8_rn":
                figures.append((f"accuracy.sum64.{name}.{way}", row["error_percent"][-1], "percent"))
        elif row["what"] == "dump":
            figures += [(f"accuracy.{name}.{key}", row["error_percent"][key], "percent")
                        for key in ("int4", "int5", "int6", "int8", "code4")]
    write_result("accuracy.json", "build/bench/accuracy --elements 1048576 --dumps DIR --out LINES", figures, rows)


def main():
    args = sys.argv[1:]
    if args[:1] == ["demo"] and len(args) == 2:
        record_demo(args[1])
    elif args[:1] == ["accuracy"] and len(args) == 2:
        record_accuracy(args[1])
    elif args == ["--check"]:
        with open(CLAIMS, encoding="utf-8") as file:
            if file.read() != build():
                sys.exit("bench/results/claims.json is not what the result files give: run tools/claims.py")
        return
    elif args:
        sys.exit(__doc__)
    with open(CLAIMS, "w", encoding="utf-8") as file:
        file.write(build())


if __name__ == "__main__":
    main()
