"""Pulls every lever that simulate says is enough: the stage must then fit. usage: levers.py AGOQCTL NAME OPTIONS...

Offloading and holding fewer micro-batches are not simulate's to do. Recomputing is asked of every rank, moving of the layout."""
import json
import subprocess
import sys

tool, name, *options = sys.argv[1:]


def simulate(more):
    line = [tool, "simulate", "--json", *options]
    for flag, value in more:  # a flag may be there once
        if flag in line:
            at = line.index(flag)
            del line[at : at + 2]
        line += [flag, value]
    run = subprocess.run(line, capture_output=True, text=True)
    assert run.returncode in (0, 5), run.stderr
    return json.loads(run.stdout)


def pull(lever, base):
    kind, amount = lever["lever"], lever["amount"] if "amount" in lever else 0
    if kind == "move_layers":
        counts = [len(s["layers"]) for s in base["stages"]]
        counts[lever["stage"]] -= amount
        counts[lever["to"]] += amount
        return [("--layout", ",".join(map(str, counts)))] if base["chunks"] == 1 else None
    return {
        "shard_optimizer": [("--zero", "1")],
        "chunk_loss": [("--loss-chunks", str(amount))],
        "raise_tp": [("--tp", str(amount))],
        "raise_cp": [("--cp", str(amount))],
        "other_schedule": [("--schedule", lever.get("schedule")), ("--vpp", str(lever.get("chunks")))],
        "expandable_segments": [("--margin", f"{amount / 1e4:g}%")],
        "lower_pin": [("--attn-qkv", "8")] if lever.get("role") == "attn_qkv" else None,
        "recompute_layers": [("--recompute", str(amount))] if base["schedule"] != "dualpipe" else None,  # there all or none
        "recompute_gate_up": [("--recompute", "gate-up")],
    }.get(kind)


base = simulate([])
pulled = set()
for lever in base["levers"]:
    options_of = lever["enough"] and pull(lever, base)
    if not options_of:
        continue
    stage = lever["stage"]
    after = simulate(options_of)["stages"][stage]
    pulled.add(lever["lever"])
    if after["overshoot_bytes"]:
        print(f"not ok {name}: stage {stage}: {lever['text']} is said to be enough, {after['overshoot_bytes']} bytes are left")
print(f"{'ok' if pulled and not base['feasible'] else 'not ok'} {name}: {', '.join(sorted(pulled))} pulled")
