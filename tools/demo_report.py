#!/usr/bin/env python3
"""Makes the demo's report from what the programs wrote, and nothing else: rank logs (JSON lines), agoqctl snapshots, the
daemon's log. Prints a table, two loss curves and the plan history; writes report.json and report.svg.

usage: demo_report.py DIR   (DIR holds baseline/, agoq/, adam8/, ctl-*.json, agoqd.log)"""

import glob
import json
import os
import sys

import demo_plot

PLANNED = ("attn_norm_in", "mlp_norm_in", "mlp_gate_up")


def load_run(folder):
    """{rank: {"head": {...}, "steps": [...], "tail": {...}}} of one training run; bits are carried forward."""
    ranks = {}
    for path in glob.glob(os.path.join(folder, "rank-*.jsonl")):
        with open(path, encoding="utf-8") as file:
            rows = [json.loads(line) for line in file if line.strip()]
        head, tail = rows[0], rows[-1]
        if "done" not in tail:
            sys.exit(f"{path}: the run did not finish")
        steps, bits = [], {}
        for row in rows[1:-1]:
            bits = row.get("bits", bits)
            row["bits"] = bits
            steps.append(row)
        ranks[head["rank"]] = {"head": head, "steps": steps, "tail": tail}
    if not ranks:
        sys.exit(f"{folder}: no rank logs")
    return ranks


def load_json(path, default):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return default


def losses(run):
    return [row["loss"] for row in run[0]["steps"]]


def tail_mean(values, n=50):
    last = values[-n:]
    return sum(last) / len(last)


def by_stage(run):
    stages = {}
    for rank in run.values():
        stages.setdefault(rank["head"]["stage"], []).append(rank)
    return [stages[s] for s in sorted(stages)]


def switch_steps(run):
    """Steps at which rank 0 came to another plan, with the plan's id."""
    switches, before = [], "floor"
    for row in run[0]["steps"]:
        if row["plan"] != before:
            switches.append((row["step"], row["plan"]))
            before = row["plan"]
    return switches


def steps_with_two_plans(run):
    plans = {}
    for rank in run.values():
        for row in rank["steps"]:
            if not row["guard"]:
                plans.setdefault(row["step"], set()).add((row["plan"], row["plan_hash"]))
    return sum(len(ids) > 1 for ids in plans.values())


def bits_mean(head, bits):
    """Mean width by elements of the planned roles, over the layers of a rank."""
    elems = {"attn_norm_in": head["hidden"], "mlp_norm_in": head["hidden"], "mlp_gate_up": 2 * head["ffn"]}
    total = sum(elems[role] * sum(bits[role]) for role in PLANNED)
    return total / sum(elems[role] * len(bits[role]) for role in PLANNED)


def compress(widths):
    return widths[0] if len(set(widths)) == 1 else widths


def describe_window(run, budgets, first, end):
    """One row per stage: the last plan in force in [first, end), and the peaks since it came into force."""
    rows = []
    for stage, ranks in enumerate(by_stage(run)):
        worst = None
        for rank in ranks:
            steps = [row for row in rank["steps"] if first <= row["step"] < end]
            plan = steps[-1]["plan"]
            steps = [row for row in steps if row["plan"] == plan]
            peak = max(steps, key=lambda row: row["peak_bytes"])
            if worst is None or peak["peak_bytes"] > worst[1]["peak_bytes"]:
                worst = (rank, peak, max(row["saved_peak_bytes"] for row in steps))
        rank, peak, saved = worst
        rows.append({
            "stage": stage,
            "live_microbatches": peak["live_peak"],
            "bits_mean": round(bits_mean(rank["head"], peak["bits"]), 4),
            "widths": {role: compress(bits) for role, bits in peak["bits"].items()},
            "budget_bytes": budgets[stage],
            "predicted_peak_bytes": peak["predicted_bytes"],
            "measured_peak_bytes": peak["peak_bytes"],
            "bytes_at_16": peak["peak_bytes"] - peak["saved_peak_bytes"] + peak["saved16_peak_bytes"],
            "saved_peak_bytes": saved,
            "parts": {"weights": peak["weights_bytes"], "gradients": peak["grad_bytes"],
                      "optimizer": peak["optimizer_bytes"], "saved": peak["saved_peak_bytes"]},
        })
    return rows


