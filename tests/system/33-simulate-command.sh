#!/bin/bash
# One whole question to simulate, with all that its answer must hold: keys, tables and totals that add up, the same from a file, the
# largest that fits, and what cannot be, each refused with its reason and the nearest valid name.
. "$(dirname "$0")/lib.sh"
ask="--model llama3-8b --pp 4 --vpp 2 --tp 2 --dp 4 --microbatches 8 --schedule interleaved --seq 8192 --mbs 1 --budget 80GiB --gpu h100-80 --budget-stage 0=70GiB"
sim() { "$BUILD/agoqctl" simulate "$@"; }

# shellcheck disable=SC2086
check "the question is answered" sim $ask --compare --json
# shellcheck disable=SC2086
sim $ask --compare --json > "$tmp/a.json"
# shellcheck disable=SC2086
sim $ask --compare > "$tmp/a.txt"
cat > "$tmp/job.yaml" << 'YAML'
model: llama3-8b
gpu: h100-80
pp: 4
vpp: 2
tp: 2
dp: 4
microbatches: 8
schedule: interleaved
seq: 8192
mbs: 1
budget: 80GiB
budget_stage:
  0: 70GiB
compare: true
YAML
sim "$tmp/job.yaml" --json > "$tmp/b.json"

cat > "$tmp/holds.py" << 'PY'
import json, re, sys
a, b = (json.load(open(f"{sys.argv[1]}/{n}.json")) for n in "ab")
lines = open(f"{sys.argv[1]}/a.txt").read().splitlines()
GIB = 2**30


def case(name, holds, detail=""):
    print(f"ok {name}" if holds else f"not ok {name}: {detail}")


keys = {"feasible": bool, "mode": str, "objective": (int, float), "lower_bound": (int, float), "gap": (int, float), "solve_ms": (int, float),
        "plan_hash": str, "stages": list, "levers": list, "warnings": list}
case("every key of the answer, with its type", all(isinstance(a.get(k), t) for k, t in keys.items()), [k for k in keys if k not in a])
of_stage = {"stage": int, "layers": list, "live": list, "widths": dict, "static_bytes": int, "activation_bytes": int, "transient_bytes": int,
            "predicted_peak_bytes": int, "budget_bytes": int, "slack_bytes": int, "binding_vector": list}
case("every key of a stage, with its type", len(a["stages"]) == 4 and all(isinstance(s.get(k), t) for s in a["stages"] for k, t in of_stage.items()))
case("live vectors, layers and budgets", a["stages"][0]["live"] == [[8, 3], [7, 4]] and [{sum(row) for row in s["live"]} for s in a["stages"]] == [{11}, {9}, {7}, {5}]
     and [s["layers"] for s in a["stages"]] == [[4 * r + k for k in range(4)] + [16 + 4 * r + k for k in range(4)] for r in range(4)]
     and [s["budget_bytes"] for s in a["stages"]] == [70 * GIB, 80 * GIB, 80 * GIB, 80 * GIB], [s["live"] for s in a["stages"]])
case("bytes add up", all(s["predicted_peak_bytes"] == s["static_bytes"] + s["activation_bytes"] + s["transient_bytes"]
                         and abs(s["predicted_peak_bytes"] + s["slack_bytes"] - 0.9 * s["budget_bytes"]) < 2
                         and s["binding_vector"] in s["live"] for s in a["stages"]))
case("widths: one number, or one a layer", all(isinstance(w, int) or len(w) == 8 for s in a["stages"] for w in s["widths"].values())
     and {"attn_norm_in", "mlp_norm_in", "mlp_gate_up", "attn_out", "attn_qkv"} <= set(a["stages"][0]["widths"])
     and "final_norm_in" in a["stages"][3]["widths"])
case("a whole plan of that hash", a["feasible"] and re.fullmatch("[0-9a-f]{16}", a["plan_hash"]) and a["gap"] == 0 and a["mode"] == "budget")
del a["solve_ms"], b["solve_ms"]
case("the same from one file", a == b)

header = next((i for i, l in enumerate(lines) if l.startswith("STAGE")), None)
columns = lines[header].split() if header is not None else []
case("a table with every column", [c for c in columns if c.isupper()] == ["STAGE", "LAYERS", "LIVE", "STATIC", "ACTIVATIONS", "TRANSIENT", "PEAK", "IN", "BUDGET", "SLACK", "BITS", "WHY"]
     and [c for c in columns if c.islower()] == ["attn_norm_in", "mlp_norm_in", "mlp_gate_up"], columns)
gib = lambda n: f"{n / GIB:.2f} GiB"
rows = lines[header + 1:header + 5]
case("whose rows say what the JSON says", all(r.split()[:3] == [str(s["stage"]), str(len(s["layers"])), str(s["live_microbatches"])]
     and re.findall(r"[0-9.]+ GiB", r) == [gib(s[k]) for k in ("static_bytes", "activation_bytes", "transient_bytes", "predicted_peak_bytes", "budget_bytes", "slack_bytes")]
     for r, s in zip(rows, a["stages"])), rows)
