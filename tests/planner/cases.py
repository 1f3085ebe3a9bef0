"""Runs the cases of tests/planner/cases: each file is a job for `agoqctl simulate`, and its comments say what was reported
elsewhere and what the planner must answer.

    # compare: NAME | EXPRESSION | FIGURE UNIT | LIMIT %      prints the deviation; more than LIMIT is a failure
    # expect: NAME | EXPRESSION                               must hold
    # pull: OPTIONS | NAME | EXPRESSION                       the same job with these options as well
    # pull-compare: OPTIONS | NAME | EXPRESSION | FIGURE UNIT | LIMIT %

In expressions: a, the JSON; s, its stages; peak(i); heaviest; base(i), base_act(i), peaks of the job as it stands; lever(NAME,
stage=any, enough=True), whether such a lever is proposed. Exit status 5 (does not fit) must agree with "feasible".
usage: cases.py AGOQCTL FILE...
"""
import json
import shlex
import subprocess
import sys

UNITS = {"MB": 1e6, "GB": 1e9, "MiB": 2.0**20, "GiB": 2.0**30, "M": 1e6}


def simulate(tool, path, options):
    run = subprocess.run([tool, "simulate", path, "--json", *options], capture_output=True, text=True)
    if run.returncode not in (0, 5):
        raise RuntimeError(run.stderr.strip())
    answer = json.loads(run.stdout)
    assert answer["feasible"] == (run.returncode == 0), "exit status and answer disagree"
    for stage in answer["stages"]:  # what no plan may break
        if not stage["overshoot_bytes"] and stage["budget_bytes"]:
            assert stage["predicted_peak_bytes"] <= stage["budget_bytes"], "above a budget, and not said"
        assert (stage["overshoot_bytes"] == 0) or not answer["feasible"], "an overshoot in a feasible answer"
    return answer


def names(answer, base):
    stages = answer["stages"]

    def lever(kind, stage=None, enough=True):
        return any(
            l["lever"] == kind and stage in (None, l["stage"]) and (l["enough"] or not enough) for l in answer["levers"]
        )

    peaks = [x["predicted_peak_bytes"] for x in stages]
    return {
        "a": answer,
        "s": stages,
        "peak": lambda i: peaks[i],
        "heaviest": peaks.index(max(peaks)),
        "base": lambda i: base["stages"][i]["predicted_peak_bytes"],
        "base_act": lambda i: base["stages"][i]["activation_bytes"],
        "lever": lever,
        **UNITS,
    }


def compare(case, scope, name, expression, figure, limit):
    number, unit = figure.split()
    reported, predicted = float(number) * UNITS[unit], eval(expression, scope)
    off = 100 * (predicted - reported) / reported
    bound = float(limit.rstrip("% "))
    verdict = "ok" if abs(off) <= bound else "not ok"
    print(f"{verdict} {case}: {name}: predicted {predicted / UNITS[unit]:.2f} {unit}, reported {number}, deviation {off:+.1f} % (at most {bound:g})")


def expect(case, scope, name, expression):
    if eval(expression, scope):
        print(f"ok {case}: {name}")
    else:
        seen = [(x["predicted_peak_bytes"], x["overshoot_bytes"], x["bits_mean"], x["why"]) for x in scope["s"]]
        print(f"not ok {case}: {name}: feasible {scope['a']['feasible']}, {seen[:4]}, {[l['lever'] for l in scope['a']['levers'] if l['enough']]}")


def run(tool, path):
    case = path.rsplit("/", 1)[1].removesuffix(".yaml")
    lines = [line[1:].strip() for line in open(path) if line.startswith("#")]
    said = [line.split(": ", 1) for line in lines if line.split(":")[0] in ("compare", "expect", "pull", "pull-compare")]
    kinds = {line.split(":")[0] for line in lines}
    if not {"reported", "assumed"} <= kinds or not said:
        print(f"not ok {case}: says not what was reported, assumed and expected")
        return
    try:
        base = simulate(tool, path, [])
        for kind, text in said:
            parts = [part.strip() for part in text.split(" | ")]
            pulled = kind.startswith("pull")
            answer = simulate(tool, path, shlex.split(parts.pop(0))) if pulled else base
            (compare if kind.endswith("compare") else expect)(case, names(answer, base), *parts)
    except Exception as problem:  # a case that cannot be read is a failure, not an end
        print(f"not ok {case}: {type(problem).__name__}: {problem}")


for file in sys.argv[2:]:
    run(sys.argv[1], file)