def budgets_of(snapshot, n_stages):
    """Smallest budget of each stage's devices in an `agoqctl --json budget get` answer."""
    budgets = [None] * n_stages
    for row in snapshot.get("budgets", []):
        stage, size = row["stage"], row["effective_bytes"]
        if 0 <= stage < n_stages:
            budgets[stage] = size if budgets[stage] is None else min(budgets[stage], size)
    return budgets


def baseline_saved_peak(run, stage):
    return max(row["saved_peak_bytes"] for rank in by_stage(run)[stage] for row in rank["steps"])


def max_over(run, field):
    return max(row[field] for rank in run.values() for row in rank["steps"])


def cut_boundaries(run, cut):
    """Step boundaries from the daemon's log line of the cut to the step at which it took effect, on the slowest rank."""
    return max(sum(row["wall_ms"] > cut["wall_ms"] and row["step"] <= cut["step_effective"] for row in rank["steps"])
               for rank in run.values())


def find_cut(run, events):
    """The cut in the daemon's history: when it was logged, and the step of the first switch after it."""
    for event in events:
        if event["what"] == "budget":
            after = [row["step"] for row in run[0]["steps"]
                     if row["wall_ms"] > event["wall_ms"] and (row["step"], row["plan"]) in switch_steps(run)]
            if after:
                return {"wall_ms": event["wall_ms"], "step_effective": after[0]}
    return None


def build(folder):
    baseline, agoq = load_run(os.path.join(folder, "baseline")), load_run(os.path.join(folder, "agoq"))
    n_stages = len(by_stage(agoq))
    head = agoq[0]["head"]
    switches = switch_steps(agoq)
    if not switches:
        sys.exit("agoq run: no planned switch happened")
    events = load_json(os.path.join(folder, "ctl-history-1.json"), {}).get("events", [])
    events += [e for e in load_json(os.path.join(folder, "ctl-history-2.json"), {}).get("events", []) if e not in events]
    last = agoq[0]["steps"][-1]["step"] + 1
    cut = find_cut(agoq, events)
    cut_step = cut["step_effective"] if cut else last
    before = budgets_of(load_json(os.path.join(folder, "ctl-budget-1.json"), {}), n_stages)
    after = budgets_of(load_json(os.path.join(folder, "ctl-budget-2.json"), {}), n_stages)
    stages = describe_window(agoq, before, switches[0][0], cut_step)
    for row in stages:
        row["saved_ratio"] = round(row["saved_peak_bytes"] / baseline_saved_peak(baseline, row["stage"]), 4)
    tightest = min(stages, key=lambda row: (row["bits_mean"], row["stage"]))
    for event in events:
        if event["steps_to_effect"] is not None and event["steps_to_effect"] < 0:
            event["steps_to_effect"] = None
    report = {
        "steps": len(losses(agoq)),
        "tokens": head["seq"] * head["mb_size"] * head["microbatches"] * head["n_dp"] * len(losses(agoq)),
        "schedule": head["schedule"], "pp": n_stages, "dp": len(agoq) // n_stages,
        "microbatches": head["microbatches"],
        "loss": {"baseline": losses(baseline), "agoq": losses(agoq)},
        "final_loss": {"baseline": tail_mean(losses(baseline)), "agoq": tail_mean(losses(agoq))},
        "saved_bytes_ratio": tightest["saved_ratio"],
        "grad_bytes_ratio": round(max_over(agoq, "grad_bytes") / max_over(baseline, "grad_bytes"), 4),
        "plan_switches": len(switches),
        "steps_with_two_plans": steps_with_two_plans(agoq),
        "cut_boundaries": cut_boundaries(agoq, cut) if cut else None,
        "stages": stages,
        "stages_after_cut": describe_window(agoq, after, cut_step, last) if cut else [],
        "events": [{"step": e["step"], "what": e["what"], "why": e["why"], "steps_to_effect": e["steps_to_effect"]}
                   for e in events],
        "largest_grad_buffer_bytes": max(r["tail"]["largest_grad_buffer_bytes"] for r in agoq.values()),
        "largest_matrix_bytes": max(r["tail"]["largest_matrix_bytes"] for r in agoq.values()),
        "every_step_within_prediction": all(
            row["peak_bytes"] <= row["predicted_bytes"] for rank in agoq.values() for row in rank["steps"]
            if row["step"] >= switches[0][0] and not row["guard"]),
    }
    if os.path.isdir(os.path.join(folder, "adam8")):
        adam8 = load_run(os.path.join(folder, "adam8"))
        report["adam8"] = {"steps": len(losses(adam8)), "loss": losses(adam8), "final_loss": tail_mean(losses(adam8), 20),
                           "optimizer_bytes_ratio": round(max_over(adam8, "optimizer_bytes") /
                                                          max_over(baseline, "optimizer_bytes"), 4)}
    return report