bars = [re.fullmatch(r"stage (\d+) +\[([#=.| -]{48})\] (\S+ GiB) of (\S+ GiB)", l) for l in lines]
bars = [m for m in bars if m]
case("a bar for every stage", [m.group(1) for m in bars] == list("0123") and [m.group(3) for m in bars] == [gib(s["predicted_peak_bytes"]) for s in a["stages"]])
share = [m.group(2).count("#") / 48 - s["static_bytes"] / (80 * GIB) for m, s in zip(bars, a["stages"])]
case("as long as its bytes", all(abs(x) < 1.5 / 48 for x in share) and bars[0].group(2)[42] == "|", share)
total = next((l for l in lines if l.startswith("in all stages: ")), "")
case("totals", re.findall(r"[0-9.]+ GiB", total) == [gib(sum(s[k] for s in a["stages"])) for k in ("static_bytes", "activation_bytes", "predicted_peak_bytes")], total)
others = {o["name"]: o for o in a["others"]}
case("what the job needs otherwise", list(others) == ["16 bits", "full recomputation", "AGoQ's rule"]
     and others["16 bits"]["predicted_peak_bytes"] > a["stages"][0]["predicted_peak_bytes"] > others["full recomputation"]["predicted_peak_bytes"]
     and all(any(l.strip().startswith(n) and gib(o["predicted_peak_bytes"]) in l for l in lines) for n, o in others.items()), others)
names = ["AGoQ's rule", "uniform 4", "uniform 5", "uniform 6", "uniform 8", "equalize", "budget"]
error = {c["name"]: c["error"] for c in a["compare"]}
case("ways side by side with their errors", list(error) == names and error["budget"] == a["objective"] and error["uniform 4"] > error["uniform 5"] > error["uniform 6"] > error["uniform 8"]
     and error["equalize"] < error["AGoQ's rule"] and all(any(l.startswith(n + " ") and f"{error[n]:.4g}" in l for l in lines) for n in names), error)
PY
report "holds" python3 "$tmp/holds.py" "$tmp"

# max WHAT STEP: the answer is a whole number of steps, fits, and one step more does not.
max() {
    local what=$1 flag=$2 next
    # shellcheck disable=SC2086
    set -- $(sed "s/--$flag [0-9]* *//" <<< "$ask --layers 32 " | sed "s/--layers 32//") --json
    sim "$@" --max "$what" > "$tmp/max.json"
    next=$(python3 -c 'import json, sys
m = json.load(open(sys.argv[1]))["max"]
assert m["largest"] % m["step"] == 0 and m["largest"] > 0 and m["what"] == sys.argv[2]
print(m["largest"], m["largest"] + m["step"])' "$tmp/max.json" "$what" 2> "$tmp/err") || { not_ok "the largest $what" "$(tail -n 1 "$tmp/err")"; return; }
    sim "$@" "--$flag" "${next% *}" > /dev/null 2>&1
    local fits=$?
    sim "$@" "--$flag" "${next#* }" > /dev/null 2>&1
    local more=$?
    if [ $fits -eq 0 ] && [ $more -eq 5 ]; then ok "the largest $what fits, one step more does not"; else not_ok "the largest $what" "$next: exit $fits, $more"; fi
}
max seq seq
max mbs mbs
max layers layers

# refused NAME REASON OPTION VALUE...: the question with other options; exit 2, nothing on stdout, the reason in the message.
refused() {
    local name=$1 reason=$2 line=" $ask" rc=0
    shift 2
    local -a more=("$@")
    while [ $# -gt 0 ]; do
        line=$(sed "s/ $1 [^ ]*//" <<< "$line")
        shift 2
    done
    # shellcheck disable=SC2086
    sim $line "${more[@]}" > "$tmp/out" 2> "$tmp/err" || rc=$?
    if [ $rc -eq 2 ] && [ ! -s "$tmp/out" ] && grep -q -- "$reason" "$tmp/err"; then ok "refused: $name"; else not_ok "refused: $name" "exit $rc: $(head -c 200 "$tmp/err")"; fi
}
refused "tp that does not divide the heads" "tp 3 does not divide the 32 heads" --tp 3
refused "more stages than layers" "pp 33 is more than the 32 layers" --pp 33 --vpp 1 --schedule 1f1b
refused "chunks that do not divide" "which does not divide the 32 layers" --vpp 3
refused "no micro-batch" "--microbatches: 0 is none" --microbatches 0
refused "no chunk" "--vpp: 0 is none" --vpp 0
refused "no stage" "--pp: 0 is none" --pp 0
refused "a budget below the context" "budget of stage 1 .* is not above the context" --budget 1GiB --context 2GiB
refused "a stage's budget below the context" "budget of stage 0 .* is not above the context" --budget-stage 0=1MiB
refused "a budget of no stage" "stage 9, but the last one is 3" --budget-stage 9=1GiB
refused "no budget" "0 is no budget" --budget 0GiB
refused "a schedule that is none" "did you mean 'interleaved'" --schedule interlaved
refused "a GPU that is none" "did you mean 'h100-80'" --gpu h100
refused "a model that is none" "did you mean 'llama3-8b'" --model lama3-8b
refused "an option that is none" "did you mean --microbatches" --micro-batches 8
refused "a size that is none" "not a size such as" --budget 80
refused "half a layer's sequence" "not a whole number" --seq 8k
refused "something else to be largest" "did you mean 'layers'" --max layer
[ $n_failed -eq 0 ]
