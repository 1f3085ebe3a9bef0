"""Pulls every lever of simulate that is a flag, by its flag: it is called enough if and only if its stage then fits, and
what it saves is what the stage needs less at its least widths.
usage: levers.py AGOQCTL NAME OPTIONS...     one job, which must not fit
       levers.py AGOQCTL --random SEED JOBS  jobs by chance, at budgets that most of their stages miss by little

Offloading and holding fewer micro-batches are not simulate's to do. Recomputing is asked of every rank, moving of the layout."""
import json
import random
import subprocess
import sys


def simulate(tool, options, more=()):
    line = list(options)
    for flag, value in more:  # a flag may be there once; None: not at all
        while flag in line:
            at = line.index(flag)
            del line[at : at + 2]
        if value is not None:
            line += [flag, value]
    run = subprocess.run([tool, "simulate", "--json", *line], capture_output=True, text=True)
    return (json.loads(run.stdout) if run.returncode in (0, 5) else None), run.stderr.strip()


def pull(lever, base, options):
    kind, amount = lever["lever"], lever["amount"] if "amount" in lever else 0
    if kind == "move_layers":
        pieces = base["pp"] * (1 if base["schedule"] == "dualpipe" else base["chunks"])
        counts = [base["layers"] // pieces + (i < base["layers"] % pieces) for i in range(pieces)]
        counts[lever["stage"]] -= amount
        counts[lever["to"]] += amount
        return [("--layout", ",".join(map(str, counts)))]
    had = options[options.index("--recompute") + 1] if "--recompute" in options else ""
    layers = next((x for x in had.split(",") if x.isdigit()), "")
    modules = ",".join(x for x in had.split(",") if x not in ("", "none", layers))
    join = lambda *parts: ",".join(x for x in parts if x)
    everything = amount == len(base["stages"][lever["stage"]]["layers"])
    return {
        "shard_optimizer": [("--zero", "1")],
        "chunk_loss": [("--loss-chunks", str(amount))],
        "raise_tp": [("--tp", str(amount))],
        "raise_cp": [("--cp", str(amount))],
        "other_schedule": [("--schedule", lever.get("schedule")), ("--vpp", str(lever.get("chunks")))],
        "expandable_segments": [("--margin", f"{amount / 1e4:g}%")],
        "lower_pin": [("--attn-qkv", "8")] if lever.get("role") == "attn_qkv" else None,
        "recompute_layers": [("--recompute", "full" if everything and not modules else join(str(amount), modules))],
        "recompute_gate_up": [("--recompute", join(layers, modules, "gate-up"))],
    }.get(kind)


def check(tool, name, options, pulled):
    """Says what is wrong; counts what was pulled. Returns the job, or None if there is no such job."""
    base, why = simulate(tool, options)
    if not base:
        return None
    tiny = [("--budget", "1MiB"), ("--context", "0B"), ("--budget-stage", None)]  # all stages at their least widths
    least = simulate(tool, options, tiny)[0]
    for lever in base["levers"]:
        flags = pull(lever, base, options)
        if not flags:
            continue
        at = lever["stage"]
        after, why = simulate(tool, options, flags)
        if not after:
            print(f"not ok {name}: stage {at}: {lever['text']} is refused: {why}")
            continue
        was, left = base["stages"][at]["overshoot_bytes"], after["stages"][at]["overshoot_bytes"]
        pulled[lever["lever"]] = pulled.get(lever["lever"], 0) + 1
        if lever["enough"] != (left == 0):
            print(f"not ok {name}: stage {at}: {lever['text']}: enough {lever['enough']}, but {left} bytes are left")
        if lever["lever"] == "expandable_segments":
            saved = was - left if left else None
        else:
            after = simulate(tool, options, flags + tiny)[0]
            saved = least["stages"][at]["predicted_peak_bytes"] - after["stages"][at]["predicted_peak_bytes"]
        if saved is not None and saved != lever["saves_bytes"]:
            print(f"not ok {name}: stage {at}: {lever['text']}: {lever['saves_bytes']} bytes are said, {saved} are saved")
    return base


def draw(r, tool):
    """A job whose budget some of its stages miss by little; None where the draw is no job."""
    schedule = r.choice(["gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min", "dualpipe", "dualpipev"])
    pp = r.choice([1, 2, 4, 8])
    job = ["--model", r.choice(["llama3-8b", "llama2-13b", "codellama-34b", "olmo-1b", "llama2-70b"]), "--pp", str(pp)]
    job += ["--schedule", schedule, "--microbatches", str(r.choice([pp, 2 * pp, 4 * pp, 2 * pp + 1])), "--tp", str(r.choice([1, 2, 4, 8]))]
    job += ["--dp", str(r.choice([1, 2, 8])), "--zero", r.choice(["0", "0", "1", "2", "3", "dist"]), "--seq", str(r.choice([2048, 8192, 32768]))]
    job += ["--mbs", str(r.choice([1, 2])), "--grads", r.choice(["fp8", "bf16", "fp32"]), "--context", r.choice(["0B", "1500000000B"])]
    job += ["--vpp", str(r.choice([2, 4]))] if schedule == "interleaved" else []
    job += r.choice([[], [], ["--recompute", r.choice(["1", "2", "act", "norms,core", "1,act", "full"])]])
    job += r.choice([[], ["--caching-allocator"]]) + r.choice([[], ["--sp"]]) + r.choice([[], ["--margin", "20%"]])
    job += r.choice([[], [], ["--loss-chunks", "8"], ["--qk-norm"], ["--attn-qkv", "8"], ["--optimizer", "adam8"]])
    job += r.choice([[], [], [], ["--accounting", r.choice(["fused-1.4", "hf-eager", "megatron"])]])
    free, _ = simulate(tool, job + ["--budget", "1600000000B"])
    if not free:
        return None
    peaks = [x["predicted_peak_bytes"] for x in free["stages"]]
    if r.random() < 0.4:  # one stage has something else on its GPUs
        return job + ["--margin", "0%"] * ("--margin" not in job) + ["--budget", f"{int(max(peaks) * r.uniform(1.02, 1.3))}B",
                      "--extra-stage", f"{r.randrange(pp)}={int(max(peaks) * r.uniform(0.1, 0.5))}B"]
    return job + ["--budget", f"{int(r.choice(peaks) * r.uniform(0.7, 1.1))}B"]


def by_chance(tool, seed, jobs):
    r = random.Random(seed)
    pulled, n = {}, 0
    while n < jobs:
        job = draw(r, tool)
        base = job and check(tool, " ".join(job), job, pulled)
        n += bool(base and not base["feasible"])
    kinds = ["move_layers", "shard_optimizer", "chunk_loss", "raise_tp", "raise_cp", "other_schedule", "expandable_segments", "lower_pin",
             "recompute_layers", "recompute_gate_up"]
    few = [k for k in kinds if pulled.get(k, 0) < jobs // 15]
    print(f"{'not ok' if few else 'ok'} levers of {n} jobs by chance: {dict(sorted(pulled.items()))} pulled{', too few of ' + str(few) if few else ''}")


tool, name, *options = sys.argv[1:]
if name == "--random":
    by_chance(tool, int(options[0]), int(options[1]))
else:
    pulled = {}
    base = check(tool, name, options, pulled)
    print(f"{'ok' if pulled and base and not base['feasible'] else 'not ok'} {name}: {', '.join(sorted(pulled))} pulled")