def mib(n):
    return "-" if n is None else f"{n / 2**20:.3f}"


def print_table(title, rows):
    roles = sorted({role for row in rows for role in row["widths"]}, key=lambda r: (r not in PLANNED, r))
    print(f"\n{title}\n" + f"{'stage':>5} {'live':>4} {'mean bits':>9}  " + " ".join(f"{r:>13}" for r in roles) +
          f" {'budget':>8} {'predicted':>9} {'measured':>8} {'at 16 bit':>9} {'saved':>6}  (MiB)")
    for row in rows:
        widths = " ".join(f"{str(row['widths'].get(r, '-')).replace(' ', ''):>13}" for r in roles)
        ratio = f"{row['saved_ratio']:.2f}x" if "saved_ratio" in row else ""
        print(f"{row['stage']:>5} {row['live_microbatches']:>4} {row['bits_mean']:>9.2f}  {widths} "
              f"{mib(row['budget_bytes']):>8} {mib(row['predicted_peak_bytes']):>9} "
              f"{mib(row['measured_peak_bytes']):>8} {mib(row['bytes_at_16']):>9} {ratio:>6}")


def main():
    folder = sys.argv[1]
    report = build(folder)
    print_table("Stages, from the first planned switch to the cut", report["stages"])
    print("      [16,8]: the stage's layers differ, in their order; saved: saved activations against the baseline's")
    if report["stages_after_cut"]:
        print_table("Stages, after the cut", report["stages_after_cut"])
    print("\nLoss (b baseline, a agoq, * both)")
    print(demo_plot.text_curves(report["loss"]["baseline"], report["loss"]["agoq"]))
    print("\nWhy the plan changed")
    for event in report["events"]:
        if event["what"] == "rank":
            continue
        took = f" (in force after {event['steps_to_effect']} steps)" if event["steps_to_effect"] is not None else ""
        step = f"step {event['step']:>4}" if event["step"] >= 0 else " " * 9
        print(f"  {step}  {event['what']:<7} {event['why']}{took}")
    final = report["final_loss"]
    print(f"\nloss, mean of the last 50 steps: {final['baseline']:.4f} baseline, {final['agoq']:.4f} agoq "
          f"({100 * (final['agoq'] / final['baseline'] - 1):+.2f} %); saved activations {report['saved_bytes_ratio']:.2f}x, "
          f"gradients {report['grad_bytes_ratio']:.2f}x; cut in force after {report['cut_boundaries']} step boundaries; "
          f"steps with two plans: {report['steps_with_two_plans']}")
    if "adam8" in report:
        print(f"8-bit AdamW: {report['adam8']['steps']} steps, loss {report['adam8']['final_loss']:.4f} (mean of the last 20), "
              f"optimizer state {report['adam8']['optimizer_bytes_ratio']:.2f}x")
    with open(os.path.join(folder, "report.json"), "w", encoding="utf-8") as file:
        json.dump(report, file, indent=1)
    with open(os.path.join(folder, "report.svg"), "w", encoding="utf-8") as file:
        file.write(demo_plot.svg(report))


if __name__ == "__main__":
    main()
